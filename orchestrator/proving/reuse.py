"""What an emission leaves for the next one: the lemmas and the main part of a proof, by all they depend on.

Nothing here is trusted by anyone: what is kept wrongly makes a bundle that ``tv-check`` refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from certificates.canonical import canonical_text
from certificates.errors import FormatError
from certificates.plan.functions import body_plan
from certificates.plan.plan import Plan
from certificates.plan.sites import bodies
from certificates.plan.types import TensorType
from certificates.plan.writing import texts
from certificates.proof.facts import Fact
from certificates.proof.reading import fact_from_json
from certificates.proof.writing import Section, fact_json

from ..relating.signs import Signs
from ..solving.journal import Journal, key
from ..solving.premises import CoreFinder
from .assembly import Assembled, Part, assembled
from .engine import beginning
from .lemmas import Answer, Lemma, Question, Transcript

#: The packages whose code decides what a proof looks like.
_PACKAGES = ("certificates", "orchestrator", "smtlib_emit")


class Kept:
    """The parts of an earlier proof that the journal has, for one plan. ``versions`` names the solvers."""

    def __init__(self, journal: Journal, plan: Plan, versions: str) -> None:
        self.journal = journal
        self.plan = plan
        self.signs = Signs(plan)
        base = code(), versions
        shown = canonical_text([_interface(plan, name, self.signs) for name in plan.functions])
        around = [text for name, text in sorted(texts(plan).items()) if name not in ("functions", "schedule")]
        self._main = key("main", *base, shown, *around)
        boxes = canonical_text([[c.name, dict(c.box)] for c in plan.classes])
        around = [texts(plan)[name] for name in ("mesh", "groups", "sources")]
        self._function = {
            name: key("function", *base, boxes, *around, name, *self._texts(name)) for name in plan.functions
        }

    def lemma(self, function: str, assumed: Sequence[Fact]) -> tuple[Transcript, Part] | None:
        """What is known of a function under these assumptions."""
        data = self.journal.part(self._lemma(function, [fact_json(f) for f in assumed]))
        match data:
            case {"transcript": transcript, "part": part}:
                return _transcript(transcript), _part(part)
            case _:
                return None

    def again(self, cores: CoreFinder, status: str) -> tuple[Assembled, list[Lemma]] | None:
        """The proof of a main program that was proved before, if all its lemmas behave as they did."""
        match self.journal.part(self._main):
            case {"lemmas": [*transcripts], "part": part}:
                before = [_transcript(t) for t in transcripts]
            case _:
                return None
        begin, lemmas = beginning(self.plan, cores, self.signs), list[Lemma]()
        for like in before:
            assumed = [fact_from_json(f) for f in like.assumed]
            lemmas.append(Lemma(like.function, assumed, begin, self.lemma(like.function, assumed)))
            if not lemmas[-1].behaves(like):
                return None
        parts = [
            (lemma.function, lemma.part(like.goals, status))
            for lemma, like in zip(lemmas, before, strict=True)
            if like.goals
        ]
        return assembled(_part(part), parts), lemmas

    def keep(self, main: Part, lemmas: Sequence[Lemma]) -> None:
        """Remember a proof of all outputs, instead of the last one."""
        transcripts = [lemma.transcript() for lemma in lemmas]
        parts: dict[str, object] = {
            self._main: {"lemmas": [vars(t) for t in transcripts], "part": _plain(main)}
        }
        for lemma, transcript in zip(lemmas, transcripts, strict=True):
            name = self._lemma(lemma.function, transcript.assumed)
            parts[name] = {"transcript": vars(transcript), "part": _plain(lemma.last_part())}
        self.journal.keep_parts(parts)

    def _texts(self, function: str) -> tuple[str, ...]:
        """A function's code, and what its proof may use of its operands at all calls: ranges and signs."""
        found = texts(body_plan(self.plan, function))
        signs = canonical_text(self.signs.operands(function))
        return found["specification"], found["classes"], found["ranges"], signs

    def _lemma(self, function: str, assumed: Sequence[object]) -> str:
        return key("lemma", self._function[function], canonical_text(assumed))


def _interface(plan: Plan, function: str, signs: Signs) -> object:
    """All that callers see of a function: its inputs, and of results also whether they may be negative."""

    def result(owner: str, value: str, type_: TensorType) -> list[object]:
        return [value, str(type_), signs.nonnegative(function, f"{owner}:{value}")]

    made = plan.functions[function]
    roles = {r: [[a, *side] for a, side in box.items()] for r, box in made.roles.items()}
    return [list(made.along), roles] + [
        [
            owner,
            [str(t) for t in p.inputs.values()],
            [result(owner, v, p.type_of(v)) for v in p.outputs.values()],
        ]
        for owner, p in bodies(plan, function).items()
    ]


@cache
def code(root: Path = Path(__file__).parents[2]) -> str:
    """A digest of the code that makes proofs: every module of every folder, and where it lies."""
    files = sorted(path for package in _PACKAGES for path in (root / package).rglob("*.py"))
    return key(*(part for path in files for part in (str(path.relative_to(root)), path.read_text("utf-8"))))


def _transcript(data: object) -> Transcript:
    match data:
        case {
            "function": str(function),
            "assumed": [*assumed],
            "conclusions": [*conclusions],
            "exchanges": [*exchanges],
            "goals": [*goals],
        }:
            return Transcript(function, assumed, conclusions, list(map(_exchange, exchanges)), _ints(goals))
        case _:
            raise FormatError("a kept transcript has another shape")


def _exchange(data: object) -> tuple[Question, Answer]:
    match data:
        case [[*question], str(reason)]:
            return question, reason
        case [[*question], [*rests]]:
            return question, _ints(rests)
        case _:
            raise FormatError("a kept question has another shape")


def _plain(part: Part) -> dict[str, object]:
    return {**vars(part), "section": vars(part.section)}


def _part(data: object) -> Part:
    match data:
        case {
            "section": {"facts": str(facts), "stages": str(stages), "size": [int(n), int(m)]},
            "texts": [*texts],
            "concludes": [*concludes],
        }:
            return Part(Section(facts, stages, (n, m)), tuple(map(str, texts)), tuple(_ints(concludes)))
        case _:
            raise FormatError("a kept part has another shape")


def _ints(data: Sequence[object]) -> list[int]:
    return [n for n in data if isinstance(n, int)]
