"""The process group of a trace: every collective and point-to-point call reaches it and becomes a node.

It stands in place of a backend. ``torch.distributed``, FSDP and the C++ Reducer of DistributedDataParallel
call its methods; each becomes one :class:`~.recorder.Node` ``dist.*`` of the recorder that is at work, with
communicator, buffers, reduction and the number of its :class:`~.work.Work`. Functional collectives are ops
that the recorder sees.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from . import amounts
from .bookkeeping import BOOK
from .builder import Frame
from .ddp import reducers
from .disguise import INHERITS
from .errors import GroupError
from .frames import is_users, runs_in, user_frame
from .recorder import GroupRef, ReduceRef, active, batch_number, forget_constant
from .substituting import by_user
from .work import Work, futures_are_ours

#: The name under which PyTorch knows the backend, and that of a job, which the user's code is told.
BACKEND, IN_A_JOB = "traced", "nccl"
#: The name of a group, and the line that made it.
Made = tuple[str, Frame | None]
#: What a Reducer compares with the other members of its group, in order: call, integers and the user's line.
Agreed = tuple[str, tuple[int, ...], Frame | None]
_OWN = frozenset(("_rank", "_size", "_name", "_frame", "ranks", "_batch", "ordinal", "_backend"))
#: Backends of groups of a job whose collectives are those that a trace knows.
_BACKENDS = (IN_A_JOB, "gloo")
#: Of groups that code makes and never calls, as torchtitan does; among one rank it does what all do.
_UNUSED = "fake"
#: Reductions that one of these has not.
_NO_GLOOS = ("AVG", "PREMUL_SUM")
#: Groups that this process made and belongs to, in order; kept until the next trace, destroyed or not.
_made: list[Traced] = []


#: What the Reducers of this process took the members of each group to have alike.
_agreed: dict[GroupRef, list[Agreed]] = {}
#: What the user's code has asked for, where a group is made now.
_asked: list[str] = []
#: Numbers of the batches of messages that are issued now.
_batches: list[int] = []


class Traced(dist.ProcessGroup):  # type: ignore[misc]
    """One communicator. Its methods have the names and arguments that PyTorch calls."""

    def __init__(self, rank: int, size: int, ranks: Sequence[int], name: str) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name = rank, size, name
        self._frame = user_frame()
        self.ranks = tuple(ranks) or tuple(range(size))
        #: As a job has it.
        self._backend = _asked[-1] if _asked else IN_A_JOB
        self._batch: list[int] | None = None  # works of a coalesced batch that was not launched yet
        self.ordinal = sum(g.ranks == self.ranks for g in _made)
        _made.append(self)
        recorder = active()
        if recorder is not None:  # an error where the program is made: user code may swallow an exception
            recorder.collective("new_group", [], [], (self.reference,))

    def __getattribute__(self, name: str) -> Any:
        """What a group inherits that has no backend, it would answer otherwise than one of a job."""
        kind = dist.ProcessGroup
        strange = name not in vars(Traced) and hasattr(kind, name) and not hasattr(object, name)
        if strange and by_user(sys._getframe(1)):
            raise GroupError(
                f"group.{name} asks the group of a trace, which has no backend: a job's says something else",
                frame=user_frame(),
                instead="what a job's group answers, without the question",
            )
        return super().__getattribute__(name)

    def others(self) -> dict[str, Any]:
        """Attributes that are not its own: somebody counts with them, perhaps."""
        return {key: item for key, item in vars(self).items() if key not in _OWN}

    # --- what PyTorch asks a group -------------------------------------------------------------------------

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    getSize, getRank = size, rank

    def name(self) -> str:
        return self._backend if is_users(runs_in(sys._getframe(1))) else BACKEND

    getBackendName = name

    @property
    def group_name(self) -> str:
        return str(dist.distributed_c10d._world.pg_names.get(self, self._name))

    @property
    def reference(self) -> GroupRef:
        """Members in order, and which of this rank's communicators over the same members it is.

        Where all ranks make their groups in one order (:func:`communicators` tells), the ordinal names the
        same communicator on every member.
        """
        return GroupRef(self.ranks, self.ordinal)

    def shutdown(self) -> None:
        """Nothing to close."""

    def abort(self) -> None:
        """Nothing to close."""

    # --- collectives ---------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> Work:
        tensors = _list(tensors)
        return self._event("all_reduce", tensors, tensors, _reduction(opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        return self._event("all_reduce", tensors, tensors, _reduction(opts))

    def broadcast(self, tensors: Any, opts: Any = None, *_: Any) -> Work:
        tensors = _list(tensors)
        return self._event("broadcast", tensors, tensors, _root(opts))

    def allgather(self, outs: Any, ins: Any, opts: Any = None, *_: Any) -> Work:
        return self._event("all_gather", outs, ins)

    def all_gather_single(self, out: Any, source: Any, opts: Any = None, *_: Any) -> Work:
        return self._event("all_gather_single", [out], [source])

    def all_gather_single_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        return self._event("all_gather_single", outs, ins)

    def allgather_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        """Here the outer list has one entry per rank."""
        return self._event("all_gather", [list(lines) for lines in zip(*outs, strict=True)], ins)

    def reduce_scatter(self, outs: Any, ins: Any, opts: Any = None, *_: Any) -> Work:
        return self._event("reduce_scatter", outs, ins, _reduction(opts))

    def reduce_scatter_single(self, out: Any, source: Any, opts: Any = None, *_: Any) -> Work:
        return self._event("reduce_scatter_single", [out], [source], _reduction(opts))

    def reduce_scatter_single_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        return self._event("reduce_scatter_single", outs, ins, _reduction(opts))

    def alltoall(self, outs: Any, ins: Any, opts: Any = None, *_: Any) -> Work:
        return self._event("all_to_all", outs, ins)

    def all_to_all_single(
        self, out: Any, source: Any, to: Any, sizes: Any, opts: Any = None, *_: Any
    ) -> Work:
        return self._event("all_to_all_single", [out], [source], tuple(to), tuple(sizes))

    def scatter(self, outs: Any, ins: Any, opts: Any = None, *_: Any) -> Work:
        return self._event("scatter", outs, ins, _root(opts))

    def gather(self, outs: Any, ins: Any, opts: Any = None, *_: Any) -> Work:
        return self._event("gather", outs, ins, _root(opts))

    def reduce(self, tensors: Any, opts: Any = None, *_: Any) -> Work:
        return self._event("reduce", tensors, tensors, _reduction(opts), _root(opts))

    def barrier(self, opts: Any = None, *_: Any, **__: Any) -> Work:
        return self._event("barrier", [], [])

    def send(self, tensors: Any, to: int, tag: int = 0, *_: Any) -> Work:
        return self._event("send", [], tensors, to, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0, *_: Any) -> Work:
        return self._event("recv", tensors, [], source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0, *_: Any) -> Work:
        return self._event("recv", tensors, [], None, tag)

    _allgather_base, _reduce_scatter_base, alltoall_base = (
        all_gather_single,
        reduce_scatter_single,
        all_to_all_single,
    )
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Work:
        """The works of a batch end together, with the one that is returned here."""
        numbers, self._batch = self._batch, None
        assert numbers is not None, "PyTorch begins every batch that it ends"
        return Work(numbers, [])

    def _event(self, name: str, outs: Any, ins: Any, *arguments: Any) -> Work:
        tensors = [t for t in tree_leaves((outs, ins)) if isinstance(t, torch.Tensor)]
        if tensors and BOOK.keeps(tensors):
            return self._agree(name, outs, ins)
        if not all(isinstance(t, FakeTensor) for t in tensors):
            called = caller(sys._getframe(2)) or name
            raise GroupError(
                f"torch.distributed.{called} on a real tensor: no trace knows what other ranks contribute",
                frame=user_frame(),
                instead="in parallelize a tensor made of one of the model's, as "
                "parameter.new_empty(…); in the step "
                "a buffer or an entry of the batch",
            )
        if self._backend == _UNUSED and len(self.ranks) > 1:
            raise _foreign(_UNUSED)
        lacks = next((a.name for a in arguments if isinstance(a, ReduceRef) and a.name in _NO_GLOOS), None)
        if lacks is not None and self._backend == "gloo":
            raise GroupError(
                f"gloo has no ReduceOp.{lacks}, and a job ends here",
                frame=user_frame(),
                instead="ReduceOp.SUM, and a division by group.size(); or a group of nccl",
            )
        number = None
        recorder = active()
        if recorder is None and amounts.active:
            amounts.active[-1].passed(outs, ins)
        if recorder is not None:
            batch = _batches[-1] if _batches and name in ("send", "recv") else None
            number = recorder.collective(name, outs, ins, (self.reference, *arguments), batch)
        tree_map_only(FakeTensor, forget_constant, outs)
        work = Work([] if number is None else [number], [t for t in tree_leaves(outs) if t is not None])
        if self._batch is not None:
            self._batch += work.numbers
            work.numbers = []
        return work

    def _agree(self, name: str, outs: Any, ins: Any) -> Work:
        """The Reducer compares its own integers over the ranks: all are taken to have those of this one.

        Whether they have is for :func:`.meetings.other_agreements`.
        """
        integers = tuple(int(x) for tensor in _list(ins) for x in tensor.flatten().tolist())
        _agreed.setdefault(self.reference, []).append((name, integers, user_frame()))
        if name == "all_gather":
            with _disable_current_modes(), torch.no_grad():
                for line, source in zip(outs, ins, strict=True):
                    for out in line:
                        out.copy_(source)
        return Work([], [t for t in tree_leaves(outs) if t is not None])


def caller(frame: FrameType | None) -> str | None:
    """The function of ``torch.distributed`` that the user called to get here."""
    name = None
    while frame is not None and frame.f_code.co_filename.startswith(_DISTRIBUTED):
        name = frame.f_code.co_name if not frame.f_code.co_name.startswith("_") else name
        frame = frame.f_back
    return None if name == "wrapper" else name


_DISTRIBUTED = dist.distributed_c10d.__file__.rsplit("/", 1)[0] + "/"


def _list(tensors: Any) -> list[torch.Tensor]:
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]


def _root(opts: Any) -> int:
    return int(opts if isinstance(opts, int) else opts.rootRank)


def _reduction(opts: Any) -> ReduceRef:
    """The reduction and the factor of a ``PREMUL_SUM``, which only the options tell."""
    op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    state = op.__getstate__()  # of a plain kind it is the number alone
    kind, factor = state if isinstance(state, tuple) else (state, None)
    name = dist.ReduceOp.RedOpType(kind).name
    return ReduceRef(name, float(factor) if isinstance(factor, int | float) else None)


INHERITS[Traced] = dist.ProcessGroup


def _create(options: Any, _: Any) -> Traced:
    return Traced(
        options.group_rank, options.group_size, options.global_ranks_in_group, str(options.group_id)
    )


def communicators() -> dict[GroupRef, Made]:
    """Where this rank made each of its groups, and the name by which its members find each other."""
    return {group.reference: (_called(group), group._frame) for group in _made}


def _called(group: Traced) -> str:
    """Members that make it with several backends do not find each other either."""
    return group._name if group._backend == IN_A_JOB else f"{group._name} of {group._backend}"


def agreements() -> dict[GroupRef, tuple[Agreed, ...]]:
    """What the Reducers of this rank compared with the other members of each group."""
    return {group: tuple(said) for group, said in _agreed.items()}


@contextmanager
def _batches_are_told() -> Iterator[None]:
    """Messages of one ``batch_isend_irecv`` have one number: a transport issues them as a whole."""
    original = dist.batch_isend_irecv

    def batch_isend_irecv(ops: list[dist.P2POp]) -> list[Any]:
        _batches.append(batch_number())
        try:
            return list(original(ops))
        finally:
            _batches.pop()

    with ExitStack() as patches:
        for module in [m for m in sys.modules.values() if vars(m).get("batch_isend_irecv") is original]:
            patches.enter_context(patch.object(module, "batch_isend_irecv", batch_isend_irecv))
        yield


def _foreign(backend: str) -> GroupError:
    return GroupError(
        f"a group with the backend {backend!r}: what the collectives of that one do, no trace knows",
        frame=user_frame(),
        instead='dist.new_group(ranks), or with backend="nccl" or backend="gloo"',
    )


@contextmanager
def _backends_are_told() -> Iterator[None]:
    """A group that is asked for with a backend is one of a trace, which says that it has that backend."""
    module = dist.distributed_c10d
    original = module._new_group_with_tag

    @functools.wraps(original)
    def make(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **options: Any) -> Any:
        if backend is None or backend == BACKEND:
            return original(ranks, timeout, backend, *args, **options)
        if str(backend).lower() not in (*_BACKENDS, _UNUSED):
            raise _foreign(str(backend))
        _asked.append(str(backend).lower())
        try:
            return original(ranks, timeout, None, *args, **options)
        finally:
            _asked.pop()

    with patch.object(module, "_new_group_with_tag", make):
        yield


@contextmanager
def process_group(rank: int, size: int) -> Iterator[None]:
    """The world of one rank; every group made inside is a :class:`Traced` one."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    _made.clear()
    _agreed.clear()
    dist.init_process_group(BACKEND, rank=rank, world_size=size, store=FakeStore())
    try:
        with futures_are_ours(), reducers(), _batches_are_told(), _backends_are_told():
            yield
    finally:
        dist.destroy_process_group()
