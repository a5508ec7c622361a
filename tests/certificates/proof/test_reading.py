"""Proofs: ``proof.json`` round trips, its reader's errors, and stages and bundles as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from certificates.canonical import canonical_bytes
from certificates.cli import main
from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.plan.writing import dump
from certificates.proof.facts import Fact, Reduced, relation_facts
from certificates.proof.reading import proof_from_json, verdicts_from_json
from certificates.proof.stages import (
    AlgebraStage,
    BoundIndex,
    BoundSymbol,
    BoundValue,
    Case,
    Def,
    Elem,
    ElemDef,
    ElemHyp,
    Hyp,
    InputRange,
    Law,
    LayoutStage,
    Proof,
)
from certificates.proof.writing import proof_bytes
from certificates.showing.proof_text import fact_text, stage_text, term_text

DP, Z0, Q0, V0 = (Affine.symbol(s) for s in ("dp", "z0", "q0", "v0"))


@pytest.fixture(scope="module")
def proof(mlp: Plan) -> Proof:
    """Not a valid proof: one of every kind of record, for their shape."""
    reduced = Reduced("add", ("dp",), ("c0:%6",))
    declared = relation_facts(mlp, mlp.inputs[0], "input", 0)[0]
    claimed = relation_facts(mlp, mlp.outputs[0], "output", 0)[0]
    lemma = Fact(reduced, "s:%5", (("tp", 0, 2),), (Affine.symbol("tp"),), (), Fraction(1, 2))
    layout = LayoutStage(
        1,
        "sum of the loss",
        (("q0", 0, 64), ("v0", None, None)),
        (
            BoundSymbol("q0"),
            BoundIndex("c0:%5", (DP, Z0), (DP, Q0.scale(4)), 0),
            BoundValue("s:batch.x", (Z0,), "v0"),
            Def("c0:%1", (DP, Z0)),
            Def("s:%3", (Z0,), (Q0,)),
            Hyp((0,), (DP, Z0, Q0), ("dp",)),
            InputRange("batch.x", (V0,)),
        ),
        "0001",
    )
    e = Elem("c0:%1", ((0, 1), (0,), (1, 0, 2)))
    law = Law("ring", ("+", e, Fraction(1, 3)), ("-", ("*", Fraction(2), e), ("mul", e, ("neg", e))))
    algebra = AlgebraStage(
        2,
        "tanh",
        {"i": (251, 1), "k": (4096, 2)},
        {
            "c0:%1": (((0, ("i",), (1,)), (251, ("k", "i"), (251, 1)), (0, ("i", "k"), (502, 2))),),
            reduced: (),
        },
        (("i",), ()),
        (Case(((0,), ()), (ElemDef(e), ElemHyp(0, (Z0,), "rhs"), law), "0002"), Case(((1,), ()), ())),
    )
    return Proof([declared, lemma, claimed], [layout, algebra])


def test_proofs_round_trip(proof: Proof) -> None:
    assert proof_from_json(json.loads(proof_bytes(proof))) == proof


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


def test_a_layout_stage(mlp: Plan, proof: Proof) -> None:
    lines = [line.split(" #")[0].rstrip() for line in stage_text(mlp, proof, 0)]
    hyp = (
        "    hyp    fact 0: c0:batch.x[dp, tp, z0, z1] = s:batch.x[3*dp + z0, z1] for dp in [0,2), "
        "tp in [0,2), z0 in [0,3), z1 in [0,4) (input relation 0) at (dp, z0, q0), add over dp"
    )
    assert lines == [
        "stage 0 layout: sum of the loss (7 premises)",
        "  proves fact 1: add[dp](c0:%6)[tp] = 1/2 * s:%5[] for tp in [0,2) (stage 0)",
        "  with q0 in [0,64), v0 (a value)",
        "  obligations/0001.smt2, from",
        "    bound  range of q0",
        "    bound  index of c0:%5[dp, z0] regrouped as [dp, 4*q0]",
        "    bound  v0 is s:batch.x[z0]",
        "    def    c0:%1[dp, z0]",
        "           %1 : f32[3,4] = tanh %0",
        "    def    s:%3[z0] from [q0]",
        "           %3 : f32[6,3] = subtract %2, batch.t",
        hyp,
        "    range  s:batch.x[v0]",
    ]


def test_an_algebra_stage(mlp: Plan, proof: Proof) -> None:
    lines = [line.split(" #")[0].rstrip() for line in stage_text(mlp, proof, 1)]
    element = "c0:%1[0:1, 0, 1:0.2]"
    assert lines[0] == "stage 1 algebra: tanh (2 cases, 3 premises)"
    assert lines[1].endswith("(stage 1; output relation 0)")
    assert lines[2:6] == [
        "  index classes: i has 251, 1 stand for them; k has 4096, 2 stand for them",
        "  case at (0, )",
        "    obligations/0002.smt2, from",
        f"      def    {element}",
    ]
    assert lines[7].startswith("      hyp    fact 0: ") and lines[7].endswith("at (z0), read as its rhs")
    assert lines[8] == (
        f"      law    ring: ({element} + 1/3) = (2 * {element} - mul({element}, neg({element})))"
    )
    with pytest.raises(TypeError, match="not a term"):
        term_text(3)


def test_facts_without_a_proof_say_so(proof: Proof) -> None:
    assert fact_text(Proof(proof.facts, []), 1).endswith("(not proved)")
    assert fact_text(Proof(proof.facts, []), 2).endswith("(not proved; output relation 0)")
    assert fact_text(proof, 12) == "fact 12, which does not exist"


MANIFEST = {
    "format": "trainverify-bundle",
    "verdicts": [
        {"spec": "loss", "plan": "loss", "verdict": "PROVED", "reason": ""},
        {"spec": "a", "plan": "b", "verdict": "UNKNOWN", "reason": "timeout\u001b"},
    ],
}


@pytest.fixture
def bundle(mlp: Plan, proof: Proof, tmp_path: Path) -> Path:
    dump(mlp, tmp_path / "plan.json")
    (tmp_path / "proof.json").write_bytes(proof_bytes(proof))
    (tmp_path / "manifest.json").write_bytes(canonical_bytes(MANIFEST))
    return tmp_path


def show(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def test_the_overview_of_a_bundle(bundle: Path) -> None:
    result = show(bundle)
    assert result.exit_code == 0
    assert "  PROVED   loss\n  UNKNOWN  b ~ a: timeout\\x1b\n" in result.stdout
    assert "2 stages, each proves one fact:\n  stage 0 layout: sum of the loss (7 premises)" in result.stdout


def test_one_stage_and_parts_of_the_plan_inside(bundle: Path, mlp: Plan, proof: Proof) -> None:
    result = show(bundle, "--stage", 1, "--op", "c0:%3")
    assert result.exit_code == 0 and result.stdout.startswith("class c0\n")
    assert result.stdout.endswith("\n".join(stage_text(mlp, proof, 1)) + "\n")


def test_stages_that_do_not_exist(bundle: Path) -> None:
    result = show(bundle, "--stage", 2)
    assert result.exit_code == 2 and "no stage 2; the bundle has 2" in result.stderr
    result = show(bundle / "plan.json", "--stage", 0)
    assert result.exit_code == 2 and "a plan has no stages" in result.stderr


@pytest.mark.parametrize(
    ("member", "content", "reason"),
    [
        ("plan.json", None, "No such file"),
        ("proof.json", None, "No such file"),
        ("manifest.json", b"{}", "not a trainverify-bundle manifest"),
        ("manifest.json", b"[", "not a JSON document"),
        ("proof.json", b"{}", "a proof must be an object"),
    ],
)
def test_damaged_bundles(bundle: Path, member: str, content: bytes | None, reason: str) -> None:
    (bundle / member).unlink()
    if content is not None:
        (bundle / member).write_bytes(content)
    result = show(bundle)
    assert result.exit_code == 5 and reason in result.stderr and result.stderr.count("\n") == 1


def test_malformed_verdicts() -> None:
    with pytest.raises(FormatError, match="a verdict must be an object"):
        verdicts_from_json({"format": "trainverify-bundle", "verdicts": [{}]})
