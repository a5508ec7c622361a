"""How a rank's tensors lie on the mesh: read off DTensors, declared for plain tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

from certificates.plan.plan import Mesh

from .cutting import Cut
from .definition import Definition
from .errors import LayoutError
from .recorder import TensorRef


@dataclass(frozen=True)
class Layout:
    """How a local tensor lies on the mesh: axis -> tensor dimension, and the axes from major to minor.

    ``shards`` is ``None`` where nobody says so. ``owner`` is the parameter or buffer that it belongs to,
    ``cut`` how that was made if this tensor has its shape. Over the axes of ``summed`` ranks hold summands of
    the tensor: no cut shows that, a DTensor says it. The axes of one group of ``joint`` are one axis of the
    job, and cut at once.
    """

    shards: Mapping[str, int] | None
    order: tuple[str, ...]
    local: tuple[int, ...]
    owner: str
    cut: Cut | None = None
    summed: tuple[str, ...] = ()
    joint: tuple[tuple[str, ...], ...] = ()

    @property
    def traced(self) -> bool:
        """Is it known of which elements of the single device's tensors it consists?"""
        return self.cut is not None and self.cut.parts is not None and not self.summed

    def source(self, name: str) -> str:
        """The tensor that was cut: optimizer state and gradients follow their parameter."""
        return name if name.startswith(("params.", "buffers.")) else f"params.{self.owner}"

    def cut_as(self, name: str, cuts: Mapping[str, Cut]) -> Layout:
        """With the cut of what it belongs to."""
        cut = cuts.get(self.source(name))
        return replace(self, cut=cut) if cut is not None and cut.shape == self.local else self


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def padded_shape(local: torch.Tensor, ref: TensorRef) -> tuple[int, ...] | None:
    """Shape of the whole storage where FSDP keeps the rows of a shard in a longer, padded buffer."""
    held = local.untyped_storage().nbytes() // local.element_size()
    if held == local.numel() or ref.geometry.offset or not local.dim():
        return None
    row = local.numel() // local.shape[0]
    return None if held % row or not local.is_contiguous() else (held // row, *local.shape[1:])


def whole_storage(ref: TensorRef, shape: tuple[int, ...]) -> TensorRef:
    """The storage under ``ref``, seen with ``shape``."""
    return TensorRef(ref.storage, ref.dtype, ref.geometry.contiguous(shape))


def layout_of(definition: Definition, name: str, owner: str, tensor: torch.Tensor) -> Layout:
    """The layout of a state that belongs to ``owner``, as its DTensor or the definition says.

    A state of the optimizer may have a shape of its own, and then a layout by its own name.
    """
    kind = name.partition(".")[0]
    shard = local_tensor(tensor).detach()
    local = tuple((torch.view_as_real(shard) if shard.is_complex() else shard).shape)
    if isinstance(tensor, DTensor):
        device_mesh = tensor.device_mesh

        def fibre(axis: str) -> tuple[str, ...]:
            ranks = dist.get_process_group_ranks(device_mesh.get_group(axis))
            return axes_of(Mesh(definition.mesh), dist.get_rank(), ranks)

        shards, parts, summed = _dtensor_layout(name, tensor, fibre)
        joint = tuple(unit for unit in parts if len(unit) > 1)
        order = tuple(axis for unit in parts for axis in unit)
        return Layout(shards, order, local, owner, summed=summed, joint=joint)
    if kind == "opt" and tensor.dim() == 0:
        return Layout({}, (), local, owner)
    given = definition.layouts or {}
    declared = given.get(name if kind == "opt" and name in given else owner)
    unknown = set(declared or {}) - set(definition.mesh)
    if unknown:
        raise LayoutError(
            f"layout names the axes {sorted(unknown)}, which the mesh does not have", tensor=name
        )
    return Layout(None if declared is None else dict(declared), tuple(declared or {}), local, owner)


def axes_of(mesh: Mesh, rank: int | None, ranks: Sequence[int]) -> tuple[str, ...]:
    """The axes whose fibre through ``rank`` is ``ranks``, members in order; none if there are none."""
    if rank is None or rank not in ranks:
        return ()
    here = mesh.coordinates(rank)
    wide = [a for a, n in mesh.axes.items() if n > 1]
    for count in range(1, len(wide) + 1):
        for axes in itertools.permutations(wide, count):
            members = itertools.product(*(range(mesh.axes[a]) for a in axes))
            found = [mesh.rank(here | dict(zip(axes, m, strict=True))) for m in members]
            if found == list(ranks):
                return axes
    return ()


def _dtensor_layout(
    name: str, tensor: DTensor, fibre: Callable[[str], tuple[str, ...]]
) -> tuple[dict[str, int], tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Axes, their order, and those that are summed over; a strided shard is minor to what it was cut over.

    ``fibre`` says of which axes of the definition's mesh, major first, an axis of the tensor's is made: job
    and definition may name them otherwise, and one may see as one axis what the other needs as two: these
    stand together in the order.
    """
    axes = tensor.device_mesh.mesh_dim_names
    if axes is None:
        raise LayoutError("its device mesh has unnamed axes", tensor=name)
    sizes = dict(zip(axes, tensor.device_mesh.shape, strict=True))
    shards: dict[str, int] = {}
    order: list[str] = []
    summed: list[str] = []
    # Read from the last mesh axis to the first: a plain shard is major to what follows it on its dimension,
    # a strided one minor to the axes whose sizes multiply to its split factor.
    for axis, placement in reversed(list(zip(axes, tensor.placements, strict=True))):
        if isinstance(placement, Replicate):
            continue
        if type(placement) is Partial and placement.reduce_op == "sum":
            summed += [axis] if sizes[axis] > 1 else []
            continue
        if not isinstance(placement, Shard | _StridedShard):
            raise LayoutError(f"placement {placement} of a state tensor", tensor=name)
        if sizes[axis] == 1:
            continue  # one shard is the whole; a definition's mesh may leave such an axis out
        dim = placement.dim
        at = next((i for i, other in enumerate(order) if shards[other] == dim), len(order))
        if isinstance(placement, _StridedShard):
            split = placement.split_factor
            while split > 1:
                if at >= len(order) or shards[order[at]] != dim:
                    raise LayoutError(f"placement {placement} over no matching axes", tensor=name)
                split, rest = divmod(split, sizes[order[at]])
                if rest:
                    raise LayoutError(f"placement {placement} splits an axis", tensor=name)
                at += 1
        shards[axis] = dim
        order.insert(at, axis)
    parts = {axis: fibre(axis) for axis in (*order, *summed)}
    for axis in parts:
        if not parts[axis]:
            raise LayoutError(
                f"its device mesh has an axis {axis!r} whose ranks follow no axes of the definition's mesh",
                tensor=name,
                instead="a Definition.mesh whose axes, or products of them, are those of the job's meshes",
            )
    return (
        {part: shards[axis] for axis in order for part in parts[axis]},
        tuple(parts[axis] for axis in order),
        tuple(part for axis in summed for part in parts[axis]),
    )
