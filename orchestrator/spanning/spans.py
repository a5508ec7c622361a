"""Relations that several ops show together: both sides as sums of products between the nearest known tensors.

Where no single op of the specification is an op's partner, the op (or a sum over ranks) is opened down to
related tensors, and so are specification ops made of the same ones. If both are the same sum, up to a factor,
one algebra stage of several opened tensors says so. All of it is a guess: its stage is proved as every other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from certificates.plan.affine import fold
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
from .expansion import Expansion, kind_of
from .fields import FIELD, lawful, ratio
from .partners import Attempt, Partners, Span
from .refining import Refinement
from .terms import Call, Forms, Sum, Term
from .vanishing import Vanishing

#: How often known tensors are opened in turn, where what they are made of is needed.
MAX_LEVELS = 3
#: The same for laws of exponentials.
MAX_FIELD_LEVELS = 4
#: Elements opened in vain for tensors of one plan (at least, and for each op), after which few are opened for
#: each tensor: the plan is built otherwise than the specification, and all of it would be opened each time.
MAX_IN_VAIN, IN_VAIN_PER_OP, FEW_STEPS = 60_000, 4, 8


class Spans:
    """Relates ops and sums over ranks that one op does not explain."""

    def __init__(self, knowledge: Knowledge, vanishing: Vanishing) -> None:
        self.k, self.model, self.partners = knowledge, knowledge.model, Partners(knowledge, vanishing)
        self._tried: set[Ref] = set()
        self._in_vain, self._most = 0, max(MAX_IN_VAIN, IN_VAIN_PER_OP * len(self.model.ops))

    # --- what is related -----------------------------------------------------------------------------------

    def relate_below(self, refs: Sequence[str]) -> bool:
        """Relate sums over ranks that some tensors come from by data movement; whether any was."""
        return any([self.relate(red) for red in self.sums_below(refs)])

    def sums_below(self, refs: Sequence[str]) -> Iterator[Reduced]:
        """Sums over ranks that some tensors come from by data movement, and that are not known."""
        for ref in self._collectives(refs):
            try:
                yield self.model.reduced(ref, self.model.ops[ref].text("kind"))
            except NoDefinition:  # a group that is no product of mesh axes
                continue

    def relate_early(self, refs: Sequence[str]) -> None:
        """Relate sums over ranks that are not reached yet; where that fails, they are tried again then."""
        for ref in refs:
            try:
                red = self.model.reduced(ref, self.model.ops[ref].text("kind"))
            except NoDefinition:
                continue
            if red not in self._tried and not self.relate(red):
                self._tried.discard(red)

    def _collectives(self, refs: Sequence[str]) -> Iterator[str]:
        work, seen = list(refs), set[str]()
        while work:
            ref = work.pop()
            op = self.model.op(ref)
            if ref in seen or op is None or not self.k.moves(ref) or self.k.covers(ref):
                continue
            seen.add(ref)
            if op.name in ("all_reduce", "reduce_scatter"):
                yield ref
            else:
                work += self.k.below(ref)

    def relate(self, ref: Ref) -> bool:
        """Try once to relate an arithmetic op or a sum over ranks of the plan."""
        if ref in self._tried or self.k.covers(ref):
            return False
        self._tried.add(ref)
        whole = self.k.full_index(ref)
        limit = None if self._in_vain < self._most else FEW_STEPS
        attempt = Attempt(Expansion(self.k, self._kind(ref), limit))
        try:
            found = explore(whole, lambda cell: self._unknown(ref, cell, attempt))
            found = self._together(ref, found, attempt)
            pieces = [self.stated(ref, whole, cell, span) for cell, span in found if span is not None]
        except (Unrelated, Unfollowable, NoDefinition):
            self._in_vain += attempt.expansion.steps
            return False
        if not self.record(pieces):
            return False
        self.k.forget_movement()  # of what was known in part
        return True

    def _together(
        self, ref: Ref, found: Sequence[tuple[Cell, Span | None]], attempt: Attempt
    ) -> list[tuple[Cell, Span | None]]:
        """All parts as parts of one tensor of the specification, if there is one that each of them is.

        Alone a part may be a number, or what that tensor is made of at its place: a gradient of single
        elements is a sum of what has zeros elsewhere.
        """
        spans = [(cell, span) for cell, span in found if span is not None]
        named = {str(s.rhs): (c, s) for c, s in spans if self.model.literal(s.rhs) is None}
        if len({s.rhs for _, s in spans}) > 1:
            order = self.model.order
            for beside, of in sorted(named.values(), key=lambda part: -order.get(part[1].rhs, -1)):
                same = [(c, s if s is None else self._as(ref, c, s, beside, of, attempt)) for c, s in found]
                if sum(s is not None for _, s in same) == len(spans):
                    return same
        return list(found)

    def _as(self, ref: Ref, cell: Cell, span: Span, beside: Cell, of: Span, attempt: Attempt) -> Span | None:
        """A part as an element of what another part is."""
        if span.rhs == of.rhs:
            return span
        ranges = self.model.tensors.ranges(of.rhs)
        for out in _apart(cell, beside, of.at):
            ends = [f.interval(cell.ranges) for f in out if cell.ranges.keys() >= set(f.symbols)]
            inside = (lo <= a and b < hi for (a, b), (lo, hi) in zip(ends, ranges, strict=False))
            found = None
            if len(ends) == len(ranges) and all(inside):
                found = self._at(ref, cell, span, replace(of, at=out), attempt)
            if found is not None:
                return found
        return None

    def _at(self, ref: Ref, cell: Cell, span: Span, wanted: Span, attempt: Attempt) -> Span | None:
        """A part as one multiple of one element of the specification, if it is that."""
        number = self.model.literal(span.rhs)
        attempt.only = str(wanted.rhs), wanted.at
        try:
            if number is None:
                found = self._span(ref, cell, attempt)
                same = (found.rhs, found.at, found.coef) == (wanted.rhs, wanted.at, wanted.coef)
                return found if same else None
            terms = attempt.expansion.opened(wanted.rhs, wanted.at, cell.ranges, lambda _: True)
        except (Cut, Digits, Unrelated, Unfollowable, NoDefinition):
            return None
        finally:
            attempt.only = None
        if any(t.coef and (t.factors or t.box) for t in terms):
            return None
        total = sum((t.coef for t in terms), Fraction(0))
        return replace(wanted, terms=(*span.terms, *terms)) if number == wanted.coef * total else None

    def retry(self, refs: Iterable[Ref]) -> None:
        """Tensors may be tried once more: something that they are made of is related now."""
        self._tried.difference_update(refs)

    def _unknown(self, ref: Ref, cell: Cell, attempt: Attempt) -> Span | None:
        """What the tensor is on a box of which nothing is known yet."""
        known = self.k.facts_for(ref)
        if known and self.k.through(known, tuple(cell.at.values()), cell.ranges) is not None:
            return None
        return self._span(ref, cell, attempt)

    def _kind(self, ref: Ref) -> str:
        """What a tensor is of its terms: their sum, or the largest or smallest of them."""
        if isinstance(ref, Reduced):
            return ref.kind
        op = self.model.ops[ref]
        pattern = access(op, [self.model.tensors.type(v).shape for v in self.model.operands(ref)])
        return kind_of(op, pattern.kind if pattern else "add")

    def stated(self, ref: Ref, whole: Cell, cell: Cell, span: Span) -> tuple[Fact, AlgebraRecipe]:
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
            field=span.field,
        )
        return fact, recipe

    def record(self, pieces: Sequence[tuple[Fact, AlgebraRecipe]]) -> bool:
        """Keep facts whose stages can be built; pieces that join make one fact, proved from theirs."""
        known = len(self.k.facts)
        # Until its stage is known to exist, a fact is a claim without a way: without a recipe it is given.
        numbers = [self.k.add(fact, LayoutRecipe(), relates=False) for fact, _ in pieces]
        try:
            for number, (_, recipe) in zip(numbers, pieces, strict=True):
                AlgebraBuilder(self.k, number, recipe).build("")
        except (NoDefinition, Unfollowable):
            for number in numbers:
                if number >= known:
                    self.k.drop(number)
            return False
        for number, (_, recipe) in zip(numbers, pieces, strict=True):
            if self.k.recipes.get(number) == LayoutRecipe():
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
        attempt.split, attempt.sort = None, self.model.tensors.type(ref).sort
        trouble: Exception = Unrelated(ref)
        try:
            found = self._by_ring(ref, at, cell, attempt)
        except (Unrelated, Unfollowable, NoDefinition) as error:
            found, trouble = None, error
        if found is None and attempt.expansion.kind == "add":
            found = self._by_field(ref, at, cell, attempt)
        if found is not None:
            return found
        raise attempt.split or trouble

    def _by_ring(self, ref: Ref, at: Forms, cell: Cell, attempt: Attempt) -> Span | None:
        """What the tensor is by adding and multiplying, or by the members of a maximum."""
        inside: set[Ref] = set()
        levels = MAX_LEVELS
        while True:
            plan = attempt.expansion.opened(ref, at, cell.ranges, partial(_outside, frozenset(inside)))
            found = self._alone(plan, cell, attempt) or next(self.partners.find(plan, cell, attempt), None)
            if found is not None:
                return found
            more = self.partners.generated(plan) - inside
            if not more:
                levels -= 1
                ring = attempt.names()
                leaves = {leaf.ref for t in plan for leaf in t.leaves()}
                more = {leaf for leaf in leaves if self.partners.opens(leaf, ring)} - inside
            if not more or not levels:
                return None
            inside |= more

    def _by_field(self, ref: Ref, at: Forms, cell: Cell, attempt: Attempt) -> Span | None:
        """What the tensor is by laws of ``exp``, ``log`` and quotients, where nothing is summed."""
        inside: set[Ref] = set()
        for _ in range(MAX_FIELD_LEVELS):
            try:
                plan = attempt.expansion.opened(ref, at, cell.ranges, partial(_outside, frozenset(inside)))
            except (Unrelated, Unfollowable, NoDefinition):
                return None
            if any(t.box for t in plan):
                return None
            if lawful(plan):
                found = self._cancelled(plan, attempt)
                found = found or next(self.partners.find(plan, cell, attempt, field=True), None)
                if found is not None:
                    return found
            more = {
                leaf.ref for t in plan for leaf in t.leaves() if self.partners.opens(leaf.ref, FIELD)
            } - inside
            if not more:
                return None
            inside |= more
        return None

    def _cancelled(self, plan: Sum, attempt: Attempt) -> Span | None:
        """A quotient of which one element is left, or a number."""
        for leaf in dict.fromkeys(x for t in plan for x in t.leaves()):
            if self.model.tensors.type(leaf.ref).sort != attempt.sort:
                continue
            coef = ratio(plan, [Term(Fraction(1), (leaf,))], self.k)
            if coef is not None:
                return Span(leaf.ref, leaf.at, coef, tuple(plan), field=True)
        coef = ratio(plan, [Term(Fraction(1))], self.k) if attempt.sort == "Real" else None
        if coef is None:
            return None
        return Span(literal_ref("Real", coef), (), Fraction(1), tuple(plan), field=True)

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


def _apart(cell: Cell, beside: Cell, at: Forms) -> Iterator[Forms]:
    """Where a tensor may be read on a part, if it is read ``at`` a place on another one: as far from there as
    the parts are apart, by their coordinates or by one of the symbols that these are made of."""
    here, there = ([fold(f, c.ranges) for f in c.at.values()][-len(at) :] for c in (cell, beside))
    if len(here) == len(at):
        yield tuple(f + (h - t) for f, h, t in zip(at, here, there, strict=True))
    first = {s.partition("~")[0]: lo for s, (lo, _) in beside.ranges.items()}
    steps = (lo - first.get(s.partition("~")[0], lo) for s, (lo, _) in cell.ranges.items())
    for step in filter(None, steps):
        yield from ((*at[:d], at[d] + step, *at[d + 1 :]) for d in range(len(at)))


def _outside(inside: frozenset[Ref], ref: str) -> bool:
    return ref not in inside
