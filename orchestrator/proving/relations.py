"""Relates every op of a plan, or of a function of it, in execution order; calls by lemmas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from certificates.plan.calls import Site
from certificates.plan.plan import Plan
from certificates.plan.sites import CallSite, bodies, sites
from certificates.proof.facts import Fact, Reduced, Ref, relation_facts
from smtlib_emit.model import Model

from ..ghosts.following import Followed
from ..ghosts.hops import Hops
from ..ghosts.live import live as live_tensors
from ..relating.carried import sums_of_moved
from ..relating.indicators import Indicators
from ..relating.knowledge import Knowledge
from ..relating.landmarks import Landmarks
from ..relating.ledger import LayoutRecipe
from ..relating.literals import Folder
from ..relating.lookups import Lookups
from ..relating.masked import DeepMatcher
from ..relating.matching import Matcher
from ..relating.nested_sums import Nested, shares
from ..relating.positions import Positions
from ..relating.roots import Roots
from ..relating.signs import Shown
from ..relating.windows import Windows
from ..spanning.expansion import SUMS
from ..spanning.masked_copies import MaskedCopies
from ..spanning.patchworks import Patchworks
from ..spanning.spans import Spans
from ..spanning.summands import Summands
from ..spanning.vanishing import Vanishing
from .lemmas import Binding, FromCall, Lemma, available, renamed
from .segments import segments
from .slices import Slice

#: Ops of which the ranks may have a part each.
PARTS = SUMS | {"dot_general"}


class Relations:
    """Guessed relations of the tensors of one plan, and the claims about its outputs.

    ``proves`` says whether a guess, by its number, has a proof; ``shown`` what signs tensors have;
    ``lemma`` makes the lemma of a function for operands of which some facts are known; ``ghosts`` are what
    the plan has besides its own ops, by program.
    """

    def __init__(
        self,
        plan: Plan,
        proves: Callable[[int], bool],
        shown: Shown,
        lemma: Callable[[str, Sequence[Fact]], Lemma],
        ghosts: Mapping[str, Followed] | None = None,
        in_digits: bool = False,
    ) -> None:
        self.plan, self._ghosts = plan, ghosts
        self.model = Model(plan)
        self.knowledge = Knowledge(
            self.model,
            nested=lambda ref: self.nested.relate(ref),
            masked=lambda ref: self.masked.relate(ref),
            counted=lambda ref: self.folder.count(ref),
            positive=shown.positive,
            nonnegative=shown.nonnegative,
            finite=shown.finite,
        )
        self.nested = Nested(self.knowledge)
        self.masked = DeepMatcher(self.knowledge, proves)
        self.matcher = Matcher(self.knowledge, self.masked.propose)
        self.matcher.unbound.in_digits = in_digits
        self.positions = Positions(self.knowledge, Windows(self.knowledge, proves))
        self.folder = Folder(self.knowledge, self.positions.bounds)
        self.lookups = Lookups(self.knowledge, self.masked.propose)
        self.roots = Roots(self.knowledge, shown.nonnegative)
        self.indicators = Indicators(self.knowledge)
        self.landmarks = Landmarks(self.knowledge)
        self.spans = Spans(self.knowledge, Vanishing(self.knowledge, self.positions))
        self.summands = Summands(self.knowledge, self.spans, self.matcher)
        self.patchworks = Patchworks(self.knowledge, self.spans)
        self.copies = MaskedCopies(self.knowledge, self.folder, self.positions, self.spans)
        #: Ops of which some elements were related before the others could be.
        self._in_part: set[str] = set()
        self.lemmas: list[Lemma] = []
        #: The lemma that was used at each call.
        self.called: dict[Site, Lemma] = {}
        self.sites = sites(plan)
        self._lemma = lemma

    def relate(self) -> None:
        """Guess a relation for every tensor of the plan, in execution order."""
        self.knowledge.declare_inputs()
        live: frozenset[str] | None = None
        if self._ghosts:
            hops = Hops(self.knowledge)
            for owner, followed in self._ghosts.items():
                hops.declare(owner, followed)
            live = live_tensors(self.model, self.knowledge)
        ghostly = frozenset(self.knowledge.hops)
        self.positions.declare()
        self.landmarks.declare()
        self.matcher.index_specification(
            lambda ref: (
                ref in ghostly
                or self.folder.fold(ref)
                or self.positions.relate(ref)
                or self.lookups.relate(ref)
                or self.roots.relate(ref)
                or self.indicators.relate(ref)
            )
        )
        for segment in segments(self.plan):
            if isinstance(segment, tuple):
                self._call(self.sites[segment])
                continue
            waiting = self._settle([r for r in segment if r not in ghostly and (live is None or r in live)])
            inner = self._summands(waiting)
            outer = [ref for ref in waiting if ref not in inner]
            waiting = self._explain(outer, waiting)
            if inner:
                self.spans.relate_early(self._collectives_of(self._unexplained(outer)))
                inside = self._inside_of(self._unexplained(outer), inner)
                before = len(waiting)
                waiting = self._explain([ref for ref in waiting if ref in inside], waiting)
                if len(waiting) < before:
                    self.spans.retry(outer)
                    self._explain(outer, waiting)

    def _collectives_of(self, refs: Sequence[str]) -> list[str]:
        """Sums over ranks of some tensors."""
        return [
            f"{cls.name}:{op.out}"
            for cls in self.plan.classes
            for op in cls.program.ops
            if op.name in ("all_reduce", "reduce_scatter") and f"{cls.name}:{op.ins[0]}" in refs
        ]

    def _unexplained(self, refs: Sequence[str]) -> list[str]:
        """Those of which nothing is known, nor of a sum over ranks of theirs."""
        summed = {m for lhs in self.knowledge.by_lhs if isinstance(lhs, Reduced) for m in lhs.of}
        return [ref for ref in refs if ref not in self.knowledge.by_lhs and ref not in summed]

    def _inside_of(self, refs: Sequence[str], inner: set[str]) -> set[str]:
        """The ``inner`` ones that some sums are made of."""
        found, work = set[str](), list(refs)
        while work:
            for v in self.model.operands(work.pop()):
                if v in inner and v not in found:
                    found.add(v)
                    work.append(v)
        return found

    def _explain(self, refs: Sequence[str], waiting: list[str]) -> list[str]:
        """Try all ways with some tensors; those that wait for a relation still."""
        for ref in refs:
            if ref in self.knowledge.by_lhs or self.knowledge.moves(ref):
                continue
            for way in self._ways(ref):
                if way():
                    waiting = self._settle(waiting)
                    if self.knowledge.covers(ref) or self.knowledge.moves(ref):
                        break
        return waiting

    def _summands(self, waiting: Sequence[str]) -> set[str]:
        """Sums that only sums read which wait too: these are opened down to what is below both.

        They are tried last. Else each of a long sum's parts, grouped otherwise in the specification, would be
        opened on its own, in vain.
        """
        sums = {ref for ref in waiting if self.model.ops[ref].name in SUMS}
        inner = {v for ref in sums for v in self.model.operands(ref)} & sums
        for cls in self.plan.classes if inner else ():
            inner -= {f"{cls.name}:{v}" for v in cls.program.outputs.values()}
            for op in cls.program.ops:
                if f"{cls.name}:{op.out}" not in sums:
                    inner -= {f"{cls.name}:{v}" for v in op.ins}
        return inner

    def _ways(self, ref: str) -> Iterator[Callable[[], bool]]:
        """What may relate an op that the specification's ops do not explain one by one, or what it reads.

        One that says no may still have found a part of what the next one needs.
        """
        yield lambda: self.positions.pass_on(ref)
        yield lambda: self.patchworks.restate(ref) or self.copies.restate(ref)
        yield lambda: self.positions.decide(ref)
        yield lambda: bool(self.masked.relate(ref))
        yield lambda: self.spans.relate_below(self._known_in_part(ref))
        yield lambda: self._relate_in_part(ref)
        yield lambda: self.spans.relate_below(self.model.operands(ref))
        yield lambda: self.summands.relate(self.model.operands(ref))
        yield lambda: ref not in self.knowledge.by_lhs and self.patchworks.restate(ref)
        yield lambda: ref not in self.knowledge.by_lhs and self.spans.relate(ref)
        yield (
            lambda: (
                ref not in self.knowledge.by_lhs
                and any([self.spans.relate(v) for v in self._parts_below(ref)])
            )
        )

    def _parts_below(self, ref: str) -> list[str]:
        """Sums that an op reads, moved or not, which may have been taken for part of a sum over ranks: one is
        read alone where a mask leaves out what other ranks have."""
        known, found, work = self.knowledge, list[str](), list(self.model.operands(ref))
        while work:
            v = work.pop()
            if v in self.model.ops and known.moves(v) and not known.covers(v):
                work += known.below(v)
            elif v in self.model.ops and self.model.ops[v].name in PARTS and not known.facts_for(v):
                found.append(v)
        return found

    def _known_in_part(self, ref: str) -> list[str]:
        """Operands of which some elements have a relation, and others none yet."""
        known = self.knowledge
        return [v for v in self.model.operands(ref) if known.facts_for(v) and not known.covers(v)]

    def relate_results(self, refs: Sequence[Ref]) -> None:
        """Relate sums over ranks that no op reads: they are results, or move to results."""
        plain = [ref for ref in refs if isinstance(ref, str)]
        self.spans.relate_below(plain)
        self.summands.relate(plain)
        for reduced in list(sums_of_moved(self.knowledge, plain)):
            self.knowledge.facts_for(reduced)
        self.landmarks.name(plain)
        for ref in refs:
            if isinstance(ref, Reduced):
                self.spans.relate(ref)

    def _settle(self, refs: Sequence[str]) -> list[str]:
        """Relate what can be related, until nothing changes; the others.

        A sum needs the summands of all classes.
        """
        while True:
            self.knowledge.forget_failures()
            self._complete()
            left = [ref for ref in refs if not self._relate(ref)]
            if len(left) in (0, len(refs)):
                return left
            refs = left

    def _relate_unmasked(self, ref: str) -> bool:
        """Relate an op by what its operands were before they were restated for another reader."""
        known = self.knowledge
        restated = [v for v in dict.fromkeys(self.model.operands(ref)) if v in known.restated]
        now = {v: (known.by_lhs[v], known.restated.pop(v)) for v in restated}
        known.by_lhs.update({v: list(before) for v, (_, before) in now.items()})
        done = bool(restated) and self.matcher.relate(ref)
        for v, (facts, before) in now.items():
            known.by_lhs[v], known.restated[v] = facts, before
        return done

    def _relate_in_part(self, ref: str) -> bool:
        done = self.matcher.relate_in_part(ref)
        if done and ref in self.knowledge.by_lhs:
            self._in_part.add(ref)
        return done

    def _complete(self) -> None:
        """What was related in part, as what it reads was known in part, is related once that is whole."""
        known = self.knowledge
        for ref in sorted(r for r in self._in_part if r in known.by_lhs and r not in known.restated):
            if not all(known.covers(v) for v in self.model.operands(ref)):
                continue
            self._in_part.discard(ref)
            if known.covers(ref):
                continue
            before = known.by_lhs.pop(ref)
            if not self.matcher.relate(ref):
                known.by_lhs[ref] = list(dict.fromkeys([*before, *known.by_lhs.get(ref, ())]))

    def _relate(self, ref: str) -> bool:
        return (
            ref in self.knowledge.by_lhs
            or self.folder.fold(ref)
            or self.positions.relate(ref)
            or self.matcher.relate(ref)
            or self._relate_unmasked(ref)
            or self.roots.relate(ref)
            or self.indicators.relate(ref)
            or self.landmarks.relate(ref)
        )

    def _call(self, site: CallSite) -> None:
        """What a lemma says of the results of a call; a call with operands unlike others' makes one."""
        of = bodies(self.plan, site.function)
        place = self._slice(site.function, site.instance)
        for reduced in list(shares(self.knowledge, list(site.operands(of)))):
            self.knowledge.facts_for(reduced)
        known = available(self.knowledge, site, of, place)
        fitting = (m for m in self.lemmas if m.function == site.function and m.assumed.keys() <= known.keys())
        lemma = next(fitting, None)
        if lemma is None:
            lemma = self._lemma(site.function, list(known))
            self.lemmas.append(lemma)
        self.called[site.function, site.instance] = lemma
        binding = Binding(lemma, site.instance, {n: known[f] for f, n in lemma.assumed.items()})
        names = site.visible(of)
        for number in lemma.conclusions:
            for fact in renamed(lemma.statements[number], names):
                self.knowledge.add(place.outside(fact), FromCall(binding, number))

    def _slice(self, function: str, instance: int) -> Slice:
        """Where a call lies on the mesh."""
        names = [*(c.name for c in self.plan.classes), *sorted(self.plan.functions[function].roles)]
        return Slice(self.plan.mesh.axes, self.sites[function, instance].slice, names)

    def claims(self) -> list[list[int]]:
        """Claimed facts of every output relation, as fact numbers."""
        out = []
        for number, relation in enumerate(self.plan.outputs):
            numbers = []
            for fact in relation_facts(self.plan, relation, "output", number):
                recipe = self._inside(fact) or LayoutRecipe()
                numbers.append(self.knowledge.add(fact, recipe, relates=False))
            out.append(numbers)
        self.relate_results([self.knowledge.facts[n].lhs for numbers in out for n in numbers])
        return out

    def _inside(self, fact: Fact) -> FromCall | None:
        """A claim about results of a call, proved inside the function: once for all its calls."""
        for number in self.knowledge.by_lhs.get(fact.lhs, ()):
            recipe = self.knowledge.recipes.get(number)
            if isinstance(recipe, FromCall) and self.knowledge.facts[number].rhs == fact.rhs:
                lemma = recipe.binding.lemma
                known = lemma.statements[recipe.statement]
                inner = self._slice(lemma.function, recipe.binding.instance).inside(fact)
                claim = inner and replace(inner, lhs=known.lhs, rhs=known.rhs, by=None)
                statement = lemma.claim(claim) if claim else None
                if statement is not None:
                    return FromCall(recipe.binding, statement)
        return None
