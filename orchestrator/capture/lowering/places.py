"""Where index tensors point: the elements that ``x[i, :, j]`` names, as positions along one dimension.

The indexed dimensions of ``x`` come first and are flattened, ``i * n + j``. An index that counts a
dimension through
(``x[arange(n), j]``, however the range is broadcast) needs no position: it makes that dimension a batch
dimension of the look-up, which is what it means, and what a dimension cut over ranks stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from certificates.plan.affine import Affine

from ..builder import Value, broadcast_shape
from .ranges import wrapped
from .table import Context


@dataclass(frozen=True)
class Places:
    """``shape`` is that of the index tensors, ``axes`` how it is reordered: first those that are counted
    through.

    ``order`` reorders the dimensions of ``x``: those counted through, those looked up (``size`` elements in
    all), the
    others. ``index`` has the axes in their new order. ``before`` of the other dimensions come before
    ``shape`` in a result.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    order: tuple[int, ...]
    counted: int
    looked_up: int
    before: int
    index: Value
    #: Does every entry of the index tensors name another element?
    distinct: bool

    @property
    def size(self) -> int:
        """Elements of the dimensions that are looked up."""
        return math.prod(self.whole[d] for d in self.order[self.counted : self.counted + self.looked_up])

    @property
    def rest(self) -> tuple[int, ...]:
        """Sizes of the dimensions that no tensor indexes."""
        return tuple(self.whole[d] for d in self.order[self.counted + self.looked_up :])

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of ``x[indices]``."""
        return (*self.rest[: self.before], *self.shape, *self.rest[self.before :])

    def flattened(self, c: Context, x: Value) -> Value:
        """``x`` as [counted, looked up, others], the looked up dimensions as one."""
        moved = c.b.transpose(x, self.order)
        return c.b.reshape(moved, (*moved.shape[: self.counted], self.size, *self.rest))

    def restored(self, c: Context, x: Value) -> Value:
        """What :meth:`flattened` gave, as it was."""
        moved = c.b.reshape(x, [self.whole[d] for d in self.order])
        return c.b.transpose(moved, [self.order.index(d) for d in range(len(self.order))])

    def gathered(self, c: Context, found: Value) -> Value:
        """[axes of the index, others] in the order of a result."""
        rank = len(self.shape)
        axes = [self.axes.index(a) for a in range(rank)]
        others = list(range(rank, rank + len(self.rest)))
        return c.b.transpose(found, [*others[: self.before], *axes, *others[self.before :]])

    def spread(self, c: Context, values: Value) -> Value:
        """Values of the shape of a result as [axes of the index, others]."""
        rank = len(self.shape)
        axes = [self.before + a for a in self.axes]
        others = [d for d in range(rank + len(self.rest)) if not self.before <= d < self.before + rank]
        return c.b.transpose(c.b.expand(values, self.result), [*axes, *others])


def places(c: Context, whole: Sequence[int], indices: Sequence[Value | None]) -> Places:
    """Where integer index tensors point in a tensor of shape ``whole``."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not given or any(i.type.sort != "Int" for _, i in given):
        raise c.refuse("an index that is no tensor of row numbers")
    shape: tuple[int, ...] = ()
    for _, index in given:
        shape = broadcast_shape(shape, index.shape)
    through: dict[int, int] = {}
    apart, differing = {axis for axis, size in enumerate(shape) if size == 1}, set[int | None]()
    for d, index in given:
        axis = counted_axis(c, c.b.expand(index, shape))
        differing |= {distinct_axis(c, c.b.expand(index, shape))}
        apart |= set() if axis is None else {axis}
        if axis is not None and shape[axis] == whole[d] and axis not in through.values():
            through[d] = axis
    if len(through) == len(given):  # one is looked up
        del through[given[-1][0]]
    looked_up = [d for d, _ in given if d not in through]
    axes = (*through.values(), *(a for a in range(len(shape)) if a not in through.values()))
    position: Value | None = None
    for d, index in given:
        if d in looked_up:
            found = wrapped(c, index, whole[d])
            position = (
                found
                if position is None
                else c.b.binary("add", *_wide(c, _times(c, position, whole[d]), found))
            )
    assert position is not None
    dims = [d for d, _ in given]
    others = [d for d in range(len(whole)) if d not in dims]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return Places(
        tuple(whole),
        shape,
        axes,
        (*through, *looked_up, *others),
        len(through),
        len(looked_up),
        dims[0] if adjacent else 0,
        c.b.transpose(c.b.expand(position, shape), axes),
        # One axis more may differ for each place of the others: of two such ones that says nothing.
        not (left := set(range(len(shape))) - apart) or (len(left) == 1 and left <= differing),
    )


def _times(c: Context, x: Value, factor: int) -> Value:
    return c.b.scale(c.b.convert(x, "i64"), factor)


def _wide(c: Context, *values: Value) -> list[Value]:
    return [c.b.convert(v, "i64") for v in values]


def counted_axis(c: Context, x: Value) -> int | None:
    """The axis along which ``x`` is 0, 1, 2, …, the same along all others; ``None`` if there is none."""
    found = counted_from(c, x)
    return found[0] if found is not None and found[1] == 0 else None


def counted_from(c: Context, x: Value) -> tuple[int, int] | None:
    """The axis along which ``x`` is n, n + 1, n + 2, …, the same along all others, and n; ``None`` if there
    is none. So a rank numbers the rows that it has of a table.
    """
    draft = c.b.draft(x)
    if draft is not None and draft.name == "iota":
        return int(str(draft.attr("dim"))), 0
    if draft is not None and draft.name in ("add", "subtract"):
        return _counted_with(c, [c.b.operand(x, i) for i in (0, 1)], 1 if draft.name == "add" else -1)
    moved = _moved(c, x)
    found = None if moved is None else counted_from(c, moved)
    axis = None if found is None else _axis_now(c, x, found[0])
    return None if found is None or axis is None else (axis, found[1])


def _counted_with(c: Context, operands: Sequence[Value], sign: int) -> tuple[int, int] | None:
    """Numbers that are counted, and one number added to all of them, or subtracted."""
    for x, number in (operands, operands[::-1])[: 2 if sign == 1 else 1]:
        made = c.b.made_by(number, "constant")
        value = None if made is None else made.attr("value")
        found = counted_from(c, x) if isinstance(value, Affine) else None
        if found is not None and isinstance(value, Affine):
            return found[0], found[1] + sign * value.const
    return None


def distinct_axis(c: Context, x: Value) -> int | None:
    """An axis along which no two elements of ``x`` are equal, at each place of the others; ``None`` if none
    is known."""
    draft = c.b.draft(x)
    if x.name in c.distinct:
        return c.distinct[x.name]
    if draft is not None and draft.name == "iota":
        return int(str(draft.attr("dim")))
    if draft is not None and draft.name == "slice":
        return distinct_axis(c, c.b.operand(x))
    moved = _moved(c, x)
    axis = None if moved is None else distinct_axis(c, moved)
    return None if axis is None else _axis_now(c, x, axis)


def _moved(c: Context, x: Value) -> Value | None:
    """What was moved, or converted between integers, to give ``x``."""
    draft = c.b.draft(x)
    moves = "broadcast_in_dim", "transpose", "reshape", "convert"
    return c.b.operand(x) if draft is not None and draft.name in moves else None


def _axis_now(c: Context, x: Value, axis: int) -> int | None:
    """Where ``axis`` of the operand is in ``x``, which was made of it by a move; ``None`` if not whole."""
    draft, source = c.b.drafts[x.name], c.b.operand(x)
    if draft.name == "convert":
        return axis
    if draft.name == "reshape":  # only of dimensions of size 1
        kept = [d for d, n in enumerate(source.shape) if n > 1]
        now = [d for d, n in enumerate(x.shape) if n > 1]
        same = [source.shape[d] for d in kept] == [x.shape[d] for d in now]
        return now[kept.index(axis)] if same and axis in kept else None
    order = draft.attr("dims" if draft.name == "broadcast_in_dim" else "perm")
    assert isinstance(order, tuple)
    found = [int(str(o)) for o in order]
    target = found[axis] if draft.name == "broadcast_in_dim" else found.index(axis)
    return target if x.shape[target] == source.shape[axis] else None
