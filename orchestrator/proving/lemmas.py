"""Functions are related and proved once, for operands that stand in given relations; calls use what follows.

A *lemma* is a function together with the facts about its operands that were known at some call. At every call
where the same facts are known, the lemma's facts about the results hold too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from certificates.plan.calls import Site
from certificates.plan.plan import Plan
from certificates.plan.program import Program
from certificates.plan.sites import CallSite
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from certificates.proof.reading import fact_from_json
from certificates.proof.writing import fact_json

from ..errors import Unproved
from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe
from .assembly import Part
from .slices import Slice

Renaming = Mapping[str, tuple[str, ...]]


class Prover(Protocol):
    """What proves the facts of one plan, or of one function under assumptions; facts go by their numbers."""

    @property
    def plan(self) -> Plan: ...

    @property
    def knowledge(self) -> Knowledge: ...

    @property
    def called(self) -> Mapping[Site, Lemma]:
        """The lemma that was used at each call."""

    def believe(self, number: int) -> None:
        """Raise :class:`Unproved` for a conclusion that is not plausible."""

    def prove(self, number: int) -> None:
        """Prove a fact and all that it rests on; raises :class:`Unproved`."""

    def assumptions(self, number: int) -> frozenset[int]:
        """The facts without a proof of their own that a proved fact rests on."""

    def part(self, goals: Sequence[int], status: str) -> Part:
        """The proof of some facts, for callers."""

    def fallen(self, bad: Mapping[str, str]) -> dict[int, str]:
        """Facts of the last part that rest on one of these files, and why they fall."""


#: Relates a function under assumptions: its prover, and the numbers of its conclusions there.
Begin = Callable[[str, Sequence[Fact]], tuple[Prover, list[int]]]
#: What is known of the lemma about a function under assumptions.
KeptLemma = Callable[[str, Sequence[Fact]], "tuple[Transcript, Part] | None"]
#: What a caller asks of a lemma: ``["prove", n]`` for its n-th statement, ``["claim", fact]`` for one more.
Question = list[object]
#: The assumptions that a statement rests on, or why it has no proof.
Answer = list[int] | str


@dataclass
class Transcript:
    """All that callers learnt of a lemma, facts as JSON data.

    What a lemma is asked can change what it says later, so questions are kept in order. ``goals`` are the
    statements that the proof uses.
    """

    function: str
    assumed: list[object]
    conclusions: list[object]
    exchanges: list[tuple[Question, Answer]]
    goals: list[int]


class Lemma:
    """A function under assumptions. Its *statements* are its conclusions, then what callers claim of it.

    With a transcript of the same lemma, and its part of the proof, it answers from these; its engine begins
    only when a question or the part that is wanted is another.
    """

    def __init__(
        self, function: str, assumed: Sequence[Fact], begin: Begin, kept: tuple[Transcript, Part] | None
    ) -> None:
        self.function = function
        self.assumed = {fact: number for number, fact in enumerate(assumed)}
        self.statements: list[Fact] = []
        self.exchanges: list[tuple[Question, Answer]] = []
        self._begin = begin
        self._kept = kept
        self._engine: Prover | None = None
        self._numbers: list[int] = []
        self._answers: dict[int, Answer] = {}
        self._claims: dict[Fact, int] = {}
        self._wanted: tuple[list[int], str] = [], ""
        self._part: Part | None = None
        if kept is None:
            known = self.engine().knowledge.facts
            self.statements = [known[n] for n in self._numbers]
        else:
            self.statements = [fact_from_json(f) for f in kept[0].conclusions]
        self.conclusions = range(len(self.statements))

    def prove(self, statement: int) -> list[int]:
        """The assumptions that a statement rests on, by number; raises :class:`Unproved`."""
        if statement not in self._answers:
            self._answers[statement] = self._ask(["prove", statement])
        answer = self._answers[statement]
        if isinstance(answer, str):
            raise Unproved(answer)
        return answer

    def claim(self, fact: Fact) -> int | None:
        """The statement that says this, if it has a proof."""
        if fact not in self._claims:
            answer = self._ask(["claim", fact_json(fact)])
            self._claims[fact] = len(self.statements)
            self._answers[len(self.statements)] = answer
            self.statements.append(fact)
        found = self._claims[fact]
        return None if isinstance(self._answers[found], str) else found

    def part(self, statements: Iterable[int], status: str) -> Part:
        """The proof of some statements."""
        self._wanted = sorted(statements), status
        kept = self._replayed()
        same = kept is not None and self.transcript() == kept[0]
        self._part = kept[1] if kept is not None and same else self._live_part()
        return self._part

    def last_part(self) -> Part:
        """The part that was wanted last."""
        return self._part or self.part(*self._wanted)

    def fallen(self, bad: Mapping[str, str]) -> dict[int, str]:
        """Statements of the last part that rest on one of these files of its own, and why they fall."""
        if not bad:
            return {}
        if self._replayed() is not None:
            self._live_part()
        broken = self.engine().fallen(bad)
        return {s: broken[n] for s, n in enumerate(self._numbers) if n in broken}

    def transcript(self) -> Transcript:
        """What was learnt of this lemma so far."""
        concluded = [fact_json(self.statements[n]) for n in self.conclusions]
        assumed = [fact_json(f) for f in self.assumed]
        return Transcript(self.function, list(assumed), list(concluded), self.exchanges, self._wanted[0])

    def behaves(self, like: Transcript) -> bool:
        """Whether it concludes what that lemma concluded, and answers its questions alike."""
        if [fact_json(self.statements[n]) for n in self.conclusions] != like.conclusions:
            return False
        for question, answer in like.exchanges:
            match question:
                case ["prove", int(n)]:
                    with suppress(Unproved):
                        self.prove(n)
                case ["claim", fact]:
                    self.claim(fact_from_json(fact))
            if self.exchanges[-1] != (question, answer):
                return False
        return True

    def _replayed(self) -> tuple[Transcript, Part] | None:
        return self._kept if self._engine is None else None

    def engine(self) -> Prover:
        """The function's own engine, after all that was asked."""
        if self._engine is None:
            self._engine, self._numbers = self._begin(self.function, list(self.assumed))
            for question, answer in self.exchanges:
                if self._answer(question) != answer:
                    raise AssertionError(f"{self.function} answers {question} in another way than before")
        return self._engine

    def _live_part(self) -> Part:
        engine, (statements, status) = self.engine(), self._wanted
        return engine.part([self._numbers[n] for n in statements], status)

    def _ask(self, question: Question) -> Answer:
        kept, place = self._replayed(), len(self.exchanges)
        exchanges = kept[0].exchanges if kept is not None else []
        if place < len(exchanges) and exchanges[place][0] == question:
            answer = exchanges[place][1]
        else:
            self.engine()
            answer = self._answer(question)
        self.exchanges.append((question, answer))
        return answer

    def _answer(self, question: Question) -> Answer:
        engine = self.engine()
        match question:
            case ["prove", int(statement)]:
                number = self._numbers[statement]
            case ["claim", fact]:
                number = engine.knowledge.add(fact_from_json(fact), LayoutRecipe(), relates=False)
            case _:
                raise AssertionError(f"no question: {question}")
        try:
            engine.believe(number)
            engine.prove(number)
            answer: Answer = sorted(self.engine().assumptions(number))
        except Unproved as error:
            answer = str(error)
        if question[0] == "claim":
            self._numbers.append(number)
        return answer


@dataclass(frozen=True, eq=False)
class Binding:
    """A lemma at one call: which fact of the caller each assumed fact is there."""

    lemma: Lemma
    instance: int
    assumed: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class FromCall:
    """The way to prove a fact about results of a call: a statement of a lemma."""

    binding: Binding
    statement: int


def renamed(fact: Fact, names: Renaming) -> Iterator[Fact]:
    """A fact about other tensors, once for every choice of names; none if a tensor has no name."""
    for lhs in _renamed(fact.lhs, names):
        for rhs in _renamed(fact.rhs, names):
            yield replace(fact, lhs=lhs, rhs=rhs, by=None)


def _renamed(ref: Ref, names: Renaming) -> Iterable[Ref]:
    if isinstance(ref, str):
        return (ref,) if ref.startswith("#") else names.get(ref, ())
    members = [names.get(m, ()) for m in ref.of]
    if not all(members):
        return ()
    return (Reduced(ref.kind, ref.axes, tuple(m[0] for m in members)),)


def facts_about(knowledge: Knowledge, refs: Iterable[str]) -> Iterator[int]:
    """Numbers of the known facts whose left side is one of the tensors, or a reduction of some of them."""
    known = dict.fromkeys(refs)
    for ref in known:
        owner, _ = split_ref(ref)
        if owner != "s" or ref in knowledge.by_lhs:
            yield from knowledge.facts_for(ref)
        for reduced in knowledge.partials.get(ref, ()):
            if reduced.of[0] == ref and all(m in known for m in reduced.of):
                yield from knowledge.facts_for(reduced)


def available(
    knowledge: Knowledge, site: CallSite, of: Mapping[str, Program], place: Slice
) -> dict[Fact, int]:
    """What is known of the operands of a call, as facts about the function's inputs."""
    operands = site.operands(of)
    found: dict[Fact, int] = {}
    for number in facts_about(knowledge, operands):
        for fact in renamed(knowledge.facts[number], operands):
            inner = place.inside(fact)
            if inner is not None:
                found.setdefault(inner, number)
    return found
