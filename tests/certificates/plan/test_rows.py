"""Packed rows mean what they do when they run: lowered programs against buffers, sorted, cut and sent."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.authoring.packing import Rows
from certificates.errors import FormatError
from certificates.plan.ops import PACKED
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.rows import has_rows
from certificates.plan.writing import dumps
from certificates.showing.plan_text import program_text
from checker.reading import rows as checked
from orchestrator.evaluating import interpreter, scatter
from tests.orchestrator.plans import unproved
from tests.packed_plans import dispatch
from tests.packed_runs import Run


def differ(plan: Plan, seed: int, keys: np.ndarray | None = None) -> list[object]:
    """Outputs of the plan as it runs that are not the specification's, which has no rows."""
    rng = np.random.default_rng(seed)
    inputs = scatter.random_inputs(plan, rng) | ({} if keys is None else {"keys": keys})
    spec = interpreter.run_specification(plan, inputs)
    ranks = Run(plan, scatter.scatter_inputs(plan, inputs, rng), rng).outputs()
    plain = interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng))
    return [
        *scatter.compare_outputs(plan, spec, ranks, 1e-9),
        *scatter.compare_outputs(plan, spec, plain, 1e-9),
    ]


@pytest.mark.parametrize(("ranks", "slots", "per"), [(1, 3, 3), (2, 2, 1), (2, 2, 2), (3, 1, 2)])
def test_all_routings_of_few_rows(ranks: int, slots: int, per: int) -> None:
    """Experts with no row, ranks that get nothing or all, rows that stay."""
    plan = dispatch(ranks, slots, per)
    for n, keys in enumerate(itertools.product(range(ranks * per), repeat=ranks * slots)):
        assert differ(plan, n, np.array(keys)) == []


def test_random_routings_of_more_rows() -> None:
    plan = dispatch(4, 6, 3)
    assert [seed for seed in range(150) if differ(plan, seed)] == []


@pytest.mark.slow
def test_many_random_routings() -> None:
    """5,000 of three shapes, half of them with few keys in use; more in ``bench/routings.py``."""
    for ranks, slots, per, count in ((2, 5, 2, 2000), (4, 3, 1, 2000), (2, 8, 4, 1000)):
        plan = dispatch(ranks, slots, per)
        for seed in range(count):
            used = np.random.default_rng(seed).choice(ranks * per, 1 + seed % (ranks * per))
            keys = np.random.default_rng(seed + 1).choice(used, ranks * slots)
            assert differ(plan, seed, keys) == [], (ranks, slots, per, seed)


def rowwise(b: ProgramBuilder, ranks: bool) -> None:
    """Every kind of op on rows, before and after weights by key were applied to them."""
    slots, per = (4, 2) if ranks else (8, 4)
    x, w = b.input("x", f"f32[{slots},4]"), b.input("w", f"f32[{per},4,6]")
    v, m, keys = b.input("v", f"f32[{per},3,4]"), b.input("m", "f32[4,4]"), b.input("keys", f"i64[{slots}]")
    order = Rows.sorted(b, keys, 4)
    arrived = order.shipped("ep") if ranks else order
    grouped = arrived.regrouped() if ranks else order
    p = grouped.regroup(arrived.ship(order.pack(x))) if ranks else order.pack(x)
    p = b.logistic(p @ m) + 1
    norm = b.broadcast(b.sqrt((p * p).sum(1)), p.shape, (0,))
    p = b.concatenate([p[:, 2:], (p / norm)[:, :2]], 1)
    p = b.reshape(b.reshape(p, (p.shape[0], 2, 2)), p.shape)
    h = grouped.dot(p, w)
    gate, up = h[:, :3], h[:, 3:]
    a = b.select(b.compare(gate, up, "GT"), b.logistic(gate) * up, b.concatenate([up[:, 1:], p[:, :1]], 1))
    a = a - b.broadcast(b.reduce(a, (1,), "max"), a.shape, (0,))
    a = a + b.broadcast(b.constant(2, "f32[3]"), a.shape, (1,))
    out = b.exponential(b.tanh(grouped.dot(a, v)))
    scaled = arrived.ship_back(grouped.ungroup(out)) * 2 if ranks else out * 2
    b.output("y", order.unpack(scaled))
    untouched = b.exponential(arrived.ship_back(grouped.ungroup(p))) if ranks else b.exponential(p)
    b.output("z", order.unpack(untouched))
    b.output("g", grouped.outer(a, p))
    b.output("h", grouped.outer(p, out))


def everything() -> Plan:
    s, b, at = ProgramBuilder(), ProgramBuilder({"ep": 2}), {"ep": Shard(0)}
    rowwise(s, False)
    rowwise(b, True)
    return build_plan(
        name="rowwise", mesh={"ep": 2}, specification=s.build(), classes=b.build(),
        inputs={"x": at, "w": at, "v": at, "m": {"ep": Replicate()}, "keys": at},
        outputs={"y": at, "z": at, "g": at, "h": at}, ranges={"keys": (0, 4)}, given=["x", "keys"],
    )  # fmt: skip


def test_every_op_that_acts_on_rows_one_by_one() -> None:
    """Also where a row is not there on a rank and its value, had it been, is not zero."""
    plan = everything()
    assert [seed for seed in range(40) if differ(plan, seed)] == []


def test_the_small_dispatch_is_proved() -> None:
    assert unproved(dispatch()) == []


def test_files_have_the_ops_as_they_were_written() -> None:
    plan = dispatch()
    again = loads(dumps(plan))
    assert dumps(again) == dumps(plan) and b"ragged_dot" in dumps(plan)
    assert again == plan and again.version == 3
    assert any("ship_back" in line for line in program_text("c0", again.classes[0].program))
    assert not has_rows(again.classes[0].program.ops)


def test_both_sides_have_one_table() -> None:
    assert {op: (n, " ".join(a)) for op, (n, a) in PACKED.items()} == checked.PACKED


def test_ops_that_were_changed_are_written_as_they_are() -> None:
    """A plan whose plain ops are edited is the edited one, not what it was made from."""
    program = dispatch().classes[0].program
    edited = replace(program, ops=program.ops[:-1])
    assert edited.rows is None and edited.written == edited.ops


def test_a_value_that_is_no_group_of_ranks_sends_nothing() -> None:
    b = ProgramBuilder({"ep": 2}, time={"mb": 2})
    order = Rows.sorted(b, b.input("keys", "i64[4]"), 4)
    order.shipped("mb")
    with pytest.raises(FormatError, match="no group of ranks along axes"):
        b.build()
