"""Relations of flat buckets, whose chunks cut through tensors and rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from certificates.plan.affine import Affine
from certificates.plan.plan import Mesh, Piece, RankClass, Relation
from certificates.plan.types import TensorType

from .definition import Bucket
from .errors import LayoutError

Box = tuple[tuple[int, ...], tuple[int, ...]]


def boxes(shape: Sequence[int], low: int, high: int) -> Iterator[Box]:
    """Starts and sizes of boxes that tile the row-major elements ``[low, high)`` of a tensor."""
    if low >= high:
        return
    if len(shape) <= 1:
        yield ((low,), (high - low,)) if shape else ((), ())
        return
    inner = math.prod(shape[1:])
    (first, skip), (last, rest) = divmod(low, inner), divmod(high, inner)
    if skip:
        end = rest if first == last else inner
        yield from _in_row(first, boxes(shape[1:], skip, end))
        first += 1
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if rest and first <= last:
        yield from _in_row(last, boxes(shape[1:], 0, rest))


def _in_row(row: int, inside: Iterator[Box]) -> Iterator[Box]:
    return (((row, *starts), (1, *sizes)) for starts, sizes in inside)


def relations(
    name: str,
    bucket: Bucket,
    shapes: Mapping[str, tuple[int, ...]],
    mesh: Mesh,
    classes: Sequence[RankClass],
    types: Sequence[TensorType],
) -> Iterator[Relation]:
    """One relation for each tensor of a bucket; ``types`` are those of the bucket on each class."""
    parts = 1 if bucket.axis is None else mesh.axes[bucket.axis]
    total = sum(math.prod(shapes[t]) for t in bucket.tensors)
    held = types[0].shape
    if any(t.shape != held for t in types) or len(held) > 1 or math.prod(held) * parts < total:
        raise LayoutError(f"{parts} chunks of shape {list(held)} for {total} elements", tensor=name)
    chunk, at = math.prod(held), 0
    for tensor in bucket.tensors:
        shape = shapes[tensor]
        pieces = []
        for cls in classes:
            rank = 0 if bucket.axis is None else cls.box[bucket.axis][0]
            low = min(max(rank * chunk - at, 0), math.prod(shape))
            high = min(max((rank + 1) * chunk - at, 0), math.prod(shape))
            for starts, sizes in boxes(shape, low, high):
                spec = tuple(Affine.of(a, {f"z{d}": 1}) for d, a in enumerate(starts))
                strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
                first = at - rank * chunk + sum(a * s for a, s in zip(starts, strides, strict=True))
                flat = Affine.of(first, {f"z{d}": s for d, s in enumerate(strides)})
                pieces.append(Piece(cls.name, sizes, (flat,) if held else (), spec))
        yield Relation(tensor, name, tuple(pieces))
        at += math.prod(shape)


def split_classes(
    classes: Sequence[RankClass], mesh: Mesh, buckets: Mapping[str, Bucket], unlike: Iterable[str] = ()
) -> list[RankClass]:
    """Every rank along the axes of buckets is a class of its own: each holds other pieces.

    So it is along axes whose ranks are known to hold ``unlike`` pieces of other tensors.
    """
    out = list(classes)
    for axis in dict.fromkeys((*(b.axis for b in buckets.values() if b.axis is not None), *unlike)):
        out = [
            RankClass(cls.name, {**cls.box, axis: (i, i + 1)}, cls.program)
            for cls in out
            for i in range(*cls.box[axis])
        ]
    return [RankClass(f"c{i}", cls.box, cls.program) for i, cls in enumerate(out)]
