"""Is a row completely masked? Decided where constants alone say so, at true sizes (obligation 2).

An entry of a row is infinite, finite, or not known, as its value rests on an input. What holds for all
elements of a box of indices is found by interval arithmetic through the ops; a box about which too little is
known is cut in two, in dimensions (or mesh axes) that matter. Whatever is left open stays an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from fractions import Fraction
from typing import Any, NamedTuple

from ..language.affine import Affine
from ..language.ops import Op, wires
from ..language.plan import Plan
from ..language.regroup import reshape_parts

MAX_WORK, MAX_TRIES, MAX_DEEP = 1 << 14, 24, 100
Key = int | str
"""A dimension, or a mesh axis."""
Box = Mapping[Key, tuple[int, int]]
Keys = frozenset[Key]
NONE = frozenset[Key]()


class Seen(NamedTuple):
    """What all elements of a box have in common: whether they are infinite (None: some may be), bounds of
    those that are not, booleans as 0 and 1, and `on`, where a cut may tell more."""

    inf: bool | None
    low: Any
    high: Any
    on: Keys = NONE


class _Spent(Exception):
    """The work for one answer is used up."""


def joined(a: Seen, b: Seen, on: Keys = NONE) -> Seen:
    return Seen(a.inf if a.inf == b.inf else None, min(a.low, b.low), max(a.high, b.high), a.on | b.on | on)


def truth(yes: bool, no: bool, on: Keys) -> Seen:
    return Seen(False, int(yes), int(not no), NONE if yes or no else on)


class Masks:
    """The values of one program, and of those that call it. `infinite` are those that may be infinite."""

    def __init__(self, plan: Plan, function: str, space: str, infinite: Set[Any]) -> None:
        self.plan, self.function, self.space, self.infinite = plan, function, space, infinite
        body = plan.functions[function] if function else plan
        self.program = body.program(space)
        self.axes: Box = {a: b for a, b in body.box(space).items()} if space != "s" else {}
        spaces = [s for s in ("s", *plan.classes) if function and plan.role(function, s) == space]
        self.callers = {s: Masks(plan, "", s, NONE) for s in spaces}
        self.left, self.memo = 0, dict[Any, Seen]()

    def masked(self, op: Op) -> bool | None:
        """False if every row that `op` reduces has a finite entry, True if some row never has; else None."""
        self.left, rows, left_open = MAX_WORK, [*self._start(op)], False
        inner = frozenset(op.attrs["dims"])
        try:
            while rows:
                box = rows.pop()
                found = self._row(op.operands[0], box, inner)
                if found is True:
                    return True
                if isinstance(found, frozenset):
                    rows += halves(box, found)[::-1]
                left_open |= found is None
        except _Spent:
            return None
        return None if left_open else False

    def everywhere(self, op: Op) -> bool | None:
        """Are all elements of the operand of `op` infinite, at all ranks? None if this is not known."""
        self.left = MAX_WORK
        try:
            return self.look(op.operands[0], next(self._start(op)), 0).inf
        except _Spent:
            return None

    def _start(self, op: Op) -> Iterator[Box]:
        """All rows at all ranks; then, to be looked at before, the last one and the first one."""
        inner = op.attrs.get("dims", ())
        whole: Box = {**self.axes, **{d: (0, n) for d, n in enumerate(op.ins[0].shape)}}
        yield whole
        yield {k: (lo, hi) if k in inner else (hi - 1, hi) for k, (lo, hi) in whole.items()}
        yield {k: (lo, hi) if k in inner else (lo, lo + 1) for k, (lo, hi) in whole.items()}

    def _row(self, name: str, box: Box, inner: Keys) -> bool | Keys | None:
        """Of the rows in a box: False if each has a finite entry, True if all are masked, or where to cut."""
        first = {k: (lo, lo + 1) if k in inner else (lo, hi) for k, (lo, hi) in box.items()}
        last = {k: (hi - 1, hi) if k in inner else (lo, hi) for k, (lo, hi) in box.items()}
        parts, extra, tries, every, outside = [box, last, first], 2, 0, True, NONE
        while parts:
            part, seen = parts[-1], self.look(name, parts.pop(), 0)
            extra, tries = extra - 1, tries + 1
            if seen.inf is False:
                return False
            if extra >= 0 or seen.inf:
                continue
            within = seen.on & inner
            outside |= seen.on - inner
            if within and (tries <= MAX_TRIES or not outside):
                parts += halves(part, within)[::-1]
            else:
                every = False
        return True if every else outside or None

    # One box ------------------------------------------------------------------------------------------------

    def look(self, name: str, box: Box, deep: int) -> Seen:
        key = name, tuple(box.items())
        if key not in self.memo:
            self.left -= 1
            if self.left < 0:
                raise _Spent
            op, found = self.program.producers.get(name), None
            if op is None and self.function:
                for space, operand in dict.fromkeys(self.plan.operands(self.function, self.space, name)):
                    caller = self.callers[space]
                    caller.left = self.left
                    one = caller.look(operand, {**caller.axes, **box}, deep + 1)
                    found = joined(found, one) if found else one
                    self.left = caller.left
            elif op is not None and deep < MAX_DEEP:
                found = self._op(op, box, deep)
            if found is None:
                ends = (0, 1) if self.program.types[name].sort == "Bool" else (-math.inf, math.inf)
                found = Seen(None if name in self.infinite else False, *ends)
            on = frozenset(k for k in found.on if box[k][1] - box[k][0] > 1)
            known = found.inf or (found.low == found.high and found.inf is False)
            self.memo[key] = found._replace(on=NONE if known else on)
        return self.memo[key]

    def _read(
        self, op: Op, box: Box, number: int, deep: int, lines: Mapping[int, tuple[tuple[int, int], Keys]]
    ) -> Seen:
        """An operand where a result's box reads it: `lines` has ranges, and the result's dimensions."""
        inside = {k: v for k, v in box.items() if isinstance(k, str)} | {
            d: lines[d][0] for d in sorted(lines)
        }
        seen = self.look(op.operands[number], inside, deep + 1)
        on = [lines[k][1] if isinstance(k, int) else {k} for k in seen.on]
        return seen._replace(on=NONE.union(*on))

    def _op(self, op: Op, box: Box, deep: int) -> Seen | None:
        """None where nothing is known of the values."""
        a, shape = op.attrs, op.type.shape
        same = {d: (box[d], frozenset[Key]((d,))) for d in range(len(shape))}
        match op.name:
            case "constant":
                v = a["value"]
                if isinstance(v, Affine):
                    low, high = v.interval({k: box[k] for k in v.names()})
                    return Seen(False, low, high, frozenset(v.names()))
                return Seen(True, 0, 0) if v in ("inf", "-inf") else Seen(False, Fraction(v), Fraction(v))
            case "iota":
                return Seen(False, box[a["dim"]][0], box[a["dim"]][1] - 1, frozenset((a["dim"],)))
            case "slice":
                lines = {}
                for d, (start, step) in enumerate(zip(a["start"], a["stride"], strict=True)):
                    low, high = start.interval({k: box[k] for k in start.names()})
                    lines[d] = (
                        (int(low) + step * box[d][0], int(high) + step * (box[d][1] - 1) + 1),
                        frozenset[Key]((d, *start.names())),
                    )
                return self._read(op, box, 0, deep, lines)
            case "reshape":
                return self._read(op, box, 0, deep, regrouped(shape, op.ins[0].shape, box))
            case "concatenate":
                return self._concatenate(op, box, deep, same)
        wired = wires(op)
        if wired is None or op.name in ("reduce", "dot_general"):
            return None
        seen = [
            self._read(
                op,
                box,
                i,
                deep,
                {d: (same[w] if w is not None else ((0, 1), NONE)) for d, w in enumerate(wire)},
            )
            for i, wire in enumerate(wired)
        ]
        return cell(op, seen)

    def _concatenate(
        self, op: Op, box: Box, deep: int, same: Mapping[int, tuple[tuple[int, int], Keys]]
    ) -> Seen | None:
        dim, start, found = op.attrs["dim"], 0, None
        for number, kind in enumerate(op.ins):
            n = kind.shape[dim]
            low, high = max(box[dim][0] - start, 0), min(box[dim][1] - start, n)
            start += n
            if low < high:
                one = self._read(op, box, number, deep, {**same, dim: ((low, high), same[dim][1])})
                found = joined(found, one, same[dim][1]) if found else one
        return found


def halves(box: Box, among: Keys) -> list[Box]:
    """The box cut in two, in its largest dimension of these."""
    k = max(sorted(among, key=str), key=lambda k: box[k][1] - box[k][0])
    low, high = box[k]
    middle = (low + high) // 2
    return [{**box, k: (low, middle)}, {**box, k: (middle, high)}]


def regrouped(
    result: tuple[int, ...], operand: tuple[int, ...], box: Box
) -> dict[int, tuple[tuple[int, int], Keys]]:
    """What a box of a reshape reads: of each part of equal products what holds its first and last element."""
    lines = dict[int, tuple[tuple[int, int], Keys]]()
    for outer, inner in reshape_parts(result, operand):
        first = last = 0
        for d in outer:
            first, last = first * result[d] + box[d][0], last * result[d] + box[d][1] - 1
        size, split = math.prod(operand[d] for d in inner), False
        for d in inner:
            size //= operand[d]
            low, high = (
                (0, operand[d] - 1) if split else (first // size % operand[d], last // size % operand[d])
            )
            split |= low != high
            lines[d] = (low, high + 1), frozenset[Key](outer)
    return lines


def cell(op: Op, seen: list[Seen]) -> Seen | None:
    """The op on one value, elementwise; None where it is none of those that masks are made of."""
    x, y = seen[0], seen[-1]
    on = x.on | y.on
    match op.name:
        case "broadcast_in_dim" | "transpose":
            return x
        case "convert":
            if op.variant != "convert Int Bool":
                return x
            return truth(x.low > 0 or x.high < 0, x.low == x.high == 0, on)
        case "select":
            if x.low == x.high:
                return seen[1] if x.low else y
            return joined(seen[1], y, x.on)
        case "not":
            return Seen(False, 1 - x.high, 1 - x.low, on)
        case "and":
            return Seen(False, min(x.low, y.low), min(x.high, y.high), on)
        case "or":
            return Seen(False, max(x.low, y.low), max(x.high, y.high), on)
        case "negate":
            return Seen(x.inf, -x.high, -x.low, on)
        case "add":
            return Seen(either(x, y), x.low + y.low, x.high + y.high, on)
        case "subtract":
            return Seen(either(x, y), x.low - y.high, x.high - y.low, on)
        case "compare":
            less, more = (
                truth(x.high < y.low, x.low >= y.high, on),
                truth(y.high < x.low, y.low >= x.high, on),
            )
            equal = truth(x.low == x.high == y.low == y.high, x.high < y.low or y.high < x.low, on)
            turned = {"GE": less, "LE": more, "NE": equal}.get(op.attrs["direction"])
            if turned:
                return Seen(False, 1 - turned.high, 1 - turned.low, turned.on)
            return {"LT": less, "GT": more, "EQ": equal}[op.attrs["direction"]]
    return None


def either(x: Seen, y: Seen) -> bool | None:
    return True if x.inf or y.inf else None if x.inf is None or y.inf is None else False
