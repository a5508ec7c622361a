"""How the tensors of a step lie in memory, as far as a trace knows, and which of them may share it.

A fake tensor has the strides that PyTorch's meta function gives it. A CPU's or GPU's kernel may choose others
where an operand is not row-major: ``logsigmoid`` of a transposed tensor is row-major on a CPU. Strides decide
whether ``x.contiguous()`` is ``x`` itself or a copy (:mod:`.sharing`); where they are not certain, a write to
one of the two may be one to the other, which must not be read then.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from .builder import Frame
from .errors import AliasingError, CaptureError, shown
from .geometry import Geometry
from .signatures import Signature

#: Ops whose results are row-major however their operands lie.
_ROW_MAJOR = frozenset(("mm", "addmm", "bmm", "baddbmm", "new_empty", "new_zeros", "new_ones", "new_full"))
#: Ops that follow the strides of their operands by a rule that all devices share, as elementwise ones do.
#: Those say so by their tag.
_BY_RULE = frozenset(
    (
        *("clone", "_to_copy", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like"),
        *("sum", "mean", "amax", "amin", "var", "std", "linalg_vector_norm", "cumsum", "any", "all"),
        *("cat", "stack", "gather", "index_select", "embedding", "flip", "roll", "constant_pad_nd"),
        *("sort", "topk", "max", "min", "argmax", "scatter", "index_add"),
    )
)
#: Ops, by parts of their names, whose results lie as a device's library likes, whatever their operands.
_BY_DEVICE = ("attention", "fft", "linalg_", "cholesky", "triangular", "rnn", "lstm", "gru")
#: Ops that write all that they are given to write, and read nothing of it.
_OVERWRITES = ("aten.copy_.", "aten.zero_.", "aten.fill_.")
_LIKES = "the kernel that made it lays it out as it likes, on one device otherwise than on another"
_EITHER = f"`.contiguous()` or `.reshape(…)` gave the tensor itself or a copy; {_LIKES}"
_INSTEAD = (
    "`.clone(memory_format=torch.contiguous_format)` for a copy, `.view(…)` for the same memory; "
    "`.contiguous()` and `.reshape(…)`, without asking, where the other tensor is not used afterwards"
)


class Placed(Protocol):
    """A tensor, as far as it is known where its elements are."""

    @property
    def storage(self) -> int: ...

    @property
    def geometry(self) -> Geometry: ...


class Strides:
    """What ops of a step tell of the storages that they make, write and read."""

    def __init__(self) -> None:
        #: Storages of which a trace does not know in which order a job has their elements, and how many.
        self.uncertain: dict[int, int] = {}
        self._found: list[tuple[str, str | None, Frame | None]] = []
        self._sharing: dict[int, set[int]] = {}
        self._stale: dict[int, Frame | None] = {}

    def may_share(self, one: int, other: int) -> None:
        """These storages are one in a job, or are not."""
        both = self._sharing.get(one, {one}) | self._sharing.get(other, {other})
        self._sharing |= dict.fromkeys(both, both)

    def ran(
        self,
        func: Any,
        said: Signature,
        given: Sequence[Placed],
        made: Sequence[Placed],
        written: Sequence[Placed],
        frame: Frame | None,
        memory_format: object = None,
    ) -> None:
        """Note an op: its operands, its results, and which of the operands it writes."""
        if self._stale and not said.view:
            over = {ref.storage for ref in written} if said.name.startswith(_OVERWRITES) else set()
            self.read([ref for ref in given if ref.storage not in over], frame, said.name)
            for ref in (r for r in written if r.storage in over and self._whole(r)):
                self._stale.pop(ref.storage, None)
        if written and self._sharing:
            self.wrote(written, frame)
        asked = memory_format is torch.contiguous_format
        if made and not said.view and not asked and not _certain(func, self._kind(given)):
            old = {ref.storage for ref in given}
            fresh = [r for r in made if r.storage not in old and _has_order(r.geometry)]
            self.uncertain |= {r.storage: r.geometry.end for r in fresh}

    def _whole(self, ref: Placed) -> bool:
        held = self.uncertain.get(ref.storage)
        return held is not None and ref.geometry.dense and math.prod(ref.geometry.size) == held

    def _kind(self, given: Sequence[Placed]) -> tuple[bool, bool]:
        """Is an operand uncertain, is one not row-major?"""
        uncertain = bool(self.uncertain) and any(ref.storage in self.uncertain for ref in given)
        return uncertain, any(not row_major(ref.geometry) for ref in given)

    def wrote(self, refs: Iterable[Placed], frame: Frame | None) -> None:
        """Note a write: what may share this memory, and is another one in the trace, is out of date."""
        for storage in {ref.storage for ref in refs} & self._sharing.keys():
            self._stale |= dict.fromkeys(self._sharing[storage] - {storage}, frame)

    def read(self, refs: Iterable[Placed], frame: Frame | None, op: str | None = None) -> None:
        """Note a read, also that of the next step or of a result."""
        for storage in {ref.storage for ref in refs} & self._stale.keys():
            writer = self._stale.pop(storage)
            at = f" at {shown(writer)}" if writer is not None else ""
            self._found.append((f"reads what may have been written{at}: {_EITHER}", op, frame or writer))

    def asked(self, name: str, frame: Frame | None) -> None:
        """Note that the user's code asks how an uncertain tensor lies."""
        self._found.append((f"asks by `{name}` how a tensor lies in memory: {_LIKES}", None, frame))

    def problems(self) -> list[CaptureError]:
        """What a job may do otherwise, made into errors when the step is over: in it, one must be raised."""
        return [AliasingError(says, op=op, frame=frame, instead=_INSTEAD) for says, op, frame in self._found]


@functools.cache
def row_major(geometry: Geometry) -> bool:
    """Does a tensor lie in memory as its elements are counted, without gaps?

    Rows of unknown number do: they lie in memory of their own, as a whole (ADR 0198).
    """
    if not all(isinstance(size, int) for size in geometry.size):
        return True
    step = 1
    for size, stride in zip(reversed(geometry.size), reversed(geometry.stride), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


@functools.cache
def _has_order(geometry: Geometry) -> bool:
    """What has elements along one dimension alone lies in one way only."""
    return all(isinstance(n, int) for n in geometry.size) and sum(n > 1 for n in geometry.size) > 1


@functools.cache
def _certain(func: Any, kind: tuple[bool, bool]) -> bool:
    """Are the strides of an op's results known, where an operand is uncertain or is not row-major?"""
    uncertain, other = kind
    name = func._schema.name.removeprefix("aten::")
    if name in _ROW_MAJOR:
        return True
    if any(part in name for part in _BY_DEVICE) and name not in _BY_RULE:
        return False
    return not uncertain and (not other or torch.Tag.pointwise in func.tags or name in _BY_RULE)
