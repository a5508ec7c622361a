"""Without a solver nothing is chosen and nothing is shown."""

from __future__ import annotations

from orchestrator.solving.premises import AllPremises, premises, with_ranges

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


def places(count: int) -> str:
    """An equation of ``count`` digits, their ranges, and a goal."""
    digits = [f"q{i}" for i in range(count)]
    ranges = [f"(assert (! (and (<= 0 {q}) (< {q} 4)) :named bound.{i + 2}))\n" for i, q in enumerate(digits)]
    equation = f"(assert (! (=> (< q0 3) (= q0 (+ {' '.join(digits)}))) :named bound.1))\n"
    return f"(set-logic QF_UFLIA)\n{equation}{''.join(ranges)}(assert (! (not (= q0 q1)) :named goal))\n"


def test_an_equation_of_places_keeps_ranges_where_three_digits_would_have_none() -> None:
    """Without them a second solver may search for minutes."""
    assert with_ranges(places(4), (0, 1)) == (0, 1, 2, 3, 4)
    assert with_ranges(places(4), (0, 1, 4)) == (0, 1, 4)
    assert with_ranges(places(2), (0,)) == (0,)
    assert with_ranges(places(4), (1,)) == (1,)  # no equation is needed
    assert with_ranges(TEXT, (0,)) == (0,)
