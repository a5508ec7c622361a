"""Arithmetic, comparisons, pointwise functions and their gradients."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch

from .kit import ALL, FLOATS, NUMBERS, SMALL, Case, Draw, Slot, cases, gradients, inplace, promoted, with_out

aten = torch.ops.aten


def _wraps(dtype: torch.dtype) -> str | None:
    return "wraps around|does not fit" if dtype in SMALL else None


def _scalar(d: Draw, dtype: torch.dtype) -> Any:
    return d.one(2, -3, 0.5, 1.25, True, -0.0) if dtype.is_floating_point else d.one(2, -1, 1.5, True)


@cases("aten.add", "aten.sub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum", "aten.rsub")
def _binary(d: Draw, name: str) -> Case:
    shape, left, right = d.shape(), d.one(*ALL), d.one(*ALL)
    form = d.one("tensors", "tensors", "scalar", "inplace", "out", "python")
    function, options, kind = getattr(torch, name), {}, None
    if name in ("add", "sub", "rsub") and d.chance(0.4):
        options["alpha"] = d.one(2, -1, 0.5)
    if name == "div" and d.chance(0.3):
        options["rounding_mode"] = d.one(None, "floor", "trunc")
    kind = "positive" if name == "div" else None
    refused = "division that rounds" if options.get("rounding_mode") else None
    if name in ("maximum", "minimum", "rsub") and form == "inplace":
        form = "tensors"
    if name in ("maximum", "minimum") and form in ("scalar", "python"):
        form = "tensors"
    x = d.tensor(shape, left, written=form == "inplace")
    if form in ("scalar", "python"):
        number = _scalar(d, left)
        if left == torch.bool and number is True and options.get("alpha", 1) != 1:
            refused = "a sum of booleans with alpha"
        if name == "div" and not number:
            refused = refused or "division by the literal 0"
        result = torch.result_type(torch.zeros(shape, dtype=left), number)
        refused = refused or (_wraps(result) if name != "div" else None)
        if form == "python" and not options:
            symbol = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
            function = symbol.get(name, operator.sub)
            return Case(function, (number, x) if name == "rsub" else (x, number), {}, refused)
        return Case(function, (x, number), options, refused)
    y = d.tensor(d.like(shape), right, kind)
    result = left if form == "inplace" else promoted(d, x, y)
    if name not in ("maximum", "minimum", "div") and not left == right == torch.bool:
        refused = refused or _wraps(result)
    elif name in ("maximum", "minimum") and form != "inplace" and result in SMALL:
        narrowed = {left, right} - {
            result,
            torch.bool,
            *((torch.uint8, torch.int8) if result == torch.int16 else ()),
        }
        refused = "wraps around" if narrowed else None
    if options.get("alpha", 1) != 1 and left == right == torch.bool:
        refused = "alpha"
    if form == "inplace" and name not in ("maximum", "minimum", "rsub"):
        return Case(inplace(getattr(torch.Tensor, f"{name}_")), (x, y), options, refused)
    if form == "out" and name != "rsub":
        return Case(with_out(function), (x, y), options, refused)
    return Case(function, (x, y), options, refused)


@cases("aten.sub", "aten.add", "aten.rsub", "aten.mul", "aten.div")
def _overload_with_a_scalar(d: Draw, name: str) -> Case:
    x = d.tensor(d.shape(), d.one(*NUMBERS))
    alpha = (d.one(1, 2, -3),) if name in ("add", "sub", "rsub") else ()
    return Case(getattr(aten, name).Scalar, (x, d.one(2, -3, 4), *alpha))


_UNARY = (
    "neg",
    "exp",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "abs",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "erf",
    "log1p",
    "expm1",
)


@cases(*(f"aten.{n}" for n in (*_UNARY, "silu", "relu")))
def _unary(d: Draw, name: str) -> Case:
    form = d.one("plain", "plain", "inplace", "out")
    dtype = d.one(*FLOATS) if form == "inplace" or name == "silu" else d.one(*NUMBERS, *SMALL)
    kind = "positive" if name in ("log", "sqrt", "rsqrt", "reciprocal", "log1p") else None
    x = d.tensor(d.shape(), dtype, kind, written=form == "inplace")
    function = torch.nn.functional.silu if name == "silu" else getattr(torch, name)
    refused = _wraps(dtype) if name in ("neg", "abs") else None
    if form == "inplace":
        return Case(inplace(lambda a: getattr(aten, f"{name}_")(a)), (x,))
    if form == "out" and name not in ("silu", "relu"):
        return Case(with_out(function), (x,), {}, refused)
    return Case(function, (x,), {}, refused)


@cases("aten.silu_backward", "aten.sigmoid_backward", "aten.tanh_backward", "aten.threshold_backward")
def _unary_backward(d: Draw, name: str) -> Case:
    shape, dtype = d.shape(), d.one(*FLOATS)
    x, g = d.tensor(shape, dtype), d.tensor(shape, dtype)
    if d.chance(0.5):
        function = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}.get(
            name.split("_")[0], torch.relu
        )
        return Case(gradients(function), (x, g))
    extra = (d.one(0, 0.5, -1, 1),) if name == "threshold_backward" else ()
    return Case(getattr(aten, name), (g, x, *extra))


@cases(*(f"aten.{n}" for n in ("eq", "ne", "lt", "le", "gt", "ge")))
def _comparison(d: Draw, name: str) -> Case:
    shape, left = d.shape(), d.one(*ALL)
    x = d.tensor(shape, left)
    if d.chance(0.5):
        number = d.one(0, 1, 2, -1, 0.5, 1.0, 2.0, True, False, float("inf"), -0.0)
        refused = "does not fit" if left == torch.uint8 and number == -1 else None
        return Case(getattr(torch, name), (x, number), {}, refused)
    y = d.tensor(d.like(shape), d.one(*ALL))
    return Case(d.one(getattr(torch, name), with_out(getattr(torch, name))), (x, y))


@cases(
    *("aten.exp2", "aten.log2", "aten.log10", "aten.tan", "aten.sinh", "aten.cosh", "aten.erfc"),
    *("aten.sign", "aten.sgn", "aten.hypot", "aten.xlogy", "aten.fmax", "aten.fmin"),
)
def _function(d: Draw, name: str) -> Case:
    """Of integers the result is a real number, but for signs and extremes."""
    shape, function = d.shape(), getattr(torch, name)
    whole = name in ("sign", "sgn", "fmax", "fmin") and d.chance(0.4)
    x = d.tensor(
        shape, torch.int64 if whole else torch.float64, "positive" if name.startswith("log") else None
    )
    if name in ("hypot", "xlogy", "fmax", "fmin"):
        kind = "positive" if name == "xlogy" else None
        return Case(function, (x, d.tensor(d.like(shape), torch.int64 if whole else torch.float64, kind)))
    if whole or d.chance(0.5) or name == "sgn":
        return Case(function, (x,))
    return Case(gradients(function), (x, d.tensor(shape)))


@cases("aten.logical_xor", "aten.bitwise_xor")
def _unlike(d: Draw, name: str) -> Case:
    shape = d.shape()
    dtype = d.one(*ALL) if name == "logical_xor" else d.one(torch.bool, torch.bool, torch.int64)
    refused = "on integers" if name == "bitwise_xor" and dtype != torch.bool else None
    return Case(getattr(torch, name), (d.tensor(shape, dtype), d.tensor(d.like(shape), dtype)), {}, refused)


@cases("aten.logical_and", "aten.logical_or")
def _logical(d: Draw, name: str) -> Case:
    shape = d.shape()
    return Case(getattr(torch, name), (d.tensor(shape, d.one(*ALL)), d.tensor(d.like(shape), d.one(*ALL))))


@cases("aten.bitwise_and", "aten.bitwise_or")
def _bitwise(d: Draw, name: str) -> Case:
    shape, left, right = d.shape(), d.one(torch.bool, torch.bool, torch.int64), torch.bool
    x = d.tensor(shape, left)
    y: Any = d.one(True, False, 1) if d.chance(0.3) else d.tensor(d.like(shape), right)
    exact = left == torch.bool and (isinstance(y, bool | Slot))
    return Case(getattr(aten, name), (x, y), {}, None if exact else "bitwise operation on integers")


@cases("aten.logical_not", "aten.bitwise_not")
def _not(d: Draw, name: str) -> Case:
    dtype = d.one(*ALL) if name == "logical_not" or d.chance(0.3) else torch.bool
    exact = name == "logical_not" or dtype == torch.bool
    return Case(
        getattr(torch, name), (d.tensor(d.shape(), dtype),), {}, None if exact else "bitwise operation"
    )


@cases("aten.pow")
def _power(d: Draw) -> Case:
    shape, dtype = d.shape(), d.one(*NUMBERS, torch.bool)
    form = d.one("number", "number", "number", "base", "tensors", "gradient")
    if form == "number":
        y = d.one(0, 1, 2, 3, 8, 2.0, 0.5, -0.5, -1, True, 0.0, 9, 0.25, -2, float("inf"))
        known = y not in (9, float("inf"))
        x = d.tensor(shape, dtype, "positive")
        return Case(torch.pow, (x, y), {}, None if known else "power")
    if form == "gradient":
        x, g = d.tensor(shape, torch.float64, "positive"), d.tensor(shape)
        return Case(gradients(lambda a: a**3), (x, g))
    if form == "base":
        base = d.one(0.5, 2.0, 3)
        refused = "power of i" if isinstance(base, int) and not dtype.is_floating_point else None
        refused = "power of i" if isinstance(base, int) and dtype == torch.bool else refused
        return Case(torch.pow, (base, d.tensor(shape, dtype)), {}, refused)
    other = d.one(*NUMBERS)
    x, y = d.tensor(shape, dtype, "positive"), d.tensor(shape, other, "positive")
    whole = not torch.promote_types(dtype, other).is_floating_point
    return Case(torch.pow, (x, y), {}, "power of i" if whole else None)


@cases("aten.clamp", "aten.clamp_min", "aten.clamp_max")
def _clamp(d: Draw, name: str) -> Case:
    shape, dtype = d.shape(), d.one(*NUMBERS, torch.uint8)
    inside = d.chance(0.3)
    x = d.tensor(shape, dtype, written=inside)
    if d.chance(0.4):
        low: Any = d.tensor(shape if inside else d.like(shape), dtype)
        high: Any = d.tensor(
            shape if inside else d.like(shape), d.one(dtype, torch.float64) if not inside else dtype
        )
    else:
        whole = not dtype.is_floating_point
        low = d.one(0, 1) if whole and (inside or d.chance(0.5)) else d.one(0.5, -1.5, float("-inf"))
        high = d.one(1, 2) if whole and (inside or isinstance(low, int)) else d.one(0.25, 1.5, float("inf"))
    if name == "clamp":
        options = {"min": low, "max": high}
        if d.chance(0.3):
            options[d.one("min", "max")] = None
        function = torch.clamp
    else:
        options, function = {name[-3:]: low}, getattr(torch, name)
    if inside:
        return Case(inplace(getattr(torch.Tensor, f"{name}_")), (x,), options)
    if name == "clamp" and d.chance(0.2):
        function = with_out(torch.clamp)
    return Case(function, (x,), options)


@cases("aten.where")
def _where(d: Draw) -> Case:
    shape, a, b = d.shape(), d.one(*ALL), d.one(*ALL)
    p = d.tensor(d.like(shape), torch.bool)
    x: Any = d.one(0, 1.5, True, float("-inf"), 2) if d.chance(0.3) else d.tensor(shape, a)
    y: Any = d.one(0, -0.5, False, float("inf"), 3) if d.chance(0.3) else d.tensor(d.like(shape), b)
    return Case(torch.where, (p, x, y))


@cases("aten.masked_fill")
def _masked_fill(d: Draw) -> Case:
    shape, dtype = d.shape(), d.one(*ALL)
    inside = d.chance(0.4)
    x = d.tensor(shape, dtype, written=inside)
    mask = d.tensor(d.like(shape), torch.bool)
    number = d.one(0, 1, True) if not dtype.is_floating_point else d.one(0, -1.5, float("-inf"), True, -0.0)
    value: Any = d.tensor((), dtype) if d.chance(0.3) else number
    if inside:
        return Case(inplace(torch.Tensor.masked_fill_), (x, mask, value))
    return Case(torch.masked_fill, (x, mask, value))


@cases("aten.tril", "aten.triu")
def _triangle(d: Draw, name: str) -> Case:
    """A diagonal outside of the matrix leaves all of it, or nothing."""
    dtype, inside = d.one(*ALL), d.chance(0.3)
    x = d.tensor((*d.shape(), d.size(), d.size()), dtype, written=inside)
    args = (x, d.one(0, 1, -1, 3, -3)) if d.chance(0.7) else (x,)
    if inside:
        return Case(inplace(getattr(torch.Tensor, f"{name}_")), args)
    return Case(d.one(getattr(torch, name), with_out(getattr(torch, name))), args)


def _conversion_refused(source: torch.dtype, target: torch.dtype) -> str | None:
    if source.is_floating_point and not target.is_floating_point and target != torch.bool:
        return "rounds and has no exact meaning"
    fits = {
        torch.int8: (torch.bool, torch.int8),
        torch.uint8: (torch.bool, torch.uint8),
        torch.int16: (torch.bool, torch.uint8, torch.int8, torch.int16),
    }
    return "wraps around" if target in fits and source not in fits[target] else None


@cases("aten._to_copy")
def _convert(d: Draw) -> Case:
    source, target = d.one(*ALL), d.one(*ALL)
    x = d.tensor(d.shape(), source)
    options = {"memory_format": torch.contiguous_format} if d.chance(0.3) else {}
    return Case(aten._to_copy, (x,), {"dtype": target, **options}, _conversion_refused(source, target))


@cases("aten.copy")
def _copy(d: Draw) -> Case:
    shape, target, source = d.shape(), d.one(*ALL), d.one(*ALL)
    x, y = d.tensor(shape, target, written=True), d.tensor(d.like(shape), source)
    return Case(inplace(torch.Tensor.copy_), (x, y), {}, _conversion_refused(source, target))


@cases("aten.clone")
def _clone(d: Draw) -> Case:
    x = d.tensor(d.shape(), d.one(*ALL))
    options = {"memory_format": torch.contiguous_format} if d.chance(0.3) else {}
    return Case(torch.clone, (x,), options)


@cases("aten.lift_fresh", "aten.alias", "aten.detach")
def _same(d: Draw, name: str) -> Case:
    """Of an input it is a view, of a number that is written down it is a copy."""
    x, number = d.tensor(d.shape(), d.one(*ALL)), d.one(2, 0.5, True)
    if d.chance(0.5):
        return Case(lambda a: getattr(aten, name)(a), (x,))
    return Case(lambda a: getattr(aten, name)(torch.tensor(number)) * a.double(), (x,))


@cases("aten._unsafe_view", "aten.view")
def _viewed(d: Draw, name: str) -> Case:
    shape = d.shape(1)
    return Case(lambda a: getattr(aten, name)(a.clone(), (-1, shape[-1])), (d.tensor(shape, plain=True),))


@cases("aten.lerp")
def _lerp(d: Draw) -> Case:
    shape, dtype = d.shape(), d.one(*FLOATS)
    x, y = d.tensor(shape, dtype, written=True), d.tensor(shape, dtype)
    weight: Any = d.one(0, 1, 0.25, 1.5) if d.chance(0.5) else d.tensor(d.like(shape), dtype)
    return Case(d.one(torch.lerp, inplace(torch.Tensor.lerp_)), (x, y, weight))


@cases("aten.addcmul", "aten.addcdiv")
def _fused(d: Draw, name: str) -> Case:
    shape, dtype = d.shape(), d.one(*FLOATS)
    other = d.one(dtype, dtype, torch.float64)
    options = {"value": d.one(0.5, -2, 3)} if d.chance(0.7) else {}
    y, z = d.tensor(d.like(shape), other), d.tensor(d.like(shape), other, "positive")
    if d.chance(0.5):
        x = d.tensor(shape, dtype, written=True)
        return Case(inplace(getattr(torch.Tensor, f"{name}_")), (x, y, z), options)
    return Case(getattr(torch, name), (d.tensor(d.like(shape), dtype), y, z), options)


@cases("aten.gelu")
def _gelu(d: Draw) -> Case:
    x = d.tensor(d.shape(), d.one(*FLOATS))
    return Case(torch.nn.functional.gelu, (x,), {"approximate": d.one("tanh", "none")})


@cases("aten.gelu_backward")
def _gelu_backward(d: Draw) -> Case:
    shape, dtype = d.shape(), d.one(*FLOATS)
    x, g = d.tensor(shape, dtype), d.tensor(shape, dtype)
    return Case(aten.gelu_backward, (g, x), {"approximate": d.one("tanh", "none")})


@cases("aten.softplus", "aten.softplus_backward")
def _softplus(d: Draw, name: str) -> Case:
    """The threshold lies among the numbers that are drawn, so that both branches are compared."""
    shape, dtype = d.shape(), d.one(*FLOATS)
    x, g = d.tensor(shape, dtype), d.tensor(shape, dtype)
    beta, threshold = d.one(1, 2, 0.5, -1), d.one(20, 0.25, 0, -1)
    function = partial(torch.nn.functional.softplus, beta=beta, threshold=threshold)
    if name == "softplus":
        return Case(function, (x,))
    if d.chance(0.5):
        return Case(gradients(function), (x, g))
    return Case(aten.softplus_backward, (g, x, beta, threshold))
