"""Ops that PyTorch takes apart, each called as training calls it, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .kit import ALL, FLOATS, Case, Draw, cases, gradients

aten = torch.ops.aten
REDUCTIONS = ("none", "mean", "sum")

#: Functions of one tensor, made with options by the draw.
POINTWISE: dict[str, Callable[[Draw], Callable[..., Any]]] = {
    "celu": lambda d: functools.partial(F.celu, alpha=d.one(1.0, 0.5)),
    "elu": lambda d: functools.partial(F.elu, alpha=d.one(1.0, 0.5)),
    "hardshrink": lambda d: functools.partial(F.hardshrink, lambd=d.one(0.5, 0.25)),
    "softshrink": lambda d: functools.partial(F.softshrink, lambd=d.one(0.5, 0.25)),
    "threshold": lambda d: functools.partial(F.threshold, threshold=d.one(0.25, -1), value=d.one(0.0, -2.0)),
    "hardsigmoid": lambda d: F.hardsigmoid,
    "hardswish": lambda d: F.hardswish,
    "hardtanh": lambda d: functools.partial(F.hardtanh, min_val=d.one(-1.0, 0.0), max_val=d.one(1.0, 6.0)),
    "leaky_relu": lambda d: functools.partial(F.leaky_relu, negative_slope=d.one(0.01, 0.3)),
    "log_sigmoid": lambda d: F.logsigmoid,
    "mish": lambda d: F.mish,
    "deg2rad": lambda d: torch.deg2rad,
    "rad2deg": lambda d: torch.rad2deg,
    "nan_to_num": lambda d: functools.partial(torch.nan_to_num, nan=0.0, posinf=3.0, neginf=-3.0),
    "special_entr": lambda d: lambda x: torch.special.entr(x.abs() + 0.25),
}


@cases(*(f"aten.{n}" for n in POINTWISE if n != "log_sigmoid"), "aten.log_sigmoid_forward")
def _pointwise(d: Draw, name: str) -> Case:
    function = POINTWISE[name.removesuffix("_forward")](d)
    return Case(function, (d.tensor(d.shape(), d.one(*FLOATS[:2])),))


_BACKWARD = (
    "elu",
    "hardshrink",
    "softshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_sigmoid",
    "mish",
)


@cases(*(f"aten.{n}_backward" for n in _BACKWARD))
def _pointwise_backward(d: Draw, name: str) -> Case:
    shape = d.shape()
    dtype = torch.float32 if name == "hardsigmoid_backward" else torch.float64  # the kernel's 1/6 has 24 bits
    run = gradients(POINTWISE[name.removesuffix("_backward")](d))
    return Case(run, (d.tensor(shape, dtype), d.tensor(shape, dtype)))


@cases("aten.elu_backward", "aten.leaky_relu_backward")
def _from_result(d: Draw, name: str) -> Case:
    """In place, the gradient is made from the result."""
    shape = d.shape()
    function = {"elu_backward": F.elu, "leaky_relu_backward": F.leaky_relu}[name]
    run = gradients(lambda x: function(x * 1.0, inplace=True))
    return Case(run, (d.tensor(shape), d.tensor(shape)))


@cases("aten.glu", "aten.glu_backward")
def _glu(d: Draw, name: str) -> Case:
    shape = list(d.shape(1))
    dim = d.random.randrange(len(shape))
    whole = [2 * n if i == dim else n for i, n in enumerate(shape)]
    run = lambda x: F.glu(x, dim)  # noqa: E731
    return (
        Case(run, (d.tensor(whole),))
        if name == "glu"
        else Case(gradients(run), (d.tensor(whole), d.tensor(shape)))
    )


@cases("aten._prelu_kernel", "aten._prelu_kernel_backward")
def _prelu(d: Draw, name: str) -> Case:
    shape = d.shape(2)
    weight = d.tensor((d.one(1, shape[1]),))
    if name == "_prelu_kernel":
        return Case(F.prelu, (d.tensor(shape), weight))
    return Case(gradients(F.prelu), (d.tensor(shape), weight, d.tensor(shape)))


# --- losses ----------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[..., Any]] = {
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "soft_margin_loss": F.soft_margin_loss,
}


@cases(*(f"aten.{n}{b}" for n in LOSSES for b in ("", "_backward")))
def _loss(d: Draw, name: str) -> Case:
    shape, reduction = d.shape(), d.one(*REDUCTIONS)
    options: dict[str, Any] = {"reduction": reduction}
    function = LOSSES[name.removesuffix("_backward")]
    if name.startswith("smooth"):
        options["beta"] = d.one(1.0, 0.5)
    if name.startswith("huber"):
        options["delta"] = d.one(1.0, 0.5)
    x, y = d.tensor(shape), d.tensor(shape)
    if not name.endswith("backward"):
        return Case(function, (x, y), options)
    g = d.tensor(shape if reduction == "none" else ())

    def back(x: Any, y: Any, g: Any) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x, y, **options), x, g)

    return Case(back, (x, y, g))


@cases(
    "aten.binary_cross_entropy", "aten.binary_cross_entropy_backward", "aten.binary_cross_entropy_with_logits"
)
def _bce(d: Draw, name: str) -> Case:
    shape, reduction = d.shape(), d.one(*REDUCTIONS)
    x, y = d.tensor(shape), d.tensor(shape, torch.float64, "positive")
    weight = d.tensor(d.like(shape), torch.float64, "positive") if d.chance(0.4) else None
    if name.endswith("logits"):
        positive = d.tensor(shape[-1:], torch.float64, "positive") if shape and d.chance(0.4) else None
        return Case(
            lambda x, y, w, p: F.binary_cross_entropy_with_logits(x, y, w, reduction=reduction, pos_weight=p),
            (x, y, weight, positive),
        )
    run = lambda x, y, w: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), w, reduction=reduction)  # noqa: E731
    if not name.endswith("backward"):
        return Case(run, (x, y, weight))

    def back(x: Any, y: Any, w: Any, g: Any) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(run(x, y, w), x, g)

    return Case(back, (x, y, weight, d.tensor(shape if reduction == "none" else ())))


@cases("aten.nll_loss2d_forward", "aten.nll_loss2d_backward")
def _per_pixel(d: Draw, name: str) -> Case:
    """Labels for each pixel, as in segmentation."""
    rows, classes, sizes, reduction = d.size(), d.size() + 1, d.shape(2, 2), d.one(*REDUCTIONS)
    x, labels = d.tensor((rows, classes, *sizes)), d.tensor((rows, *sizes), torch.int64, (0, classes))
    weight = d.tensor((classes,), torch.float64, "positive") if d.chance(0.4) else None
    run = lambda x, y, w: F.cross_entropy(x, y, w, reduction=reduction, ignore_index=-100)  # noqa: E731
    if name.endswith("forward"):
        return Case(run, (x, labels, weight))

    def back(x: Any, y: Any, w: Any, g: Any) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(run(x, y, w), x, g)

    return Case(back, (x, labels, weight, d.tensor((rows, *sizes) if reduction == "none" else ())))


# --- products, reductions, functions ---------------------------------------------------------------------


@cases("aten.addmv", "aten.addr", "aten.baddbmm", "aten.dot", "aten.vdot")
def _product(d: Draw, name: str) -> Case:
    a, b, c, n = (d.size() for _ in range(4))
    options = {k: d.one(0, 1, 0.5, -2) for k in ("beta", "alpha") if d.chance(0.5)}
    shapes = {
        "addmv": (d.like((a,)), (a, b), (b,)),
        "addr": (d.like((a, b)), (a,), (b,)),
        "baddbmm": (d.like((n, a, c)), (n, a, b), (n, b, c)),
        "dot": ((a,), (a,)),
        "vdot": ((a,), (a,)),
    }[name]
    return Case(
        getattr(torch, name),
        tuple(d.tensor(s) for s in shapes),
        options if name.startswith(("add", "badd")) else {},
    )


@cases("aten.logsumexp", "aten.aminmax", "aten.count_nonzero")
def _reduced(d: Draw, name: str) -> Case:
    shape = d.shape(1)
    dim, rank = d.random.randrange(len(shape)), len(shape)
    x = d.tensor(shape)
    if name == "count_nonzero":
        return Case(torch.count_nonzero, (x, d.one(None, dim, dim - rank)))
    options = {"dim": d.one(dim, dim - rank), "keepdim": d.chance(0.5)}
    if name == "logsumexp" and d.chance(0.5):
        rest = [n for i, n in enumerate(shape) if i != dim]
        return Case(gradients(lambda x: torch.logsumexp(x, dim)), (x, d.tensor(rest)))
    return Case(getattr(torch, name), (x,), options)


@cases("aten.logaddexp", "aten.logaddexp2", "aten.heaviside", "aten.dist")
def _of_two(d: Draw, name: str) -> Case:
    shape = d.shape()
    x, y = d.tensor(shape), d.tensor(shape, torch.float64, "positive")
    if name == "dist":
        return Case(torch.dist, (x, y, d.one(2, 1, 0, float("inf"), 3)))
    return Case(getattr(torch, name), (x, y))


@cases("aten.norm", "aten.renorm")
def _norm(d: Draw, name: str) -> Case:
    shape, order = d.shape(1), d.one(2, 1, 3.0, float("inf"))
    dim = d.random.randrange(len(shape))
    if name == "renorm":
        return Case(torch.renorm, (d.tensor(shape), d.one(2, 1, 3.0), dim, d.one(0.5, 2.0)))
    return Case(lambda x: aten.norm.ScalarOpt_dim(x, order, [dim], True), (d.tensor(shape),))


@cases("aten.isinf", "aten.isposinf", "aten.isneginf", "aten.isnan")
def _special(d: Draw, name: str) -> Case:
    return Case(
        getattr(torch, name),
        (d.tensor(d.shape(), d.one(*ALL) if name in ("isinf", "isnan") else torch.float64),),
    )


@cases("aten._safe_softmax")
def _safe_softmax(d: Draw) -> Case:
    """Rows without any key are zeros."""
    shape = d.shape(1)
    x, hidden = d.tensor(shape), d.tensor(shape, torch.bool)
    return Case(lambda x, m: aten._safe_softmax(x.masked_fill(m, float("-inf")), -1), (x, hidden))


# --- normalisation ---------------------------------------------------------------------------------------


@cases("aten.native_group_norm", "aten.native_group_norm_backward")
def _group_norm(d: Draw, name: str) -> Case:
    groups, each = d.one(1, 2, 3), d.one(1, 2)
    channels, shape = groups * each, d.shape(0, 2)
    x = d.tensor((d.one(1, 2), channels, *shape))
    weight, bias = (d.tensor((channels,)) if d.chance(0.7) else None for _ in range(2))
    run = lambda x, w, b: F.group_norm(x, groups, w, b, d.one(1e-5))  # noqa: E731
    if name == "native_group_norm":
        return Case(run, (x, weight, bias))
    g = d.tensor(x.view(d.bases[x.number]).shape)

    def back(x: Any, w: Any, b: Any, g: Any) -> Any:
        leaves = [t if t is None else t.detach().requires_grad_() for t in (x, w, b)]
        return torch.autograd.grad(run(*leaves), [t for t in leaves if t is not None], g)

    return Case(back, (x, weight, bias, g))


@cases("aten._fused_rms_norm_backward")
def _rms_norm(d: Draw) -> Case:
    """Without its forward, which only other devices and DTensor call."""
    shape = d.shape(1)
    normalized = shape[d.random.randrange(len(shape)) :]
    x, weight = d.tensor(shape), d.tensor(normalized) if d.chance(0.7) else None
    rstd = lambda x: torch.rsqrt(x.pow(2).mean([-i - 1 for i in range(len(normalized))], keepdim=True) + 1e-3)  # noqa: E731
    mask = [True, weight is not None]

    def run(x: Any, w: Any, g: Any) -> Any:
        return [r for r in aten._fused_rms_norm_backward(g, x, normalized, rstd(x), w, mask) if r is not None]

    def back(x: Any, w: Any, g: Any) -> Any:
        leaves = [t if t is None else t.detach().requires_grad_() for t in (x, w)]
        return torch.autograd.grad(
            F.rms_norm(leaves[0], normalized, leaves[1], 1e-3), [t for t in leaves if t is not None], g
        )

    return Case(run, (x, weight, d.tensor(shape)), expected=back)


@cases("aten._weight_norm_interface")
def _weight_norm(d: Draw) -> Case:
    shape = d.shape(2, 3)
    dim = d.one(0, len(shape) - 1)
    g = d.tensor([n if i == dim else 1 for i, n in enumerate(shape)])
    # The kernel reads its operands as if they were contiguous.
    run = lambda v, g: aten._weight_norm_interface(v.contiguous(), g.contiguous(), dim)[0]  # noqa: E731
    return Case(run, (d.tensor(shape), g))


@cases("aten._weight_norm_interface_backward")
def _weight_norm_backward(d: Draw) -> Case:
    shape = d.shape(2, 3)
    dim = d.one(0, len(shape) - 1)
    g = d.tensor([n if i == dim else 1 for i, n in enumerate(shape)])
    return Case(
        gradients(lambda v, g: torch._weight_norm(v.contiguous(), g, dim)),
        (d.tensor(shape), g, d.tensor(shape)),
    )


# --- elements in other places ----------------------------------------------------------------------------


@cases("aten.diag_embed", "aten.diagonal_backward", "aten.diagonal_scatter")
def _diagonal(d: Draw, name: str) -> Case:
    offset = d.one(0, 1, -1)
    if name == "diag_embed":
        return Case(torch.diag_embed, (d.tensor(d.shape(1, 3)), offset))
    shape = (*d.shape(0, 1), 3, d.one(2, 3, 4))
    part = torch.zeros(shape).diagonal(offset, -2, -1).shape
    if name == "diagonal_scatter":
        return Case(torch.diagonal_scatter, (d.tensor(shape), d.tensor(part), offset, -2, -1))
    return Case(gradients(lambda x: x.diagonal(offset, -2, -1)), (d.tensor(shape), d.tensor(part)))


@cases("aten.pixel_shuffle", "aten.pixel_unshuffle", "aten.channel_shuffle")
def _shuffled(d: Draw, name: str) -> Case:
    r = d.one(1, 2, 3)
    lead = d.shape(0, 2)
    if name == "pixel_shuffle":
        return Case(F.pixel_shuffle, (d.tensor((*lead, d.size() * r * r, d.size(), d.size())), r))
    if name == "pixel_unshuffle":
        return Case(F.pixel_unshuffle, (d.tensor((*lead, d.size(), d.size() * r, d.size() * r)), r))
    return Case(F.channel_shuffle, (d.tensor((d.size(), d.size() * r, d.size(), d.size())), r))


@cases("aten.rot90")
def _turned(d: Draw) -> Case:
    return Case(torch.rot90, (d.tensor(d.shape(2, 3)), d.one(0, 1, 2, 3), (0, 1)))


@cases("aten.tril_indices", "aten.triu_indices")
def _triangle(d: Draw, name: str) -> Case:
    """Pairs of different rows of a square, such as features that interact."""
    n, offset = d.one(2, 3, 5), d.one(0, -1) if name == "tril_indices" else d.one(0, 1)
    rows, columns = d.one((n, n), (n, 4))
    places = getattr(torch, name)(rows, columns, offset)
    assert places.shape[1] > 0
    return Case(lambda x: x[tuple(getattr(torch, name)(rows, columns, offset))], (d.tensor((rows, columns)),))


@cases("aten.linspace", "aten.eye")
def _made(d: Draw, name: str) -> Case:
    if name == "eye":
        sizes = d.one((3,), (2, 4), (1, 1))
        return Case(lambda a: torch.eye(*sizes, dtype=torch.float64), (d.tensor(()),))
    start, end, steps = d.one(0, -1.5), d.one(1, 2.5), d.one(1, 2, 5)
    return Case(lambda a: torch.linspace(start, end, steps, dtype=torch.float64), (d.tensor(()),))


@cases("aten.index_copy")
def _index_copy(d: Draw) -> Case:
    """Rows of which no two are written to one place."""
    shape = d.shape(1)
    n = shape[0]
    if d.chance(0.5):
        return Case(lambda x, s: x.index_copy(0, torch.arange(n), s), (d.tensor(shape), d.tensor(shape)))
    index = d.tensor((1,), torch.int64, (0, n))
    return Case(torch.index_copy, (d.tensor(shape), 0, index, d.tensor((1, *shape[1:]))))


_PADS = [f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)]


@cases(*(f"aten.{n}" for n in _PADS), *(f"aten.{n}_backward" for n in _PADS if n.startswith("reflection")))
def _padded(d: Draw, name: str) -> Case:
    n = int(name[name.index("_pad") + 4])
    sizes = [d.one(3, 4) for _ in range(n)]
    pads = [d.one(0, 1, 2) for _ in range(2 * n)]
    mode = "reflect" if name.startswith("reflection") else "replicate"
    x = d.tensor((1, 2, *sizes))
    run = lambda x: F.pad(x, pads, mode=mode)  # noqa: E731
    if not name.endswith("backward"):
        return Case(run, (x,))
    padded = [s + pads[2 * (n - 1 - i)] + pads[2 * (n - 1 - i) + 1] for i, s in enumerate(sizes)]
    return Case(gradients(run), (x, d.tensor((1, 2, *padded))))


@cases("aten._unsafe_masked_index", "aten._unsafe_masked_index_put_accumulate")
def _masked(d: Draw, name: str) -> Case:
    n = d.size() + 1
    x, mask, index = d.tensor((n, 2)), d.tensor((3,), torch.bool), d.tensor((3,), torch.int64, (0, n))
    if name == "_unsafe_masked_index":
        return Case(
            lambda x, m, i: aten._unsafe_masked_index(x, m[:, None], [i, None], 0.5), (x, mask, index)
        )
    values = d.tensor((3, 2))
    run = lambda x, m, i, v: aten._unsafe_masked_index_put_accumulate(x, m[:, None], [i, None], v)  # noqa: E731
    return Case(run, (x, mask, index, values))
