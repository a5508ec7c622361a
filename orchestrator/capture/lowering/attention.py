"""Fused attention kernels, forward and backward, by the softmax formula.

``p = softmax(mask(scale * q k^T))``, ``out = p v``, and the kernel's second output is the logarithm of
the softmax's denominator. The backward uses the same ``p``: a kernel recomputes it from ``q``, ``k`` and the
saved logarithm, which gives ``p`` only if these belong together, so that is checked.
"""

from __future__ import annotations

import math

from ..builder import Value
from .reductions import shifted_exponentials
from .table import Attention, Context, lowers

_HEADS = ((0, 1), (0, 1))


def _shared(c: Context, x: Value, heads: int) -> Value:
    """Keys or values of fewer heads: each serves a group of consecutive query heads."""
    if x.shape[1] == heads:
        return x
    if heads % x.shape[1]:
        raise c.refuse(f"{heads} query heads over {x.shape[1]} key heads")
    wide = c.b.insert(x, 2, heads // x.shape[1])
    return c.b.reshape(wide, (x.shape[0], heads, *x.shape[2:]))


def _unshared(c: Context, grad: Value, heads: int) -> Value:
    """The gradient of :func:`_shared`: a sum over the group."""
    if grad.shape[1] == heads:
        return grad
    groups = c.b.reshape(grad, (grad.shape[0], heads, grad.shape[1] // heads, *grad.shape[2:]))
    return c.b.reduce(groups, (2,), "add")


def _weights(
    c: Context, q: Value, k: Value, causal: bool, mask: Value | None, scale: float | None
) -> tuple[Value, Value]:
    """Weights [batch, heads, queries, keys], and the log of their denominator [batch, heads, queries]."""
    scores = c.b.dot(q, _shared(c, k, q.shape[1]), batch=_HEADS, contract=((3,), (3,)))
    scores = c.b.scale(scores, 1 / math.sqrt(q.shape[3]) if scale is None else scale)
    if causal and scale is not None and scale <= 0:
        raise c.refuse("a causal mask under a scale that is not positive: the kernel masks before it scales")
    if causal:
        square = scores.shape[2:]
        seen = c.b.compare("GE", c.b.iota(0, square), c.b.iota(1, square))
        scores = c.b.select(c.b.broadcast(seen, scores.shape, (2, 3)), scores, c.b.like(-math.inf, scores))
    if mask is not None and mask.dtype == "i1":
        scores = c.b.select(mask, scores, c.b.like(-math.inf, scores))
    elif mask is not None:
        scores = c.b.binary("add", scores, c.b.convert(mask, scores.dtype))
    parts = shifted_exponentials(c, scores, 3)
    log_total = c.b.binary("add", parts.top, c.b.unary("log", parts.total))
    return c.b.binary("divide", parts.powers, parts.total), c.b.reshape(log_total, scores.shape[:3])


def _operands(
    q: Value, k: Value, v: Value, causal: bool, mask: Value | None, scale: float | None
) -> tuple[str, ...]:
    return (q.name, k.name, v.name, str(causal), "" if mask is None else mask.name, str(scale))


def _undropped(c: Context, dropout: float) -> None:
    if dropout:
        raise c.refuse("dropout in attention")


def _forward(
    c: Context,
    q: Value,
    k: Value,
    v: Value,
    dropout: float,
    causal: bool,
    mask: Value | None,
    scale: float | None,
) -> tuple[Value, Value]:
    _undropped(c, dropout)
    wide = c.out[1].dtype
    p, log_total = _weights(c, c.b.convert(q, wide), c.b.convert(k, wide), causal, mask, scale)
    out = c.b.dot(p, _shared(c, c.b.convert(v, wide), q.shape[1]), batch=_HEADS, contract=((3,), (2,)))
    out = c.b.convert(out, c.out[0].dtype)
    c.attention[out.name, log_total.name] = Attention(_operands(q, k, v, causal, mask, scale), p)
    return out, log_total


def _backward(
    c: Context,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    saved: tuple[Value, Value],
    causal: bool,
    mask: Value | None,
    scale: float | None,
) -> tuple[Value, ...]:
    known = c.attention.get((saved[0].name, saved[1].name))
    if known is None or known.operands != _operands(q, k, v, causal, mask, scale):
        raise c.refuse("the saved output and log-sum are not those of these queries, keys and values")
    p, wide, dtypes = known.weights, known.weights.dtype, (q.dtype, k.dtype, v.dtype)
    grad, q, k, v = (c.b.convert(x, wide) for x in (grad, q, k, v))
    heads = k.shape[1]
    k, v = _shared(c, k, q.shape[1]), _shared(c, v, q.shape[1])
    dv = c.b.dot(p, grad, batch=_HEADS, contract=((2,), (2,)))
    dp = c.b.dot(grad, v, batch=_HEADS, contract=((3,), (3,)))
    row = c.b.reduce(c.b.binary("multiply", p, dp), (3,), "add", keepdim=True)
    ds = c.b.binary("multiply", p, c.b.binary("subtract", dp, row))
    ds = c.b.scale(ds, 1 / math.sqrt(q.shape[3]) if scale is None else scale)
    dq = c.b.dot(ds, k, batch=_HEADS, contract=((3,), (2,)))
    dk = c.b.dot(ds, q, batch=_HEADS, contract=((2,), (2,)))
    results = (dq, _unshared(c, dk, heads), _unshared(c, dv, heads))
    return tuple(c.b.convert(x, dtype) for x, dtype in zip(results, dtypes, strict=True))


@lowers("aten._scaled_dot_product_flash_attention_for_cpu")
def _cpu(
    c: Context,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    return _forward(c, q, k, v, dropout_p, is_causal, attn_mask, scale)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def _cpu_backward(
    c: Context,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, ...]:
    _undropped(c, dropout_p)
    return _backward(c, grad, q, k, v, (out, logsumexp), is_causal, attn_mask, scale)
