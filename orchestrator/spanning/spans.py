"""Relations that several ops show together: both sides as sums of products between the nearest known tensors.

Where no single op of the specification is an op's partner, the op (or a sum over ranks) is opened down to
related tensors, and so are specification ops made of the same ones. If both are the same sum, up to a factor,
one algebra stage of several opened tensors says so. All of it is a guess: its stage is proved as every other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from certificates.plan.affine import Affine
from certificates.plan.program import Op
from certificates.proof.facts import Fact, Reduced, Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Cut, Digits, Unfollowable, explore
from ..relating.access import access
from ..relating.joining import join
from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe, Unrelated
from ..relating.recipes import AlgebraRecipe
from ..relating.solving_facts import literal_ref, make_fact, solve
from ..staging.algebra import AlgebraBuilder
from .expansion import RING, Alien, Expansion, kind_of
from .refining import Refinement
from .terms import Call, Factor, Forms, Key, Leaf, Sum, Term, collected, members

#: Whether to end at a specification tensor.
Stops = Callable[[str], bool]
#: How often known tensors are opened in turn, where what they are made of is needed.
MAX_LEVELS = 3
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
    own: dict[tuple[str, frozenset[Ref]], list[tuple[Cell, Sum]] | None] = field(default_factory=dict)

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


class Spans:
    """Relates ops and sums over ranks that one op does not explain."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        self._tried: set[Ref] = set()
        self._readers: dict[Ref, list[str]] | None = None

    # --- what is related -----------------------------------------------------------------------------------

    def relate_below(self, refs: Sequence[str]) -> bool:
        """Relate sums over ranks that some tensors come from by data movement; whether any was."""
        done = False
        for ref in self._collectives(refs):
            try:
                kind = self.model.ops[ref].text("kind")
                done = self.relate(self.model.reduced(ref, kind)) or done
            except NoDefinition:  # a group that is no product of mesh axes
                continue
        return done

    def _collectives(self, refs: Sequence[str]) -> Iterator[str]:
        work, seen = list(refs), set[str]()
        while work:
            ref = work.pop()
            op = self.model.op(ref)
            if ref in seen or op is None or not self.k.moves(ref) or self.k.facts_for(ref):
                continue
            seen.add(ref)
            if op.name in ("all_reduce", "reduce_scatter"):
                yield ref
            else:
                work += self.model.operands(ref)

    def relate(self, ref: Ref) -> bool:
        """Try once to relate an arithmetic op or a sum over ranks of the plan."""
        if ref in self._tried or self.k.facts_for(ref):
            return False
        self._tried.add(ref)
        whole = self.k.full_index(ref)
        attempt = Attempt(Expansion(self.k, self._kind(ref)))
        try:
            found = explore(whole, lambda cell: self._span(ref, cell, attempt))
            pieces = [self._stated(ref, whole, cell, span) for cell, span in found]
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        return self._record(pieces)

    def _kind(self, ref: Ref) -> str:
        """What a tensor is of its terms: their sum, or the largest or smallest of them."""
        if isinstance(ref, Reduced):
            return ref.kind
        op = self.model.ops[ref]
        pattern = access(op, [self.model.tensors.type(v).shape for v in self.model.operands(ref)])
        return kind_of(op, pattern.kind if pattern else "add")

    def _stated(self, ref: Ref, whole: Cell, cell: Cell, span: Span) -> tuple[Fact, AlgebraRecipe]:
        """The fact and its recipe."""
        left = tuple(cell.at[s] for s in whole.ranges)
        fact = make_fact(self.model, cell, ref, left, span.rhs, span.at, span.coef)
        goal = solve(fact.lhs_index, fact.ranges, left, cell.ranges)
        if goal is None:
            raise Unfollowable(f"{ref}: goal does not cover its own cell")
        ranges = dict(cell.ranges)
        for term in span.terms:
            ranges.update(term.box)
        recipe = AlgebraRecipe(
            frozenset(r for t in span.terms for r in t.trace.opened),
            tuple(dict.fromkeys(i for t in span.terms for i in t.trace.instances)),
            tuple(dict.fromkeys(u for t in span.terms for u in t.trace.uses)),
            ranges,
            goal,
        )
        return fact, recipe

    def _record(self, pieces: Sequence[tuple[Fact, AlgebraRecipe]]) -> bool:
        """Keep facts whose stages can be built; pieces that join make one fact, proved from theirs."""
        known = len(self.k.facts)
        numbers = [self.k.add(fact, None, relates=False) for fact, _ in pieces]
        try:
            for number, (_, recipe) in zip(numbers, pieces, strict=True):
                AlgebraBuilder(self.k, number, recipe).build("")
        except (NoDefinition, Unfollowable):
            for number in numbers:
                if number >= known:
                    self.k.drop(number)
            return False
        for number, (_, recipe) in zip(numbers, pieces, strict=True):
            if number >= known or self.k.recipes.get(number) == LayoutRecipe():
                self.k.recipes[number] = recipe
        stated = {self.k.facts[n]: n for n in numbers}
        for fact in dict.fromkeys(join(self.model, list(stated))):
            if fact in stated:
                self.k.relate_by(stated[fact])
            else:
                self.k.add(fact, LayoutRecipe(parts=tuple(numbers)))
        return True

    # --- one box -------------------------------------------------------------------------------------------

    def _span(self, ref: Ref, cell: Cell, attempt: Attempt) -> Span:
        """What the tensor is on a box; raises :class:`Unrelated`, or a split of the box."""
        at = tuple(cell.at[s] for s in self.k.full_index(ref).ranges)
        inside: set[Ref] = set()
        attempt.split, attempt.sort = None, self.model.tensors.type(ref).sort
        for _ in range(MAX_LEVELS):
            plan = attempt.expansion.opened(ref, at, cell.ranges, partial(_outside, frozenset(inside)))
            found = self._alone(plan, cell, attempt) or next(self._partners(plan, cell, attempt), None)
            if found is not None:
                return found
            ring = attempt.names()
            more = {leaf.ref for t in plan for leaf in t.leaves() if self._opens(leaf.ref, ring)} - inside
            if not more:
                break
            inside |= more
        if attempt.split is not None:
            raise attempt.split
        raise Unrelated(ref)

    def _alone(self, plan: Sum, cell: Cell, attempt: Attempt) -> Span | None:
        """A sum of which one element is left, or a number."""
        if any(len(t.factors) > 1 or (t.coef and t.box and not t.factors) for t in plan):
            return None
        try:
            (plan,) = Refinement(self.model, cell.ranges, attempt.expansion.fresh).of([plan])
            found = attempt.collected(plan)
        except (Cut, Digits) as error:
            attempt.split = attempt.split or error
            return None
        except Unfollowable:
            return None
        if not found:
            return self._number(Fraction(0), plan, attempt)
        if len(found) > 1:
            return None
        (((sizes, factors), coef),) = found.items()
        if not factors:
            return self._number(coef, plan, attempt)
        (factor,) = factors
        if sizes or isinstance(factor, Call) or self.model.tensors.type(factor.ref).sort != attempt.sort:
            return None
        return Span(factor.ref, factor.at, coef, tuple(plan))

    def _number(self, value: Fraction, plan: Sum, attempt: Attempt) -> Span | None:
        if attempt.sort == "Bool":
            return None
        return Span(literal_ref(attempt.sort, value), (), Fraction(1), tuple(plan))

    def _partners(self, plan: Sum, cell: Cell, attempt: Attempt) -> Iterator[Span]:
        """Specification ops made of the same elements, opened down to them, that are the same sum."""
        live = [t for t in plan if t.coef]
        leaves = frozenset(leaf.ref for t in live for leaf in t.leaves())
        if not leaves:
            return
        functions = frozenset(name for t in live for f in t.factors for name in _functions(f))

        def stops(ref: str) -> bool:
            if ref not in leaves and not self._opens(ref, attempt.names() | CHOICES | functions):
                raise Alien(ref)
            return ref in leaves

        for spec in self._reached(leaves, functions, attempt, stops):
            if self.model.tensors.type(spec).sort != attempt.sort:
                continue
            for place, theirs in attempt.own[spec, leaves] or ():
                if not theirs or {leaf.ref for t in theirs for leaf in t.leaves()} != leaves:
                    continue
                try:
                    for out in self._places(live, theirs, place, cell):
                        other = attempt.expansion.opened(spec, out, cell.ranges, stops)
                        refine = Refinement(self.model, cell.ranges, attempt.expansion.fresh)
                        mine, other = refine.of([plan, other])
                        coef = attempt.ratio(mine, other)
                        if coef is not None:
                            yield Span(spec, out, coef, (*mine, *other))
                except (Cut, Digits) as error:
                    attempt.split = attempt.split or error
                except (Alien, Unrelated, Unfollowable, NoDefinition):
                    continue

    # --- the specification ---------------------------------------------------------------------------------

    def _reached(
        self, leaves: frozenset[Ref], functions: frozenset[str], attempt: Attempt, stops: Stops
    ) -> Iterator[str]:
        """Ops that are made of some elements, nearest first."""
        readers = self._index()
        rarest = min(sorted(leaves, key=str), key=lambda r: len(readers.get(r, ())))
        reached = list(readers.get(rarest, ()))
        seen = set(reached)
        for spec in reached:
            if len(seen) > MAX_PARTNERS:
                return
            if not self._opens(spec, attempt.names() | CHOICES | functions):
                continue
            if (spec, leaves) not in attempt.own:
                attempt.own[spec, leaves] = self._own(spec, attempt, stops)
            if attempt.own[spec, leaves] is None:
                continue
            yield spec
            above = [r for r in readers.get(spec, ()) if r not in seen]
            seen.update(above)
            reached += above

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

    def _places(self, plan: Sum, theirs: Sum, place: Cell, cell: Cell) -> Iterator[Forms]:
        """Where the specification's op may be read, by the elements in one of the plan's products."""
        mine = max(plan, key=lambda t: len({s for x in t.leaves() for f in x.at for s in f.symbols}))
        refs = sorted(str(x.ref) for x in mine.leaves())
        seen: set[Forms] = set()
        for term in theirs:
            if not term.coef or sorted(str(x.ref) for x in term.leaves()) != refs:
                continue
            for pairs in _pairings(term.leaves(), mine.leaves()):
                known: dict[str, Affine] | None = {}
                for theirs_at, mine_at in pairs:
                    known = known if known is None else _solved(theirs_at, mine_at, place, cell, known)
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
                if not self._opens(ref, None):
                    continue
                for v in self.model.operands(ref):
                    atom = v not in self.k.by_lhs and self.k.is_atom(v)
                    facts = [self.k.facts[i].rhs for i in self.k.facts_for(v)]
                    for target in dict.fromkeys([v] if atom else facts):
                        self._readers.setdefault(target, []).append(ref)
        return self._readers

    def _opens(self, ref: Ref, names: frozenset[str] | None) -> bool:
        """An arithmetic op of the specification, of one of some kinds, that stands for itself."""
        op = self.model.op(ref)
        if op is None or not isinstance(ref, str) or not ref.startswith("s:"):
            return False
        if ref in self.k.by_lhs or not self.k.is_atom(ref) or self.model.literal(ref) is not None:
            return False
        pattern = access(op, [self.model.tensors.type(v).shape for v in self.model.operands(ref)])
        return pattern is not None and (names is None or _name(op) in names)


def _outside(inside: frozenset[Ref], ref: str) -> bool:
    return ref not in inside


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
    theirs: Forms, mine: Forms, place: Cell, cell: Cell, known: Mapping[str, Affine]
) -> dict[str, Affine] | None:
    """Symbols of a specification op by an element that it reads; ``None`` where that is impossible."""
    out = dict(known)
    for form, value in zip(theirs, mine, strict=True):
        own = {s: place.ranges[s] for s in form.symbols if s in place.ranges}
        if not form.symbols or len(own) < len(form.symbols) or set(value.symbols) - cell.ranges.keys():
            continue
        found = solve([form], own, [value], cell.ranges)
        if found is None or any(out.setdefault(s, f) != f for s, f in found.items()):
            return None
    return out
