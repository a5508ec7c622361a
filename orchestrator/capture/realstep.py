"""One rank of a definition (or its single device) with real tensors: made, given states, stepped, read.

Nothing here is shared with the tracing: states are found again, by the naming convention of
``docs/format.md``, so that a state which the tracing reads wrongly differs in its numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from ..evaluating.arrays import Array
from .definition import Definition
from .environment import of_rank, speaks_of_a_job
from .names import buffers, parameters

#: What a real run changes in the libraries; recorded in the plan.
SHIMS = (
    "mixed precision policies of FSDP keep the parameters' own type",
    "PREMUL_SUM is a product and a sum",
)
_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
#: Parameters that are larger are uninitialised memory, or would drown rounding.
_LARGE = 1e3


class RealStep:
    """A model with its optimizer, after one step that makes lazily made states."""

    def __init__(self, definition: Definition, mesh: DeviceMesh | None, wide: bool, seed: int) -> None:
        self._definition, self._wide, self._seed = definition, wide, seed
        torch.manual_seed(seed)
        torch.set_default_dtype(torch.float64 if wide else torch.float32)
        self._model = definition.build()
        _materialise(self._model, wide)
        self._step = definition.step
        if mesh is not None:
            self._model = definition.parallelize(self._model, mesh)
            self._step = definition.parallel_step or definition.step
            _keep_precision(self._model)
        self._optimizer = definition.optimizer(self._model.parameters())

    def warm_up(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """One step; the states that it leaves."""
        self.step(batch)
        return {name: to_array(tensor) for name, tensor in self._states().items()}

    def set(self, inputs: Mapping[str, Array]) -> None:
        """Give every state that is among the inputs its value; other gradients are dropped."""
        named = dict(parameters(self._model))
        for name, tensor in self._states().items():
            if name in inputs:
                _fill(tensor, inputs[name])
            elif name.startswith("grads."):
                named[name.removeprefix("grads.")].grad = None

    def step(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One whole step on batch and learning rates of ``inputs``; results and all states by plan name."""
        groups = {"hyper.lr" if i == 0 else f"hyper.lr.{i}": g for i, g in enumerate(self._groups())}
        rates = {name: group for name, group in groups.items() if name in inputs}
        for name, group in rates.items():
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(float(inputs[name]))
            else:
                group["lr"] = float(inputs[name])
        batch = {
            name: torch.from_numpy(np.array(inputs[f"batch.{name}"])).to(self._type(item.dtype))
            for name, item in self._definition.batch.items()
        }
        results = self._step(self._model, self._optimizer, batch)
        read = {name: to_array(tensor) for name, tensor in results.items()}
        # A scheduler inside the step shows here.
        read |= {name: np.array(float(group["lr"])) for name, group in rates.items()}
        return read | {name: to_array(tensor) for name, tensor in self._states().items()}

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return groups

    def _type(self, dtype: torch.dtype) -> torch.dtype:
        return _WIDE.get(dtype, dtype) if self._wide else dtype

    def _states(self) -> dict[str, torch.Tensor]:
        named = dict(parameters(self._model))
        states: dict[str, torch.Tensor] = {f"params.{n}": p for n, p in named.items()}
        for name, parameter in named.items():
            if parameter.grad is not None:
                states[f"grads.{name}"] = parameter.grad
            for optimizer in _wrapped(self._optimizer):
                for key, value in _named(optimizer.state.get(parameter, {})):
                    states[f"opt.{key}.{name}"] = value
        return states | {f"buffers.{n}": b for n, b in buffers(self._model)}


def _wrapped(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """An optimizer and those that are its attributes."""
    return [optimizer, *(o for o in vars(optimizer).values() if isinstance(o, torch.optim.Optimizer))]


def _named(held: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors by the keys that lead to them."""
    for key, value in held.items():
        if isinstance(value, torch.Tensor):
            yield key, value
        elif isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", tensor) for inner, tensor in _named(value))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, real and imaginary parts of a complex tensor along a last dimension."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    if isinstance(tensor, AsyncCollectiveTensor):
        tensor = tensor.trigger_wait()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def to_array(tensor: torch.Tensor) -> Array:
    """A copy as numpy has it; floats as float64."""
    tensor = local(tensor)
    return np.array(tensor.double() if tensor.is_floating_point() else tensor)


def _fill(target: torch.Tensor, value: Array) -> None:
    """Copy an input into a tensor; rows of padding, which only the input has, are dropped."""
    with torch.no_grad():
        into = target.to_local() if isinstance(target, DTensor) else target
        into = torch.view_as_real(into) if into.is_complex() else into
        into.copy_(torch.from_numpy(np.array(value))[tuple(slice(0, n) for n in into.shape)])


def _materialise(model: nn.Module, wide: bool) -> None:
    """Real, random, moderate parameters: exact zeros and ones of an initialisation would hide mistakes."""
    if any(p.is_meta for p in model.parameters()):
        model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        with torch.no_grad():
            if wide and tensor.dtype in _WIDE:
                tensor.data = tensor.data.to(_WIDE[tensor.dtype])
            if isinstance(tensor, nn.Parameter) and tensor.is_floating_point():
                noise = torch.randn(tensor.shape, dtype=tensor.dtype)
                usable = torch.isfinite(tensor) & (tensor.abs() < _LARGE)
                tensor.copy_(torch.where(usable, tensor + 0.1 * noise, 0.5 * noise))


def _keep_precision(model: nn.Module) -> None:
    """Conversions between float types are the identity in a plan; so they are in FSDP's policies."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            plain = MixedPrecisionPolicy(cast_forward_inputs=False)
            state._mp_policy = plain
            for group in state._fsdp_param_groups:
                group.mp_policy = plain
                for parameter in group.fsdp_params:
                    parameter.mp_policy = plain


def enter_job(rank: int | None, size: int) -> None:
    """Give this process the variables that ``torchrun`` sets for a rank; a single device has none."""
    for name in [n for n in os.environ if speaks_of_a_job(n)]:
        del os.environ[name]
    if rank is not None:
        os.environ.update(of_rank(rank, size))


@contextmanager
def premultiplied() -> Iterator[None]:
    """gloo has no ``PREMUL_SUM``: the operand is multiplied and summed. Everything else is gloo's own."""
    group = dist.ProcessGroup
    # Position of the operand among the arguments after the group.
    places = {"allreduce": 0, "_reduce_scatter_base": 1, "reduce_scatter_single": 1, "reduce": 0}
    saved = {name: vars(group)[name] for name in places if name in vars(group)}

    def wrapped(method: Any, place: int) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            options = next((a for a in (*args, *kwargs.values()) if hasattr(a, "reduceOp")), None)
            if options is None:
                return method(self, *args, **kwargs)
            kind, factor = options.reduceOp.__getstate__()
            if kind != dist.ReduceOp.PREMUL_SUM:
                return method(self, *args, **kwargs)
            options.reduceOp = dist.ReduceOp.SUM
            given = list(args)
            if place == 0:
                for tensor in given[0] if isinstance(given[0], list) else [given[0]]:
                    tensor.mul_(factor)
            else:
                given[place] = given[place] * factor
            return method(self, *given, **kwargs)

        return call

    for name in saved:
        setattr(group, name, wrapped(getattr(group, name), places[name]))
    try:
        yield
    finally:
        for name, descriptor in saved.items():
            setattr(group, name, descriptor)
