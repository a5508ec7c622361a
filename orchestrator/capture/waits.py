"""Results of asynchronous collectives that are used before the program waited for them.

A trace runs in order, a network does not: between the call and the wait nobody may read what the collective
writes, and nobody may write what it reads. For some PyTorch waits itself, where the result is first used by
more than a view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch.utils._pytree import tree_leaves

from .builder import Frame
from .errors import WaitError, shown
from .recorder import Node, TensorRef

#: Functional collectives that work on a copy of their operand.
_COPYING = (
    "_c10d_functional.all_reduce.",
    "_c10d_functional.all_reduce_coalesced.",
    "_c10d_functional.broadcast.",
)
_MESSAGES = ("dist.send", "dist.recv")


@dataclass(frozen=True)
class _Pending:
    """A collective that was not waited for: buffers that it writes and that it reads."""

    op: str
    frame: Frame | None
    writes: tuple[TensorRef, ...]
    reads: tuple[TensorRef, ...]

    @property
    def instead(self) -> str:
        if self.op.startswith("_c10d_functional."):
            return (
                "use the result first, or call wait_tensor on it (torch.distributed._functional_collectives)"
            )
        return "call wait() on the handle first"

    @property
    def line(self) -> str:
        return f", started at {shown(self.frame)}" if self.frame else ""


@dataclass
class _Callback:
    """A callback that is running: works that were under way when it was given, and what it wrote so far."""

    number: int
    waiting: dict[object, _Pending]
    writes: list[TensorRef] = field(default_factory=list)


@dataclass
class Waits:
    """What is under way in a trace; nodes are shown to it in order."""

    _pending: dict[object, _Pending] = field(default_factory=dict)
    _open: list[_Callback] = field(default_factory=list)
    #: Works that a callback comes after.
    _after: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def see(self, node: Node) -> Iterator[WaitError]:
        """The uses that come too early in this node."""
        match node.op:
            case "dist.wait":
                self._done(node.args[0])
                return
            case "dist.then":
                number, numbers = node.args
                waiting: dict[object, _Pending] = {
                    n: self._pending.pop(n) for n in self.before(numbers) if n in self._pending
                }
                self._open.append(_Callback(number, waiting))
                self._after[number] = numbers
                return
            case "dist.then_end":
                self._close(node.frame)
                return
            case "_c10d_functional.wait_tensor.default":
                self._pending.pop((node.args[0].storage, "at use"), None)
                started = self._pending.pop((node.args[0].storage, "functional"), None)
                if started is not None and "at_use" in node.kwargs:
                    self._pending[node.outs.storage, "at use"] = replace(started, writes=())
                return
            case "storage.resize":
                written = [r for p in self._pending.values() for r in p.writes if r.storage == node.args[0]]
                yield from self._early(node, (), written)
                return
        if self._open:
            self._open[-1].writes.extend((*node.writes, *_refs(node.outs)))
        if self._pending and not node.view:
            for ref in _refs((node.args, dict(node.kwargs), node.writes)):
                self._pending.pop((ref.storage, "at use"), None)  # PyTorch waits here
            yield from self._early(
                node, _refs((node.args, dict(node.kwargs))), (*node.writes, *_refs(node.outs))
            )
        self._start(node)

    def read(self, name: str, ref: TensorRef) -> Iterator[WaitError]:
        """An output is read when the step is over."""
        for pending in self._pending.values():
            if any(_overlap(ref, other) for other in pending.writes):
                yield WaitError(
                    f"{pending.op} writes it and nobody waited for that",
                    tensor=name,
                    frame=pending.frame,
                    instead="call wait() on the handle before the step ends",
                )

    def left(self) -> Iterator[WaitError]:
        """Messages that nobody waited for when the step is over: the next step may be in their buffers."""
        for pending in self._pending.values():
            if pending.op in _MESSAGES:
                yield WaitError(
                    f"nobody waits for a {pending.op.removeprefix('dist.')}",
                    op=pending.op,
                    frame=pending.frame,
                    instead="call wait() on the handle before the step ends",
                )

    def _start(self, node: Node) -> None:
        if node.op.startswith("dist."):
            self._pending[node.kwargs["work"]] = _Pending(
                node.op, node.frame, node.writes, _refs(node.args[1])
            )
        elif node.op.startswith("_c10d_functional."):
            reads = () if node.op.startswith(_COPYING) else _refs(node.args)
            for out in (*node.writes, *_refs(node.outs)):
                self._pending[out.storage, "functional"] = _Pending(node.op, node.frame, (out,), reads)

    def _early(
        self, node: Node, touched: Sequence[TensorRef], written: Sequence[TensorRef]
    ) -> Iterator[WaitError]:
        for pending in self._pending.values():
            result = any(_overlap(a, b) for a in (*touched, *written) for b in pending.writes)
            operand = any(_overlap(a, b) for a in written for b in pending.reads)
            if result or operand:
                what, use = ("a result", "used") if result else ("an operand", "overwritten")
                yield WaitError(
                    f"{what} of {pending.op} is {use} by {node.op} "
                    f"before anybody waited for it{pending.line}",
                    op=pending.op,
                    frame=node.frame,
                    instead=pending.instead,
                )

    def before(self, numbers: Sequence[int]) -> Iterator[int]:
        """These works and those that they come after."""
        for number in numbers:
            yield number
            yield from self.before(self._after.get(number, ()))

    def _done(self, number: int) -> None:
        for work in self.before([number]):
            self._pending.pop(work, None)

    def _close(self, frame: Frame | None) -> None:
        """A callback runs some time after the works that it waits for: what it wrote is under way, too."""
        callback = self._open.pop()
        if self._open:
            self._open[-1].writes.extend(callback.writes)
        if callback.waiting:
            self._pending[callback.number] = _Pending("a callback", frame, tuple(callback.writes), ())
            self._pending |= callback.waiting


def _refs(tree: object) -> tuple[TensorRef, ...]:
    return tuple(t for t in tree_leaves(tree) if isinstance(t, TensorRef) and 0 not in t.geometry.size)


def _overlap(a: TensorRef, b: TensorRef) -> bool:
    return (
        a.storage == b.storage and a.geometry.offset < b.geometry.end and b.geometry.offset < a.geometry.end
    )
