"""Complex numbers, as pairs of reals along a last dimension of size 2.

Views between complex and real tensors are views of one storage and need no lowering.
"""

from __future__ import annotations

from ..builder import Value
from .table import Context, lowers


def _parts(c: Context, x: Value) -> tuple[Value, Value]:
    """Real and imaginary part; the last dimension stays, with size 1."""
    last = len(x.shape) - 1
    return c.b.narrow(x, last, 0, 1), c.b.narrow(x, last, 1, 1)


def _complex(c: Context, real: Value, imaginary: Value) -> Value:
    return c.b.concatenate((real, imaginary), len(real.shape) - 1)


def conjugate(c: Context, x: Value) -> Value:
    real, imaginary = _parts(c, x)
    return _complex(c, real, c.b.unary("negate", imaginary))


@lowers("complex.aten.mul")
def _mul(c: Context, x: Value, y: Value) -> Value:
    if not (isinstance(x, Value) and isinstance(y, Value)):
        raise c.refuse("a product of a complex tensor and a number")
    (a, b), (r, s) = (_parts(c, c.value(z, c.out[0].dtype)) for z in (x, y))
    product = c.b.binary
    real = product("subtract", product("multiply", a, r), product("multiply", b, s))
    return _complex(c, real, product("add", product("multiply", a, s), product("multiply", b, r)))


@lowers("complex.aten.clone", "complex.aten._to_copy", "complex.aten.resolve_conj")
def _clone(c: Context, x: Value) -> Value:
    if x.shape != c.out[0].shape:
        raise c.refuse("a conversion between complex and real numbers")
    return c.b.reshape(c.value(x, c.out[0].dtype), c.out[0].shape)


@lowers("complex.aten.conj_physical", "complex.aten._conj_physical")
def _conj_physical(c: Context, x: Value) -> Value:
    return conjugate(c, x)


@lowers("complex.aten.add", "complex.aten.sub")
def _add(c: Context, x: Value, y: Value, *, alpha: float = 1) -> Value:
    if alpha != 1 or not (isinstance(x, Value) and isinstance(y, Value)):
        raise c.refuse("a sum of a complex tensor and a number")
    dtype = c.out[0].dtype
    name = "add" if c.op.startswith("complex.aten.add") else "subtract"
    return c.b.binary(name, c.value(x, dtype), c.value(y, dtype))


@lowers("complex.aten.complex", "complex.aten.polar")
def _made(c: Context, first: Value, second: Value) -> Value:
    """Of real and imaginary parts, or of absolute values and angles."""
    *shape, _ = c.out[0].shape
    if first.shape != tuple(shape) or second.shape != tuple(shape):
        raise c.refuse("a complex tensor of parts of different shapes")
    x, y = (c.b.reshape(c.value(z, c.out[0].dtype), (*shape, 1)) for z in (first, second))
    if c.op.startswith("complex.aten.polar"):
        cosine, sine = c.b.unary("cosine", y), c.b.unary("sine", y)
        x, y = c.b.binary("multiply", x, cosine), c.b.binary("multiply", x, sine)
    return _complex(c, x, y)
