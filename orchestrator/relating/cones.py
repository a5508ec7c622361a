"""What elements are made of, and where two of them are made of the same.

The cone of an element is what has to be opened to see it, down to related elements that it reads. Where the
reads of two cones are the same elements, the index of one says at which index the other is to be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.program import Op
from certificates.proof.facts import Ref

from ..cells import Cell, Cut, Unfollowable, within
from .knowledge import Knowledge
from .ledger import Unrelated

#: An index with ``None`` where a coordinate is an integer element, so not affine.
Loose = tuple[Affine | None, ...]
#: Offsets of positions that are tried where only a constant in the cone can say what they are.
MAX_OFFSETS = 4


@dataclass
class Cone:
    """What an element is made of: tensors that are opened, and the related elements it reads."""

    opened: set[Ref] = field(default_factory=set)
    reads: list[tuple[Ref, Loose]] = field(default_factory=list)
    #: Of these, numbers that are counted along a dimension.
    counted: set[Ref] = field(default_factory=set)
    offsets: set[Affine] = field(default_factory=set)
    #: The product of the numbers that scale what is opened.
    scale: Fraction = Fraction(1)

    def read(self, target: tuple[Ref, Loose], op: Op | None) -> None:
        """Note a related element of a tensor that this op makes."""
        self.reads.append(target)
        if op is not None and op.name == "iota":
            self.counted.add(target[0])


def positions(
    known: dict[str, Affine], missing: Sequence[str], cone: Cone, index: Sequence[Affine]
) -> list[dict[str, Affine]]:
    """Index symbols; one that no read determines is a coordinate of the plan's, with an offset."""
    if not missing:
        return [known]
    if len(missing) > 1:
        return []
    taken = set(known.values())
    offsets = sorted(cone.offsets, key=str)[:MAX_OFFSETS]
    moved = [f + offset for f in index if not f.is_const for offset in (Affine(), *offsets)]
    return [known | {missing[0]: form} for form in dict.fromkeys(moved) if form not in taken]


def matches(
    mine: Cone, theirs: Cone, ranges: Mapping[str, Range], splits: list[Cut]
) -> Iterator[dict[str, Affine]]:
    """Values of the specification's index symbols by all its reads, and then without what is counted: a rank
    may count from another number."""
    others = [(t, at) for t, at in mine.reads if t not in mine.counted]
    for reads in (mine.reads, others) if len(others) < len(mine.reads) else (mine.reads,):
        found = match(reads, theirs, ranges, splits)
        if found is not None:
            yield found


def match(
    reads: Sequence[tuple[Ref, Loose]], theirs: Cone, ranges: Mapping[str, Range], splits: list[Cut]
) -> dict[str, Affine] | None:
    """Values of the specification's index symbols under which each of its reads is one of the cone's."""
    known: dict[str, Affine] = {}
    for target, loose in reads:
        for other, at in theirs.reads:
            trial = dict(known)
            if other == target and _unify(loose, at, trial):
                known = trial
                break
        else:
            splits += [c for other, at in theirs.reads if other == target for c in _apart(loose, at, ranges)]
            return None
    return known


def _apart(mine: Loose, theirs: Loose, ranges: Mapping[str, Range]) -> Iterator[Cut]:
    """Where a coordinate that is a number on one side becomes it on the other, as on the rank that has it."""
    for form, target in zip(mine, theirs, strict=True):
        if form is None or target is None or not form.is_const or target.is_const:
            continue
        try:
            within(target - form, 0, 1, ranges)
        except Cut as split:
            yield split
        except Unfollowable:
            continue


def _unify(mine: Loose, theirs: Loose, known: dict[str, Affine]) -> bool:
    for form, target in zip(mine, theirs, strict=True):
        if form is None or target is None:
            continue
        if set(form.symbols) <= set(known):
            if form.substitute(known) != target:
                return False
            continue
        if len(form.terms) != 1 or form.terms[0][1] != 1:
            continue
        if known.setdefault(form.terms[0][0], target - form.const) != target - form.const:
            return False
    return True


def is_known(knowledge: Knowledge, spec: Ref) -> bool:
    """Is all of a tensor another one? Of a mask, the later rows may be those of another mask."""
    facts = knowledge.by_lhs.get(spec, ())
    return bool(facts) and all(knowledge.facts[n].rhs != spec for n in facts)


def stands(
    knowledge: Knowledge,
    spec: Ref,
    cell: Cell,
    full: Mapping[str, Affine],
    ranges: Mapping[str, Range],
    splits: list[Cut],
) -> bool:
    """Is an element of the specification, with ``full`` in place of the cell's symbols, in that cell, and no
    other one? If so for some only, ``splits`` says which."""
    out = tuple(f.substitute(full) for f in cell.at.values())
    try:
        if not all(within(full[s], *r, ranges) for s, r in cell.ranges.items() if s in full):
            return False
        if spec not in knowledge.by_lhs:
            return True
        reading = knowledge.read(spec, list(out), ranges)
    except Cut as split:
        splits.append(split)
        return False
    except (Unrelated, Unfollowable):
        return False
    return reading.target == spec and tuple(reading.at) == out
