"""Rank classes and rank-dependent scalars from a sample of traced ranks.

Ranks whose programs agree except for integers form a class. Its integers are affine in the mesh coordinates:
fitted on the corner and one neighbour per axis, checked on every other traced rank. Untraced ranks lie
between traced ranks of one class; the plan records them as interpolated.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from certificates.plan.affine import Affine, Range
from certificates.plan.plan import Mesh
from certificates.plan.program import Attr

from .builder import Draft
from .errors import ClassError, FitError, Frame
from .layouts import Layout
from .lowering import RankProgram
from .tracing import RankTrace

#: Axes up to this size are traced at every coordinate, as long as few enough ranks are traced.
SMALL = 8
MOST = 64
Point = tuple[int, ...]
Scalars = tuple[int, ...]


def samples(size: int) -> list[list[int]]:
    """Coordinates to trace along an axis, from the most to the fewest.

    All of a small axis; else the first and last two and the middle: a short last shard needs no search.
    Two neighbours give a slope and the last coordinate checks it: three is the least.
    """
    ends = {0, 1, size - 2, size - 1} & set(range(size))
    steps = [set(range(size))] if size <= SMALL else []
    steps += [{*ends, size // 2}, ends, {0, 1, size - 1} & ends]
    lists = [sorted(s) for s in steps]
    return [s for i, s in enumerate(lists) if i == 0 or len(s) < len(lists[i - 1])]


def grid_samples(sizes: Sequence[int], most: int = MOST) -> list[list[int]]:
    """Samples of every axis; while their product exceeds ``most``, the longest list is thinned."""
    choices = [samples(n) for n in sizes]
    while math.prod(len(c[0]) for c in choices) > most:
        long = [i for i, c in enumerate(choices) if len(c) > 1]
        if not long:
            break
        choices[max(long, key=lambda i: (len(choices[i][0]), sizes[i]))].pop(0)
    return [c[0] for c in choices]


def scalars(program: RankProgram) -> Scalars:
    """All integers that may depend on the rank, in program order."""
    return tuple(n for draft in program.drafts for n in _split(draft)[1])


def skeleton(program: RankProgram) -> str:
    """A digest of everything else: two ranks with one skeleton differ in :func:`scalars` only."""
    digest = hashlib.sha256()
    for d in program.drafts:
        digest.update(repr((d.out, d.name, d.ins, str(d.type), _split(d)[0])).encode())
    ends = [(n, str(t)) for n, t in program.inputs.items()], list(program.outputs.items())
    digest.update(repr((ends, program.groups)).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Sample:
    """What a traced rank adds to its class; ``program`` may be absent where one of its skeleton is known."""

    rank: int | None
    skeleton: str
    scalars: Scalars
    layouts: Mapping[str, Layout]
    ops: int
    program: RankProgram | None


def summarise(traced: RankTrace, known: Container[str] = ()) -> Sample:
    """Split a trace; its program is left out if its skeleton is ``known``."""
    program, digest = traced.program, skeleton(traced.program)
    kept = None if digest in known else program
    return Sample(traced.rank, digest, scalars(program), traced.layouts, len(program.drafts), kept)


def _split(draft: Draft) -> tuple[tuple[tuple[str, Attr], ...], list[int]]:
    """The attributes with affine forms blanked, and their numbers."""
    kept: list[tuple[str, Attr]] = []
    numbers: list[int] = []
    for key, value in draft.attrs:
        forms = value if isinstance(value, tuple) else (value,)
        affine = [f.const for f in forms if isinstance(f, Affine)]
        kept.append((key, len(affine) if affine else value))
        numbers.extend(affine)
    return tuple(kept), numbers


def with_scalars(draft: Draft, forms: Sequence[Affine]) -> tuple[tuple[tuple[str, Attr], ...], int]:
    """The attributes of an op with its integers replaced, and how many were used."""
    used = 0
    attrs: list[tuple[str, Attr]] = []
    for key, value in draft.attrs:
        if isinstance(value, Affine):
            attrs.append((key, forms[used]))
            used += 1
        elif isinstance(value, tuple) and value and isinstance(value[0], Affine):
            attrs.append((key, tuple(forms[used : used + len(value)])))
            used += len(value)
        else:
            attrs.append((key, value))
    return tuple(attrs), used


@dataclass(frozen=True)
class FittedClass:
    """A box of ranks with one program, and the affine form of each of its scalars."""

    box: Mapping[str, Range]
    program: RankProgram
    forms: tuple[Affine, ...]
    traced: tuple[int, ...]


class Grid:
    """Traced points of a mesh: a product of sampled coordinates per axis, refined where skeletons change.

    The tracer is given ranks and the live collection of skeletons whose program is known already.
    """

    def __init__(
        self,
        mesh: Mesh,
        tracer: Callable[[Iterable[int], Container[str]], Iterable[Sample]],
        most: int = MOST,
    ) -> None:
        self.mesh = mesh
        self._tracer = tracer
        self._axes = list(mesh.axes)
        self._samples = grid_samples(list(mesh.axes.values()), most)
        self.traces: dict[Point, Sample] = {}
        self._skeletons: dict[Point, str] = {}
        self._programs: dict[str, RankProgram] = {}

    def _trace(self, points: Iterable[Point]) -> None:
        todo = {self._rank(p): p for p in points if p not in self.traces}
        for result in self._tracer(list(todo), self._programs):
            assert result.rank is not None
            point = todo[result.rank]
            if result.program is not None:
                self._programs.setdefault(result.skeleton, result.program)
            self.traces[point] = replace(result, program=None)
            self._skeletons[point] = result.skeleton

    def _rank(self, point: Point) -> int:
        return self.mesh.rank(dict(zip(self._axes, point, strict=True)))

    def fill(self) -> None:
        """Trace the product of samples; bisect between neighbours that differ until they are adjacent."""
        self._trace(itertools.product(*self._samples))
        while True:
            gap = self._open_gap()
            if gap is None:
                return
            axis, low, high = gap
            at = high[axis] - 1  # a last rank that differs is the most frequent case
            while high[axis] - low[axis] > 1:
                middle = (*low[:axis], at, *low[axis + 1 :])
                self._trace([middle])
                if self._skeletons[middle] == self._skeletons[low]:
                    low = middle
                else:
                    high = middle
                at = (low[axis] + high[axis]) // 2
            self._samples[axis] = sorted({*self._samples[axis], low[axis], high[axis]})
            self._trace(itertools.product(*self._samples))

    def _open_gap(self) -> tuple[int, Point, Point] | None:
        for point in itertools.product(*self._samples):
            for axis, values in enumerate(self._samples):
                following = [v for v in values if v > point[axis]]
                if following and following[0] - point[axis] > 1:
                    other = (*point[:axis], following[0], *point[axis + 1 :])
                    if self._skeletons[point] != self._skeletons[other]:
                        return axis, point, other
        return None

    def classes(self) -> list[FittedClass]:
        """Boxes of one skeleton each, scalars fitted; a fully traced box that does not fit is halved."""
        blocks = [self._blocks(axis) for axis in range(len(self._axes))]
        out: list[FittedClass] = []
        for ranges in itertools.product(*blocks):
            out.extend(self._fit(ranges))
        return out

    def _blocks(self, axis: int) -> list[Range]:
        """Maximal runs of coordinates along which no skeleton changes, whatever the other coordinates."""
        values = self._samples[axis]
        starts = [values[0]]
        others = [s for i, s in enumerate(self._samples) if i != axis]
        for before, value in itertools.pairwise(values):
            for rest in itertools.product(*others):
                a, b = ((*rest[:axis], v, *rest[axis:]) for v in (before, value))
                if self._skeletons[a] != self._skeletons[b]:
                    starts.append(value)
                    break
        return list(zip(starts, [*starts[1:], list(self.mesh.axes.values())[axis]], strict=True))

    def _fit(self, ranges: Sequence[Range]) -> list[FittedClass]:
        inside = {
            p: t
            for p, t in sorted(self.traces.items())
            if all(lo <= x < hi for x, (lo, hi) in zip(p, ranges, strict=True))
        }
        kinds = [self._skeletons[p] for p in inside]
        if any(kind != kinds[0] for kind in kinds):
            raise ClassError(f"ranks of {dict(zip(self._axes, ranges, strict=True))} run different programs")
        try:
            forms = fit(self._axes, ranges, {p: t.scalars for p, t in inside.items()})
        except FitError as error:
            axis = next(
                (
                    i
                    for i, (lo, hi) in enumerate(ranges)
                    if hi - lo > 1 and set(range(lo, hi)) <= set(self._samples[i])
                ),
                None,
            )
            if axis is None:
                error.at(_frame_of(self._programs[kinds[0]], error.scalar))
                raise
            lo, hi = ranges[axis]
            halves = ((lo, (lo + hi) // 2), ((lo + hi) // 2, hi))
            return [c for half in halves for c in self._fit([*ranges[:axis], half, *ranges[axis + 1 :]])]
        program = self._programs[kinds[0]]
        box = dict(zip(self._axes, ranges, strict=True))
        return [FittedClass(box, program, forms, tuple(sorted(self._rank(p) for p in inside)))]


def _frame_of(program: RankProgram, number: int) -> Frame | None:
    """The user's line of the op that has a scalar."""
    frames = (draft.frame for draft in program.drafts for _ in _split(draft)[1])
    return next(itertools.islice(frames, number, None), None)


def fit(axes: Sequence[str], ranges: Sequence[Range], table: Mapping[Point, Scalars]) -> tuple[Affine, ...]:
    """Affine forms of scalar vectors known at some points of a box.

    A form that misses a point, or that rests on two points of an axis that is not traced completely, is a
    :class:`FitError` that names the scalar's number and the coordinates.
    """
    corner = min(table)
    steps: list[Point | None] = []
    for axis in range(len(axes)):
        line = sorted(
            p[axis]
            for p in table
            if all(p[i] == corner[i] for i in range(len(axes)) if i != axis) and p != corner
        )
        steps.append((*corner[:axis], line[0], *corner[axis + 1 :]) if line else None)
    forms = []
    for number, base in enumerate(table[corner]):
        slopes: dict[str, int] = {}
        for axis, step in enumerate(steps):
            if step is None:
                continue
            rise, run = table[step][number] - base, step[axis] - corner[axis]
            if rise % run:
                message = f"scalar {number} rises by {rise} over {run} steps of axis {axes[axis]}"
                raise FitError(message, number)
            traced = {p[axis] for p in table}
            if rise and len(traced) < 3 and len(traced) < ranges[axis][1] - ranges[axis][0]:
                message = f"scalar {number} along {axes[axis]} is known at two coordinates only"
                raise FitError(message, number)
            slopes[axes[axis]] = rise // run
        at_corner = dict(zip(axes, corner, strict=True))
        form = Affine.of(base - sum(n * at_corner[a] for a, n in slopes.items()), slopes)
        for point, values in table.items():
            predicted = form.evaluate(dict(zip(axes, point, strict=True)))
            if predicted != values[number]:
                at = ", ".join(f"{a}={x}" for a, x in zip(axes, point, strict=True))
                message = f"scalar {number} is {values[number]} at {at}, but {form} gives {predicted}"
                raise FitError(message, number)
        forms.append(form)
    return tuple(forms)
