"""Records every ATen and c10d op of a step, with the storage and geometry of each tensor.

The recorder runs over fake tensors, so nothing is computed and no weight is in memory. It sees local tensors
only: for DTensor and asynchronous collective wrappers it steps aside until they have unwrapped themselves.
Every storage it meets is kept alive, so that no two tensors of a trace share an identity by accident.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from . import amounts
from .amounts import Counted, amount, any_in, unwraps_itself
from .bookkeeping import BOOK
from .builder import Frame
from .errors import LoweringError
from .frames import begins_backward, frames, inside_engine, user_frame, waits_at_use
from .geometry import Geometry
from .raising import refuse_handled
from .roots import shortest
from .signatures import REBINDS, signature
from .strides import Strides
from .warned import refuse_kept

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
#: Elements of a real tensor with several values that is written out; what to write instead of a larger one.
WRITTEN_OUT = 1024
_REAL = (
    "a buffer of the model (register_buffer), an entry of the batch, or ops that make it in the step; "
    f"only tensors with a single value, or of {WRITTEN_OUT} elements at most, may be made outside"
)
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
#: What stands among arguments and is no tensor, group or container.
_PLAIN = frozenset((type(None), bool, int, float, str, torch.device, torch.layout, torch.memory_format))

#: What stands for a real tensor.
Literal = bool | int | float | tuple[bool | int | float, ...]

#: How the value of a literal becomes a tensor of the trace.
LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)
#: The op that waits for a functional collective.
WAIT = "_c10d_functional.wait_tensor.default"
#: Numbers of works and of batches; a step may wait for one that an earlier step began.
_WORKS = itertools.count()


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A local tensor as an op saw it. ``literal`` is the value of a real (not fake) uniform tensor, or those
    of the few elements of another, row-major.

    A complex tensor is its real and imaginary parts along a last dimension of size 2; ``conjugate`` is the
    lazy conjugation that PyTorch keeps as a flag.
    """

    storage: int
    dtype: str
    geometry: Geometry
    literal: Literal | None = None
    conjugate: bool = False
    complex: bool = False


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A communicator: its ranks in group order, and which of a rank's groups with these ranks it is."""

    ranks: tuple[int, ...]
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class ReduceRef:
    """A reduction of a collective, such as ``SUM`` or ``AVG``; ``factor`` is that of ``PREMUL_SUM``."""

    name: str
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded op. ``op`` is ``namespace.name.overload``, or ``storage.resize`` for a freed storage.

    An op with a complex operand or result has the prefix ``complex.``. ``dist.name`` is a call that reached a
    process group (:mod:`.group`): results, operands, communicator, and what else the call says.
    ``writes`` are the arguments that its schema says it changes; a ``view`` names elements of its operand.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: Any
    writes: tuple[TensorRef, ...]
    frame: Frame | None
    view: bool = False
    #: The line of another of the user's files from which the function of ``frame`` was called.
    caller: Frame | None = None
    #: Has it a size or another number that a routing decides (:mod:`.amounts`)?
    sized: bool = False


def batch_number() -> int:
    """A number for messages that are issued together."""
    return next(_WORKS)


def reference(tensor: torch.Tensor) -> TensorRef:
    """Describe a local tensor; an unsupported dtype, or a real tensor with several values, is an error."""
    return _reference(tensor, tensor.untyped_storage())


def _reference(
    tensor: torch.Tensor, storage: torch.UntypedStorage, written_out: int = WRITTEN_OUT
) -> TensorRef:
    dtype = _PARTS.get(tensor.dtype, tensor.dtype)
    if dtype not in DTYPES or tensor.is_neg():
        raise LoweringError(f"tensors of {tensor.dtype} have no place in a plan")
    literal: Literal | None = None
    if not isinstance(tensor, FakeTensor) and not tensor.is_meta:
        with _disable_current_modes():
            values = [] if tensor.is_complex() else torch.unique(tensor.detach()).tolist()
            if len(values) > 1 and tensor.numel() <= written_out:
                literal = tuple(tensor.detach().flatten().tolist())
        if len(values) != 1 and literal is None:
            raise LoweringError(
                f"a real tensor of shape {list(tensor.shape)} is read by the step; "
                "make it a buffer or an input",
                instead=_REAL,
            )
        literal = values[0] if literal is None else literal
        if tensor.dtype.is_floating_point:
            whole = literal if isinstance(literal, tuple) else (literal,)
            short = tuple(shortest(float(x), tensor.dtype) for x in whole)
            literal = short if isinstance(literal, tuple) else short[0]
    size, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    if isinstance(tensor, FakeTensor) and tensor._has_symbolic_sizes_strides:
        size, stride, (offset,) = (tuple(map(_number, of)) for of in (size, stride, (offset,)))
    pairs = tensor.is_complex()
    if pairs:
        size, stride, offset = (*size, 2), (*(2 * s for s in stride), 1), 2 * offset
    geometry = Geometry.of(size, stride, offset)
    return TensorRef(storage._cdata, DTYPES[dtype], geometry, literal, tensor.is_conj(), pairs)


def _number(x: Any) -> Any:
    return amount(x) if isinstance(x, torch.SymInt) else x


@dataclass
class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Context manager that appends a :class:`Node` per op to ``nodes``."""

    nodes: list[Node] = field(default_factory=list)
    #: Elements of a real tensor at most, if they are to be written out.
    written_out = WRITTEN_OUT

    def __post_init__(self) -> None:
        super().__init__()
        self._alive: dict[int, torch.UntypedStorage] = {}
        self._forward: dict[int, tuple[Frame | None, Frame | None]] = {}
        #: Works whose futures the Reducer of DistributedDataParallel holds, with the storages they write.
        self.held: dict[int, frozenset[int]] = {}
        self._buffers: dict[int, frozenset[int]] = {}
        self.counted = Counted()
        self.strides = Strides()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(map(unwraps_itself, types)):
            return NotImplemented
        kwargs = kwargs or {}
        said = signature(func)
        if said.silent:
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and said.composite:
            with self:  # without autograd's dispatch no one else takes it apart
                return func.decompose(*args, **kwargs)
        refuse_kept()
        if BOOK.concerns(func, args, kwargs):
            return BOOK.run(func, args, kwargs)
        if _suspended() and not any(isinstance(t, FakeTensor) for t in tree_leaves((args, kwargs))):
            # A device mesh computes its ranks for real: what a step reads of them is described when it does.
            return func(*args, **kwargs)
        args = self.counted.at_places(func, args, lambda op, *given: self.__torch_dispatch__(op, (), given))
        # Arguments are described before the op runs: it may change their storage or metadata.
        met: list[TensorRef] = []
        described = self._mapped(tuple(args), met)
        named = self._mapped(dict(kwargs), met)
        if said.name == WAIT and waits_at_use():
            named["at_use"] = True
        if said.group is not None:
            described, named = _with_group(said.group, described, named)
        if said.view and func not in LIFTS and met and all(t.literal is not None for t in met):
            # Of a tensor from outside the step, not of a copy that stands for it.
            with _disable_current_modes():
                result = func(*args, **kwargs)
        else:
            result = self.counted.run(func, args, kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
        self.counted.note(func, args, kwargs, result)
        given = met[:]
        if said.name == REBINDS:
            _rebinds(*args)
        outs = self._mapped(result, met)
        name = f"complex.{said.name}" if any(ref.complex for ref in met) else said.name
        written = tuple(_refs(said.written(described, named)))
        if self.held:
            self._release(met)
        frame, caller = self._frame()
        self.strides.ran(func, said, given, met[len(given) :], written, frame, kwargs.get("memory_format"))
        sized = self.counted.reads > 0 and any_in((described, named, outs), TensorRef)
        self.nodes.append(Node(name, described, named, outs, written, frame, said.view, caller, sized))
        return result

    def given(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorRef]:
        """Describe what a step is given; it may drop them, and no other storage may take their identity."""
        return {name: self._describe(tensor) for name, tensor in tensors.items()}

    def collective(
        self, name: str, outs: Any, ins: Any, arguments: tuple[Any, ...], batch: int | None = None
    ) -> int:
        """A call that reached a process group, alone or in a ``batch``; the number is that of its work."""
        refuse_handled()
        self.counted.passed(outs, ins)
        outs, ins = tree_map(self._describe, outs), tree_map(self._describe, ins)
        arguments = tree_map(_number, arguments)
        written = tuple(t for t in tree_leaves(outs) if isinstance(t, TensorRef))
        number = next(_WORKS)
        frame, caller = self._frame()
        self.strides.read(_refs(ins), frame, name)
        self.strides.wrote(written, frame)
        if self.held:
            self._release(_refs((outs, ins)))
        self._buffers[number] = frozenset(t.storage for t in written)
        self.nodes.append(
            Node(
                f"dist.{name}",
                (outs, ins, *arguments),
                {"work": number} if batch is None else {"work": number, "batch": batch},
                None,
                written,
                frame,
                caller=caller,
                sized=self.counted.reads > 0 and any_in((outs, ins, arguments), TensorRef),
            )
        )
        return number

    def waited(self, number: int) -> None:
        """The program has waited for a work."""
        self.held.pop(number, None)
        self.nodes.append(Node("dist.wait", (number,), {}, None, (), user_frame()))

    @contextmanager
    def after(self, numbers: Sequence[int]) -> Iterator[int]:
        """What runs inside runs when these works are done; the number is that of a work that ends with it."""
        number = next(_WORKS)
        self.nodes.append(Node("dist.then", (number, tuple(numbers)), {}, None, (), user_frame()))
        before = len(self.nodes)
        yield number
        inside = [t.storage for node in self.nodes[before:] for t in (*node.writes, *_refs(node.outs))]
        self._buffers[number] = frozenset((*inside, *(s for n in numbers for s in self._buffers.get(n, ()))))
        self.nodes.append(Node("dist.then_end", (number,), {}, None, (), user_frame()))

    def hold(self, number: int) -> None:
        """The Reducer waits for this work before the backward pass is over, without any op."""
        self.held[number] = self._buffers.get(number, frozenset())

    def _release(self, tensors: Sequence[TensorRef]) -> None:
        """Works held by the Reducer whose buffers it uses now, or all when the backward pass is over."""
        over = torch._C._current_graph_task_id() == -1
        if over or inside_engine():
            touched = {t.storage for t in tensors}
            for number, storages in list(self.held.items()):
                if over or touched & storages:
                    self.waited(number)

    def resized(self, storage: torch.UntypedStorage) -> None:
        self._alive[storage._cdata] = storage
        self.nodes.append(Node("storage.resize", (storage._cdata,), {}, None, (), None))

    def _mapped(self, tree: Any, met: list[TensorRef]) -> Any:
        """``tree`` with every leaf described; tensors are added to ``met``, too.

        The containers that ops are called with are walked here, which is much faster than PyTorch's own walk.
        """
        kind = type(tree)
        if kind in _PLAIN:
            return tree
        if kind is tuple:
            return tuple([self._mapped(item, met) for item in tree])
        if kind is list:
            return [self._mapped(item, met) for item in tree]
        if kind is dict:
            return {key: self._mapped(item, met) for key, item in tree.items()}
        described = tree_map(self._describe, tree)
        met += [described] if isinstance(described, TensorRef) else _refs(described)
        return described

    def _describe(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            self._alive[storage._cdata] = storage
            return _reference(item, storage, self.written_out)
        if isinstance(item, torch.dtype):
            return DTYPES.get(item, str(item))
        if isinstance(item, torch.ScriptObject):
            return None
        if isinstance(item, torch.SymFloat | torch.SymBool):
            raise LoweringError("a number of rows becomes a float, or decides what runs next")
        return _number(item)

    def _frame(self) -> tuple[Frame | None, Frame | None]:
        """Where an op was run, and who called that. The user's own backward functions have Python frames; of
        other backward ops autograd's sequence number finds the forward line, of the first ``backward()``'s.
        """
        node = torch._C._current_autograd_node()
        if node is not None:
            forward = self._forward.get(node._sequence_nr()) or frames(engine=False)
            frame, caller = frames(engine=True)
            if frame is None:
                return forward
            others = (f for f in (caller, *forward) if f is not None and f[0] != frame[0])
            return frame, next(others, None)
        found = frames(engine=False)
        if found[0] is not None:
            last = torch.autograd._get_sequence_nr() - 1  # of what follows without a gradient, too
            if last not in self._forward or begins_backward():
                self._forward[last] = found
        return found


def _suspended() -> bool:
    """Has PyTorch taken the fake mode off, to compute with real tensors of its own?"""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None


def _refs(tree: Any) -> list[TensorRef]:
    if isinstance(tree, TensorRef):
        return [tree]
    return [t for t in tree_leaves(tree) if isinstance(t, TensorRef)]


def _with_group(
    place: tuple[int, str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Functional collectives name their group: the name is replaced by what it means here."""
    i, argument = place
    name = args[i] if i < len(args) else kwargs[argument]
    group = _resolve_process_group(name) if isinstance(name, str) else name
    ref = group if isinstance(group, GroupRef) else group.reference
    if i < len(args):
        return (*args[:i], ref, *args[i + 1 :]), kwargs
    return args, kwargs | {argument: ref}


def forget_constant(tensor: torch.Tensor) -> None:
    """A fake tensor made by ``torch.tensor(3)`` remembers 3; once something else wrote it, no more."""
    if isinstance(tensor, FakeTensor) and tensor.constant is not None:
        tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)


def _rebinds(*tensors: torch.Tensor) -> None:
    """They share memory from now on: what either remembers is no longer that of its memory alone."""
    for tensor in tensors:
        forget_constant(tensor)


def _rebound(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """``tensor.data = other``."""
    _rebinds(tensor, other)
    _DATA.__set__(tensor, other)


_DATA: Any = vars(torch._C.TensorBase)["data"]


@contextmanager
def data_forgets() -> Iterator[None]:
    """``.data = …`` is no op, and changes what a tensor holds."""
    before = vars(FakeTensor).get("data")
    FakeTensor.data = property(_DATA.__get__, _rebound)
    try:
        yield
    finally:
        if before is None:
            del FakeTensor.data
        else:
            FakeTensor.data = before


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Record ops, storage resizes (FSDP frees its buffers without any op) and ``.data = …``."""
    resize: Callable[..., Any] = torch.UntypedStorage.resize_

    def logged(storage: torch.UntypedStorage, size: int) -> Any:
        if storage.nbytes() != size:
            recorder.resized(storage)
        return resize(storage, size)

    torch.UntypedStorage.resize_ = logged
    _active.append(recorder)
    amounts.active.append(recorder.counted)
    try:
        with data_forgets(), recorder:
            yield recorder
        for number in list(recorder.held):  # the backward pass is over
            recorder.waited(number)
    finally:
        amounts.active.pop()
        _active.pop()
        torch.UntypedStorage.resize_ = resize


def active() -> Recorder | None:
    """The recorder that is at work."""
    return _active[-1] if _active else None


_active: list[Recorder] = []
