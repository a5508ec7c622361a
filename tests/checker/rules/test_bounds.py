"""Ranges of integers by the ops that compute them: what shows none, and what is no number at all.

Random programs are in ``tests/certificates/plan/test_bounds.py``.
"""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.writing import dumps
from checker.language.plan import Plan
from checker.reading.plan import read_plan
from checker.rules.bounds import Bounds
from tests.orchestrator.plans import alone


def of(make: str) -> tuple[int, int] | None:
    b = ProgramBuilder()
    n, x = b.input("n", "i64[4]"), b.input("x", "f32[4]")
    p = b.compare(n, 0, "GT")
    half = b.constant(0.5, "f32[4]")
    ups, downs = b.iota("i64[4]", 0) + 1, -b.iota("i64[4]", 0) - 2  # 1 to 4, and -5 to -2
    made: dict[str, Value] = {
        "float": x, "power": b.power(x, half), "literal": half, "truth": p,
        "absolute": b.abs(b.iota("i64[4]", 0)), "all": b.reduce(p, (0,), "and"),
        "one of them": b.iota("i64[4]", 0) + n,
        "sum of negative": b.reduce(-b.iota("i64[4]", 0), (0,), "add"),
        "sum": ups + downs, "difference": ups - downs, "product": ups * downs,
        "larger": b.maximum(ups, downs), "smaller": b.minimum(ups, downs),
    }  # fmt: skip
    b.output("out", made[make])
    plan: Plan = read_plan(dumps(alone(b)))
    return Bounds(plan).of("s", plan.spec.outputs["out"])


@pytest.mark.parametrize("make", ["float", "power", "literal", "truth", "absolute", "all", "one of them"])
def test_what_shows_no_range(make: str) -> None:
    assert of(make) is None


def test_a_sum_of_negative_numbers_counts_them() -> None:
    assert of("sum of negative") == (-12, 0)


@pytest.mark.parametrize(
    ("make", "ends"),
    [
        ("sum", (-4, 2)),
        ("difference", (3, 9)),
        ("product", (-20, -2)),
        ("larger", (1, 4)),
        ("smaller", (-5, -2)),
    ],
)
def test_each_end_is_made_of_the_right_ends(make: str, ends: tuple[int, int]) -> None:
    assert of(make) == ends
