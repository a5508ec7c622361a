"""An exception that a trace raises and a job does not: code that handles it runs something else in a job."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from orchestrator.capture import Batch, Definition
from orchestrator.capture.errors import CaptureError, StepError
from orchestrator.capture.tracing import trace


def definition(asks: Callable[[Any], object], **changes: Any) -> Definition:
    """A step that halves its loss unless ``asks`` of the loss goes well."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["x"])
        try:
            asks(loss)
        except Exception:
            loss = loss / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    fields: dict[str, Any] = {
        "build": lambda: nn.Linear(3, 3),
        "parallelize": lambda model, _: model,
        **changes,
    }
    return Definition(
        name="swallowed",
        mesh={"dp": 2},
        step=step,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch={"x": Batch((4, 3))},
        **fields,
    )


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (lambda t: t.item(), "the value of a tensor"),
        (lambda t: float(t) > 1, "the value of a tensor"),
        (lambda t: t.tolist(), "the value of a tensor"),
        (lambda t: torch.allclose(t, t), "the value of a tensor"),
        (lambda t: t.reshape(1).unique(), "shape of the result depends on values"),
        (lambda t: t.detach().numpy(), "NumPy array"),
        (lambda t: np.asarray(t.detach()), "NumPy array"),
        (lambda t: f"{t.detach():.3f}", "formatted from a tensor"),
        (lambda t: pickle.dumps(t.detach()), "the value of a tensor"),
        (lambda t: torch.save(t.detach(), io.BytesIO()), "the value of a tensor"),
        (lambda t: t.untyped_storage()[0], "asks for the bytes of a tensor"),
        (lambda t: t.detach().share_memory_(), "only available on CPU"),
        (lambda t: t.pin_memory(), "NYI"),
    ],
)
def test_a_step_may_not_handle_what_only_a_trace_raises(asks: Callable[[Any], object], says: str) -> None:
    with pytest.raises(CaptureError) as caught:
        trace(definition(asks), None)
    assert says in str(caught.value) and "the code catches the exception" in caught.value.message
    assert caught.value.frame is not None and caught.value.frame[0] == __file__


def test_what_is_told_of_a_swallowed_exception_is_whole() -> None:
    """It had no traceback, and the command failed where it wanted to show it."""
    with pytest.raises(StepError) as caught:
        trace(definition(lambda t: t.item()), None)
    assert "DataDependentOutputException" in caught.value.traceback


def test_a_copy_of_a_tensor_needs_no_values() -> None:
    assert trace(definition(lambda t: copy.copy(t.detach())), None).program.outputs


def test_what_a_job_raises_too_may_be_handled() -> None:
    halved = trace(definition(lambda t: t.reshape(2, 2)), None).program
    assert len(halved.drafts) > len(trace(definition(lambda t: t.reshape(1)), None).program.drafts)


def test_building_and_cutting_may_not_handle_it_either() -> None:
    def build() -> nn.Module:
        model = nn.Linear(3, 3)
        with contextlib.suppress(Exception):
            if model.weight.sum().item() > 0:
                model.bias = None  # type: ignore[assignment]
        return model

    def parallelize(model: Any, _: Any) -> Any:
        with contextlib.suppress(Exception):
            dist.broadcast(torch.zeros(2), src=0)
        return model

    with pytest.raises(CaptureError, match=r"a Python number, or decides .* the code catches the exception"):
        trace(definition(lambda t: t, build=build), None)
    with pytest.raises(CaptureError, match=r"broadcast on a real tensor.* the code catches the exception"):
        trace(definition(lambda t: t, parallelize=parallelize), 0)
