"""Stages and their premises, as data, and ``proof.json`` (``docs/certificate.md``)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import assert_never

from .affine import Affine
from .facts import Fact, Ref
from .ir import format_rational
from .plan import canonical_text, object_text

FORMAT, VERSION = "trainverify-proof", 1
Index = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class BoundSymbol:
    """The range of an index symbol."""

    sym: str


@dataclass(frozen=True, slots=True)
class BoundIndex:
    """``lin(at) = lin(arg)`` for one part of an op that regroups indices."""

    t: Ref
    at: Index
    arg: Index
    part: int


@dataclass(frozen=True, slots=True)
class BoundValue:
    """``value = t[at]`` for an integer tensor."""

    t: Ref
    at: Index
    value: str


@dataclass(frozen=True, slots=True)
class Def:
    """One element of one op's result, at symbolic indices."""

    t: Ref
    at: Index
    arg: Index | None = None


@dataclass(frozen=True, slots=True)
class Hyp:
    """An instance of a declared or proved fact; ``lift`` lists axes of a sum congruence."""

    facts: tuple[int, ...]
    at: Index
    lift: tuple[str, ...] = ()
    kind: str = "add"


@dataclass(frozen=True, slots=True)
class InputRange:
    """The declared range of an integer input's element."""

    input: str
    at: Index


LayoutPremise = BoundSymbol | BoundIndex | BoundValue | Def | Hyp | InputRange


@dataclass(frozen=True, slots=True)
class Elem:
    """An element of a tensor at representatives: per coordinate the piece number and representatives."""

    ref: Ref
    index: tuple[tuple[int, ...], ...]


#: ``Elem`` | ``Fraction`` | ``(operator, argument, …)``; see TERM in the format.
Term = Elem | Fraction | tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ElemDef:
    """One element of one op's result, at representatives."""

    e: Elem


@dataclass(frozen=True, slots=True)
class ElemHyp:
    """A fact at representatives; ``at`` is over ``class.rep`` symbols, ``defines`` is ``lhs`` or ``rhs``."""

    fact: int
    at: Index
    defines: str = "lhs"


@dataclass(frozen=True, slots=True)
class Law:
    """An instance of a law schema: ``ring``, ``lattice``, ``recip`` or ``root``."""

    schema: str
    lhs: Term
    rhs: Term


AlgebraPremise = ElemDef | ElemHyp | Law


@dataclass(frozen=True, slots=True)
class LayoutStage:
    """Data movement at true sizes, with symbolic indices."""

    goal: int
    title: str
    symbols: tuple[tuple[str, int | None, int | None], ...]
    premises: tuple[LayoutPremise, ...]
    file: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One assignment of representatives to the goal's free indices."""

    reps: tuple[tuple[int, ...], ...]
    premises: tuple[AlgebraPremise, ...]
    file: str = ""


#: Offset, classes major to minor, and the stride of each.
Piece = tuple[int, tuple[str, ...], tuple[int, ...]]
Tree = tuple[Piece, ...]


def strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of digits of these sizes."""
    return tuple(math.prod(sizes[k + 1 :]) for k in range(len(sizes)))


@dataclass(frozen=True)
class AlgebraStage:
    """Arithmetic at reduced sizes: index classes, trees, cases."""

    goal: int
    title: str
    classes: Mapping[str, tuple[int, int]]
    trees: Mapping[Ref, tuple[Tree, ...]]
    goal_at: tuple[tuple[str, ...], ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class CallStage:
    """A lemma at one call: its conclusions hold whose assumptions do."""

    lemma: int
    instance: int


Stage = LayoutStage | AlgebraStage


@dataclass(frozen=True)
class Lemma:
    """What follows inside a function: facts without a stage are assumed, ``concludes`` are for the caller."""

    function: str
    facts: Sequence[Fact]
    stages: Sequence[Stage]
    concludes: Sequence[int]


@dataclass(frozen=True)
class Proof:
    """All facts and the stages that prove them, in dependency order."""

    facts: Sequence[Fact]
    stages: Sequence[Stage | CallStage]
    lemmas: Sequence[Lemma] = ()


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


def document(main: Section, lemmas: Sequence[LemmaSection]) -> bytes:
    """``proof.json``: canonical JSON."""
    parts = {"facts": main.facts, "format": canonical_text(FORMAT)}
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
    return document(Section.of(proof.facts, proof.stages), lemmas)
