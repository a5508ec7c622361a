"""Finished parts of a proof: the main program's and each lemma's, over files of their own, and the whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from certificates.proof.facts import Fact
from certificates.proof.ghosts import Ghosts
from certificates.proof.stages import CallStage, LayoutStage, Stage
from certificates.proof.writing import LemmaSection, Section, document
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.layout import LayoutText
from smtlib_emit.model import Model
from smtlib_emit.sexp import without_comments

#: The tensors that a proof names, by function, as ``program:value``.
Named = Mapping[str, Collection[str]]
_NAMES = re.compile(r'"([a-z][a-z0-9_]*:%[0-9]+)"')


@dataclass(frozen=True)
class Obligation:
    """One distinct SMT-LIB file."""

    number: int
    text: str

    @property
    def file(self) -> str:
        return f"{self.number:04d}"


class Files:
    """Distinct files, numbered in order of first use: what differs in comments alone is one file."""

    def __init__(self) -> None:
        self.obligations: list[Obligation] = []
        self._known: dict[str, Obligation] = {}

    def name(self, text: str) -> str:
        key = without_comments(text)
        if key not in self._known:
            self._known[key] = Obligation(len(self.obligations) + 1, text)
            self.obligations.append(self._known[key])
        return self._known[key].file

    def named(self, stage: Stage, texts: Sequence[str]) -> Stage:
        """The stage with the names of its files."""
        names = [self.name(text) for text in texts]
        if isinstance(stage, LayoutStage):
            return replace(stage, file=names[0])
        cases = tuple(replace(c, file=name) for c, name in zip(stage.cases, names, strict=True))
        return replace(stage, cases=cases)


def texts_of(stage: Stage, model: Model, facts: Sequence[Fact], status: str) -> tuple[str, ...]:
    """The files of a stage, one for each case; they say nothing of the numbers that facts have."""
    if isinstance(stage, LayoutStage):
        return (LayoutText(model, facts, stage).text(status),)
    writer = AlgebraText(model, facts, stage)
    return tuple(writer.text(case, status) for case in stage.cases)


@dataclass(frozen=True)
class Part:
    """Facts and stages over the part's own files; ``concludes`` numbers the facts that are for the caller."""

    section: Section
    texts: tuple[str, ...]
    concludes: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, facts: Sequence[Fact], stages: Sequence[Stage | CallStage], files: Files,
        concludes: Sequence[int] = (),
    ) -> Part:  # fmt: skip
        texts = tuple(o.text for o in files.obligations)
        return cls(Section.of(facts, stages), texts, tuple(concludes))


@dataclass(frozen=True)
class Assembled:
    """``proof.json``, its files, and how many facts and stages it has.

    ``names`` gives for every lemma, then for the main part, the names of its files in the whole.
    """

    main: Part
    document: bytes
    obligations: Sequence[Obligation]
    size: tuple[int, int]
    names: Sequence[Mapping[str, str]]


def assembled(
    main: Part, lemmas: Sequence[tuple[str, Part]], ghosts: Callable[[Named], Ghosts] = lambda _: {}
) -> Assembled:
    """The proof of a main part and of the lemmas that it calls, in the order of its numbers for them; with
    the ``ghosts`` behind the tensors that it names."""
    files = Files()
    names = [
        {Obligation(i, text).file: files.name(text) for i, text in enumerate(part.texts, 1)}
        for part in (*(part for _, part in lemmas), main)
    ]
    sections = [
        LemmaSection(function, part.section.with_files(own), part.concludes)
        for (function, part), own in zip(lemmas, names[:-1], strict=True)
    ]
    sizes = [m.section.size for m in sections] + [main.section.size]
    named: dict[str, set[str]] = {}
    for function, part in (*lemmas, ("", main)):
        named.setdefault(function, set()).update(_NAMES.findall(part.section.facts + part.section.stages))
    whole = document(main.section.with_files(names[-1]), sections, ghosts(named))
    size = sum(facts for facts, _ in sizes), sum(stages for _, stages in sizes)
    return Assembled(main, whole, files.obligations, size, names)
