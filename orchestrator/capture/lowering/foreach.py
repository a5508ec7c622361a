"""``_foreach_*`` ops are the op of one tensor, once for each tensor of their lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..recorder import Node
from .arguments import schema

_PREFIX = "aten._foreach_"
#: Elementwise ops whose arguments are those of the op of one tensor, by the name of the latter.
_UNARY = (
    *("sqrt", "neg", "exp", "abs", "zero", "sign", "reciprocal", "rsqrt", "log", "sin", "cos", "tanh"),
    *("sigmoid", "log1p", "expm1", "erf", "erfc"),
)
_SINGLE = {
    name: name
    for name in (
        *(*_UNARY, "add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "pow"),
        *("clamp_min", "clamp_max", "maximum", "minimum"),
    )
} | {"norm": "linalg_vector_norm"}
_OVERLOADS = {"List": "Tensor", "ScalarList": "Scalar"}
#: Ops of which one tensor has other overloads: by that of the list.
_OTHERS: dict[str, dict[str, str]] = {
    "norm": {"Scalar": "default"},
    "pow": {"List": "Tensor_Tensor", "Scalar": "Tensor_Scalar", "ScalarList": "Tensor_Scalar"},
    **{name: {"Scalar": "default", "ScalarList": "default"} for name in ("addcmul", "addcdiv")},
    **{
        name: {"List": "Tensor", "Scalar": "default", "ScalarList": "default"}
        for name in ("clamp_min", "clamp_max")
    },
    **{name: {"List": "default"} for name in ("maximum", "minimum")},
}


def single_ops(node: Node) -> Iterator[Node] | None:
    """The ops of the single tensors, in order; ``None`` if ``node`` is no list op of this table."""
    name, _, overload = node.op.removeprefix(_PREFIX).partition(".")
    base = name.rstrip("_")
    if not node.op.startswith(_PREFIX) or base not in _SINGLE:
        return None
    if base in _OTHERS:
        if overload not in _OTHERS[base]:
            return None
        overload = _OTHERS[base][overload]
    else:
        overload = _OVERLOADS.get(overload, overload)
    op = f"aten.{_SINGLE[base]}{name[len(base) :]}.{overload}"
    return (_single(node, op, i) for i in range(len(node.args[0])))


def _single(node: Node, op: str, i: int) -> Node:
    def at(item: Any) -> Any:
        return item[i] if isinstance(item, list | tuple) else item

    names = [a.name for a in schema(node.op).arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    # The dtype of a norm stands elsewhere among the arguments of one tensor; the result says it.
    args = tuple(at(given[name]) for name in names if name in given and name != "dtype")
    written = (node.writes[i],) if node.writes else ()
    return replace(node, op=op, args=args, kwargs={}, outs=at(node.outs), writes=written)
