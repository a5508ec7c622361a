"""``obligations.tsv``: every obligation in a line, for people and for programs that give them to solvers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..canonical import digest
from ..errors import FormatError
from ..proof.facts import Fact
from ..proof.reading import fact_from_json
from ..shapes import as_list, as_object, as_text
from ..words import clean

#: Members of a case of an algebra stage.
CASE = ("reps", "premises", "file")
COLUMNS = ("id", "file", "sha256", "kind", "says")


def obligations_tsv(proof: object, texts: Mapping[str, str]) -> bytes:
    """A head and a line per file, in order, of a parsed ``proof.json``.

    A file that several stages share says what its first one says.
    """
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


def _said(proof: object) -> Iterator[tuple[str, str, str]]:
    """File, kind of stage and words, of every case in the order of use. Premises are not read: there are
    many, and a line does not tell them.
    """
    match proof:
        case {"facts": list(), "stages": list(), **more}:
            lemmas = as_list(more.get("lemmas", []), "lemmas")
        case _:
            raise FormatError("a proof has facts and stages")
    for part in [*lemmas, proof]:
        match part:
            case {"facts": list(facts), "stages": list(stages), **rest}:
                where = f"in function {rest['function']}: " if "function" in rest else ""
                yield from _said_in(where, facts, stages)
            case _:
                raise FormatError("a lemma has facts and stages")


def _said_in(where: str, facts: Sequence[object], stages: Sequence[object]) -> Iterator[tuple[str, str, str]]:
    for stage in stages:
        match stage:
            case {"kind": "call"}:
                pass
            case {"kind": "layout", "file": str(file), "title": str(title), "goal": int(goal)}:
                yield file, "layout", _words(where, title, fact_from_json(facts[goal]))
            case {"kind": "algebra", "cases": list(cases), "title": str(title), "goal": int(goal)}:
                words = _words(where, title, fact_from_json(facts[goal]))
                for case in cases:
                    yield as_text(as_object(case, "a case", CASE)["file"], "file of a case"), "algebra", words
            case _:
                raise FormatError("a stage is a call, layout or algebra")


def _words(where: str, title: str, fact: Fact) -> str:
    return clean(f"{where}{title}; so {fact}")
