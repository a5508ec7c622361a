"""Layer normalisation and GELU, by their defining formulas. PyTorch takes an RMS norm apart by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..builder import Value
from .table import Context, axis_of, lowers

_BETA = math.sqrt(2) * 2 / math.sqrt(math.pi) * 0.5
_KAPPA = 0.044715
#: ``1 / sqrt(2 * pi)``, of the normal density.
_NORMAL = 2 / math.sqrt(math.pi) * math.sqrt(0.5) * 0.5


def _last(x: Value, normalized: Sequence[int]) -> range:
    """Dimensions that are normalised: the last ones."""
    return range(len(x.shape) - len(normalized), len(x.shape))


def _mean(c: Context, x: Value, dims: Sequence[int]) -> Value:
    total = c.b.reduce(x, dims, "add", keepdim=True)
    return c.b.binary("divide", total, c.b.like(math.prod(x.shape[d] for d in dims), total))


def _times(c: Context, *factors: Value) -> Value:
    product = factors[0]
    for factor in factors[1:]:
        product = c.b.binary("multiply", product, factor)
    return product


def _rsqrt(c: Context, square: Value, eps: float) -> Value:
    return c.b.unary("rsqrt", c.b.binary("add", square, c.b.like(eps, square)))


@lowers("aten.native_layer_norm")
def _layer_norm(
    c: Context, x: Value, normalized: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    """``(x - mean) * rstd * weight + bias``, and both statistics with the normalised dimensions kept."""
    dims = _last(x, normalized)
    wide = c.b.convert(x, c.out[1].dtype)
    mean = _mean(c, wide, dims)
    centred = c.b.binary("subtract", wide, mean)
    rstd = _rsqrt(c, _mean(c, _times(c, centred, centred), dims), eps)
    out = _times(c, centred, rstd)
    if weight is not None:
        out = _times(c, out, c.b.convert(weight, out.dtype))
    if bias is not None:
        out = c.b.binary("add", out, c.b.convert(bias, out.dtype))
    return c.b.convert(out, x.dtype), mean, rstd


@lowers("aten.native_layer_norm_backward")
def _layer_norm_backward(
    c: Context,
    grad: Value,
    x: Value,
    normalized: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """``dx = rstd * (gw - mean(gw) - n * mean(gw * n))``, ``n = (x - mean) * rstd``, ``gw = g * weight``."""
    dims = _last(x, normalized)
    g = c.b.convert(grad, mean.dtype)
    normal = _times(c, c.b.binary("subtract", c.b.convert(x, mean.dtype), mean), rstd)
    gw = g if weight is None else _times(c, g, c.b.convert(weight, g.dtype))
    inner = c.b.binary("subtract", gw, _mean(c, gw, dims))
    inner = c.b.binary("subtract", inner, _times(c, normal, _mean(c, _times(c, gw, normal), dims)))
    dx = c.b.convert(_times(c, rstd, inner), x.dtype)
    dw, db = _parameter_gradients(c, x, dims, [_times(c, g, normal), g], [weight, bias])
    return tuple(g if wanted else None for g, wanted in zip((dx, dw, db), mask, strict=True))


def _parameter_gradients(
    c: Context, x: Value, dims: range, terms: Sequence[Value], parameters: Sequence[Value | None]
) -> list[Value]:
    """Sums over the rows; the shape of a missing parameter's gradient is that of the input's row."""
    return [
        c.b.convert(c.b.reduce(term, range(dims.start), "add"), x.dtype if p is None else p.dtype)
        for term, p in zip(terms, parameters, strict=True)
    ]


def _inner(c: Context, x: Value) -> Value:
    """``tanh(beta * (x + kappa * x**3))``."""
    cube = _times(c, x, x, x)
    return c.b.unary("tanh", c.b.scale(c.b.binary("add", x, c.b.scale(cube, _KAPPA)), _BETA))


def _error(c: Context, x: Value) -> Value:
    """``erf(x / sqrt(2))``."""
    return c.b.unary("erf", c.b.scale(x, math.sqrt(0.5)))


@lowers("aten.gelu")
def _gelu(c: Context, x: Value, *, approximate: str = "none") -> Value:
    inner = _inner(c, x) if approximate == "tanh" else _error(c, x)
    return _times(c, c.b.scale(x, 0.5), c.b.binary("add", c.b.like(1, x), inner))


@lowers("aten.gelu_backward")
def _gelu_backward(c: Context, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    """With the error function: ``grad * (cdf(x) + x * pdf(x))`` of the normal distribution."""
    one = c.b.like(1, x)
    if approximate != "tanh":
        cdf = c.b.scale(c.b.binary("add", one, _error(c, x)), 0.5)
        density = c.b.scale(c.b.unary("exponential", c.b.scale(_times(c, x, x), -0.5)), _NORMAL)
        return _times(c, grad, c.b.binary("add", cdf, _times(c, x, density)))
    tanh = _inner(c, x)
    slope = c.b.scale(c.b.binary("add", one, c.b.scale(_times(c, x, x), 3 * _KAPPA)), _BETA)
    curve = _times(c, c.b.scale(x, 0.5), c.b.binary("subtract", one, _times(c, tanh, tanh)), slope)
    return _times(c, grad, c.b.binary("add", c.b.scale(c.b.binary("add", one, tanh), 0.5), curve))


@lowers("aten._weight_norm_interface_backward")
def _weight_norm_backward(
    c: Context, grad: Value, v: Value, g: Value, norms: Value, dim: int
) -> tuple[Value, Value]:
    """Of ``w = v * (g / norm)``, the norm over all dimensions but one: gradients of ``v`` and ``g``."""
    dims = [d for d in range(len(v.shape)) if d != axis_of(dim, len(v.shape))]
    along = c.b.binary("divide", c.b.reduce(_times(c, grad, v), dims, "add", keepdim=True), norms)
    unit = c.b.binary("divide", v, norms)
    across = c.b.binary("subtract", grad, _times(c, unit, along))
    return _times(c, across, c.b.binary("divide", g, norms)), along
