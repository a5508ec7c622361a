"""Proved facts in order, and what each rests on, however far below."""

from __future__ import annotations

from certificates.plan.affine import Affine
from certificates.proof.stages import AlgebraStage, Case, ElemHyp, Hyp, LayoutStage
from orchestrator.proving.proved import Proved


def layout(goal: int, *rests: int) -> LayoutStage:
    return LayoutStage(goal, "", (), (Hyp(rests, (Affine(),)),) if rests else ())


def test_a_fact_rests_on_all_that_its_proof_uses() -> None:
    proved = Proved()
    proved.put(5, layout(5, 0))
    case = Case((), (ElemHyp(5, ()), ElemHyp(1, ())))
    proved.put(7, AlgebraStage(7, "", {}, {}, (), (case,)))
    assert proved.uses(7) == [5, 1] and proved.uses(0) == ()
    assert proved.needed([7]) == {7, 5, 1, 0}
    assert proved.needed([5]) == {5, 0}
    assert proved.order == [5, 7]


def test_assumptions_are_what_has_no_proof_of_its_own() -> None:
    """A caller of a function must prove these, and no others."""
    proved = Proved()
    proved.put(2, layout(2, 0, 1))
    proved.put(3, layout(3, 2, 1))
    proved.put(4, layout(4))
    assert proved.assumptions(3) == {0, 1}
    assert proved.assumptions(4) == frozenset()
    assert proved.assumptions(0) == {0}, "what is declared rests on itself"


def test_a_chain_of_thousands_needs_no_deep_stack() -> None:
    proved = Proved()
    for n in range(1, 5000):
        proved.put(n, layout(n, n - 1))
    assert proved.assumptions(4999) == {0}
