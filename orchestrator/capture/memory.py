"""Functional contents of mutable, aliased storages.

A :class:`Memory` holds, per storage, disjoint segments of elements, each the dense image of one IR value. A
tensor is a :class:`Geometry` over a storage. Reading it assembles reshape, slice, transpose, concatenate and
broadcast from the segments; writing it replaces segments. So views, in-place ops, ``out=`` arguments and
buffers that are filled in pieces need no lowering of their own: whatever made an alias, it is found here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from certificates.plan.types import TensorType

from .builder import Builder, Value
from .errors import AliasingError
from .geometry import Geometry
from .view_lines import ViewLines

#: Slices of one view that shows elements twice.
MOST_SLICES = 64


@dataclass(frozen=True)
class Segment:
    """Elements ``[geometry.offset, geometry.end)`` hold ``value``; ``None`` is memory nobody wrote."""

    geometry: Geometry
    value: Value | None

    @property
    def start(self) -> int:
        return self.geometry.offset

    @property
    def end(self) -> int:
        return self.geometry.end


@dataclass
class _Storage:
    dtype: str
    segments: list[Segment] = field(default_factory=list)
    reads: dict[Geometry, Value] = field(default_factory=dict)


class Memory:
    """All storages of one trace. ``missing`` makes the value of elements that were never written.

    It is told whether anything may stand there: in memory that the step allocated, or ``beside`` a state.
    """

    def __init__(self, builder: Builder, missing: Callable[[TensorType, bool], Value]) -> None:
        self._b = builder
        self._missing = missing
        #: Storages that states lie in, with what is nobody's between them: FSDP pads its shards.
        self.beside: set[int] = set()
        self._storages: dict[int, _Storage] = {}
        #: Where an input with gaps between its elements lies, and the number of a storage of these alone.
        self._parted: dict[int, tuple[Geometry, int]] = {}
        self._numbers = itertools.count(-1, -1)
        self.lines = ViewLines(builder)

    def knows(self, storage: int) -> bool:
        return storage in self._storages or storage in self._parted

    def holds(self, storage: int, geometry: Geometry) -> bool:
        """Is any element of the range known?"""
        if storage in self._parted:
            place, _ = self._parted[storage]
            return place.offset < geometry.end and geometry.offset < place.end
        segments = self._storages[storage].segments if storage in self._storages else []
        return any(s.start < geometry.end and geometry.offset < s.end for s in segments)

    def unwritten(self, storage: int, geometry: Geometry) -> bool:
        """Was memory allocated here that nothing has written?"""
        segments = self._storages[storage].segments if storage in self._storages else []
        return any(s.value is None and s.start <= geometry.offset and geometry.end <= s.end for s in segments)

    def values(self, storages: Set[int]) -> Iterator[Value]:
        """What stands in some storages, in whole or in part."""
        own = {inner for storage, (_, inner) in self._parted.items() if storage in storages}
        for cell in (self._storages[s] for s in storages | own if s in self._storages):
            yield from (s.value for s in cell.segments if s.value is not None)
            yield from cell.reads.values()

    def allocate(self, storage: int, dtype: str, geometry: Geometry) -> None:
        """Fresh memory without contents (``empty``)."""
        self._storages[storage] = _Storage(dtype, [Segment(Geometry.contiguous((geometry.end,)), None)])

    def forget(self, storage: int) -> None:
        """The storage was freed or resized: whatever is read later must be written first."""
        self._storages.pop(storage, None)
        self._parted.pop(storage, None)

    def lose(self, storage: int, instead: Callable[[TensorType], Value]) -> None:
        """Nobody knows which part of a storage was written: all of it is now what ``instead`` makes."""
        self._close(storage)
        cell = self._storages.get(storage)
        if cell is None:
            return
        places = [Geometry.contiguous((s.end - s.start,), s.start) for s in cell.segments]
        cell.segments = [Segment(p, instead(TensorType(cell.dtype, p.size))) for p in places]
        cell.reads = {}

    def read(self, storage: int, dtype: str, geometry: Geometry) -> Value:
        """The value of a tensor. A strided layout without an expression is an :class:`AliasingError`."""
        if 0 in geometry.size:
            raise AliasingError(f"an empty tensor of shape {list(geometry.size)} has no place in a plan")
        if not geometry.apart:
            return self._overlapping(storage, dtype, geometry)
        of, place = self._place(storage, geometry)
        cell = self._storages.setdefault(of, _Storage(dtype))
        if cell.dtype != dtype:
            raise AliasingError(f"a storage of {cell.dtype} is read as {dtype}")
        if place not in cell.reads:
            whole = next((s for s in cell.segments if s.geometry == place and s.value), None)
            if whole is not None and whole.value is not None:
                return whole.value
            with self.lines.taking(storage, geometry):
                found = self._inside(cell, place)
            base, flat = found or self._pieces(cell, place, of in self.beside)
            with self.lines.taking(storage, geometry):
                box = _taken(self._b, flat, place, base)
            with self.lines.laying(storage, geometry):
                cell.reads[place] = _laid(self._b, box, place)
        return cell.reads[place]

    def _overlapping(self, storage: int, dtype: str, geometry: Geometry) -> Value:
        """Windows, such as those of ``unfold``: the slices that they are made of, beside each other."""
        dim, slices = geometry.slices()
        if len(slices) > MOST_SLICES:
            raise AliasingError(f"the view {geometry} is of more than {MOST_SLICES} slices that overlap")
        parts = [self.read(storage, dtype, part) for part in slices]
        with self.lines.laying(storage, geometry):
            return self._b.concatenate(parts, dim)

    def put(self, storage: int, geometry: Geometry, value: Value, *, beside: bool) -> None:
        """Begin a storage with what an input holds; may anything stand ``beside`` its elements?"""
        if beside:
            self.beside.add(storage)
        if not geometry.dense and not self.knows(storage):
            self._parted[storage] = geometry, next(self._numbers)
        self.write(storage, value.dtype, geometry, value)

    def _place(self, storage: int, geometry: Geometry) -> tuple[int, Geometry]:
        """Where a tensor lies: among the elements of an input alone, if it shows nothing between these."""
        if storage not in self._parted:
            return storage, geometry
        place, inner = self._parted[storage]
        found = geometry.within(place)
        if found is None:
            self._close(storage)
            return storage, geometry
        return inner, found

    def _close(self, storage: int) -> None:
        """Put what an input holds in the storage that it lies in."""
        if storage in self._parted:
            place, inner = self._parted.pop(storage)
            whole = place.within(place)
            assert whole is not None, place
            dtype = self._storages[inner].dtype
            self.write(storage, dtype, place, self.read(inner, dtype, whole))

    def write(self, storage: int, dtype: str, geometry: Geometry, value: Value) -> None:
        """Replace the elements that a tensor covers by ``value`` (of its shape)."""
        if value.shape != geometry.size or value.dtype != dtype:
            raise AliasingError(f"a value {value.type} is written to a tensor {dtype}{list(geometry.size)}")
        storage, geometry = self._place(storage, geometry)
        cell = self._storages.setdefault(storage, _Storage(dtype))
        if not cell.segments:
            cell.dtype = dtype
        if cell.dtype != dtype:
            raise AliasingError(f"a storage of {cell.dtype} is written as {dtype}")
        reads: dict[Geometry, Value] = {}
        if not geometry.dense:
            base, flat = self._gather(cell, geometry, storage in self.beside)
            reads[geometry] = value  # of what lies between its elements nothing may be known
            value = _scatter(self._b, flat, geometry, base, value)
            geometry = Geometry.contiguous(value.shape, base)
        kept = [s for s in cell.segments if s.end <= geometry.offset or s.start >= geometry.end]
        for segment in cell.segments:
            if segment.start < geometry.offset < segment.end:
                kept.append(self._part(segment, segment.start, geometry.offset))
            if segment.start < geometry.end < segment.end:
                kept.append(self._part(segment, geometry.end, segment.end))
        cell.segments = sorted([*kept, Segment(geometry, value)], key=lambda s: s.start)
        cell.reads = reads

    def _part(self, segment: Segment, start: int, end: int) -> Segment:
        """The elements ``[start, end)`` of a segment, flat."""
        place = Geometry.contiguous((end - start,), start)
        if segment.value is None or place == segment.geometry:
            return Segment(place, segment.value)
        flat = _memory_order(self._b, segment.value, segment.geometry)
        return Segment(place, self._b.narrow(flat, 0, start - segment.start, end - start))

    def _gather(self, cell: _Storage, geometry: Geometry, beside: bool) -> tuple[int, Value]:
        """A flat value that covers the tensor, and the storage offset of its first element."""
        return self._inside(cell, geometry) or self._pieces(cell, geometry, beside)

    def _inside(self, cell: _Storage, geometry: Geometry) -> tuple[int, Value] | None:
        """The segment that covers the tensor, if one does."""
        for segment in cell.segments:
            if segment.start <= geometry.offset and geometry.end <= segment.end and segment.value is not None:
                return segment.start, _memory_order(self._b, segment.value, segment.geometry)
        return None

    def _pieces(self, cell: _Storage, geometry: Geometry, beside: bool) -> tuple[int, Value]:
        """What covers the tensor, put together of several segments: no one statement wrote that."""
        start, end = geometry.offset, geometry.end
        if not geometry.dense and geometry.moving:  # whole rows, as far as memory is known, make a reshape
            row = geometry.stride[geometry.moving[0]]
            first, last = (cell.segments[0].start, cell.segments[-1].end) if cell.segments else (start, end)
            start = max(start - start % row, min(first, start))
            end = min(start + (end - start + row - 1) // row * row, max(last, end))
        parts: list[Value] = []
        at = start
        for segment in cell.segments:
            if segment.end <= at or segment.start >= end:
                continue
            if at < segment.start:
                parts.append(self._missing(TensorType(cell.dtype, (segment.start - at,)), beside))
            part = self._part(segment, max(segment.start, at), min(segment.end, end))
            size = TensorType(cell.dtype, (part.end - part.start,))
            parts.append(self._b.flat(part.value) if part.value else self._missing(size, True))
            at = part.end
        if at < end:
            parts.append(self._missing(TensorType(cell.dtype, (end - at,)), beside))
        return start, self._b.concatenate(parts, 0)


def _memory_order(b: Builder, value: Value, geometry: Geometry) -> Value:
    """The elements of a dense tensor in the order in which they lie in memory."""
    moving = geometry.moving
    still = [d for d in range(len(geometry.size)) if d not in moving]
    return b.flat(value if moving == sorted(moving) else b.transpose(value, [*still, *moving]))


def _nest(length: int, geometry: Geometry, base: int) -> tuple[list[int], list[int]] | None:
    """Shape and start of a tensor as a box of a reshaped flat buffer, in order of falling stride."""
    moving = geometry.moving
    strides = [geometry.stride[d] for d in moving]
    sizes = [geometry.size[d] for d in moving]
    if not strides or strides[-1] != 1:
        strides, sizes = [*strides, 1], [*sizes, 1]
    if length % strides[0] or any(a % b for a, b in itertools.pairwise(strides)):
        return None
    shape = [n // s for n, s in zip([length, *strides], strides, strict=False)]
    starts, rest = [], geometry.offset - base
    for stride in strides:
        digit, rest = divmod(rest, stride)
        starts.append(digit)
    if any(a + n > m for a, n, m in zip(starts, sizes, shape, strict=True)):
        return None
    return shape, starts


def _box(b: Builder, flat: Value, geometry: Geometry, base: int) -> Value | None:
    """The tensor with moving dimensions only, by falling stride; tries the buffer, then its covered range."""
    sizes = [geometry.size[d] for d in geometry.moving]
    nest = _nest(flat.type.size, geometry, base)
    if nest is None and geometry.dense:
        start = geometry.offset - base
        return b.reshape(b.narrow(b.flat(flat), 0, start, geometry.end - geometry.offset), sizes)
    if nest is None:
        stride = geometry.stride[geometry.moving[0]]
        start, length = geometry.offset - base, stride * sizes[0]
        if start + length > flat.type.size:
            start = flat.type.size - length
        if start < 0:
            return None
        flat = b.narrow(b.flat(flat), 0, start, length)
        nest = _nest(length, geometry, base + start)
        if nest is None:
            return None
    shape, starts = nest
    taken = [*sizes, *[1] * (len(shape) - len(sizes))]
    return b.reshape(b.slice(b.reshape(flat, shape), starts, taken), sizes)


def _taken(b: Builder, flat: Value, geometry: Geometry, base: int) -> Value:
    """The elements of a tensor by falling stride, out of a flat buffer that begins at ``base``."""
    box = _box(b, flat, geometry, base) or _picked(b, b.flat(flat), _steps(geometry), geometry.offset - base)
    if box is None:
        raise AliasingError(f"the view {geometry} visits an element twice, other than by expansion")
    return box


def _laid(b: Builder, box: Value, geometry: Geometry) -> Value:
    """These elements as the tensor has them: ``as_strided`` is the two after one another."""
    moving = geometry.moving
    ordered = sorted(moving)
    box = b.transpose(box, [moving.index(d) for d in ordered])
    if all(n == 1 or s > 0 for n, s in zip(geometry.size, geometry.stride, strict=True)):
        return b.reshape(box, geometry.size)
    return b.broadcast(box, geometry.size, ordered)


def _steps(geometry: Geometry) -> list[tuple[int, int]]:
    """Size and stride of the dimensions that move, by falling stride."""
    return [(geometry.size[d], geometry.stride[d]) for d in geometry.moving]


def _rows(b: Builder, x: Value, steps: Sequence[tuple[int, int]], offset: int) -> Value | None:
    """The last dimension from ``offset`` on, cut into rows of the largest stride; ``None`` if rows overlap.

    The last row may not be whole: what is filled in there is not part of the view.
    """
    (size, stride), inner = steps[0], steps[1:]
    if 1 + sum((n - 1) * s for n, s in inner) > stride:
        return None
    lead, last = x.shape[:-1], len(x.shape) - 1
    there = min(size * stride, x.shape[last] - offset)
    x = b.narrow(x, last, offset, there)
    x = b.pad(x, 0, [0] * len(x.shape), [*(0 for _ in lead), size * stride - there])
    return b.reshape(x, (*lead, size, stride))


def _picked(b: Builder, x: Value, steps: Sequence[tuple[int, int]], offset: int) -> Value | None:
    """A strided view of the last dimension of ``x``, whose strides need not divide one another."""
    if not steps:
        return b.reshape(b.narrow(x, len(x.shape) - 1, offset, 1), x.shape[:-1])
    rows = _rows(b, x, steps, offset)
    return None if rows is None else _picked(b, rows, steps[1:], 0)


def _placed(
    b: Builder, x: Value, steps: Sequence[tuple[int, int]], offset: int, value: Value
) -> Value | None:
    """``x`` after ``value`` was written to a strided view of its last dimension."""
    last, lead = len(x.shape) - 1, x.shape[:-1]
    if steps:
        rows = _rows(b, x, steps, offset)
        written = None if rows is None else _placed(b, rows, steps[1:], 0, value)
        if written is None:
            return None
        count = min(math.prod(written.shape[-2:]), x.shape[last] - offset)
        region = b.narrow(b.reshape(written, (*lead, math.prod(written.shape[-2:]))), last, 0, count)
    else:
        region = b.reshape(value, (*lead, 1))
    return _put(b, x, region, [*(0 for _ in lead), offset])


def _scatter(b: Builder, flat: Value, geometry: Geometry, base: int, value: Value) -> Value:
    """The buffer after ``value`` was written to a tensor that covers it in part."""
    if any(n > 1 and s == 0 for n, s in zip(geometry.size, geometry.stride, strict=True)):
        raise AliasingError(f"a write through the expanded view {geometry}")
    moving = geometry.moving
    still = [d for d in range(len(geometry.size)) if d not in moving]
    region = b.transpose(value, [*still, *moving])
    nest = _nest(flat.type.size, geometry, base)
    if nest is None:
        region = b.reshape(region, [geometry.size[d] for d in moving])
        whole = _placed(b, b.flat(flat), _steps(geometry), geometry.offset - base, region)
        if whole is None:
            raise AliasingError(f"a write through the view {geometry}, which visits an element twice")
        return whole
    shape, starts = nest
    sizes = [*(geometry.size[d] for d in moving), *[1] * (len(shape) - len(moving))]
    return b.flat(_put(b, b.reshape(flat, shape), b.reshape(region, sizes), starts))


def _put(b: Builder, whole: Value, region: Value, starts: Sequence[int]) -> Value:
    """``whole`` with the box at ``starts`` replaced by ``region``."""
    for dim, (start, size, total) in enumerate(zip(starts, region.shape, whole.shape, strict=True)):
        if size < total:
            inner = b.narrow(whole, dim, start, size)
            parts = [_put(b, inner, region, starts)]  # along `dim` it is as long as the region now
            if start:
                parts.insert(0, b.narrow(whole, dim, 0, start))
            if start + size < total:
                parts.append(b.narrow(whole, dim, start + size, total - start - size))
            return b.concatenate(parts, dim)
    return region
