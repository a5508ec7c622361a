"""numpy arrays of the oracle: their element types, random ones, and index grids of affine forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certificates.plan.affine import Affine
from certificates.plan.types import Sort, TensorType

from ..errors import EvaluationError

Array = NDArray[Any]
#: numpy element type of each sort.
NUMPY: dict[Sort, type[np.generic]] = {"Real": np.float64, "Int": np.int64, "Bool": np.bool_}
#: What elementwise ops of the op table compute, by number of operands; ``select`` and ``convert`` apart.
UNARY: dict[str, Callable[[Array], Any]] = {
    "negate": np.negative,
    "exponential": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sine": np.sin,
    "cosine": np.cos,
    "tanh": np.tanh,
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "abs": np.abs,
    "not": np.logical_not,
}
BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}
#: Of what kinds reductions and collectives are, as numpy's functions of two operands.
FOLD: dict[str, np.ufunc] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}
COMPARE: dict[str, Callable[[Array, Array], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
#: Elements that the oracle will hold at once, over all values and ranks (4 GiB of float64).
MAX_ELEMENTS = 1 << 29


def affordable(elements: int, what: str) -> None:
    """The oracle is for small plans: refuse true model sizes before they exhaust the machine."""
    if elements > MAX_ELEMENTS:
        raise EvaluationError(f"{what} has {elements} elements, over the oracle's limit of {MAX_ELEMENTS}")


def random_array(type_: TensorType, rng: np.random.Generator, bounds: tuple[int, int] = (0, 2)) -> Array:
    """Random elements: normal floats, integers in the half-open ``bounds``, fair booleans."""
    match type_.sort:
        case "Real":
            return np.asarray(rng.standard_normal(type_.shape))
        case "Int":
            return np.asarray(rng.integers(*bounds, size=type_.shape))
        case "Bool":
            return np.asarray(rng.integers(0, 2, size=type_.shape).astype(np.bool_))


def flat_positions(
    forms: Sequence[Affine], shape: Sequence[int], sizes: Sequence[int], at: Mapping[str, int]
) -> NDArray[np.int64]:
    """Row-major positions in a tensor of ``shape`` that index ``forms`` denote; an array of shape ``sizes``.

    The forms speak of digits ``z0, z1, …`` (``zi < sizes[i]``) and of mesh axes, whose values are ``at``.
    """
    total = Affine()
    for form, size in zip(forms, shape, strict=True):
        total = total.scale(size) + form
    grid = np.full((1,) * len(sizes), total.const, dtype=np.int64)
    lines = {f"z{i}": i for i in range(len(sizes))}
    for symbol, coef in total.terms:
        if symbol in lines:
            i = lines[symbol]
            line = np.arange(sizes[i], dtype=np.int64) * coef
            grid = grid + line.reshape([-1 if d == i else 1 for d in range(len(sizes))])
        else:
            grid = grid + coef * at[symbol]
    return np.broadcast_to(grid, tuple(sizes))
