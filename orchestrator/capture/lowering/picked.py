"""Rows that a mask picks (``nonzero``), as many as it has true elements: in a plan a row for each element.

``torch.where(ids == e)`` names the places of true elements, and what is looked up there has a row for each
of them. A plan has a row for every element of the mask instead. An op that acts on each row by itself gives
those that are not there a value that nobody reads; where rows are added up (sums, contractions,
``index_add``) the mask makes them 0 first. Every other op on such rows is refused, and so is a question about
their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from certificates.plan.ops import ELEMENTWISE

from ..amounts import Amount
from ..builder import Builder, Draft, Value
from ..errors import LoweringError
from ..recorder import Node, TensorRef
from .exclusive import Written, peeled
from .losses import nll_loss
from .routing import Routing
from .row_orders import added
from .sizes import Sizes
from .table import Context, axis_of, effects

_ROW_BY_ROW = (
    "ops that act on each row by itself; sums of rows by matmul, sum(0), index_add_ or "
    "index_put_(…, accumulate=True)"
)
PLACES = "aten.nonzero.default"
_ONE_MASK = "one mask for both, computed once: m = labels != 0; x[m], labels[m]"
#: What leaves out rows whose label is to be ignored: a mean of as many rows as there are.
_LABELLED = "nll_loss_forward"
#: Gradients of means that are told how many rows there are, or for which they are counted.
_BACKWARD = ("nll_loss_backward", "mse_loss_backward")
#: Ops that add up what they are given along a dimension that their results do not have.
_SUMS = frozenset(("mm", "bmm", "sum", "index_add", "scatter_add"))


def base(node: Node) -> str:
    """An op's name without namespace and overload, in its functional form."""
    name = node.op.split(".")[1] if node.op.startswith("aten.") else node.op
    return name if name.startswith("_") else name.removesuffix("_")


@effects(PLACES)
def _places(driver: Any, node: Node) -> None:
    """i64[elements, dimensions]: where each element of a mask stands, whether or not it is true."""
    b: Builder = driver.builder
    mask = driver.read(node.args[0])
    columns = [b.reshape(b.iota(d, mask.shape), (mask.type.size, 1)) for d in range(len(mask.shape))]
    driver.write(node.outs, b.concatenate(columns, 1))


def refused(op: str) -> LoweringError:
    return LoweringError(
        f"{op} does not act on each row by itself, of rows that a mask picks", instead=_ROW_BY_ROW
    )


@dataclass(frozen=True)
class PickedOp:
    """An op on rows that a mask picks, and how it is read: ``kept`` if its results have these rows too."""

    c: Context
    node: Node
    mask: Value
    #: That of the amount of the mask's true elements.
    number: int
    rows: Mapping[TensorRef, int]
    targets: Sequence[TensorRef]
    kept: bool
    #: Values with rows of this mask, and along which dimension; ``None`` of what else ops on them have read.
    known: dict[str, int | None]
    written: Written

    @staticmethod
    def of(c: Context, node: Node, sizes: Sizes, read: object, targets: Sequence[object]) -> PickedOp | None:
        """``None`` for an op that has nothing to do with such rows; ``read`` is what its lowering reads."""
        given = [t for t in tree_leaves(read) if isinstance(t, TensorRef)]
        made = [t for t in targets if isinstance(t, TensorRef)]
        found = {t: sizes.picked[t] for t in (*given, *made) if t in sizes.picked}
        numbers = {number for _, number in found.values()}
        if not numbers:
            return None
        if len(numbers) > 1:
            raise LoweringError("rows that two masks pick, in one op", instead=_ONE_MASK)
        kept = all(t in found for t in made)
        taken = _adds_up(node) or base(node) in ("index_put", "mean", "mse_loss", _LABELLED)
        if not kept and (any(t in found for t in made) or not taken):
            raise refused(base(node))
        if kept and _averages(node) and base(node) not in _BACKWARD:
            raise refused(base(node))
        number = numbers.pop()
        dims = {t: dim for t, (dim, _) in found.items()}
        known = sizes.rows_of.setdefault(number, {})
        return PickedOp(c, node, sizes.masks[number], number, dims, made, kept, known, sizes.written)

    def reader(self, read: Callable[[TensorRef], Value]) -> Callable[[object], object]:
        """How operands are read: of those whose rows are added up, one without the absent rows."""
        one = None if self.kept else next((t for t in self._operands() if t in self.rows), None)
        if not self.kept and (one is None or not _adds_up(self.node)):
            raise refused(base(self.node))

        def value(x: object) -> object:
            if not isinstance(x, TensorRef):
                return x
            return self._present(read(x), self.rows[x]) if x == one else read(x)

        return value

    def early(self, read: Callable[[TensorRef], Value]) -> Sequence[Value] | None:
        """The results of an op that has another lowering on such rows; ``None`` for all else."""
        args = self.node.args
        if base(self.node) == _LABELLED and all(t in self.rows for t in args[:2]) and args[3]:
            weight = None if args[2] is None else read(args[2])
            flat = self.c.b.flat(self.mask)
            return nll_loss(self.c, read(args[0]), read(args[1]), weight, args[3], args[4], flat)
        found = self._early(read)
        return None if found is None else [found]

    def _early(self, read: Callable[[TensorRef], Value]) -> Value | None:
        name, args = base(self.node), self.node.args
        if self.node.kwargs or name not in ("div", "mean", "mse_loss", "mse_loss_backward"):
            return self.at_known_places(read)
        if name == "div":
            factors = dict(args[1].terms) if isinstance(args[1], Amount) and not args[1].const else {}
            own = self.kept and args[0].dtype == self.targets[0].dtype and factors.keys() == {self.number}
            return self._divided(read(args[0]), factors[self.number]) if own else None
        if name == "mean":
            return None if self.kept else self._mean(read(args[0]), self.rows[args[0]], *args[1:])
        x, y = args[name.endswith("backward") :][:2]
        if x not in self.rows or y not in self.rows or x.geometry.size != y.geometry.size:
            return None
        b, difference = self.c.b, self.c.b.binary("subtract", read(x), read(y))
        mean = _averages(self.node)
        if not self.kept:
            squares, dim = b.binary("multiply", difference, difference), self.rows[x]
            return self._mean(squares, dim) if mean else self._total(squares, dim, range(len(squares.shape)))
        grad = b.binary("multiply", b.scale(difference, 2), b.expand(read(args[0]), difference.shape))
        return self._divided(grad, difference.type.size // self.mask.type.size) if mean else grad

    def _total(self, x: Value, dim: int, dims: Sequence[int], keepdim: bool = False) -> Value:
        return self.c.b.reduce(self._present(x, dim), tuple(dims), "add", keepdim=keepdim)

    def _mean(self, x: Value, dim: int, dims: Sequence[int] | None = None, keepdim: bool = False) -> Value:
        """The mean over the rows that are there, and other dimensions."""
        rank = len(x.shape)
        over = sorted({axis_of(d, rank) for d in dims or range(rank)})
        others = math.prod(x.shape[d] for d in over if d != dim)
        return self._divided(self._total(x, dim, over, keepdim), others)

    def _divided(self, x: Value, factor: int) -> Value:
        """``x`` by a multiple of how many rows there are."""
        b = self.c.b
        count = b.convert(b.reduce(b.convert(b.flat(self.mask), "i64"), (0,), "add"), x.dtype)
        count = count if factor == 1 else b.scale(count, factor)
        return b.binary("divide", x, b.expand(count, x.shape))

    def at_known_places(self, read: Callable[[TensorRef], Value]) -> Value | None:
        """Rows looked up, or added up, at places that follow the mask's elements; ``None`` for all else."""
        name, args = base(self.node), self.node.args
        if name not in ("index", "index_select", "index_put", "index_add"):
            return None
        if name in ("index_select", "index_add"):
            indices = [args[2]] if args[1] == 0 else []
            if self.node.kwargs:
                return None
        else:
            indices = list(args[1])
        target = args[0]
        count = len(indices)
        if not indices or target in self.rows or any(i not in self.rows for i in indices):
            return None
        shape = target.geometry.size
        at = _table(self.c.routing, [read(i) for i in indices], shape[:count])
        if at is None:
            return None
        b, grid, flat = self.c.b, self.mask.shape, (math.prod(shape[:count]), *shape[count:])
        own = grid == shape[:count] and torch.equal(at, torch.arange(flat[0]))
        if name in ("index", "index_select"):
            x = peeled(b, read(target), self.mask) if own else read(target)
            return _looked_up(b, b.reshape(x, flat), at, grid)
        source = args[2] if name == "index_put" else args[3]
        if source not in self.rows:
            return None
        adds, rows = name == "index_add" or _adds_up(self.node), read(source)
        alone = own and not adds and rows.dtype != "i1" and self.written.adds(b, read(target), self.mask)
        adds = adds or alone
        rows = self._present(rows, self.rows[source]) if adds else rows
        if len(rows.shape) != len(flat) or not (adds or len(at) == flat[0]):
            return None
        rows = b.broadcast(rows, (len(at), *flat[1:]), range(len(flat)))
        total = _added_up(b, rows, at, grid, flat[0])
        if total is None:
            return None
        if adds:
            found = added(b, read(target), b.reshape(total, shape))
            if alone:
                self.written.note(b, read(target), self.mask, found)
            return found
        # Each element of the mask is one place.
        here = _added_up(b, b.flat(self.mask), at, grid, flat[0])
        assert here is not None
        written = b.select(b.broadcast(here, flat, (0,)), total, b.reshape(read(target), flat))
        return b.reshape(written, shape)

    def check(
        self, values: Sequence[Value | None], read: Callable[[TensorRef], Value], looked_up: bool
    ) -> None:
        """An error unless results have a row for each row of the operands, made of that one alone, or
        ``looked_up`` for it."""
        if not self.kept:
            return
        made = {v.name: self.rows[t] for t, v in zip(self.targets, values, strict=False) if v is not None}
        if looked_up:
            self.known.update(made)
            return
        operands = self._operands()
        given: dict[str, int | None] = {read(t).name: None for t in operands if t not in self.rows}
        given |= {read(t).name: self.rows[t] for t in operands if t in self.rows}
        rows = RowByRow(self.c.b, {**self.known, **given}, base(self.node))
        for target, value in zip(self.targets, values, strict=False):
            if value is not None:
                rows.check(value, self.rows[target])
        self.known.update({name: dim for name, dim in given.items() if name not in self.known} | made)

    def _operands(self) -> list[TensorRef]:
        """Tensors that are read; where rows are added up, those that have them."""
        found = [t for t in tree_leaves((self.node.args, dict(self.node.kwargs))) if isinstance(t, TensorRef)]
        places = base(self.node) not in ("mm", "bmm", "sum") and not self.kept
        return [t for t in found if not (places and t.dtype in ("i64", "i32"))]

    def _present(self, x: Value, dim: int) -> Value:
        """``x`` with zeros in the rows, along ``dim``, that the mask does not pick."""
        b = self.c.b
        if x.dtype == "i1":
            raise refused(base(self.node))
        here = b.broadcast(b.convert(b.flat(self.mask), x.dtype), x.shape, (dim,))
        return b.binary("multiply", x, here)


def _averages(node: Node) -> bool:
    """Does the op divide by the number of its elements, as its argument ``reduction`` says?"""
    packet = getattr(torch.ops.aten, base(node), None) if node.op.startswith("aten.") else None
    op: Any = getattr(packet, "default", None)
    names = [a.name for a in op._schema.arguments] if op is not None else []
    if "reduction" not in names:
        return False
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return bool(given.get("reduction", 1) == 1)


def _adds_up(node: Node) -> bool:
    """Does the op add up rows, so that rows of zeros change nothing?"""
    name = base(node)
    if name == "index_put":
        return (len(node.args) > 3 and node.args[3] is True) or node.kwargs.get("accumulate") is True
    return name in _SUMS


# --- rows at places that are known -------------------------------------------------------------------------


def _table(routing: Routing, indices: Sequence[Value | None], shape: Sequence[int]) -> torch.Tensor | None:
    """The number of the element of a tensor that each row names by its first indices, if they are known."""
    found: torch.Tensor | None = None
    for at, size in zip(indices, shape, strict=False):
        numbers = None if at is None or len(at.shape) != 1 else routing.of(at)
        if numbers is None or any(not torch.equal(numbers[0], n) for n in numbers):
            return None
        found = numbers[0].long() + (0 if found is None else found * size)
    return found


def _looked_up(b: Builder, x: Value, at: torch.Tensor, grid: Sequence[int]) -> Value | None:
    """Rows of ``x`` at the numbers ``at``, one for each element of a mask of shape ``grid``.

    ``None`` if they are not all rows of ``x`` in an order of the grid's axes, each for all of the others.
    """
    axes = _axes(at, grid, x.shape[0])
    if axes is None:
        return None
    rest = x.shape[1:]
    wide = b.reshape(x, (*(grid[j] for j in axes), *rest))
    ascending = sorted(axes)
    perm = [*(axes.index(j) for j in ascending), *range(len(axes), len(axes) + len(rest))]
    dims = [*ascending, *range(len(grid), len(grid) + len(rest))]
    spread = b.broadcast(b.transpose(wide, perm), (*grid, *rest), dims)
    return b.reshape(spread, (len(at), *rest))


def _added_up(b: Builder, rows: Value, at: torch.Tensor, grid: Sequence[int], count: int) -> Value | None:
    """The sums of ``rows`` at each of ``count`` numbers, those of ``at``; ``None`` as :func:`_looked_up`."""
    axes = _axes(at, grid, count)
    if axes is None:
        return None
    rest = rows.shape[1:]
    others, ascending = [j for j in range(len(grid)) if j not in axes], sorted(axes)
    if all(grid[j] == 1 for j in others):  # of truth values, too
        kept = b.reshape(rows, (*(grid[j] for j in ascending), *rest))
    else:
        kept = b.reduce(b.reshape(rows, (*grid, *rest)), others, "add")
    perm = [*(ascending.index(j) for j in axes), *range(len(axes), len(axes) + len(rest))]
    return b.reshape(b.transpose(kept, perm), (count, *rest))


def _axes(at: torch.Tensor, grid: Sequence[int], count: int) -> list[int] | None:
    """The axes of the grid of which ``at`` is the row-major number, major first, if it has all ``count``."""
    numbers = at.reshape(tuple(grid))
    step = {
        j: int(numbers.select(j, 1).flatten()[0] - numbers.flatten()[0]) for j, n in enumerate(grid) if n > 1
    }
    axes = sorted((j for j, s in step.items() if s), key=lambda j: -step[j])
    expected, rest = torch.zeros(tuple(grid), dtype=torch.int64), count
    for j in axes:
        if rest % grid[j]:
            return None
        rest //= grid[j]
        line = torch.arange(grid[j]) * rest
        expected += line.reshape([-1 if k == j else 1 for k in range(len(grid))])
    return axes if rest == 1 and torch.equal(expected, numbers) else None


# --- row by row --------------------------------------------------------------------------------------------


class RowByRow:
    """Along which dimension values have rows, made of operands by ops that act on each row by itself.

    ``given`` says it of the operands and of earlier values, ``None`` of those that have no rows.
    """

    def __init__(self, b: Builder, given: Mapping[str, int | None], op: str) -> None:
        self._b, self._op = b, op
        self._dims: dict[str, int | None] = dict(given)
        self._first = min((_number(n) for n, d in given.items() if d is not None), default=len(b.drafts))

    def check(self, x: Value, dim: int) -> None:
        """An error unless ``x`` has its rows along ``dim``, or is alike in all of them."""
        found = self._dim(x.name)
        if found != dim and not (found is None and self._b.alike(x.name, dim)):
            raise refused(self._op)

    def _dim(self, name: str) -> int | None:
        """``None`` for what is not made of rows."""
        if name not in self._dims:
            draft = self._b.drafts.get(name)
            older = draft is None or _number(name) < self._first
            self._dims[name] = None if older or draft is None else self._through(draft)
        return self._dims[name]

    def _through(self, draft: Draft) -> int | None:
        dims = [self._dim(v) for v in draft.ins]
        known = {d for d in dims if d is not None}
        if not known:
            return None
        if len(known) > 1:
            raise refused(self._op)
        (dim,) = known
        shape = self._shape(draft.ins[dims.index(dim)])
        if draft.name in ELEMENTWISE:
            if not all(d == dim or self._b.alike(v, dim) for d, v in zip(dims, draft.ins, strict=True)):
                raise refused(self._op)
            return dim
        if draft.name in ("dot_general", "gather", "concatenate", "pad"):
            found = self._joined(draft, dims, dim)
        else:
            found = _moved(draft, dim, shape)
        if found is None or draft.type.shape[found] != shape[dim]:
            raise refused(self._op)
        return found

    def _joined(self, draft: Draft, dims: Sequence[int | None], dim: int) -> int | None:
        """The same for ops with several operands."""
        attrs: dict[str, Any] = dict(draft.attrs)
        if draft.name == "concatenate":
            return dim if attrs["dim"] != dim and all(d == dim for d in dims) else None
        if draft.name == "pad":
            return dim if dims[0] == dim and not attrs["low"][dim] and not attrs["high"][dim] else None
        if draft.name == "gather":
            axis, batch = attrs["axis"], attrs["batch_dims"]
            if dims[0] is None and dims[1] is not None and dim >= batch:
                return int(axis + dim - batch)
            return dim if dims[0] == dims[1] == dim and dim < batch else None
        side = 0 if dims[0] is not None else 1
        key = ("lhs", "rhs")[side]
        bound = [*attrs[f"{key}_batch"], *attrs[f"{key}_contract"]]
        if dim in bound or dims[1 - side] is not None:
            return None
        free = [d for d in range(len(self._shape(draft.ins[side]))) if d not in bound]
        before = len(attrs["lhs_batch"]) + free.index(dim)
        if side == 0:
            return before
        left = len(self._shape(draft.ins[0])) - len(attrs["lhs_batch"]) - len(attrs["lhs_contract"])
        return before + left

    def _shape(self, name: str) -> tuple[int, ...]:
        b = self._b
        return b.inputs[name].shape if name in b.inputs else b.drafts[name].type.shape


def _moved(draft: Draft, dim: int, shape: Sequence[int]) -> int | None:
    """Where an op on one operand leaves its dimension ``dim``, all of it and in order."""
    attrs: dict[str, Any] = dict(draft.attrs)
    match draft.name:
        case "broadcast_in_dim":
            return int(str(attrs["dims"][dim]))
        case "transpose":
            return [int(str(p)) for p in attrs["perm"]].index(dim)
        case "reduce":
            return None if dim in attrs["dims"] else dim - sum(d < dim for d in attrs["dims"])
        case "slice":
            start, stride = attrs["start"][dim], attrs["stride"][dim]
            return dim if not start.terms and start.const == 0 and stride == 1 else None
        case "reshape":
            before = math.prod(shape[:dim])
            ends = [
                d for d, n in enumerate(draft.type.shape)
                if n == shape[dim] and math.prod(draft.type.shape[:d]) == before
            ]  # fmt: skip
            return ends[0] if ends else None
    return None


def _number(name: str) -> int:
    return int(name[1:]) if name.startswith("%") else -1
