"""What capture changes in PyTorch while a step runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor._ops._math_ops import _NormPartial

#: What capture changes in the libraries while a step runs; recorded in the plan.
SHIMS = (
    "optimizers that can keep their step and learning rate in tensors do so on a CPU (capturable=True), "
    "one parameter at a time (foreach=False, fused=False)",
    "DTensor divides a replicated 2-norm by the exact root of the axis size, not by the double nearest to it",
)


def symbolic_hyperparameters(optimizer: torch.optim.Optimizer) -> None:
    """Make step and learning rate tensors, where the optimizer supports that (``capturable``)."""
    for group in optimizer.param_groups:
        for option in ("foreach", "fused"):
            if option in group:
                group[option] = False
        if "capturable" in group:
            group["capturable"] = True
            group["lr"] = torch.zeros(())


@contextmanager
def capturable_on_cpu() -> Iterator[None]:
    """PyTorch asserts that a tensor-valued step is on an accelerator; the formulas are the same on a CPU."""
    name = "_get_capturable_supported_devices"
    modules = [m for key, m in sys.modules.items() if key.startswith("torch.optim.") and hasattr(m, name)]
    saved = [getattr(m, name) for m in modules]
    for module in modules:
        setattr(module, name, lambda *_args, **_kwargs: ["cpu"])
    try:
        yield
    finally:
        for module, function in zip(modules, saved, strict=True):
            setattr(module, name, function)


@contextmanager
def copied_by_ops() -> Iterator[None]:
    """``copy.deepcopy`` of a fake tensor is a clone, as that of a real one is.

    PyTorch's own copy would belong to a copy of the fake mode, and what is done with it would be lost.
    """

    def deepcopy(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
        if id(tensor) in memo:
            return memo[id(tensor)]
        if isinstance(tensor, nn.Parameter):  # its gradient and attributes stay behind
            copied: Any = nn.Parameter(tensor.data.clone(), tensor.requires_grad)
        else:
            memo[id(tensor.fake_mode)] = tensor.fake_mode
            if tensor.constant is not None:  # a remembered value: nobody would tell the copy of a write
                memo[id(tensor.constant)] = None
            copied = torch.Tensor.__deepcopy__(tensor, memo)
        memo[id(tensor)] = copied
        return copied

    FakeTensor.__deepcopy__ = deepcopy
    try:
        yield
    finally:
        del FakeTensor.__deepcopy__


@contextmanager
def exact_norm_shares() -> Iterator[None]:
    """DTensor turns a norm that is replicated over ``n`` ranks into ``n`` shares: the norm over root ``n``.

    It divides by the double nearest to that root. With a root among the recorded ops the shares add up.
    """
    original = _NormPartial._partition_value

    def partition(self: Any, tensor: torch.Tensor, mesh: Any, mesh_dim: int) -> torch.Tensor:
        if self.norm_type != 2:
            return cast(torch.Tensor, original(self, tensor, mesh, mesh_dim))
        return tensor / torch.full((), float(mesh.size(mesh_dim)), dtype=tensor.dtype).sqrt()

    _NormPartial._partition_value = partition
    try:
        yield
    finally:
        _NormPartial._partition_value = original
