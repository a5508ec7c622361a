"""Which integer tensors are known to have no negative element, and indices that wrap where they may have one.

PyTorch's ``x[index]`` counts negative indices from the end; a ``gather`` of a plan and the one-hot rows of a
gradient do not. An index that may be negative is wrapped by a ``select``. One that cannot be is left alone,
so that the ordinary lookups of a model stay what a person would write. Facts come from literals, declared
ranges of inputs, comparisons that guard a ``select``, and data movement.
"""

from __future__ import annotations

from certificates.plan.affine import Affine

from ..builder import Builder, Value
from .table import Context

#: ``(value, direction, other)``, known to hold of each element; a literal stands for itself.
Fact = tuple[str | Affine, str, str | Affine]

_MOVES = frozenset(("broadcast_in_dim", "reshape", "transpose", "slice"))
#: What adds up whole numbers.
_COUNT = frozenset(("reduce", "dot_general", "all_reduce", "reduce_scatter"))
_OPPOSITE = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
_MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def wrapped(c: Context, index: Value, size: int) -> Value:
    """Row numbers of a dimension of ``size``, negative ones counted from the end."""
    if index.dtype == "u8":
        raise c.refuse("an index of type uint8, which PyTorch takes for a mask")
    if non_negative(c.b, index):
        return index
    below = c.b.compare("LT", index, c.b.like(0, index))
    return c.b.select(below, c.b.binary("add", index, c.b.like(size, index)), index)


def in_table(b: Builder, index: Value, size: int) -> Value:
    """Row numbers of a dimension of ``size``, in it also where they were counted: as many as there are equal
    tokens before, say. PyTorch raises where one is outside, and no solver sees how large a sum may be."""
    waiting, seen, counted, given = [index.name], {index.name}, False, False
    while waiting:
        draft = b.drafts.get(waiting.pop())
        given |= draft is None
        if draft is not None:
            counted |= draft.name in _COUNT and draft.type.sort == "Int"
            waiting += [v for v in draft.ins if v not in seen]
            seen.update(draft.ins)
    if not (counted and given and size):  # what rests on no input is a position, which is known
        return index
    return b.binary("minimum", b.binary("maximum", index, b.like(0, index)), b.like(size - 1, index))


def non_negative(b: Builder, x: Value) -> bool:
    """Is no element of the integer tensor ``x`` negative, whatever the inputs are?"""
    return _at_least_zero(b, x.name, ())


def _at_least_zero(b: Builder, name: str, facts: tuple[Fact, ...]) -> bool:
    draft = b.drafts.get(name)
    if draft is None:
        if b.bounds.get(name, (-1, 0))[0] < 0:
            return False
        b.relied.add(name)
        return True
    match draft.name:
        case "constant":
            value = draft.attr("value")
            never = any(left == right and d in ("NE", "LT", "GT") for left, d, right in facts)
            return never or (isinstance(value, Affine) and not value.terms and value.const >= 0)
        case "iota":
            return True
        case "convert":
            operand = b.drafts.get(draft.ins[0])
            dtype = (b.inputs[draft.ins[0]] if operand is None else operand.type).sort
            return dtype == "Bool" or _at_least_zero(b, draft.ins[0], ())
        case "maximum":
            return any(_at_least_zero(b, i, facts) for i in draft.ins)
        case "add" | "multiply" | "minimum" | "concatenate":
            return all(_at_least_zero(b, i, facts if draft.name == "minimum" else ()) for i in draft.ins)
        case "subtract":
            left, right = _term(b, draft.ins[0]), _term(b, draft.ins[1])
            return any((left, d, right) in facts for d in ("GE", "GT", "EQ"))
        case "select":
            p, *parts = draft.ins
            return all(
                _at_least_zero(b, i, (*facts, *_passed(b, facts, name, i), *_facts(b, p, holds)))
                for i, holds in zip(parts, (True, False), strict=True)
            )
        case move if (
            move in _MOVES
        ):  # an element is one of the operand's: what is known of it by itself stays
            return _at_least_zero(b, draft.ins[0], _passed(b, _alone(facts), name, draft.ins[0]))
    return False


def _alone(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Those that compare an element with a number, wherever it is moved from."""
    return tuple(
        f for f in facts if any(isinstance(side, Affine) and not side.terms for side in (f[0], f[2]))
    )


def _passed(b: Builder, facts: tuple[Fact, ...], name: str, part: str) -> tuple[Fact, ...]:
    """What is known of ``part`` where ``name`` is equal to it: where a ``select`` takes it, or a move."""
    known = _term(b, part)
    mine = (f for f in facts if name in (f[0], f[2]))
    return tuple(
        (known if left == name else left, d, known if right == name else right) for left, d, right in mine
    )


def _facts(b: Builder, predicate: str, holds: bool) -> list[Fact]:
    """What is known of each element where ``predicate`` is true (or false)."""
    draft = b.drafts.get(predicate)
    if draft is None:
        return []
    if draft.name == "not":
        return _facts(b, draft.ins[0], not holds)
    if draft.name == ("and" if holds else "or"):
        return [fact for part in draft.ins for fact in _facts(b, part, holds)]
    if draft.name != "compare":
        return []
    left, right = (_term(b, i) for i in draft.ins)
    direction = str(draft.attr("direction"))
    direction = direction if holds else _OPPOSITE[direction]
    return [(left, direction, right), (right, _MIRRORED[direction], left)]


def _term(b: Builder, name: str) -> str | Affine:
    draft = b.drafts.get(name)
    value = draft.attr("value") if draft is not None and draft.name == "constant" else None
    return value if isinstance(value, Affine) else name
