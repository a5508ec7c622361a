"""Sums, products and scalars moved across contractions, collectives, classes and pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainverify
from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Shard
from orchestrator.proving.engine import Engine
from orchestrator.spanning import expansion, spans
from trainverify import Kind

from ..plans import CORES, pair, unproved
from .span_plans import ALL


@pytest.mark.parametrize("name", ALL)
def test_what_several_ops_show_together_is_proved(name: str) -> None:
    assert unproved(ALL[name](True)) == []


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_twin_is_not(name: str) -> None:
    assert unproved(ALL[name](False))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_checker_says_so_too(name: str, tmp_path: Path) -> None:
    right = trainverify.verify(ALL[name](True), out=tmp_path / "right")
    wrong = trainverify.verify(ALL[name](False), out=tmp_path / "wrong")
    assert (right.kind, wrong.kind) == (Kind.PROVED, Kind.REFUTED), right.report + wrong.report


@pytest.mark.parametrize(("moved", "proved"), [(1, True), (2, False)])
def test_an_index_summed_inside_is_not_the_one_outside(moved: int, proved: bool) -> None:
    """``x[i] * sum_i x[i] * n``, with the scalar inside or outside of the inner sum, or twice."""

    def write(b: ProgramBuilder, rows: int, *, inside: int, sums: bool) -> None:
        x, n = b.input("x", f"f32[{rows}]"), b.input("n", "f32[]")
        y = x
        for _ in range(inside):
            y = y * b.broadcast(n, y.shape)
        total = b.all_reduce(y.sum(), "dp") if sums else y.sum()
        out = x * b.broadcast(total, x.shape)
        b.output("y", out if inside else out * b.broadcast(n, x.shape))

    plan = pair(
        {"dp": 2},
        lambda b: write(b, 8, inside=0, sums=False),
        lambda b: write(b, 4, inside=moved, sums=True),
        {"x": {"dp": Shard(0)}, "n": {}},
        {"y": {"dp": Shard(0)}},
    )
    assert (unproved(plan) == []) is proved


def test_what_is_opened_in_vain_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain without any relation: each op would open all ops before it."""

    def write(b: ProgramBuilder, first: str) -> None:
        given = b.input("x", "f32[4]")
        x = getattr(b, first)(given)
        for _ in range(8):
            x = x + given
        b.output("y", x)

    def opened(most: int) -> tuple[int, int]:
        monkeypatch.setattr(spans, "MAX_IN_VAIN", most)
        monkeypatch.setattr(spans, "IN_VAIN_PER_OP", 0)
        monkeypatch.setattr(spans, "FEW_STEPS", 2)
        engine = Engine(
            pair({}, lambda b: write(b, "exponential"), lambda b: write(b, "logistic"), {"x": {}}, {"y": {}}),
            CORES,
        )
        engine.relate()
        return engine.relations.spans._in_vain, len(engine.plan.classes[0].program.ops)

    (few, ops), (many, _) = opened(5), opened(100_000)
    assert few <= 5 + expansion.MAX_STEPS + 3 * ops
    assert few < many / 2
