"""From a plan to a proof: relate every op, then build and solve the stages that the claimed outputs need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from certificates.plan.calls import Site
from certificates.plan.functions import body_plan
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.plan.sites import bodies
from certificates.proof.facts import Fact
from certificates.proof.stages import Stage
from smtlib_emit.errors import NoDefinition

from ..cells import Unfollowable
from ..errors import Unproved
from ..ghosts.adding import Added
from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe
from ..relating.recipes import AlgebraRecipe
from ..relating.signs import Shown, Signs
from ..solving.premises import CoreFinder
from .assembly import Assembled, Named, Part
from .lemmas import Begin, FromCall, KeptLemma, Lemma, Prover, facts_about, renamed
from .proved import Called, Proved, uses_of
from .relations import Relations
from .stages import Stages
from .written import Written

#: Whether a fact of an engine, by number, is worth a proof, as a guess or as a conclusion.
Plausibility = Callable[[Knowledge, int, Literal["guess", "conclusion"]], bool]
#: Made for one plan, or for one function of it.
Judge = Callable[[Plan], Plausibility]


def nothing(_named: Named) -> Mapping[str, Mapping[str, Sequence[Op]]]:
    """The ghosts of a proof that has none."""
    return {}


def anything(_plan: Plan) -> Plausibility:
    """Where solvers decide."""
    return lambda _knowledge, _number, _role: True


#: Told of each file with an ``unsat`` of its own that a proof may need, as soon as it is known.
Ahead = Callable[[str], None]


class Engine:
    """Relates, stages and solves one plan.

    A guess that does not pass the ``judge`` of its plan, or of its function, is dropped before it is proved;
    ``kept`` has what is known of lemmas. ``signs`` are of the plan that calls, if this one is the bodies of a
    function. ``ghosts`` are what the plan has besides its own ops, which the proof gives with it.
    """

    def __init__(
        self,
        plan: Plan,
        cores: CoreFinder,
        judge: Judge = anything,
        *,
        kept: KeptLemma = lambda _function, _assumed: None,
        signs: Signs | None = None,
        ahead: Ahead | None = None,
        ghosts: Added | None = None,
        in_digits: bool = False,
    ) -> None:
        function = plan.name if signs else ""
        if ghosts is not None and signs is None:
            plan = ghosts.plan
        outer = signs or Signs(plan)
        begin = beginning(plan, cores, outer, judge, ahead, ghosts, in_digits)
        self.plan, self.plausible, self.ghosts = plan, judge(plan), ghosts
        self.relations = Relations(
            plan,
            self.proves,
            Shown(outer, function),
            lambda callee, assumed: Lemma(callee, assumed, begin, kept(callee, assumed)),
            ghosts.followed.get(function) if ghosts is not None else None,
            in_digits,
        )
        self.knowledge, self.model = self.relations.knowledge, self.relations.model
        self.stages = Stages(self.knowledge, cores)
        self.proved = Proved()
        self.failed: dict[int, str] = {}
        named = ghosts.behind if ghosts is not None else nothing
        self.written = Written(self.model, self.knowledge.facts, self.proved, self.lemmas, named)
        self._ahead = ahead
        self._open: set[int] = set()
        self._believed: dict[Fact, bool] = {}

    # --- relating ------------------------------------------------------------------------------------------

    @property
    def lemmas(self) -> Sequence[Lemma]:
        """In the order they were made."""
        return self.relations.lemmas

    @property
    def called(self) -> Mapping[Site, Lemma]:
        """The lemma that was used at each call."""
        return self.relations.called

    @property
    def passed_over(self) -> bool:
        """Does the specification have what would be related in another way ``in_digits``?"""
        return self.relations.matcher.unbound.passed_over

    def relate(self) -> None:
        """Guess a relation for every tensor of the plan, in execution order."""
        self.relations.relate()

    def claims(self) -> list[list[int]]:
        """Claimed facts of every output relation, as fact numbers."""
        return self.relations.claims()

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
                self.proved.put(top, stage)
                if self._ahead is not None:
                    for text in self.written.texts(top, "unsat"):
                        self._ahead(text)
        except Unproved as error:
            self.failed.update((n, str(error)) for n, _, _ in path)
            raise
        finally:
            self._open.difference_update(n for n, _, _ in path)

    def _begin(self, number: int, path: list[tuple[int, Stage | Called, Iterator[int]]]) -> None:
        """Put a fact on top of the path of those that wait for what they rest on, unless it stands."""
        if number in self.proved.built or number not in self.knowledge.recipes:
            return
        if number in self.failed:
            raise Unproved(self.failed[number])
        if number in self._open:
            raise Unproved(f"the proof of {self.knowledge.facts[number]} would be circular")
        self._open.add(number)
        try:
            recipe = self.knowledge.recipes[number]
            stage = self._called(recipe) if isinstance(recipe, FromCall) else self.stages.of(number)
        except (NoDefinition, Unfollowable, Unproved) as error:
            self.failed[number] = str(error)
            raise Unproved(str(error)) from error
        finally:
            self._open.discard(number)
        self._open.add(number)
        path.append((number, stage, iter(uses_of(stage))))

    def _called(self, recipe: FromCall) -> Called:
        binding = recipe.binding
        rests = tuple(binding.assumed[n] for n in binding.lemma.prove(recipe.statement))
        for number in rests:
            if isinstance(self.knowledge.recipes.get(number), AlgebraRecipe | LayoutRecipe):
                self.believe(number)
        return Called(binding, recipe.statement, rests)

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

    def assumptions(self, number: int) -> frozenset[int]:
        """The facts without a proof of their own that a proved fact rests on."""
        return self.proved.assumptions(number)

    # --- the result ----------------------------------------------------------------------------------------

    def proof(self, wanted: Sequence[int], status: str = "unknown") -> Assembled:
        """The proved facts in dependency order, and their files (``:status`` as given)."""
        return self.written.proof(wanted, status)

    def part(self, goals: Sequence[int], status: str) -> Part:
        """The proof of a function's facts, which are for its callers."""
        return self.written.part(goals, status)

    def fallen(self, bad: Mapping[str, str]) -> dict[int, str]:
        """Facts that rest on one of these files of the last proof, or of the last part, and why they fall."""
        return self.written.fallen(bad)


def beginning(
    plan: Plan,
    cores: CoreFinder,
    signs: Signs | None,
    judge: Judge = anything,
    ahead: Ahead | None = None,
    ghosts: Added | None = None,
    in_digits: bool = False,
) -> Begin:
    """How the functions of a plan are related."""

    def begin(function: str, assumed: Sequence[Fact]) -> tuple[Prover, list[int]]:
        body = body_plan(plan, function)
        engine = Engine(
            body, cores, judge, signs=signs, ahead=ahead, ghosts=ghosts, in_digits=in_digits
        )  # fmt: skip
        for fact in assumed:
            engine.knowledge.add(fact, None)
        engine.relate()
        of = bodies(plan, function)
        shown = {f"{o}:{v}": (f"{o}:{v}",) for o, p in of.items() for v in (*p.outputs.values(), *p.inputs)}
        results = [f"{o}:{v}" for o, p in of.items() for v in p.outputs.values()]
        known = engine.knowledge
        engine.relations.relate_results(results)
        about = facts_about(known, results)
        return engine, [n for n in about if any(True for _ in renamed(known.facts[n], shown))]

    return begin
