"""Losses, normalisation and attention, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .kit import FLOATS, Case, Draw, Slot, cases, gradients

aten = torch.ops.aten
REDUCTIONS = ("none", "mean", "sum")


def _labels(d: Draw, rows: int, classes: int, ignored: int) -> Slot:
    slot = d.tensor((rows,), torch.int64, (0, classes))
    base = d.bases[slot.number]
    base[torch.rand(base.shape, generator=d.generator) < 0.3] = ignored
    if (slot.view(base) == ignored).all():  # the mean of nothing
        base.fill_(0 if ignored else classes - 1)
    return slot


@cases("aten.nll_loss_forward", "aten.nll_loss_backward", "aten._log_softmax_backward_data")
def _cross_entropy(d: Draw, name: str) -> Case:
    rows, classes, ignored = d.size(), d.size() + 1, d.one(-100, -1, 0, 2)
    logits, labels = d.tensor((rows, classes)), _labels(d, rows, classes, ignored)
    reduction = d.one(*REDUCTIONS)
    options: dict[str, Any] = {"reduction": reduction, "ignore_index": ignored}
    if d.chance(0.2):
        options["weight"] = d.tensor((classes,), torch.float64, "positive")
    if d.chance(0.2):
        options["label_smoothing"] = 0.1
    function = F.cross_entropy
    if name == "nll_loss_forward" and "weight" not in options and d.chance(0.3):
        number = REDUCTIONS.index(reduction)
        return Case(lambda x, y: aten.nll_loss_forward(x, y, None, number, ignored), (logits, labels))
    g = d.tensor((rows,) if reduction == "none" else ())
    run = gradients(lambda x, y, **o: function(x, y, **o))
    if name == "nll_loss_forward":
        return Case(function, (logits, labels), options)
    return Case(run, (logits, labels, g), options)


@cases("aten.nll_loss_forward")
def _one_row(d: Draw) -> Case:
    """Logits of one row without a dimension of rows."""
    classes = d.size() + 1
    label = d.tensor((1,), torch.int64, (0, classes))
    if d.chance(0.5):
        x, reduction = d.tensor((classes,)), d.one(*REDUCTIONS)
        run = lambda x, y: F.nll_loss(x, y[0], reduction=reduction)  # noqa: E731
        return Case(
            d.one(run, lambda x, y: torch.autograd.grad(run(x := x.detach().requires_grad_(), y), x)),
            (x, label),
        )
    return Case(F.nll_loss, (d.tensor((1, classes)), label))


@cases("aten.mse_loss", "aten.mse_loss_backward")
def _mse(d: Draw, name: str) -> Case:
    shape, reduction = d.shape(), d.one(*REDUCTIONS)
    x, y = d.tensor(shape), d.tensor(shape)
    options = {"reduction": reduction}
    if name == "mse_loss":
        return Case(F.mse_loss, (x, y), options)
    return Case(gradients(F.mse_loss), (x, y, d.tensor(shape if reduction == "none" else ())), options)


@cases("aten.native_layer_norm")
def _norm(d: Draw) -> Case:
    shape, dtype = d.shape(1), d.one(*FLOATS)
    normalized = shape[d.random.randrange(len(shape)) :]
    weight, bias = (d.tensor(normalized, dtype) if d.chance(0.7) else None for _ in range(2))
    return Case(aten.native_layer_norm, (d.tensor(shape, dtype), normalized, weight, bias, d.one(1e-5, 0.1)))


@cases("aten.native_layer_norm_backward")
def _norm_backward(d: Draw) -> Case:
    """Some operands are frozen, some are missing."""
    shape = d.shape(1)
    normalized = shape[d.random.randrange(len(shape)) :]
    present = [True, d.chance(0.7), d.chance(0.7)]
    asked = [p and d.chance(0.6) for p in present]
    if not any(asked):
        asked[0] = True
    eps = d.one(1e-5, 0.1)
    given = [
        d.tensor(s) if p else None for s, p in zip((shape, normalized, normalized), present, strict=True)
    ]

    def run(x: Any, w: Any, b: Any, g: Any) -> Any:
        leaves = [
            t if t is None else t.detach().requires_grad_(a) for t, a in zip((x, w, b), asked, strict=True)
        ]
        out = F.layer_norm(leaves[0], normalized, leaves[1], leaves[2], eps)
        return torch.autograd.grad(out, [t for t, a in zip(leaves, asked, strict=True) if a], g)

    return Case(run, (*given, d.tensor(shape)))


def _attention(d: Draw) -> tuple[list[Slot], dict[str, Any]]:
    batch, heads, width = d.one(1, 2), d.one(1, 2, 4), d.one(1, 2, 3)
    queries, keys = d.one(1, 3, 4), d.one(1, 3, 5)
    shared = d.one(1, 1, 2)
    key_heads = heads // shared if heads % shared == 0 else heads
    options: dict[str, Any] = {"is_causal": d.chance(0.4)}
    if d.chance(0.4):
        options["scale"] = d.one(0.5, 1.0, -2.0, 2)
    shapes = (
        (batch, heads, queries, width),
        (batch, key_heads, keys, width),
        (batch, key_heads, keys, width),
    )
    return [d.tensor(s) for s in shapes], options


_CPU = aten._scaled_dot_product_flash_attention_for_cpu


def _masked(d: Draw, tensors: list[Slot], options: dict[str, Any]) -> dict[str, Any]:
    """An additive mask that leaves the first key visible."""
    if options["is_causal"] or d.chance(0.5):
        return options
    q, k, _ = (t.view(d.bases[t.number]) for t in tensors)
    shape = (d.one(1, q.shape[0]), d.one(1, q.shape[1]), q.shape[2], k.shape[2])
    mask = d.tensor(shape[d.one(0, 2) :], plain=True)
    base = d.bases[mask.number]
    base[..., 1:] = base[..., 1:].masked_fill(
        torch.rand(base[..., 1:].shape, generator=d.generator) < 0.3, -math.inf
    )
    return {**options, "attn_mask": mask}


def _refused(options: dict[str, Any]) -> str | None:
    negative = options["is_causal"] and options.get("scale", 1) <= 0
    return "a scale that is not positive" if negative else None


def _fused(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """The fused kernels want rows of stride 1."""
    q, k, v = (t.contiguous() for t in (q, k, v))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)


@cases("aten._scaled_dot_product_flash_attention_for_cpu")
def _attend(d: Draw) -> Case:
    tensors, options = _attention(d)
    options = _masked(d, tensors, options)
    dropout = 0.0 if d.chance(0.85) else 0.5
    refused = "dropout" if dropout else _refused(options)

    def run(q: Any, k: Any, v: Any, **options: Any) -> Any:
        """The kernel itself does not look at the stride of the last dimension."""
        return _CPU(*(t.contiguous() for t in (q, k, v)), dropout, **options)[0]

    return Case(_fused if d.chance(0.5) and not dropout else run, tuple(tensors), options, refused)


@cases("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def _attend_backward(d: Draw) -> Case:
    tensors, options = _attention(d)
    options = _masked(d, tensors, options)
    g = d.tensor(tensors[0].view(d.bases[tensors[0].number]).shape)

    def run(q: Any, k: Any, v: Any, g: Any, **options: Any) -> Any:
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        return torch.autograd.grad(_fused(*leaves, **options), leaves, g)

    return Case(run, (*tensors, g), options, _refused(options))
