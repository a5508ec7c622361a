"""Where a specification op may be read, and what makes two sides one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.plan.affine import Affine
from orchestrator.relating.knowledge import Knowledge
from orchestrator.spanning.expansion import Expansion
from orchestrator.spanning.partners import Attempt
from orchestrator.spanning.terms import Leaf, Sum, Term
from smtlib_emit.model import Model

from ..plans import every_op


def attempt(kind: str) -> Attempt:
    return Attempt(Expansion(Knowledge(Model(every_op())), kind))


def term(name: str, coef: int = 1) -> Term:
    return Term(Fraction(coef), (Leaf(f"s:{name}", (Affine.symbol("k"),)),), {"k": (0, 5)})


def ratio(kind: str, plan: Sum, spec: Sum) -> Fraction | None:
    return attempt(kind).ratio(plan, spec)


def test_a_sum_counts_its_terms_and_a_maximum_does_not() -> None:
    once, twice = [term("x"), term("y")], [term("x"), term("y"), term("x")]
    assert ratio("add", once, once) == 1 and ratio("add", twice, once) is None
    assert ratio("max", twice, once) == 1 and ratio("min", once, [term("x")]) is None


@pytest.mark.parametrize(("factor", "found"), [(3, True), (-3, False), (0, False)])
def test_a_maximum_is_a_positive_multiple_or_none(factor: int, found: bool) -> None:
    scaled = [term("x", factor), term("y", factor)]
    assert ratio("max", scaled, [term("x"), term("y")]) == (factor if found else None)
    if factor:
        assert ratio("add", scaled, [term("x"), term("y")]) == factor


def test_a_zero_is_a_member_of_a_maximum() -> None:
    zero = Term(Fraction(0))
    assert ratio("max", [term("x"), zero], [term("x"), zero]) == 1
    assert ratio("max", [term("x"), zero], [term("x")]) is None
    assert ratio("add", [term("x"), zero], [term("x")]) == 1
