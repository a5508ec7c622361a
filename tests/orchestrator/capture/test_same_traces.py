"""Whatever of a trace reaches a plan is compared between two processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from certificates.plan.affine import Affine
from certificates.plan.types import TensorType
from orchestrator.capture.builder import Draft
from orchestrator.capture.cutting import Cut
from orchestrator.capture.fitting import Sample
from orchestrator.capture.layouts import Layout
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.lowering.table import Called, Rooted
from orchestrator.capture.origins import Part
from orchestrator.capture.recorder import GroupRef
from orchestrator.capture.same_traces import other_trace

FRAME, OTHER = ("model.py", 7, "parallelize"), ("model.py", 8, "parallelize")
GROUP = GroupRef((0, 1))
TYPE = TensorType("f32", (2,))


def layout(start: int, frame: Any = FRAME) -> Layout:
    part = Part((2,), (Affine.of(0, {"z0": 1}),), "params.w", (Affine.of(start, {"z0": 1}),))
    return Layout({"tp": 0}, ("tp",), (2,), "params.w", Cut((part,), frame, (2,)))


def program(*names: str) -> RankProgram:
    drafts = tuple(Draft(f"%{i}", name, ("x",), TYPE, (), FRAME) for i, name in enumerate(names))
    return RankProgram({"x": TYPE}, drafts, {f"y{i}": d.out for i, d in enumerate(drafts)}, ())


SAMPLE = Sample(
    0, "", (), {"params.w": layout(0)}, 1, program("exp", "log"), rates={"hyper.lr": 0.1},
    communicators={GROUP: ("g", FRAME)}, agreed={GROUP: (("call", (1,), FRAME),)},
    called=(Called((("tp",), 0), 1, FRAME),),
    roots=(Rooted(((("tp",), 0), 0), (0, 1), "broadcast", 0, FRAME),),
    declared="step",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layouts": {"params.w": layout(2)}}, "holds other elements"),
        ({"layouts": {}}, "holds other elements"),
        ({"program": program("exp", "exp")}, "runs log at model.py:7 where another one runs exp"),
        ({"program": program("exp")}, "runs log at model.py:7 where another one runs nothing more"),
        ({"rates": {"hyper.lr": 0.2}}, "begins with 0.1, another one with 0.2"),
        ({"ranges": {"buffers.b": (0, 2)}}, "another range"),
        ({"zeros": frozenset(("buffers.b",))}, "begins with zeros in other buffers"),
        ({"communicators": {GROUP: ("h", FRAME)}}, "makes other groups"),
        ({"agreed": {GROUP: (("call", (2,), FRAME),)}}, "builds DistributedDataParallel otherwise"),
        ({"called": ()}, "another number of collectives"),
        ({"roots": ()}, "other collectives with a root"),
        ({"assumed": ("a",)}, "takes other things for granted"),
        ({"shims": ("a",)}, "other replacements"),
        ({"declared": "another step"}, "declares another step"),
    ],
)
def test_what_another_process_has_otherwise_is_named(change: dict[str, Any], said: str) -> None:
    """Which piece a rank holds, and its learning rate, were drawn by each process, and proved."""
    problem = other_trace(SAMPLE, replace(SAMPLE, **change))
    assert problem is not None and problem.rank == 0
    assert said in problem.message and "sorted(names)" in (problem.instead or "")


def test_lines_and_the_order_of_ops_are_no_difference() -> None:
    turned = program("exp", "log")
    turned = replace(turned, drafts=turned.drafts[::-1])
    elsewhere = {
        "layouts": {"params.w": layout(0, OTHER)},
        "program": turned,
        "communicators": {GROUP: ("g", OTHER)},
        "agreed": {GROUP: (("call", (1,), OTHER),)},
        "called": (Called((("tp",), 0), 1, OTHER),),
        "drawn": "a",
        "sets": (2, 1),
    }
    assert other_trace(SAMPLE, replace(SAMPLE, **elsewhere)) is None
    assert other_trace(SAMPLE, replace(SAMPLE, program=None)) is None


def test_ops_that_look_alike_differ_by_their_tensors() -> None:
    one = RankProgram({"x": TYPE, "z": TYPE}, (Draft("%0", "exp", ("x",), TYPE, (), FRAME),), {"y": "%0"}, ())
    other = replace(one, drafts=(replace(one.drafts[0], ins=("z",)),))
    problem = other_trace(replace(SAMPLE, program=one), replace(SAMPLE, program=other))
    assert problem is not None and "runs exp at model.py:7 with other tensors" in problem.message
    assert problem.frame == FRAME
