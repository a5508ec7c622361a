"""Stages of a pipeline that do the same to other tensors, at other times.

The middle stages of a model run the same layers under other names, and a schedule orders their work
differently. How the integers of such a stage rise along the other axes of the mesh is read off one of them,
which is traced as any class is; of another one two ranks far apart are traced, and must be what that says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from certificates.plan.affine import Affine
from certificates.plan.ops import MESSAGES

from .builder import Draft
from .fitting import Sample, split
from .layouts import Layout
from .lowering import RankProgram

Point = tuple[int, ...]
#: Attributes that say when an op runs.
_WHEN = frozenset({"seq", "batch"})


@dataclass(frozen=True)
class Likeness:
    """Another program that is the same: ``order`` says of each scalar which one of the other it is, ``names``
    what each input is called there."""

    order: tuple[int, ...]
    names: Mapping[str, str]

    def lent(self, first: Sample, other: Sample, there: Sample, rank: int) -> Sample | None:
        """What a rank would be traced as: it differs from the ``first`` rank of its stage as rank ``there``
        differs from the ``other`` stage's first. Nothing, where names of tensors stand in the way."""
        layouts = _renamed(there.layouts, {theirs: ours for ours, theirs in self.names.items()})
        if layouts is None:
            return None
        rises = [b - a for a, b in zip(other.scalars, there.scalars, strict=True)]
        scalars = tuple(n + rises[at] for n, at in zip(first.scalars, self.order, strict=True))
        return replace(first, rank=rank, scalars=scalars, layouts=layouts)


class Likenesses:
    """Compares programs; values that are made and used in one way have one number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[tuple[str, Point], _Form] = {}

    def between(
        self,
        one: tuple[Sample, RankProgram, Point],
        other: tuple[Sample, RankProgram, Point],
    ) -> Likeness | None:
        """How a traced rank is like another one, each with its program and its coordinates; nothing if it
        is not."""
        ours, theirs = self._form(*one), self._form(*other)
        same = (ours.inputs, ours.outputs, one[1].groups) == (theirs.inputs, theirs.outputs, other[1].groups)
        if not same or Counter(ours.numbers) != Counter(theirs.numbers):
            return None
        places: dict[int, list[int]] = defaultdict(list)
        for number, place in zip(theirs.numbers, accumulate(theirs.sizes, initial=0), strict=False):
            places[number].append(place)
        following = {number: iter(found) for number, found in places.items()}
        begins = [next(following[number]) for number in ours.numbers]
        order = tuple(at + k for at, count in zip(begins, ours.sizes, strict=True) for k in range(count))
        names = dict(zip(one[1].inputs, other[1].inputs, strict=True))
        layouts = _renamed(one[0].layouts, names)
        if layouts is None or layouts != _renamed(other[0].layouts, {n: n for n in names.values()}):
            return None
        return Likeness(order, names)

    def _form(self, sample: Sample, program: RankProgram, at: Point) -> _Form:
        key = sample.skeleton, at
        if key not in self._known:
            self._known[key] = self._made(program, at)
        return self._known[key]

    def _made(self, program: RankProgram, at: Point) -> _Form:
        places = {name: i for i, name in enumerate(program.inputs)}
        values = {name: self._number(("input", i)) for name, i in places.items()}
        made: list[int] = []
        sizes: list[int] = []
        for draft in program.drafts:
            kept, scalars = split(draft)
            attrs = tuple((key, value) for key, value in kept if key not in _WHEN)
            ins = tuple(values[v] for v in draft.ins)
            number = self._number((draft.name, str(draft.type), attrs, _away(draft, at), ins))
            values[draft.out] = number
            made.append(number)
            sizes.append(len(scalars))
        outputs = {places.get(name, name): values[value] for name, value in program.outputs.items()}
        numbers = self._used(program, made, places)
        types = tuple(str(t) for t in program.inputs.values())
        return _Form(types, tuple(numbers), tuple(sizes), outputs)

    def _used(self, program: RankProgram, made: Sequence[int], places: Mapping[str, int]) -> list[int]:
        """Values are told apart by what is made of them, too: two slices that differ in where they begin are
        not taken for one another."""
        uses: dict[str, list[int]] = defaultdict(list)
        for name, value in program.outputs.items():
            uses[value].append(self._number(("output", places.get(name, name))))
        numbers = []
        for draft, number in zip(reversed(program.drafts), reversed(made), strict=True):
            numbers.append(self._number(("used", number, tuple(sorted(uses[draft.out])))))
            for i, operand in enumerate(draft.ins):
                uses[operand].append(self._number(("operand", i, numbers[-1])))
        return numbers[::-1]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


@dataclass(frozen=True)
class _Form:
    """Types of the inputs, a number for how each op's value is made and used, how many scalars each op has,
    and a number for how each output is made: inputs have places in the place of names."""

    inputs: tuple[str, ...]
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    outputs: Mapping[int | str, int]


def _away(draft: Draft, at: Point) -> tuple[int, ...]:
    """How far off the other end of a message is."""
    if draft.name not in MESSAGES:
        return ()
    peers = (v for key, v in draft.attrs if key in ("to", "from") and isinstance(v, tuple))
    return tuple(f.const - x for v in peers for f, x in zip(v, at, strict=True) if isinstance(f, Affine))


def _renamed(layouts: Mapping[str, Layout], names: Mapping[str, str]) -> dict[str, Layout] | None:
    """Layouts under other names, without where their cuts stand in a file; nothing where one speaks of a
    tensor that has no such name."""
    made: dict[str, Layout] = {}
    for name, layout in layouts.items():
        of = (f"params.{layout.owner}", f"buffers.{layout.owner}")
        owner = next((names[o].partition(".")[2] for o in of if o in names), None if layout.owner else "")
        cut = layout.cut
        parts = () if cut is None or cut.parts is None else cut.parts
        sources = {p.source for p in parts if p.source is not None}
        if name not in names or owner is None or not sources <= names.keys():
            return None
        if cut is not None:
            moved = tuple(p if p.source is None else replace(p, source=names[p.source]) for p in parts)
            cut = replace(cut, parts=None if cut.parts is None else moved, frame=None, agreed=())
        made[names[name]] = replace(layout, owner=owner, cut=cut)
    return made


def agrees(lent: Sample, traced: Sample) -> bool:
    """Is a rank what it was said to be?"""
    names = {n: n for n in lent.layouts}
    said = lent.skeleton, lent.scalars, _renamed(lent.layouts, names)
    return said == (traced.skeleton, traced.scalars, _renamed(traced.layouts, names))
