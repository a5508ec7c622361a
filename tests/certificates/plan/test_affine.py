"""Affine forms: algebra, intervals, and the JSON normal form."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates.errors import FormatError
from certificates.plan.affine import ZERO, Affine

SYMBOLS = ("dp", "tp", "z0")
forms = st.builds(
    Affine.of, st.integers(-50, 50), st.dictionaries(st.sampled_from(SYMBOLS), st.integers(-9, 9))
)
values = st.fixed_dictionaries({s: st.integers(-20, 20) for s in SYMBOLS})


@given(forms, forms, values, st.integers(-5, 5))
def test_operations_are_pointwise(a: Affine, b: Affine, at: dict[str, int], k: int) -> None:
    x, y = a.evaluate(at), b.evaluate(at)
    assert (a + b).evaluate(at) == x + y
    assert (a - b).evaluate(at) == x - y
    assert (a + k).evaluate(at) == x + k
    assert a.scale(k).evaluate(at) == k * x
    assert (a - a) == ZERO


@given(forms, forms, values)
def test_substitution_is_evaluation_in_two_steps(a: Affine, b: Affine, at: dict[str, int]) -> None:
    assert a.substitute({"dp": b}).evaluate(at) == a.evaluate(at | {"dp": b.evaluate(at)})


@given(forms, st.fixed_dictionaries({s: st.tuples(st.integers(-3, 3), st.integers(1, 4)) for s in SYMBOLS}))
def test_interval_is_exact(a: Affine, spans: dict[str, tuple[int, int]]) -> None:
    ranges = {s: (lo, lo + n) for s, (lo, n) in spans.items()}
    points = itertools.product(*(range(*ranges[s]) for s in SYMBOLS))
    reached = [a.evaluate(dict(zip(SYMBOLS, p, strict=True))) for p in points]
    assert a.interval(ranges) == (min(reached), max(reached))


@given(forms)
def test_json_round_trip(a: Affine) -> None:
    assert Affine.from_json(a.to_json()) == a


@given(forms, values)
def test_text_reads_as_the_form(a: Affine, at: dict[str, int]) -> None:
    total, sign = 0, 1
    for token in str(a).replace("- ", "-").replace("+ ", "+").split():
        sign, body = (-1 if token[0] == "-" else 1), token.lstrip("+-")
        coef, _, symbol = body.rpartition("*")
        total += sign * (int(coef) if coef else 1) * (at[symbol] if symbol in at else int(symbol))
    assert total == a.evaluate(at)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (True, "not a boolean"),
        ("dp", "not str"),
        (None, "not NoneType"),
        ([1], "not list"),
        ({"dp": 0}, "coefficient of 'dp' in an affine form must be a non-zero integer"),
        ({"dp": "1"}, "must be a non-zero integer"),
        ({"dp": True}, "must be a non-zero integer"),
        ({"": 0, "dp": 1}, "coefficient of '' in an affine form must be a non-zero integer"),
        ({"": 3}, "without symbols must be written as an integer"),
        ({}, "without symbols must be written as an integer"),
    ],
)
def test_json_outside_the_normal_form_is_refused(data: object, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        Affine.from_json(data)
