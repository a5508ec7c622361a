"""Layers that are cut in parts, whose weights FSDP gathers, and whose gradients it reduces, in one buffer."""

from __future__ import annotations

import pytest

import trainverify
from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.authoring.packing import Rows
from certificates.plan.ops import CALL, COLLECTIVES
from certificates.plan.placements import Placement, Replicate, Shard
from certificates.plan.plan import Plan
from orchestrator.outlining.outline import outline

from .test_packing import through_experts

TOKENS, WIDTH, KEYS, RANKS, LAYERS = 4, 4, 4, 2, 3
#: Enough for a repetition to be one, and for what stands alone to be none.
LONG, SHORT = 20, 10


def _long(b: ProgramBuilder, x: Value, count: int = LONG) -> Value:
    for _ in range(count):
        x = b.abs(x - 1)
    return x


def _gathered(b: ProgramBuilder, router: Value, scale: Value, wrong: str) -> tuple[Value, Value]:
    """Both weights from one buffer: first all of what one rank has, then what the other has."""
    half = WIDTH // RANKS
    flat = b.concatenate([router.reshape(half * KEYS), scale], 0)
    wide = b.all_gather(flat, "ep").reshape(RANKS, half * (KEYS + 1))
    first = half * KEYS - (wrong == "cut out a row too early")
    return wide[:, : half * KEYS].reshape(WIDTH, KEYS), wide[:, first : first + half].reshape(WIDTH)


def _keys(b: ProgramBuilder, scores: Value) -> tuple[Value, Value]:
    grid = scores.shape
    hit = b.compare(scores, b.broadcast(b.reduce(scores, (1,), "max"), grid, (0,)), "EQ")
    numbers = b.iota(f"i64[{grid[0]},{grid[1]}]", 1)
    return hit, b.reduce(b.select(hit, numbers, b.constant(0, numbers.type)), (1,), "max")


def _layer(b: ProgramBuilder, x: Value, number: int, ranks: int, wrong: str) -> tuple[Value, Value, Value]:
    """What comes out, the sums that stand for gradients, of the part before rows are packed and of the one
    behind, and how many tokens each key has."""
    part = WIDTH // ranks
    router = b.input(f"params.layers.{number}.router", f"f32[{part},{KEYS}]")
    scale = b.input(f"params.layers.{number}.scale", f"f32[{part}]")
    weights = b.input(f"params.layers.{number}.weights", f"f32[{KEYS // ranks},{WIDTH},{WIDTH}]")
    if ranks > 1:
        router, scale = _gathered(b, router, scale, wrong)
    x = _long(b, x)
    first = x.sum(0)
    hit, keys = _keys(b, b.dot(x, router, ((1,), (0,))))
    counts = b.constant(0, f"f32[{KEYS}]") + hit.convert("i64").sum(0).convert("f32")
    order = Rows.sorted(b, keys, KEYS)
    rows = through_experts(order, order.pack(x), weights, ranks)
    y = x + order.unpack(rows)
    y = _long(b, y * b.broadcast(scale, y.shape, (1,)))
    return y, b.concatenate([first, y.sum(0)], 0), counts


def _reduced(b: ProgramBuilder, sums: Value, wrong: str) -> tuple[Value, Value]:
    """Each rank's half of both sums, by one collective."""
    half = WIDTH // RANKS
    wide = sums.reshape(2, RANKS, half).transpose(1, 0, 2)
    if wrong == "halves of both sums in another order":
        wide = sums.reshape(RANKS, 2, half)
    mine = b.reduce_scatter(wide.reshape(RANKS * 2 * half), "ep")
    return mine[:half], mine[half:]


def _program(b: ProgramBuilder, ranks: int, wrong: str = "") -> ProgramBuilder:
    x = b.input("x", f"f32[{TOKENS * (RANKS // ranks)},{WIDTH}]")
    found, counts = [], []
    for number in range(LAYERS):
        x, sums, count = _layer(b, x, number, ranks, wrong)
        found.append((sums[:WIDTH], sums[WIDTH:]) if ranks == 1 else _reduced(b, sums, wrong))
        counts.append(count if wrong != "counts of another layer" or ranks == 1 else (counts or [count])[0])
    tokens = b.concatenate(counts, 0)
    b.output("counts", tokens if ranks == 1 else b.all_reduce(tokens, "ep"))
    for number, both in enumerate(found):
        made = [_long(b, both[0])] if ranks > 1 else [_long(b, both[0]), _long(b, both[1], SHORT)]
        b.output(f"layers.{number}.first", made[0])
        if ranks == 1:
            b.output(f"layers.{number}.last", made[1])
    for number, both in enumerate(found if ranks > 1 else ()):
        b.output(f"layers.{number}.last", _long(b, both[1], SHORT))
    b.output("y", x)
    return b


def stack(wrong: str = "") -> Plan:
    """Three layers; on ranks in the order in which frameworks have it: all first norms, then all others."""
    layers = range(LAYERS)
    params = {f"params.layers.{n}.{name}" for n in layers for name in ("router", "scale", "weights")}
    halves: dict[str, dict[str, Placement]] = {
        f"layers.{n}.{name}": {"ep": Shard(0)} for n in layers for name in ("first", "last")
    }
    return build_plan(
        name="buffers",
        mesh={"ep": RANKS},
        specification=_program(ProgramBuilder(), 1).build(),
        classes=_program(ProgramBuilder({"ep": RANKS}), RANKS, wrong).build(),
        inputs={"x": {"ep": Shard(0)}} | {name: {"ep": Shard(0)} for name in params},
        outputs={"y": {"ep": Shard(0)}, "counts": {"ep": Replicate()}} | halves,
    )


def test_weights_and_gradients_in_one_buffer_are_proved_in_parts() -> None:
    plan = outline(stack())
    assert plan.functions
    verdict = trainverify.verify(plan, jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report


def test_buffers_stand_outside_of_functions() -> None:
    plan = outline(stack())
    assert len(plan.functions) == 2
    bodies = [body for f in plan.functions.values() for body in f.classes.values()]
    assert not any(op.name in COLLECTIVES for body in bodies for op in body.ops)
    calls = [op for op in plan.classes[0].program.written if op.name == CALL]
    gathers = [op.out for op in plan.classes[0].program.written if op.name == "all_gather"]
    assert len(gathers) == LAYERS
    assert not any(v in gathers for op in calls for v in op.ins)  # what is cut out of them is


@pytest.mark.parametrize(
    "wrong",
    ["cut out a row too early", "halves of both sums in another order", "counts of another layer"],
)
def test_a_wrong_buffer_is_not_proved(wrong: str) -> None:
    verdict = trainverify.verify(outline(stack(wrong)), jobs=1)
    assert verdict.kind is trainverify.Kind.REFUTED, verdict.report
