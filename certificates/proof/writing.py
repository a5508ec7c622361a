"""``proof.json`` written: canonical JSON (``docs/certificate.md``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import assert_never

from certificates.proof.facts import Fact, Ref

from ..canonical import canonical_text, object_text
from ..plan.types import format_rational
from .ghosts import Ghosts, ghosts_json
from .stages import (
    FORMAT,
    VERSION,
    AlgebraPremise,
    BoundIndex,
    BoundSymbol,
    BoundValue,
    CallStage,
    Def,
    Elem,
    ElemDef,
    ElemHyp,
    EvidentRange,
    Hyp,
    Index,
    InputRange,
    Law,
    LayoutPremise,
    LayoutStage,
    Proof,
    Stage,
    strides,
)
from .when import with_when


def ref_json(ref: Ref) -> object:
    if isinstance(ref, str):
        return ref
    return {"kind": ref.kind, "axes": list(ref.axes), "of": list(ref.of)}


def _index(index: Index) -> list[object]:
    return [form.to_json() for form in index]


def fact_json(fact: Fact) -> dict[str, object]:
    return {
        "lhs": ref_json(fact.lhs),
        "rhs": ref_json(fact.rhs),
        "coef": format_rational(fact.coef),
        "symbols": [list(s) for s in fact.symbols],
        "lhs_index": _index(fact.lhs_index),
        "rhs_index": _index(fact.rhs_index),
        "by": None if fact.by is None else {fact.by[0]: fact.by[1]},
    }


def _elem(e: Elem) -> list[object]:
    return [ref_json(e.ref), [list(c) for c in e.index]]


def term_json(term: object) -> object:
    if isinstance(term, Elem):
        return ["e", *_elem(term)]
    if isinstance(term, Fraction):
        return ["lit", format_rational(term)]
    if isinstance(term, tuple) and term[0] == "*":
        return ["*", format_rational(term[1]), term_json(term[2])]
    if isinstance(term, tuple):
        return [term[0], *(term_json(t) for t in term[1:])]
    raise TypeError(f"not a term: {term!r}")


def premise_json(p: LayoutPremise | AlgebraPremise) -> dict[str, object]:
    match p:
        case BoundSymbol():
            return {"k": "bound", "sym": p.sym}
        case BoundIndex():
            at, arg_form = _index(p.at), _index(p.arg)
            return {"k": "bound", "t": ref_json(p.t), "at": at, "arg": arg_form, "part": p.part}
        case BoundValue():
            return {"k": "bound", "t": ref_json(p.t), "at": _index(p.at), "value": p.value}
        case Def():
            arg = None if p.arg is None else _index(p.arg)
            return {"k": "def", "t": ref_json(p.t), "at": _index(p.at), "arg": arg}
        case Hyp():
            return {
                "k": "hyp",
                "facts": list(p.facts),
                "at": _index(p.at),
                "lift": list(p.lift),
                "kind": p.kind,
            }
        case InputRange():
            return {"k": "range", "input": p.input, "at": _index(p.at)}
        case EvidentRange():
            return {"k": "evident", "t": ref_json(p.t), "at": _index(p.at)}
        case ElemDef():
            return {"k": "def", "e": _elem(p.e)}
        case ElemHyp():
            return {"k": "hyp", "fact": p.fact, "at": _index(p.at), "defines": p.defines}
        case Law():
            return {"k": "law", "schema": p.schema, "lhs": term_json(p.lhs), "rhs": term_json(p.rhs)}
        case _:
            assert_never(p)


def stage_json(stage: Stage | CallStage) -> dict[str, object]:
    if isinstance(stage, CallStage):
        return {"kind": "call", "lemma": stage.lemma, "instance": stage.instance}
    if isinstance(stage, LayoutStage):
        return {
            "kind": "layout",
            "goal": stage.goal,
            "title": stage.title,
            "file": stage.file,
            "symbols": [list(s) for s in stage.symbols],
            "premises": [premise_json(p) for p in stage.premises],
        }

    def piece(offset: int, classes: tuple[str, ...], steps: tuple[int, ...]) -> list[object]:
        plain = steps == strides([stage.classes[c][0] for c in classes])
        return [offset, list(classes)] if plain else [offset, list(classes), list(steps)]

    return {
        "kind": "algebra",
        "goal": stage.goal,
        "title": stage.title,
        "classes": [[name, n, m] for name, (n, m) in stage.classes.items()],
        "trees": [
            [ref_json(ref), [[piece(*p) for p in tree] for tree in trees]]
            for ref, trees in stage.trees.items()
        ],
        "goal_at": [list(classes) for classes in stage.goal_at],
        "cases": [
            {
                "reps": [list(r) for r in case.reps],
                "premises": [premise_json(p) for p in case.premises],
                "file": case.file,
            }
            for case in stage.cases
        ],
    }


@dataclass(frozen=True)
class Section:
    """Facts and the stages that prove them as they stand in ``proof.json``; ``size`` counts both."""

    facts: str
    stages: str
    size: tuple[int, int]

    @classmethod
    def of(cls, facts: Sequence[Fact], stages: Sequence[Stage | CallStage]) -> Section:
        return cls(
            canonical_text([fact_json(f) for f in facts]),
            canonical_text([stage_json(s) for s in stages]),
            (len(facts), len(stages)),
        )

    def with_files(self, names: Mapping[str, str]) -> Section:
        """The same over files of other names."""
        if all(old == new for old, new in names.items()):
            return self
        # Within a JSON string the quotes would be escaped: this is a key and its value.
        stages = re.sub(r'"file":"([0-9]+)"', lambda m: f'"file":"{names[m[1]]}"', self.stages)
        return replace(self, stages=stages)


@dataclass(frozen=True)
class LemmaSection:
    """A lemma as it stands in ``proof.json``."""

    function: str
    section: Section
    concludes: Sequence[int]


def document(main: Section, lemmas: Sequence[LemmaSection], ghosts: Ghosts | None = None) -> bytes:
    """``proof.json``: canonical JSON."""
    parts = {"facts": main.facts, "format": canonical_text(FORMAT)}
    if ghosts:
        parts["ghosts"] = canonical_text(ghosts_json(ghosts))
    if lemmas:
        parts["lemmas"] = "[" + ",".join(map(_lemma_text, lemmas)) + "]"
    return (object_text(parts | {"stages": main.stages, "version": str(VERSION)}) + "\n").encode("ascii")


def _lemma_text(lemma: LemmaSection) -> str:
    concludes, function = canonical_text(list(lemma.concludes)), canonical_text(lemma.function)
    facts, stages = lemma.section.facts, lemma.section.stages
    return object_text({"concludes": concludes, "facts": facts, "function": function, "stages": stages})


def proof_bytes(proof: Proof) -> bytes:
    """``proof.json`` of a whole proof."""
    lemmas = [LemmaSection(m.function, Section.of(m.facts, m.stages), m.concludes) for m in proof.lemmas]
    made = document(Section.of(proof.facts, proof.stages), lemmas, proof.ghosts)
    return made if proof.when is None else with_when(made, proof.when)
