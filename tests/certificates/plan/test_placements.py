"""Relations from placements against ``torch.chunk``'s rules, and the way back to the short form."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.placements import (
    Partial,
    Placement,
    Replicate,
    Shard,
    placements_of,
    relate,
    shard_range,
)
from certificates.plan.plan import Mesh, Plan, RankClass
from certificates.plan.program import Program

EMPTY = Program({}, (), {})


def per_rank(mesh: Mesh) -> list[RankClass]:
    """One class per rank."""
    return [
        RankClass(f"c{r}", {a: (x, x + 1) for a, x in mesh.coordinates(r).items()}, EMPTY)
        for r in range(mesh.ranks)
    ]


@given(st.integers(1, 40), st.integers(1, 9))
def test_chunks_tile_the_rows_as_torch_cuts_them(size: int, parts: int) -> None:
    ranges = [shard_range(size, parts, i) for i in range(parts)]
    assert [r for lo, hi in ranges for r in range(lo, hi)] == list(range(size))
    assert all(hi - lo == -(-size // parts) for lo, hi in ranges if hi < size)


@given(
    rows=st.integers(1, 30),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    order=st.permutations(["dp", "tp"]),
)
def test_axes_that_are_one_axis_of_the_job_cut_at_once(
    rows: int, sizes: tuple[int, int], order: list[str]
) -> None:
    """As FSDP's ranks, which experts cut in two: 8 rows over 3 x 2 are 2, 2, 2, 2, not 2, 1, 2, 1, 1, 1."""
    mesh = Mesh(dict(zip(("dp", "tp"), sizes, strict=True)))
    place = {"dp": Shard(0), "tp": Shard(0)}
    chunks = {
        cls.name: range(*shard_range(rows, mesh.ranks, major * mesh.axes[order[1]] + minor))
        for cls in per_rank(mesh) for major, minor in [[cls.box[a][0] for a in order]]
    }  # fmt: skip
    held = [cls for cls in per_rank(mesh) if chunks[cls.name]]
    relation = relate("w", (rows,), place, mesh, held, order=order, joint=[order])
    for cls, piece in zip(held, relation.pieces, strict=True):
        at = {a: lo for a, (lo, _) in cls.box.items()}
        assert [piece.spec[0].evaluate(at | {"z0": z}) for z in range(piece.sizes[0])] == [*chunks[cls.name]]


@given(
    rows=st.integers(1, 30),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    order=st.permutations(["dp", "tp"]),
)
def test_nested_shards_follow_the_order(rows: int, sizes: tuple[int, int], order: list[str]) -> None:
    mesh = Mesh(dict(zip(("dp", "tp"), sizes, strict=True)))
    place = {"dp": Shard(0), "tp": Shard(0)}
    expected = {}
    for cls in per_rank(mesh):
        mine = list(range(rows))
        for axis in order:
            lo, hi = shard_range(len(mine), mesh.axes[axis], cls.box[axis][0])
            mine = mine[lo:hi]
        expected[cls.name] = mine
    if not all(expected.values()):
        with pytest.raises(FormatError, match="split class"):
            relate("w", (rows,), place, mesh, per_rank(mesh), order=order)
        return
    relation = relate("w", (rows,), place, mesh, per_rank(mesh), order=order)
    for cls, piece in zip(per_rank(mesh), relation.pieces, strict=True):
        at = {a: lo for a, (lo, _) in cls.box.items()}
        got = [piece.spec[0].evaluate(at | {"z0": z}) for z in range(piece.sizes[0])]
        assert got == expected[cls.name]


def test_uneven_chunks_need_classes_of_one_size() -> None:
    mesh = Mesh({"dp": 3})
    whole = [RankClass("c0", {"dp": (0, 3)}, EMPTY)]
    with pytest.raises(FormatError, match=r"w: chunks of 10 rows over dp=0\.\.2 have sizes \[2, 4\]; split"):
        relate("w", (10,), {"dp": Shard(0)}, mesh, whole)


@pytest.mark.parametrize(
    ("placements", "order", "reason"),
    [
        ({"pp": Shard(0)}, None, r"w: the mesh has the axes \['dp', 'tp'\]"),
        ({"dp": Shard(0)}, ["dp"], r"w: the mesh has the axes \['dp', 'tp'\]"),
        ({"dp": Shard(2)}, None, r"w: no dimension 2 to shard in \[4, 4\]"),
        ({"dp": Shard(-1)}, None, "w: no dimension -1 to shard"),
        ({"dp": Partial("add"), "tp": Partial("max")}, None, "partial placements of different kinds"),
    ],
)
def test_impossible_placements(
    placements: dict[str, Placement], order: list[str] | None, reason: str
) -> None:
    mesh = Mesh({"dp": 2, "tp": 2})
    with pytest.raises(FormatError, match=reason):
        relate("w", (4, 4), placements, mesh, per_rank(mesh), order=order)


def plan_on(mesh: dict[str, int], classes: list[RankClass]) -> Plan:
    return Plan("p", Mesh(mesh), {}, (), EMPTY, tuple(classes), (), ())


places = st.sampled_from([Shard(0), Shard(1), Replicate(), Partial("add"), Partial("add")])


@given(
    place=st.fixed_dictionaries({"dp": places, "tp": places, "cp": places}),
    order=st.permutations(["dp", "tp", "cp"]),
    split=st.booleans(),
)
def test_the_short_form_means_the_same_relation(
    place: dict[str, Placement], order: list[str], split: bool
) -> None:
    mesh = {"dp": 2, "tp": 3, "cp": 2}
    whole = [RankClass("c0", {a: (0, n) for a, n in mesh.items()}, EMPTY)]
    plan = plan_on(mesh, per_rank(Mesh(mesh)) if split else whole)
    relation = relate("w", (24, 12), place, plan.mesh, plan.classes, order=order)
    short = placements_of(plan, relation, (24, 12))
    assert short is not None
    again = dict(short)
    for axis, wanted in place.items():
        if not isinstance(wanted, Replicate):
            assert again[axis] == wanted
        else:
            assert axis not in again
    rest = [a for a in mesh if a not in again]
    rebuilt = relate("w", (24, 12), again, plan.mesh, plan.classes, order=[*again, *rest])
    assert rebuilt.pieces == relation.pieces and rebuilt.reduce == relation.reduce


def test_uneven_strided_shards_have_a_short_form() -> None:
    mesh = {"dp": 2, "tp": 2}
    plan = plan_on(mesh, per_rank(Mesh(mesh)))
    relation = relate("w", (101,), {a: Shard(0) for a in mesh}, plan.mesh, plan.classes, order=["tp", "dp"])
    assert [p.sizes[0] for p in relation.pieces] == [26, 25, 25, 25]
    assert placements_of(plan, relation, (101,)) == [("tp", Shard(0)), ("dp", Shard(0))]


def test_other_layouts_have_no_short_form() -> None:
    mesh = {"dp": 2, "tp": 2}
    plan = plan_on(mesh, [RankClass("c0", {a: (0, 2) for a in mesh}, EMPTY)])
    relation = relate("w", (8,), {"dp": Shard(0)}, plan.mesh, plan.classes)
    (piece,) = relation.pieces
    dp = Affine.symbol("dp")
    for forms in (
        (Affine.symbol("z0").scale(2) + dp,),  # cyclic
        (Affine.of(3, {"z0": -1}) + dp.scale(4),),  # reversed
        (Affine.symbol("z0") + dp.scale(-4) + 4,),  # the other half
    ):
        other = replace(relation, pieces=(replace(piece, spec=forms),))
        assert placements_of(plan, other, (8,)) is None
    assert placements_of(plan, replace(relation, pieces=(piece, piece)), (8,)) is None


def test_coefficients_stay_beside_the_placements() -> None:
    mesh = {"dp": 2}
    plan = plan_on(mesh, [RankClass("c0", {"dp": (0, 2)}, EMPTY)])
    relation = relate("w", (8,), {"dp": Partial()}, plan.mesh, plan.classes, coef=Fraction(1, 2))
    assert relation.coef == Fraction(1, 2)
    assert placements_of(plan, relation, (8,)) == [("dp", Partial())]


def test_scalars() -> None:
    b, r = ProgramBuilder(), ProgramBuilder({"dp": 2})
    for builder in (b, r):
        builder.output("y", -builder.input("lr", "f32[]"))
    plan = build_plan(
        name="s",
        mesh={"dp": 2},
        specification=b.build(),
        classes=r.build(),
        inputs={"lr": {}},
        outputs={"y": {}},
    )
    assert plan.inputs[0].pieces[0].sizes == () and placements_of(plan, plan.inputs[0], ()) == []
