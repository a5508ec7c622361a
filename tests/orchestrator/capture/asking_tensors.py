"""Steps that ask tensors for attributes, in a file of its own: from one with tests a step reaches pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

OF_TRACES = ("constant", "pytype", "item_memo", "_is_param", "from_tensor")
ASKED: Mapping[str, Callable[[Any, str], object]] = {
    "hasattr": hasattr,
    "vars": lambda t, name: name in vars(t),
    "dict": lambda t, name: name in t.__dict__,
    "dir": lambda t, name: name in dir(t),
    "computed": lambda t, name: getattr(t, f"{name}", None) is not None,
}


def asking(how: str) -> Callable[[Any, Any, Any], dict[str, Tensor]]:
    """A step that takes another gradient where a parameter or its gradient has one of these."""
    asks = ASKED[how]

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        F.mse_loss(model(batch["x"]), batch["x"]).backward()
        if any(asks(t, name) for t in (model.weight, model.weight.grad) for name in OF_TRACES):
            model.weight.grad.mul_(31)
        optimizer.step()
        optimizer.zero_grad()
        return {}

    return step
