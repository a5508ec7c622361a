"""What the ops of an integer tensor show of its range; the checker's own rule says the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.bounds import MAX_DEEP, Bounds
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Piece, Plan, Relation
from certificates.plan.writing import dumps
from checker.reading.plan import read_plan
from checker.rules import bounds as checked
from orchestrator.evaluating.interpreter import evaluate_ranks
from tests.orchestrator.plans import alone, pair, unproved


def both(plan: Plan, space: str, value: str) -> tuple[int, int] | None:
    """The range that producer and checker agree on."""
    ours = Bounds(plan).of(space, value)
    assert checked.Bounds(read_plan(dumps(plan))).of(space, value) == ours
    return ours


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("iota", (0, 5)), ("constant", (3, 3)), ("select", (0, 5)), ("least", (0, 3)), ("most", (3, 5)),
        ("bool", (0, 1)), ("moved", (-2, 6)), ("added", (-4, 12)), ("free", None), ("largest", (-2, 6)),
        ("negated", (-6, 2)), ("less", (-8, 8)), ("times", (-12, 36)), ("sum", (-12, 36)), ("beside", None),
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
        "negated": -n, "less": n - n, "times": n * n, "sum": b.reduce(n, (0,), "add"), "beside": n + free,
    }  # fmt: skip
    b.output("out", made[op])
    plan = replace(alone(b), ranges={"n": (-2, 7)})
    assert both(plan, "s", plan.specification.outputs["out"]) == want


Step = Callable[[ProgramBuilder, Value, Value], Value]
#: Ops on two tensors i64[4] of ranks of two.
STEPS: dict[str, Step] = {
    "add": lambda b, x, y: x + y,
    "subtract": lambda b, x, y: x - y,
    "negate": lambda b, x, y: -x,
    "multiply": lambda b, x, y: x * y,
    "maximum": lambda b, x, y: b.maximum(x, y),
    "minimum": lambda b, x, y: b.minimum(x, y),
    "select": lambda b, x, y: b.select(b.compare(x, y, "GT"), x, y),
    "count": lambda b, x, y: b.convert(b.compare(x, y, "LE"), "i64"),
    "place": lambda b, x, y: x + b.iota("i64[4]", 0),
    "rank": lambda b, x, y: x + b.broadcast(b.constant(Affine.symbol("dp").scale(3) - 1, "i64[]"), (4,), ()),
    "reduce": lambda b, x, y: b.broadcast(b.reduce(x, (0,), "add"), (4,), ()),
    "largest": lambda b, x, y: b.broadcast(b.reduce(x, (0,), "max"), (4,), ()),
    "turned": lambda b, x, y: b.concatenate([x[2:], y[:2]], 0),
    "all_reduce": lambda b, x, y: b.all_reduce(x, "dp"),
    "least": lambda b, x, y: b.all_reduce(x, "dp", "min"),
    "all_gather": lambda b, x, y: b.all_gather(x, "dp")[2:6],
    "reduce_scatter": lambda b, x, y: b.reduce_scatter(b.concatenate([x, y], 0), "dp"),
    "all_to_all": lambda b, x, y: b.all_to_all(x, "dp", 0, 0),
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)), max_size=7),
    st.integers(-3, 3), st.integers(1, 4), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_no_element_is_out_of_its_range(
    steps: list[tuple[str, int, int]], low: int, size: int, seed: int
) -> None:
    spec, b = ProgramBuilder(), ProgramBuilder({"dp": 2})
    spec.output("n", spec.input("n", "i64[8]"))
    made = [b.input("n", "i64[4]")]
    for name, left, right in steps:
        made.append(STEPS[name](b, made[left % len(made)], made[right % len(made)]))
    b.output("n", made[0])
    program = b.build()
    plan = build_plan(
        name="integers", mesh={"dp": 2}, specification=spec.build(), classes=program,
        inputs={"n": {"dp": Shard(0)}}, outputs={"n": {"dp": Shard(0)}}, ranges={"n": (low, low + size)},
    )  # fmt: skip
    random = np.random.default_rng(seed)
    given_ = [{"n": random.integers(low, low + size, 4)} for _ in range(2)]
    ours, theirs = Bounds(plan), checked.Bounds(read_plan(dumps(plan)))
    for env in evaluate_ranks(plan, given_):
        for name, numbers in env.items():
            ends = ours.of("c0", name)
            assert theirs.of("c0", name) == ends
            if ends is not None:
                assert ends[0] <= numbers.min() and numbers.max() <= ends[1]
    assert all(ours.of("c0", value.name) is not None for value in made), "each of these ops shows a range"


def test_a_sum_over_ranks_has_no_range_that_a_rank_knows() -> None:
    spec, b = ProgramBuilder(), ProgramBuilder({"dp": 2})
    spec.output("n", spec.input("n", "i64[4]"))
    b.output("n", b.all_reduce(b.input("n", "i64[4]"), "dp"))
    plan = build_plan(
        name="given", mesh={"dp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"n": {"dp": Replicate()}}, outputs={"n": {"dp": Replicate()}}, ranges={"n": (0, 4)},
    )  # fmt: skip
    z = Affine.symbol("z0")
    piece = Piece("c0", (4,), (z,), (z,))
    summed = Relation("n", "n", (piece,), Fraction(1), ("add", ("dp",)))
    assert both(plan, "c0", "n") == (0, 3)
    assert both(replace(plan, inputs=(summed,)), "c0", "n") is None


def test_a_range_is_followed_through_so_many_ops() -> None:
    def deep(count: int) -> tuple[int, int] | None:
        b = ProgramBuilder()
        value = b.input("n", "i64[4]")
        for _ in range(count):
            value = b.reshape(b.reshape(value, (2, 2)), (4,))
        b.output("out", value)
        plan = replace(alone(b), ranges={"n": (0, 4)})
        return both(plan, "s", plan.specification.outputs["out"])

    assert deep(MAX_DEEP // 2) == (0, 3)
    assert deep(MAX_DEEP // 2 + 1) is None


def test_a_row_at_a_number_that_is_counted_is_looked_up() -> None:
    """The last token of each sequence: in range by the number of tokens, and else no stage."""

    def last(start: int) -> Callable[[ProgramBuilder], None]:
        def write(b: ProgramBuilder) -> None:
            h = b.input("h", "f32[4,3]" if start == 0 else "f32[2,3]")
            used = b.convert(b.compare(h, 0, "GT"), "i64")
            counted = b.reduce(used, (1,)) - 1
            places = b.maximum(counted, b.broadcast(b.constant(0, "i64[]"), counted.shape, ()))
            picked = b.gather(h, b.reshape(places, (*places.shape, 1)), 1, 1)
            b.output("picked", b.exponential(picked))

        return write

    rows = {"h": {"dp": Shard(0)}}, {"picked": {"dp": Shard(0)}}
    plan = pair({"dp": 2}, last(0), last(1), *rows)
    assert Bounds(plan).of("s", plan.specification.outputs["picked"]) is None
    assert not unproved(plan)
