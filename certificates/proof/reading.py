"""``proof.json`` read back into :mod:`certificates.proof.stages`; shape only.

What a proof means is for the checker, which has a reader of its own. This one serves ``tv-show`` and tools
that resume or compare bundles: anything that does not have the documented shape is a :class:`FormatError`.
"""

from __future__ import annotations

from collections.abc import Mapping

from certificates.proof.facts import Fact, Reduced, Ref

from ..errors import FormatError
from ..plan.affine import Affine
from ..plan.types import rational
from ..shapes import as_list, as_object, as_text
from .ghosts import ghosts_from_json
from .stages import (
    FORMAT,
    VERSION,
    AlgebraPremise,
    AlgebraStage,
    BoundIndex,
    BoundSymbol,
    BoundValue,
    CallStage,
    Case,
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
    Lemma,
    Proof,
    Stage,
    Term,
    Tree,
    strides,
)
from .when import when_from_json

_MAX_DEPTH = 200


def proof_from_json(data: object) -> Proof:
    """The proof of a parsed ``proof.json``."""
    called, scheduled, haunted = (isinstance(data, dict) and k in data for k in ("lemmas", "when", "ghosts"))
    wanted = "format version facts stages" + " lemmas" * called + " when" * scheduled + " ghosts" * haunted
    raw = as_object(data, "a proof", wanted.split())
    if raw["format"] != FORMAT or raw["version"] != VERSION:
        raise FormatError(f"not a {FORMAT} document of version {VERSION}")
    lemmas = tuple(_lemma(entry) for entry in as_list(raw["lemmas"], "lemmas")) if called else ()
    facts = [fact_from_json(f) for f in as_list(raw["facts"], "facts")]
    stages = [_call(s, len(lemmas)) or _stage(s, len(facts)) for s in as_list(raw["stages"], "stages")]
    when = when_from_json(raw["when"]) if scheduled else None
    return Proof(facts, stages, lemmas, when, ghosts_from_json(raw["ghosts"]) if haunted else {})


def _lemma(data: object) -> Lemma:
    raw = as_object(data, "a lemma", ["function", "facts", "stages", "concludes"])
    facts = [fact_from_json(f) for f in as_list(raw["facts"], "facts")]
    stages = [_stage(s, len(facts)) for s in as_list(raw["stages"], "stages")]
    concludes = [_fact_number(n, len(facts)) for n in _ints(raw["concludes"], "conclusions")]
    return Lemma(as_text(raw["function"], "function of a lemma"), facts, stages, concludes)


def _call(data: object, lemmas: int) -> CallStage | None:
    match data:
        case {"kind": "call", "lemma": int(lemma), "instance": int(instance), **rest} if not rest:
            if not 0 <= lemma < lemmas:
                raise FormatError(f"lemma {lemma} of a call does not exist")
            return CallStage(lemma, instance)
        case _:
            return None


def verdicts_from_json(data: object) -> list[tuple[str, str, str, str]]:
    """``(spec, plan, verdict, reason)`` per claimed output of a parsed ``manifest.json``."""
    if not isinstance(data, dict) or data.get("format") != "trainverify-bundle" or "verdicts" not in data:
        raise FormatError("not a trainverify-bundle manifest with verdicts")
    out = []
    for entry in as_list(data["verdicts"], "verdicts"):
        raw = as_object(entry, "a verdict", ["spec", "plan", "verdict", "reason"])
        spec, plan = as_text(raw["spec"], "spec"), as_text(raw["plan"], "plan")
        out.append((spec, plan, as_text(raw["verdict"], "verdict"), as_text(raw["reason"], "reason")))
    return out


def _int(data: object, what: str) -> int:
    if isinstance(data, bool) or not isinstance(data, int):
        raise FormatError(f"{what} must be an integer")
    return data


def _texts(data: object, what: str) -> tuple[str, ...]:
    return tuple(as_text(v, what) for v in as_list(data, what))


def _ints(data: object, what: str) -> tuple[int, ...]:
    return tuple(_int(v, what) for v in as_list(data, what))


def _index(data: object) -> Index:
    return tuple(Affine.from_json(v) for v in as_list(data, "an index"))


def _ref(data: object) -> Ref:
    if isinstance(data, str):
        return data
    raw = as_object(data, "a reduced tensor", ["kind", "axes", "of"])
    return Reduced(as_text(raw["kind"], "kind"), _texts(raw["axes"], "axes"), _texts(raw["of"], "members"))


def fact_from_json(data: object) -> Fact:
    """A fact of a parsed ``proof.json``."""
    raw = as_object(data, "a fact", ["lhs", "rhs", "coef", "symbols", "lhs_index", "rhs_index", "by"])
    symbols = []
    for entry in as_list(raw["symbols"], "symbols of a fact"):
        match entry:
            case [str(name), int(lo), int(hi)]:
                symbols.append((name, lo, hi))
            case _:
                raise FormatError("a symbol of a fact is [name, lo, hi]")
    match raw["by"]:
        case None:
            by = None
        case {"input": int(number), **rest} if not rest:
            by = ("input", number)
        case {"output": int(number), **rest} if not rest:
            by = ("output", number)
        case _:
            raise FormatError("by of a fact must be null, an input or an output")
    return Fact(
        _ref(raw["lhs"]),
        _ref(raw["rhs"]),
        tuple(symbols),
        _index(raw["lhs_index"]),
        _index(raw["rhs_index"]),
        rational(as_text(raw["coef"], "coef of a fact")),
        by,
    )


def _stage(data: object, facts: int) -> Stage:
    kind = data.get("kind") if isinstance(data, dict) else None
    match kind:
        case "layout":
            stage = _layout(data)
        case "algebra":
            return _algebra(data, facts)
        case _:
            raise FormatError("a stage must be an object of kind layout or algebra")
    _fact_number(stage.goal, facts)
    return stage


def _fact_number(number: int, facts: int) -> int:
    if not 0 <= number < facts:
        raise FormatError(f"fact {number} of a stage does not exist")
    return number


def _layout(data: object) -> LayoutStage:
    raw = as_object(data, "a layout stage", ["kind", "goal", "title", "file", "symbols", "premises"])
    symbols: list[tuple[str, int | None, int | None]] = []
    for entry in as_list(raw["symbols"], "symbols of a stage"):
        match entry:
            case [str(name), int() | None as lo, int() | None as hi]:
                symbols.append((name, lo, hi))
            case _:
                raise FormatError("a symbol of a stage is [name, lo, hi] or [name, null, null]")
    return LayoutStage(
        _int(raw["goal"], "goal of a stage"),
        as_text(raw["title"], "title of a stage"),
        tuple(symbols),
        tuple(_layout_premise(p) for p in as_list(raw["premises"], "premises of a stage")),
        as_text(raw["file"], "file of a stage"),
    )


def _layout_premise(data: object) -> LayoutPremise:
    match data:
        case {"k": "bound", "sym": str(symbol), **rest} if not rest:
            return BoundSymbol(symbol)
        case {"k": "bound", "t": t, "at": at, "arg": arg, "part": int(part), **rest} if not rest:
            return BoundIndex(_ref(t), _index(at), _index(arg), part)
        case {"k": "bound", "t": t, "at": at, "value": str(value), **rest} if not rest:
            return BoundValue(_ref(t), _index(at), value)
        case {"k": "def", "t": t, "at": at, "arg": arg, **rest} if not rest:
            return Def(_ref(t), _index(at), None if arg is None else _index(arg))
        case {"k": "hyp", "facts": facts, "at": at, "lift": lift, "kind": str(kind), **rest} if not rest:
            return Hyp(_ints(facts, "facts of a hyp"), _index(at), _texts(lift, "lift of a hyp"), kind)
        case {"k": "range", "input": str(name), "at": at, **rest} if not rest:
            return InputRange(name, _index(at))
        case {"k": "evident", "t": t, "at": at, **rest} if not rest:
            return EvidentRange(_ref(t), _index(at))
        case _:
            raise FormatError("a premise of a layout stage has none of the documented shapes")


def _algebra(data: object, facts: int) -> AlgebraStage:
    raw = as_object(
        data, "an algebra stage", ["kind", "goal", "title", "classes", "trees", "goal_at", "cases"]
    )
    classes: dict[str, tuple[int, int]] = {}
    for entry in as_list(raw["classes"], "classes of a stage"):
        match entry:
            case [str(name), int(n), int(m)] if name not in classes:
                classes[name] = (n, m)
            case _:
                raise FormatError("an index class is [name, size, representatives] with distinct names")
    trees: dict[Ref, tuple[Tree, ...]] = {}
    for entry in as_list(raw["trees"], "trees of a stage"):
        pair = as_list(entry, "trees of a tensor")
        if len(pair) != 2:
            raise FormatError("trees of a tensor are [tensor, trees]")
        trees[_ref(pair[0])] = tuple(_tree(t, classes) for t in as_list(pair[1], "trees of a tensor"))
    return AlgebraStage(
        _fact_number(_int(raw["goal"], "goal of a stage"), facts),
        as_text(raw["title"], "title of a stage"),
        classes,
        trees,
        tuple(_texts(c, "goal_at") for c in as_list(raw["goal_at"], "goal_at")),
        tuple(_case(c) for c in as_list(raw["cases"], "cases of a stage")),
    )


def _tree(data: object, sizes: Mapping[str, tuple[int, int]]) -> Tree:
    pieces = []
    for entry in as_list(data, "a tree"):
        match entry:
            case [int(offset), list(names), *rest] if len(rest) <= 1:
                classes = _texts(names, "classes of a tree")
            case _:
                raise FormatError(
                    "a piece of a tree is [offset, [class, ...]] or [offset, [class, ...], [stride, ...]]"
                )
        if not set(classes) <= set(sizes):
            raise FormatError("a piece of a tree names an unknown class")
        steps = _ints(rest[0], "strides of a tree") if rest else strides([sizes[c][0] for c in classes])
        if len(steps) != len(classes):
            raise FormatError("a piece of a tree has one stride per class")
        pieces.append((offset, classes, steps))
    return tuple(pieces)


def _case(data: object) -> Case:
    raw = as_object(data, "a case", ["reps", "premises", "file"])
    return Case(
        tuple(_ints(r, "representatives") for r in as_list(raw["reps"], "representatives")),
        tuple(_algebra_premise(p) for p in as_list(raw["premises"], "premises of a case")),
        as_text(raw["file"], "file of a case"),
    )


def _algebra_premise(data: object) -> AlgebraPremise:
    match data:
        case {"k": "def", "e": e, **rest} if not rest:
            return ElemDef(_elem(e))
        case {"k": "hyp", "fact": int(fact), "at": at, "defines": str(side), **rest} if not rest:
            return ElemHyp(fact, _index(at), side)
        case {"k": "law", "schema": str(schema), "lhs": lhs, "rhs": rhs, **rest} if not rest:
            return Law(schema, _term(lhs, 0), _term(rhs, 0))
        case _:
            raise FormatError("a premise of an algebra stage has none of the documented shapes")


def _elem(data: object) -> Elem:
    pair = as_list(data, "an element")
    if len(pair) != 2:
        raise FormatError("an element is [tensor, [[piece, representative, ...], ...]]")
    return Elem(_ref(pair[0]), tuple(_ints(c, "an element") for c in as_list(pair[1], "an element")))


def _term(data: object, depth: int) -> Term:
    if depth > _MAX_DEPTH:
        raise FormatError(f"a term is nested deeper than {_MAX_DEPTH}")
    match data:
        case ["e", ref, index]:
            return _elem([ref, index])
        case ["lit", str(value)]:
            return rational(value)
        case ["*", str(factor), term]:
            return ("*", rational(factor), _term(term, depth + 1))
        case [str(function), *arguments]:
            return (function, *(_term(a, depth + 1) for a in arguments))
        case _:
            raise FormatError("a term has none of the documented shapes")
