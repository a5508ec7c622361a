"""Where the elements of a value come from: data movement followed backwards, at true sizes.

A value is asked at symbolic indices. Slices, reshapes, concatenations and look-ups at known rows turn these
into indices of an input; where that differs from element to element, the index box is split. So a tensor that
was cut out of others is a list of :class:`Part`, however large it is and however it was cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from certificates.plan.affine import ZERO, Affine, Range
from smtlib_emit.regroup import linear

from ..cells import Cell, Cut, Unfollowable, divide, explore, unlinear, within
from .builder import Builder, Draft, Value

#: Elements of a table of row numbers that are looked at one by one.
MOST = 1 << 22


@dataclass(frozen=True)
class Part:
    """``local[at(z)]`` is ``source[index(z)]`` for all digits ``z0, z1, …`` below ``sizes``.

    ``source`` is the name of an input, or ``None`` where the element is a literal.
    """

    sizes: tuple[int, ...]
    at: tuple[Affine, ...]
    source: str | None
    index: tuple[Affine, ...]


class Computed(Exception):
    """An element is not moved but computed, by ``draft``."""

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft.name)
        self.draft = draft


@dataclass
class Origins:
    """Follows the values of a builder. ``tables`` are inputs whose numbers are known."""

    builder: Builder
    tables: Mapping[str, np.ndarray]
    _digests: dict[str, str] = field(default_factory=dict)

    def parts(self, value: Value) -> tuple[Part, ...]:
        """What a value consists of. Raises :class:`Computed`, or ``Unfollowable`` if it has no such form."""
        symbols = [f"z{d}" for d in range(len(value.shape))]
        whole = Cell.whole({s: (0, n) for s, n in zip(symbols, value.shape, strict=True)})

        def origin(cell: Cell) -> tuple[str | None, list[Affine]]:
            return self._origin(value.name, [cell.at[s] for s in symbols], cell.ranges)

        return tuple(
            _part(cell, [cell.at[s] for s in symbols], source, index)
            for cell, (source, index) in explore(whole, origin)
        )

    def reads(self, name: str) -> set[str]:
        """The inputs that a value depends on."""
        found, stack, seen = set(), [name], set()
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            if current in self.builder.inputs:
                found.add(current)
            else:
                stack.extend(self.builder.drafts[current].ins)
        return found

    def drafts(self, name: str) -> list[Draft]:
        """The ops that a value depends on."""
        found: dict[str, Draft] = {}
        stack = [name]
        while stack:
            current = stack.pop()
            if current not in found and current not in self.builder.inputs:
                found[current] = self.builder.drafts[current]
                stack.extend(found[current].ins)
        return list(found.values())

    def digest(self, name: str) -> str:
        """Equal for values that are computed in one way from the same inputs."""
        stack = [name]
        while stack:
            current = stack[-1]
            draft = self.builder.drafts.get(current)
            missing = [i for i in draft.ins if i not in self._digests] if draft is not None else []
            if missing:
                stack += missing
                continue
            stack.pop()
            if draft is None:
                known = self.tables.get(current)
                text: object = current if known is None else (known.shape, known.tolist())
            elif draft.name == "agreed":  # passed on as it was; by whom, other ranks see otherwise
                self._digests[current] = self._digests[draft.ins[0]]
                continue
            else:
                text = (draft.name, draft.type, draft.attrs, [self._digests[i] for i in draft.ins])
            self._digests[current] = hashlib.sha256(repr(text).encode()).hexdigest()
        return self._digests[name]

    def _origin(
        self, name: str, at: list[Affine], ranges: Mapping[str, Range]
    ) -> tuple[str | None, list[Affine]]:
        while name not in self.builder.inputs:
            draft = self.builder.drafts[name]
            if draft.name == "constant":
                return None, []
            if draft.name == "gather":
                name, at = self._looked_up(draft, at, ranges)
            else:
                name, at = self._moved(draft, at, ranges)
        return (None, []) if name in self.tables else (name, at)

    def _shape(self, name: str) -> tuple[int, ...]:
        inputs = self.builder.inputs
        return (inputs[name] if name in inputs else self.builder.drafts[name].type).shape

    def _moved(
        self, draft: Draft, at: Sequence[Affine], ranges: Mapping[str, Range]
    ) -> tuple[str, list[Affine]]:
        """The element of an operand that data movement puts at an index."""
        operand, attrs = draft.ins[0] if draft.ins else "", dict(draft.attrs)
        match draft.name:
            case "convert" | "agreed":
                return operand, list(at)
            case "broadcast_in_dim":
                pairs = zip(self._shape(operand), _ints(attrs["dims"]), strict=True)
                return operand, [ZERO if n == 1 else at[d] for n, d in pairs]
            case "transpose":
                source = [ZERO] * len(at)
                for d, p in enumerate(_ints(attrs["perm"])):
                    source[p] = at[d]
                return operand, source
            case "slice":
                starts, strides = _ints(attrs["start"]), _ints(attrs["stride"])
                return operand, [f.scale(n) + s for f, n, s in zip(at, strides, starts, strict=True)]
            case "reshape":
                return operand, unlinear(linear(at, draft.type.shape), self._shape(operand), ranges)
            case "pad":
                source = [f - low for f, low in zip(at, _ints(attrs["low"]), strict=True)]
                shape = self._shape(operand)
                if all([within(f, 0, n, ranges) for f, n in zip(source, shape, strict=True)]):
                    return operand, source
                return draft.ins[1], []
            case "concatenate":
                (dim,) = _ints((attrs["dim"],))
                source = list(at)
                for part in draft.ins:
                    size = self._shape(part)[dim]
                    if within(source[dim], 0, size, ranges):
                        return part, source
                    source[dim] = source[dim] - size
        raise Computed(draft)

    def _looked_up(
        self, draft: Draft, at: Sequence[Affine], ranges: Mapping[str, Range]
    ) -> tuple[str, list[Affine]]:
        attrs = dict(draft.attrs)
        axis, batch = _ints((attrs["axis"], attrs["batch_dims"]))
        operand, rows = draft.ins
        count = len(self._shape(rows)) - batch
        number = self._number(rows, [*at[:batch], *at[axis : axis + count]], ranges)
        size = self._shape(operand)[axis]
        divide(number, 0, ranges)
        if number.interval(ranges)[0] < 0:  # PyTorch counts from the end
            number = number + size
        if not within(number, 0, size, ranges):
            raise Unfollowable("a row number outside its tensor")
        return operand, [*at[:axis], number, *at[axis + count :]]

    def _number(self, name: str, at: list[Affine], ranges: Mapping[str, Range]) -> Affine:
        """An integer element as an affine form of its index, on the whole box."""
        while True:
            if name in self.tables:
                return _entry(self.tables[name], at, ranges)
            draft = self.builder.drafts.get(name)
            if draft is None:
                raise Unfollowable(f"a row number that is read from {name}")
            attrs = dict(draft.attrs)
            match draft.name:
                case "constant" if isinstance(attrs["value"], Affine):
                    return attrs["value"]
                case "iota":
                    return at[_ints((attrs["dim"],))[0]]
                case "add" | "subtract" | "multiply":
                    x, y = (self._number(i, at, ranges) for i in draft.ins)
                    if draft.name != "multiply":
                        return x + y if draft.name == "add" else x - y
                    if not x.is_const and not y.is_const:
                        raise Computed(draft)
                    return x.scale(y.const) if y.is_const else y.scale(x.const)
                case "select":
                    chosen = self._holds(draft.ins[0], at, ranges)
                    name = draft.ins[1 if chosen else 2]
                case _:
                    name, at = self._moved(draft, at, ranges)

    def _holds(self, name: str, at: list[Affine], ranges: Mapping[str, Range]) -> bool:
        """A comparison of integer elements, the same on the whole box."""
        while (draft := self.builder.drafts.get(name)) is not None and draft.name != "compare":
            name, at = self._moved(draft, at, ranges)
        if draft is None:
            raise Unfollowable(f"a condition that is read from {name}")
        x, y = (self._number(i, at, ranges) for i in draft.ins)
        match dict(draft.attrs)["direction"]:
            case "LT":
                return _below(x - y, 0, ranges)
            case "GE":
                return not _below(x - y, 0, ranges)
            case "GT":
                return not _below(x - y, 1, ranges)
            case "LE":
                return _below(x - y, 1, ranges)
        raise Computed(draft)


def _below(form: Affine, bound: int, ranges: Mapping[str, Range]) -> bool:
    divide(form, bound, ranges)
    return form.interval(ranges)[1] < bound


def _ints(values: object) -> list[int]:
    assert isinstance(values, tuple)
    return [v.const if isinstance(v, Affine) else int(str(v)) for v in values]


def _entry(table: np.ndarray, at: Sequence[Affine], ranges: Mapping[str, Range]) -> Affine:
    """An entry of a table as an affine form; splits the box where the entries have none."""
    symbols = [s for s in dict.fromkeys(s for f in at for s in f.symbols) if ranges[s][1] - ranges[s][0] > 1]
    sizes = [ranges[s][1] - ranges[s][0] for s in symbols]
    if np.prod(sizes, dtype=object) > MOST:
        raise Unfollowable("a long table of row numbers")
    grid = np.indices(sizes) if symbols else np.zeros((0,), int)
    first = {s: lo for s, (lo, _) in ranges.items()}
    places = []
    for form in at:
        place = np.full(sizes, form.evaluate(first), dtype=np.int64)
        for s, steps in zip(symbols, grid, strict=True):
            place += form.coef(s) * steps
        places.append(place)
    values = table[tuple(places)]
    slopes = {}
    for axis, symbol in enumerate(symbols):
        steps = np.diff(values, axis=axis)
        slope = steps.flat[0]
        wrong = np.nonzero((steps != slope).any(axis=tuple(i for i in range(steps.ndim) if i != axis)))[0]
        if len(wrong):
            raise Cut(symbol, ranges[symbol][0] + max(int(wrong[0]), 0) + 1)
        slopes[symbol] = int(slope)
    start = int(values.flat[0]) - sum(c * first[s] for s, c in slopes.items())
    return Affine.of(start, slopes)


def _part(cell: Cell, at: Sequence[Affine], source: str | None, index: Sequence[Affine]) -> Part:
    """The part in which every digit runs from 0, and none has a single value."""
    moving = [s for s in dict.fromkeys(s for f in at for s in f.symbols)]
    fixed: dict[str, Affine] = {}
    sizes: list[int] = []
    for symbol in moving:
        lo, hi = cell.ranges[symbol]
        if hi - lo == 1:
            fixed[symbol] = Affine(lo)
        else:
            fixed[symbol] = Affine.symbol(f"z{len(sizes)}") + lo
            sizes.append(hi - lo)
    return Part(
        tuple(sizes),
        tuple(f.substitute(fixed) for f in at),
        source,
        tuple(f.substitute(fixed) for f in index),
    )
