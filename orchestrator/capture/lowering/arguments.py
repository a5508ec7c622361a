"""Binds what PyTorch was given to what a lowering takes; an argument that it does not take is an error.

The schema of an op lists its arguments with their defaults. A lowering takes the positional ones in order and
the others by name. What it does not take must have the default of the schema, change no number
(:data:`NUMBERLESS`), or stand among those that its registration ignores: a lowering written for the usual
call cannot be silent about an unusual one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import LoweringError
from .table import Rule

#: Arguments that say where and how numbers are kept. The dtype of a result is known from the result.
NUMBERLESS = frozenset(
    ("dtype", "input_dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy")
)


@functools.cache
def schema(op: str) -> Any:
    """The schema of ``namespace.name.overload``; ``None`` for a name that PyTorch does not know."""
    found: Any = torch.ops
    for part in op.removeprefix("complex.").split("."):
        found = getattr(found, part, None)
    return getattr(found, "_schema", None)


@functools.cache
def parameters(lower: Callable[..., object]) -> tuple[tuple[str, ...], frozenset[str], frozenset[str]]:
    """Names that a lowering takes by position, all names it takes, and those it must be given."""
    found = list(inspect.signature(lower).parameters.values())[1:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found):
        raise TypeError(f"{lower} takes arguments without a name")
    return (
        tuple(p.name for p in found if p.kind is not p.KEYWORD_ONLY),
        frozenset(p.name for p in found),
        frozenset(p.name for p in found if p.default is p.empty),
    )


def bind(op: str, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which to call ``rule.lower``, after its context."""
    positions, names, needed = parameters(rule.lower)
    free = list(positions)
    given: dict[str, Any] = {}
    for name, value, default, by_name in _arguments(op, args, kwargs):
        if name in rule.ignores or name in NUMBERLESS:
            continue
        if not by_name and free:
            given[free.pop(0)] = value
        elif name in names and name not in given:
            given[name] = value
        elif value is None or (default is not None and value == default):
            continue
        else:
            raise LoweringError(f"the argument {name}={value!r} has no lowering", op=op)
    missing = sorted(needed - given.keys())
    if missing:
        raise LoweringError(f"this form of the op has no lowering: nothing gives {missing[0]}", op=op)
    return given


def _arguments(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any, Any, bool]]:
    """Name, value, default and whether it is passed by name, of every argument but ``out=`` tensors."""
    known = schema(op)
    if known is None:
        positional = [(f"number {i}", a, None, False) for i, a in enumerate(args)]
        return positional + [(n, a, None, True) for n, a in kwargs.items() if n != "out"]
    found = []
    for i, argument in enumerate(known.arguments):
        if argument.is_out:
            continue
        default = argument.default_value
        value = args[i] if i < len(args) else kwargs.get(argument.name, default)
        found.append((argument.name, value, default, argument.kwarg_only))
    return found
