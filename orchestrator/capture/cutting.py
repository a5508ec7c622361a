"""How ``parallelize`` cuts the model: every local tensor as parts of the single device's tensors.

The call is recorded like a step, with parameters and buffers of the single-device model as inputs; the
parameters and buffers of the rank's model are its outputs, and :mod:`.origins` says of which elements they
consist. Scatter and broadcast mean what they mean when all members pass equal tensors, which is compared
between traced ranks later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, _api, placement_types
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from certificates.plan.types import TensorType

from ..cells import Unfollowable
from .builder import Draft, Frame, Value
from .errors import CaptureError, ClosureError, LayoutError, LoweringError, UnsupportedOpError
from .frames import user_frame
from .geometry import Geometry
from .lowering import Lowering
from .names import buffers, parameters
from .origins import Computed, Origins, Part
from .recorder import DTYPES, GroupRef, Node, Recorder, TensorRef, recording, reference
from .swallowed import told

_RANDOM = re.compile(
    r"aten\.(normal|uniform|random|bernoulli|cauchy|exponential|geometric|log_normal|rand|randn|randint"
    r"|randperm|rand_like|randn_like|randint_like)_?\."
)
_COLLECTIVE = re.compile(r"(dist|_?c10d(_functional(_autograd)?)?|_dtensor)\.(?!wait|then|barrier)")
_SILENT = re.compile(r"dist\.(wait|then|then_end|barrier)$")


@dataclass(frozen=True)
class Cut:
    """What one tensor of a rank's model holds.

    ``parts`` is ``None`` if it was not cut out of the single device's tensors: it is made in another way, or,
    if ``computed``, from their values; ``why`` says how. ``frame`` is the user's line, ``shape`` the local
    tensor's. ``agreed`` are digests of what scatters and broadcasts passed on, by collective and chunk.
    """

    parts: tuple[Part, ...] | None
    frame: Frame | None
    shape: tuple[int, ...]
    why: str = ""
    computed: bool = False
    agreed: tuple[tuple[str, str], ...] = ()


def parallelized(
    parallelize: Callable[[nn.Module, DeviceMesh], nn.Module], model: nn.Module, mesh: DeviceMesh
) -> tuple[nn.Module, Mapping[str, Cut]]:
    """Call ``parallelize``, and say by plan name how the tensors of the rank's model were cut."""
    recorder = _Cutter()
    sources = recorder.given({n: t for n, t in tensors(model).items() if isinstance(t, FakeTensor)})
    tied = _tied(model)
    # The recorder describes what it can; what is made of the record afterwards is no code of the user's.
    with told(but=(LoweringError, UnsupportedOpError)), recording(recorder), _by_meaning(recorder):
        model = parallelize(model, mesh)
    held = {name for name, _ in parameters(model, tied=True)}
    untied = sorted((one, other) for one, other in tied - _tied(model) if {one, other} <= held)
    if untied:
        raise LayoutError(
            f"is one parameter with {untied[0][0]} on a single device, and another one here",
            tensor=f"params.{untied[0][1]}",
        )
    return model, _Cuts(recorder, sources).of(model)


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Local tensors of parameters and buffers by plan name."""
    named = {f"params.{n}": p for n, p in parameters(model)}
    named |= {f"buffers.{n}": b for n, b in buffers(model)}
    return {n: t._local_tensor if isinstance(t, DTensor) else t for n, t in named.items()}


def _tied(model: nn.Module) -> set[tuple[str, str]]:
    """Pairs of names of one parameter, the first of them being its name in a plan."""
    names: dict[int, list[str]] = {}
    for name, parameter in parameters(model, tied=True):
        names.setdefault(id(parameter), []).append(name)
    return {(first, other) for first, *others in names.values() for other in others}


class _Cutter(Recorder):
    """Also records real tensors with several values, which index the model's tensors: as ``tables``."""

    written_out = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tables: list[tuple[TensorRef, np.ndarray]] = []
        self.calls: dict[GroupRef, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        plain = all(type(t) in (torch.Tensor, nn.Parameter) for t in given)
        faking = any(isinstance(m, FakeTensorMode) for m in _get_current_dispatch_mode_stack())
        if plain and not faking:  # a mesh computes with real tensors: they are nobody's parameters
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _describe(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor) and not isinstance(item, FakeTensor) and not item.is_meta:
            try:
                return super()._describe(item)
            except LoweringError:
                return self._table(item)
        return super()._describe(item)

    def _table(self, item: torch.Tensor) -> TensorRef:
        real = torch.view_as_real(item.detach()) if item.is_complex() else item.detach()
        if real.dtype not in DTYPES:
            raise LoweringError(f"tensors of {real.dtype} have no place in a plan")
        array = (real.float() if real.dtype == torch.bfloat16 else real).numpy().copy()
        geometry = Geometry.contiguous(array.shape)
        ref = TensorRef(-1 - len(self.tables), DTYPES[real.dtype], geometry, complex=item.is_complex())
        self.tables.append((ref, array))
        return ref

    def call(self, group: GroupRef) -> int:
        """The number of a collective among those of its group."""
        self.calls[group] = self.calls.get(group, -1) + 1
        return self.calls[group]

    def passed(
        self, output: torch.Tensor, sources: Sequence[torch.Tensor], mesh: DeviceMesh, dim: int, root: int
    ) -> None:
        """A scatter of ``sources``, or a broadcast of the only one, along a dimension of a mesh."""
        group = mesh.get_group(dim).reference
        refs = [self._describe(t) for t in sources]
        args = (self._describe(output), refs, group, mesh.get_local_rank(dim), root)
        self.nodes.append(Node("cut.passed", args, {}, None, (), user_frame()))


@contextmanager
def _by_meaning(recorder: _Cutter) -> Iterator[None]:
    """Every rank makes the chunks of ``distribute_tensor``, and only the source would show them."""

    def scatter(
        output: torch.Tensor,
        scatter_list: list[torch.Tensor],
        mesh: DeviceMesh,
        mesh_dim: int = 0,
        async_op: bool = False,
        *,
        group_src: int = 0,
    ) -> None:
        if mesh.get_coordinate() is not None:
            recorder.passed(output, scatter_list, mesh, mesh_dim, group_src)

    def broadcast(
        tensor: torch.Tensor,
        mesh: DeviceMesh,
        mesh_dim: int = 0,
        async_op: bool = False,
        *,
        group_src: int = 0,
    ) -> None:
        if mesh.get_coordinate() is not None:
            recorder.passed(tensor, [tensor], mesh, mesh_dim, group_src)

    changes: list[tuple[Any, str, Any]] = [
        (placement_types, "mesh_scatter", scatter),
        (placement_types, "mesh_broadcast", broadcast),
        (_api, "mesh_broadcast", broadcast),
    ]
    saved = [getattr(module, name) for module, name, _ in changes]
    for module, name, function in changes:
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name, _), function in zip(changes, saved, strict=True):
            setattr(module, name, function)


@dataclass
class _Cuts:
    """The recorded call, lowered, and its outputs."""

    recorder: _Cutter
    sources: Mapping[str, TensorRef]
    _frames: dict[int, dict[Geometry, Frame]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lowering = Lowering(lambda _group: (), dist.get_rank())
        for name, ref in self.sources.items():
            self._lowering.add_input(name, ref)
        tables = {}
        for i, (ref, array) in enumerate(self.recorder.tables):
            if array.size:
                tables[f"table.{i}"] = array
                self._lowering.add_input(f"table.{i}", ref)
        self._origins = Origins(self._lowering.builder, tables)
        for node in self.recorder.nodes:
            self._run(node)
            self._note(node)

    def _note(self, node: Node) -> None:
        """A tensor is cut where it was written, or where the first view of it was taken."""
        if node.frame is None:
            return
        for ref in _refs(node.outs):
            self._frames.setdefault(ref.storage, {}).setdefault(ref.geometry, node.frame)
        for ref in node.writes:
            self._frames.setdefault(ref.storage, {})[ref.geometry] = node.frame

    def _run(self, node: Node) -> None:
        lowering, args = self._lowering, node.args
        if _RANDOM.match(node.op):
            for ref in node.writes or _refs(node.outs):
                self._write(node, ref, lambda ref: self._fresh("random", ref))
        elif node.op == "cut.passed":
            self._pass(node, *args)
        elif node.op == "dist.broadcast":
            outs, _, group, root = args
            for ref in outs:
                self._pass(node, ref, [ref], group, group.ranks.index(dist.get_rank()), root)
        elif node.op == "dist.scatter" and args[1]:
            ((out,), (sources,), group, root) = args
            self._pass(node, out, sources, group, group.ranks.index(dist.get_rank()), root)
        elif _SILENT.match(node.op):
            return
        elif _COLLECTIVE.match(node.op):
            problem = LoweringError("a collective while the model is cut", op=node.op)
            for ref in _refs((node.args, node.outs)):
                self._write(node, ref, lambda ref: lowering.refused(problem, _type(ref)))
        else:
            lowering.run([node])

    def _write(self, node: Node, ref: TensorRef, value: Callable[[TensorRef], Value]) -> None:
        try:
            self._lowering.write(ref, value(ref))
        except CaptureError as error:
            error.op = error.op or node.op
            self._lowering.memory.allocate(ref.storage, ref.dtype, ref.geometry)
            self._lowering.write(ref, self._lowering.refused(error, _type(ref)))

    def _fresh(self, kind: str, ref: TensorRef) -> Value:
        builder = self._lowering.builder
        return builder.input(f"{kind}.{len(builder.inputs)}", _type(ref))

    def _pass(
        self,
        node: Node,
        output: TensorRef,
        sources: Sequence[TensorRef],
        group: GroupRef,
        own: int,
        root: int,
    ) -> None:
        members = "-".join(map(str, group.ranks))
        key = f"{members}/{group.ordinal}#{self.recorder.call(group)}"

        def passed(ref: TensorRef) -> Value:
            values = [self._lowering.read(source) for source in sources]
            mine = own if len(values) > 1 else 0
            sent = range(len(values)) if own == root else [mine]
            digests = [f"{key}.{i}={self._origins.digest(values[i].name)}" for i in sent]
            builder = self._lowering.builder
            return builder.emit(
                "agreed", (values[mine],), _type(ref), shared=False, digests=" ".join(digests)
            )

        self._write(node, output, passed)

    def of(self, model: nn.Module) -> dict[str, Cut]:
        """The cuts of the parameters and buffers of a rank's model, as far as they are fake."""
        held = {n: t for n, t in tensors(model).items() if isinstance(t, FakeTensor) and t.numel()}
        return {name: self._cut(reference(tensor)) for name, tensor in held.items()}

    def _cut(self, ref: TensorRef) -> Cut:
        frame, shape = self._frame(ref), ref.geometry.size
        try:
            value = self._lowering.read(ref)
            parts = self._origins.parts(value)
        except Computed as error:
            return self._computed(error.draft, frame, shape)
        except (CaptureError, Unfollowable) as error:
            return Cut(None, frame, shape, f"cannot be followed: {error}", computed=True)
        parts = tuple(p if p.source in self.sources else replace(p, source=None, index=()) for p in parts)
        if all(p.source is None for p in parts):
            return Cut(None, frame, shape, "holds nothing of the single device's tensors")
        passed = [d for d in self._origins.drafts(value.name) if d.name == "agreed"]
        texts = [text.partition("=") for d in passed for text in str(d.attr("digests")).split()]
        return Cut(parts, frame, shape, agreed=tuple(sorted({(key, digest) for key, _, digest in texts})))

    def _computed(self, draft: Draft, frame: Frame | None, shape: tuple[int, ...]) -> Cut:
        problem = self._lowering.problem(draft)
        if isinstance(problem, ClosureError):
            return Cut(None, frame, shape, "comes from outside the single device's model")
        used = sorted(self._origins.reads(draft.out) & set(self.sources))
        if not used and (problem is None or isinstance(problem, UnsupportedOpError)):
            return Cut(None, frame, shape, f"is computed by {draft.name}")
        what = draft.name if problem is None else problem.message
        return Cut(
            None, frame, shape, f"is computed from {', '.join(used) or 'others'} ({what})", computed=True
        )

    def _frame(self, ref: TensorRef) -> Frame | None:
        known = self._frames.get(ref.storage, {})
        return known.get(ref.geometry) or next(reversed(known.values()), None)


def _refs(tree: object) -> list[TensorRef]:
    return [t for t in tree_leaves(tree) if isinstance(t, TensorRef)]


def _type(ref: TensorRef) -> TensorType:
    return TensorType(ref.dtype, ref.geometry.size)
