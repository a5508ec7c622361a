"""Where tensors lie in their storages: size, stride and offset."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Geometry:
    """Size, stride and offset of a tensor over its storage, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(size: Sequence[int], stride: Sequence[int], offset: int) -> Geometry:
        """Strides of dimensions of size 1 mean nothing; they are normalised to 0."""
        return _geometry(tuple(size), tuple(stride), offset)

    @staticmethod
    def contiguous(size: Sequence[int], offset: int = 0) -> Geometry:
        return Geometry.of(size, [math.prod(size[d + 1 :]) for d in range(len(size))], offset)

    @property
    def end(self) -> int:
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))

    @property
    def moving(self) -> list[int]:
        """Dimensions with more than one stored element, from the largest stride to the smallest."""
        dims = [d for d, s in enumerate(self.stride) if s > 0]
        return sorted(dims, key=lambda d: -self.stride[d])

    @property
    def elements(self) -> tuple[int, ...]:
        """Equal for views that show the same elements, in whatever order and shape."""
        moving = self.moving
        return self.offset, self.end, math.prod(self.size[d] for d in moving)

    @property
    def dense(self) -> bool:
        """Does the tensor visit every element of its range exactly once?"""
        step = 1
        for d in reversed(self.moving):
            if self.stride[d] != step:
                return False
            step *= self.size[d]
        return all(n == 1 or s > 0 for n, s in self._steps())

    @property
    def distinct(self) -> bool:
        """Does it show no element twice, as is plain where the rows of each dimension end before the next?"""
        return self.dense or (self.apart and all(n == 1 or s > 0 < n for n, s in self._steps()))

    @property
    def apart(self) -> bool:
        """Does it show an element twice by expansion only?"""
        end = 1
        for d in reversed(self.moving):
            if self.stride[d] < end:
                return False
            end += (self.size[d] - 1) * self.stride[d]
        return True

    def slices(self) -> tuple[int, list[Geometry]]:
        """What overlaps along a dimension, place by place: along the shortest, if that leaves no overlap."""
        found = [(d, [self._at(d, i) for i in range(self.size[d])]) for d in self.moving]
        return min(found, key=lambda x: (not x[1][0].apart, len(x[1])))

    def _steps(self) -> Iterator[tuple[int, int]]:
        return zip(self.size, self.stride, strict=True)

    def _at(self, dim: int, place: int) -> Geometry:
        size = (*self.size[:dim], 1, *self.size[dim + 1 :])
        return Geometry.of(size, self.stride, self.offset + place * self.stride[dim])

    def within(self, place: Geometry) -> Geometry | None:
        """Where the elements lie among those of ``place``, counted by its falling strides; ``None`` if some
        are none of them."""
        steps = [(place.size[d], place.stride[d]) for d in place.moving]
        rows = [math.prod(n for n, _ in steps[i + 1 :]) for i in range(len(steps))]

        def digits(distance: int) -> list[int] | None:
            found = []
            for _, stride in steps:
                digit, distance = divmod(distance, stride)
                found.append(digit)
            return None if distance else found

        start, moved = digits(self.offset - place.offset), [digits(s) for s in self.stride]
        if self.offset < place.offset or start is None or None in moved:
            return None
        for i, (size, _) in enumerate(steps):
            if start[i] + sum((n - 1) * d[i] for n, d in zip(self.size, moved, strict=True) if d) >= size:
                return None
        strides = [sum(x * row for x, row in zip(d or (), rows, strict=False)) for d in moved]
        return Geometry.of(self.size, strides, sum(x * row for x, row in zip(start, rows, strict=True)))


def meet(a: Geometry, b: Geometry) -> bool:
    """Have two tensors of one storage an element in common? Yes, too, where nothing cheap shows it."""
    if 0 in (*a.size, *b.size) or a.end <= b.offset or b.end <= a.offset:
        return False
    boxes = [_extents(g, sorted({*_strides(a), *_strides(b)}, reverse=True)) for g in (a, b)]
    if boxes[0] is None or boxes[1] is None:
        return True
    return all(x < y + m and y < x + n for (x, n), (y, m) in zip(*boxes, strict=True))


def _strides(geometry: Geometry) -> list[int]:
    return [geometry.stride[d] for d in geometry.moving]


def _extents(geometry: Geometry, strides: Sequence[int]) -> list[tuple[int, int]] | None:
    """Start and size along each of ``strides`` and below all of them, if its elements are such a box."""
    sizes = {geometry.stride[d]: geometry.size[d] for d in geometry.moving}
    if len(sizes) < len(geometry.moving):
        return None
    box, rest, above = [], geometry.offset, 0
    for stride in strides:
        start, rest = divmod(rest, stride)
        size = sizes.get(stride, 1)
        if above and (above % stride or start + size > above // stride):
            return None
        box.append((start, size))
        above = stride
    return [*box, (rest, 1)]


@functools.lru_cache(1 << 14)  # a step has many tensors and few geometries
def _geometry(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Geometry:
    return Geometry(size, tuple(0 if n == 1 else s for n, s in zip(size, stride, strict=True)), offset)
