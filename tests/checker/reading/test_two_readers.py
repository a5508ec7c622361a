"""Two readers of one format, written apart: what tools can write and load, the checker can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.canonical import canonical_bytes, digest, read_bytes
from certificates.errors import FormatError
from certificates.plan.placements import Partial, Shard
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from checker.reading.plan import read_plan

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.json.gz"))


def agree(plan: Plan, data: bytes) -> None:
    """The checker's own view of a plan has the same parts."""
    other = read_plan(data)
    assert dict(other.mesh) == dict(plan.mesh.axes)
    assert list(other.classes) == [c.name for c in plan.classes]
    assert [op.result for op in other.spec.ops] == [op.out for op in plan.specification.ops]
    assert len(other.inputs) == len(plan.inputs) and len(other.outputs) == len(plan.outputs)
    assert other.digest == digest(data)


def test_hand_written_plans(any_plan: Plan) -> None:
    agree(any_plan, dumps(any_plan))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_shipped_plans(path: Path) -> None:
    data = read_bytes(path)
    agree(loads(data), data)


def small_plan() -> bytes:
    """Every part of the format once, in few nodes."""
    mesh = {"dp": 2}
    s, b = ProgramBuilder(), ProgramBuilder(mesh)
    table, index = s.input("x", "f32[4,3]"), s.input("i", "i64[2]")
    s.output("y", s.gather(table, index)[:1] * 2)
    local, index = b.input("x", "f32[2,3]"), b.input("i", "i64[2]")
    b.output("y", b.gather(b.all_gather(local, "dp"), index)[:1] * 1)
    return dumps(
        build_plan(
            name="small",
            mesh=mesh,
            specification=s.build(),
            classes=b.build(),
            inputs={"x": {"dp": Shard(0)}, "i": {}},
            outputs={"y": {"dp": Partial()}},
            ranges={"i": (0, 4)},
            provenance={"by": "hand"},
        )
    )


SMALL = small_plan()
JUNK: list[Any] = [None, True, -1, 0, 1, 2, 10**17, "", "%0", "%1", "x", "dp", "f32[2]", "f32[2,3]", "1/2"]
JUNK += [[], [[]], [0, 1], ["a", 1], {}, {"": 1}, {"z0": 1}, {"dp": 1}]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_what_the_loader_accepts_the_checker_reads(data: st.DataObject) -> None:
    """Replace any one node of a plan: if it is still a plan to the tools, it is one to the checker."""
    node: Any = json.loads(SMALL)
    document = node
    while True:
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
        if isinstance(node[key], dict | list) and node[key] and data.draw(st.integers(0, 5)):
            node = node[key]
            continue
        node[key] = data.draw(st.sampled_from(JUNK))
        break
    changed = canonical_bytes(document)
    try:
        plan = loads(changed)
    except FormatError:
        return
    agree(plan, changed)
