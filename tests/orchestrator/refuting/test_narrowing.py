"""A broadcast over shards is named as the collective after which rows are gone, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.refuting.diagnose import diagnose
from orchestrator.refuting.narrowing import Narrowing
from orchestrator.refuting.scenarios import random_inputs
from orchestrator.refuting.search import search
from orchestrator.refuting.standing import contents

from ..plans import pair

Take = Callable[[ProgramBuilder, Value, int], Value]


def first(b: ProgramBuilder, whole: Value, rows: int) -> Value:
    """The rows of the first rank, on every rank: what a broadcast from it leaves."""
    return whole[:rows]


def own(b: ProgramBuilder, whole: Value, rows: int) -> Value:
    """Each rank its own rows again."""
    return b.slice(whole, [b.axis_index("dp").scale(rows)], [rows])


def everything(b: ProgramBuilder, whole: Value, rows: int) -> Value:
    return whole


def gathered(take: Take, dtype: str = "f32", spec: Take | None = None, rows: int = 8, ranks: int = 2) -> Plan:
    """Shards are gathered, some of the rows are taken, and arithmetic is done on those."""

    def right(s: ProgramBuilder) -> None:
        x = s.input("x", f"{dtype}[{rows}]")
        taken = s.convert(x if spec is None else spec(s, x, rows // ranks), "f32")
        s.output("y", taken * taken)

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", f"{dtype}[{rows // ranks}]")
        taken = b.convert(take(b, b.all_gather(x, "dp"), rows // ranks), "f32")
        b.output("y", taken * taken)

    cut = {"dp": Shard(0)}
    outputs = {"y": {} if take is everything or spec else cut}
    return pair({"dp": ranks}, right, plan, {"x": cut}, outputs, {"x": (0, 50)} if dtype == "i64" else None)


def named(plan: Plan) -> str | None:
    """The name of the narrowing collective before the only output of the first rank."""
    narrowing = Narrowing.of(plan, random_inputs(plan, random.Random(3)), Fraction(3), contents)
    (output,) = plan.classes[0].program.outputs.values()
    op = narrowing.before(0, output)
    return None if op is None else op.name


@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_a_broadcast_over_shards_is_named(dtype: str) -> None:
    """Shards are told apart whatever the kind of the input."""
    assert named(gathered(first, dtype)) == "all_gather"


@pytest.mark.parametrize("take", [own, everything])
def test_ranks_that_together_keep_all_rows_lose_nothing(take: Take) -> None:
    assert named(gathered(take)) is None


def test_what_the_specification_takes_too_is_not_lost() -> None:
    """The model itself uses the first half only."""
    assert named(gathered(first, spec=first)) is None


def test_rows_that_are_added_up_are_received() -> None:
    """Only moved data counts: a sum holds other numbers than its summands, and loses none of them."""
    plan = pair(
        {"dp": 2},
        lambda s: s.output("y", s.input("x", "f32[8]").sum()),
        lambda b: b.output("y", b.all_gather(b.input("x", "f32[4]"), "dp").sum()),
        {"x": {"dp": Shard(0)}},
        {"y": {}},
    )
    assert named(plan) is None


def test_a_collective_on_which_the_value_does_not_rest_is_not_named() -> None:
    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4]")
        other = first(b, b.all_gather(x, "dp"), 4)
        b.output("y", x * x)
        b.output("z", other * other)

    def right(s: ProgramBuilder) -> None:
        x = s.input("x", "f32[8]")
        s.output("y", x * x)
        s.output("z", x * x)

    cut = {"dp": Shard(0)}
    both = pair({"dp": 2}, right, plan, {"x": cut}, {"y": cut, "z": cut})
    narrowing = Narrowing.of(both, random_inputs(both, random.Random(3)), Fraction(3), contents)
    outputs = both.classes[0].program.outputs
    assert narrowing.before(0, outputs["y"]) is None
    lost = narrowing.before(1, outputs["z"])
    assert lost is not None and lost.name == "all_gather"


def test_many_shards_are_told_apart_as_far_as_blocks_go() -> None:
    """Thirty-two shards, sixteen blocks: one of them is less than all."""
    assert named(gathered(first, rows=64, ranks=32)) == "all_gather"


def halves(b: ProgramBuilder, whole: Value, rows: int) -> Value:
    """The rows of the first rank again, in two parts: no single edit gives each rank its own."""
    half = rows // 2
    lower = b.slice(whole, [0], [half])
    upper = b.slice(whole, [half], [rows - half])
    return b.concatenate([lower, upper], 0)


def test_the_user_is_shown_the_line_of_the_collective() -> None:
    """All values have counterparts, in other rows; the gather is where the rows were lost."""
    plan = gathered(halves)
    witness = search(plan)
    assert witness is not None
    cause = diagnose(plan, witness, 30.0, lambda plan, outputs: False)
    assert cause is not None and cause.op.name == "all_gather" and cause.suggestion == ""
    assert "test_narrowing.py" in cause.describe(plan)
    assert "after it the ranks hold less of the tensor than they gave" in cause.what


def test_a_window_that_one_edit_sets_right_is_the_cause_itself() -> None:
    """The gather is right then: each rank takes the wrong rows of it."""
    plan = gathered(first)
    witness = search(plan)
    assert witness is not None
    cause = diagnose(plan, witness, 30.0, lambda plan, outputs: False)
    assert cause is not None and cause.op.name == "slice" and "test_narrowing.py" in cause.describe(plan)
