"""Values whose dimensions are moved, joined and split, and values that a mask chooses between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from certificates.plan.affine import Affine
from certificates.plan.program import Op

from ..cells import Unfollowable
from .scope import Scope
from .sums import Places
from .values import ONE, Letter, Value, number
from .writing import groups


class Part(NamedTuple):
    """A slice, dimension by dimension."""

    starts: tuple[Affine, ...]
    strides: Places
    shape: Places


class Moving:
    """Letters in other places, by the ops that bring them there."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.writer = scope, scope.writer
        #: Told of a letter, of the part of it that was made, and of where that lies.
        self.parted: Callable[[str, str, Part], None] = lambda _name, _made, _part: None
        #: By mask its truth value as a number, or that of its opposite.
        self._truths: dict[str, tuple[str, bool]] = {}

    def moved(self, op: Op) -> Value:
        """What a broadcast, a transpose, a reshape or a slice gives."""
        value = self.scope.value(op.ins[0])
        if op.name == "slice":
            return self._sliced(op, value)
        if op.name == "broadcast_in_dim":
            return along(value, op.ints("dims"))
        if op.name == "transpose":
            perm = op.ints("perm")
            return along(value, tuple(map(perm.index, range(len(perm)))))
        before, after = self.writer.types[op.ins[0]].shape, op.type.shape
        return self.regrouped(value, groups(before, after), before, after)

    def _sliced(self, op: Op, value: Value) -> Value:
        starts, strides, shape = op.affines("start"), op.ints("stride"), op.type.shape
        if not all(f.is_const for f in starts):
            raise Unfollowable(f"{op.out}: a slice at a place of the rank's")
        before = self.writer.types[op.ins[0]].shape

        def moved(x: Letter) -> Letter:
            if all(before[p] == shape[p] for p in x.at):
                return x
            part = Part(
                tuple(starts[p] for p in x.at), tuple(strides[p] for p in x.at), tuple(shape[p] for p in x.at)
            )
            made = self.part(x.name, part)
            self.parted(x.name, made, part)
            name = self.scope.like(self.writer.squeezed(made), made)
            return Letter(name, tuple(p for p in x.at if shape[p] > 1), x.truth)

        return value.renamed(moved)

    def part(self, name: str, part: Part) -> str:
        """A part of a letter."""
        dtype = self.writer.types[name].dtype
        made = self.writer.op("slice", (name,), part.shape, dtype, start=part.starts, stride=part.strides)
        return self.scope.like(made, name)

    def regrouped(
        self,
        value: Value,
        parts: Sequence[tuple[Places, Places]],
        before: Sequence[int],
        after: Sequence[int],
    ) -> Value:
        """Dimensions that are joined or split, group by group: letters with some of a group get all of it."""
        there = {p: g for g in parts for p in g[0]}

        def moved(x: Letter) -> Letter:
            touched = [g for g in parts if any(p in g[0] for p in x.at)]
            if all(len(own) == len(new) == 1 for own, new in touched):
                return Letter(x.name, tuple(there[p][1][0] for p in x.at), x.truth)
            want = tuple(p for own, _ in touched for p in own)
            name = self.writer.placed(x.name, x.at, want, before)
            at = tuple(p for _, new in touched for p in new)
            name = self.writer.reshaped(name, [after[p] for p in at])
            return self._seen(self.scope.like(name, x.name), at, x.truth)

        return value.renamed(moved)

    def split(self, value: Value, into: Mapping[int, Places], at: Mapping[int, Places]) -> Value:
        """Letters with dimensions taken apart into some sizes, and where these lie."""

        def moved(x: Letter) -> Letter:
            name, places = x.name, tuple(q for p in x.at for q in at[p])
            if any(p in into for p in x.at):
                own = self.writer.types[name].shape
                shape = [n for p, size in zip(x.at, own, strict=True) for n in into.get(p, (size,))]
                name = self.scope.like(self.writer.reshaped(name, shape), x.name)
            return self._seen(name, places, x.truth)

        return value.renamed(moved)

    def _seen(self, name: str, at: Places, truth: bool) -> Letter:
        """A letter, by the name that it has where it is read as an operand."""
        if name in self.scope.ops and name not in self.scope.lively:
            x = self.scope.alone(self.scope.value(name))
            if x is not None:
                return Letter(x.name, tuple(at[p] for p in x.at), x.truth)
        return Letter(name, at, truth)

    def chosen(self, op: Op) -> Value:
        """What a mask chooses: a truth value times the one, and its opposite times the other."""
        mask, yes, no = op.ins
        if self.scope.is_constant(mask):
            return self.scope.value(yes if self.scope.ops[mask].attrs["value"] == "true" else no)
        mask, at = self._mask(mask)
        if mask not in self._truths:
            kept, name = not self.scope.is_constant(yes), self.writer.squeezed(mask)
            shape = self.writer.types[name].shape
            name = name if kept else self.writer.op("not", (name,), shape, "i1")
            self._truths[mask] = self.writer.op("convert", (name,), shape, op.type.dtype), kept
        name, kept = self._truths[mask]
        values = self.scope.values
        truth = Value({frozenset({(Letter(name, at, truth=True), ONE)}): ONE}, {})
        other = values.plus(number(ONE), values.scaled(truth, -ONE))
        one, two = (truth, other) if kept else (other, truth)
        return values.plus(values.times(one, self.scope.value(yes)), values.times(two, self.scope.value(no)))

    def _mask(self, name: str) -> tuple[str, Places]:
        """The mask that was moved to be this one, and where its dimensions lie that are not 1."""
        ops = self.scope.ops
        at = tuple(range(len(self.writer.types[name].shape)))
        while name in ops and ops[name].name in ("broadcast_in_dim", "transpose"):
            op = ops[name]
            if op.name == "broadcast_in_dim":
                at = tuple(at[d] for d in op.ints("dims"))
            else:
                perm = op.ints("perm")
                at = tuple(at[perm.index(d)] for d in range(len(perm)))
            name = op.ins[0]
        shape = self.writer.types[name].shape
        return name, tuple(p for p, n in zip(at, shape, strict=True) if n > 1)


def along(value: Value, places: Sequence[int]) -> Value:
    """A value whose dimensions lie along others."""
    return value.renamed(lambda x: Letter(x.name, tuple(places[p] for p in x.at), x.truth))
