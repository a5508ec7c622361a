"""What the relations of a plan state: their facts, that inputs are given once, that outputs are covered.

Obligations 15 and 16, by the rules of docs/format.md (Relations) and docs/certificate.md (Coverage).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from ..errors import Rejected, Undecided
from ..language.affine import Affine
from ..language.plan import Piece, Plan, RankClass, Relation
from ..language.proof import Fact, Reduced, Ref, Tensor

MAX_PIECES, MAX_POSITIONS, MAX_INTERVALS, MAX_WORK = 1 << 10, 1 << 20, 1 << 16, 1 << 24
Intervals = list[tuple[int, int]]
Sides = dict[str, list[Relation]]


def relation_facts(plan: Plan, relation: Relation, side: str) -> list[Fact]:
    """The facts that a relation states (docs/certificate.md, Tensors, indices, facts)."""

    def tensor(space: str, name: str) -> Tensor:
        return Tensor(space, name if side == "inputs" else plan.program(space).outputs[name])

    gone = relation.reduce[1] if relation.reduce else ()
    groups: dict[Any, list[str]] = {}
    for number, piece in enumerate(relation.pieces):
        kept = tuple((a, *b) for a, b in plan.box(piece.cls).items() if a not in gone)
        key = (piece.sizes, piece.plan, piece.spec, kept, None if relation.reduce else number)
        groups.setdefault(key, []).append(piece.cls)
    facts = []
    for (sizes, left, right, kept, _), classes in groups.items():
        symbols = (*kept, *((f"z{i}", 0, n) for i, n in enumerate(sizes)))
        lhs: Ref = tensor(classes[0], relation.plan)
        if relation.reduce:
            members = tuple(tensor(c, relation.plan) for c in plan.classes for o in classes if o == c)
            lhs = Reduced(*relation.reduce, members)
        facts.append(
            Fact(
                lhs,
                tensor("s", relation.spec),
                relation.coef,
                symbols,
                (*(Affine.symbol(a) for a, _, _ in kept), *left),
                right,
            )
        )
    return facts


# No element twice (obligation 15, and for the count of obligation 16) ---------------------------------------


def determined(piece: Piece) -> bool:
    """Does the plan index evidently determine every digit that the piece mentions? A form does if, known
    digits taken away, each coefficient exceeds what all smaller terms reach (mixed radix)."""
    open_digits = {s for f in (*piece.plan, *piece.spec) for s in f.names()}
    open_digits = {s for s, (_, n) in piece.digits().items() if n > 1 and s in open_digits}
    before = -1
    while before != len(open_digits):
        before = len(open_digits)
        for form in piece.plan:
            reach, mixed = 0, True
            terms = sorted((abs(c), s) for s, c in form.terms if s in open_digits)
            for c, s in terms:
                mixed, reach = mixed and c > reach, reach + c * (piece.digits()[s][1] - 1)
            open_digits -= {s for _, s in terms if mixed}
    return not open_digits


def disjoint(a: Piece, b: Piece, budget: list[int]) -> bool:
    """Does some dimension tell the pieces apart: by range, by residue, or position by position?"""
    for f, g in zip(a.plan, b.plan, strict=True):
        (low, high), (first, last) = f.interval(a.digits()), g.interval(b.digits())
        step = math.gcd(*(c for _, c in f.terms + g.terms))
        if high < first or last < low or (step > 1 and (f.const - g.const) % step):
            return True
        counts = [math.prod(p.sizes[int(s[1:])] for s, _ in form.terms) for form, p in ((f, a), (g, b))]
        if sum(counts) <= MAX_POSITIONS:
            budget[0] -= sum(counts)
            if budget[0] < 0:
                raise Undecided("the relations take too long to compare")
            sets = [
                {
                    form.const + sum(point)
                    for point in product(*(range(0, c * p.sizes[int(s[1:])], c) for s, c in form.terms))
                }
                for form, p in ((f, a), (g, b))
            ]
            if not sets[0] & sets[1]:
                return True
    return False


def check_once(relations: Sequence[Relation], number: int) -> dict[tuple[str, str], int]:
    """Per class and plan tensor the number of elements that the pieces give, no element twice."""
    placed: dict[tuple[str, str], list[Piece]] = {}
    budget = [MAX_WORK]
    for relation in relations:
        for piece in relation.pieces:
            where, others = (
                f"{relation.plan} in class {piece.cls}",
                placed.setdefault((piece.cls, relation.plan), []),
            )
            if len(others) >= MAX_PIECES:
                raise Rejected(number, f"there are more than {MAX_PIECES} pieces", where)
            if not determined(piece):
                raise Rejected(number, "a piece may give an element twice", where)
            if not all(disjoint(piece, other, budget) for other in others):
                raise Rejected(number, "two pieces may give one element", where)
            others.append(piece)
    return {
        key: sum(
            math.prod(p.sizes[int(s[1:])] for s in set().union(*(f.names() for f in p.plan))) for p in pieces
        )
        for key, pieces in placed.items()
    }


# Every element of the outputs (obligation 16) ---------------------------------------------------------------


def check_outputs(plan: Plan) -> list[str]:
    """Both sides of the output relations are covered, at every rank of every class that must hold them.

    A state may keep elements that no piece covers, if the same pieces leave the same elements open on the
    way in (padding of an uneven shard); gives a note for each.
    """
    counts, notes = check_once(plan.outputs, 16), []
    entering, leaving = _by(plan.inputs, "plan"), _by(plan.outputs, "plan")
    by_spec = _by(plan.outputs, "spec")
    sides = _by(plan.inputs, "spec"), by_spec
    for name in dict.fromkeys(relation.plan for relation in plan.outputs):
        for cls in plan.classes.values():
            value = cls.program.outputs.get(name)
            if value is None and not _holds(plan, cls, name, leaving[name], sides):
                continue
            size, covered = cls.program.types[value].size if value else 0, counts.get((cls.name, name), 0)
            if covered == size > 0:
                continue
            before, after = (
                {(r.reduce, p) for r in side.get(name, ()) for p in r.pieces if p.cls == cls.name}
                for side in (entering, leaving)
            )
            if not covered or before != after:
                raise Rejected(16, f"elements of {name} in class {cls.name} are not covered")
            notes.append(f"{size - covered} elements of {name} at every rank of class {cls.name} are padding")
    for output, value in plan.spec.outputs.items():
        boxes = []
        for relation in by_spec.get(output, ()):
            for piece in relation.pieces:
                names = [s for form in piece.spec for s in form.names()]
                if len(set(names)) == len(names):
                    ranges = plan.box(piece.cls) | piece.digits()
                    boxes.append(tuple(tuple(image(form, ranges)) for form in piece.spec))
        if not covers(plan.spec.types[value].shape, list(dict.fromkeys(boxes))):
            raise Rejected(16, f"elements of the specification's output {output} are not covered")
    return notes


def _holds(plan: Plan, cls: RankClass, name: str, of: list[Relation], sides: Iterable[Sides]) -> bool:
    """Must a class that lacks an output have it? A stage of a pipeline has its own outputs only. But what it
    holds of a state, under any name, it must leave behind as the others do: a stale copy is no state.
    """
    held, left = (
        {r.plan for o in of for r in side.get(o.spec, ()) if any(p.cls == cls.name for p in r.pieces)}
        for side in sides
    )
    return plan.version < 2 or name in cls.program.inputs or not held <= left


def _by(relations: Sequence[Relation], side: str) -> Sides:
    found: Sides = {}
    for relation in relations:
        found.setdefault(getattr(relation, side), []).append(relation)
    return found


def image(form: Affine, ranges: Mapping[str, tuple[int, int]]) -> Intervals:
    """The set of values of a form, as disjoint sorted intervals."""
    base = int(form.interval(ranges)[0])
    found = [(base, base + 1)]
    for step, count in sorted((abs(c), ranges[s][1] - ranges[s][0]) for s, c in form.terms):
        if all(step <= high - low for low, high in found):
            found = [(low, high + step * (count - 1)) for low, high in found]
        elif len(found) * count > MAX_INTERVALS:
            raise Undecided("a relation has too many separate intervals")
        else:
            found = [(low + step * i, high + step * i) for i in range(count) for low, high in found]
        found = _union(found)
    return found


def _union(intervals: Iterable[tuple[int, int]]) -> Intervals:
    result: Intervals = []
    for low, high in sorted(intervals):
        if result and low <= result[-1][1]:
            low, high = result[-1][0], max(high, result.pop()[1])
        result.append((low, high))
    return result


def covers(shape: Sequence[int], boxes: Sequence[Sequence[Sequence[tuple[int, int]]]]) -> bool:
    """Do the products of interval lists cover all indices? By the sets of boxes over each coordinate."""
    reached = {(1 << len(boxes)) - 1}
    for dim, n in enumerate(shape):
        events: dict[int, int] = {0: 0}
        for i, box in enumerate(boxes):
            for end in (e for interval in box[dim] for e in interval):
                events[end] = events.get(end, 0) ^ (1 << i)
        here, masks = 0, set()
        for at in sorted(events):
            here ^= events[at]
            if at < n:
                masks.add(here)
        if len(reached) * len(masks) > MAX_POSITIONS:
            raise Undecided("the output relations have too many pieces")
        reached = {a & b for a in reached for b in masks}
    return 0 not in reached
