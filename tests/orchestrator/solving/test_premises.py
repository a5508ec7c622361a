"""Without a solver nothing is chosen and nothing is shown."""

from __future__ import annotations

from orchestrator.solving.premises import AllPremises, premises

TEXT = """\
(set-logic QF_UFLRA)
(declare-fun e0 () Real)
(declare-fun e1 () Real)
(assert (! (= e1 2.0) :named def.1))
(assert (! (= e0 1.0) :named def.2))
(assert (! (not (= e0 1.0)) :named goal))
(check-sat)
"""


def test_without_a_solver_every_premise_is_kept() -> None:
    assert premises(TEXT) == 2 and AllPremises().core(TEXT) == (0, 1)
