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
from .enclosing import never_picked

#: What these give is finite, but for an exponential of what a mask has made infinite.
_FINITE = frozenset(("exponential", "compare", "logistic", "tanh"))
_ENDS = frozenset(("inf", "-inf"))
_SUMS = frozenset(("add", "subtract"))
#: Which infinity goes away in the extreme of a row that has a number.
_ROWS = {"max": "-inf", "min": "inf"}
_MOVED = frozenset(("reshape", "transpose", "broadcast_in_dim", "convert", "slice"))


def equals_infinity(b: Builder, x: Value, infinity: float) -> Value:
    """Is each element of ``x`` this infinity? A :class:`LoweringError` where no mask shows it."""
    found = _infinite(b, x, "inf" if infinity > 0 else "-inf")
    return b.constant(False, TensorType("i1", x.shape)) if found is None else found


def masked_sum(b: Builder, x: Value, y: Value, shape: tuple[int, ...]) -> Value | None:
    """The sum of two tensors that masks have both made infinite, in one way: one choice by either mask.

    A causal mask and one for padding, say, which are added. ``None`` where that is not so: a sum of numbers.
    """
    for which in ("-inf", "inf"):
        with suppress(LoweringError):
            masks = [_infinite(b, v, which) for v in (x, y)]
            if None in masks or any(_infinite(b, v, _opposite(which)) is not None for v in (x, y)):
                continue
            left, right = (b.expand(_without(b, v), shape) for v in (x, y))
            either = b.binary("or", *(b.expand(m, shape) for m in masks if m is not None))
            total = b.binary("add", left, right)
            return b.select(either, b.constant(float(which), total.type), total)
    return None


def with_numbers(b: Builder, x: Value, index: Value) -> Value:
    """``x`` with a number in place of each infinity, if ``index`` picks none of them, of the last dimension.

    So a label is chosen of scores that are masked elsewhere: those beyond the vocabulary, or a row with
    itself. That no row is masked completely is what a plan with its maximum assumes.
    """
    if not reached(b, x.name):
        return x
    with suppress(LoweringError):
        masks = [_infinite(b, x, which, rows=True) for which in sorted(_ENDS)]
        if all(mask is None or never_picked(b, mask, index) for mask in masks):
            return _without(b, x)
    return x


def _without(b: Builder, x: Value) -> Value:
    """``x`` with a zero in place of each such literal; only where :func:`_infinite` shows all of them."""
    draft = b.draft(x)
    if draft is None or not reached(b, x.name) or draft.name == "reduce":
        return x
    if draft.name == "constant":
        return b.like(0, x)
    parts = [_without(b, b.operand(x, i)) for i in range(len(draft.ins))]
    if draft.name == "select":
        return b.select(b.operand(x), *parts[1:])
    if draft.name in _SUMS:
        return b.binary(draft.name, *parts)
    if draft.name == "concatenate":
        return b.concatenate(parts, int(str(draft.attr("dim"))))
    if draft.name in _MOVED:
        return _moved(b, parts[0], draft, x.dtype)
    raise LoweringError("a sum of what no mask shows to be infinite")


def _infinite(b: Builder, x: Value, which: str, *, rows: bool = False) -> Value | None:
    """Where ``x`` is infinite; ``None`` for nowhere.

    With ``rows`` the maximum of a row is a number: no row is masked completely.
    """
    draft = b.draft(x)
    if draft is None or not _shown(b, x.name):  # an input is a number
        return None
    if draft.name == "constant":
        return b.constant(True, TensorType("i1", x.shape)) if draft.attr("value") == which else None
    if draft.name == "select":
        mask = b.operand(x)
        parts = [_infinite(b, b.operand(x, i), which, rows=rows) for i in (1, 2)]
        if parts == [None, None]:
            return None
        nowhere = b.constant(False, mask.type)
        return b.select(mask, *(nowhere if p is None else p for p in parts))
    if draft.name == "exponential" and which == "inf":
        with suppress(LoweringError):
            return _infinite(b, b.operand(x), which, rows=rows)
    if draft.name == "log" and which == "-inf" and b.made_by(b.operand(x), "convert"):
        mask = b.operand(b.operand(x))
        return b.unary("not", mask) if mask.dtype == "i1" else None
    if draft.name in _SUMS:
        signs = [which, which if draft.name == "add" else _opposite(which)]
        one, other = (_infinite(b, b.operand(x, i), sign, rows=rows) for i, sign in enumerate(signs))
        against = [
            _infinite(b, b.operand(x, i), _opposite(signs[i]), rows=rows) if mine is not None else None
            for i, mine in ((1, one), (0, other))
        ]
        if against != [None, None]:
            raise LoweringError("a sum of infinities of both signs, which is no number")
        return b.binary("or", one, other) if one is not None and other is not None else one or other
    if draft.name in _MOVED:
        inner = _infinite(b, b.operand(x), which, rows=rows)
        return None if inner is None else _moved(b, inner, draft)
    if draft.name == "concatenate":
        operands = [b.operand(x, i) for i in range(len(draft.ins))]
        masks = [_infinite(b, v, which, rows=rows) for v in operands]
        if not any(masks):
            return None
        shown = [
            b.constant(False, TensorType("i1", v.shape)) if m is None else m
            for m, v in zip(masks, operands, strict=True)
        ]
        return b.concatenate(shown, int(str(draft.attr("dim"))))
    if (
        rows
        and draft.name == "reduce"
        and (
            _ROWS.get(str(draft.attr("kind"))) == which
            or _infinite(b, b.operand(x), which, rows=True) is None
        )
    ):
        return None
    if reached(b, x.name):
        raise LoweringError(
            f"a comparison with {which} of what no mask shows to be infinite",
            instead="a comparison of the mask: torch.where(mask, x, 0)",
        )
    return None


def _opposite(which: str) -> str:
    return "-inf" if which == "inf" else "inf"


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
        if draft.name in ("select", "concatenate", "exponential") or draft.name in _SUMS | _MOVED:
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
