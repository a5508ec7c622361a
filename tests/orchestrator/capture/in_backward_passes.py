"""What hooks read in a backward pass, in a file without pytest among its globals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOCAL = threading.local()
VARIABLE: ContextVar[bool] = ContextVar("variable", default=False)
COUNTED: ContextVar[int] = ContextVar("counted", default=0)


class Own(threading.local):
    """Python calls it again on each thread that asks."""

    def __init__(self) -> None:
        self.on = False


OWN = Own()


def attribute() -> bool:
    return getattr(LOCAL, "on", False)


#: What the thread of the step has set, and another one has not.
SET: Mapping[str, Callable[[], bool]] = {
    "attribute": attribute,
    "of a class": lambda: OWN.on,
    "variable": VARIABLE.get,
}


def count_here() -> bool:
    LOCAL.count = getattr(LOCAL, "count", 0) + 1
    return bool(LOCAL.count % 10 == 0)


def count_in_a_variable() -> bool:
    COUNTED.set(COUNTED.get() + 1)
    return COUNTED.get() % 10 == 0


def of_which_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def of_which_number() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class Scaled(torch.autograd.Function):
    """Times 31 backward, where the answer is yes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, asks: Callable[[], bool]) -> Tensor:
        ctx.asks = asks
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * 31 if ctx.asks() else gradient, None


def stepping(asks: Callable[[], bool], hooked: bool) -> Callable[[Any, Any, Any], dict[str, Tensor]]:
    """A step that sets all of them before its backward pass, which asks, and asks again behind it."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        LOCAL.on = OWN.on = True
        token = VARIABLE.set(True)
        y: Any = model(batch["x"])
        if hooked:
            y.register_hook(lambda gradient: gradient * 31 if asks() else gradient)
        else:
            y = Scaled.apply(y, asks)
        F.mse_loss(y, batch["x"]).backward()
        if not (LOCAL.on and OWN.on and VARIABLE.get()):
            model.weight.grad.mul_(17)
        VARIABLE.reset(token)
        optimizer.step()
        optimizer.zero_grad()
        return {}

    return step
