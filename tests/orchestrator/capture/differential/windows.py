"""Convolutions, pooling, folding, batch normalisation and elements in other places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .kit import ALL, FLOATS, NUMBERS, Case, Draw, Slot, cases, gradients

aten = torch.ops.aten


def _made(d: Draw, function: Callable[..., Any], *args: Any, backward: bool) -> Case:
    """A case of ``function``, or of its gradient weighted by a further tensor of the result's shape."""
    if not backward:
        return Case(function, args)
    given = [a.view(d.bases[a.number]) if isinstance(a, Slot) else a for a in args]
    try:
        result = function(*given)
    except (RuntimeError, IndexError, ValueError):
        return Case(function, args)
    first = result[0] if isinstance(result, tuple) else result

    def run(*operands: Any) -> Any:
        found = function(*operands[:-1])
        return (found[0] if isinstance(found, tuple) else found) * operands[-1]

    weight = d.tensor(tuple(first.shape))

    def grads(*operands: Any) -> Any:
        ready = [
            o.detach().requires_grad_()
            if torch.is_tensor(o) and o.is_floating_point() and i < len(args)
            else o
            for i, o in enumerate(operands)
        ]
        return torch.autograd.grad(
            run(*ready).sum(), [r for r in ready[: len(args)] if torch.is_tensor(r) and r.requires_grad]
        )

    return Case(grads, (*args, weight))


@cases("aten.convolution", "aten.convolution_backward")
def _convolution(d: Draw, name: str) -> Case:
    n, groups = d.one(1, 2, 2, 3), d.one(1, 1, 2)
    transposed, channels, more = d.chance(0.4), groups * d.one(1, 2), groups * d.one(1, 2, 3)
    kernel = [d.one(1, 2, 3) for _ in range(n)]
    stride, dilation = d.one([1], [2], [d.one(1, 2, 3) for _ in range(n)]), d.one(1, 1, 2)
    padding = [d.one(0, 0, 1, 2) for _ in range(n)]
    if d.chance(0.25):  # windows that do not overlap
        stride, padding, dilation = list(kernel), [0] * n, 1
    sizes = [d.random.randint((k - 1) * dilation + 1, 7) for k in kernel]
    x = d.tensor((d.one(1, 2), channels, *sizes))
    weight = d.tensor(
        (channels, more // groups, *kernel) if transposed else (more, channels // groups, *kernel)
    )
    bias = d.tensor((more,)) if d.chance(0.5) else None
    if transposed:
        extra = [d.one(0, 0, 1) if max(s, dilation) > 1 else 0 for s in (stride * n)[:n]]
        function = getattr(F, f"conv_transpose{n}d")
        run = lambda x, w, b: function(x, w, b, stride, padding, extra, groups, dilation)  # noqa: E731
    else:
        function = getattr(F, f"conv{n}d")
        run = lambda x, w, b: function(x, w, b, stride, padding, dilation, groups)  # noqa: E731
    return _made(d, run, x, weight, bias, backward=name.endswith("backward"))


@cases(
    *("aten.avg_pool2d", "aten.avg_pool3d", "aten.avg_pool2d_backward", "aten.avg_pool3d_backward"),
    *("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices"),
    *("aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward"),
)
def _pool(d: Draw, name: str) -> Case:
    n = 3 if "3d" in name else 2
    kernel = [d.one(1, 2, 3) for _ in range(n)]
    stride = d.one(None, [d.one(1, 2, 3) for _ in range(n)])
    padding, ceil = [d.random.randint(0, k // 2) for k in kernel], d.chance(0.4)
    x = d.tensor((*d.one((2,), (1, 2)), *(d.random.randint(3, 6) for _ in range(n))), kind="positive")
    backward = name.endswith("backward")
    if name.startswith("avg"):
        counted, divisor = d.chance(0.5), d.one(None, None, 3)
        function = getattr(F, f"avg_pool{n}d")
        run = lambda x: function(x, kernel, stride, padding, ceil, counted, divisor)  # noqa: E731
    else:
        dilation, function = d.one(1, 1, 2), getattr(F, f"max_pool{n}d")
        run = lambda x: function(x, kernel, stride, padding, dilation, ceil, return_indices=True)  # noqa: E731
    return _made(d, run, x, backward=backward)


@cases(
    *("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d"),
    *("aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward"),
)
def _adaptive(d: Draw, name: str) -> Case:
    n = 3 if "3d" in name else 2
    size, function = [d.one(2, 3, 5) for _ in range(n)], getattr(F, f"adaptive_avg_pool{n}d")
    x = d.tensor((1, 2, *(d.one(2, 3, 4, 6) for _ in range(n))))
    return _made(d, lambda x: function(x, size), x, backward=name.endswith("backward"))


@cases("aten.im2col", "aten.col2im")
def _columns(d: Draw, name: str) -> Case:
    kernel, stride, padding, dilation = (
        [d.one(*choices) for _ in range(2)] for choices in ((1, 2, 3), (1, 2), (0, 1), (1, 1, 2))
    )
    x = d.tensor((2, 3, d.random.randint(5, 7), d.random.randint(5, 7)))
    run = lambda x: F.unfold(x, kernel, dilation, padding, stride)  # noqa: E731
    return _made(d, run, x, backward=name == "col2im")


@cases("aten.unfold_backward")
def _unfold(d: Draw) -> Case:
    shape = d.shape(1)
    dim = d.random.randrange(len(shape))
    size, step = d.random.randint(1, shape[dim]), d.one(1, 2, 3)
    count = (shape[dim] - size) // step + 1
    grad = d.tensor((*(count if i == dim else n for i, n in enumerate(shape)), size))
    return Case(lambda g: aten.unfold_backward(g, shape, dim, size, step), (grad,))


@cases(
    *("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten._upsample_nearest_exact1d"),
    *(
        "aten._upsample_nearest_exact2d",
        "aten.upsample_nearest1d_backward",
        "aten.upsample_nearest2d_backward",
    ),
    *("aten._upsample_nearest_exact1d_backward", "aten._upsample_nearest_exact2d_backward"),
)
def _upsample(d: Draw, name: str) -> Case:
    n, mode = 2 if "2d" in name else 1, "nearest-exact" if "exact" in name else "nearest"
    sizes, times = [d.size() for _ in range(n)], [d.one(1, 2, 3) for _ in range(n)]
    x = d.tensor((1, 2, *sizes))
    options: dict[str, Any] = (
        {"scale_factor": times}
        if d.chance(0.5)
        else {"size": [a * b for a, b in zip(sizes, times, strict=True)]}
    )
    if d.chance(0.15) and not name.endswith("backward"):
        x, options = d.tensor((1, 2, *(s + 1 for s in sizes))), {"size": [2 * s + 3 for s in sizes]}
        return Case(lambda x: F.interpolate(x, mode=mode, **options), (x,), {}, "no multiple of it")
    return _made(d, lambda x: F.interpolate(x, mode=mode, **options), x, backward=name.endswith("backward"))


@cases(
    *("aten.upsample_linear1d", "aten.upsample_bilinear2d"),
    *("aten.upsample_linear1d_backward", "aten.upsample_bilinear2d_backward"),
)
def _interpolated(d: Draw, name: str) -> Case:
    """To any size, with and without aligned corners."""
    mode, n = ("bilinear", 2) if "2d" in name else ("linear", 1)
    sizes, corners = [d.random.randint(1, 5) for _ in range(n)], d.chance(0.4)
    options: dict[str, Any] = (
        {"scale_factor": [d.one(1, 2, 3, 4) for _ in sizes]}
        if d.chance(0.5)
        else {"size": [d.random.randint(1, 9) for _ in sizes]}
    )
    run = lambda x: F.interpolate(x, mode=mode, align_corners=corners, **options)  # noqa: E731
    return _made(d, run, d.tensor((1, 2, *sizes)), backward=name.endswith("backward"))


@cases("aten._native_batch_norm_legit.default")
def _legit(d: Draw) -> Case:
    channels, eps, momentum = d.size(), d.one(1e-5, 0.1), d.one(0.1, 0.5)
    x = d.tensor((d.one(2, 3), channels, *d.shape(0, 2)))
    stats = [d.tensor((channels,)), d.tensor((channels,), torch.float64, "positive")]

    def run(x: Any, m: Any, v: Any) -> Any:
        m, v = m.clone(), v.clone()
        return aten._native_batch_norm_legit(x, None, None, m, v, True, momentum, eps), m, v

    return Case(run, (x, *stats))


@cases("aten._native_batch_norm_legit.no_stats")
def _legit_without_statistics(d: Draw) -> Case:
    channels, eps = d.size(), d.one(1e-5, 0.1)
    x, weight = d.tensor((d.one(2, 3), channels, *d.shape(0, 2))), d.tensor((channels,))
    return Case(lambda x, w: aten._native_batch_norm_legit.no_stats(x, w, None, True, 0.1, eps), (x, weight))


@cases(
    *("aten.native_batch_norm.default", "aten._native_batch_norm_legit_no_training.default"),
    "aten.native_batch_norm_backward.default",
)
def _batch_norm(d: Draw, name: str) -> Case:
    """Running statistics are compared, too."""
    channels, eps, momentum = d.size(), d.one(1e-5, 0.1), d.one(0.1, 0.5)
    x = d.tensor((d.one(2, 3), channels, *d.shape(0, 2)))
    weight, bias = (d.tensor((channels,)) if d.chance(0.6) else None for _ in range(2))
    stats = [d.tensor((channels,)), d.tensor((channels,), torch.float64, "positive")]
    training = d.chance(0.6)
    if name == "_native_batch_norm_legit_no_training":
        run = lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, momentum, eps)[0]  # noqa: E731
        return Case(run, (x, weight, bias, *stats))

    def norm(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        m, v = m.clone(), v.clone()
        return F.batch_norm(x, m, v, w, b, training, momentum, eps), m, v

    if name == "native_batch_norm":
        return Case(norm, (x, weight, bias, *stats))
    grad = d.tensor(x.view(d.bases[x.number]).shape)

    def backward(x: Any, w: Any, b: Any, m: Any, v: Any, g: Any) -> Any:
        leaves = [t if t is None else t.detach().requires_grad_() for t in (x, w, b)]
        out = norm(*leaves, m, v)[0]
        return torch.autograd.grad(out, [t for t in leaves if t is not None], g)

    return Case(backward, (x, weight, bias, *stats, grad))


# --- elements in other places ----------------------------------------------------------------------------


@cases("aten.flip", "aten.roll", "aten.repeat")
def _moved(d: Draw, name: str) -> Case:
    shape = d.shape()
    x, rank = d.tensor(shape, d.one(*ALL)), len(shape)
    dims = [d.one(i, i - rank) for i in d.random.sample(range(rank), d.random.randint(0, rank))]
    if name == "flip":
        return Case(torch.flip, (x, dims))
    if name == "roll":
        shifts = [d.one(0, 1, -2, 7) for _ in dims] or [d.one(1, -3)]
        return Case(torch.roll, (x, shifts, dims))
    repeats = [d.one(1, 1, 2, 3) for _ in range(rank + d.one(0, 0, 1, 2))]
    return Case(torch.Tensor.repeat, (x, repeats)) if repeats else Case(torch.Tensor.repeat, (x, [2]))


@cases("aten.cumsum")
def _cumsum(d: Draw) -> Case:
    shape = d.shape()
    dim = d.random.randint(-max(len(shape), 1), max(len(shape), 1) - 1)
    if d.chance(0.3):
        return Case(gradients(lambda x: x.cumsum(dim)), (d.tensor(shape), d.tensor(shape)))
    return Case(torch.cumsum, (d.tensor(shape, d.one(*NUMBERS, torch.bool)), dim))


@cases("aten.slice_scatter", "aten.select_scatter")
def _into(d: Draw, name: str) -> Case:
    shape = d.shape(1)
    dim, rank = d.random.randrange(len(shape)), len(shape)
    n, where = shape[dim], d.one(dim, dim - rank)
    x = d.tensor(shape)
    if name == "select_scatter":
        part = d.tensor([m for i, m in enumerate(shape) if i != dim])
        return Case(torch.select_scatter, (x, part, where, d.random.randint(-n, n - 1)))
    start, end, step = d.one(None, 0, 1, -2), d.one(None, n, -1, n + 3), d.one(1, 1, 2)
    count = len(range(n)[slice(start, end, step)])
    part = d.tensor([count if i == dim else m for i, m in enumerate(shape)])
    refused = None if count else "empty|overlap"
    return Case(torch.slice_scatter, (x, part, where, start, end, step), {}, refused)


@cases("aten.var.correction", "aten.std.correction", "aten.var_mean.correction", "aten.std_mean.correction")
def _moments(d: Draw, name: str) -> Case:
    shape = d.shape()
    rank = len(shape)
    options: dict[str, Any] = {"keepdim": d.chance(0.5), "correction": d.one(0, 1, 0.5)}
    dims = d.one(None, d.random.sample(range(rank), d.random.randint(1, rank))) if rank else None
    count = torch.zeros(shape).sum(dims).numel() if dims else 1
    elements = torch.zeros(shape).numel() // count
    refused = None if elements > options["correction"] else "the variance of"
    return Case(getattr(torch, name), (d.tensor(shape, d.one(*FLOATS)), dims), options, refused)


@cases("aten.argmax", "aten.argmin", "aten.max.dim", "aten.min.dim")
def _by_number(d: Draw, name: str) -> Case:
    """Ties are common; the first one counts."""
    shape = d.shape()
    x = d.tensor(
        shape, d.one(torch.float64, torch.int64, torch.bool if name in ("max", "min") else torch.int32)
    )
    dim = d.random.randint(-max(len(shape), 1), max(len(shape), 1) - 1)
    if name in ("max", "min"):
        if d.chance(0.4):
            run = lambda x, g: _values_gradient(getattr(torch, name), x, dim, g)  # noqa: E731
            rest = [n for i, n in enumerate(shape) if i != dim % max(len(shape), 1)]
            return Case(run, (d.tensor(shape), d.tensor(rest)))
        return Case(lambda x: getattr(torch, name)(x, dim, keepdim=True), (x,))
    options = {"dim": d.one(None, dim), "keepdim": d.chance(0.5)}
    return Case(getattr(torch, name), (x,), options)


def _values_gradient(function: Any, x: Any, dim: int, g: Any) -> Any:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x, dim).values, x, g)


@cases("aten.any", "aten.all")
def _truth(d: Draw, name: str) -> Case:
    shape = d.shape()
    dim = d.random.randint(-max(len(shape), 1), max(len(shape), 1) - 1)
    options = {"dim": dim, "keepdim": d.chance(0.5)} if d.chance(0.6) else {}
    return Case(getattr(torch, name), (d.tensor(shape, d.one(*ALL)),), options)
