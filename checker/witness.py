"""Replay of a witness: one claimed fact evaluated at true sizes in interval arithmetic, with no solver.

Inputs are constant on blocks. A tensor is read at forms, affine over box variables (variable v runs over [0,
sizes[v])); the answer is a `Grid`: per variable that matters its cuts, and one value per cell. A sum reads
its operand at a fresh variable and weights every cell with its length. Where row-major regrouping is not
affine on a box, the box is cut, or the sum that owns the variable replaces it by digits (`Digits`). Ranks
are expanded one by one: a node is an op with resolved numbers, equal nodes are one, a collective is data
movement or a `merge` of its members. Values: `Number`s of intervals.py, exact integers, booleans; None is
undefined and spreads unless a select drops it.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise, product
from math import gcd, prod
from typing import Any

from .affine import Affine
from .errors import Rejected, Undecided
from .intervals import HIGH, LOW, NOWHERE, Reals
from .reader import (
    COLLECTIVES,
    Op,
    Piece,
    Plan,
    Program,
    RankClass,
    Relation,
    Type,
    array,
    integers,
    members,
    need,
    rational,
)
from .records import Fact, Reduced

OBLIGATION = (18, "witnesses")
MAX_CELLS, MAX_WORK = 1 << 20, 1 << 24
"""Most cells of one value, and of all values together; beyond that there is no verdict."""

Form = tuple[int, tuple[tuple[int, int], ...]]
Forms = tuple[Form, ...]
Sizes = tuple[int, ...]
Axes = tuple[tuple[int, tuple[int, ...]], ...]
Marks = dict[int, set[int]]
Steps = Generator[tuple[int, Forms, Sizes], "Grid", "Grid"]


@dataclass(frozen=True, slots=True)
class Replay:
    """Both sides of the fact at the witness's symbols: disjoint rational intervals. The plan's is None where
    it is no real number, such as a root of a negative one."""

    symbols: Mapping[str, int]
    plan: tuple[Fraction, Fraction] | None
    spec: tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class Grid:
    """One value per cell, row-major over the axes; at a position, plus the slope (integers only)."""

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
    """Check that the claimed fact fails on the witness; else `Rejected`, `Malformed` or `Undecided`."""
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
        want = reals.ends(right)
        if want is None or (left != NOWHERE and reals.equal(left, right) is not False):
            raise Rejected(*OBLIGATION, "the sides are not shown to differ: intervals meet or are not finite")
        return Replay(dict(symbols), reals.ends(left), want)
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


# Forms -------------------------------------------------------------------------------------------------


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
    return tuple(plus((c, tuple(t for t in ts if t[0] != var)), image, dict(ts).get(var, 0))
                 for c, ts in forms)


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


# Grids -------------------------------------------------------------------------------------------------


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


# The machine -------------------------------------------------------------------------------------------


class Machine:
    """Rank expansion and memoised evaluation of one plan on one witness."""

    def __init__(self, plan: Plan, item: Mapping[str, Any], reals: Reals) -> None:
        self.plan, self.reals, self.work = plan, reals, 0
        self.nodes: list[Node] = []
        self.numbers: dict[Node, int] = {}
        self.made: dict[tuple[int, str], int] = {}
        self.owners: dict[int, str] = {-1: "s"}
        self.fibres = {n: {r: line for line in g.ranks for r in line} for n, g in plan.groups.items()}
        self.memo: dict[tuple[int, Forms, Sizes], Grid | Digits] = {}
        self.parts: dict[int, list[tuple[Forms, Sizes]]] = {}
        junk = rational(item["junk"], "witness: junk")
        self.junk = {"Real": reals.of(junk), "Int": 0, "Bool": False}
        given = members(item["inputs"], "witness: inputs", " ".join(plan.spec.inputs))
        self.blocks = {name: self._block(given[name], name, t) for name, t in plan.spec.inputs.items()}
        self.layouts = {(c.name, name): self._layout(c, name)
                        for c in plan.classes.values() for name in c.program.inputs}

    def _block(self, given: Any, name: str, type_: Type) -> int:
        """The node of a specification input: cuts that tile it, one value of its sort and range per block."""
        what = f"witness: input {name}"
        entry = members(given, what, "cuts values")
        cuts = tuple(integers(c, what, 0, n + 1)
                     for c, n in zip(array(entry["cuts"], what, len(type_.shape)), type_.shape, strict=True))
        for c, n in zip(cuts, type_.shape, strict=True):
            tiled = len(c) > 1 and c[0] == 0 and c[-1] == n and all(a < b for a, b in pairwise(c))
            need(tiled, f"{what}: bad cuts")
        values: list[Any] = array(entry["values"], what, prod(len(c) - 1 for c in cuts))
        if type_.sort == "Bool":
            need(all(v in ("true", "false") for v in values), f"{what}: no boolean")
            values = [v == "true" for v in values]
        elif type_.sort == "Int":
            values = [rational(v, what) for v in values]
            need(all(v.denominator == 1 for v in values), f"{what}: no integer")
            allowed = self.plan.ranges.get(name, (-(1 << 62), 1 << 62))
            values = list(integers([int(v) for v in values], what, *allowed))
        else:
            values = [self.reals.of(rational(v, what)) for v in values]
        return self._add(Node("block", (), (cuts, tuple(values)), type_))

    def _add(self, node: Node) -> int:
        number = self.numbers.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number

    def merge(self, parts: Sequence[int], kind: str) -> int:
        """The reduction of equally shaped nodes of several ranks."""
        return self._add(Node("merge", tuple(sorted(parts)), (kind,), self.nodes[parts[0]].type))

    # Rank expansion

    def owner(self, rank: int) -> str:
        """The class that runs a rank; "s" for the specification, which is rank -1."""
        if rank not in self.owners:
            at = self.coordinates(rank)
            self.owners[rank] = next(c.name for c in self.plan.classes.values() if all(
                lo <= at[a] < hi for (a, _), (lo, hi) in zip(self.plan.mesh, c.box, strict=True)))
        return self.owners[rank]

    def coordinates(self, rank: int) -> dict[str, int]:
        at = {}
        for axis, n in reversed(self.plan.mesh):
            rank, at[axis] = divmod(rank, n)
        return at

    def program(self, rank: int) -> Program:
        return self.plan.spec if rank < 0 else self.plan.classes[self.owner(rank)].program

    def node(self, rank: int, name: str) -> int:
        """The node of a value at a rank, made from its operands' without recursion."""
        stack, open_ = [(rank, name)], set()
        while stack:
            here = stack[-1]
            program = self.program(here[0])
            op = program.producers.get(here[1])
            if here in self.made:
                stack.pop()
            elif op is None:
                need(here[1] in program.inputs, f"witness: {here[1][:60]} is no value")
                self.made[here] = self.blocks[here[1]] if here[0] < 0 else self._input(here[0], here[1])
            else:
                needs = [(here[0], o) for o in op.operands]
                if op.name in COLLECTIVES:
                    ops = self.plan.rendezvous[op.attrs["seq"]]
                    line = self.fibres[op.attrs["group"]][here[0]]
                    needs = [(r, ops[self.owner(r)].operands[0]) for r in line]
                missing = [n for n in needs if n not in self.made]
                if missing and here in open_:
                    raise Rejected(*OBLIGATION, "collectives wait for one another", f"{op.name} {op.result}")
                if missing:
                    open_.add(here)
                    stack += missing
                else:
                    self.made[here] = self._make(op, here[0], tuple(self.made[n] for n in needs))
        return self.made[rank, name]

    def _make(self, op: Op, rank: int, ins: tuple[int, ...]) -> int:
        """The node of an op; collectives become concatenations, merges and slices of their members."""
        at = self.coordinates(rank) if rank >= 0 else {}
        a, t = op.attrs, op.type
        if op.name == "convert" and self.nodes[ins[0]].type.sort == t.sort:
            return ins[0]
        if op.name in COLLECTIVES:
            line = self.fibres[a["group"]][rank]
            place = line.index(rank)
            if op.name == "all_gather":
                return self._add(Node("concatenate", ins, (a["dim"],), t))
            if op.name == "all_to_all":
                n = self.nodes[ins[0]].type.shape[a["split_dim"]] // len(ins)
                cut = tuple(self._slice(x, a["split_dim"], place * n, n) for x in ins)
                return self._add(Node("concatenate", cut, (a["concoperanddim"],), t))
            total = self.merge(ins, a["kind"])
            if op.name == "all_reduce":
                return total
            return self._slice(total, a["dim"], place * t.shape[a["dim"]], t.shape[a["dim"]])
        attrs = tuple(v for _, v in sorted(a.items()))
        if op.name == "constant":
            v = a["value"]
            if isinstance(v, Affine):
                v = Fraction(value(v, at))
            attrs = (LOW if v == "-inf" else HIGH if v == "inf" else v if t.sort == "Bool"
                     else int(v) if t.sort == "Int" else self.reals.of(v),)
        elif op.name == "slice":
            attrs = tuple(zip((value(f, at) for f in a["start"]), a["stride"], strict=True))
        return self._add(Node(op.name, ins, attrs, t))

    def _slice(self, x: int, dim: int, start: int, size: int) -> int:
        t = self.nodes[x].type
        shape = tuple(size if d == dim else n for d, n in enumerate(t.shape))
        window = tuple((start if d == dim else 0, 1) for d in range(len(shape)))
        return self._add(Node("slice", (x,), window, Type(t.dtype, shape)))

    def _layout(self, cls: RankClass, name: str) -> list[tuple[Relation, Piece]]:
        """The pieces of an input's relations in a class: disjoint and invertible, so that the specification's
        inputs determine the plan's and never contradict; partial ones on every rank of a fibre."""
        found = list(dict.fromkeys((r, p) for r in self.plan.inputs if r.plan == name
                                   for p in r.pieces if p.cls == cls.name))
        spans = []
        for r, p in found:
            forms = digit_forms(p.plan, p, {})
            spans.append([span(f, p.sizes) for f in forms])
            apart = all(any(a[1] < b[0] or b[1] < a[0] for a, b in zip(spans[-1], other, strict=True))
                        for other in spans[:-1])
            gone = r.reduce[1] if r.reduce else ()
            met = [c.name for c in self.plan.classes.values() if gone and all(
                max(x[0], y[0]) < min(x[1], y[1]) for (a, _), x, y in
                zip(self.plan.mesh, c.box, cls.box, strict=True) if a not in gone)]
            alike = {q.cls for q in r.pieces if (q.sizes, q.plan, q.spec) == (p.sizes, p.plan, p.spec)}
            if not apart or not invertible(forms, p.sizes) or not alike.issuperset(met):
                raise Rejected(*OBLIGATION, f"the layout of input {name} is outside the reach of a witness")
        return found

    def _input(self, rank: int, name: str) -> int:
        """A plan input at a rank: the pieces of its relations, junk elsewhere."""
        at, pieces = self.coordinates(rank), []
        for r, p in self.layouts[self.owner(rank), name]:
            first = not (r.reduce and r.reduce[0] == "add" and any(at[a] for a in r.reduce[1]))
            pieces.append((p.sizes, digit_forms(p.plan, p, {}), digit_forms(p.spec, p, at),
                           r.coef if first else Fraction(0)))
        ins = tuple(self.blocks[r.spec] for r, _ in self.layouts[self.owner(rank), name])
        return self._add(Node("layout", ins, tuple(pieces), self.program(rank).inputs[name]))

    # Evaluation

    def element(self, node: int, index: Sequence[int]) -> Any:
        """The value of one element."""
        return self.run(node, tuple((i, ()) for i in index), ()).data[0]

    def run(self, node: int, forms: Forms, sizes: Sizes) -> Grid:
        """Evaluate with an explicit stack: programs are deeper than Python's."""
        stack: list[tuple[Steps, tuple[int, Forms, Sizes], list[int]]] = []
        request: tuple[int, Forms, Sizes] | None = (node, forms, sizes)
        while request is not None:
            key, names = canonical(*request)
            answer = self.memo.get(key)
            if answer is None:
                stack.append((self._steps(*key), key, names))
            else:
                answer = renamed(answer, names)
            request = None
            while stack and request is None:
                steps, key, names = stack[-1]
                try:
                    if answer is None or isinstance(answer, Grid):
                        request = next(steps) if answer is None else steps.send(answer)
                    else:
                        request = steps.throw(answer)
                    continue
                except StopIteration as stop:
                    found: Grid | Digits = stop.value
                except Digits as digits:
                    found = digits
                stack.pop()
                self.memo[key] = found
                self.work += len(found.data) if isinstance(found, Grid) else 1
                if self.work > MAX_WORK:
                    raise Undecided("witness: the replay takes too many cells")
                answer = renamed(found, names)
        if isinstance(answer, Grid):
            return answer
        raise Rejected(*OBLIGATION, "the element cannot be read")

    def _steps(self, number: int, forms: Forms, sizes: Sizes) -> Steps:
        try:
            return (yield from self._op(number, self.nodes[number], forms, sizes))
        except Cut as cut:
            marks = cut.marks
        return (yield from self._pieces(number, forms, sizes, marks))

    def _op(self, number: int, node: Node, forms: Forms, sizes: Sizes) -> Steps:
        """One op at these forms; the index maps are StableHLO's."""
        ins, attrs = node.ins, node.attrs
        shapes = [self.nodes[x].type.shape for x in ins]
        match node.op:
            case "block":
                marks: Marks = {}
                for form, cuts in zip(forms, attrs[0], strict=True):
                    for at in cuts[1:-1]:
                        mark(form, sizes, at, marks)
                axes, numbers = union((), marks, sizes), [0] * prod(len(m) + 1 for m in marks.values())
                for form, cuts in zip(forms, attrs[0], strict=True):
                    row = (bisect_right(cuts, at) - 1 for at in corners(form, axes))
                    numbers = [n * (len(cuts) - 1) + r for n, r in zip(numbers, row, strict=True)]
                return Grid(axes, [attrs[1][n] for n in numbers])
            case "constant":
                return Grid((), [attrs[0]])
            case "iota":
                const, terms = forms[attrs[0]]
                grid = Grid((), [const], terms)
                return grid if node.type.sort == "Int" else cellwise(self.reals.of, flat(grid, sizes))
            case "layout":
                for x, (digit_sizes, images, sources, coef) in zip(ins, attrs, strict=True):
                    digits = covering(forms, images, digit_sizes, sizes)
                    if digits is not None:
                        grid = yield x, tuple(composed(f, digits) for f in sources), sizes
                        factor = partial(self.reals.mul, self.reals.of(coef))
                        return grid if coef == 1 else cellwise(factor, grid)
                return Grid((), [self.junk[node.type.sort]])
            case "transpose":
                return (yield ins[0], tuple(forms[attrs[0].index(d)] for d in range(len(forms))), sizes)
            case "broadcast_in_dim":
                pairs = zip(shapes[0], attrs[0], strict=True)
                operand = tuple((0, ()) if n == 1 else forms[d] for n, d in pairs)
                return (yield ins[0], operand, sizes)
            case "slice":
                return (yield ins[0], tuple(plus((start, ()), f, step)
                                            for f, (start, step) in zip(forms, attrs, strict=True)), sizes)
            case "reshape":
                return (yield ins[0], reshaped(forms, node.type.shape, shapes[0], sizes), sizes)
            case "pad":
                return (yield self._pad(node, shapes[0], forms, sizes))
            case "concatenate":
                start, marks = 0, {}
                low, high = span(forms[attrs[0]], sizes)
                for x, shape in zip(ins, shapes, strict=True):
                    stop = start + shape[attrs[0]]
                    if start <= low and high < stop:
                        moved = plus(forms[attrs[0]], (-start, ()))
                        return (yield x, (*forms[:attrs[0]], moved, *forms[attrs[0] + 1:]), sizes)
                    mark(forms[attrs[0]], sizes, stop, marks)
                    start = stop
                raise Cut(marks)
            case "dot_general" | "reduce":
                return (yield from self._sum(number, node, forms, sizes))
            case "gather":
                return (yield from self._gather(node, forms, sizes))
            case "merge":
                total: Grid | None = None
                for x, count in Counter(ins).items():
                    grid = flat((yield x, forms, sizes), sizes)
                    if attrs[0] == "add":
                        grid = cellwise(partial(self._times, count), grid)
                    function = self._function(MERGE[attrs[0]], node.type)
                    total = cellwise(function, total, grid) if total else grid
                return total or Grid((), [None])
            case "select":
                p = yield ins[0], forms, sizes
                if not p.axes and p.data[0] is not None:
                    return (yield ins[1 if p.data[0] else 2], forms, sizes)
                yes, no = flat((yield ins[1], forms, sizes), sizes), flat((yield ins[2], forms, sizes), sizes)
                return cellwise(lambda p, a, b: None if p is None else a if p else b, p, yes, no)
        grids = []
        for x in ins:
            grids.append((yield x, forms, sizes))
        return self._elementwise(node, grids, sizes)

    def _times(self, n: int, v: Any) -> Any:
        if n == 1 or v is None or isinstance(v, int):
            return v if n == 1 or v is None else v * n
        return self.reals.mul(v, self.reals.of(n))

    def _function(self, name: str, operand: Type) -> Callable[..., Any]:
        table: Mapping[str, Callable[..., Any]] = self.reals.unary | self.reals.binary
        return table[name] if operand.sort == "Real" else INTEGERS[name]

    def _elementwise(self, node: Node, grids: list[Grid], sizes: Sizes) -> Grid:
        operand, reals, x = self.nodes[node.ins[0]].type, self.reals, grids[0]
        if node.op == "convert":
            if node.type.sort == "Bool":
                return compare_integers("NE", x, Grid((), [0]), sizes)
            if node.type.sort == "Int":
                return cellwise(lift(int), x)
            return cellwise(lift(reals.of), flat(x, sizes))
        if node.op == "compare":
            direction, y = node.attrs[0], grids[1]
            if operand.sort == "Int":
                return compare_integers(direction, x, y, sizes)
            if direction in ("GT", "LE"):
                x, y = y, x
            equal = reals.equal if operand.sort == "Real" else lift(lambda a, b: a == b)
            plain = cellwise(equal if direction in ("EQ", "NE") else reals.less, x, y)
            return cellwise(INTEGERS["not"], plain) if direction in ("NE", "GE", "LE") else plain
        if any(g.slope for g in grids):
            kept = linear(node.op, grids)
            if kept is not None:
                return kept
        return cellwise(self._function(node.op, operand), *(flat(g, sizes) for g in grids))

    def _pad(self, node: Node, shape: Sizes, forms: Forms, sizes: Sizes) -> tuple[int, Forms, Sizes]:
        marks: Marks = {}
        at = []
        for f, low, n in zip(forms, node.attrs[1], shape, strict=True):
            first, last = span(f, sizes)
            if last < low or first >= low + n:
                return node.ins[1], (), ()
            mark(f, sizes, low, marks)
            mark(f, sizes, low + n, marks)
            at.append(plus(f, (-low, ())))
        if any(marks.values()):
            raise Cut(marks)
        return node.ins[0], tuple(at), sizes

    def _gather(self, node: Node, forms: Forms, sizes: Sizes) -> Steps:
        """An index out of range is outside the meaning: a real element is no number, others are undefined."""
        axis, batch = node.attrs
        x, indices = node.ins
        extra = len(self.nodes[indices].type.shape) - batch
        grid = yield indices, forms[:batch] + forms[axis:axis + extra], sizes
        grid = flat(grid, sizes)
        rows = {}
        for i in dict.fromkeys(grid.data):
            if i is not None and 0 <= i < self.nodes[x].type.shape[axis]:
                rows[i] = flat((yield x, (*forms[:axis], (i, ()), *forms[axis + extra:]), sizes), sizes)
        axes = union([grid, *rows.values()])
        table = {i: refine(row, axes) for i, row in rows.items()}
        lost = NOWHERE if node.type.sort == "Real" else None
        return Grid(axes, [table[i][k] if i in table else None if i is None else lost
                           for k, i in enumerate(refine(grid, axes))])

    def _sum(self, number: int, node: Node, forms: Forms, sizes: Sizes) -> Steps:
        """`dot_general` and `reduce`, over parts of the reduced box on which the operands can be read."""
        shapes = [self.nodes[x].type.shape for x in node.ins]
        if node.op == "reduce":
            kind, summed, batched = node.attrs[1], [node.attrs[0]], [()]
        else:
            kind, summed, batched = "add", [node.attrs[1], node.attrs[3]], [node.attrs[0], node.attrs[2]]
        free, reads = len(batched[0]), []
        for shape, gone, batch in zip(shapes, summed, batched, strict=True):
            read: list[tuple[bool, int]] = []
            for d in range(len(shape)):
                if d in gone or d in batch:
                    read.append((d in gone, gone.index(d) if d in gone else batch.index(d)))
                else:
                    read.append((False, free))
                    free += 1
            reads.append(read)
        outer = len(sizes)
        whole = tuple((0, ((k, 1),)) for k in range(len(summed[0]))), tuple(shapes[0][d] for d in summed[0])
        todo, done = list(self.parts.get(number) or [whole]), []
        total: Grid | None = None
        while todo:
            part = todo.pop()
            inner = [(c, tuple((v + outer, k) for v, k in ts)) for c, ts in part[0]]
            every, grids = sizes + part[1], []
            try:
                for x, read in zip(node.ins, reads, strict=True):
                    at = tuple(inner[k] if gone else forms[k] for gone, k in read)
                    grids.append(flat((yield x, at, every), every))
            except Digits as how:
                if how.var < outer:
                    raise
                todo += split(*part, Digits(how.var - outer, how.radix, how.start, how.stop))
                continue
            done.append(part)
            term = self._fold(kind, node.type, grids, every, outer)
            total = cellwise(self._function(MERGE[kind], node.type), total, term) if total else term
        self.parts[number] = done
        return total or Grid((), [None])

    def _fold(self, kind: str, result: Type, grids: list[Grid], sizes: Sizes, outer: int) -> Grid:
        """Reduce the variables from `outer` on; in sums every cell counts with its length."""
        axes = union(grids)
        kept = tuple(a for a in axes if a[0] < outer)
        weights = [prod(n for v, n in enumerate(sizes) if v >= outer and v not in dict(axes))]
        for _, cuts in axes[len(kept):]:
            weights = [w * (b - a) for w in weights for a, b in pairwise(cuts)]
        rows = [refine(g, axes) for g in grids]
        if len(rows) == 1:
            rows.append([self.reals.one if result.sort == "Real" else 1] * len(rows[0]))
        step = len(weights)
        data: list[Any] = []
        for k in range(0, len(rows[0]), step):
            xs, ys = rows[0][k:k + step], rows[1][k:k + step]
            if kind == "add" and result.sort == "Real":
                data.append(self.reals.weighted(zip(weights, xs, ys, strict=True)))
            elif kind == "add":
                undefined = None in xs or None in ys
                data.append(None if undefined else sum(map(prod, zip(weights, xs, ys, strict=True))))
            else:
                function, best = self._function(MERGE[kind], result), xs[0]
                for x in xs[1:]:
                    best = function(best, x)
                data.append(best)
        return Grid(kept, data)

    def _pieces(self, number: int, forms: Forms, sizes: Sizes, marks: Marks) -> Steps:
        """Read the node on every part of the cut box, and put the answers together."""
        ranges = {v: list(pairwise((0, *sorted(m), sizes[v]))) for v, m in marks.items()}
        if prod(map(len, ranges.values())) > MAX_CELLS:
            raise Undecided("witness: a box falls into too many cells")
        answers, found = [], {v: set(m) for v, m in marks.items()}
        for chosen in product(*ranges.values()):
            box = dict(zip(ranges, chosen, strict=True))
            small = tuple(box[v][1] - box[v][0] if v in box else n for v, n in enumerate(sizes))
            at = tuple((c + sum(k * box[v][0] for v, k in ts if v in box), ts) for c, ts in forms)
            try:
                grid = flat((yield number, at, small), small)
            except Digits as how:
                first = box.get(how.var, (0, 0))[0]
                raise Digits(how.var, how.radix, how.start + first, how.stop + first) from None
            answers.append((box, grid))
            for v, cuts in grid.axes:
                found.setdefault(v, set()).update(c + box.get(v, (0, 0))[0] for c in cuts)
        axes = union((), found, sizes)
        data: list[Any] = [None] * prod(len(c) - 1 for _, c in axes)
        for box, grid in answers:
            local, cells = [], [0]
            for v, cuts in axes:
                low, high = box.get(v, (0, sizes[v]))
                first, last = cuts.index(low), cuts.index(high)
                local.append((v, tuple(c - low for c in cuts[first:last + 1])))
                cells = [n * (len(cuts) - 1) + k for n in cells for k in range(first, last)]
            for k, v in zip(cells, refine(grid, tuple(local)), strict=True):
                data[k] = v
        return Grid(axes, data)


# Index maps --------------------------------------------------------------------------------------------


def canonical(node: int, forms: Forms, sizes: Sizes) -> tuple[tuple[int, Forms, Sizes], list[int]]:
    """Variables numbered by first occurrence, those of one position dropped; second: their old numbers."""
    order: dict[int, int] = {}
    fresh = tuple((c, tuple(sorted((order.setdefault(v, len(order)), k) for v, k in ts if sizes[v] > 1)))
                  for c, ts in forms)
    return (node, fresh, tuple(sizes[v] for v in order)), list(order)


def renamed(answer: Grid | Digits, names: list[int]) -> Grid | Digits:
    if isinstance(answer, Digits):
        return Digits(names[answer.var], answer.radix, answer.start, answer.stop)
    axes = tuple((names[v], cuts) for v, cuts in answer.axes)
    order = tuple(sorted(axes))
    data = answer.data if axes == order else [answer.data[i] for i in places(axes, order)]
    return Grid(order, data, tuple(sorted((names[v], c) for v, c in answer.slope)))


def digit_forms(forms: Sequence[Affine], piece: Piece, at: Mapping[str, int]) -> Forms:
    """Forms over digits of more than one position, numbered; mesh axes replaced by coordinates."""
    return tuple((f.const + sum(c * at[s] for s, c in f.terms if s in at), tuple(sorted(
        (int(s[1:]), c) for s, c in f.terms if s not in at and piece.sizes[int(s[1:])] > 1))) for f in forms)


def invertible(forms: Forms, sizes: Sizes) -> bool:
    """Every digit occurs in one form, and every form is a mixed-radix number of its digits."""
    used = sorted(v for _, ts in forms for v, _ in ts)
    for _, ts in forms:
        reach = 0
        for v, c in sorted(ts, key=lambda t: t[1]):
            if c <= reach:
                return False
            reach += c * (sizes[v] - 1)
    return used == [v for v, n in enumerate(sizes) if n > 1]


def covering(at: Forms, images: Forms, digits: Sizes, sizes: Sizes) -> list[Form] | None:
    """The digits of a relation piece at an index, None if outside; `Cut` or `Digits` if that depends."""
    found: list[Form] = [(0, ())] * len(digits)
    marks: Marks = {}
    for index, (const, terms) in zip(at, images, strict=True):
        rest = plus(index, (-const, ()))
        limits = []
        for z, coef in sorted(terms, key=lambda t: -t[1]):
            found[z], rest = divide(rest, coef, sizes) if coef > 1 else (rest, (0, ()))
            limits.append((found[z], digits[z]))
        for form, size in (*limits, (rest, 1)):
            low, high = span(form, sizes)
            if high < 0 or low >= size:
                return None
            mark(form, sizes, 0, marks)
            mark(form, sizes, size, marks)
    if any(marks.values()):
        raise Cut(marks)
    return found


def composed(form: Form, images: Sequence[Form]) -> Form:
    out: Form = (form[0], ())
    for v, c in form[1]:
        out = plus(out, images[v], c)
    return out


def reshaped(forms: Forms, shape: Sizes, source: Sizes, sizes: Sizes) -> Forms:
    """The operand index of a row-major reshape, part by part of the finest parts of equal products."""
    out: list[Form] = []
    i = j = 0
    while i < len(source) or j < len(shape):
        dims: list[int] = []
        position: Form = (0, ())
        a = b = 1
        while a != b or (not dims and (i < len(source) or j < len(shape))):
            if i < len(source) and (a <= b or j == len(shape)):
                dims.append(source[i])
                a, i = a * source[i], i + 1
            else:
                position = plus(forms[j], position, shape[j])
                b, j = b * shape[j], j + 1
        digits: list[Form] = []
        for n in reversed(dims[1:]):
            position, digit = divide(position, n, sizes)
            digits.append(digit)
        out += [position, *reversed(digits)][:len(dims)]
    return tuple(out)


def linear(op: str, grids: list[Grid]) -> Grid | None:
    """Integer arithmetic that keeps positions symbolic, where the op allows it."""
    x, y = grids[0], grids[-1]
    if op in ("add", "subtract", "negate"):
        plain = cellwise(INTEGERS[op], *(Grid(g.axes, g.data) for g in grids))
        base = (0, x.slope) if op != "negate" else (0, ())
        return Grid(plain.axes, plain.data, plus(base, (0, y.slope), 1 if op == "add" else -1)[1])
    return None


def compare_integers(direction: str, x: Grid, y: Grid, sizes: Sizes) -> Grid:
    """Integers that grow along variables, compared: cut where the sign of the difference changes."""
    plain = cellwise(INTEGERS["subtract"], Grid(x.axes, x.data), Grid(y.axes, y.data))
    slope = plus((0, x.slope), (0, y.slope), -1)
    marks: Marks = {}
    for d in dict.fromkeys(plain.data):
        for at in STEPS[direction] if d is not None else ():
            mark(slope, sizes, at - d, marks)
    axes = union([plain], marks, sizes)
    test = getattr(operator, direction.lower())
    return Grid(axes, [None if d is None else test(d + c, 0)
                       for d, c in zip(refine(plain, axes), corners(slope, axes), strict=True)])
