"""A proof written by hand, for what reads, writes and shows proofs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Reduced, relation_facts
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
