"""Rank classes and rank-dependent scalars from a sample of traced ranks.

Ranks whose programs agree except for integers form a class. Its integers are affine in the mesh coordinates:
fitted on the first corner of the class and one neighbour per axis, checked on every other traced rank, all
corners among them. Two forms that are affine along each axis and agree at the corners of a box agree in all
of it. Untraced ranks are recorded as interpolated.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from certificates.plan.affine import Affine, Range
from certificates.plan.plan import Mesh
from certificates.plan.program import Attr

from .builder import Draft, Meeting
from .errors import FitError, Frame
from .layouts import Layout
from .lowering import RankProgram
from .lowering.table import Called, Rooted
from .tracing import RankTrace

#: Axes up to this size are traced at every coordinate, as long as few enough ranks are traced.
SMALL = 8
MOST = 64
#: A mesh of up to this many ranks is traced whole.
WHOLE = 16
Point = tuple[int, ...]
Scalars = tuple[int, ...]
#: Coordinates from and below, axis by axis.
Box = tuple[Range, ...]


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
    """Samples of every axis; while a box needs more than ``most`` points, the longest list is thinned."""
    choices = [samples(n) for n in sizes]
    while _count([c[0] for c in choices]) > most:
        long = [i for i, c in enumerate(choices) if len(c) > 1]
        if not long:
            break
        choices[max(long, key=lambda i: (len(choices[i][0]), sizes[i]))].pop(0)
    return [c[0] for c in choices]


def _count(lines: Sequence[Sequence[int]]) -> int:
    """Corners of a box, and the points between them on the lines through the first one."""
    return int(math.prod(min(2, len(x)) for x in lines) + sum(max(0, len(x) - 2) for x in lines))


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
    kept: frozenset[Meeting] = frozenset()
    dropped: frozenset[Meeting] = frozenset()
    shims: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    roots: tuple[Rooted, ...] = ()
    called: tuple[Called, ...] = ()


def summarise(traced: RankTrace, known: Container[str] = ()) -> Sample:
    """Split a trace; its program is left out if its skeleton is ``known``."""
    program, digest = traced.program, skeleton(traced.program)
    kept = None if digest in known else program
    ops = len(program.drafts)
    return Sample(
        traced.rank, digest, scalars(program), traced.layouts, ops, kept, program.kept, program.dropped,
        traced.shims, program.assumed, traced.ranges, traced.rates, program.roots, program.called,
    )  # fmt: skip


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
    """Boxes of a mesh, each with one program, found from few traced ranks.

    In every box its corners are traced, and on the lines through its first corner the sampled coordinates, or
    if those are more than ``most``, what :meth:`_needed` says; a mesh of up to :data:`WHOLE` ranks is traced
    whole. Where two points of a box differ, it is divided. The
    tracer is given ranks and two collections that grow while it traces: skeletons whose program is known
    already, and the rendezvous that ranks have to keep.
    """

    def __init__(
        self,
        mesh: Mesh,
        tracer: Callable[[Iterable[int], Container[str], Collection[Meeting]], Iterable[Sample]],
        most: int = MOST,
    ) -> None:
        self.mesh = mesh
        self._tracer = tracer
        self._axes = list(mesh.axes)
        self._samples = grid_samples(list(mesh.axes.values()), most)
        self._few = _count(self._samples) > most
        self.traces: dict[Point, Sample] = {}
        self._programs: dict[str, RankProgram] = {}
        self._boxes: list[Box] = []
        #: Along each axis, where programs differ on some line.
        self._edges: list[set[int]] = []
        #: Rendezvous that some rank keeps for others only.
        self.needed: set[Meeting] = set()
        self._kept: set[Meeting] = set()
        self._dropped: set[Meeting] = set()

    def _trace(self, points: Iterable[Point]) -> None:
        """Trace what is not traced yet. The last point comes second: what it needs of others, such as a last
        stage's loss, is then known before most of them are traced.

        A rank that drops a rendezvous which another one keeps is traced again, and keeps it. Its operand is
        kept with it, and may be made of other rendezvous: so this is repeated.
        """
        todo = [p for p in points if p not in self.traces]
        while todo:
            ranks = {self._rank(p): p for p in [*todo[:1], *todo[1:][-1:], *todo[1:-1]]}
            for result in self._tracer(list(ranks), self._programs, self.needed):
                assert result.rank is not None
                if result.program is not None:
                    self._programs.setdefault(result.skeleton, result.program)
                self.traces[ranks[result.rank]] = replace(result, program=None)
                self._kept |= result.kept
                self._dropped |= result.dropped
                self.needed |= self._kept & self._dropped
            todo = [p for p, sample in self.traces.items() if sample.dropped & self.needed]
            for point in todo:
                del self.traces[point]

    def _rank(self, point: Point) -> int:
        return self.mesh.rank(dict(zip(self._axes, point, strict=True)))

    def _skeleton(self, point: Point) -> str:
        self._trace([point])
        return self.traces[point].skeleton

    def fill(self) -> None:
        """Trace, and divide the mesh into boxes of one program each whose scalars fit where that helps.

        What was cut before all was known that ranks keep for others is not cut for that.
        """
        known = -1
        while known < len(self.needed):
            known = len(self.needed)
            self._fill()

    def _fill(self) -> None:
        self._edges = [{0, n} for n in self.mesh.axes.values()]
        self._boxes = sorted(self._divided(tuple((0, n) for n in self.mesh.axes.values())))

    def _divided(self, box: Box) -> Iterator[Box]:
        boundary = self._boundary(box)
        cut = boundary or self._misfit(box)
        if cut is None:
            yield box
            return
        axis, at = cut
        if boundary is not None:
            self._edges[axis].add(at)
        for part in ((box[axis][0], at), (at, box[axis][1])):
            yield from self._divided((*box[:axis], part, *box[axis + 1 :]))

    def _needed(self, box: Box) -> list[Point]:
        """Corners, and lines through the first one; three points at least of what has three.

        If those are too many: as many as a form that is affine along each axis has coefficients, and such a
        form that is zero on them is zero. They are the corners, but a neighbour of the first one in place of
        that corner which lies on a line with it.
        """
        if self.mesh.ranks <= WHOLE:
            return list(itertools.product(*(range(lo, hi) for lo, hi in box)))
        first = tuple(lo for lo, _ in box)
        points = set(itertools.product(*({lo, hi - 1} for lo, hi in box)))
        few = self._few and sum(hi - lo > 1 for lo, hi in box) > 1
        for axis, (lo, hi) in enumerate(box):
            line = set() if few else {x for x in self._samples[axis] if lo <= x < hi}
            if few:
                points.discard((*first[:axis], hi - 1, *first[axis + 1 :]))
            line |= {lo, min(lo + 1, hi - 1)}
            points |= {(*first[:axis], x, *first[axis + 1 :]) for x in line}
        return sorted(points)

    def _inside(self, box: Box) -> dict[Point, Sample]:
        return {
            p: t
            for p, t in sorted(self.traces.items())
            if all(lo <= x < hi for x, (lo, hi) in zip(p, box, strict=True))
        }

    def _boundary(self, box: Box) -> tuple[int, int] | None:
        """Axis and coordinate from which on another program runs than at the first corner, if any does.

        The axis is the one with the most programs on its line: where stages differ, and in one of them some
        ranks, the stages are told apart first, and the others need no traces on both sides of those ranks.
        """
        self._trace(self._needed(box))
        first = tuple(lo for lo, _ in box)
        inside = {p: sample.skeleton for p, sample in self._inside(box).items()}
        if len(set(inside.values())) == 1:
            return None
        lines = [
            [p for p in inside if p[:axis] + p[axis + 1 :] == first[:axis] + first[axis + 1 :]]
            for axis in range(len(first))
        ]
        most = max(lines, key=lambda line: len({inside[p] for p in line}))
        other = next(p for p in [*most, *inside] if inside[p] != inside[first])
        # From the first corner to the other point along one axis after the other: somewhere it changes.
        here = first
        for axis, x in enumerate(other):
            there = (*here[:axis], x, *here[axis + 1 :])
            if self._skeleton(there) != self._skeleton(here):
                return axis, self._change(here, there, axis)
            here = there
        raise AssertionError("unreachable")

    def _change(self, low: Point, high: Point, axis: int) -> int:
        """Bisect between two points that differ, beginning with what is traced already."""

        def at(x: int) -> Point:
            return (*low[:axis], x, *low[axis + 1 :])

        program, a, b = self._skeleton(low), low[axis], high[axis]
        between = [x for x in range(a + 1, b) if at(x) in self.traces]
        b = next((x for x in between if self._skeleton(at(x)) != program), b)
        a = max((x for x in between if x < b), default=a)
        middle = b - 1  # a last rank that differs is the most frequent case
        while b - a > 1:
            if self._skeleton(at(middle)) == program:
                a = middle
            else:
                b = middle
            middle = (a + b) // 2
        return b

    def _misfit(self, box: Box) -> tuple[int, int] | None:
        """Where to halve a box whose scalars are no affine forms, if an axis of it is traced completely."""
        inside = self._inside(box)
        table = {p: t.scalars for p, t in inside.items()}
        try:
            fit(self._axes, box, table)
        except FitError:
            first = min(inside)
            for axis, (lo, hi) in enumerate(box):
                line = {
                    p for p in table if (*p[:axis], *p[axis + 1 :]) == (*first[:axis], *first[axis + 1 :])
                }
                if hi - lo > 1 and len(line) == hi - lo:
                    return axis, (lo + hi) // 2
        return None

    def boxes(self) -> list[Mapping[str, Range]]:
        """The boxes: each has one program, and the traced ranks that its scalars are fitted on."""
        return [dict(zip(self._axes, box, strict=True)) for box in self._boxes]

    def classes(self) -> list[FittedClass]:
        """The boxes, scalars fitted; what does not fit is a :class:`FitError`.

        Where programs differ anywhere, the whole mesh is cut: classes that lie side by side are proved more
        easily. A part that is cut off so has the forms of its box, and is not traced for itself.
        """
        parts = [
            replace(fitted, box=part)
            for fitted in map(self._fit, self._boxes)
            for part in self._cut(fitted.box)
        ]
        return sorted(parts, key=lambda part: [lo for lo, _ in part.box.values()])

    def _cut(self, box: Mapping[str, Range]) -> Iterator[Mapping[str, Range]]:
        """A box along all boundaries between programs."""
        lines = []
        for (lo, hi), edges in zip(box.values(), self._edges, strict=True):
            lines.append(list(itertools.pairwise(sorted({lo, hi} | {x for x in edges if lo < x < hi}))))
        for part in itertools.product(*lines):
            yield dict(zip(box, part, strict=True))

    def _fit(self, box: Box) -> FittedClass:
        inside = self._inside(box)
        program = self._programs[next(iter(inside.values())).skeleton]
        try:
            forms = fit(self._axes, box, {p: t.scalars for p, t in inside.items()})
        except FitError as error:
            raise error.at(_frame_of(program, error.scalar)) from None
        ranks = tuple(sorted(self._rank(p) for p in inside))
        return FittedClass(dict(zip(self._axes, box, strict=True)), program, forms, ranks)


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
                lo, hi = ranges[axis]
                if hi - lo > 1:
                    message = f"scalar {number} along {axes[axis]} is known at one coordinate only"
                    raise FitError(message, number)
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
