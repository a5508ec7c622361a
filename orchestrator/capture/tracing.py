"""Traces one rank (or the single device) of a definition: build, warm up, record one step, lower it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

from certificates.plan import Mesh

from .definition import Definition
from .errors import CaptureError, DefinitionError, LayoutError, gathered
from .group import process_group
from .lowering import Lowering, RankProgram
from .recorder import GroupRef, Recorder, TensorRef, recording, reference

#: What capture changes in the libraries while a step runs; recorded in the plan.
SHIMS = (
    "optimizers that can keep their step and learning rate in tensors do so on a CPU (capturable=True), "
    "one parameter at a time (foreach=False, fused=False)",
    "one warm-up step runs before the recorded one, its gradients are discarded",
    "DTensor divides a replicated 2-norm by the exact root of the axis size, not by the double nearest to it",
)


@dataclass(frozen=True)
class Layout:
    """How a local tensor lies on the mesh: axis -> tensor dimension, and the axes from major to minor."""

    shards: Mapping[str, int]
    order: tuple[str, ...]
    local: tuple[int, ...]


@dataclass(frozen=True)
class RankTrace:
    """One traced rank; ``layouts`` by input name. ``rank`` is ``None`` for the single device."""

    rank: int | None
    program: RankProgram
    layouts: Mapping[str, Layout]


def trace(definition: Definition, rank: int | None) -> RankTrace:
    """Trace in this process, whose default process group must not exist yet.

    A step that cannot be captured is a :class:`CaptureError` that names the rank.
    """
    try:
        with process_group(rank or 0, Mesh(definition.mesh).ranks):
            return _trace(definition, rank)
    except CaptureError as error:
        raise (error if rank is None else error.at_rank(rank)) from None


def _trace(definition: Definition, rank: int | None) -> RankTrace:
    mesh = Mesh(definition.mesh)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = definition.build()
    step = definition.step
    if rank is not None:
        # Outside the fake mode: a device mesh computes with real tensors.
        device_mesh = dist.init_device_mesh("cpu", tuple(mesh.axes.values()), mesh_dim_names=tuple(mesh.axes))
        model = definition.parallelize(model, device_mesh)
        step = definition.parallel_step or step
    optimizer = definition.optimizer(model.parameters())
    with fake:
        hyper = _symbolic_hyperparameters(optimizer)
        batch = {
            name: torch.zeros(_local_shape(definition, name, rank is not None), dtype=item.dtype)
            for name, item in definition.batch.items()
        }
    with _capturable_on_cpu(), _exact_norm_shares(), fake:
        step(model, optimizer, batch)
        optimizer.zero_grad(set_to_none=True)
        lowering = Lowering(lambda group: _axes_of(mesh, rank, group), rank)
        states = _states(model, optimizer)
        layouts = _layouts(definition, states, rank)
        refs = {name: reference(_local(tensor)) for name, tensor in states.items()}
        for name, tensor in states.items():
            lowering.add_input(name, refs[name], _padded_shape(_local(tensor), refs[name]))
        for name, tensor in batch.items():
            lowering.add_input(f"batch.{name}", reference(tensor), bounds=definition.batch[name].bounds)
        for name, tensor in hyper.items():
            lowering.add_input(name, reference(tensor))
        with recording(Recorder()) as recorder:
            results = step(model, optimizer, batch)
    if not isinstance(results, Mapping) or not all(isinstance(t, torch.Tensor) for t in results.values()):
        raise DefinitionError("a step returns its outputs as a mapping from names to tensors")
    lowering.run(recorder.nodes)
    outputs = {name: reference(_local(tensor.detach())) for name, tensor in results.items()}
    for name, tensor in states.items():
        ref = refs[name]
        shape = _padded_shape(_local(tensor), ref)
        whole = ref if shape is None else _whole_storage(ref, shape)
        if not name.startswith("buffers.") or lowering.read(whole).name != name:
            outputs[name] = whole
    return RankTrace(rank, lowering.finish(outputs), layouts)


def _local_shape(definition: Definition, name: str, parallel: bool) -> tuple[int, ...]:
    """The rows of a batch tensor that one rank reads."""
    item = definition.batch[name]
    shape = list(item.shape)
    for axis, dim in item.shard.items() if parallel else ():
        size = definition.mesh.get(axis)
        if size is None or shape[dim] % size:
            raise DefinitionError(
                f"dimension {dim} of {shape} does not divide over axis {axis}", tensor=f"batch.{name}"
            )
        shape[dim] //= size
    return tuple(shape)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Parameters, buffers and optimizer state by plan name."""
    states: dict[str, torch.Tensor] = {f"params.{n}": p for n, p in model.named_parameters()}
    names = {id(p): n for n, p in model.named_parameters()}
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                states[f"opt.{key}.{names[id(parameter)]}"] = value
    return states | {f"buffers.{n}": b for n, b in model.named_buffers()}


def _padded_shape(local: torch.Tensor, ref: TensorRef) -> tuple[int, ...] | None:
    """Shape of the whole storage where FSDP keeps the rows of a shard in a longer, padded buffer."""
    held = local.untyped_storage().nbytes() // local.element_size()
    if held == local.numel() or ref.geometry.offset or not ref.geometry.dense or not local.dim():
        return None
    row = local.numel() // local.shape[0]
    return None if held % row or not local.is_contiguous() else (held // row, *local.shape[1:])


def _whole_storage(ref: TensorRef, shape: tuple[int, ...]) -> TensorRef:
    return TensorRef(ref.storage, ref.dtype, ref.geometry.contiguous(shape))


def _layouts(
    definition: Definition, states: Mapping[str, torch.Tensor], rank: int | None
) -> dict[str, Layout]:
    """How every state lies on the mesh; all that stands against it is raised at once."""
    layouts: dict[str, Layout] = {}
    problems: list[CaptureError] = []
    for name, tensor in states.items():
        try:
            if not isinstance(_local(tensor), FakeTensor):
                raise DefinitionError("is a real tensor; make it from the model's tensors", tensor=name)
            if 0 in _local(tensor).shape:
                raise LayoutError(
                    "this rank owns none of its rows; use fewer ranks or more rows", tensor=name
                )
            if rank is not None:
                layouts[name] = _layout(definition, name, tensor)
        except CaptureError as error:
            problems.append(error)
    if problems:
        raise gathered(problems)
    return layouts


def _layout(definition: Definition, name: str, tensor: torch.Tensor) -> Layout:
    kind, _, rest = name.partition(".")
    shard = _local(tensor).detach()
    local = tuple((torch.view_as_real(shard) if shard.is_complex() else shard).shape)
    if isinstance(tensor, DTensor):
        shards, order = _dtensor_layout(name, tensor)
        return Layout(shards, order, local)
    parameter = rest.partition(".")[2] if kind == "opt" else rest
    declared = (definition.layouts or {}).get(parameter)
    if kind == "opt" and tensor.dim() == 0:
        return Layout({}, (), local)
    if declared is None and kind != "buffers":
        raise LayoutError(
            "a plain tensor without a declared layout; see Definition.layouts",
            tensor=name,
            instead='layouts={"name": {"axis": dimension}}, {"name": {}} where every rank holds all of it',
        )
    declared = declared or {}
    unknown = set(declared) - set(definition.mesh)
    if unknown:
        raise LayoutError(
            f"layout names the axes {sorted(unknown)}, which the mesh does not have", tensor=name
        )
    return Layout(dict(declared), tuple(declared), local)


def _dtensor_layout(name: str, tensor: DTensor) -> tuple[dict[str, int], tuple[str, ...]]:
    """Axes and their order from placements; a strided shard is minor to the axes it was applied over."""
    axes = tensor.device_mesh.mesh_dim_names
    if axes is None:
        raise LayoutError("its device mesh has unnamed axes", tensor=name)
    shards: dict[str, int] = {}
    order: list[str] = []
    # Read from the last mesh axis to the first: a plain shard is major to what follows it on its dimension,
    # a strided one minor to the axes whose sizes multiply to its split factor.
    for axis, placement in reversed(list(zip(axes, tensor.placements, strict=True))):
        if isinstance(placement, Replicate):
            continue
        if not isinstance(placement, Shard | _StridedShard):
            raise LayoutError(f"placement {placement} of a state tensor", tensor=name)
        dim = placement.dim
        at = next((i for i, other in enumerate(order) if shards[other] == dim), len(order))
        if isinstance(placement, _StridedShard):
            split = placement.split_factor
            while split > 1:
                if at >= len(order) or shards[order[at]] != dim:
                    raise LayoutError(f"placement {placement} over no matching axes", tensor=name)
                split, rest = divmod(split, tensor.device_mesh[order[at]].size())
                if rest:
                    raise LayoutError(f"placement {placement} splits an axis", tensor=name)
                at += 1
        shards[axis] = dim
        order.insert(at, axis)
    return shards, tuple(order)


def _axes_of(mesh: Mesh, rank: int | None, group: GroupRef) -> tuple[str, ...]:
    """The axes whose fibre through ``rank`` is the group, members in order; none if there are none."""
    if rank is None or rank not in group.ranks:
        return ()
    here = mesh.coordinates(rank)
    wide = [a for a, n in mesh.axes.items() if n > 1]
    for count in range(1, len(wide) + 1):
        for axes in itertools.permutations(wide, count):
            members = itertools.product(*(range(mesh.axes[a]) for a in axes))
            if tuple(mesh.rank(here | dict(zip(axes, m, strict=True))) for m in members) == group.ranks:
                return axes
    return ()


def _symbolic_hyperparameters(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Make step and learning rate tensors, where the optimizer supports that (``capturable``)."""
    hyper: dict[str, torch.Tensor] = {}
    for i, group in enumerate(optimizer.param_groups):
        for option in ("foreach", "fused"):
            if option in group:
                group[option] = False
        if "capturable" in group:
            group["capturable"] = True
            name = "hyper.lr" if i == 0 else f"hyper.lr.{i}"
            group["lr"] = hyper[name] = torch.zeros(())
    return hyper


@contextmanager
def _capturable_on_cpu() -> Iterator[None]:
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
def _exact_norm_shares() -> Iterator[None]:
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
