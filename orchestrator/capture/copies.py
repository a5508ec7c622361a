"""``copy.copy`` and ``copy.deepcopy`` of a tensor of a trace are made of ops, and are what they are in a job.

PyTorch copies storages there, and what is in a tensor's ``__dict__``. A storage of a trace has no bytes, and
a fake tensor's own attributes (its mode, a remembered value) belong to it alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from .disguise import of_traces

_NO_LEAF = (
    "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
)


@contextmanager
def copied_by_ops() -> Iterator[None]:
    """Copies of fake tensors are followed as their originals are."""
    FakeTensor.__copy__, FakeTensor.__deepcopy__ = _shallow, _deep
    try:
        yield
    finally:
        del FakeTensor.__copy__, FakeTensor.__deepcopy__


def _shallow(tensor: Any) -> Any:
    """Another tensor of the same memory, a leaf without a gradient, with the user's attributes."""
    with torch.no_grad():
        if isinstance(tensor, nn.Parameter):
            copied: Any = nn.Parameter(tensor.data, tensor.requires_grad)
        else:
            copied = tensor.data.requires_grad_(tensor.requires_grad)
    for name, item in _attributes(tensor).items():
        setattr(copied, name, item)
    return copied


def _deep(tensor: Any, memo: dict[int, Any]) -> Any:
    """A copy of all of the memory, which is one for all tensors that lie in it; of a parameter, of its own
    elements: its gradient and attributes stay behind."""
    if isinstance(tensor, nn.Parameter):
        if id(tensor) not in memo:
            memo[id(tensor)] = nn.Parameter(tensor.data.clone(), tensor.requires_grad)
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(_NO_LEAF)
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        copied = _of_a_copied_storage(tensor, memo).requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            copied.grad = _deep(tensor.grad, memo)
    for name, item in _attributes(tensor).items():
        setattr(copied, name, copy.deepcopy(item, memo))
    memo[id(tensor)] = copied
    return copied


def _of_a_copied_storage(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """PyTorch remembers copies of storages in ``memo``; here they are tensors of one dimension."""
    if any(isinstance(n, torch.SymInt) for n in tensor.shape):  # rows that a routing sends
        return tensor.data.clone()
    storage = tensor.untyped_storage()
    copies = memo.setdefault("torch", {})  # type: ignore[call-overload]
    if storage._cdata not in copies:
        elements = storage.nbytes() // tensor.element_size()
        copies[storage._cdata] = torch.as_strided(tensor.data, (elements,), (1,), 0).clone()
    whole = copies[storage._cdata]
    whole = whole if whole.dtype == tensor.dtype else whole.view(tensor.dtype)
    return torch.as_strided(whole, tensor.shape, tensor.stride(), tensor.storage_offset()).data


def _attributes(tensor: Tensor) -> dict[str, Any]:
    """What the user's code has set on it."""
    return {name: item for name, item in vars(tensor).items() if name not in of_traces()}
