"""What the ops of an integer tensor show of its range; the checker's own rule says the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.keys import key_range
from certificates.plan.writing import dumps
from checker.reading.plan import read_plan
from checker.rules.rows import _bounds
from tests.orchestrator.plans import alone


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("iota", (0, 5)), ("constant", (3, 3)), ("select", (0, 5)), ("least", (0, 3)), ("most", (3, 5)),
        ("bool", (0, 1)), ("moved", (-2, 6)), ("added", None), ("free", None), ("largest", (-2, 6)),
    ],
)  # fmt: skip
def test_ranges_of_integers(op: str, want: tuple[int, int] | None) -> None:
    b = ProgramBuilder()
    n, free = b.input("n", "i64[6]"), b.input("free", "i64[6]")
    numbers, three = b.iota("i64[6]", 0), b.constant(3, "i64[6]")
    p = b.compare(n, 0, "GT")
    made = {
        "iota": numbers, "constant": three, "select": b.select(p, numbers, three), "free": free,
        "least": b.minimum(numbers, three), "most": b.maximum(numbers, three), "bool": b.convert(p, "i64"),
        "moved": b.concatenate([b.transpose(b.reshape(n, (2, 3)), (1, 0))[:2].reshape(4), n[:1]], 0),
        "added": n + n, "largest": b.reduce(b.broadcast(n, (6, 2), (0,)), (1,), "max"),
    }  # fmt: skip
    b.output("out", made[op])
    plan = replace(alone(b), ranges={"n": (-2, 7)})
    assert key_range(plan, "", plan.specification.outputs["out"], {}) == want
    value = plan.specification.outputs["out"]
    assert _bounds(read_plan(dumps(plan)), "s", value, {}, 0) == want
