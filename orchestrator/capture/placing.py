"""From the cuts of the traced ranks to layouts: a layout is compared with them, or derived from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from certificates.plan import placements as placed
from certificates.plan.affine import Affine, Range
from certificates.plan.plan import Mesh, Piece, RankClass, Relation

from .cutting import Cut
from .errors import CaptureError, FitError, LayoutError, gathered
from .fitting import fit
from .origins import Part

#: First row and number of rows, per dimension.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Placement:
    """Axis -> tensor dimension, and the axes from major to minor. A group of ``joint`` cuts at once."""

    shards: Mapping[str, int]
    order: tuple[str, ...]
    joint: tuple[tuple[str, ...], ...] = ()

    def box(self, shape: Sequence[int], mesh: Mesh, rank: int) -> Box:
        """What a rank holds of a tensor of true ``shape``."""
        at, box = mesh.coordinates(rank), [(0, n) for n in shape]
        for unit in placed.units(self.order, self.joint):
            start, size = box[self.shards[unit[0]]]
            chunk = sum(at[a] * n for a, n in placed.strides(unit, mesh).items())
            lo, hi = placed.shard_range(size, math.prod(mesh.axes[a] for a in unit), chunk)
            box[self.shards[unit[0]]] = start + lo, hi - lo
        return tuple(box)


def compare(
    name: str, shape: Sequence[int], placement: Placement, mesh: Mesh, cuts: Mapping[int, Cut]
) -> None:
    """A layout that contradicts how a rank's tensor was cut is a :class:`LayoutError`; all are named."""
    problems: list[CaptureError] = []
    for rank, cut in cuts.items():
        wanted = placement.box(shape, mesh, rank)
        start = tuple(Affine(lo) for lo, _ in wanted)
        what = f"{cut.why}, so it is no shard of it" if cut.computed else None
        if any((p.source, _offset(p)) != (name, start) for p in cut.parts or ()):
            what = f"holds {_shown(cut)} where its layout implies {_slice(name, wanted)}"
        if what is not None:
            problems.append(LayoutError(what, tensor=name, rank=rank, frame=cut.frame))
    if problems:
        raise gathered(problems)


def derive(name: str, shape: Sequence[int], mesh: Mesh, cuts: Mapping[int, Cut]) -> Placement | None:
    """The layout with the fewest axes that every traced cut agrees with; ``None`` if there is none."""
    boxes = {rank: _box(name, cut) for rank, cut in cuts.items()}
    if any(box is None for box in boxes.values()):
        return None
    for candidate in _placements(mesh, len(shape)):
        if all(candidate.box(shape, mesh, rank) == box for rank, box in boxes.items()):
            return candidate
    return None


def pieces(
    name: str,
    mesh: Mesh,
    classes: Sequence[RankClass],
    cuts: Mapping[int, Cut],
    boxes: Sequence[Mapping[str, Range]],
) -> Relation:
    """The relation of a tensor that is cut in several parts, or otherwise than in boxes.

    ``boxes`` are the parts of the mesh for whose ranks enough was traced; a class lies in one of them.
    """
    out: list[Piece] = []
    for cls in classes:
        box = cls.box
        inside = {r: c for r, c in cuts.items() if within(mesh, box, r)}
        if len(inside) < math.prod(hi - lo for lo, hi in box.values()):
            box = next(
                b for b in boxes if all(b[a][0] <= lo and hi <= b[a][1] for a, (lo, hi) in box.items())
            )
            inside = {r: c for r, c in cuts.items() if within(mesh, box, r)}
        held = {r: _held(c) for r, c in inside.items()}
        if not held:
            raise LayoutError(
                f"no rank of class {cls.name} was traced, and its parts follow no layout", tensor=name
            )
        first = min(held)
        for rank, parts in held.items():
            foreign = next((p for p in parts if p.source != name), None)
            if foreign is not None:
                raise LayoutError(
                    f"holds {_shown(cuts[rank])}", tensor=name, rank=rank, frame=cuts[rank].frame
                )
            if forms(cuts[rank]) != forms(cuts[first]):
                raise LayoutError(
                    f"ranks {first} and {rank} run one program but hold other parts of it",
                    tensor=name,
                    rank=rank,
                    frame=cuts[rank].frame,
                )
        try:
            fitted = iter(fit(list(mesh.axes), [box[a] for a in mesh.axes], _table(mesh, inside)))
        except FitError as error:
            raise LayoutError(
                f"its parts follow no rule: {error}", tensor=name, frame=cuts[first].frame
            ) from error
        for part in held[first]:
            at = [next(fitted) + (f - f.const) for f in part.at]
            index = [next(fitted) + (f - f.const) for f in part.index]
            out.append(Piece(cls.name, part.sizes, tuple(at), tuple(index)))
    return Relation(name, name, tuple(out))


def told_apart(
    mesh: Mesh,
    boxes: Sequence[Mapping[str, Range]],
    tensors: Mapping[str, tuple[Sequence[int], Mapping[int, Cut]]],
) -> list[str]:
    """Axes whose ranks each need a class, as what ranks in these ``boxes`` hold of some tensors, of which the
    shapes are given, follows no rule: two ranks that share a head of keys, say, and two that share another.

    Only of boxes that are traced completely: of others nobody knows what the rest holds.
    """
    found: dict[str, None] = {}
    for name, (shape, cuts) in tensors.items():
        if derive(name, shape, mesh, cuts) is not None:
            continue
        for box in boxes:
            wide = [a for a, (lo, hi) in box.items() if hi - lo > 1]
            known = sum(within(mesh, box, rank) for rank in cuts)
            if known < math.prod(hi - lo for lo, hi in box.values()) or _follows(mesh, box, cuts):
                continue
            one = next((a for a in wide if all(_follows(mesh, b, cuts) for b in _slices(box, a))), None)
            found |= dict.fromkeys(wide if one is None else [one])
    return list(found)


def _slices(box: Mapping[str, Range], axis: str) -> Iterator[Mapping[str, Range]]:
    yield from ({**box, axis: (i, i + 1)} for i in range(*box[axis]))


def _follows(mesh: Mesh, box: Mapping[str, Range], cuts: Mapping[int, Cut]) -> bool:
    """Do the parts that ranks of a box hold begin where arithmetic on their coordinates says?"""
    inside = {rank: cut for rank, cut in cuts.items() if within(mesh, box, rank)}
    if len({repr(forms(cut)) for cut in inside.values()}) != 1:
        return True  # other errors speak of ranks of one class that hold other forms
    try:
        fit(list(mesh.axes), [box[a] for a in mesh.axes], _table(mesh, inside))
    except FitError:
        return False
    return True


def _table(mesh: Mesh, cuts: Mapping[int, Cut]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Where the parts that ranks hold begin, by the coordinates of the ranks."""
    return {
        tuple(mesh.coordinates(r).values()): tuple(f.const for p in _held(cut) for f in (*p.at, *p.index))
        for r, cut in cuts.items()
    }


def agree(name: str, cuts: Mapping[int, Cut]) -> None:
    """What a scatter or broadcast passed on must be the same on every rank that took part."""
    seen: dict[str, tuple[int, str]] = {}
    for rank, cut in cuts.items():
        for key, digest in cut.agreed:
            other, known = seen.setdefault(key, (rank, digest))
            if known != digest:
                raise LayoutError(
                    f"ranks {other} and {rank} pass different tensors to one scatter or broadcast",
                    tensor=name,
                    frame=cut.frame,
                )


def forms(cut: Cut) -> list[object]:
    """What parts of tensors a cut consists of, but for where they begin."""
    return [(p.source, p.sizes, [f.terms for f in p.at], [f.terms for f in p.index]) for p in _held(cut)]


def _held(cut: Cut) -> list[Part]:
    """The parts of tensors of the specification that a cut consists of."""
    return [p for p in cut.parts or () if p.source is not None]


def within(mesh: Mesh, box: Mapping[str, Range], rank: int) -> bool:
    """Whether a rank is in a box of the mesh."""
    return all(box[a][0] <= x < box[a][1] for a, x in mesh.coordinates(rank).items())


def _placements(mesh: Mesh, dims: int) -> Iterator[Placement]:
    axes = [a for a, n in mesh.axes.items() if n > 1]
    for count in range(len(axes) + 1):
        for order in itertools.permutations(axes, count):
            for chosen in itertools.product(range(dims), repeat=count):
                yield Placement(dict(zip(order, chosen, strict=True)), order)


def _offset(part: Part) -> tuple[Affine, ...] | None:
    """How far the indices of the source are ahead, if both have as many dimensions."""
    if len(part.at) != len(part.index):
        return None
    return tuple(i - a for i, a in zip(part.index, part.at, strict=True))


def _box(name: str, cut: Cut) -> Box | None:
    """The box that a cut is, if it is one."""
    starts = {_offset(p) if p.source == name else None for p in cut.parts or ()}
    start = starts.pop() if len(starts) == 1 else None
    if start is None or any(not f.is_const for f in start):
        return None
    return tuple((f.const, n) for f, n in zip(start, cut.shape, strict=True))


def _slice(name: str, box: Box) -> str:
    return f"{name}[{', '.join(f'{lo}:{lo + n}' for lo, n in box)}]"


def _shown(cut: Cut) -> str:
    """What a cut consists of, for people."""
    sources = sorted({p.source or "a literal" for p in cut.parts or ()})
    box = _box(sources[0], cut)
    if box is not None:
        return _slice(sources[0], box)
    found = [
        f"local {_element(p.at)} = {p.source or 'a literal'}{_element(p.index)}" for p in cut.parts or ()
    ]
    return f"parts of {', '.join(sources)} ({'; '.join(found[:3])}{'; …' if len(found) > 3 else ''})"


def _element(forms: Sequence[Affine]) -> str:
    return f"[{', '.join(str(f) for f in forms)}]" if forms else ""
