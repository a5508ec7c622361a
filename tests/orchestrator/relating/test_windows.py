"""Look-ups at positions that overlap, in a table that is cut or not."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan
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


def test_windows_of_what_is_known_late_are_those_of_all_rows() -> None:
    """A second convolution reads what the first one gave: known after its look-ups were first asked about.

    Here the rows are sums that a rank adds up in two parts, so that no single op explains them.
    """

    def write(b: ProgramBuilder, rows: int, *, parts: bool) -> None:
        x, w = b.input("x", f"f32[{rows},4,6]"), b.input("w", "f32[3]")
        if parts:
            halves = [b.slice(x, [0, i, 0], [rows, 2, 6]) for i in (0, 2)]
            total = b.reduce(halves[0], (1,)) + b.reduce(halves[1], (1,))
        else:
            total = b.reduce(x, (1,))
        found = windows(b, b.exponential(total), 3)
        b.output("z", b.exponential(b.dot(found, w, ((2,), (0,)))))

    plan = pair(
        {"dp": 2},
        lambda b: write(b, 4, parts=False),
        lambda b: write(b, 2, parts=True),
        {"x": {"dp": Shard(0)}, "w": {"dp": Replicate()}},
        {"z": {"dp": Shard(0)}},
    )
    assert unproved(plan) == []
    engine = Engine(plan, CORES)
    engine.relate()
    assert about_windows(engine) == ["[dp, z0, z1, z2] = [2*dp + z0, z1, z2]"]


def test_the_plans_windows_are_one_fact() -> None:
    engine = Engine(convolution(4), CORES)
    engine.relate()
    assert about_windows(engine) == ["[dp, z0, z1, z2] = [2*dp + z0, z1, z2]"]


def about_windows(engine: Engine) -> list[str]:
    """What is known of the plan's look-up, in terms of the specification's."""
    known = engine.knowledge
    (ref,) = (r for r, op in engine.model.ops.items() if r.startswith("c0:") and op.name == "gather")
    (theirs,) = (o.out for o in engine.plan.specification.ops if o.name == "gather")
    said = [str(known.facts[n]).split(" for ")[0] for n in known.by_lhs[ref]]
    return [text.replace(ref, "").replace(f"s:{theirs}", "") for text in said]


def test_windows_at_other_positions_are_not() -> None:
    assert unproved(convolution(4, stride=2))


@pytest.mark.parametrize("copies", [[2, 2], [2, 3]])
def test_windows_of_what_is_put_together_are_those_of_all_rows(copies: list[int]) -> None:
    """A picture beside one of fewer rows and columns, each of which stands there several times."""

    def write(b: ProgramBuilder, rows: int, times: list[int]) -> None:
        down, right = times
        x, w = b.input("x", f"f32[{rows},1,4,6]"), b.input("w", "f32[3]")
        small = b.input("small", f"f32[{rows},1,2,{6 // copies[1]}]")
        wide = b.broadcast(small, (rows, 1, 2, down, 6 // right, right), (0, 1, 2, 4))
        both = b.concatenate([x, b.reshape(wide, (rows, 1, 4, 6))], 1)
        places = b.iota("i64[6,3]", 0) + b.iota("i64[6,3]", 1)
        found = b.gather(b.pad(both, [0, 0, 0, 1], [0, 0, 0, 1]), places, axis=3)
        b.output("y", b.exponential(b.dot(found, w, ((4,), (0,)))))

    plan = pair(
        {"dp": 2},
        lambda b: write(b, 4, copies),
        lambda b: write(b, 2, copies),
        {"x": {"dp": Shard(0)}, "small": {"dp": Shard(0)}, "w": {"dp": Replicate()}},
        {"y": {"dp": Shard(0)}},
    )
    assert unproved(plan) == []


@pytest.mark.parametrize(
    ("terms", "found"),
    [({"i": 1}, False), ({"i": 1, "k": 1}, True), ({"i": 3, "k": 1}, False), ({"i": 2, "k": 1}, True)],
)
def test_positions_overlap_where_one_is_two(terms: dict[str, int], found: bool) -> None:
    assert overlap(Affine.of(5, terms), {"i": (0, 4), "k": (0, 3)}) is found


def haloed(ranks: int, *, mistaken: bool = False) -> Plan:
    """Pieces of rows on some ranks, each with its neighbours' nearest elements, zeros at both ends.

    Windows of three; ``mistaken``: the second rank's left neighbour is the last one.
    """

    def spec(b: ProgramBuilder) -> None:
        x, w = b.input("x", "f32[2,12]"), b.input("w", "f32[3]")
        b.output("y", b.exponential(b.dot(windows(b, x, 3), w, ((2,), (0,)))))

    n, zeros = 12 // ranks, "f32[2,1]"
    classes = {}
    for rank in range(ranks):
        box = {"sp": (rank, rank + 1)}
        b = ProgramBuilder({"sp": ranks}, box=box)
        x, w = b.input("x", f"f32[2,{n}]"), b.input("w", "f32[3]")
        left = b.all_gather(b.slice(x, [0, n - 1], [2, 1]), "sp", 1)
        right = b.all_gather(b.slice(x, [0, 0], [2, 1]), "sp", 1)
        before = (ranks if mistaken and rank == 1 else rank) - 1
        own = [
            b.slice(left, [0, before], [2, 1]) if rank else b.constant(0, zeros),
            x,
            b.slice(right, [0, rank + 1], [2, 1]) if rank < ranks - 1 else b.constant(0, zeros),
        ]
        place = b.iota(f"i64[{n},3]", 0) + b.iota(f"i64[{n},3]", 1)
        found = b.gather(b.concatenate(own, 1), place, axis=1)
        b.output("y", b.exponential(b.dot(found, w, ((2,), (0,)))))
        classes[f"c{rank}"] = box, b.build()
    single = ProgramBuilder()
    spec(single)
    return build_plan(
        name="haloed", mesh={"sp": ranks}, specification=single.build(), classes=classes,
        inputs={"x": {"sp": Shard(1)}, "w": {"sp": Replicate()}}, outputs={"y": {"sp": Shard(1)}},
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3])
def test_windows_with_neighbours_elements_are_those_of_the_padded_whole(ranks: int) -> None:
    assert unproved(haloed(ranks)) == []


def test_windows_with_anothers_elements_are_not() -> None:
    assert unproved(haloed(3, mistaken=True))
