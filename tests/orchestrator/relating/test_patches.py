"""Labels and padding, told apart by who counts them."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact
from orchestrator.proving.engine import Engine

from ..oracle import Numbers
from ..plans import CORES, pair, unproved

LABELS = {"batch.labels": (0, 10)}


def literal_facts(engine: Engine) -> list[Fact]:
    return [f for f in engine.knowledge.facts if isinstance(f.rhs, str) and f.rhs.startswith("#")]


def next_tokens(padding: int = 1, *, all_rows: bool = False) -> Plan:
    """Labels shifted by one place, padding behind them, and a mean over those that are none."""

    def write(b: ProgramBuilder, rows: int, padding: int, all_rows: bool) -> None:
        x, labels = b.input("x", f"f32[{rows * 8}]"), b.input("batch.labels", f"i64[{rows},8]")
        more = b.constant(-100, f"i64[{rows},{padding}]")
        shifted = b.slice(b.concatenate([labels, more], 1), (0, padding), (rows, 8)).reshape(rows * 8)
        valid = b.compare(shifted, -100, "NE")
        count = b.convert(b.convert(valid, "i64").sum(), "f32")
        total = b.select(valid, b.tanh(x), b.constant(0, x.type)).sum()
        weight = 1 / (b.constant(rows * 8, "f32[]") if all_rows else count)
        b.output("gradient", b.select(valid, b.broadcast(weight, x.shape), b.constant(0, x.type)) * x * rows)
        b.output("loss", total / count)

    dp = {"dp": Shard(0)}
    return pair(
        {"dp": 2}, lambda s: write(s, 6, 1, False), lambda b: write(b, 3, padding, all_rows),
        {"x": dp, "batch.labels": dp}, {"gradient": dp}, LABELS,
    )  # fmt: skip


def test_labels_and_padding_are_counted() -> None:
    """Of 24 places on a rank 21 have a label: ranks' means are means of equally many."""
    engine = Engine(next_tokens(), CORES)
    engine.relate()
    assert {"#i:42", "#i:21", "#f:1/42", "#f:1/21"} <= {str(f.rhs) for f in literal_facts(engine)}
    numbers = Numbers(engine.plan)
    assert [text for f in literal_facts(engine) if (text := numbers.failure(f))] == []
    assert unproved(engine.plan) == []


@pytest.mark.parametrize("plan", [next_tokens(2), next_tokens(all_rows=True)], ids=["two places", "all rows"])
def test_another_count_is_not_proved(plan: Plan) -> None:
    assert unproved(plan)
