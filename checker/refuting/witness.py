"""Replay of a witness: one claimed fact evaluated at true sizes in interval arithmetic, with no solver.

Inputs are constant on blocks, and so is every tensor computed from them: a `Grid` has cuts per dimension and
a
value per cell, and is as coarse as its values allow. Three moves suffice for all data movement: `pull` reads
a grid at affine forms, `push` places one at affine forms (a reshape is a push and a pull), `overlay` puts
grids
on top of each other. Ranks are expanded one by one, but equal computations are done once. Values: `Number`s
of
intervals.py, exact integers, booleans; None is not known and spreads unless a select drops it.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple

from ..errors import Rejected, Undecided, need
from ..language.affine import Affine, row_major
from ..language.ops import COLLECTIVES, MESSAGES, Op, Type, wires
from ..language.plan import Plan
from ..language.proof import Fact, Reduced
from ..language.regroup import reshape_parts
from ..reading.strict import anything, array, integer, integers, one_of, rational, record
from ..rules.relations import check_once
from .intervals import HIGH, LOW, NOWHERE, Reals

MAX_CELLS, MAX_WORK = 1 << 23, 1 << 27
"""Most cells of one value, and of all values together; beyond that there is no verdict."""
Shape = tuple[int, ...]
Cuts = tuple[Shape, ...]
OPEN = ("open",)
"""The value of cells that a push does not reach."""


class Replay(NamedTuple):
    """Both sides of the fact at the witness's symbols: disjoint rational intervals. The plan's is None where
    it is no real number, such as a root of a negative one."""

    symbols: Mapping[str, int]
    plan: tuple[Fraction, Fraction] | None
    spec: tuple[Fraction, Fraction]


class Grid(NamedTuple):
    """Per dimension the ends of the blocks, first 0 and last its size; one value per cell, row-major."""

    cuts: Cuts
    data: Sequence[Any]

    @property
    def counts(self) -> Shape:
        return tuple(len(c) - 1 for c in self.cuts)


def replay(plan: Plan, fact: Fact, witness: Any, bits: int = 256) -> Replay:
    """Check that the claimed fact fails on the witness; else `Rejected`, `Malformed` or `Undecided`."""
    item = record(
        witness, "witness", output=anything, piece=anything, junk=rational, inputs=anything, symbols=anything
    )
    symbols = record(
        item["symbols"],
        "witness: symbols",
        **{s: partial(integer, low=lo, high=hi) for s, lo, hi in fact.symbols},
    )
    check_once(plan.inputs, 15)
    machine = Machine(plan, item["inputs"], item["junk"], Reals(bits))
    gone = fact.lhs.axes if isinstance(fact.lhs, Reduced) else ()
    of = fact.lhs.of if isinstance(fact.lhs, Reduced) else (fact.lhs,)
    kept, at = [a for a, _ in plan.mesh if a not in gone], [value(f, symbols) for f in fact.lhs_index]
    parts = []
    for moving in product(*(range(dict(plan.mesh)[a]) for a in gone)):
        place = dict(zip(kept, at, strict=False)) | dict(zip(gone, moving, strict=True))
        rank = value(row_major([Affine.symbol(a) for a, _ in plan.mesh], [n for _, n in plan.mesh]), place)
        mine = [t for t in of if t.space == machine.owner(rank)]
        need(len(mine) == 1, "witness: the fact does not span the rank")
        parts.append(machine.number(rank, mine[0].value))
    need(not isinstance(fact.rhs, Reduced), "witness: the right-hand side must be a specification tensor")
    lhs = machine.merge(parts, fact.lhs.kind if isinstance(fact.lhs, Reduced) else "add")
    rhs = machine.number(-1, getattr(fact.rhs, "value", ""))
    left, right = (
        element(machine.grids[lhs], at[len(kept) :]),
        element(machine.grids[rhs], [value(f, symbols) for f in fact.rhs_index]),
    )
    reals = machine.reals
    if machine.types[lhs].sort == "Real":
        right = reals.mul(right, reals.of(fact.coef))
        want = reals.ends(right)
        if want is None or (left != NOWHERE and reals.equal(left, right) is not False):
            raise Rejected(18, "the sides are not shown to differ: intervals meet or are not finite")
        return Replay(symbols, reals.ends(left), want)
    if left is None or right is None or left == right:
        raise Rejected(18, "the two sides are equal or undefined")
    return Replay(symbols, (Fraction(left), Fraction(left)), (Fraction(right), Fraction(right)))


def value(form: Affine, at: Mapping[str, int]) -> int:
    return form.const + sum(c * at[s] for s, c in form.terms)


# Grids ------------------------------------------------------------------------------------------------------


def element(grid: Grid, index: Sequence[int]) -> Any:
    place = 0
    for cuts, i in zip(grid.cuts, index, strict=True):
        place = place * (len(cuts) - 1) + bisect_right(cuts, i) - 1
    return grid.data[place]


def capped(cells: int) -> int:
    if cells > MAX_CELLS:
        raise Undecided("witness: a value has too many cells")
    return cells


def refine(grid: Grid, cuts: Cuts) -> Sequence[Any]:
    """The values on finer cells."""
    if grid.cuts == cuts:
        return grid.data
    numbers = [0]
    for mine, finer in zip(grid.cuts, cuts, strict=True):
        line = [bisect_right(mine, c) - 1 for c in finer[:-1]]
        numbers = [n * (len(mine) - 1) + k for n in numbers for k in line]
    return [grid.data[n] for n in numbers]


def union(shapes: Sequence[Cuts]) -> Cuts:
    found = tuple(tuple(sorted(set().union(*lines))) for lines in zip(*shapes, strict=True))
    capped(prod(len(c) - 1 for c in found))
    return found


def coarse(grid: Grid) -> Grid:
    """The same values on as few cells as possible: equal neighbours are joined, dimension by dimension."""
    cuts, data = list(grid.cuts), grid.data
    inner = 1
    for d in reversed(range(len(cuts))):
        count = len(cuts[d]) - 1
        rows = range(0, len(data), count * inner)
        changed = {0}
        for r in rows:
            line = data[r : r + count * inner]
            blocks = line if inner == 1 else [line[k : k + inner] for k in range(0, len(line), inner)]
            changed.update(k for k, (x, y) in enumerate(pairwise(blocks), 1) if x is not y and x != y)
            if len(changed) == count:
                break
        keep = sorted(changed)
        if len(keep) < count:
            cuts[d] = (*(cuts[d][k] for k in keep), cuts[d][-1])
            data = [v for r in rows for k in keep for v in data[r + k * inner : r + (k + 1) * inner]]
        inner *= len(keep)
    return Grid(tuple(cuts), data)


def cellwise(function: Callable[..., Any], *grids: Grid) -> Grid:
    cuts = union([g.cuts for g in grids])
    return Grid(cuts, list(map(function, *(refine(g, cuts) for g in grids))))


def overlay(grids: Sequence[Grid]) -> Grid:
    """The first value of every cell that is not open."""
    return cellwise(lambda *vs: next((v for v in vs if v is not OPEN), OPEN), *grids)


def constant(shape: Shape, v: Any) -> Grid:
    return Grid(tuple((0, n) for n in shape), [v])


def pull(grid: Grid, forms: Sequence[Affine], sizes: Mapping[str, int]) -> Grid:
    """The grid over the variables `sizes` whose element is the grid's at the forms, which must be
    mixed-radix."""
    marks: dict[str, set[int]] = {v: {0, n} for v, n in sizes.items()}
    for form, line in zip(forms, grid.cuts, strict=True):
        digits, reach = list[tuple[int, str, int]](), 0
        for c, v in sorted((c, v) for v, c in form.terms if sizes[v] > 1):
            if c <= reach:
                raise Rejected(18, "the layout of an input is outside the reach of a witness")
            digits.insert(0, (c, v, reach))
            reach += c * (sizes[v] - 1)
        base = value(form, dict.fromkeys(sizes, 0))
        rests = [at - base for at in line[bisect_right(line, base) : bisect_right(line, base + reach)]]
        for c, v, below in digits:  # reached at a digit, or within what the later digits add to it
            pairs = [divmod(rest, c) for rest in rests]
            marks[v].update(
                [q if not r else q + 1 for q, r in pairs], [q for q, r in pairs if 0 < r <= below]
            )
            rests = list({r for _, r in pairs if 0 < r <= below})
    cuts = tuple(tuple(sorted(m)) for m in marks.values())
    numbers = [0] * capped(prod(len(c) - 1 for c in cuts))
    for form, line in zip(forms, grid.cuts, strict=True):
        coefs, corners = dict(form.terms), [form.const]
        for v, ends in zip(sizes, cuts, strict=True):
            c = coefs.get(v, 0)
            corners = [n + c * e for n in corners for e in ends[:-1]]
        numbers = [
            n * (len(line) - 1) + bisect_right(line, c) - 1 for n, c in zip(numbers, corners, strict=True)
        ]
    return Grid(cuts, [grid.data[n] for n in numbers])


def push(grid: Grid, forms: Sequence[Sequence[tuple[int, int]]], starts: Sequence[int], shape: Shape) -> Grid:
    """The grid of this shape that holds the element z at `start + sum coef * z`, per dimension, and is open
    elsewhere. `forms` pairs coefficients with dimensions of the grid, major to minor; each stands in one."""
    cuts, lines = [], []
    steps = dict(
        zip(range(len(grid.cuts)), [prod(grid.counts[i + 1 :]) for i in range(len(grid.cuts))], strict=True)
    )
    for form, start, size in zip(forms, starts, shape, strict=True):
        runs = [(0, 1, 0)]
        for coef, z in reversed(form):
            whole = len(runs) == 1 and runs[0][1] == coef
            blocks = [(a, b, k) for k, (a, b) in enumerate(pairwise(grid.cuts[z]))]
            capped(grid.cuts[z][-1] * len(runs) if not whole else 1)
            runs = (
                [(coef * a, coef * (b - a), k * steps[z] + runs[0][2]) for a, b, k in blocks]
                if whole
                else [
                    (coef * x + at, length, k * steps[z] + cell)
                    for a, b, k in blocks
                    for x in range(a, b)
                    for at, length, cell in runs
                ]
            )
        ends, cells = [0], list[int | None]()
        for place, length, cell in [*((start + p, n, c) for p, n, c in runs), (size, 0, None)]:
            for end, number in ((place, None), (place + length, cell)):
                if end > ends[-1]:
                    ends.append(end)
                    cells.append(number)
        cuts.append(tuple(ends))
        lines.append(cells)
    capped(prod(map(len, lines)))
    numbers: list[int | None] = [0]
    for cells in lines:
        numbers = [None if n is None or c is None else n + c for n in numbers for c in cells]
    return Grid(tuple(cuts), [OPEN if n is None else grid.data[n] for n in numbers])


def reshaped(grid: Grid, source: Shape, shape: Shape) -> Grid:
    """Row-major, part by part of the finest parts of equal products: joined into one line, then split."""
    parts = reshape_parts(shape, source)
    forms = [[(prod(source[j] for j in inner if j > i), i) for i in inner] for _, inner in parts]
    line = push(grid, forms, [0] * len(parts), tuple(prod(source[i] for i in inner) for _, inner in parts))
    sizes = {f"z{i}": n for i, n in enumerate(shape)}
    return pull(
        line,
        [row_major([Affine.symbol(f"z{i}") for i in outer], [shape[i] for i in outer]) for outer, _ in parts],
        sizes,
    )


# The machine ------------------------------------------------------------------------------------------------


def known(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, not known where an argument is not."""
    return lambda *xs: None if None in xs else function(*xs)


INTEGERS: dict[str, Callable[..., Any]] = {
    "negate": known(operator.neg),
    "abs": known(abs),
    "add": known(operator.add),
    "minimum": known(min),
    "subtract": known(operator.sub),
    "multiply": known(operator.mul),
    "maximum": known(max),
    "not": known(operator.not_),
    "and": known(lambda p, q: p and q),
    "or": known(lambda p, q: p or q),
    **{f"compare {d}": known(getattr(operator, d.lower())) for d in ("EQ", "NE", "LT", "LE", "GT", "GE")},
}
MERGE = {"add": "add", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}


class Machine:
    """Rank expansion and memoised evaluation of one plan on one witness. Values are numbered: `grids`,
    `types`."""

    def __init__(self, plan: Plan, inputs: Any, junk: Fraction, reals: Reals) -> None:
        self.plan, self.reals, self.work = plan, reals, 0
        self.grids: list[Grid] = []
        self.types: list[Type] = []
        self.numbers: dict[Any, int] = {}
        self.made: dict[tuple[int, str], int] = {}
        self.fibres = {n: {r: line for line in plan.lines(g) for r in line} for n, g in plan.groups.items()}
        self.junk = {"Real": reals.of(junk), "Int": 0, "Bool": False}
        unary: Mapping[str, Callable[..., Any]] = reals.unary
        self.functions: dict[str, Callable[..., Any]] = {
            **unary,
            **reals.binary,
            "select": lambda p, a, b: None if p is None else a if p else b,
            "compare EQ": reals.equal,
            "compare LT": reals.less,
            "compare GT": lambda x, y: reals.less(y, x),
            **{
                f"compare {d}": (lambda x, y, f=f: INTEGERS["not"](f(x, y)))
                for d, f in (("NE", reals.equal), ("GE", reals.less), ("LE", lambda x, y: reals.less(y, x)))
            },
            "convert Int Real": known(reals.of),
            "convert Bool Real": known(reals.of),
            "convert Bool Int": known(int),
            "convert Int Bool": known(bool),
            "dot_general": reals.mul,
        }
        given = record(
            inputs, "witness: inputs", **{name: partial(self._block, name) for name in plan.spec.inputs}
        )
        for name, grid in given.items():
            self.made[-1, name] = self._add(("block", name), plan.spec.inputs[name], partial(coarse, grid))

    def _block(self, name: str, given: Any, what: str) -> Grid:
        """A specification input: cuts that tile it, one value of its sort and range per block."""
        kind = self.plan.spec.inputs[name]
        item = record(given, what, cuts=array, values=array)
        need(
            len(item["cuts"]) == len(kind.shape),
            f"{what}: a list of {len(kind.shape)} lines of cuts is expected",
        )
        cuts = tuple(integers(c, what, 0, n + 1) for c, n in zip(item["cuts"], kind.shape, strict=True))
        for c, n in zip(cuts, kind.shape, strict=True):
            need(c[:1] == (0,) and c[-1] == n and all(a < b for a, b in pairwise(c)), f"{what}: bad cuts")
        values: list[Any] = array(item["values"], what, prod(len(c) - 1 for c in cuts))
        if kind.sort == "Bool":
            return Grid(cuts, [one_of(("true", "false"), "no boolean")(v, what) == "true" for v in values])
        values = [rational(v, what) for v in values]
        if kind.sort == "Real":
            return Grid(cuts, [self.reals.of(v) for v in values])
        need(all(v.denominator == 1 for v in values), f"{what}: no integer")
        return Grid(
            cuts,
            list(integers(list(map(int, values)), what, *self.plan.ranges.get(name, (-1 << 62, 1 << 62)))),
        )

    def _add(self, key: Any, kind: Type, compute: Callable[[], Grid]) -> int:
        """The number of a value, computed unless an equal computation was made before."""
        if key not in self.numbers:
            grid = coarse(compute())
            self._spend(len(grid.data))
            self.numbers[key] = len(self.grids)
            self.grids.append(grid)
            self.types.append(kind)
        return self.numbers[key]

    def _spend(self, cells: int) -> None:
        self.work += cells
        if self.work > MAX_WORK:
            raise Undecided("witness: the replay takes too many cells")

    def merge(self, parts: Sequence[int], kind: str) -> int:
        """The reduction of equally shaped values of several ranks."""
        function = self._function(MERGE[kind], self.types[parts[0]])
        times = self._function("multiply", self.types[parts[0]])
        number = self.reals.of if self.types[parts[0]].sort == "Real" else int

        def compute() -> Grid:
            counts = Counter(parts) if kind == "add" else dict.fromkeys(parts, 1)
            grids = [
                cellwise(partial(times, number(n)), self.grids[x]) if n > 1 else self.grids[x]
                for x, n in counts.items()
            ]
            total = grids[0]
            for grid in grids[1:]:
                total = coarse(cellwise(function, total, grid))
            return total

        return self._add(("merge", kind, tuple(sorted(parts))), self.types[parts[0]], compute)

    # Rank expansion

    def owner(self, rank: int) -> str:
        """The class that runs a rank; "s" for the specification, which is rank -1."""
        at = self.coordinates(rank)
        return (
            next(
                c
                for c in self.plan.classes
                if all(lo <= at[a] < hi for a, (lo, hi) in self.plan.box(c).items())
            )
            if rank >= 0
            else "s"
        )

    def coordinates(self, rank: int) -> dict[str, int]:
        at = {}
        for axis, n in reversed(self.plan.mesh):
            rank, at[axis] = divmod(rank, n)
        return at

    def number(self, rank: int, name: str) -> int:
        """The number of a value at a rank, after those of its operands, without recursion."""
        stack, open_ = [(rank, name)], set()
        owners: dict[int, str] = {}
        while stack:
            here = r, label = stack[-1]
            cls = owners[r] = owners.get(r) or self.owner(r)
            program = self.plan.program(cls)
            op = program.producers.get(label)
            self._spend(1)
            if here in self.made:
                stack.pop()
            elif op is None:
                need(label in program.inputs, f"witness: {label[:60]} is no value")
                self.made[here] = self._input(r, cls, label, program.inputs[label])
            else:
                needs = [(r, o) for o in op.operands]
                if op.name in COLLECTIVES:
                    meets = self.plan.rendezvous[op.attrs["seq"]]
                    needs = [(x, meets[self.owner(x)].operands[0]) for x in self.fibres[op.attrs["group"]][r]]
                if op.name == "recv":
                    at = self.coordinates(r)
                    places = [Affine(value(f, at)) for f in op.attrs["from"]]
                    source = row_major(places, [n for _, n in self.plan.mesh]).const
                    needs = [(source, self.plan.meets(op)[self.owner(source)].operands[0])]
                missing = [n for n in needs if n not in self.made]
                if missing and here in open_:
                    raise Rejected(18, "collectives wait for one another", f"{op.name} {op.result}")
                if missing:
                    open_.add(here)
                    stack += missing
                else:
                    self.made[here] = self._make(op, r, [self.made[n] for n in needs])
        return self.made[rank, name]

    def _input(self, rank: int, cls: str, name: str, kind: Type) -> int:
        """A plan input at a rank: the pieces of its relations, which no element shares; junk elsewhere."""
        at, found = self.coordinates(rank), []
        for relation in self.plan.inputs:
            for piece in relation.pieces if relation.plan == name else ():
                if piece.cls == cls:
                    first = not (
                        relation.reduce
                        and relation.reduce[0] == "add"
                        and any(at[a] for a in relation.reduce[1])
                    )
                    images = tuple(
                        f.substitute({s: Affine(at[s]) if s in at else Affine.symbol(s) for s in f.names()})
                        for f in piece.spec
                    )
                    found.append(
                        (
                            relation.spec,
                            piece.sizes,
                            piece.plan,
                            images,
                            relation.coef if first else Fraction(0),
                        )
                    )

        def compute() -> Grid:
            layers = []
            for spec, sizes, plan, images, coef in found:
                grid = pull(
                    self.grids[self.made[-1, spec]], images, {f"z{i}": n for i, n in enumerate(sizes)}
                )
                if coef != 1:
                    grid = cellwise(partial(self.reals.mul, self.reals.of(coef)), grid)
                forms = [
                    sorted(((c, int(s[1:])) for s, c in f.terms if sizes[int(s[1:])] > 1), reverse=True)
                    for f in plan
                ]
                used = sorted(z for form in forms for _, z in form)
                free = all(
                    c > 0 and c > sum(d * (sizes[y] - 1) for d, y in form[i + 1 :])
                    for form in forms
                    for i, (c, z) in enumerate(form)
                )
                if not free or used != [i for i, n in enumerate(sizes) if n > 1]:
                    raise Rejected(18, f"the layout of input {name} is outside the reach of a witness")
                layers.append(push(grid, forms, [f.const for f in plan], kind.shape))
            return overlay([*layers, constant(kind.shape, self.junk[kind.sort])])

        return self._add(("layout", kind, tuple(found)), kind, compute)

    # Evaluation

    def _make(self, op: Op, rank: int, ins: list[int]) -> int:
        """An op at a rank; collectives are concatenations, merges and slices of their members."""
        at = self.coordinates(rank) if rank >= 0 else {}
        a, kind = dict(op.attrs), op.type
        if op.name in MESSAGES:
            return ins[0]
        if op.name not in COLLECTIVES:
            if isinstance(a.get("value"), Affine):
                a["value"] = Fraction(value(a["value"], at))
            a |= {"start": tuple(value(f, at) for f in a["start"])} if "start" in a else {}
            key = (op.variant, tuple(ins), tuple(sorted(a.items())), kind)
            return self._add(key, kind, lambda: self._op(op, a, [self.grids[x] for x in ins]))
        line = self.fibres[a["group"]][rank]
        place = line.index(rank)
        if op.name == "all_gather":
            return self._joined(ins, a["dim"])
        if op.name == "all_to_all":
            n = op.ins[0].shape[a["split_dim"]] // len(ins)
            return self._joined([self._window(x, a["split_dim"], place * n, n) for x in ins], a["concat_dim"])
        total = self.merge(ins, a["kind"])
        if op.name == "all_reduce":
            return total
        return self._window(total, a["dim"], place * kind.shape[a["dim"]], kind.shape[a["dim"]])

    def _window(self, x: int, dim: int, start: int, size: int) -> int:
        shape = tuple(size if d == dim else n for d, n in enumerate(self.types[x].shape))
        starts = [start if d == dim else 0 for d in range(len(shape))]
        return self._add(
            ("window", x, dim, start, size),
            Type(self.types[x].dtype, shape),
            lambda: sliced(self.grids[x], starts, [1] * len(shape), shape),
        )

    def _joined(self, ins: Sequence[int], dim: int) -> int:
        shape = list(self.types[ins[0]].shape)
        shape[dim] = sum(self.types[x].shape[dim] for x in ins)
        return self._add(
            ("joined", tuple(ins), dim),
            Type(self.types[ins[0]].dtype, tuple(shape)),
            lambda: joined([self.grids[x] for x in ins], dim),
        )

    def _function(self, variant: str, operand: Type) -> Callable[..., Any]:
        return (
            self.functions[variant]
            if operand.sort == "Real" or variant in ("select", "dot_general") or variant.startswith("convert")
            else INTEGERS[variant]
        )

    def _op(self, op: Op, a: Mapping[str, Any], ins: list[Grid]) -> Grid:
        """One op on grids; the index maps are StableHLO's."""
        shape, sort, reals = op.type.shape, op.type.sort, self.reals
        match op.name:
            case "constant":
                v = a["value"]
                return constant(
                    shape,
                    LOW
                    if v == "-inf"
                    else HIGH
                    if v == "inf"
                    else v
                    if sort == "Bool"
                    else int(v)
                    if sort == "Int"
                    else reals.of(v),
                )
            case "iota":
                line = range(capped(shape[a["dim"]]))
                ends = tuple(tuple(range(n + 1)) if d == a["dim"] else (0, n) for d, n in enumerate(shape))
                return Grid(ends, list(line) if sort == "Int" else [reals.of(i) for i in line])
            case "reshape":
                return reshaped(ins[0], op.ins[0].shape, shape)
            case "slice":
                return sliced(ins[0], a["start"], a["stride"], shape)
            case "concatenate":
                return joined(ins, a["dim"])
            case "pad":
                inside = push(ins[0], [[(1, d)] for d in range(len(shape))], a["low"], shape)
                return overlay([inside, constant(shape, ins[1].data[0])])
            case "gather":
                return gathered(ins, a["axis"], a["batch_dims"], NOWHERE if sort == "Real" else None)
        wiring = wires(op) or []
        sums = max((-d for wire in wiring for d in wire if d is not None), default=0)
        lengths = {
            (-d - 1): n
            for wire, t in zip(wiring, op.ins, strict=True)
            for d, n in zip(wire, t.shape, strict=True)
            if d is not None and d < 0
        }
        whole: Cuts = tuple((0, n) for n in (*shape, *(lengths[k] for k in range(max(sums, 0)))))
        spread = [self._wired(g, wire, whole, len(shape)) for g, wire in zip(ins, wiring, strict=True)]
        if op.name not in ("reduce", "dot_general"):
            function = self._function(op.variant, op.ins[0]) if op.variant not in IDENTITIES else None
            return cellwise(function, *spread) if function else spread[0]
        return self._fold(a.get("kind", "add"), op.type, spread, len(shape))

    @staticmethod
    def _wired(grid: Grid, wire: Sequence[int | None], whole: Cuts, rank: int) -> Grid:
        """A grid over result and summed coordinates, from an operand's, as the table of wires says."""
        places = [None if d is None else d if d >= 0 else rank - 1 - d for d in wire]
        cuts = list(whole)
        for place, line in zip(places, grid.cuts, strict=True):
            if place is not None:
                cuts[place] = line
        steps = [prod(grid.counts[i + 1 :]) for i in range(len(places))]
        numbers = [0]
        for place, line in enumerate(cuts):
            step = steps[places.index(place)] if place in places else 0
            numbers = [n + step * k for n in numbers for k in range(len(line) - 1)]
        return Grid(tuple(cuts), [grid.data[n] for n in numbers])

    def _fold(self, kind: str, result: Type, grids: list[Grid], rank: int) -> Grid:
        """Reduce the coordinates from `rank` on; in sums every cell counts with its size."""
        cuts = union([g.cuts for g in grids])
        weights = [prod(b - a for a, b in pick) for pick in product(*map(pairwise, cuts[rank:]))]
        real = result.sort == "Real"
        rows = [refine(g, cuts) for g in grids]
        if len(rows) == 1:
            rows.append([self.reals.one if real else 1] * len(rows[0]))
        data: list[Any] = []
        for k in range(0, len(rows[0]), len(weights)):
            xs, ys = (row[k : k + len(weights)] for row in rows)
            if kind == "add" and real:
                data.append(self.reals.weighted(zip(weights, xs, ys, strict=True)))
            elif kind == "add":
                data.append(
                    known(lambda *vs: sum(map(prod, zip(weights, vs, strict=True))))(
                        *map(INTEGERS["multiply"], xs, ys)
                    )
                )
            else:
                function, best = self._function(MERGE[kind], result), xs[0]
                for x in xs[1:]:
                    best = function(best, x)
                data.append(best)
        return Grid(cuts[:rank], data)


IDENTITIES = frozenset(
    ("broadcast_in_dim", "transpose", "convert Real Real", "convert Int Int", "convert Bool Bool")
)


def sliced(grid: Grid, starts: Sequence[int], strides: Sequence[int], shape: Shape) -> Grid:
    forms = [
        Affine(start, ((f"z{d}", stride),))
        for d, (start, stride) in enumerate(zip(starts, strides, strict=True))
    ]
    return pull(grid, forms, {f"z{d}": n for d, n in enumerate(shape)})


def joined(grids: Sequence[Grid], dim: int) -> Grid:
    """Concatenation: every part cut alike in the other dimensions."""
    sides = union([(*g.cuts[:dim], *g.cuts[dim + 1 :]) for g in grids])
    parts = [
        Grid((*sides[:dim], g.cuts[dim], *sides[dim:]), refine(g, (*sides[:dim], g.cuts[dim], *sides[dim:])))
        for g in grids
    ]
    ends, offset = [0], 0
    for part in parts:
        ends += [offset + c for c in part.cuts[dim][1:]]
        offset = ends[-1]
    steps = [prod(p.counts[dim:]) for p in parts]
    data = [
        v
        for k in range(prod(len(c) - 1 for c in sides[:dim]))
        for p, step in zip(parts, steps, strict=True)
        for v in p.data[k * step : (k + 1) * step]
    ]
    capped(len(data))
    return Grid((*sides[:dim], tuple(ends), *sides[dim:]), data)


def gathered(ins: Sequence[Grid], axis: int, batch: int, lost: Any) -> Grid:
    """An index out of range is outside the meaning: a real element is no number, others are not known."""
    x, index = ins
    size = x.cuts[axis][-1]
    shared = union([x.cuts[:batch], index.cuts[:batch]])
    index = Grid((*shared, *index.cuts[batch:]), refine(index, (*shared, *index.cuts[batch:])))
    x = Grid((*shared, *x.cuts[batch:]), refine(x, (*shared, *x.cuts[batch:])))
    cuts = (*x.cuts[:axis], *index.cuts[batch:], *x.cuts[axis + 1 :])
    outer, own = prod(x.counts[batch:axis]), prod(index.counts[batch:])
    inner, rows, data = prod(x.counts[axis + 1 :]), x.counts[axis], []
    capped(prod(len(c) - 1 for c in cuts))
    for b in range(prod(x.counts[:batch])):
        for o in range(outer):
            for i in index.data[b * own : (b + 1) * own]:
                if i is None or not 0 <= i < size:
                    data += [None if i is None else lost] * inner
                else:
                    at = ((b * outer + o) * rows + bisect_right(x.cuts[axis], i) - 1) * inner
                    data += x.data[at : at + inner]
    return Grid(cuts, data)
