"""How arithmetic ops read their operands: index variables per dimension, and factors of these in a result.

An op's result dimension ``d`` has the variable ``o{d}``; a summed (or otherwise reduced) dimension ``k{i}``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.ops import ELEMENTWISE
from certificates.plan.program import Op
from certificates.proof.facts import Reduced

_COMMUTATIVE = frozenset(("add", "multiply", "maximum", "minimum", "and", "or"))


def commutes(op: Op) -> bool:
    """May the operands of an op on elements change places?"""
    return op.name in _COMMUTATIVE or (op.name == "compare" and op.text("direction") in ("EQ", "NE"))


@dataclass(frozen=True, slots=True)
class Access:
    """Variables of the result's and of each operand's dimensions, and the sizes of the summed ones."""

    out: tuple[str, ...]
    operands: tuple[tuple[str, ...], ...]
    summed: tuple[tuple[str, int], ...]
    kind: str = "add"


def access(op: Op, shapes: Sequence[tuple[int, ...]]) -> Access | None:
    """The access pattern of an arithmetic op; ``None`` for any other op."""
    out = tuple(f"o{d}" for d in range(len(op.type.shape)))
    if op.name in ELEMENTWISE:
        return Access(out, (out,) * len(op.ins), ())
    if op.name == "reduce":
        dims = op.ints("dims")
        free = iter(out)
        operand = tuple(f"k{dims.index(d)}" if d in dims else next(free) for d in range(len(shapes[0])))
        summed = tuple((f"k{i}", shapes[0][d]) for i, d in enumerate(dims))
        kind = {"and": "min", "or": "max"}.get(op.text("kind"), op.text("kind"))
        return Access(out, (operand,), summed, kind)
    if op.name != "dot_general":
        return None
    lb, rb, lc, rc = (op.ints(k) for k in ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"))
    operands = []
    position = len(lb)
    for shape, batch, contract in zip(shapes, (lb, rb), (lc, rc), strict=True):
        names = []
        for d in range(len(shape)):
            if d in batch:
                names.append(f"o{batch.index(d)}")
            elif d in contract:
                names.append(f"k{contract.index(d)}")
            else:
                names.append(f"o{position}")
                position += 1
        operands.append(tuple(names))
    return Access(out, tuple(operands), tuple((f"k{i}", shapes[0][d]) for i, d in enumerate(lc)))


def combine(name: str, factors: Sequence[Fraction | None]) -> Fraction | None:
    """Factor of a result whose operands are ``factor`` times the specification's (``None``: zero or
    fixed).
    """
    given = [f for f in factors if f is not None]
    equal = given[0] if given and all(f == given[0] for f in given) else None
    match name:
        case "add" | "subtract":
            return equal
        case "multiply" | "dot_general":
            return math.prod(given, start=Fraction(1))
        case "divide":
            if len(given) != 2 or given[1] == 0:
                return None
            return given[0] / given[1]
        case "maximum" | "minimum":
            if equal is None or equal <= 0:
                return None  # the largest of the negatives is the smallest
            return equal if equal == 1 or len(given) == len(factors) else None  # a number stays as it is
        case "reduce":
            return equal if given else Fraction(1)
        case "select":
            branches = [f for f in factors[1:] if f is not None]
            if factors[0] not in (None, Fraction(1)) or any(f != branches[0] for f in branches):
                return None
            return branches[0] if branches else Fraction(1)
        case _:
            return Fraction(1) if all(f in (None, Fraction(1)) for f in factors) else None


def same_attributes(a: Op, b: Op) -> bool:
    """Attributes that change the meaning; dimension numbers are covered by the access patterns."""
    keys = ("direction", "kind") if a.name in ("compare", "reduce") else ()
    return all(a.attrs.get(k) == b.attrs.get(k) for k in keys) and a.type.sort == b.type.sort


def adds_up(op: Op, sums: Sequence[Reduced | None]) -> bool:
    """Is what an op makes of summands a summand of what it makes of their ``sums``, of those there are?

    Beside summands only zeros may be added, which whoever asks looks at.
    """
    over = [s.axes for s in sums if s is not None]
    match op.name:
        case _ if not over:
            return True
        case "multiply" | "dot_general":
            axes = [a for each in over for a in each]
            return len(axes) == len(set(axes))
        case "add" | "subtract":
            return len(set(over)) == 1
        case "divide":
            return sums[1] is None
        case "select":
            return sums[0] is None
        case "reduce":
            return op.text("kind") == "add"
        case name:
            return name in ("negate", "convert")
