"""Specification ops that are the same sum, maximum or quotient as a tensor of the plan that was opened."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.program import Op
from certificates.proof.facts import Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Cut, Digits, Unfollowable, explore
from ..relating.access import access
from ..relating.knowledge import Knowledge
from ..relating.ledger import Unrelated
from ..relating.solving_facts import solve
from .expansion import RING, Alien, Expansion
from .fields import FIELD, ratio
from .refining import Refinement
from .terms import Call, Factor, Forms, Key, Leaf, Sum, Term, amounts, collected, members
from .vanishing import Vanishing

#: Whether to end at a specification tensor.
Stops = Callable[[str], bool]
#: Specification ops that one tensor is compared with.
MAX_PARTNERS = 48
#: Places of one of them that are tried.
MAX_PLACES = 8
#: Orders of the elements of one tensor in a product that are tried.
MAX_PAIRINGS = 6
#: Ops whose results are 0 or 1, or one of two values, by their operands alone.
CHOICES = frozenset(("select", "convert", "and", "or", "not"))


@dataclass
class Attempt:
    """One tensor that is being related."""

    expansion: Expansion
    #: A split of the goal that one of the partners asked for.
    split: Cut | Digits | None = None
    #: SMT-LIB sort of its elements: what a truth value is opened to is a number, but the two are not equal.
    sort: str = "Real"
    #: The only element of the specification that is looked for, if that is given.
    only: tuple[str, Forms] | None = None
    #: Specification ops over symbols of their own, by the elements to end at and the ops that are opened.
    own: dict[tuple[str, frozenset[Ref], frozenset[str]], list[tuple[Cell, Sum]] | None] = field(
        default_factory=dict
    )

    def names(self) -> frozenset[str]:
        """The ops that are opened wherever they stand, as :func:`_name` has them."""
        kind = self.expansion.kind
        return RING if kind == "add" else RING | {f"reduce {kind}", f"{kind}imum"}

    def collected(self, terms: Sum) -> dict[Key, Fraction]:
        """Products with their coefficients, of a sum or of a maximum."""
        return (collected if self.expansion.kind == "add" else members)(terms)

    def ratio(self, plan: Sum, spec: Sum) -> Fraction | None:
        """The factor by which one side is a multiple of the other; of a maximum it is positive."""
        mine, theirs = self.collected(plan), self.collected(spec)
        if not mine or mine.keys() != theirs.keys() or any(bool(mine[k]) != bool(theirs[k]) for k in mine):
            return None
        ratios = {mine[key] / theirs[key] for key in mine if theirs[key]}
        found = ratios.pop() if len(ratios) == 1 else None
        return found if found is not None and (found > 0 or self.expansion.kind == "add") else None


@dataclass(frozen=True)
class Span:
    """``plan = coef * rhs[at]`` on a box, and the terms of both sides that show it."""

    rhs: Ref
    at: Forms
    coef: Fraction
    terms: tuple[Term, ...]
    field: bool = False


class Partners:
    """The specification's ops, by the elements that they are made of."""

    def __init__(self, knowledge: Knowledge, vanishing: Vanishing) -> None:
        self.k, self.model, self.vanishing = knowledge, knowledge.model, vanishing
        self._readers: dict[Ref, list[str]] | None = None

    def find(self, plan: Sum, cell: Cell, attempt: Attempt, *, field: bool = False) -> Iterator[Span]:
        """Specification ops made of the same elements, opened down to them, that are the same sum.

        With ``field``, the same quotient.
        """
        live = [t for t in plan if t.coef]
        leaves = frozenset(leaf.ref for t in live for leaf in t.leaves())
        if not leaves:
            return
        functions = frozenset(name for t in live for f in t.factors for name in _functions(f))
        names = (FIELD if field else attempt.names()) | CHOICES | functions

        def stops(ref: str) -> bool:
            if ref not in leaves and not self.opens(ref, names):
                raise Alien(ref)
            return ref in leaves

        plain = leaves if all(isinstance(f, Leaf) for t in live for f in t.factors) else frozenset()
        known = amounts(plan)
        for spec in self._reached(leaves, names, attempt, stops, plain):
            if self.model.tensors.type(spec).sort != attempt.sort:
                continue
            for place, theirs in attempt.own[spec, leaves, names] or ():
                if not theirs or {leaf.ref for t in theirs for leaf in t.leaves()} != leaves:
                    continue
                try:
                    for out in self._places(live, theirs, place, cell, whole=field):
                        if attempt.only is not None and attempt.only != (spec, out):
                            continue
                        other = attempt.expansion.opened(spec, out, cell.ranges, stops)
                        if not field and not self._may_be(known, other, attempt):
                            continue
                        refine = Refinement(self.model, cell.ranges, attempt.expansion.fresh)
                        mine, other = refine.of([plan, other])
                        coef = ratio(mine, other, self.k) if field else attempt.ratio(mine, other)
                        if coef is None and not field:
                            mine, other, coef = self._without(mine, other, cell, attempt)
                        if coef is not None:
                            yield Span(spec, out, coef, (*mine, *other), field)
                except (Cut, Digits) as error:
                    attempt.split = attempt.split or error
                except (Alien, Unrelated, Unfollowable, NoDefinition):
                    continue

    def _may_be(self, mine: Mapping[tuple[str, ...], Fraction], other: Sum, attempt: Attempt) -> bool:
        """Whether one sum may be a multiple of another, before their boxes are cut, which takes long."""
        if attempt.expansion.kind != "add" or self.vanishing.may_be(other):
            return True
        theirs = amounts(other)
        return mine.keys() == theirs.keys() and len({mine[k] / theirs[k] for k in mine}) < 2

    def _without(
        self, mine: Sum, other: Sum, cell: Cell, attempt: Attempt
    ) -> tuple[Sum, Sum, Fraction | None]:
        """Both sums again, without what a mask makes zero in the specification's."""
        left = self.vanishing.without(other, cell.ranges)
        if left is None:
            return mine, other, None
        mine = self.vanishing.without(mine, cell.ranges) or mine
        mine, left = Refinement(self.model, cell.ranges, attempt.expansion.fresh).of([mine, left])
        return mine, left, attempt.ratio(mine, left)

    # --- the specification ---------------------------------------------------------------------------------

    def _reached(
        self,
        leaves: frozenset[Ref],
        names: frozenset[str],
        attempt: Attempt,
        stops: Stops,
        plain: frozenset[Ref],
    ) -> Iterator[str]:
        """Ops that are made of some elements, nearest first.

        Those made of only some of the ``plain`` ones lie on the way: the sum over all layers of a deep model
        is far above each.
        """
        readers = self._index()
        rarest = min(sorted(leaves, key=str), key=lambda r: len(readers.get(r, ())))
        reached = list(readers.get(rarest, ()))
        seen, passed, sums = set(reached), 0, dict[str, frozenset[Ref]]()
        for spec in reached:
            if len(seen) - passed > MAX_PARTNERS:
                return
            if not self.opens(spec, names):
                continue
            if plain and self._made_of(spec, plain, sums) < plain:
                passed += 1
                above = [r for r in readers.get(spec, ()) if r not in seen]
                seen.update(above)
                reached += above
                continue
            if (spec, leaves, names) not in attempt.own:
                attempt.own[spec, leaves, names] = self._own(spec, attempt, stops)
            if attempt.own[spec, leaves, names] is None:
                continue
            yield spec
            above = [r for r in readers.get(spec, ()) if r not in seen]
            seen.update(above)
            reached += above

    def generated(self, plan: Sum) -> set[Ref]:
        """Elements of products that are made of the others by sums and products, and what lies between.

        Of a product of matrices and its factors, say: opened, both sides are made of the factors alone.
        """
        live = [t for t in plan if t.coef]
        leaves = {leaf.ref for t in live for leaf in t.leaves()}
        found: set[Ref] = set()
        for ref in dict.fromkeys(f.ref for t in live for f in t.factors if isinstance(f, Leaf)):
            others = frozenset(leaves - found - {ref})
            if self.opens(ref, RING):
                ends, between = self._cone(str(ref), others, {})
                if ends <= others:
                    found |= between
        return found

    def _made_of(self, ref: str, plain: frozenset[Ref], known: dict[str, frozenset[Ref]]) -> frozenset[Ref]:
        """The ``plain`` elements that sums and products are made of, and whatever else they are made of."""
        if ref not in known:
            known[ref] = frozenset(self._cone(ref, plain, known)[0])
        return known[ref]

    def _cone(
        self, ref: str, plain: frozenset[Ref], known: Mapping[str, frozenset[Ref]]
    ) -> tuple[set[Ref], set[str]]:
        """Where the sums and products below an op end, and the op with those on the way."""
        found: set[Ref] = set()
        work, seen = [ref], {ref}
        while work:
            for v in self.model.operands(work.pop()):
                if v not in plain and v in known:
                    found |= known[v]
                elif v not in plain and self.opens(v, RING):
                    if v not in seen:
                        seen.add(v)
                        work.append(v)
                elif v not in self.k.by_lhs and self.k.is_atom(v):
                    found.add(v)
                else:
                    found.update(self.k.facts[i].rhs for i in self.k.facts_for(v))
        return found, seen

    def _own(self, spec: str, attempt: Attempt, stops: Stops) -> list[tuple[Cell, Sum]] | None:
        """A specification op over symbols of its own, on boxes; ``None`` if all read what is not wanted."""
        whole = self.k.full_index(spec)
        own = {f"y{s}": r for s, r in whole.ranges.items() if r[1] - r[0] > 1}
        start = Cell(own, {s: Affine.symbol(f"y{s}") if f"y{s}" in own else f for s, f in whole.at.items()})

        def opened(c: Cell) -> Sum:
            try:
                return attempt.expansion.opened(spec, tuple(c.at.values()), c.ranges, stops)
            except Alien:
                return []

        try:
            found = explore(start, opened)
        except (Unrelated, Unfollowable, NoDefinition):
            return []
        return found if any(terms for _, terms in found) else None

    def _places(
        self, plan: Sum, theirs: Sum, place: Cell, cell: Cell, *, whole: bool = False
    ) -> Iterator[Forms]:
        """Where the specification's op may be read, by the elements in one of the plan's products.

        Or by those of the ``whole`` sums, each once.
        """
        widest = max(plan, key=lambda t: len({s for x in t.leaves() for f in x.at for s in f.symbols}))
        mine, bound = widest.leaves(), widest.box
        candidates = [(term.leaves(), term.box) for term in theirs if term.coef]
        if whole:
            mine = list(dict.fromkeys(x for t in plan for x in t.leaves()))
            candidates = [(list(dict.fromkeys(x for t in theirs for x in t.leaves())), {})]
        refs = sorted(str(x.ref) for x in mine)
        seen: set[Forms] = set()
        fixed = {s: Affine(lo) for s, (lo, hi) in place.ranges.items() if hi - lo == 1}
        for other, box in candidates:
            if sorted(str(x.ref) for x in other) != refs:
                continue
            for pairs in _pairings(other, mine):
                known: dict[str, Affine] | None = dict(fixed)
                for theirs_at, mine_at in pairs:
                    if known is not None:
                        known = _solved(theirs_at, mine_at, place.ranges, box, cell, bound, known)
                if known is None or not place.ranges.keys() <= known.keys():
                    continue
                out = tuple(f.substitute(known) for f in place.at.values())
                if out not in seen:
                    seen.add(out)
                    yield out
                if len(seen) >= MAX_PLACES:
                    return

    def _index(self) -> Mapping[Ref, Sequence[str]]:
        """Specification ops by the tensors that they read, through data movement."""
        if self._readers is None:
            self._readers = {}
            for op in self.model.plan.specification.ops:
                ref = f"s:{op.out}"
                if not self.opens(ref, None):
                    continue
                for v in self.model.operands(ref):
                    atom = v not in self.k.by_lhs and self.k.is_atom(v)
                    facts = [self.k.facts[i].rhs for i in self.k.facts_for(v)]
                    for target in dict.fromkeys([v] if atom else facts):
                        self._readers.setdefault(target, []).append(ref)
        return self._readers

    def opens(self, ref: Ref, names: frozenset[str] | None) -> bool:
        """An arithmetic op of the specification, of one of some kinds, that stands for itself."""
        op = self.model.op(ref)
        if op is None or not isinstance(ref, str) or not ref.startswith("s:"):
            return False
        if ref in self.k.by_lhs or not self.k.is_atom(ref) or self.model.literal(ref) is not None:
            return False
        pattern = access(op, [self.model.tensors.type(v).shape for v in self.model.operands(ref)])
        return pattern is not None and (names is None or _name(op) in names)


def _name(op: Op) -> str:
    """What :class:`Call` knows an op by."""
    if op.name == "reduce" and op.text("kind") != "add":
        return f"reduce {({'and': 'min', 'or': 'max'}).get(op.text('kind'), op.text('kind'))}"
    return f"compare {op.text('direction')}" if op.name == "compare" else op.name


def _functions(factor: Factor) -> Iterator[str]:
    """Names of the ops that free functions stand for."""
    if isinstance(factor, Call):
        names = {"max2": "maximum", "min2": "minimum", "nonzero": "convert"}
        yield names.get(factor.function, factor.function)
        for argument in factor.arguments:
            for factors, _ in argument:
                for f in factors:
                    yield from _functions(f)


def _pairings(theirs: Sequence[Leaf], mine: Sequence[Leaf]) -> Iterator[list[tuple[Forms, Forms]]]:
    """Elements of the same tensors of two products, one to one."""
    groups = []
    for ref in dict.fromkeys(x.ref for x in theirs):
        own = [x.at for x in theirs if x.ref == ref]
        orders = itertools.permutations([x.at for x in mine if x.ref == ref])
        tried = itertools.islice(orders, MAX_PAIRINGS)
        groups.append([list(zip(own, order, strict=True)) for order in tried])
    for choice in itertools.islice(itertools.product(*groups), MAX_PAIRINGS):
        yield [pair for group in choice for pair in group]


def _solved(
    theirs: Forms,
    mine: Forms,
    place: Mapping[str, Range],
    box: Mapping[str, Range],
    cell: Cell,
    bound: Mapping[str, Range],
    known: Mapping[str, Affine],
) -> dict[str, Affine] | None:
    """Symbols of a specification op by an element that it reads; ``None`` where that is impossible.

    Symbols of the ``box`` that it sums over may be other digits of the same position, as those that are
    ``bound`` on the plan's side: rows of a batch that stand behind each other, which are summed one by one.
    """
    out, ranges = dict(known), {**cell.ranges, **bound}
    for form, value in zip(theirs, mine, strict=True):
        own = {s: place.get(s) or box[s] for s in form.symbols if s in place or s in box}
        inner = set(value.symbols) - cell.ranges.keys()
        if not place.keys() & own.keys() or len(own) < len(form.symbols) or not inner <= bound.keys():
            continue
        try:
            found = solve([form], own, [value], ranges)
        except (Cut, Digits) as split:
            if split.symbol in cell.ranges:
                raise
            continue
        if inner:
            found = {s: f for s, f in (found or {}).items() if not inner.intersection(f.symbols)}
        if found is None or any(out.setdefault(s, f) != f for s, f in found.items() if s in place):
            return None
    return out
