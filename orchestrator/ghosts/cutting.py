"""Ops on tensors that were put behind each other, part by part: each part is followed by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from certificates.plan.affine import Affine
from certificates.plan.program import Attr, Op
from certificates.plan.types import TensorType

from ..cells import Unfollowable
from ..relating.access import access
from .scope import Hop, Scope
from .writing import MOVES, groups

#: What of an op on parts is the op on all, part by part.
ELEMENTWISE = frozenset(("add", "subtract", "negate", "multiply", "divide", "exponential", "log", "convert"))


@dataclass(frozen=True)
class Join:
    """``parts`` of a tensor behind each other along ``dim``, from each of ``starts`` to the next of them."""

    dim: int
    parts: tuple[str, ...]
    starts: tuple[int, ...]

    def spans(self) -> Sequence[tuple[str, int, int]]:
        return list(zip(self.parts, self.starts, self.starts[1:], strict=False))


class Cutting:
    """The joins of one program; ``follow`` takes an op that was written, and says what it is."""

    def __init__(self, scope: Scope, follow: Callable[[Op], None]) -> None:
        self.scope, self.writer, self._follow = scope, scope.writer, follow
        self.joins: dict[str, Join] = {}

    def take(self, op: Op) -> None:
        """Follow a concatenation, or an op that reads one, if that can be done part by part."""
        if op.name == "concatenate":
            self._concatenated(op)
        else:
            self._through(op)

    def _concatenated(self, op: Op) -> None:
        """Keep the parts of a tensor, if laws are about some of them and all have more than one row."""
        dim, starts, parts = op.integer("dim"), [0], list[str]()
        for name in op.ins:
            own = self.joins.get(name)
            of = own.spans() if own and own.dim == dim else [(name, 0, self.writer.types[name].shape[dim])]
            for part, first, last in of:
                parts.append(part)
                starts.append(starts[-1] + last - first)
        rows = [b - a for a, b in itertools.pairwise(starts)]
        if any(v in self.scope.lively for v in parts) and 1 not in rows:
            self._join(op.out, Join(dim, tuple(parts), tuple(starts)))

    def _through(self, op: Op) -> None:
        """Follow an op that reads a join part by part; where that cannot be done it is a letter."""
        joined = next(v for v in op.ins if v in self.joins)
        join, count = self.joins[joined], len(self.scope.hops)
        try:
            if op.name == "slice" and self._sliced(op, join):
                return
            dims, dim = self._along(op, joined, join.dim)
            parts = [self._part(op, dims, dim, first, last) for _, first, last in join.spans()]
        except Unfollowable:
            parts = []
        if not any(v in self.scope.lively for v in parts):
            del self.scope.hops[count:]
            return
        self._join(op.out, Join(dim, tuple(parts), join.starts))
        if op.name not in MOVES:
            shape = op.type.shape
            whole = self.writer.op("concatenate", parts, shape, op.type.dtype, dim=dim)
            still = {g.out for g in self.writer.ghosts if g.name not in (*MOVES, "concatenate")}
            self.scope.hops.append(Hop(op.out, whole, frozenset(still - {*parts}), opened=frozenset(parts)))

    def _join(self, name: str, join: Join) -> None:
        self.joins[name] = join
        self.scope.known[name] = self.scope.letter(name)
        self.scope.lively.add(name)

    def _sliced(self, op: Op, join: Join) -> bool:
        """Some rows of what was joined: all or some of one part."""
        start, stride = op.affines("start")[join.dim], op.ints("stride")[join.dim]
        size, whole = op.type.shape[join.dim], join.starts[-1]
        if size == whole:
            return False
        if not start.is_const or stride != 1:
            raise Unfollowable(f"{op.out}: rows of several parts")
        for part, first, last in join.spans():
            if first <= start.const and start.const + size <= last:
                starts = list(op.affines("start"))
                starts[join.dim] = Affine(start.const - first)
                shape = self.writer.types[part].shape
                if shape != op.type.shape:
                    part = self._written(
                        "slice", (part,), op.type, start=tuple(starts), stride=op.ints("stride")
                    )
                self.scope.known[op.out] = self.scope.value(part)
                if part in self.joins:
                    self.joins[op.out] = self.joins[part]
                if part in self.scope.lively:
                    self.scope.lively.add(op.out)
                return True
        raise Unfollowable(f"{op.out}: rows of several parts")

    def _along(self, op: Op, joined: str, dim: int) -> tuple[list[int | None], int]:
        """The dimension that is cut in each operand, and in the result."""
        if op.name in ELEMENTWISE or op.name == "slice":
            return [dim] * len(op.ins), dim
        if op.name == "broadcast_in_dim":
            return [dim], op.ints("dims")[dim]
        if op.name == "transpose":
            return [dim], op.ints("perm").index(dim)
        if op.name == "reshape":
            for own, new in groups(self.writer.types[joined].shape, op.type.shape):
                if own == (dim,) and len(new) == 1:
                    return [dim], new[0]
        elif op.name in ("reduce", "dot_general") and len(set(op.ins)) == len(op.ins):
            found = access(op, [self.writer.types[v].shape for v in op.ins])
            if found is not None and found.kind == "add":
                name = found.operands[op.ins.index(joined)][dim]
                if name in found.out:
                    dims = [p.index(name) if name in p else None for p in found.operands]
                    return dims, found.out.index(name)
        raise Unfollowable(f"{op.out}: {op.name} of what was joined")

    def _part(self, op: Op, dims: Sequence[int | None], dim: int, first: int, last: int) -> str:
        """The op on some rows of its operands."""
        ins = [v if d is None else self._rows(v, d, first, last) for v, d in zip(op.ins, dims, strict=True)]
        shape = list(op.type.shape)
        shape[dim] = last - first
        made = self._written(op.name, ins, replace(op.type, shape=tuple(shape)), **op.attrs)
        if any(v in self.scope.lively for v in ins) and made not in self.scope.lively:
            raise Unfollowable(f"{op.out}: a part is not followed")
        return made

    def _rows(self, name: str, dim: int, first: int, last: int) -> str:
        join = self.joins.get(name)
        if join is not None and join.dim == dim:
            found = [part for part, a, b in join.spans() if (a, b) == (first, last)]
            if not found:
                raise Unfollowable(f"{name}: other parts")
            return found[0]
        kind = self.writer.types[name]
        starts, shape = [Affine(0)] * len(kind.shape), list(kind.shape)
        starts[dim], shape[dim] = Affine(first), last - first
        strides = (1,) * len(shape)
        return self._written(
            "slice", (name,), replace(kind, shape=tuple(shape)), start=tuple(starts), stride=strides
        )

    def _written(self, name: str, ins: Sequence[str], kind: TensorType, /, **attrs: Attr) -> str:
        """A ghost that is followed like an op of the program."""
        before = len(self.writer.ghosts)
        made = self.writer.op(name, ins, kind.shape, kind.dtype, **attrs)
        if len(self.writer.ghosts) > before:
            self._follow(self.writer.ghosts[before])
        return made
