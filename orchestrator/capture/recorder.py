"""Records every ATen and c10d op of a step, with the storage and geometry of each tensor.

The recorder runs over fake tensors, so nothing is computed and no weight is in memory. It sees local tensors
only: for DTensor and asynchronous collective wrappers it steps aside until they have unwrapped themselves.
Every storage it meets is kept alive, so that no two tensors of a trace share an identity by accident.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from .builder import Frame
from .errors import LoweringError
from .memory import Geometry

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}
#: What to write instead of a real tensor with several values.
_REAL = (
    "a buffer of the model (register_buffer) or an entry of the batch; "
    "only tensors with a single value may be made outside"
)
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_STDLIB, _PACKAGES = (str(Path(sysconfig.get_path(p)).resolve()) + "/" for p in ("stdlib", "purelib"))
#: Frames of these are not the user's; those of models that are installed as packages are.
_LIBRARIES = ("<", *(str(Path(f).resolve().parent) + "/" for f in (torch.__file__, __file__)))
#: Ops that say nothing about values.
_SILENT = frozenset(("prim.device.default", "aten.record_stream.default"))


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A local tensor as an op saw it. ``literal`` is the value of a real (not fake) uniform tensor.

    A complex tensor is its real and imaginary parts along a last dimension of size 2; ``conjugate`` is the
    lazy conjugation that PyTorch keeps as a flag.
    """

    storage: int
    dtype: str
    geometry: Geometry
    literal: bool | int | float | None = None
    conjugate: bool = False
    complex: bool = False


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A process group, by its ranks in group order."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReduceRef:
    """A reduction of a collective, such as ``SUM`` or ``AVG``; ``factor`` is that of ``PREMUL_SUM``."""

    name: str
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded op. ``op`` is ``namespace.name.overload``, or ``storage.resize`` for a freed storage.

    An op with a complex operand or result has the prefix ``complex.``.
    ``writes`` are the arguments that its schema says it changes.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: Any
    writes: tuple[TensorRef, ...]
    frame: Frame | None


def reference(tensor: torch.Tensor) -> TensorRef:
    """Describe a local tensor; an unsupported dtype, or a real tensor with several values, is an error."""
    dtype = _PARTS.get(tensor.dtype, tensor.dtype)
    if dtype not in DTYPES or tensor.is_neg():
        raise LoweringError(f"tensors of {tensor.dtype} have no place in a plan")
    literal: bool | int | float | None = None
    if not isinstance(tensor, FakeTensor) and not tensor.is_meta:
        with _disable_current_modes():
            values = torch.unique(tensor.detach()).tolist()
        if len(values) != 1 or isinstance(values[0], complex):
            raise LoweringError(
                f"a real tensor of shape {list(tensor.shape)} is read by the step; "
                "make it a buffer or an input",
                instead=_REAL,
            )
        literal = values[0]
    size, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    if tensor.is_complex():
        size, stride, offset = (*size, 2), (*(2 * s for s in stride), 1), 2 * offset
    geometry = Geometry.of(size, stride, offset)
    storage = tensor.untyped_storage()._cdata
    return TensorRef(storage, DTYPES[dtype], geometry, literal, tensor.is_conj(), tensor.is_complex())


def is_users(name: str) -> bool:
    """Is this the file name of Python code outside Python's library, PyTorch and this package?"""
    return not name.startswith(_LIBRARIES) and (name.startswith(_PACKAGES) or not name.startswith(_STDLIB))


def user_frame() -> Frame | None:
    """The innermost Python frame of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return name, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


@dataclass
class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Context manager that appends a :class:`Node` per op to ``nodes``."""

    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._alive: list[object] = []
        self._forward: dict[int, Frame] = {}
        self.factor: float | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(t, DTensor | AsyncCollectiveTensor) for t in types):
            return NotImplemented
        name = str(func)
        if name in _SILENT or name.startswith("profiler."):
            return func(*args, **(kwargs or {}))
        # Arguments are described before the op runs: it may change their storage or metadata.
        described = tree_map(self._describe, tuple(args))
        named = tree_map(self._describe, dict(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        outs = tree_map(self._describe, result)
        if any(isinstance(t, torch.Tensor) and t.is_complex() for t in tree_leaves((args, kwargs, result))):
            name = f"complex.{name}"
        written = _written(func, described, named)
        self.nodes.append(Node(name, described, named, outs, written, self._frame()))
        return result

    def resized(self, storage: torch.UntypedStorage) -> None:
        self._alive.append(storage)
        self.nodes.append(Node("storage.resize", (storage._cdata,), {}, None, (), None))

    def _describe(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            self._alive.append(item.untyped_storage())
            return reference(item)
        if isinstance(item, torch.dtype):
            return DTYPES.get(item, str(item))
        if isinstance(item, torch.ScriptObject):
            return _unbox(item, self.factor)
        return item

    def _frame(self) -> Frame | None:
        """Backward ops have no Python frames: autograd's sequence number finds the forward line."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._forward.get(node._sequence_nr(), user_frame())
        frame = user_frame()
        if frame is not None:
            self._forward[torch.autograd._get_sequence_nr() - 1] = frame
        return frame


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[TensorRef, ...]:
    found: list[TensorRef] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            found.extend(t for t in tree_leaves(given) if isinstance(t, TensorRef))
    return tuple(found)


def _unbox(item: torch.ScriptObject, factor: float | None) -> Any:
    kind = item._type().name()
    if kind == "ProcessGroup":
        group = torch.distributed.ProcessGroup.unbox(item)
        return GroupRef(tuple(torch.distributed.get_process_group_ranks(group)))
    if kind == "ReduceOp":
        name = torch.distributed.ReduceOp.RedOpType(item.op()).name
        return ReduceRef(name, factor if name == "PREMUL_SUM" else None)
    return None


def _factor(options: Any) -> float | None:
    """The factor of a ``PREMUL_SUM``, which the dispatcher does not see; ``None`` for other reductions."""
    kind, factor = options.reduceOp.__getstate__()
    known = kind == torch.distributed.ReduceOp.PREMUL_SUM and isinstance(factor, int | float)
    return float(factor) if known else None


@contextmanager
def _factors(recorder: Recorder) -> Iterator[None]:
    """While a reduction runs, the recorder knows its factor."""
    group = torch.distributed.ProcessGroup
    names = ("allreduce", "_reduce_scatter_base", "reduce_scatter_single")
    saved = {name: vars(group)[name] for name in names if name in vars(group)}  # descriptors, to be put back

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            options = next((a for a in (*args, *kwargs.values()) if hasattr(a, "reduceOp")), None)
            recorder.factor = None if options is None else _factor(options)
            try:
                return method(*args, **kwargs)
            finally:
                recorder.factor = None

        return call

    for name in saved:
        setattr(group, name, noting(getattr(group, name)))
    try:
        yield
    finally:
        for name, descriptor in saved.items():
            setattr(group, name, descriptor)


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Record ops and storage resizes (FSDP frees its buffers without any op)."""
    resize: Callable[..., Any] = torch.UntypedStorage.resize_

    def logged(storage: torch.UntypedStorage, size: int) -> Any:
        if storage.nbytes() != size:
            recorder.resized(storage)
        return resize(storage, size)

    torch.UntypedStorage.resize_ = logged
    try:
        with recorder, _factors(recorder):
            yield recorder
    finally:
        torch.UntypedStorage.resize_ = resize
