"""Arithmetic, comparisons and pointwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from certificates.plan.types import TensorType

from ..builder import Value, wraps
from .infinities import equals_infinity, masked_sum
from .positive import magnitude, positive
from .table import Context, Lower, Operand, lowers

#: What arithmetic of two booleans is; a difference of them PyTorch refuses.
_OF_BOOLEANS = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}
#: Ops that pass elements on.
_PASSED = ("broadcast_in_dim", "reshape", "transpose", "slice", "convert")


def _arithmetic(name: str) -> Lower:
    def lower(c: Context, x: Operand, y: Operand, *, alpha: float = 1, rounding_mode: Any = None) -> Value:
        if rounding_mode is not None:
            raise c.refuse("division that rounds")
        dtype = c.out[0].dtype
        if name in _OF_BOOLEANS and c.sort(x) == c.sort(y) == "Bool":
            if alpha != 1:
                raise c.refuse(f"a sum of booleans with alpha={alpha!r}")
            truth = c.b.binary(_OF_BOOLEANS[name], c.value(x, "i1"), c.value(y, "i1"))
            return c.b.convert(truth, dtype)
        left, right = c.value(x, dtype), c.value(y, dtype)
        if name == "multiply" and left.type.sort == "Int" and not wraps(dtype):
            return _masked(c, left, right) or _masked(c, right, left) or c.b.binary(name, left, right)
        inverse = _inverse_root(c, right) if name == "divide" else None
        if inverse is not None:
            return c.b.binary("multiply", left, inverse)
        if name == "add" and alpha == 1 and left.type.sort == "Real":
            masked = masked_sum(c.b, left, right, tuple(c.out[0].shape))
            if masked is not None:
                return masked
        return c.b.binary(name, left, right if alpha == 1 else c.b.scale(right, alpha))

    return lower


def _masked(c: Context, x: Value, mask: Value) -> Value | None:
    """Integers times truth values as integers: the integers where these hold, which is linear to solvers."""
    truth, other = _truth(c, mask), _truth(c, x)
    if truth is None:
        return None
    if other is not None:
        return c.b.convert(c.b.binary("and", other, truth), x.dtype)
    return c.b.select(truth, x, c.b.like(0, x))


def _truth(c: Context, x: Value) -> Value | None:
    """The truth values that integers are made of, moved; ``None`` if they are made of anything else."""
    draft = c.b.draft(x)
    if draft is None or draft.name not in _PASSED:
        return None
    made = c.b.operand(x)
    if draft.name == "convert":
        return made if made.type.sort == "Bool" else None
    truth, attrs = _truth(c, made), dict[str, Any](draft.attrs)
    return None if truth is None else c.b.emit(draft.name, (truth,), TensorType("i1", x.shape), **attrs)


def _inverse_root(c: Context, x: Value) -> Value | None:
    """``1 / x`` of a square root, moved or times a number: ``rsqrt``, as the same is written elsewhere.

    Roots of numbers stay what they are: laws speak of these.
    """
    draft = c.b.draft(x)
    if draft is None:
        return None
    if draft.name == "sqrt":
        return None if c.b.made_by(c.b.operand(x), "constant") else c.b.unary("rsqrt", c.b.operand(x))
    if draft.name in _PASSED:
        inverse, attrs = _inverse_root(c, c.b.operand(x)), dict[str, Any](draft.attrs)
        return None if inverse is None else c.b.emit(draft.name, (inverse,), x.type, **attrs)
    if draft.name == "multiply":
        for i in (0, 1):
            number = c.b.made_by(c.b.operand(x, i), "constant")
            value = str(number.attr("value")) if number is not None else "inf"
            inverse = None if "inf" in value or value == "0" else _inverse_root(c, c.b.operand(x, 1 - i))
            if inverse is not None:
                return c.b.scale(inverse, 1 / Fraction(value))
    return None


for _aten, _ir in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "maximum": "maximum",
    "minimum": "minimum",
    "fmax": "maximum",  # they differ where an operand is no number
    "fmin": "minimum",
}.items():
    lowers(f"aten.{_aten}")(_arithmetic(_ir))


@lowers("aten.rsub")
def _rsub(c: Context, x: Operand, y: Operand, alpha: float = 1) -> Value:
    dtype = c.out[0].dtype
    left = c.value(x, dtype)
    return c.b.binary("subtract", c.value(y, dtype), left if alpha == 1 else c.b.scale(left, alpha))


def _unary(name: str) -> Lower:
    return lambda c, x: c.b.unary(name, c.value(x, c.out[0].dtype))


for _aten, _ir in {
    "neg": "negate",
    "exp": "exponential",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sine",
    "cos": "cosine",
    "tanh": "tanh",
    "sigmoid": "logistic",
    "erf": "erf",
}.items():
    lowers(f"aten.{_aten}")(_unary(_ir))


@lowers("aten.abs")
def _abs(c: Context, x: Value) -> Value:
    """Of integers, which may be positions in a table, the larger one of both signs: linear to solvers."""
    x = c.value(x, c.out[0].dtype)
    if x.type.sort != "Int":
        return magnitude(c.b, x)
    return c.b.binary("maximum", x, c.b.unary("negate", x))


@lowers("aten.log1p")
def _log1p(c: Context, x: Value) -> Value:
    """``log(x + 1)``; what PyTorch does about cancellation is rounding, which is outside the claim."""
    x = c.value(x, c.out[0].dtype)
    return c.b.unary("log", c.b.binary("add", x, c.b.like(1, x)))


@lowers("aten.exp2")
def _exp2(c: Context, x: Value) -> Value:
    x = c.value(x, c.out[0].dtype)
    return c.b.binary("power", c.b.like(2, x), x)


def _logarithm(base: int) -> Lower:
    def lower(c: Context, x: Value) -> Value:
        x = c.value(x, c.out[0].dtype)
        return c.b.binary("divide", c.b.unary("log", x), c.b.unary("log", c.b.like(base, x)))

    return lower


for _base in (2, 10):
    lowers(f"aten.log{_base}")(_logarithm(_base))


@lowers("aten.tan")
def _tan(c: Context, x: Value) -> Value:
    x = c.value(x, c.out[0].dtype)
    return c.b.binary("divide", c.b.unary("sine", x), c.b.unary("cosine", x))


@lowers("aten.sinh", "aten.cosh")
def _hyperbolic(c: Context, x: Value) -> Value:
    """Half the difference, or sum, of ``exp(x)`` and ``exp(-x)``."""
    x = c.value(x, c.out[0].dtype)
    up, down = c.b.unary("exponential", x), c.b.unary("exponential", c.b.unary("negate", x))
    return c.b.scale(c.b.binary("subtract" if ".sinh" in c.op else "add", up, down), 0.5)


@lowers("aten.sign", "aten.sgn", "prims.sign")
def _sign(c: Context, x: Value) -> Value:
    if x.dtype == "i1":
        return x
    zero = c.b.like(0, x)
    negative = c.b.select(c.b.compare("LT", x, zero), c.b.like(-1, x), zero)
    return c.b.select(c.b.compare("GT", x, zero), c.b.like(1, x), negative)


@lowers("aten.logical_xor", "aten.bitwise_xor", "aten.__xor__")
def _xor(c: Context, x: Operand, y: Operand) -> Value:
    if "logical" not in c.op and not c.sort(x) == c.sort(y) == "Bool":
        raise c.refuse("bitwise operation on integers")
    return c.b.compare("NE", c.value(x, "i1"), c.value(y, "i1"))


@lowers("aten.expm1")
def _expm1(c: Context, x: Value) -> Value:
    e = c.b.unary("exponential", c.value(x, c.out[0].dtype))
    return c.b.binary("subtract", e, c.b.like(1, e))


@lowers("aten.softplus")
def _softplus(c: Context, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """``log(1 + exp(beta * x)) / beta``, and ``x`` itself where ``beta * x > threshold``."""
    scaled = c.b.scale(x, beta)
    e = c.b.unary("exponential", scaled)
    curve = c.b.unary("log", c.b.binary("add", e, c.b.like(1, e)))
    return c.b.select(_linear(c, scaled, threshold), x, c.b.binary("divide", curve, c.b.like(beta, x)))


@lowers("aten.softplus_backward")
def _softplus_backward(c: Context, grad: Value, x: Value, beta: float, threshold: float) -> Value:
    """``grad * z / (z + 1)`` with ``z = exp(beta * x)``, and ``grad`` where the function is linear."""
    scaled = c.b.scale(x, beta)
    z = c.b.unary("exponential", scaled)
    share = c.b.binary("divide", z, c.b.binary("add", z, c.b.like(1, z)))
    return c.b.select(_linear(c, scaled, threshold), grad, c.b.binary("multiply", grad, share))


def _linear(c: Context, scaled: Value, threshold: float) -> Value:
    return c.b.compare("GT", scaled, c.b.like(threshold, scaled))


def _compare(direction: str) -> Lower:
    def lower(c: Context, x: Operand, y: Operand) -> Value:
        if isinstance(x, Value) and isinstance(y, float) and math.isinf(y) and direction in ("EQ", "NE"):
            found = equals_infinity(c.b, x, y)
            return found if direction == "EQ" else c.b.unary("not", found)
        left, right = c.pair(x, y)
        if left.dtype == "i1" and direction not in ("EQ", "NE"):
            left, right = c.b.convert(left, "i64"), c.b.convert(right, "i64")
        return c.b.compare(direction, left, right)

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowers(f"aten.{_name}", f"prims.{_name}")(_compare(_name.upper()))


def _boolean(name: str) -> Lower:
    def lower(c: Context, x: Operand, y: Operand) -> Value:
        if "logical" not in c.op and not c.sort(x) == c.sort(y) == "Bool":
            raise c.refuse("bitwise operation on integers")
        return c.b.binary(name, c.value(x, "i1"), c.value(y, "i1"))

    return lower


for _ir, _names in {
    "and": ("logical_and", "bitwise_and", "__and__"),
    "or": ("logical_or", "bitwise_or", "__or__"),
}.items():
    lowers(*(f"aten.{n}" for n in _names))(_boolean(_ir))


@lowers("aten.logical_not", "aten.bitwise_not")
def _not(c: Context, x: Value) -> Value:
    if "logical" not in c.op and x.dtype != "i1":
        raise c.refuse("bitwise operation on integers")
    return c.b.unary("not", c.value(x, "i1"))


@lowers("aten.reciprocal")
def _reciprocal(c: Context, x: Value) -> Value:
    x = c.value(x, c.out[0].dtype)
    return _inverse_root(c, x) or c.b.binary("divide", c.b.like(1, x), x)


@lowers("aten.square")
def _square(c: Context, x: Value) -> Value:
    return c.b.binary("multiply", x, x)


@lowers("aten.pow")
def _pow(c: Context, x: Operand, y: Operand) -> Value:
    dtype = c.out[0].dtype
    if isinstance(y, Value) or not isinstance(x, Value):
        return c.b.binary("power", c.value(x, dtype), c.value(y, dtype))
    if not math.isfinite(y):
        raise c.refuse(f"power {y!r}")
    x = c.value(x, dtype)
    special: dict[float, Callable[[], Value]] = {
        0.5: lambda: c.b.unary("sqrt", x),
        -0.5: lambda: c.b.unary("rsqrt", x),
        -1: lambda: _inverse_root(c, x) or c.b.binary("divide", c.b.like(1, x), x),
        0: lambda: c.b.like(1, x),
    }
    if y in special:
        return special[float(y)]()
    if float(y) != int(y):
        return c.b.binary("power", x, c.b.like(y, x))
    result, count = x, abs(int(y))
    if count > 8:
        raise c.refuse(f"power {y!r}")
    for _ in range(count - 1):
        result = c.b.binary("multiply", result, x)
    return result if count == y else c.b.binary("divide", c.b.like(1, x), result)


@lowers("aten.hypot")
def _hypot(c: Context, x: Value, y: Value) -> Value:
    dtype = c.out[0].dtype
    x, y = c.value(x, dtype), c.value(y, dtype)
    return c.b.unary("sqrt", c.b.binary("add", c.b.binary("multiply", x, x), c.b.binary("multiply", y, y)))


@lowers("aten.erfc")
def _erfc(c: Context, x: Value) -> Value:
    x = c.value(x, c.out[0].dtype)
    return c.b.binary("subtract", c.b.like(1, x), c.b.unary("erf", x))


@lowers("aten.xlogy")
def _xlogy(c: Context, x: Operand, y: Operand) -> Value:
    """``x * log(y)``, and 0 where ``x`` is; a softmax is nowhere."""
    dtype = c.out[0].dtype
    left, right = c.value(x, dtype), c.value(y, dtype)
    product = c.b.binary("multiply", left, c.b.unary("log", right))
    if positive(c.b, left):
        return product
    return c.b.select(c.b.compare("EQ", left, c.b.like(0, left)), c.b.like(0, product), product)


@lowers("aten.silu")
def _silu(c: Context, x: Value) -> Value:
    return c.b.binary("multiply", x, c.b.unary("logistic", x))


@lowers("aten.silu_backward")
def _silu_backward(c: Context, grad: Value, x: Value) -> Value:
    """``g * s * (1 + x * (1 - s))`` with ``s = logistic(x)``."""
    s, one = c.b.unary("logistic", x), c.b.like(1, x)
    inner = c.b.binary("add", one, c.b.binary("multiply", x, c.b.binary("subtract", one, s)))
    return c.b.binary("multiply", c.b.binary("multiply", grad, s), inner)


@lowers("aten.sigmoid_backward")
def _sigmoid_backward(c: Context, grad: Value, out: Value) -> Value:
    slope = c.b.binary("multiply", out, c.b.binary("subtract", c.b.like(1, out), out))
    return c.b.binary("multiply", grad, slope)


@lowers("aten.log_sigmoid_forward")
def _log_sigmoid(c: Context, x: Value) -> tuple[Value, Value]:
    """As it is defined: cases that keep a kernel from overflowing would hide its laws. The second result is
    what the CPU's kernel keeps for the gradient."""
    buffer = c.b.unary("exponential", c.b.unary("negate", c.b.unary("abs", x)))
    return c.b.unary("log", c.b.unary("logistic", x)), buffer


@lowers("aten.log_sigmoid_backward", ignores=("buffer",))
def _log_sigmoid_backward(c: Context, grad: Value, x: Value) -> Value:
    return c.b.binary("multiply", grad, c.b.unary("logistic", c.b.unary("negate", x)))


@lowers("aten.logaddexp")
def _logaddexp(c: Context, x: Operand, y: Operand) -> Value:
    dtype = c.out[0].dtype
    terms = [c.b.unary("exponential", c.value(v, dtype)) for v in (x, y)]
    return c.b.unary("log", c.b.binary("add", *terms))


@lowers("aten.tanh_backward")
def _tanh_backward(c: Context, grad: Value, out: Value) -> Value:
    slope = c.b.binary("subtract", c.b.like(1, out), c.b.binary("multiply", out, out))
    return c.b.binary("multiply", grad, slope)


@lowers("aten.relu")
def _relu(c: Context, x: Value) -> Value:
    return c.b.binary("maximum", x, c.b.like(0, x))


@lowers("aten.threshold_backward")
def _threshold_backward(c: Context, grad: Value, x: Value, threshold: float) -> Value:
    return c.b.select(c.b.compare("GT", x, c.b.like(threshold, x)), grad, c.b.like(0, grad))


@lowers("aten.hardshrink_backward", "aten.softshrink_backward")
def _shrink_backward(c: Context, grad: Value, x: Value, edge: float) -> Value:
    inside = c.b.compare("LE", c.b.unary("abs", x), c.b.like(edge, x))
    return c.b.select(inside, c.b.like(0, grad), grad)


@lowers("aten.clamp", "aten.clamp_min", "aten.clamp_max")
def _clamp(c: Context, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    if c.op.startswith("aten.clamp_max"):
        low, high = None, low
    x = c.value(x, c.out[0].dtype)
    if low is not None:
        x = c.b.binary("maximum", x, c.value(low, x.dtype))
    return x if high is None else c.b.binary("minimum", x, c.value(high, x.dtype))


@lowers("aten.where")
def _where(c: Context, p: Value, x: Operand, y: Operand) -> Value:
    dtype = c.out[0].dtype
    return c.b.select(c.value(p, "i1"), c.value(x, dtype), c.value(y, dtype))


@lowers("aten.masked_fill")
def _masked_fill(c: Context, x: Value, mask: Value, value: Operand) -> Value:
    dtype = c.out[0].dtype
    return c.b.select(mask, c.value(value, dtype), c.value(x, dtype))


def _triangle(lower: bool) -> Lower:
    def triangle(c: Context, x: Value, diagonal: int = 0) -> Value:
        """Rows and columns are the last two dimensions; ``column <= row + diagonal`` is the lower one."""
        row, column = (c.b.iota(len(x.shape) + d, x.shape) for d in (-2, -1))
        row = c.b.binary("add", row, c.b.like(diagonal, row)) if diagonal else row
        return c.b.select(c.b.compare("GE" if lower else "LE", row, column), x, c.b.like(0, x))

    return triangle


lowers("aten.tril")(_triangle(True))
lowers("aten.triu")(_triangle(False))


@lowers(
    *("aten._to_copy", "aten.to", "aten.clone", "aten.lift_fresh", "aten.alias", "aten.contiguous"),
    *("aten.detach", "aten._unsafe_view", "aten.view", "aten.reshape"),
    ignores=("size", "shape", "other"),
)
def _copy(c: Context, x: Value) -> Value:
    """Fresh memory with the same numbers; views never come here unless they had to copy."""
    return c.b.reshape(c.value(x, c.out[0].dtype), c.out[0].shape)


@lowers("aten.copy", "prims.copy_to", ignores=("self", "a"))
def _copy_from(c: Context, source: Value) -> Value:
    return c.b.expand(c.value(source, c.out[0].dtype), c.out[0].shape)
