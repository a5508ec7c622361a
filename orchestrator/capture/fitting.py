"""What a traced rank adds to its class, and the affine forms of its rank-dependent scalars.

Ranks whose programs agree except for integers form a class. Its integers are affine in the mesh coordinates:
fitted on the first corner of the class and one neighbour per axis, checked on every other rank that is known,
all corners among them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from certificates.plan.affine import Affine, Range
from certificates.plan.program import Attr

from .builder import Draft, Met
from .errors import FitError
from .group import Agreed, Made
from .layouts import Layout
from .lowering import RankProgram
from .lowering.table import Called, Rooted
from .recorder import GroupRef
from .tracing import RankTrace

Point = tuple[int, ...]
Scalars = tuple[int, ...]
#: Coordinates from and below, axis by axis.
Box = tuple[Range, ...]


def scalars(program: RankProgram) -> Scalars:
    """All integers that may depend on the rank, in program order."""
    return tuple(n for draft in program.drafts for n in split(draft)[1])


def skeleton(program: RankProgram) -> str:
    """A digest of everything else: two ranks with one skeleton differ in :func:`scalars` only."""
    digest = hashlib.sha256()
    for d in program.drafts:
        digest.update(repr((d.out, d.name, d.ins, str(d.type), split(d)[0])).encode())
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
    kept: frozenset[Met] = frozenset()
    dropped: frozenset[Met] = frozenset()
    shims: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    roots: tuple[Rooted, ...] = ()
    called: tuple[Called, ...] = ()
    communicators: Mapping[GroupRef, Made] = field(default_factory=dict)
    agreed: Mapping[GroupRef, tuple[Agreed, ...]] = field(default_factory=dict)
    zeros: frozenset[str] = frozenset()
    #: Where generators stand afterwards if something was drawn, and how often a set was gone through: by
    #: the user, by a library.
    drawn: str = ""
    sets: tuple[int, int] = (0, 0)
    #: Where it was asked for the place on a host.
    hosts: tuple[str, ...] = ()
    #: What the definition declares, as text.
    declared: str = ""
    #: Rendezvous that were kept for other ranks.
    needed: frozenset[Met] = frozenset()


def summarise(traced: RankTrace, known: Container[str] = ()) -> Sample:
    """Split a trace; its program is left out if its skeleton is ``known``."""
    program, digest = traced.program, skeleton(traced.program)
    kept = None if digest in known else program
    ops = len(program.drafts)
    return Sample(
        traced.rank, digest, scalars(program), traced.layouts, ops, kept, program.kept, program.dropped,
        traced.shims, program.assumed, traced.ranges, traced.rates, program.roots, program.called,
        traced.communicators, traced.agreed, traced.zeros,
    )  # fmt: skip


def split(draft: Draft) -> tuple[tuple[tuple[str, Attr], ...], list[int]]:
    """The attributes with affine forms blanked, and their numbers."""
    kept: list[tuple[str, Attr]] = []
    numbers: list[int] = []
    for key, value in draft.attrs:
        forms = value if isinstance(value, tuple) else (value,)
        affine = [f.const for f in forms if isinstance(f, Affine)]
        kept.append((key, len(affine) if affine else value))
        numbers.extend(affine)
    return tuple(kept), numbers


def with_scalars(draft: Draft, forms: Iterator[Affine]) -> tuple[tuple[str, Attr], ...]:
    """The attributes of an op with its integers replaced by the next of the ``forms``, in program order."""
    attrs: list[tuple[str, Attr]] = []
    for key, value in draft.attrs:
        if isinstance(value, Affine):
            attrs.append((key, next(forms)))
        elif isinstance(value, tuple) and value and isinstance(value[0], Affine):
            attrs.append((key, tuple(itertools.islice(forms, len(value)))))
        else:
            attrs.append((key, value))
    return tuple(attrs)


@dataclass(frozen=True)
class FittedClass:
    """A box of ranks with one program, and the affine form of each of its scalars."""

    box: Mapping[str, Range]
    program: RankProgram
    forms: tuple[Affine, ...]
    traced: tuple[int, ...]


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
