"""Cross-entropy and mean squared error, by their defining formulas.

The ops are chosen so that a plain ``cross_entropy`` and DTensor's ``loss_parallel``, which is written in
Python, come out alike: amax, subtract, exp, sum, log, subtract, gather, negate, select, sum, divide.
"""

from __future__ import annotations

from ..builder import Value
from .infinities import with_numbers
from .ranges import non_negative
from .reductions import shifted_exponentials
from .table import Context, axis_of, lowers

_NONE, _MEAN, _SUM = 0, 1, 2


@lowers("aten._log_softmax", ignores=("half_to_float",))
def _log_softmax(c: Context, x: Value, dim: int) -> Value:
    x = c.value(x, c.out[0].dtype)
    parts = shifted_exponentials(c, x, axis_of(dim, len(x.shape)))
    return c.b.binary("subtract", parts.shifted, c.b.unary("log", parts.total))


@lowers("aten._log_softmax_backward_data")
def _log_softmax_backward(c: Context, grad: Value, out: Value, dim: int) -> Value:
    """``g - exp(out) * sum(g)``.

    When ``g`` is the gradient of a negative log-likelihood, a row of it is ``-w`` at the label and 0
    elsewhere: its sum is ``-w``, because the kernel requires every label to be a class or to be ignored (then
    ``w`` is 0). So the result is ``(onehot + exp(out)) * w`` with ``onehot`` -1 at the label, as
    ``loss_parallel`` has it. With smoothed labels, what is the same at every class is added to it: such a
    sum is taken term by term.
    """
    powers, dtype, axis = c.b.unary("exponential", out), c.out[0].dtype, axis_of(dim, len(out.shape))
    if grad.name in c.one_hot_rows and axis == 1:
        one_hot, row = c.one_hot_rows[grad.name]
        return c.value(c.b.binary("multiply", c.b.binary("add", one_hot, powers), row), dtype)
    total = _row_sums(c, grad) if axis == 1 else None
    if total is None:
        total = c.b.reduce(grad, (axis,), "add", keepdim=True)
    return c.value(c.b.binary("subtract", grad, c.b.binary("multiply", powers, total)), dtype)


def _row_sums(c: Context, x: Value) -> Value | None:
    """Sums of rows, ``[n, 1]``, of a label's gradient and of others that are alike at every class.

    ``None`` where it is anything else.
    """
    draft = c.b.draft(x)
    if x.name in c.one_hot_rows:
        return c.b.unary("negate", c.one_hot_rows[x.name][1])
    if draft is None or draft.name != "add":
        return None
    parts = [c.b.operand(x, i) for i in (0, 1)]
    found = [_row_sums(c, part) for part in parts]
    if found == [None, None]:
        return None
    a, b = (
        c.b.scale(c.b.narrow(part, 1, 0, 1), part.shape[1])
        if total is None and c.b.alike(part.name, 1)
        else total
        for part, total in zip(parts, found, strict=True)
    )
    return None if a is None or b is None else c.b.binary("add", a, b)


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
    one_hot = c.b.select(_here(c, safe, x), c.b.like(-1, x), c.b.like(0, x))
    result = c.b.binary("multiply", one_hot, row)
    c.one_hot_rows[result.name] = (one_hot, row)
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
