"""The optimizer is made: that may make states of its own, and changes no parameter and no buffer.

What `build` and `parallelize` do to the model is traced or followed; what a step finds in its parameters is
what they left. A write while the optimizer is made would be lost between the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from .cutting import tensors
from .errors import CaptureError, Frame, LayoutError, gathered
from .recorder import DTYPES, Node, Recorder, TensorRef, recording
from .signatures import foreign
from .unrecorded import watching

_INSTEAD = (
    "the same in build, for the single device and the ranks alike, or in parallelize, which is traced; an "
    "optimizer makes only its own states (self.state[parameter])"
)


class _Watch(Recorder):
    """A tensor that has no place in a plan is no parameter: what it holds is of no interest here."""

    def _describe(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor) and (
            not isinstance(item, FakeTensor)
            or item.is_neg()
            or not (item.dtype in DTYPES or item.is_complex())
        ):
            return None
        return super()._describe(item)


def optimizer_of(
    make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer], model: nn.Module
) -> torch.optim.Optimizer:
    """``make`` is called with the parameters; a write to one, or other memory for one, is a
    :class:`LayoutError`, and so is that of a buffer. Runs inside the fake mode."""
    watch = _Watch()
    before = watch.given(_held(model))
    with watching(files=False), recording(watch):
        optimizer = make(model.parameters())
    problems = [*_written(watch.nodes, before), *_rebound(before, watch.given(_held(model)), _line(make))]
    if problems:
        raise gathered(problems)
    return optimizer


def _held(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t for name, t in tensors(model).items() if isinstance(t, FakeTensor)}


def _written(nodes: list[Node], held: Mapping[str, TensorRef]) -> Iterator[CaptureError]:
    """Ops and collectives that write to the memory of one of these, or may."""
    names: dict[int, str] = {}
    for name, ref in held.items():
        names.setdefault(ref.storage, name)
    for node in nodes:
        touched = [r.storage for r in node.writes]
        if foreign(node.op):
            touched += [
                r.storage for r in tree_leaves((node.args, dict(node.kwargs))) if isinstance(r, TensorRef)
            ]
        elif node.op == "storage.resize":
            touched += [node.args[0]]
        for name in dict.fromkeys(names[storage] for storage in touched if storage in names):
            yield LayoutError(
                "is written while the optimizer is made",
                tensor=name,
                op=node.op,
                frame=node.frame,
                instead=_INSTEAD,
            )


def _rebound(
    before: Mapping[str, TensorRef], after: Mapping[str, TensorRef], frame: Frame | None
) -> Iterator[CaptureError]:
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield LayoutError(
                "is other memory after the optimizer was made than before (.data = …, or another tensor of "
                "this name)",
                tensor=name,
                frame=frame,
                instead=_INSTEAD,
            )


def _line(make: object) -> Frame | None:
    """Where the function that makes the optimizer begins."""
    make = inspect.unwrap(make) if callable(make) else make
    if not isinstance(make, FunctionType):
        return None
    return make.__code__.co_filename, make.__code__.co_firstlineno, make.__name__
