"""Box evaluation: tensors of true size whose inputs are constant on blocks, at the cost of their blocks.

A tensor is read at index forms, affine over box variables (:mod:`.forms`); the answer is a :class:`Grid`:
per variable the positions where the value may change, and one number per cell. A sum over ``k`` reads its
operand at a fresh variable ``k`` and weights every cell with its length, so that a contraction over 14336
positions costs as many products as there are cells. A row-major regrouping (``reshape``) that is not affine
on the whole box raises :class:`Split`; whoever introduced the variable, a sum or the caller, replaces it by
digits or shorter ranges and asks again. Everything is memoised per node and canonical forms.

Numbers are numpy's float64, int64 and bool. A result is a guess: rounding errors are not tracked, a gather
out of range is NaN (0 for integers). The checker has its own evaluator, with intervals.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import EvaluationError
from .arrays import BINARY, COMPARE, FOLD, UNARY
from .forms import (
    Cut,
    Form,
    Part,
    Split,
    TooFine,
    bounds,
    combine,
    compose,
    covering,
    digits,
    regroup,
    regrouped,
    scaled,
    threshold,
)
from .grids import (
    MAX_CELLS,
    Grid,
    assembled,
    common_axes,
    compare_positions,
    contract,
    corner,
    flattened,
    linear,
    pointwise,
    refined,
)
from .network import Network, Node

#: A tensor (node number) read at forms over variables of the given sizes.
Demand = tuple[int, tuple[Form, ...], tuple[int, ...]]
Steps = Generator[Demand, Grid, Grid]
#: Cells of a grid that cost as much as a visit.
CELLS = 1_000


class Evaluator:
    """Memoised box evaluation of the nodes of one network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._memo: dict[Demand, Grid | Split | EvaluationError] = {}
        self._parts: dict[int, list[Part]] = {}

    def read(self, node: int, forms: Sequence[Form], sizes: Sequence[int]) -> Grid:
        """The value of a tensor at index forms.

        Raises :class:`Split` if a variable must be regrouped, :class:`EvaluationError` if it cannot be done,
        :class:`OutOfTime`.
        """
        request: Demand | None = (node, tuple(forms), tuple(sizes))
        stack: list[tuple[Steps, Demand, list[int]]] = []
        answer: Grid | Split | EvaluationError | None = None
        with np.errstate(all="ignore"):
            while True:
                self.network.work.tick()
                if request is not None:
                    key, names = _canonical(request)
                    hit = self._memo.get(key)
                    if hit is None:
                        stack.append((self._steps(*key), key, names))
                        answer = request = None
                    else:
                        answer, request = _renamed(hit, names), None
                        if not stack:
                            break
                steps, key, names = stack[-1]
                try:
                    if answer is None:
                        request = next(steps)
                    elif isinstance(answer, Grid):
                        request = steps.send(answer)
                    else:
                        request = steps.throw(answer)
                    continue
                except StopIteration as stop:
                    found: Grid | Split | EvaluationError = stop.value
                    self.network.work.tick(stop.value.data.size // CELLS)
                except (Split, EvaluationError) as error:
                    found = error.with_traceback(None)
                self._memo[key] = found
                answer = _renamed(found, names)
                stack.pop()
                if not stack:
                    break
        if isinstance(answer, Grid):
            return answer
        raise answer

    def element(self, node: int, index: Sequence[int]) -> float | int | bool:
        """One element."""
        value: float | int | bool = self.read(node, [(i, ()) for i in index], ()).data.item()
        return value

    def parts(
        self, nodes: Sequence[tuple[int, Sequence[Form]]], sizes: Sequence[int]
    ) -> list[tuple[tuple[Form, ...], tuple[int, ...], list[Grid]]]:
        """Read several tensors over the same variables, regrouping these where needed.

        Returns parts of the box: the old variables as forms over new ones, sizes of the new, and the grids.
        """
        todo: list[Part] = [(tuple((0, ((v, 1),)) for v in range(len(sizes))), tuple(sizes))]
        out: list[tuple[tuple[Form, ...], tuple[int, ...], list[Grid]]] = []
        while todo:
            olds, new = todo.pop(0)
            try:
                grids = [self.read(node, [compose(f, olds) for f in forms], new) for node, forms in nodes]
            except Split as split:
                todo = regrouped((olds, new), split) + todo
                continue
            out.append((olds, new, grids))
        return out

    # --- one op ----------------------------------------------------------------------------------------

    def _steps(self, number: int, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Steps:
        try:
            return (yield from self._op(number, self.network.nodes[number], forms, sizes))
        except Cut as cut:
            cuts = cut.cuts
        return (yield from self._piecewise(number, forms, sizes, cuts))

    def _op(self, number: int, node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Steps:
        ins = node.ins
        match node.op:
            case "block":
                return _read_block(node, forms, sizes)
            case "constant":
                value = node.attrs[0]
                return Grid((), np.asarray(float(value) if node.sort == "Real" else value))
            case "iota":
                const, terms = forms[node.attrs[0]]
                grid = Grid((), np.asarray(const), terms)
                return grid if node.sort == "Int" else pointwise(np.float64, flattened(grid, sizes))
            case "layout":
                return (yield from self._layout(node, forms, sizes))
            case "transpose":
                moved: list[Form] = [(0, ())] * len(forms)
                for k, p in enumerate(node.attrs):
                    moved[p] = forms[k]
                return (yield ins[0], tuple(moved), sizes)
            case "broadcast_in_dim":
                shape = self.network.nodes[ins[0]].shape
                dims: Any = node.attrs
                at = tuple((0, ()) if n == 1 else forms[d] for n, d in zip(shape, dims, strict=True))
                return (yield ins[0], at, sizes)
            case "slice":
                window: Any = node.attrs
                return (
                    yield (
                        ins[0],
                        tuple(scaled(f, b, a) for f, (a, b) in zip(forms, window, strict=True)),
                        sizes,
                    )
                )
            case "reshape":
                return (yield ins[0], self._reshaped(node, forms, sizes), sizes)
            case "pad":
                return (yield from self._pad(node, forms, sizes))
            case "concatenate":
                dim: Any = node.attrs[0]
                start, cuts = 0, dict[int, set[int]]()
                lo, hi = bounds(forms[dim], sizes)
                for x in ins:
                    stop = start + self.network.nodes[x].shape[dim]
                    if start <= lo and hi < stop:
                        here = (*forms[:dim], scaled(forms[dim], 1, -start), *forms[dim + 1 :])
                        return (yield x, here, sizes)
                    threshold(forms[dim], sizes, stop, cuts)
                    start = stop
                raise Cut(cuts)
            case "dot_general" | "reduce":
                return (yield from self._sum(number, node, forms, sizes))
            case "merge":
                return (yield from self._merge(node, forms, sizes))
            case "gather":
                return (yield from self._gather(node, forms, sizes))
            case "select":
                return (yield from self._select(node, forms, sizes))
            case _:
                grids: list[Grid] = []
                for x in ins:
                    grids.append((yield x, forms, sizes))
                return self._pointwise(node, grids, sizes)

    def _pointwise(self, node: Node, grids: list[Grid], sizes: tuple[int, ...]) -> Grid:
        op, x = node.op, grids[0]
        if op == "convert":
            return self._convert(node, x, sizes)
        if op == "compare":
            if x.slope != grids[1].slope:
                return compare_positions(str(node.attrs[0]), x, grids[1], sizes)
            return pointwise(COMPARE[str(node.attrs[0])], *(Grid(g.axes, g.data) for g in grids))
        if any(g.slope for g in grids):
            kept = linear(op, grids)
            if kept is not None:
                return kept
            grids = [flattened(g, sizes) for g in grids]
        if op in UNARY:
            return pointwise(UNARY[op], *grids)
        if op in BINARY:
            return pointwise(BINARY[op], *grids)
        raise EvaluationError(f"op {op!r} has no meaning in box evaluation")

    def _convert(self, node: Node, x: Grid, sizes: tuple[int, ...]) -> Grid:
        if node.sort == "Int":
            return x if x.data.dtype != np.bool_ else pointwise(np.int64, x)
        if node.sort == "Bool":
            return compare_positions("NE", x, Grid((), np.asarray(0)), sizes)
        return pointwise(np.float64, flattened(x, sizes))

    def _reshaped(self, node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> tuple[Form, ...]:
        source = self.network.nodes[node.ins[0]].shape
        out: list[Form] = []
        for theirs, ours in regroup(source, node.shape):
            position: Form = (0, ())
            for d in ours:
                position = combine(forms[d], position, node.shape[d])
            out.extend(digits(position, [source[d] for d in theirs], sizes) if len(theirs) else ())
        return tuple(out)

    def _pad(self, node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Steps:
        cuts: dict[int, set[int]] = {}
        inside = True
        at: list[Form] = []
        lows: Any = node.attrs
        for f, low, n in zip(forms, lows, self.network.nodes[node.ins[0]].shape, strict=True):
            lo, hi = bounds(f, sizes)
            if hi < low or lo >= low + n:
                inside = False
            elif lo < low or hi >= low + n:
                threshold(f, sizes, low, cuts)
                threshold(f, sizes, low + n, cuts)
            at.append(scaled(f, 1, -low))
        if inside and cuts:
            raise Cut(cuts)
        return (yield (node.ins[0], tuple(at), sizes) if inside else (node.ins[1], (), ()))

    def _select(self, node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Steps:
        p: Grid = yield node.ins[0], forms, sizes
        if not p.axes:
            return (yield node.ins[1 if p.data.item() else 2], forms, sizes)
        x: Grid = yield node.ins[1], forms, sizes
        y: Grid = yield node.ins[2], forms, sizes
        slope = x.slope
        if slope != y.slope:
            x, y, slope = flattened(x, sizes), flattened(y, sizes), ()
        picked = pointwise(np.where, p, Grid(x.axes, x.data), Grid(y.axes, y.data))
        return Grid(picked.axes, picked.data, slope)

    def _merge(self, node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Steps:
        """A reduction over ranks; equal members are read once."""
        kind = str(node.attrs[0])
        total: Grid | None = None
        for x, count in Counter(node.ins).items():
            grid = flattened((yield x, forms, sizes), sizes)
            if kind == "add" and count > 1:
                grid = Grid(grid.axes, grid.data * count)
            total = grid if total is None else pointwise(FOLD[kind], total, grid)
        if total is None:
            raise EvaluationError("a reduction over no ranks")
        return total

    def _sum(self, number: int, node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Steps:
        """``dot_general`` and ``reduce``: sum over parts of the reduced range, each box by box."""
        operands, ranges = self._summands(node, forms)
        outer = len(sizes)
        todo = list(self._parts.get(number) or [(tuple((0, ((i, 1),)) for i in range(len(ranges))), ranges)])
        done: list[Part] = []
        kind = "add" if node.op == "dot_general" else str(node.attrs[0])
        total: Grid | None = None
        while todo:
            part = todo.pop()
            moved = [(f[0], tuple((v + outer, c) for v, c in f[1])) for f in part[0]]
            every = sizes + part[1]
            grids: list[Grid] = []
            try:
                for x, places in operands:
                    at = tuple(moved[p] if summed else forms[p] for summed, p in places)
                    grids.append(flattened((yield x, at, every), every))
            except Split as split:
                if split.var < outer:
                    raise
                todo.extend(regrouped(part, Split(split.var - outer, split.radix, split.start, split.stop)))
                continue
            done.append(part)
            term = contract(kind, grids, every, outer)
            total = term if total is None else pointwise(FOLD[kind], total, term)
        if total is None:
            raise EvaluationError(f"{node.op} over an empty range")
        self._parts[number] = done
        return total

    def _summands(
        self, node: Node, forms: tuple[Form, ...]
    ) -> tuple[list[tuple[int, list[tuple[bool, int]]]], tuple[int, ...]]:
        """Operands with, per dimension, (summed?, number of the summed range or of the result dimension)."""
        shapes = [self.network.nodes[x].shape for x in node.ins]
        if node.op == "reduce":
            reduced: Any = node.attrs[1]
            kept = itertools.count()
            places = [
                (True, reduced.index(d)) if d in reduced else (False, next(kept))
                for d in range(len(shapes[0]))
            ]
            return [(node.ins[0], places)], tuple(shapes[0][d] for d in reduced)
        lb, rb, lc, rc = (tuple(a) for a in node.attrs)
        free = itertools.count(len(lb))
        out = []
        for x, shape, batch, summed in zip(node.ins, shapes, (lb, rb), (lc, rc), strict=True):
            out.append(
                (
                    x,
                    [
                        (True, summed.index(d)) if d in summed
                        else (False, batch.index(d) if d in batch else next(free))
                        for d in range(len(shape))
                    ],
                )
            )  # fmt: skip
        return out, tuple(shapes[0][d] for d in lc)

    def _gather(self, node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Steps:
        axis, batch = (int(a) for a in node.attrs)
        x, indices = node.ins
        extra = len(self.network.nodes[indices].shape) - batch
        size = self.network.nodes[x].shape[axis]
        index: Grid = yield indices, forms[:batch] + forms[axis : axis + extra], sizes
        before, after = forms[:axis], forms[axis + extra :]
        if index.slope and not index.axes:
            position: Form = (int(index.data), index.slope)
            lo, hi = bounds(position, sizes)
            if lo >= 0 and hi < size:
                return (yield x, (*before, position, *after), sizes)
        index = flattened(index, sizes)
        numbers, inverse = np.unique(index.data, return_inverse=True)
        rows: list[Grid] = []
        for n in numbers:
            if 0 <= n < size:
                rows.append(flattened((yield x, (*before, (int(n), ()), *after), sizes), sizes))
            else:
                rows.append(Grid((), np.asarray(np.nan if node.sort == "Real" else 0)))
        inner = common_axes(rows)
        shape = [len(c) - 1 for _, c in inner]
        table = np.stack([np.broadcast_to(refined(r, inner), shape) for r in rows])
        picks = Grid(index.axes, inverse.reshape(index.data.shape))
        axes = common_axes([picks, Grid(inner, table[0])])
        fine = np.stack([refined(Grid(inner, t), axes) for t in table])
        where = [np.arange(n).reshape([-1 if d == k else 1 for d in range(len(axes))])
                 if n > 1 else np.zeros([1] * len(axes), dtype=np.int64)
                 for k, n in enumerate(fine.shape[1:])]  # fmt: skip
        return Grid(axes, fine[(refined(picks, axes), *where)])

    def _layout(self, node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Steps:
        """A plan input: the first piece of its relations that covers the element, else junk."""
        junk, pieces = node.attrs
        for digit_sizes, plan_forms, spec_forms, coef, which in pieces:
            found = covering(forms, plan_forms, digit_sizes, sizes)
            if found is None:
                continue
            at = tuple(compose(f, found) for f in spec_forms)
            grid: Grid = yield node.ins[which], at, sizes
            return grid if coef == 1.0 else pointwise(lambda data, c=coef: data * c, grid)
        return Grid((), np.asarray(junk))

    def _piecewise(
        self, number: int, forms: tuple[Form, ...], sizes: tuple[int, ...], cuts: Mapping[int, set[int]]
    ) -> Steps:
        """Read the same node on the parts of a cut box and put the answers together."""
        ranges = {
            v: list(itertools.pairwise((0, *sorted(at), sizes[v]))) for v, at in sorted(cuts.items()) if at
        }
        if math.prod(map(len, ranges.values())) > MAX_CELLS:
            raise TooFine(f"a box falls into more than {MAX_CELLS} parts")
        answers: list[tuple[dict[int, tuple[int, int]], Grid]] = []
        for chosen in itertools.product(*ranges.values()):
            box = dict(zip(ranges, chosen, strict=True))
            small = tuple(box[v][1] - box[v][0] if v in box else n for v, n in enumerate(sizes))
            at = tuple((f[0] + sum(c * box[v][0] for v, c in f[1] if v in box), f[1]) for f in forms)
            try:
                grid: Grid = yield number, at, small
            except Split as split:
                first = box.get(split.var, (0, 0))[0]
                raise Split(split.var, split.radix, split.start + first, split.stop + first) from None
            answers.append((box, grid if not grid.slope else flattened(grid, small)))
        return assembled(answers, sizes)


def _canonical(demand: Demand) -> tuple[Demand, list[int]]:
    """Number the variables by first occurrence and drop those with one position; second: the old names."""
    node, forms, sizes = demand
    order: dict[int, int] = {}
    out: list[Form] = []
    for const, terms in forms:
        if terms:
            kept = []
            for v, c in terms:
                if sizes[v] > 1:
                    kept.append((order.setdefault(v, len(order)), c))
            kept.sort()
            out.append((const, tuple(kept)))
        else:
            out.append((const, ()))
    return (node, tuple(out), tuple(sizes[v] for v in order)), list(order)


def _renamed(answer: Grid | Split | EvaluationError, names: list[int]) -> Grid | Split | EvaluationError:
    """An answer in the variables of whoever asked."""
    if isinstance(answer, Split):
        return Split(names[answer.var], answer.radix, answer.start, answer.stop)
    if isinstance(answer, EvaluationError):
        return answer
    axes = tuple((names[v], cuts) for v, cuts in answer.axes)
    slope = tuple(sorted((names[v], c) for v, c in answer.slope)) if answer.slope else ()
    order = sorted(range(len(axes)), key=lambda i: axes[i][0])
    if order == list(range(len(axes))):
        return Grid(axes, answer.data, slope)
    return Grid(tuple(axes[i] for i in order), answer.data.transpose(order), slope)


def _read_block(node: Node, forms: tuple[Form, ...], sizes: tuple[int, ...]) -> Grid:
    """An input that is constant on blocks; attributes: cuts per dimension, values."""
    all_cuts, values = node.attrs
    found: dict[int, set[int]] = {}
    for form, cuts in zip(forms, all_cuts, strict=True):
        for at in cuts[1:-1]:
            threshold(form, sizes, at, found)
    axes = tuple((v, (0, *sorted(c), sizes[v])) for v, c in sorted(found.items()) if c)
    block = np.asarray(values).reshape([len(c) - 1 for c in all_cuts])
    index = []
    for form, cuts in zip(forms, all_cuts, strict=True):
        index.append(np.searchsorted(np.asarray(cuts), corner(form, axes), side="right") - 1)
    return Grid(axes, np.asarray(block[tuple(index)]) if index else np.asarray(block))
