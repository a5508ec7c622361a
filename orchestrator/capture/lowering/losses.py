"""Cross-entropy and mean squared error, by their defining formulas.

The ops are chosen so that a plain ``cross_entropy`` and DTensor's ``loss_parallel``, which is written in
Python, come out alike: amax, subtract, exp, sum, log, subtract, gather, negate, select, sum, divide.
"""

from __future__ import annotations

from ..builder import Value
from .infinities import with_numbers
from .ranges import non_negative
from .reductions import row_sums, shifted_exponentials
from .table import Context, OneHotRows, axis_of, lowers

_NONE, _MEAN, _SUM = 0, 1, 2


@lowers("aten._log_softmax", ignores=("half_to_float",))
def _log_softmax(c: Context, x: Value, dim: int) -> Value:
    x = c.value(x, c.out[0].dtype)
    parts = shifted_exponentials(c, x, axis_of(dim, len(x.shape)))
    return c.b.binary("subtract", parts.shifted, c.b.unary("log", parts.total))


@lowers("aten._log_softmax_backward_data")
def _log_softmax_backward(c: Context, grad: Value, out: Value, dim: int) -> Value:
    """``g - exp(out) * sum(g)``.

    When ``g`` is the gradient of a mean of negative log-likelihoods, a row of it is ``-w`` at the label and 0
    elsewhere: its sum is ``-w``, because the kernel requires every label to be a class or to be ignored (then
    ``w`` is 0). So the result is ``(onehot + exp(out)) * w`` with ``onehot`` -1 at the label, as
    ``loss_parallel`` has it. With smoothed labels, what is the same at every class is added to it: such a
    sum is taken term by term. Where each row has a gradient of its own the sum of rows is known as well, and
    the result is a sum, as whoever leaves it to autograd has it (docs/adr/0202).
    """
    powers, dtype, axis = c.b.unary("exponential", out), c.out[0].dtype, axis_of(dim, len(out.shape))
    rows = c.one_hot_rows.get(grad.name)
    if rows is not None and rows.axis == axis and rows.factors is not None:
        one_hot, row = rows.factors
        return c.value(c.b.binary("multiply", c.b.binary("add", one_hot, powers), row), dtype)
    total = row_sums(c, grad, axis)
    if total is None:
        total = c.b.reduce(grad, (axis,), "add", keepdim=True)
    return c.value(c.b.binary("subtract", grad, c.b.binary("multiply", powers, total)), dtype)


def _labels(c: Context, x: Value, target: Value, ignore_index: int) -> tuple[Value, Value, Value]:
    """Logits with a dimension of rows, which labels count, and the labels with ignored ones made class 0."""
    rows = x.shape[0] if len(x.shape) > 1 else 1
    x, target = c.b.reshape(x, (rows, x.shape[-1])), c.b.reshape(target, (rows,))
    counted = c.b.compare("NE", target, c.b.like(ignore_index, target))
    return x, counted, c.b.select(counted, target, c.b.like(0, target))


def _weighted(c: Context, weight: Value | None, counted: Value, safe: Value, dtype: str) -> Value | None:
    """The weight of each row's class, 0 where the label does not count; ``None`` without weights."""
    if weight is None:
        return None
    found = c.b.gather(c.b.convert(weight, dtype), safe, axis=0, batch_dims=0)
    return c.b.select(counted, found, c.b.like(0, found))


def _here(c: Context, labels: Value, x: Value) -> Value:
    """Where in a row of ``x`` its label stands."""
    return c.b.compare("EQ", c.b.iota(1, x.shape, labels.dtype), c.b.insert(labels, 1, x.shape[1]))


@lowers("aten.nll_loss_forward")
def _nll_forward(
    c: Context, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """Loss and total weight, without weights the honest count of labels other than ``ignore_index``."""
    return nll_loss(c, x, target, weight, reduction, ignore_index)


def nll_loss(
    c: Context, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int,
    present: Value | None = None,
) -> tuple[Value, Value]:  # fmt: skip
    """The same of the rows that are ``present``, where not all are."""
    x, counted, safe = _labels(c, x, target, ignore_index)
    counted = counted if present is None else c.b.binary("and", present, counted)
    x = with_numbers(c.b, x, c.b.reshape(safe, (*safe.shape, 1)))
    if non_negative(c.b, safe):
        picked = c.b.gather(x, c.b.reshape(safe, (*safe.shape, 1)), axis=1, batch_dims=1)
    else:  # declared in [-100, n): at the numbers between, which no label is, a look-up has no value
        picked = c.b.reduce(c.b.select(_here(c, safe, x), x, c.b.like(0, x)), (1,), "add")
    losses = c.b.unary("negate", c.b.reshape(picked, safe.shape))
    losses = c.b.select(counted, losses, c.b.like(0, losses))
    factor = _weighted(c, weight, counted, safe, x.dtype)
    if factor is None:
        count = c.b.convert(c.b.reduce(c.b.convert(counted, "i64"), (0,), "add"), x.dtype)
    else:
        losses, count = c.b.binary("multiply", losses, factor), c.b.reduce(factor, (0,), "add")
    if reduction == _NONE:
        return c.b.reshape(losses, c.out[0].shape), c.b.constant(0, c.out[1])
    total = c.b.reduce(losses, (0,), "add")
    return (total if reduction == _SUM else c.b.binary("divide", total, count)), count


@lowers("aten.nll_loss_backward")
def _nll_backward(
    c: Context,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total: Value,
) -> Value:
    shape = x.shape
    x, counted, safe = _labels(c, x, target, ignore_index)
    if reduction == _MEAN:
        grad = c.b.binary("divide", grad, total)
    row = c.b.expand(grad, counted.shape)
    row = c.b.select(counted, row, c.b.like(0, row))
    factor = _weighted(c, weight, counted, safe, x.dtype)
    row = row if factor is None else c.b.binary("multiply", row, factor)
    row = c.b.reshape(row, (*counted.shape, 1))
    here, less = _here(c, safe, x), c.b.unary("negate", row)
    if reduction == _NONE:  # as the gradient of a look-up is
        result = c.b.binary("multiply", c.b.broadcast(less, x.shape, (0, 1)), c.b.convert(here, x.dtype))
        c.one_hot_rows[result.name] = OneHotRows(1, less)
        return c.b.reshape(result, shape)
    one_hot = c.b.select(here, c.b.like(-1, x), c.b.like(0, x))
    result = c.b.binary("multiply", one_hot, row)
    c.one_hot_rows[result.name] = OneHotRows(1, less, (one_hot, row))
    return c.b.reshape(result, shape)


@lowers("aten.mse_loss")
def _mse(c: Context, x: Value, y: Value, reduction: int = _MEAN) -> Value:
    dtype = c.out[0].dtype
    difference = c.b.binary("subtract", c.value(x, dtype), c.value(y, dtype))
    squares = c.b.binary("multiply", difference, difference)
    if reduction == _NONE:
        return squares
    total = c.b.reduce(squares, range(len(squares.shape)), "add")
    return total if reduction == _SUM else c.b.binary("divide", total, c.b.like(squares.type.size, total))


@lowers("aten.mse_loss_backward")
def _mse_backward(c: Context, grad: Value, x: Value, y: Value, reduction: int) -> Value:
    dtype = c.out[0].dtype
    difference = c.b.scale(c.b.binary("subtract", c.value(x, dtype), c.value(y, dtype)), 2)
    slope = c.b.binary("multiply", difference, c.b.expand(c.value(grad, dtype), difference.shape))
    return c.b.binary("divide", slope, c.b.like(slope.type.size, slope)) if reduction == _MEAN else slope
