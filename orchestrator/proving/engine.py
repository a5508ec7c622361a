"""From a plan to a proof: relate every op, then build and solve the stages that the claimed outputs need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import networkx as nx

from certificates.plan.affine import Affine
from certificates.plan.calls import Site
from certificates.plan.functions import body_plan
from certificates.plan.ops import ELEMENTWISE
from certificates.plan.plan import Plan
from certificates.plan.sites import CallSite, bodies, sites
from certificates.proof.facts import Fact, Reduced, Ref, relation_facts
from certificates.proof.stages import (
    AlgebraStage,
    CallStage,
    Case,
    LayoutStage,
    Stage,
)
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.errors import NoDefinition
from smtlib_emit.layout import LayoutText
from smtlib_emit.model import Model
from smtlib_emit.sexp import without_comments

from ..cells import Cut, Digits, Unfollowable
from ..errors import Unproved
from ..relating.knowledge import Knowledge
from ..relating.landmarks import Landmarks
from ..relating.ledger import LayoutRecipe
from ..relating.literals import Folder
from ..relating.masked import DeepMatcher
from ..relating.matching import Matcher
from ..relating.nested_sums import Nested
from ..relating.recipes import AlgebraRecipe, by_rank, direct
from ..relating.roots import Roots
from ..relating.signs import Signs
from ..relating.solving_facts import make_fact
from ..solving.premises import CoreFinder
from ..spanning.spans import Spans
from ..staging.algebra import AlgebraBuilder
from ..staging.layout import LayoutBuilder
from .assembly import Assembled, Files, Part, assembled
from .dependencies import dependencies, files_of, renumber, trim
from .lemmas import (
    Begin,
    Binding,
    FromCall,
    KeptLemma,
    Lemma,
    Prover,
    available,
    facts_about,
    renamed,
)
from .segments import segments

#: Whether a fact of an engine, by number, is worth a proof, as a guess or as a conclusion.
Plausibility = Callable[[Knowledge, int, Literal["guess", "conclusion"]], bool]
#: Made for one plan, or for one function of it.
Judge = Callable[[Plan], Plausibility]


def anything(_plan: Plan) -> Plausibility:
    """Where solvers decide."""
    return lambda _knowledge, _number, _role: True


@dataclass(frozen=True, eq=False)
class Called:
    """In place of a stage: a fact about results of a call, and the facts about its operands it rests on."""

    binding: Binding
    statement: int
    rests: tuple[int, ...]


@dataclass
class Engine:
    """Relates, stages and solves one plan.

    A guess that does not pass the ``judge`` of its plan, or of its function, is dropped before it is proved;
    ``kept`` has what is known of lemmas.
    """

    plan: Plan
    cores: CoreFinder
    judge: Judge = anything
    model: Model = field(init=False)
    knowledge: Knowledge = field(init=False)
    built: dict[int, Stage | Called] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    kept: KeptLemma = lambda _function, _assumed: None
    #: Of the plan that calls, if this one is the bodies of a function.
    signs: Signs | None = None
    lemmas: list[Lemma] = field(default_factory=list)
    #: The lemma that was used at each call.
    called: dict[Site, Lemma] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _believed: dict[Fact, bool] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    #: From every proved fact to those that its proof rests on directly.
    _rests: nx.DiGraph = field(default_factory=nx.DiGraph)
    _files: dict[int, tuple[str, ...]] = field(default_factory=dict)
    #: Names of the files of each lemma, and of the main program, in the last proof.
    _names: dict[Lemma | None, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plausible = self.judge(self.plan)
        self.model = Model(self.plan)
        self.knowledge = Knowledge(
            self.model,
            nested=lambda ref: self.nested.relate(ref),
            masked=lambda ref: self.masked.relate(ref),
            counted=lambda ref: self.folder.count(ref),
        )
        self.nested = Nested(self.knowledge)
        self.masked = DeepMatcher(self.knowledge, self.proves)
        self.matcher = Matcher(self.knowledge, self.masked.propose)
        self.folder = Folder(self.knowledge)
        outer, function = (self.signs, self.plan.name) if self.signs else (Signs(self.plan), "")
        self.signs = outer
        self.roots = Roots(self.knowledge, lambda ref: outer.nonnegative(function, ref))
        self.landmarks = Landmarks(self.knowledge)
        self.spans = Spans(self.knowledge)

    # --- relating ------------------------------------------------------------------------------------------

    def relate(self) -> None:
        """Guess a relation for every tensor of the plan, in execution order."""
        self.knowledge.declare_inputs()
        self._relate_iotas()
        self.landmarks.declare()
        self.matcher.index_specification(lambda ref: self.folder.fold(ref) or self.roots.relate(ref))
        called = sites(self.plan)
        for segment in segments(self.plan):
            if isinstance(segment, tuple):
                self._call(called[segment])
                continue
            waiting = self._settle(segment)
            for ref in waiting:
                if ref in self.knowledge.by_lhs or self.knowledge.moves(ref):
                    continue
                if (
                    self.masked.relate(ref)
                    or self.matcher.relate_in_part(ref)
                    or self.spans.relate_below(self.model.operands(ref))
                ):
                    waiting = self._settle(waiting)
                if ref not in self.knowledge.by_lhs and self.spans.relate(ref):
                    waiting = self._settle(waiting)

    def relate_results(self, refs: Sequence[Ref]) -> None:
        """Relate sums over ranks that no op reads: they are results, or move to results."""
        self.spans.relate_below([ref for ref in refs if isinstance(ref, str)])
        for ref in refs:
            if isinstance(ref, Reduced):
                self.spans.relate(ref)

    def _settle(self, refs: Sequence[str]) -> list[str]:
        """Relate what can be related, until nothing changes; the others.

        A sum needs the summands of all classes.
        """
        while True:
            self.knowledge.forget_failures()
            left = [ref for ref in refs if not self._relate(ref)]
            if len(left) in (0, len(refs)):
                return left
            refs = left

    def _relate(self, ref: str) -> bool:
        return (
            ref in self.knowledge.by_lhs
            or self.folder.fold(ref)
            or self.matcher.relate(ref)
            or self.roots.relate(ref)
            or self.landmarks.relate(ref)
        )

    def _call(self, site: CallSite) -> None:
        """What a lemma says of the results of a call; a call with operands unlike others' makes one."""
        of = bodies(self.plan, site.function)
        known = available(self.knowledge, site, of)
        fitting = (m for m in self.lemmas if m.function == site.function and m.assumed.keys() <= known.keys())
        lemma = next(fitting, None) or self._lemma(site.function, list(known))
        self.called[site.function, site.instance] = lemma
        binding = Binding(lemma, site.instance, {n: known[f] for f, n in lemma.assumed.items()})
        names = site.visible(of)
        for number in lemma.conclusions:
            for fact in renamed(lemma.statements[number], names):
                self.knowledge.add(fact, FromCall(binding, number))

    def _lemma(self, function: str, assumed: Sequence[Fact]) -> Lemma:
        begin = beginning(self.plan, self.cores, self.signs, self.judge)
        lemma = Lemma(function, assumed, begin, self.kept(function, assumed))
        self.lemmas.append(lemma)
        return lemma

    def _relate_iotas(self) -> None:
        """Positions along a dimension of one size are one vector: the specification's first such iota, at
        0 elsewhere.
        """
        first: dict[tuple[str, int], str] = {}
        for ref, op in self.model.ops.items():
            if op.name != "iota":
                continue
            dim = op.integer("dim")
            key = (op.type.sort, op.type.shape[dim])
            if ref.startswith("s:"):
                first.setdefault(key, ref)
            target = first.get(key)
            if target is None or (target == ref and len(op.type.shape) == 1):
                continue
            cell = self.knowledge.full_index(ref)
            index = [cell.at[s] for s in cell.ranges]
            here = index[len(self.model.tensors.mesh_axes(ref)) + dim]
            other = self.model.ops[target]
            there = [here if d == other.integer("dim") else Affine() for d in range(len(other.type.shape))]
            fact = make_fact(self.model, cell, ref, index, target, there, Fraction(1))
            self.knowledge.add(fact, LayoutRecipe(frozenset((ref, target))))

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
                statement = lemma.claim(replace(fact, lhs=known.lhs, rhs=known.rhs, by=None))
                if statement is not None:
                    return FromCall(recipe.binding, statement)
        return None

    # --- proving -------------------------------------------------------------------------------------------

    def prove(self, number: int) -> None:
        """Build and solve the stage of a fact and of all facts that it rests on, these first."""
        path: list[tuple[int, Stage | Called, Iterator[int]]] = []
        try:
            self._begin(number, path)
            while path:
                top, stage, rests = path[-1]
                below = next(rests, None)
                if below is not None:
                    self._begin(below, path)
                    continue
                path.pop()
                self._open.discard(top)
                self.built[top] = stage
                self._order.append(top)
                self._rests.add_edges_from((top, n) for n in self.uses_of(stage))
        except Unproved as error:
            self.failed.update((n, str(error)) for n, _, _ in path)
            raise
        finally:
            self._open.difference_update(n for n, _, _ in path)

    def _begin(self, number: int, path: list[tuple[int, Stage | Called, Iterator[int]]]) -> None:
        """Put a fact on top of the path of those that wait for what they rest on, unless it stands."""
        if number in self.built or number not in self.knowledge.recipes:
            return
        if number in self.failed:
            raise Unproved(self.failed[number])
        if number in self._open:
            raise Unproved(f"the proof of {self.knowledge.facts[number]} would be circular")
        self._open.add(number)
        try:
            recipe = self.knowledge.recipes[number]
            stage = self._called(recipe) if isinstance(recipe, FromCall) else self._stage(number)
        except (NoDefinition, Unfollowable, Unproved) as error:
            self.failed[number] = str(error)
            raise Unproved(str(error)) from error
        finally:
            self._open.discard(number)
        self._open.add(number)
        path.append((number, stage, iter(self.uses_of(stage))))

    def _called(self, recipe: FromCall) -> Called:
        binding = recipe.binding
        rests = tuple(binding.assumed[n] for n in binding.lemma.prove(recipe.statement))
        for number in rests:
            if isinstance(self.knowledge.recipes.get(number), AlgebraRecipe | LayoutRecipe):
                self.believe(number)
        return Called(binding, recipe.statement, rests)

    def uses(self, number: int) -> Sequence[int]:
        """The facts that a proved fact rests on directly."""
        return self.uses_of(self.built[number]) if number in self.built else ()

    @staticmethod
    def uses_of(stage: Stage | Called) -> Sequence[int]:
        return stage.rests if isinstance(stage, Called) else dependencies(stage)

    def believe(self, number: int) -> None:
        """Raise :class:`Unproved` for a conclusion that is not plausible."""
        fact = self.knowledge.facts[number]
        if fact not in self._believed:
            self._believed[fact] = self.plausible(self.knowledge, number, "conclusion")
        if not self._believed[fact]:
            raise Unproved(f"{fact} fails on some input, as far as floating point shows")

    def proves(self, number: int) -> bool:
        """Whether a guess is plausible and has a proof."""
        if not self.plausible(self.knowledge, number, "guess"):
            return False
        try:
            self.prove(number)
        except Unproved:
            return False
        return True

    def _stage(self, number: int) -> Stage:
        recipe = self.knowledge.recipes[number]
        fact = self.knowledge.facts[number]
        if isinstance(recipe, AlgebraRecipe):
            try:
                return self._algebra(AlgebraBuilder(self.knowledge, number, recipe).build(self._title(fact)))
            except NoDefinition as problem:
                first = problem
            try:
                tied = direct(self.knowledge, recipe)
                return self._algebra(AlgebraBuilder(self.knowledge, number, tied).build(self._title(fact)))
            except (NoDefinition, Cut, Digits, Unfollowable):
                for axis in self.plan.mesh.axes:
                    apart = by_rank(recipe, axis)
                    if apart is None:
                        continue
                    try:
                        builder = AlgebraBuilder(self.knowledge, number, apart)
                        return self._algebra(builder.build(self._title(fact)))
                    except NoDefinition:
                        continue
                # Without a sum the stage can be proved at true sizes.
                if not all(self._pointwise(ref) for ref in recipe.expand):
                    raise Unproved(str(first)) from first
                recipe = LayoutRecipe(recipe.expand)
        assert isinstance(recipe, LayoutRecipe)
        stage = self._layout(number, recipe)
        if stage is None and fact.rhs in self.knowledge.landmarks:
            stage = self._layout(number, replace(recipe, expand=recipe.expand | {fact.rhs}))
        if stage is None:
            raise Unproved(f"no proof of {fact}")
        return stage

    def _layout(self, number: int, recipe: LayoutRecipe) -> LayoutStage | None:
        """The stage with the premises that it needs; ``None`` if all that were found do not suffice."""
        builder = LayoutBuilder(self.knowledge, number, recipe)
        stage = builder.build(self._title(self.knowledge.facts[number]))
        text = LayoutText(self.model, self.knowledge.facts, stage).text("unknown")
        core = self.cores.core(without_comments(text))
        if core is None:
            return None
        return trim(replace(stage, premises=tuple(stage.premises[i] for i in core)))

    def _pointwise(self, ref: Ref) -> bool:
        op = self.model.op(ref)
        return op is not None and op.name in ELEMENTWISE

    def _algebra(self, stage: AlgebraStage) -> AlgebraStage:
        text = AlgebraText(self.model, self.knowledge.facts, stage)
        cases = []
        for case in stage.cases:
            core = self.cores.core(without_comments(text.text(case, "unknown")))
            if core is None:
                raise Unproved(
                    f"no proof of {self.knowledge.facts[stage.goal]} from {len(case.premises)} premises"
                )
            cases.append(Case(case.reps, tuple(case.premises[i] for i in core)))
        return replace(stage, cases=tuple(cases))

    def _title(self, fact: Fact) -> str:
        lhs = fact.lhs if isinstance(fact.lhs, str) else fact.lhs.of[0]
        op = self.model.op(lhs)
        where = f" at {self.plan.sources[op.loc.source]}:{op.loc.line}" if op and op.loc else ""
        text = f"{fact.lhs} follows {fact.rhs}: {op.name if op else 'input'}{where}"
        return "".join(c if " " <= c <= "~" and c != "|" else "?" for c in text)[:200]

    # --- the result ----------------------------------------------------------------------------------------

    def proof(self, wanted: list[int], status: str = "unknown") -> Assembled:
        """The proved facts in dependency order, and their files (``:status`` as given)."""
        needed = self._needed(wanted)
        used = self._statements(needed)
        parts = [(lemma.function, lemma.part(statements, status)) for lemma, statements in used.items()]
        main = self._part(needed, status, {lemma: place for place, lemma in enumerate(used)})
        whole = assembled(main, parts)
        self._names = dict(zip((*used, None), whole.names, strict=True))
        return whole

    def _statements(self, needed: set[int]) -> dict[Lemma, set[int]]:
        """Statements of lemmas that some facts rest on; lemmas in the order they were made."""
        found: dict[Lemma, set[int]] = {}
        for n in needed:
            stage = self.built.get(n)
            if isinstance(stage, Called):
                found.setdefault(stage.binding.lemma, set()).add(stage.statement)
        return {lemma: found[lemma] for lemma in self.lemmas if lemma in found}

    def part(self, goals: Sequence[int], status: str) -> Part:
        """The proof of a function's facts, which are for its callers."""
        return self._part(self._needed(goals), status, {}, sorted(set(goals)))

    def _needed(self, wanted: Sequence[int]) -> set[int]:
        """Facts, and all that their proofs rest on."""
        inner = [n for n in wanted if n in self._rests]
        return set(wanted).union(*nx.bfs_layers(self._rests, inner))

    def assumptions(self, number: int) -> frozenset[int]:
        """The facts without a proof of their own that a proved fact rests on."""
        return frozenset(n for n in self._needed([number]) if n not in self.built)

    def _part(
        self, needed: set[int], status: str, places: Mapping[Lemma, int], goals: Sequence[int] = ()
    ) -> Part:
        """Facts that stages name, the stages in order, and the goals; ``places`` numbers the lemmas."""
        numbers: dict[int, int] = {}
        facts: list[Fact] = []

        def number_of(old: int) -> int:
            if old not in numbers:
                numbers[old] = len(facts)
                facts.append(self.knowledge.facts[old])
            return numbers[old]

        files = Files()
        stages: list[Stage | CallStage] = []
        self._files = {}
        done = {n for n in needed if n not in self.built}
        waiting: dict[Binding, list[int]] = {}
        for n in needed:
            stage = self.built.get(n)
            if isinstance(stage, Called):
                waiting.setdefault(stage.binding, []).append(n)
        for old in self._order:
            if old not in needed:
                continue
            stage = self.built[old]
            if not isinstance(stage, Called):
                for dependency in dependencies(stage):
                    number_of(dependency)
                written = files.written(renumber(stage, number_of), self.model, facts, status)
                self._files[old] = files_of(written)
                stages.append(written)
                done.add(old)
            elif old not in done:
                stages.append(CallStage(places[stage.binding.lemma], stage.binding.instance))
                done |= {n for n in waiting[stage.binding] if done.issuperset(self.uses(n))}
        # An operand that is handed on is assumed and concluded; no stage names it.
        concludes = [number_of(goal) for goal in goals]
        return Part.of(facts, stages, files, concludes)

    def fallen(self, bad: Mapping[str, str]) -> dict[int, str]:
        """Facts that rest on one of these files of the last proof, or of the last part, and why they fall."""
        below = {lemma: lemma.fallen(_own(bad, names)) for lemma, names in self._names.items() if lemma}
        own = _own(bad, self._names[None]) if None in self._names else bad
        out: dict[int, str] = {}
        for number in self._order:
            stage = self.built[number]
            reasons = [
                f"{own[f]} of the obligation of: {self._title(self.knowledge.facts[number])}"
                for f in self._files.get(number, ())
                if f in own
            ]
            if isinstance(stage, Called):
                inside = below.get(stage.binding.lemma, {})
                reasons += [inside[stage.statement]] if stage.statement in inside else []
            reasons += [out[f] for f in self.uses_of(stage) if f in out]
            if reasons:
                out[number] = reasons[0]
        return out


def _own(bad: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """What is said of files of a proof, by their names in one part of it."""
    return {own: bad[name] for own, name in names.items() if name in bad}


def beginning(plan: Plan, cores: CoreFinder, signs: Signs | None, judge: Judge = anything) -> Begin:
    """How the functions of a plan are related."""

    def begin(function: str, assumed: Sequence[Fact]) -> tuple[Prover, list[int]]:
        engine = Engine(body_plan(plan, function), cores, judge, signs=signs)
        for fact in assumed:
            engine.knowledge.add(fact, None)
        engine.relate()
        of = bodies(plan, function)
        shown = {f"{o}:{v}": (f"{o}:{v}",) for o, p in of.items() for v in (*p.outputs.values(), *p.inputs)}
        results = [f"{o}:{v}" for o, p in of.items() for v in p.outputs.values()]
        known = engine.knowledge
        engine.relate_results(results)
        about = facts_about(known, results)
        return engine, [n for n in about if any(True for _ in renamed(known.facts[n], shown))]

    return begin
