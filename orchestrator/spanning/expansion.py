"""Elements written as sums of products of specification elements, by opening ops between known relations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from certificates.plan.affine import Affine, Range, fold
from certificates.plan.ops import ELEMENTWISE
from certificates.plan.program import Op
from certificates.proof.facts import Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Cut, Digits, Unfollowable
from ..relating.access import access
from ..relating.knowledge import Knowledge
from ..relating.ledger import Unrelated
from ..relating.recipes import Instance, Use, tied
from ..relating.solving_facts import make_fact
from .terms import Forms, Leaf, Sum, Term, Trace, added, applied, multiplied, split

#: Ops that polynomials are made of; every other one is a free function here.
RING = frozenset(("add", "subtract", "multiply", "divide", "negate", "dot_general", "reduce"))
#: Elements opened for one tensor, in all attempts together: at least, and for each op of the plan.
MAX_STEPS, STEPS_PER_OP = 4000, 8
#: Elements opened inside each other; what is written of one is as long as it is deep.
MAX_DEPTH = 100
#: These are none of them: the terms of sums of sums stand next to each other.
SUMS = frozenset(("add", "subtract", "negate", "reduce"))
#: Elements opened inside each other, those of sums too: each takes some of Python's frames.
MAX_NESTED = 1500


def kind_of(op: Op, kind: str) -> str:
    """What an op makes of its terms: their sum, or the largest or smallest of them."""
    return op.name[:3] if op.name in ("maximum", "minimum") else kind


class Alien(Exception):
    """A specification op made of a tensor that the plan does not read: so are all ops made of it."""


class Expansion:
    """Writes elements of one tensor, and of its partners in the specification, as sums.

    ``stops`` says at which specification tensors to end; it may raise :class:`Alien`. Of a maximum, or a
    minimum, the terms are its members: ``kind`` says which, and what is added below it is one product.
    """

    def __init__(self, knowledge: Knowledge, kind: str = "add", limit: int | None = None) -> None:
        self.k, self.model, self.kind = knowledge, knowledge.model, kind
        self.limit = max(MAX_STEPS, STEPS_PER_OP * len(self.model.ops)) if limit is None else limit
        self.mesh = list(self.model.plan.mesh.axes)
        self.steps, self._depth, self._nested = 0, 0, 0
        self._names = itertools.count()
        self._open: dict[Ref, bool] = {}

    def fresh(self) -> str:
        """A bound symbol's name."""
        return f"b{next(self._names)}"

    def opened(
        self, ref: Ref, at: Sequence[Affine], ranges: Mapping[str, Range], stops: Callable[[str], bool]
    ) -> Sum:
        """An element by the definition of its tensor, whatever is known of it."""
        self.steps += 1
        if self.steps > self.limit:
            raise Unfollowable(f"more than {self.limit} elements are opened")
        flat = isinstance(ref, Reduced) or ((op := self.model.op(ref)) is not None and op.name in SUMS)
        if self._depth >= MAX_DEPTH or self._nested >= MAX_NESTED:
            raise Unfollowable(f"more than {self._nested} elements are opened inside each other")
        at = tuple(at)
        here = Trace((ref,), (Use(ref, at),))
        self._nested += 1
        self._depth += not flat
        try:
            terms = self._members(ref, at, ranges, stops) if isinstance(ref, Reduced) else self._op(
                ref, at, ranges, stops
            )  # fmt: skip
        finally:
            self._nested -= 1
            self._depth -= not flat
        return [t.through(here) for t in terms]

    def element(
        self, ref: Ref, at: Sequence[Affine], ranges: Mapping[str, Range], stops: Callable[[str], bool]
    ) -> Sum:
        """An element, through what is known of it."""
        at = tuple(fold(f, ranges) for f in at)
        literal = self.model.literal(ref)
        if literal is not None:
            value = {"true": Fraction(1), "false": Fraction(0)}.get(str(literal), literal)
            if not isinstance(value, Fraction):
                raise Unfollowable(f"{ref} is not a rational literal")
            # Not every literal is an element of a tensor that the stage has a tree for.
            return [Term(value, (), {}, Trace(uses=(Use(ref, at),)))]
        here = Trace(uses=(Use(ref, at),))
        if self.k.is_atom(ref) and ref not in self.k.by_lhs:
            assert isinstance(ref, str)
            if stops(ref):
                return [Term(Fraction(1), (Leaf(ref, at),), {}, here)]
            return self.opened(ref, at, ranges, stops)
        try:
            if self._partly(ref):
                raise Unrelated(ref)  # a stage cannot open a tensor here and not there
            reading = self.k.read(ref, at, ranges)
        except Unrelated:
            terms = self._unrelated(ref, at, ranges, stops)
        else:
            if reading.fact is not None and (reading.target, reading.at) != (ref, at):
                here |= Trace(instances=(Instance(reading.fact, reading.values),))
            # Positions, say, are related to the specification's at another index of the same tensor.
            if (reading.target == ref or reading.target in self.k.landmarks) and stops(str(reading.target)):
                used = Trace(uses=(Use(reading.target, reading.at),))
                inner = [Term(Fraction(1), (Leaf(reading.target, reading.at),), {}, used)]
            elif reading.target == ref:
                inner = self.opened(ref, reading.at, ranges, stops)
            else:
                inner = self.element(reading.target, reading.at, ranges, stops)
            terms = [t.scaled(reading.coef) for t in inner]
        return [t.through(here) for t in terms]

    def _unrelated(
        self, ref: Ref, at: Forms, ranges: Mapping[str, Range], stops: Callable[[str], bool]
    ) -> Sum:
        if isinstance(ref, Reduced):
            return self.opened(ref, at, ranges, stops)
        op = self.model.op(ref)
        if op is None or ref.startswith("s:"):
            raise Unrelated(ref)
        if op.name == "all_reduce" and op.text("kind") == self.kind:
            red = self.model.reduced(ref, self.kind)
            kept = [f for i, f in enumerate(at) if i >= len(self.mesh) or self.mesh[i] not in red.axes]
            here = Trace((ref,))
            return [t.through(here) for t in self.element(red, kept, ranges, stops)]
        if self.k.moves(ref):
            return self._moved(ref, at, ranges, stops)
        return self.opened(ref, at, ranges, stops)

    def _partly(self, ref: Ref) -> bool:
        """Whether facts about a rank's tensor leave elements open."""
        if ref not in self._open:
            whole = math.prod(hi - lo for lo, hi in self.model.tensors.ranges(ref))
            facts = [self.k.facts[n] for n in self.k.facts_for(ref)]
            known = sum(math.prod(hi - lo for _, lo, hi in f.symbols) for f in facts)
            computed = isinstance(ref, str) and not ref.startswith("s:") and ref in self.model.ops
            self._open[ref] = computed and 0 < known < whole
        return self._open[ref]

    def _moved(self, ref: str, at: Forms, ranges: Mapping[str, Range], stops: Callable[[str], bool]) -> Sum:
        """Data movement: by facts about the whole tensor, or, across ranks, about this element alone."""
        try:
            links = self.k.links(ref)
        except (Unfollowable, NoDefinition):
            links = None
        link = None if links is None else self.k.through(links, at, ranges)
        if link is not None and link.fact is not None:
            instance, coef, target, there = (
                Instance(link.fact, link.values), link.coef, link.target, link.at
            )  # fmt: skip
        else:
            coef, target, moved = self.k.source(ref, list(at), ranges)
            if target == ref:
                raise Unrelated(ref)
            there = tuple(fold(f, ranges) for f in moved)
            fact = make_fact(self.model, Cell(ranges, {}), ref, at, target, there, coef)
            instance = tied(self.k, fact, at, ranges)
            coef = fact.coef
        here = Trace(instances=(instance,), uses=(Use(target, there),))
        return [t.scaled(coef).through(here) for t in self.element(target, there, ranges, stops)]

    # --- definitions ---------------------------------------------------------------------------------------

    def _over(
        self, bound: Mapping[str, Range], ranges: Mapping[str, Range],
        compute: Callable[[Mapping[str, Affine], Mapping[str, Range]], Sum],
    ) -> Sum:  # fmt: skip
        """The sum over a box, in parts on which its terms are uniform."""
        if not bound:
            return compute({}, ranges)
        # Where the symbols of the whole box are, on a part of it.
        place = Leaf("", tuple(map(Affine.symbol, bound)))
        work, out = [Term(Fraction(1), (place,), dict(bound))], Sum()
        while work:
            part = work.pop()
            (here,) = part.leaves()
            try:
                terms = compute(dict(zip(bound, here.at, strict=True)), {**ranges, **part.box})
            except (Cut, Digits) as error:
                if error.symbol not in part.box:
                    raise
                work += reversed(split(part, error, self.fresh))
                continue
            out = added(out, [replace(t, box={**t.box, **part.box}) for t in terms])
        return out

    def _members(
        self, ref: Reduced, at: Forms, ranges: Mapping[str, Range], stops: Callable[[str], bool]
    ) -> Sum:
        """A sum over ranks, class by class."""
        if ref.kind != self.kind:
            raise Unrelated(ref)
        total = Sum()
        for member in ref.of:
            box = self.model.plan.by_class[split_ref(member)[0]].box
            bound = {a: self.fresh() for a in ref.axes}

            def one(
                values: Mapping[str, Affine], inner: Mapping[str, Range],
                member: str = member, bound: Mapping[str, str] = bound,
            ) -> Sum:  # fmt: skip
                index = list(at)
                for a in sorted(bound, key=self.mesh.index):
                    index.insert(self.mesh.index(a), values[bound[a]])
                return self.element(member, index, inner, stops)

            total = added(total, self._over({bound[a]: box[a] for a in ref.axes}, ranges, one))
        return total

    def _op(self, ref: str, at: Forms, ranges: Mapping[str, Range], stops: Callable[[str], bool]) -> Sum:
        op, ins = self.model.op(ref), self.model.operands(ref) if self.model.op(ref) else ()
        pattern = None if op is None else access(op, [self.model.tensors.type(v).shape for v in ins])
        if op is None or pattern is None or pattern.kind not in ("add", self.kind):
            raise Unrelated(ref)
        if self.kind not in ("add", kind_of(op, pattern.kind)):
            return self._inner(ref, at, ranges, stops)
        mesh = len(self.model.tensors.mesh_axes(ref))
        known = dict(zip(pattern.out, at[mesh:], strict=True))
        bound = {name: self.fresh() for name, _ in pattern.summed}

        def product(values: Mapping[str, Affine], inner: Mapping[str, Range]) -> Sum:
            place = known | {name: values[symbol] for name, symbol in bound.items()}
            there = [(*at[:mesh], *(place[n] for n in names)) for names in pattern.operands]
            if op.name in ("multiply", "dot_general"):
                return multiplied(*self._factors(ins, there, inner, stops))
            return self._combined(
                ref, [self.element(v, i, inner, stops) for v, i in zip(ins, there, strict=True)]
            )

        return self._over({bound[n]: (0, size) for n, size in pattern.summed}, ranges, product)

    def _factors(
        self, refs: Sequence[str], places: Sequence[Forms], ranges: Mapping[str, Range],
        stops: Callable[[str], bool],
    ) -> list[Sum]:  # fmt: skip
        """Elements that are multiplied; what stands beside a zero is read as it is."""
        found: list[Sum | None] = []
        trouble: Exception | None = None
        for ref, at in zip(refs, places, strict=True):
            try:
                found.append(self.element(ref, at, ranges, stops))
            except (Alien, Unrelated) as error:
                found.append(None)
                trouble = error
        if trouble is not None and not any(f is not None and not any(t.coef for t in f) for f in found):
            raise trouble
        unread = [Trace(uses=(Use(ref, at),)) for ref, at in zip(refs, places, strict=True)]
        return [
            [Term(Fraction(1), (), {}, u)] if f is None else f for u, f in zip(unread, found, strict=True)
        ]

    def _inner(self, ref: str, at: Forms, ranges: Mapping[str, Range], stops: Callable[[str], bool]) -> Sum:
        """A member of a maximum: one product, without a sum."""
        kind, self.kind = self.kind, "add"
        try:
            terms = self._op(ref, at, ranges, stops)
        finally:
            self.kind = kind
        if len(terms) != 1 or terms[0].box:
            raise Unfollowable(f"{ref}: a maximum of a sum")
        return terms

    def _combined(self, ref: str, parts: Sequence[Sum]) -> Sum:
        """What an op makes of its operands' elements: the definitions of algebra stages."""
        op = self.model.ops[ref]
        minus = Fraction(-1)
        match op.name:
            case "reduce":
                return parts[0]
            case "add":
                return added(*parts)
            case "subtract":
                return added(parts[0], [t.scaled(minus) for t in parts[1]])
            case "negate":
                return [t.scaled(minus) for t in parts[0]]
            case "and":
                return multiplied(*parts)
            case "divide":
                return multiplied(parts[0], applied("recip", parts[1:]))
            case "or":
                return added(*parts, [t.scaled(minus) for t in multiplied(*parts)])
            case "not":
                return added([Term(Fraction(1))], [t.scaled(minus) for t in parts[0]])
            case "select":
                p, x, y = parts
                return added(y, multiplied(p, x), [t.scaled(minus) for t in multiplied(p, y)])
            case "convert":
                source = self.model.tensors.type(self.model.operands(ref)[0]).sort
                same = (source, op.type.sort) != ("Int", "Bool")
                return parts[0] if same else applied("nonzero", parts)
            case "maximum" | "minimum":
                return added(*parts) if self.kind == op.name[:3] else applied(f"{op.name[:3]}2", parts)
            case "compare":
                return applied(f"compare {op.text('direction')}", parts)
            case name if name in ELEMENTWISE:
                return applied(name, parts)
        raise Unrelated(ref)
