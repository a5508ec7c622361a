"""A definition is what was checked and traced: nobody changes it on the way."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from orchestrator.capture import Batch, Definition
from orchestrator.capture.definition import Bucket


def test_a_definition_does_not_change_after_it_was_made() -> None:
    """It is checked once and traced in many processes; a step that assigns to it would trace another one."""
    made = Definition(
        name="fixed",
        mesh={"dp": 2},
        build=lambda: nn.Linear(2, 2),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=lambda model, optimizer, batch: {},
        batch={"x": Batch((4, 2))},
    )
    for part, name in ((made, "mesh"), (made.batch["x"], "shape"), (Bucket(("params.w",)), "axis")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, ())
