"""Replay of a witness: one claimed fact evaluated at true sizes in interval arithmetic, with no solver.

Inputs are constant on blocks. A tensor is read at forms, affine over box variables (variable v runs over
[0, sizes[v])); the answer is a `Grid`: per variable that matters its cuts, and one value per cell. A sum reads its
operand at a fresh variable and weights every cell with its length. Where row-major regrouping is not affine on a box,
the box is cut, or the sum that owns the variable replaces it by digits (`Digits`). Ranks are expanded one by one:
a node is an op with resolved numbers, equal nodes are one, a collective is data movement or a `merge` of its members.
Values: `Number`s of intervals.py, exact integers, booleans; None is undefined and spreads unless a select drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from math import gcd, prod
from typing import Any

from .affine import Affine
from .errors import Malformed, Rejected, Undecided
from .intervals import HIGH, LOW, Reals
from .reader import COLLECTIVES, Op, Piece, Plan, Program, Type, array, integers, members, need, rational
from .records import Fact, Reduced

OBLIGATION = (16, "witness")
MAX_CELLS, MAX_WORK = 1 << 20, 1 << 26
"""Most cells of one value, and of all values together; beyond that there is no verdict."""

Form = tuple[int, tuple[tuple[int, int], ...]]
Forms = tuple[Form, ...]
Sizes = tuple[int, ...]
Axes = tuple[tuple[int, tuple[int, ...]], ...]
Marks = dict[int, set[int]]
Steps = Generator[tuple[int, Forms, Sizes], "Grid", "Grid"]


@dataclass(frozen=True, slots=True)
class Replay:
    """Both sides of the fact at the witness's symbols, as disjoint rational intervals (or unequal exact values)."""

    symbols: Mapping[str, int]
    plan: tuple[Fraction, Fraction]
    spec: tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class Grid:
    """Per cell (row-major over the axes) its value; the value at a position is that plus the slope (integers only)."""

    axes: Axes
    data: list[Any]
    slope: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One tensor of one rank: attributes are plain numbers, operands node numbers."""

    op: str
    ins: tuple[int, ...]
    attrs: tuple[Any, ...]
    type: Type


class Digits(Exception):
    """The variable `var` must become digits of this radix on the positions [start, stop)."""

    def __init__(self, var: int, radix: int, start: int, stop: int) -> None:
        self.var, self.radix, self.start, self.stop = var, radix, start, stop


class Cut(Exception):
    """The box must be cut at these positions of its variables first."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks


def replay(plan: Plan, fact: Fact, witness: Any, bits: int = 256) -> Replay:
    """Check that the claimed fact fails on the witness: `Rejected` if it is not shown to, `Malformed`, `Undecided`."""
    item = members(witness, "witness", "output piece symbols junk inputs")
    symbols = members(item["symbols"], "witness: symbols", " ".join(s for s, _, _ in fact.symbols))
    for name, lo, hi in fact.symbols:
        integers([symbols[name]], f"witness: symbol {name}", lo, hi)
    machine = Machine(plan, item, Reals(bits))
    gone = fact.lhs.axes if isinstance(fact.lhs, Reduced) else ()
    kept = [a for a, _ in plan.mesh if a not in gone]
    at = [value(f, symbols) for f in fact.lhs_index]
    fixed = dict(zip(kept, at, strict=False))
    parts = []
    for moving in product(*(range(dict(plan.mesh)[a]) for a in gone)):
        rank = plan_rank(plan, fixed | dict(zip(gone, moving, strict=True)))
        of = fact.lhs.of if isinstance(fact.lhs, Reduced) else (fact.lhs,)
        mine = [t for t in of if not isinstance(t, Reduced) and t.space == machine.owner(rank)]
        need(len(mine) == 1, "witness: the fact does not span the rank")
        parts.append(machine.node(rank, mine[0].value))
    node = machine.merge(parts, fact.lhs.kind if isinstance(fact.lhs, Reduced) else "add")
    need(not isinstance(fact.rhs, Reduced), "witness: the right-hand side must be a specification tensor")
    left = machine.element(node, at[len(kept):])
    right = machine.element(machine.node(-1, getattr(fact.rhs, "value", "")),
                            [value(f, symbols) for f in fact.rhs_index])
    reals = machine.reals
    if machine.nodes[node].type.sort == "Real":
        right = reals.mul(right, reals.of(fact.coef))
        if reals.equal(left, right) is not False:
            raise Rejected(*OBLIGATION, "the two sides are not shown to differ: their enclosures meet or are undefined")
        ends = reals.ends(left), reals.ends(right)
        if ends[0] is None or ends[1] is None:
            raise Rejected(*OBLIGATION, "a side is infinite")
        return Replay(dict(symbols), ends[0], ends[1])
    if left is None or right is None or left == right:
        raise Rejected(*OBLIGATION, "the two sides are equal or undefined")
    return Replay(dict(symbols), (Fraction(left), Fraction(left)), (Fraction(right), Fraction(right)))


def value(form: Affine, at: Mapping[str, int]) -> int:
    return form.const + sum(c * at[s] for s, c in form.terms)


def plan_rank(plan: Plan, at: Mapping[str, int]) -> int:
    rank = 0
    for axis, n in plan.mesh:
        rank = rank * n + at[axis]
    return rank


# Forms ---------------------------------------------------------------------------------------------------------


def plus(x: Form, y: Form, factor: int = 1) -> Form:
    """x + factor * y."""
    terms = dict(x[1])
    for v, c in y[1]:
        terms[v] = terms.get(v, 0) + factor * c
    return x[0] + factor * y[0], tuple(sorted((v, c) for v, c in terms.items() if c))


def span(form: Form, sizes: Sequence[int]) -> tuple[int, int]:
    low = high = form[0]
    for v, c in form[1]:
        low, high = low + min(0, c * (sizes[v] - 1)), high + max(0, c * (sizes[v] - 1))
    return low, high


def mark(form: Form, sizes: Sequence[int], at: int, marks: Marks) -> None:
    """Add cuts until `form >= at` has one answer on every cell."""
    low, high = span(form, sizes)
    if at <= low or at > high:
        return
    var, coef = max(form[1], key=lambda t: abs(t[1]))
    rest = form[0], tuple(t for t in form[1] if t[0] != var)
    low, high = span(rest, sizes)
    near, far = (high, low) if coef > 0 else (low, high)
    first, last = (-((near - at) // coef), -((far - at) // coef)) if coef > 0 else (
        (near - at) // -coef + 1, (far - at) // -coef + 1)
    first, last = max(first, 0), min(last, sizes[var])
    if last - first > MAX_CELLS:
        raise Undecided("witness: a box falls into too many cells")
    marks.setdefault(var, set()).update(p for p in range(first, last + 1) if 0 < p < sizes[var])
    for v in range(first, last):
        mark((rest[0] + coef * v, rest[1]), sizes, at, marks)


def divide(form: Form, by: int, sizes: Sequence[int]) -> tuple[Form, Form]:
    """Quotient and remainder, where they are affine on the box; else `Digits` or `Cut`."""
    rest = form[0] % by, tuple(t for t in form[1] if t[1] % by)
    low, high = span(rest, sizes)
    if low // by == high // by:
        whole = form[0] // by + low // by, tuple((v, c // by) for v, c in form[1] if not c % by)
        return whole, (rest[0] - low // by * by, rest[1])
    var, coef = max(rest[1], key=lambda t: abs(t[1]) * sizes[t[0]])
    radix = by // gcd(coef, by)
    if sizes[var] > radix:
        raise Digits(var, radix, 0, sizes[var])
    marks: Marks = {}
    for boundary in range(low // by + 1, high // by + 1):
        mark(rest, sizes, boundary * by, marks)
    raise Cut(marks)


def substitute(forms: Forms, var: int, image: Form) -> Forms:
    """The forms with `image` for a variable."""
    return tuple(plus((c, tuple(t for t in ts if t[0] != var)), image, dict(ts).get(var, 0)) for c, ts in forms)


def split(forms: Forms, sizes: Sizes, how: Digits) -> list[tuple[Forms, Sizes]]:
    """The parts that replace a box whose variable must become digits."""
    full, tail = divmod(how.stop - how.start, how.radix)
    out = []
    for start, shape in ((0, (how.start,)), (how.start, (full, how.radix)), (how.stop - tail, (tail,)),
                         (how.stop, (sizes[how.var] - how.stop,))):
        if prod(shape):
            image = start, ((how.var, shape[1]), (len(sizes), 1)) if len(shape) == 2 else ((how.var, 1),)
            fresh = (*sizes[:how.var], shape[0], *sizes[how.var + 1:], *shape[1:])
            out.append((substitute(forms, how.var, image), fresh))
    return out


# Grids ---------------------------------------------------------------------------------------------------------


def union(grids: Sequence[Grid], extra: Marks | None = None, sizes: Sequence[int] = ()) -> Axes:
    """The coarsest axes that refine all grids and have the extra cuts."""
    found: dict[int, set[int]] = {v: {0, sizes[v], *m} for v, m in (extra or {}).items()}
    for grid in grids:
        for v, cuts in grid.axes:
            found.setdefault(v, set()).update(cuts)
    if prod(len(c) - 1 for c in found.values()) > MAX_CELLS:
        raise Undecided("witness: a value has too many cells")
    return tuple((v, tuple(sorted(c))) for v, c in sorted(found.items()))


def places(axes: Axes, finer: Axes) -> list[int]:
    """For every cell of `finer` the number of the cell of `axes` that holds its first position."""
    own, stride, steps = dict(axes), 1, {}
    for v, cuts in reversed(axes):
        steps[v], stride = stride, stride * (len(cuts) - 1)
    numbers = [0]
    for v, cuts in finer:
        if v in own:
            mine, k, line = own[v], 0, []
            for c in cuts[:-1]:
                while mine[k + 1] <= c:
                    k += 1
                line.append(k * steps[v])
        else:
            line = [0] * (len(cuts) - 1)
        numbers = [n + p for n in numbers for p in line]
    return numbers


def refine(grid: Grid, axes: Axes) -> list[Any]:
    return grid.data if grid.axes == axes else [grid.data[i] for i in places(grid.axes, axes)]


def cellwise(function: Callable[..., Any], *grids: Grid) -> Grid:
    axes = grids[0].axes if all(g.axes == grids[0].axes for g in grids) else union(grids)
    return Grid(axes, [function(*row) for row in zip(*(refine(g, axes) for g in grids), strict=True)])


def corners(form: Form, axes: Axes) -> list[int]:
    """The form at the first position of every cell."""
    coefs, numbers = dict(form[1]), [form[0]]
    for v, cuts in axes:
        numbers = [n + coefs.get(v, 0) * c for n in numbers for c in cuts[:-1]]
    return numbers


def flat(grid: Grid, sizes: Sequence[int]) -> Grid:
    """The same integers without slope."""
    if not grid.slope:
        return grid
    if prod(sizes[v] for v, _ in grid.slope) > MAX_CELLS:
        raise Undecided("witness: positions along a long dimension are used as numbers")
    axes = union([grid], {v: set(range(sizes[v])) for v, _ in grid.slope}, sizes)
    return Grid(axes, [None if a is None else a + b for a, b in
                       zip(refine(grid, axes), corners((0, grid.slope), axes), strict=True)])


def lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, undefined where an argument is."""
    return lambda *xs: None if None in xs else function(*xs)


INTEGERS: dict[str, Callable[..., Any]] = {
    "negate": lift(lambda x: -x), "abs": lift(abs), "add": lift(lambda x, y: x + y), "minimum": lift(min),
    "subtract": lift(lambda x, y: x - y), "multiply": lift(lambda x, y: x * y), "maximum": lift(max),
    "not": lift(lambda p: not p), "and": lift(lambda p, q: p and q), "or": lift(lambda p, q: p or q)}
MERGE = {"add": "add", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}
STEPS = {"EQ": (0, 1), "NE": (0, 1), "LT": (0,), "GE": (0,), "LE": (1,), "GT": (1,)}
"""Where, relative to zero, the sign of a difference of integers decides a comparison."""
