"""Rank classes from a sample of traced ranks: boxes of the mesh with one program each.

Two forms that are affine along each axis and agree at the corners of a box agree in all of it. Untraced ranks
are recorded as interpolated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from certificates.plan.affine import Range
from certificates.plan.plan import Mesh

from .builder import Met
from .errors import FitError, Frame
from .fitting import Box, FittedClass, Point, Sample, fit, split
from .likeness import Likenesses, agrees
from .lowering import RankProgram

#: Axes up to this size are traced at every coordinate, as long as few enough ranks are traced.
SMALL = 8
MOST = 64
#: A mesh of up to this many ranks is traced whole.
WHOLE = 16


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
        tracer: Callable[[Iterable[int], Container[str], Collection[Met]], Iterable[Sample]],
        most: int = MOST,
    ) -> None:
        self.mesh = mesh
        self._tracer = tracer
        self._axes = list(mesh.axes)
        self._samples = grid_samples(list(mesh.axes.values()), most)
        self._few = _count(self._samples) > most
        self.traces: dict[Point, Sample] = {}
        #: What was not traced, and is known from a stage that does the same.
        self._lent: dict[Point, Sample] = {}
        self._whole: list[Box] = []
        self._likenesses = Likenesses()
        self._programs: dict[str, RankProgram] = {}
        self._boxes: list[Box] = []
        #: Along each axis, where programs differ on some line.
        self._edges: list[set[int]] = []
        #: Rendezvous that some rank keeps for others only.
        self.needed: set[Met] = set()
        self._kept: set[Met] = set()
        self._dropped: set[Met] = set()

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
        self._lent, self._whole = {}, []
        self._boxes = sorted(self._divided(tuple((0, n) for n in self.mesh.axes.values())))

    def _divided(self, box: Box) -> Iterator[Box]:
        boundary = self._boundary(box)
        cut = boundary or self._misfit(box)
        if cut is None:
            if self._lent.keys().isdisjoint(self._inside(box)):
                self._whole.append(box)
            yield box
            return
        axis, at = cut
        if boundary is not None:
            self._edges[axis].add(at)
        parts = [(*box[:axis], side, *box[axis + 1 :]) for side in ((box[axis][0], at), (at, box[axis][1]))]
        self._trace([point for part in parts for point in self._sure(part)])
        for part in parts:
            yield from self._divided(part)

    def _sure(self, box: Box) -> list[Point]:
        """What is traced of a box whatever is found in others: two of them keep more processes busy."""
        return [] if self._whole or self._staged(box) is not None else self._needed(box)

    def _staged(self, box: Box) -> int | None:
        """Where few ranks are traced: the axis that was cut most often, if the box is divided along it."""
        axis = max(range(len(box)), key=lambda a: len(self._edges[a]))
        lo, hi = box[axis]
        return axis if self._few and len(self._edges[axis]) > 2 and hi - lo > 1 else None

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

    def _stage(self, box: Box, first: Point) -> tuple[int, int] | None:
        """Where few ranks are traced: is the next coordinate another stage, along the axis that was cut most
        often? The rank at the far end of this one, which is needed then, is traced with the next one."""
        axis = self._staged(box)
        if axis is None:
            return None
        lo, _ = box[axis]
        far = tuple(lo if a == axis else h - 1 for a, (_, h) in enumerate(box))
        beside = (*first[:axis], lo + 1, *first[axis + 1 :])
        self._trace([first, beside, far])
        return (axis, lo + 1) if self._skeleton(beside) != self._skeleton(first) else None

    def _lend(self, box: Box, first: Point) -> bool:
        """Where few ranks are traced: is the box one that was traced, but for names and for when its ops run?
        Then two corners of it are enough, if the other one is what follows from that."""
        far = tuple(hi - 1 for _, hi in box)
        needed = self._needed(box)
        if not self._few or not self._whole or far not in needed or len(needed) < 3:
            return False
        self._trace([first])
        for other in self._whole:
            if all(a == b or a[1] - a[0] == b[1] - b[0] == 1 for a, b in zip(box, other, strict=True)):
                start = tuple(lo for lo, _ in other)
                moved = {p: tuple(o + x - y for o, x, y in zip(start, p, first, strict=True)) for p in needed}
                if self._lent_by(moved, first, far):
                    return True
        return False

    def _lent_by(self, moved: Mapping[Point, Point], first: Point, far: Point) -> bool:
        """Take from another box what is not traced, if they are alike; ``moved`` are its points."""
        like = self._likenesses.between(self._at(first), self._at(moved[first]))
        if like is None:
            return False
        self._trace([far])
        one, its = self.traces[first], self.traces[moved[first]]
        found = {p: like.lent(one, its, self.traces[q], self._rank(p)) for p, q in moved.items()}
        lent = {p: sample for p, sample in found.items() if sample is not None}
        if len(lent) < len(moved) or not agrees(lent[far], self.traces[far]):
            return False
        self._lent |= {p: sample for p, sample in lent.items() if p not in self.traces}
        return True

    def _at(self, point: Point) -> tuple[Sample, RankProgram, Point]:
        sample = self.traces[point]
        return sample, self._programs[sample.skeleton], point

    def _inside(self, box: Box) -> dict[Point, Sample]:
        return {
            p: t
            for p, t in sorted((self._lent | self.traces).items())
            if all(lo <= x < hi for x, (lo, hi) in zip(p, box, strict=True))
        }

    def _boundary(self, box: Box) -> tuple[int, int] | None:
        """Axis and coordinate from which on another program runs than at the first corner, if any does.

        The axis is the one with the most programs on its line: where stages differ, and in one of them some
        ranks, the stages are told apart first, and the others need no traces on both sides of those ranks.
        """
        first = tuple(lo for lo, _ in box)
        stage = self._stage(box, first)
        if stage is not None:
            return stage
        if not self._lend(box, first):
            self._trace(self._needed(box))
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

    def samples(self) -> list[Sample]:
        """Traced ranks, and those of which it is known what they would be traced as."""
        return [*self.traces.values(), *self._lent.values()]

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
        ranks = tuple(sorted(self._rank(p) for p in inside if p in self.traces))
        return FittedClass(dict(zip(self._axes, box, strict=True)), program, forms, ranks)


def _frame_of(program: RankProgram, number: int) -> Frame | None:
    """The user's line of the op that has a scalar."""
    frames = (draft.frame for draft in program.drafts for _ in split(draft)[1])
    return next(itertools.islice(frames, number, None), None)
