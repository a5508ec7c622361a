"""``obligations.tsv``: every obligation in a line, for people and for programs that give them to solvers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from ..canonical import digest
from ..proof.facts import Fact
from ..proof.stages import AlgebraStage, CallStage, LayoutStage, Proof
from ..words import clean

COLUMNS = ("id", "file", "sha256", "kind", "says")


def obligations_tsv(proof: Proof, texts: Mapping[str, str]) -> bytes:
    """A head and a line per file, in order. A file that several stages share says what its first one says."""
    said: dict[str, tuple[str, str]] = {}
    others: dict[str, int] = {}
    for file, kind, words in _said(proof):
        if said.setdefault(file, (kind, words)) != (kind, words):
            others[file] = others.get(file, 0) + 1
    rows = ["\t".join(COLUMNS)]
    for number in sorted(texts):
        kind, words = said.get(number, ("none", "no stage"))
        more = f" (and {others[number]} more of this form)" if number in others else ""
        name = f"obligations/{number}.smt2"
        rows.append("\t".join((number, name, digest(texts[number].encode("ascii")), kind, words + more)))
    return "".join(f"{row}\n" for row in rows).encode("ascii")


def _said(proof: Proof) -> Iterator[tuple[str, str, str]]:
    """File, kind of stage and words, of every case in the order of use."""
    parts = [(f"in function {lemma.function}: ", lemma.facts, lemma.stages) for lemma in proof.lemmas]
    for where, facts, stages in [*parts, ("", proof.facts, proof.stages)]:
        for stage in stages:
            match stage:
                case CallStage():
                    pass
                case LayoutStage():
                    yield stage.file, "layout", _words(where, stage.title, facts[stage.goal])
                case AlgebraStage():
                    for case in stage.cases:
                        yield case.file, "algebra", _words(where, stage.title, facts[stage.goal])
                case _:
                    assert_never(stage)


def _words(where: str, title: str, fact: Fact) -> str:
    return clean(f"{where}{title}; so {fact}")
