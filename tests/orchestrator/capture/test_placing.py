"""From how ranks are cut to layouts."""

from __future__ import annotations

import pytest

from certificates.plan.affine import Affine
from certificates.plan.plan import Mesh, RankClass
from certificates.plan.program import Program
from orchestrator.capture.cutting import Cut
from orchestrator.capture.errors import LayoutError
from orchestrator.capture.origins import Part
from orchestrator.capture.placing import Placement, agree, compare, derive, pieces, told_apart

MESH = Mesh({"dp": 2, "tp": 2})
NOTHING = Program({}, (), {})


def cut(starts: tuple[int, ...], sizes: tuple[int, ...], source: str = "w") -> Cut:
    symbols = tuple(Affine.symbol(f"z{d}") for d in range(len(sizes)))
    part = Part(sizes, symbols, source, tuple(s + n for s, n in zip(symbols, starts, strict=True)))
    return Cut((part,), None, sizes)


@pytest.mark.parametrize(
    ("shards", "order", "boxes"),
    [
        ({}, (), [((0, 8), (0, 4))] * 4),
        ({"tp": 0}, ("tp",), [((0, 4), (0, 4)), ((4, 4), (0, 4))] * 2),
        ({"dp": 0, "tp": 1}, ("dp", "tp"), [((a, 4), (b, 2)) for a in (0, 4) for b in (0, 2)]),
        ({"dp": 0, "tp": 0}, ("tp", "dp"), [((a, 2), (0, 4)) for a in (0, 4, 2, 6)]),
        ({"dp": 0, "tp": 0}, ("dp", "tp"), [((a, 2), (0, 4)) for a in (0, 2, 4, 6)]),
    ],
    ids=str,
)
def test_a_layout_is_found_from_the_cuts_and_agrees_with_them(shards, order, boxes) -> None:
    placement = Placement(shards, order)
    assert [placement.box((8, 4), MESH, r) for r in range(4)] == boxes
    cuts = {r: cut(tuple(lo for lo, _ in box), tuple(n for _, n in box)) for r, box in enumerate(boxes)}
    compare("w", (8, 4), placement, MESH, cuts)
    found = derive("w", (8, 4), MESH, cuts)
    assert found is not None and [found.box((8, 4), MESH, r) for r in range(4)] == boxes
    assert len(found.order) == len(order), "no axis that is not needed"


def test_every_rank_that_contradicts_a_layout_is_named() -> None:
    cuts = {r: cut((4 * (r % 2), 0), (4, 4)) for r in range(4)}
    with pytest.raises(LayoutError, match="where its layout implies") as caught:
        compare("w", (8, 4), Placement({"dp": 0}, ("dp",)), MESH, cuts)
    assert sorted(p.rank for p in caught.value.problems()) == [1, 2]
    with pytest.raises(LayoutError):
        compare("v", (8, 4), Placement({"tp": 0}, ("tp",)), MESH, cuts)


def test_what_a_broadcast_passed_on_must_be_one_tensor() -> None:
    one, other = Cut(None, None, (1,), agreed=(("b", "x"),)), Cut(None, None, (1,), agreed=(("b", "y"),))
    agree("w", {0: one, 1: one})
    with pytest.raises(LayoutError, match="ranks 0 and 2 pass different tensors"):
        agree("w", {0: one, 1: one, 2: other})


def test_what_was_not_traced_or_is_computed_contradicts_a_layout_only_if_it_is_known_to() -> None:
    unknown, computed = (
        Cut(None, None, (4, 4), "is random"),
        Cut(None, None, (4, 4), "is w * 2", computed=True),
    )
    compare("w", (8, 4), Placement({"tp": 0}, ("tp",)), MESH, {0: unknown})
    with pytest.raises(LayoutError, match="is w \\* 2, so it is no shard of it"):
        compare("w", (8, 4), Placement({"tp": 0}, ("tp",)), MESH, {0: unknown, 1: computed})


# --- tensors that are cut in several parts -----------------------------------------------------------------


def parts(rows: list[tuple[int, int]], source: str | None = "w") -> Cut:
    """Single rows of a tensor of four columns: local number and number in the source."""
    z = Affine.symbol("z0")
    made = tuple(Part((4,), (Affine(local), z), source, (Affine(row), z)) for local, row in rows)
    return Cut(made, ("model.py", 7, "cut"), (len(rows), 4))


def heads(rank: int) -> Cut:
    """Row ``tp`` of the first half of ``w`` and of the second, as a fused weight is cut."""
    tp = MESH.coordinates(rank)["tp"]
    return parts([(0, tp), (1, 2 + tp)])


def rank_class(name: str, dp: tuple[int, int], tp: tuple[int, int]) -> RankClass:
    return RankClass(name, {"dp": dp, "tp": tp}, NOTHING)


WHOLE = rank_class("c0", (0, 2), (0, 2))


def test_parts_are_related_as_they_were_cut_on_every_rank() -> None:
    found = pieces("w", MESH, [WHOLE], {r: heads(r) for r in range(4)}, [WHOLE.box])
    tp, z = Affine.symbol("tp"), Affine.symbol("z0")
    assert [(p.cls, p.sizes, p.plan, p.spec) for p in found.pieces] == [
        ("c0", (4,), (Affine(0), z), (tp, z)),
        ("c0", (4,), (Affine(1), z), (tp + 2, z)),
    ]


def test_a_class_of_which_few_ranks_were_traced_takes_the_rule_of_its_box() -> None:
    """Buckets divide classes after ranks were traced: the box in which the class lies was traced enough."""
    split = [rank_class("c0", (0, 1), (0, 2)), rank_class("c1", (1, 2), (0, 2))]
    traced = {r: heads(r) for r in (0, 1)}  # of dp 0 only
    found = pieces("w", MESH, split, traced | {2: heads(2)}, [WHOLE.box])
    forms = [[p.spec[0] for p in found.pieces if p.cls == c.name] for c in split]
    assert forms == [[Affine.symbol("tp"), Affine.symbol("tp") + 2]] * 2
    boxes = [rank_class("", (0, 2), (0, 1)).box, rank_class("", (0, 1), (0, 2)).box, WHOLE.box]
    assert pieces("w", MESH, split, traced | {2: heads(2)}, boxes) == found, "no box that it is not in"
    with pytest.raises(LayoutError, match="no rank of class c1 was traced, and its parts follow no layout"):
        pieces("w", MESH, split, traced, [c.box for c in split])


def test_parts_of_another_tensor_are_refused() -> None:
    cuts = {r: heads(r) for r in range(3)} | {3: parts([(0, 1), (1, 3)], "v")}
    with pytest.raises(LayoutError, match=r"holds parts of v \(local \[0, z0\] = v\[1, z0\]; ") as caught:
        pieces("w", MESH, [WHOLE], cuts, [WHOLE.box])
    assert caught.value.rank == 3 and caught.value.frame == ("model.py", 7, "cut")
    with pytest.raises(LayoutError, match="ranks 0 and 3 run one program but hold other parts of it"):
        pieces("w", MESH, [WHOLE], cuts | {3: parts([(0, 1)])}, [WHOLE.box])


def test_parts_that_follow_no_rule_are_refused_at_the_line_that_cuts_them() -> None:
    other = {0: [0, 4], 1: [1, 5], 2: [2, 6], 3: [7, 3]}
    cuts = {r: parts(list(enumerate(rows))) for r, rows in other.items()}
    with pytest.raises(
        LayoutError, match=r"its parts follow no rule: .*scalar 2 is 7 at dp=1, tp=1"
    ) as caught:
        pieces("w", MESH, [WHOLE], cuts, [WHOLE.box])
    assert caught.value.tensor == "w" and caught.value.frame == ("model.py", 7, "cut")


@pytest.mark.parametrize(
    ("count", "shown"), [(3, "local [2, z0] = w[4, z0])"), (4, "local [2, z0] = w[4, z0]; …)")]
)
def test_of_many_parts_three_are_shown(count: int, shown: str) -> None:
    cuts = {r: parts([(i, 2 * i) for i in range(count)]) for r in range(4)}
    with pytest.raises(LayoutError) as caught:
        compare("w", (8, 4), Placement({}, ()), MESH, cuts)
    assert f"holds parts of w (local [0, z0] = w[0, z0]; local [1, z0] = w[2, z0]; {shown}" in str(
        caught.value
    )


FOUR = Mesh({"dp": 2, "tp": 4})
ALL_RANKS = [{"dp": (0, 2), "tp": (0, 4)}]


@pytest.mark.parametrize(
    ("starts", "axes"),
    [
        ([0, 0, 2, 2] * 2, ["tp"]),
        ([0, 2, 4, 6] * 2, []),
        ([0] * 8, []),
        ([0, 2, 6, 4] * 2, ["tp"]),
        ([0, 0, 2, 2, 4, 4, 6, 6], ["tp"]),
        ([0, 2, 4, 6, 2, 0, 6, 4], ["tp"]),
    ],
)
def test_ranks_are_told_apart_where_their_parts_follow_no_rule(starts: list[int], axes: list[str]) -> None:
    """Two ranks that share a head of keys, and two that share another, run one program."""
    cuts = {rank: cut((start, 0), (2, 3)) for rank, start in enumerate(starts)}
    held = {"w": ((8, 3), cuts)}
    assert told_apart(FOUR, ALL_RANKS, held) == axes
    slices = [{a: (x, x + 1) if a in axes else r for a, r in ALL_RANKS[0].items()} for x in (0, 1)]
    assert told_apart(FOUR, slices, held) == [], "of the classes that are made so each follows one"
    del cuts[5]
    assert told_apart(FOUR, ALL_RANKS, held) == [], "nobody knows what the rank that is not traced holds"
