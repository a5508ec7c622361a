"""No mode stands below the recorder, and none is taken away: what ran there would go unseen."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from orchestrator.capture import Batch, Definition
from orchestrator.capture.errors import DefinitionError, StateError
from orchestrator.capture.tracing import trace


def definition(around: Any, swallows: bool = False) -> Definition:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["x"])
        loss.backward()
        with contextlib.suppress(Exception) if swallows else contextlib.nullcontext(), around():
            model.weight.grad.mul_(3)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="modes",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=step,
        batch={"x": Batch((4, 3))},
    )


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize(
    ("around", "name"),
    [
        (lambda: _disable_current_modes(), "_disable_current_modes"),
        (lambda: no_dispatch(), "_DisableTorchDispatch"),
        (lambda: unset_fake_temporarily(), "unset_fake_temporarily"),
        (lambda: torch._C._DisableTorchDispatch(), "_DisableTorchDispatch"),
    ],
)
def test_who_takes_the_recorder_away_is_refused(around: Any, name: str, swallows: bool) -> None:
    """Under one the process ended, under the other a gradient was tripled unseen."""
    with pytest.raises(StateError, match=f"{name} takes away what records") as caught:
        trace(definition(around, swallows), None)
    assert caught.value.frame is not None and caught.value.frame[0] == __file__
    assert _disable_current_modes.__module__ == "torch.utils._python_dispatch"


class Doubled(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        return result * 2 if func is torch.ops.aten.mul_.Tensor else result


def test_a_mode_that_is_on_before_the_trace_is_refused() -> None:
    with Doubled(), pytest.raises(DefinitionError, match=r"a dispatch mode \(Doubled\) is on before"):
        trace(definition(contextlib.nullcontext), None)


def test_a_mode_of_the_steps_own_is_seen() -> None:
    plain = trace(definition(contextlib.nullcontext), None).program
    assert len(trace(definition(Doubled), None).program.drafts) >= len(plain.drafts)
