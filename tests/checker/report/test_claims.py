"""A claim in words: both programs say the same of every layout, and say all of it."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Partial, Placement, Shard
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from checker.reading.plan import read_plan
from checker.report.claims import claim
from checker.rules.relations import check_outputs
from tests.oracles.claims import claim as told
from tests.oracles.claims import open_elements

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.json.gz"))
SMALL = [p for p in EXAMPLES if p.stat().st_size < 50_000]


def both(plan: Plan) -> list[str]:
    """The claims of a plan as the checker says them; the report of the bundle says the same."""
    checked = read_plan(dumps(plan))
    found = [claim(checked, r) for r in checked.outputs]
    assert found == [told(plan, r) for r in plan.outputs]
    return found


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_shipped_plans_are_claimed_in_the_same_words(path: Path) -> None:
    data = gzip.decompress(path.read_bytes())
    plan, checked = loads(data), read_plan(data)
    assert both(plan)
    assert [w for w in open_elements(plan) if w.endswith("padding")] == check_outputs(checked)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({}, "a Replicate, b Replicate"),
        ({"a": Shard(1)}, "a Shard(1), b Replicate"),
        ({"a": Shard(0), "b": Shard(1)}, "a Shard(0), b Shard(1)"),
        ({"a": Shard(0), "b": Shard(0)}, "a Shard(0), b Shard(0)"),
        ({"b": Partial()}, "a Replicate, b Partial(sum)"),
        ({"a": Partial("max"), "b": Shard(1)}, "a Partial(max), b Shard(1)"),
    ],
)
def test_a_placement_stands_for_every_axis(places: dict[str, Placement], said: str) -> None:
    """Without it, a report of a shard reads as if each rank had the whole."""
    mesh = {"a": 2, "b": 3}
    spec, rank = ProgramBuilder(), ProgramBuilder(mesh)
    shape = [6, 12]
    for axis, place in places.items():
        if isinstance(place, Shard):
            shape[place.dim] //= mesh[axis]
    spec.output("y", spec.input("x", "f32[6,12]"))
    rank.output("y", rank.input("x", f"f32[{shape[0]},{shape[1]}]"))
    plan = build_plan(
        name="placed", mesh=mesh, specification=spec.build(), classes=rank.build(),
        inputs={"x": places}, outputs={"y": places},
    )  # fmt: skip
    left = (
        "y"
        if "Partial" not in said
        else f"{'sum' if 'sum' in said else 'maximum'} over {next(iter(places))} of y"
    )
    assert both(plan) == [f"{left} f32[{shape[0]},{shape[1]}] = y f32[6,12]; {said}"]


def test_uneven_shards_have_two_types(uneven: Plan) -> None:
    assert both(uneven) == ["y f32[4,2] or f32[2,2] = y f32[10,2]; dp Shard(0)"]


def test_windows_that_overlap_are_no_shards() -> None:
    """The first rank has the rows that a shard has; the second one's begin a row too early."""
    spec, rank = ProgramBuilder(), ProgramBuilder({"tp": 2})
    spec.output("y", spec.input("x", "f32[8]"))
    rank.output("y", rank.input("x", "f32[4]"))
    plan = build_plan(
        name="windows", mesh={"tp": 2}, specification=spec.build(), classes=rank.build(),
        inputs={"x": {"tp": Shard(0)}}, outputs={"y": {"tp": Shard(0)}},
    )  # fmt: skip
    assert both(plan) == ["y f32[4] = y f32[8]; tp Shard(0)"]
    (relation,) = plan.outputs
    (piece,) = relation.pieces
    early = replace(piece, spec=(Affine.of(0, {"tp": 3, "z0": 1}),))
    plan = replace(plan, outputs=(replace(relation, pieces=(early,)),))
    assert both(plan) == ["y f32[4] = y f32[8]; class c0 has [3*tp + z0] at [z0] for z0 < 4"]
