"""Look-ups at positions that overlap, in a table that is cut or not."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from orchestrator.proving.engine import Engine
from orchestrator.relating.windows import overlap

from ..plans import CORES, pair, unproved


def windows(b: ProgramBuilder, x: Value, size: int, stride: int = 1) -> Value:
    """``y[row, place, k] = x[row, stride * place + k]`` of rows that are padded by one zero on both sides."""
    padded = b.pad(x, [0, 1], [0, 1])
    places = (x.shape[1] + 2 - size) // stride + 1
    first = b.iota(f"i64[{places},{size}]", 0) * b.constant(stride, f"i64[{places},{size}]")
    return b.gather(padded, first + b.iota(f"i64[{places},{size}]", 1), axis=1)


def convolution(rows: int, size: int = 3, other: int = 3, *, stride: int = 1, shard: int = 0) -> Plan:
    """Rows or channels over two ranks; the plan's windows start ``stride`` apart, the specification's one."""

    def write(b: ProgramBuilder, rows: int, size: int, stride: int) -> None:
        x, w = b.input("x", f"f32[{rows},6]"), b.input("w", "f32[3]")
        found = windows(b, x, size, stride)
        total = b.dot(b.slice(found, [0, 0, 0], [*found.shape[:2], 3]), w, ((2,), (0,)))
        b.output("y", b.exponential(b.slice(total, [0, 0], [rows, 3])))

    return pair(
        {"dp": 2},
        lambda b: write(b, rows, size, 1),
        lambda b: write(b, rows // 2, other, stride),
        {"x": {"dp": Shard(shard)}, "w": {"dp": Replicate()}},
        {"y": {"dp": Shard(0)}},
    )


def test_windows_of_a_ranks_rows_are_those_of_all_rows() -> None:
    assert unproved(convolution(4)) == []


def test_the_plans_windows_are_one_fact() -> None:
    engine = Engine(convolution(4), CORES)
    engine.relate()
    known = engine.knowledge
    (ref,) = (r for r, op in engine.model.ops.items() if r.startswith("c0:") and op.name == "gather")
    (theirs,) = (o.out for o in engine.plan.specification.ops if o.name == "gather")
    said = [str(known.facts[n]).split(" for ")[0] for n in known.by_lhs[ref]]
    assert said == [f"{ref}[dp, z0, z1, z2] = s:{theirs}[2*dp + z0, z1, z2]"]


def test_windows_at_other_positions_are_not() -> None:
    assert unproved(convolution(4, stride=2))


@pytest.mark.parametrize(
    ("terms", "found"),
    [({"i": 1}, False), ({"i": 1, "k": 1}, True), ({"i": 3, "k": 1}, False), ({"i": 2, "k": 1}, True)],
)
def test_positions_overlap_where_one_is_two(terms: dict[str, int], found: bool) -> None:
    assert overlap(Affine.of(5, terms), {"i": (0, 4), "k": (0, 3)}) is found
