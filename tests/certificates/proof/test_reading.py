"""``proof.json`` and verdicts as they are read: what is malformed is refused with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from certificates.errors import FormatError
from certificates.proof.reading import proof_from_json, verdicts_from_json
from certificates.proof.stages import Proof
from certificates.proof.writing import proof_bytes


def edit(*path: str | int, to: object = None) -> Callable[[Any], None]:
    def apply(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return apply


LAYOUT, ALGEBRA = ("stages", 0), ("stages", 1)
MALFORMED: list[tuple[Callable[[Any], None], str]] = [
    (edit("version", to=2), "not a trainverify-proof document of version 1"),
    (edit("extra"), "a proof must be an object with exactly the keys facts, format, stages, version"),
    (edit("facts", to={}), "facts must be a list"),
    (edit("facts", 0, to=[]), "a fact must be an object with exactly the keys"),
    (edit("facts", 0, "coef", to="0.5"), "'0.5' is not a rational number"),
    (edit("facts", 0, "symbols", 0, to=["z0", 0]), r"a symbol of a fact is \[name, lo, hi\]"),
    (edit("facts", 0, "by", to={"input": 0, "output": 1}), "by of a fact must be null"),
    (edit("facts", 0, "lhs", to={"kind": "add"}), "a reduced tensor must be an object"),
    (edit("facts", 0, "lhs_index", 0, to=1.5), "an affine form is an integer or an object, not float"),
    (edit("stages", 0, to=3), "a stage must be an object of kind layout or algebra"),
    (edit(*LAYOUT, "kind", to="magic"), "a stage must be an object of kind layout or algebra"),
    (edit(*LAYOUT, "goal", to=9), "fact 9 of a stage does not exist"),
    (edit(*ALGEBRA, "goal", to=-1), "fact -1 of a stage does not exist"),
    (edit(*LAYOUT, "goal", to=True), "goal of a stage must be an integer"),
    (edit(*LAYOUT, "title", to=None), "title of a stage must be a string"),
    (edit(*LAYOUT, "symbols", 0, to=["q0"]), "a symbol of a stage is"),
    (edit(*LAYOUT, "premises", 0, to={"k": "axiom"}), "a premise of a layout stage has none of"),
    (edit(*LAYOUT, "premises", 0, "more", to=1), "a premise of a layout stage has none of"),
    (edit(*ALGEBRA, "classes", 1, to=["i", 2, 2]), "an index class is .* with distinct names"),
    (edit(*ALGEBRA, "trees", 0, to=["c0:%1"]), r"trees of a tensor are \[tensor, trees\]"),
    (edit(*ALGEBRA, "trees", 0, 1, 0, 0, to=[0, "i"]), "a piece of a tree is"),
    (edit(*ALGEBRA, "trees", 0, 1, 0, 0, to=[0, ["i"], [1], []]), "a piece of a tree is"),
    (edit(*ALGEBRA, "trees", 0, 1, 0, 0, to=[0, ["j"]]), "a piece of a tree names an unknown class"),
    (edit(*ALGEBRA, "trees", 0, 1, 0, 0, to=[0, ["i"], []]), "a piece of a tree has one stride per class"),
    (edit(*ALGEBRA, "cases", 0, to={}), "a case must be an object with exactly the keys"),
    (edit(*ALGEBRA, "cases", 0, "premises", 0, "e", to=["c0:%1"]), "an element is"),
    (edit(*ALGEBRA, "cases", 0, "premises", 0, "k", to="axiom"), "a premise of an algebra stage has none of"),
    (edit(*ALGEBRA, "cases", 0, "premises", 2, "lhs", to=[]), "a term has none of the documented shapes"),
]


@pytest.mark.parametrize(("change", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_proofs(proof: Proof, change: Callable[[Any], None], reason: str) -> None:
    document = json.loads(proof_bytes(proof))
    change(document)
    with pytest.raises(FormatError, match=reason):
        proof_from_json(document)


def test_terms_are_not_nested_without_end(proof: Proof) -> None:
    document = json.loads(proof_bytes(proof))
    term: Any = ["lit", "1"]
    for _ in range(300):
        term = ["neg", term]
    document["stages"][1]["cases"][0]["premises"][2]["lhs"] = term
    with pytest.raises(FormatError, match="a term is nested deeper than 200"):
        proof_from_json(document)


def test_malformed_verdicts() -> None:
    with pytest.raises(FormatError, match="a verdict must be an object"):
        verdicts_from_json({"format": "trainverify-bundle", "verdicts": [{}]})
