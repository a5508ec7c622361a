"""Where a tensor is infinite: known by the masks that made it so.

A plan has real numbers. An infinity that code puts in may end in an exponential or a maximum, and never in a
comparison; but attention asks which rows are masked completely (``(x == -inf).all(-1)``). An element is
infinite where a mask has chosen the literal, wherever it was moved and whatever was added to it since.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from certificates.plan.types import TensorType

from ..builder import Builder, Draft, Value
from ..errors import LoweringError

#: What these give is finite, but for an exponential of what a mask has made infinite.
_FINITE = frozenset(("exponential", "compare", "logistic", "tanh"))
_ENDS = frozenset(("inf", "-inf"))
_MOVED = frozenset(("reshape", "transpose", "broadcast_in_dim", "convert", "slice"))


def equals_infinity(b: Builder, x: Value, infinity: float) -> Value:
    """Is each element of ``x`` this infinity? A :class:`LoweringError` where no mask shows it."""
    found = _infinite(b, x, "inf" if infinity > 0 else "-inf")
    return b.constant(False, TensorType("i1", x.shape)) if found is None else found


def masked_sum(b: Builder, x: Value, y: Value, shape: tuple[int, ...]) -> Value | None:
    """The sum of two tensors that masks have both made infinite, in one way: one choice by either mask.

    A causal mask and one for padding, say, which are added. ``None`` where that is not so: a sum of numbers.
    """
    for which, opposite in (("-inf", "inf"), ("inf", "-inf")):
        with suppress(LoweringError):
            masks = [_infinite(b, v, which) for v in (x, y)]
            if None in masks or any(_infinite(b, v, opposite) is not None for v in (x, y)):
                continue
            left, right = (b.expand(_without(b, v, which), shape) for v in (x, y))
            either = b.binary("or", *(b.expand(m, shape) for m in masks if m is not None))
            total = b.binary("add", left, right)
            return b.select(either, b.constant(float(which), total.type), total)
    return None


def _without(b: Builder, x: Value, which: str) -> Value:
    """``x`` with a zero in place of each such literal; only where :func:`_infinite` shows all of them."""
    draft = b.draft(x)
    if draft is None or not reached(b, x.name):
        return x
    if draft.name == "constant":
        return b.like(0, x)
    if draft.name == "select":
        return b.select(b.operand(x), *(_without(b, b.operand(x, i), which) for i in (1, 2)))
    if draft.name == "add":
        return b.binary("add", *(_without(b, b.operand(x, i), which) for i in (0, 1)))
    if draft.name in _MOVED:
        return _moved(b, _without(b, b.operand(x), which), draft, x.dtype)
    raise LoweringError("a sum of what no mask shows to be infinite")


def _infinite(b: Builder, x: Value, which: str) -> Value | None:
    """Where ``x`` is infinite; ``None`` for nowhere."""
    draft = b.draft(x)
    if draft is None or not _shown(b, x.name):  # an input is a number
        return None
    if draft.name == "constant":
        return b.constant(True, TensorType("i1", x.shape)) if draft.attr("value") == which else None
    if draft.name == "select":
        mask = b.operand(x)
        parts = [_infinite(b, b.operand(x, i), which) for i in (1, 2)]
        if parts == [None, None]:
            return None
        nowhere = b.constant(False, mask.type)
        return b.select(mask, *(nowhere if p is None else p for p in parts))
    if draft.name == "exponential" and which == "inf":
        with suppress(LoweringError):
            return _infinite(b, b.operand(x), which)
    if draft.name == "log" and which == "-inf" and b.made_by(b.operand(x), "convert"):
        mask = b.operand(b.operand(x))
        return b.unary("not", mask) if mask.dtype == "i1" else None
    if draft.name == "add":
        one, other = (_infinite(b, b.operand(x, i), which) for i in (0, 1))
        if _opposed(b, x, which, one, other):
            raise LoweringError("a sum of infinities of both signs, which is no number")
        return b.binary("or", one, other) if one is not None and other is not None else one or other
    if draft.name in _MOVED:
        inner = _infinite(b, b.operand(x), which)
        return None if inner is None else _moved(b, inner, draft)
    if reached(b, x.name):
        raise LoweringError(
            f"a comparison with {which} of what no mask shows to be infinite",
            instead="a comparison of the mask: torch.where(mask, x, 0)",
        )
    return None


def _opposed(b: Builder, x: Value, which: str, one: Value | None, other: Value | None) -> bool:
    """May one summand be this infinity where another one is its opposite?"""
    opposite = "-inf" if which == "inf" else "inf"
    found = [
        _infinite(b, b.operand(x, i), opposite) if mine is not None else None
        for i, mine in ((1, one), (0, other))
    ]
    return found != [None, None]


def _moved(b: Builder, x: Value, draft: Draft, dtype: str = "i1") -> Value:
    """What an op of data movement makes of ``x``, a mask or the like, in place of its operand."""
    if draft.name == "reshape":
        return b.reshape(x, draft.type.shape)
    if draft.name == "convert":
        return x if dtype == "i1" else b.convert(x, dtype)
    attrs: dict[str, Any] = dict(draft.attrs)
    return b.emit(draft.name, (x,), TensorType(dtype, draft.type.shape), **attrs)


def reached(b: Builder, name: str) -> bool:
    """Does an infinite literal reach a value, other than through ops whose results are finite?"""

    def own(draft: Draft) -> bool | None:
        if draft.name == "constant":
            return draft.attr("value") in _ENDS
        return False if draft.name in _FINITE else None

    return _spread(b, name, _memory(b)[0], own)


def _shown(b: Builder, name: str) -> bool:
    """May there be more to say of where a value is infinite than that it is nowhere?"""

    def own(draft: Draft) -> bool | None:
        if draft.name == "constant":
            return draft.attr("value") in _ENDS
        if draft.name in ("select", "add", "exponential") or draft.name in _MOVED:
            return None
        return draft.name == "log" or reached(b, draft.out)

    return _spread(b, name, _memory(b)[1], own)


def _spread(b: Builder, name: str, known: dict[str, bool], own: Callable[[Draft], bool | None]) -> bool:
    """Is a value, or one that it is made of, such a one? ``own`` says it of ops that need not be followed."""
    waiting = [name]
    while waiting:
        draft = b.drafts.get(waiting[-1])
        if waiting[-1] in known:
            waiting.pop()
        elif draft is None:
            known[waiting.pop()] = False
        elif (said := own(draft)) is not None:
            known[waiting.pop()] = said
        elif before := [v for v in draft.ins if v not in known]:
            waiting += before
        else:
            known[waiting.pop()] = any(known[v] for v in draft.ins)
    return known[name]


def _memory(b: Builder) -> tuple[dict[str, bool], dict[str, bool]]:
    """What was found of the values of a program, of which no op is ever another one."""
    return _MEMORY.setdefault(b, ({}, {}))


_MEMORY: WeakKeyDictionary[Builder, tuple[dict[str, bool], dict[str, bool]]] = WeakKeyDictionary()
