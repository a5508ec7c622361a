"""Names in a definition that the traced programs do not know, and fields that are no such thing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from certificates.plan.types import TensorType
from orchestrator.capture import Batch, CaptureError, Definition
from orchestrator.capture.checks import check, check_names
from orchestrator.capture.definition import Bucket
from orchestrator.capture.lowering import RankProgram

F = TensorType("f32", (4, 4))
#: A step of one parameter, whose optimizer keeps a flat state on the ranks.
SPECIFICATION = RankProgram(
    {"params.w": F, "opt.exp_avg.w": F, "batch.x": F}, (), {"params.w": "%0", "loss": "%1"}, ()
)
STATES = ["params.w", "opt.exp_avg.flat"]


NOTHING = "which is no parameter, buffer or state of the optimizer"


def definition(**changes: Any) -> Definition:
    fields: dict[str, Any] = {
        "name": "named",
        "mesh": {"dp": 2},
        "build": lambda: nn.Linear(4, 4),
        "parallelize": lambda model, mesh: model,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "step": lambda model, optimizer, batch: {},
        "batch": {"x": Batch((4, 4))},
    }
    return Definition(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"layouts": {"w": {}, "flat": {}}, "mean_over": {"loss": ("dp",)}}, []),
        ({"layouts": {"opt.exp_avg.w": {}}}, []),
        ({"layouts": {"": {}}}, [f"layouts names '', {NOTHING}"]),
        ({"layouts": {"x": {}}}, [f"layouts names 'x', {NOTHING}"]),
        ({"layouts": {"exp_avg.w": {}}}, [f"layouts names 'exp_avg.w', {NOTHING}"]),
        ({"layouts": {"opt.avg.w": {}}}, [f"layouts names 'opt.avg.w', {NOTHING}"]),
        (
            {"mean_over": {"params.w": ("dp",)}},
            ["mean_over names 'params.w', which the step does not return"],
        ),
        ({"buckets": {"opt.exp_avg.flat": Bucket(("opt.exp_avg.w",), "dp")}}, []),
        ({"buckets": {"opt.flat": Bucket(("params.w",))}}, ["buckets names 'opt.flat', which no rank has"]),
        (
            {"buckets": {"opt.exp_avg.flat": Bucket(("w",))}},
            ["holds 'w', which is no tensor of the single-device step"],
        ),
    ],
    ids=str,
)
def test_names_are_those_of_tensors_of_the_programs(changes: dict[str, Any], told: list[str]) -> None:
    """A state of the optimizer has the name of the parameter that it belongs to; inputs are no states."""
    found = check_names(definition(**changes), SPECIFICATION, STATES)
    assert [error.message for error in found] == told
    if told and "layouts" in changes:
        kept = "opt.avg.w" in changes["layouts"]
        assert found[0].instead == ("opt.exp_avg.w, opt.exp_avg.flat" if kept else "flat, w")


@pytest.mark.parametrize(
    ("changes", "message", "instead"),
    [
        ({"batch": {"x": Batch(4)}}, "its shape is 4, not a tuple of positive sizes", "Batch((8, 4)"),  # type: ignore[arg-type]
        ({"batch": {"x": Batch((4, 4), "f32")}}, "its dtype is 'f32'", "a dtype of torch"),  # type: ignore[arg-type]
        ({"buckets": {"opt.flat": ("params.w",)}}, "is not a Bucket with a tuple of names", "Bucket(("),
        ({"buckets": {"opt.flat": Bucket("params.w")}}, "is not a Bucket with a tuple", "Bucket(("),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_fields_that_are_no_such_thing(changes: dict[str, Any], message: str, instead: str) -> None:
    with pytest.raises(CaptureError) as caught:
        check(definition(**changes))
    text = str(caught.value)
    assert message in text and f"write instead: {instead}" in text and "test_checks.py:" in text
