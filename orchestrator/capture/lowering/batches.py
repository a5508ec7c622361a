"""Batch normalisation, with the running statistics that it updates in training.

These ops work on storages: in training they write the running mean and variance, which not
all of their schemas say,
and in evaluation they save tensors without elements.
"""

from __future__ import annotations

import math
from typing import Any

from ..builder import Value
from ..recorder import Node, TensorRef
from .arguments import schema
from .table import Context, effects


def _given(node: Node) -> dict[str, Any]:
    names = [a.name for a in schema(node.op).arguments]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _along(c: Context, x: Value, like: Value) -> Value:
    """One number per channel, for every element of ``like``."""
    return c.b.broadcast(c.b.convert(x, like.dtype), like.shape, (1,))


def _rows(x: Value) -> list[int]:
    return [d for d in range(len(x.shape)) if d != 1]


def _mean(c: Context, x: Value) -> Value:
    total = c.b.reduce(x, _rows(x), "add")
    return c.b.binary("divide", total, c.b.like(math.prod(x.shape[d] for d in _rows(x)), total))


def _times(c: Context, *factors: Value) -> Value:
    product = factors[0]
    for factor in factors[1:]:
        product = c.b.binary("multiply", product, factor)
    return product


def _inverse(c: Context, variance: Value, eps: float) -> Value:
    return c.b.unary("rsqrt", c.b.binary("add", variance, c.b.like(eps, variance)))


@effects(
    "aten.native_batch_norm.default",
    "aten._native_batch_norm_legit.default",
    "aten._native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit_no_training.default",
)
def _batch_norm(driver: Any, node: Node) -> None:
    """``(x - mean) * rsqrt(variance + eps) * weight + bias``; running statistics move by ``momentum``."""
    c: Context = driver.context
    given = _given(node)
    training = given.get("training", False)
    x = driver.read(given["input"])
    outs = node.outs
    wide = c.b.convert(x, outs[1].dtype if training else x.dtype)
    running = [given.get(name) for name in ("running_mean", "running_var")]
    if training:
        mean = _mean(c, wide)
        centred = c.b.binary("subtract", wide, _along(c, mean, wide))
        variance = _mean(c, _times(c, centred, centred))
        count = math.prod(x.shape[d] for d in _rows(x))
        if running[0] is not None and running[1] is not None:
            honest = c.b.scale(variance, count)
            honest = c.b.binary("divide", honest, c.b.like(count - 1, honest))
            _moved(driver, running[0], mean, given["momentum"])
            _moved(driver, running[1], honest, given["momentum"])
    else:
        mean, variance = (c.b.convert(driver.read(r), wide.dtype) for r in running)
        centred = c.b.binary("subtract", wide, _along(c, mean, wide))
    scale = _inverse(c, variance, given["eps"])
    out = _times(c, centred, _along(c, scale, wide))
    if given.get("weight") is not None:
        out = _times(c, out, _along(c, driver.read(given["weight"]), wide))
    if given.get("bias") is not None:
        out = c.b.binary("add", out, _along(c, driver.read(given["bias"]), wide))
    driver.write(outs[0], c.b.convert(out, outs[0].dtype))
    if training:
        driver.write(outs[1], mean)
        driver.write(outs[2], scale)


def _moved(driver: Any, ref: TensorRef, new: Value, momentum: float) -> None:
    """``(1 - momentum) * old + momentum * new``, with the numbers that PyTorch computes with."""
    c: Context = driver.context
    old = driver.read(ref)
    kept = c.b.scale(old, 1 - momentum)
    driver.write(ref, c.b.binary("add", kept, c.b.scale(c.b.convert(new, old.dtype), momentum)))


@effects("aten.native_batch_norm_backward.default")
def _batch_norm_backward(driver: Any, node: Node) -> None:
    """``dx = scale * (gw - mean(gw) - n * mean(gw * n))`` in training, ``gw * scale`` in evaluation."""
    c: Context = driver.context
    given = _given(node)
    x, weight = driver.read(given["input"]), given.get("weight")
    train = given["train"]
    if train:
        mean, scale = driver.read(given["save_mean"]), driver.read(given["save_invstd"])
    else:
        mean = driver.read(given["running_mean"])
        scale = _inverse(c, driver.read(given["running_var"]), given["eps"])
    wide = c.b.convert(x, mean.dtype)
    grad = c.b.convert(driver.read(given["grad_out"]), wide.dtype)
    spread = _along(c, scale, wide)
    normal = _times(c, c.b.binary("subtract", wide, _along(c, mean, wide)), spread)
    gw = grad if weight is None else _times(c, grad, _along(c, driver.read(weight), wide))
    inner = gw
    if train:
        inner = c.b.binary("subtract", gw, _along(c, _mean(c, gw), wide))
        inner = c.b.binary(
            "subtract", inner, _times(c, normal, _along(c, _mean(c, _times(c, gw, normal)), wide))
        )
    results = (
        _times(c, spread, inner),
        c.b.reduce(_times(c, grad, normal), _rows(x), "add"),
        c.b.reduce(grad, _rows(x), "add"),
    )
    for ref, value, wanted in zip(node.outs, results, given["output_mask"], strict=True):
        if wanted and ref is not None:
            driver.write(ref, c.b.convert(value, ref.dtype))
