"""A step that asks whether it is traced may do something else in a job: it is refused, wherever it asks."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.utils import _python_dispatch

from orchestrator.capture import Definition
from orchestrator.capture.asks_of_traces import refuse_asking
from orchestrator.capture.errors import StateError
from orchestrator.capture.tracing import trace

from .world import one_layer


class Asking:
    def __init__(self, tensor: Tensor) -> None:
        self.answer = hasattr(tensor, "fake_device")


class Inheriting(Asking):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)


class Method:
    def asks_by_method(self, tensor: Tensor) -> bool:
        return hasattr(tensor, "fake_mode")


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()


def helper(tensor: Tensor) -> bool:
    return deeper(tensor)


def deeper(tensor: Tensor) -> bool:
    return detect_fake_mode([tensor]) is not None


def estimates(tensor: Tensor) -> object:
    """Nobody calls it."""
    return detect_fake_mode([tensor])


def scaled(is_traced: Callable[[Tensor], object]) -> Definition:
    """Gradients are scaled in a trace only."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        F.mse_loss(model(batch["x"]), batch["x"]).backward()
        if is_traced(model.weight):
            model.weight.grad.mul_(31)
        optimizer.step()
        optimizer.zero_grad()
        return {}

    return one_layer("asking", step)


@pytest.mark.parametrize(
    ("asks", "name"),
    [
        (lambda t: hasattr(t, "fake_mode"), "fake_mode"),
        (lambda t: getattr(t, "fake_device", None), "fake_device"),
        (lambda t: detect_fake_mode([t]), "detect_fake_mode"),
        (lambda t: torch._C._len_torch_dispatch_stack() > 0, "_len_torch_dispatch_stack"),
        (lambda t: _python_dispatch._get_current_dispatch_mode(), "_get_current_dispatch_mode"),
        (helper, "detect_fake_mode"),
        (lambda t: "orchestrator.capture.cli" in sys.modules, "modules"),
        (lambda t: sys.modules.get("z3"), "modules"),
        (lambda t: sys.modules["orchestrator.capture"], "modules"),
        (lambda t: [n for n in sys.modules if n.endswith("tor")], "modules"),
        (lambda t: len(sys.modules), "modules"),
        (lambda t: str(t.dtype) in sys.modules, "modules"),
        (lambda t: sys.modules.get(str(t.dtype)), "modules"),
        (lambda t: sys.modules.items(), "modules"),
        (lambda t: sys._getframe().f_back, "f_back"),
        (lambda t: Asking(t).answer, "fake_device"),
        (lambda t: Inheriting(t).answer, "fake_device"),
    ],
)
def test_a_step_that_asks_is_refused_at_its_line(asks: Callable[[Tensor], object], name: str) -> None:
    with pytest.raises(StateError, match=f"{name} asks whether the step is traced") as caught:
        trace(scaled(asks), None)
    assert caught.value.frame is not None and caught.value.frame[0] == __file__
    assert name in linecache.getline(__file__, caught.value.frame[1])


@pytest.mark.parametrize(
    "asks",
    [
        lambda t: "apex" in sys.modules,
        lambda t: sys.modules.get("apex"),
        lambda t: sys.modules[__name__],
        lambda t: sys.modules["torch"],
    ],
)
def test_a_step_may_ask_for_a_module_that_it_names(asks: Callable[[Tensor], object]) -> None:
    """``"apex" in sys.modules`` is a question of right code, and a module asks for itself so."""
    trace(scaled(asks), None)


def test_code_of_the_file_that_no_step_calls_may_ask() -> None:
    trace(scaled(lambda t: False), None)
    own = [f for f in globals().values() if isinstance(f, FunctionType)]
    own += [kind.__init__ for kind in (Asking, Inheriting, Other)]
    refuse_asking([scaled, Other.__init__], own)
    with pytest.raises(StateError, match="detect_fake_mode"):
        refuse_asking([helper], own)


def _by_method(held: Any, tensor: Tensor) -> object:
    return held.asks_by_method(tensor)


def _by_start(held: Any) -> None:
    held.__init__(3)


def test_methods_are_called_by_their_names_and_starts_of_classes_by_those_of_their_classes() -> None:
    class Local:
        def __init__(self, tensor: Tensor) -> None:
            self.asked = hasattr(tensor, "fake_mode")

    with pytest.raises(StateError, match="fake_mode"):
        refuse_asking([_by_method], [Method.asks_by_method])
    with pytest.raises(StateError, match="fake_mode"):
        refuse_asking([_by_start], [Local.__init__])  # no one's name is known: it may be this one
    refuse_asking([_by_start], [Asking.__init__])


def test_a_group_has_the_name_of_its_backend_in_a_job() -> None:
    names: list[str] = []

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        names.append(dist.group.WORLD.name())
        return {}

    made = scaled(lambda t: False)
    with pytest.raises(StateError, match="names"):  # a list that grows
        trace(replace(made, step=step), 0)
    assert set(names) == {"nccl"}
