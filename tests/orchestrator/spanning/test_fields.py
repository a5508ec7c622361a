"""Laws of exponentials, logarithms and quotients: each right plan is proved, its wrong twin is not."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

import trainverify
from certificates.plan.affine import Affine
from orchestrator.relating.knowledge import Knowledge
from orchestrator.spanning.fields import lawful, ratio
from orchestrator.spanning.terms import Call, Leaf, Term
from smtlib_emit.model import Model
from trainverify import Kind

from ..plans import every_op, unproved
from .field_plans import ALL


@pytest.mark.parametrize("name", ALL)
def test_a_right_plan_is_proved_and_its_wrong_twin_is_not(name: str) -> None:
    assert unproved(ALL[name](True)) == []
    assert unproved(ALL[name](False))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_checker_says_so_too(name: str, tmp_path: Path) -> None:
    right = trainverify.verify(ALL[name](True), out=tmp_path / "right")
    wrong = trainverify.verify(ALL[name](False), out=tmp_path / "wrong")
    assert (right.kind, wrong.kind) == (Kind.PROVED, Kind.REFUTED), right.report + wrong.report
    assert "field" in right.report


X, Y = Leaf("s:x", (Affine.symbol("i"),)), Leaf("s:y", (Affine.symbol("i"),))


def exp(*terms: tuple[Leaf, int]) -> Call:
    return Call("exponential", (tuple(((leaf,), Fraction(c)) for leaf, c in terms),))


def test_what_the_law_could_speak_of() -> None:
    assert lawful([Term(Fraction(1), (X, exp((Y, 1))))])
    assert lawful([Term(Fraction(1), (Call("tanh", ((((exp((X, 1)),), Fraction(1)),),)),))])
    assert not lawful([Term(Fraction(1), (X, Call("tanh", ((((Y,), Fraction(1)),),))))])


def test_sums_are_compared_as_quotients() -> None:
    known = Knowledge(Model(every_op()))
    product = [Term(Fraction(3), (exp((X, 1)), exp((Y, -1))))]
    assert ratio(product, [Term(Fraction(1), (exp((X, 1), (Y, -1)),))], known) == 3
    assert ratio(product, [Term(Fraction(1), (exp((X, 1), (Y, 1)),))], known) is None
