"""Reals that are whole numbers, because they are made of integers and masks: as the integers that they are.

Code counts in floats (``mask.float().cumsum(0)``) and looks up by the count (``.long()``). A plan has no op
that rounds; where every step from the integers keeps whole numbers whole, the same steps run on integers.
"""

from __future__ import annotations

from fractions import Fraction

from certificates.plan.types import TensorType

from ..builder import Builder, Value

#: Ops of which whole numbers give whole numbers, the same as integers or as reals.
_KEEP = frozenset(
    (
        *("add", "subtract", "negate", "multiply", "maximum", "minimum", "select", "reduce", "dot_general"),
        *("reshape", "transpose", "broadcast_in_dim", "slice", "concatenate", "pad", "gather"),
    )
)


def as_integers(b: Builder, x: Value, dtype: str) -> Value | None:
    """The same numbers in an integer type, made anew; ``None`` if an op on the way may give others."""
    made: dict[str, Value | None] = {}

    def value(name: str) -> Value:
        return Value(name, b.drafts[name].type if name in b.drafts else b.inputs[name])

    def of(x: Value) -> Value | None:
        if x.name not in made:
            made[x.name] = anew(x)
        return made[x.name]

    def anew(x: Value) -> Value | None:
        draft = b.drafts.get(x.name)
        if x.type.sort != "Real":
            return b.convert(x, dtype)
        if draft is None:
            return None
        target = TensorType(dtype, x.shape)
        if draft.name == "constant":
            number = Fraction(str(draft.attr("value")))
            return b.constant(int(number), target) if number.denominator == 1 else None
        operands = [value(name) for name in draft.ins]
        if draft.name == "convert":
            return of(operands[0])
        if draft.name not in _KEEP:
            return None
        whole = [of(v) if v.type.sort == "Real" else v for v in operands]
        if None in whole:
            return None
        parts = [v for v in whole if v is not None]
        return b.emit(draft.name, parts, target, shared=True, **dict(draft.attrs))

    return of(x)
