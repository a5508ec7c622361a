"""Ops that are partial in the field's mathematics and total here, where nothing shows that they stay inside.

A claim says nothing of such values: `recip(0)` is some number to a solver, and NaN to PyTorch. Which ops are
partial is a column of the table of ops. Found here is what the way of computing shows by itself: a literal,
a sum of something positive and something not negative, an exponential. The rest is told, side by side.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from ..language.ops import ROWS, Op, named
from ..language.plan import Plan
from ..language.proof import Tensor
from ..rules.model import Model
from ..rules.roots import called

Place = tuple[str, Tensor]
"""A tensor of a function, or of the plan ("")."""
DEEP = 60
#: Ops whose result has the sign that all operands have.
ALL = frozenset(
    (
        *("select", "multiply", "minimum", "reduce", "dot_general", "sqrt", "rsqrt", "power", "convert"),
        *("broadcast_in_dim", "reshape", "transpose", "slice", "pad", "concatenate"),
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv"),
    )
)


class Domains:
    """Looks for what shows that operands lie where an op is defined."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.models = {"": Model(plan)} | {f: Model(p, f, plan) for f, p in plan.functions.items()}
        self.known: dict[tuple[Place, bool], bool] = {}

    def unshown(self) -> list[str]:
        """A line for each op, with how often on which side and where it stands first."""
        counts = Counter[tuple[str, str, bool]]()
        first: dict[tuple[str, str], str] = {}
        for function, model in self.models.items():
            for space in ("s", *model.plan.classes):
                for op in model.plan.program(space).ops:
                    row = ROWS.get(op.variant)
                    if row and row.defined != "." and not self.shown(function, space, op):
                        counts[op.name, row.defined, space == "s"] += 1
                        first.setdefault((op.name, row.defined), self._place(function, space, op))
        return [
            f"{name} where {defined} ({counts[name, defined, True]} in the specification, "
            f"{counts[name, defined, False]} in the plan), first {place}"
            for (name, defined), place in first.items()
        ]

    def _place(self, function: str, space: str, op: Op) -> str:
        inside = f"function {function}, " if function else ""
        at = f" {self.plan.sources[op.source[0]]}:{op.source[1]}" if op.source else ""
        return f"{inside}{space}:{op.result}{at}"

    def shown(self, function: str, space: str, op: Op) -> bool:
        """Do constants and signs show that the operands lie in the op's domain?"""
        model, x = self.models[function], [(function, Tensor(space, o)) for o in op.operands]
        last = model.constant(x[-1][1])
        if isinstance(last, Fraction) and op.name == "divide":
            return last != 0
        if isinstance(last, Fraction) and op.name == "power" and last.denominator == 1 and last >= 0:
            return True
        if op.name == "gather":
            given = {
                r.spec for r in self.plan.inputs if op.operands[1] == (r.spec if space == "s" else r.plan)
            }
            bounds = [self.plan.ranges.get(n) for n in given if not function]
            size = op.ins[0].shape[op.attrs["axis"]]
            return bool(bounds) and all(b is not None and b[0] >= 0 and b[1] <= size for b in bounds)
        return self.known_sign(x[1] if op.name == "divide" else x[0], op.name != "sqrt")

    def known_sign(self, place: Place, strict: bool, depth: int = 0) -> bool:
        """Is every element of a tensor positive (strict), or not negative, by the way it is computed?"""
        if (place, strict) not in self.known:
            self.known[place, strict] = depth < DEEP and self._sign(*place, strict, depth + 1)
        return self.known[place, strict]

    def _sign(self, function: str, tensor: Tensor, strict: bool, depth: int) -> bool:
        model = self.models[function]
        value, op = model.constant(tensor), model.producer(tensor)
        if isinstance(value, Fraction):
            return value > 0 or (value == 0 and not strict)
        if op is None:
            given = self.plan.operands(function, tensor.space, tensor.value) if function else []
            behind = [("", Tensor(c, o)) for c, o in given]
            return bool(given) and all(self.known_sign(place, strict, depth) for place in behind)
        if op.name == "call":
            return self.known_sign(called(self.plan, tensor, op), strict, depth)
        x = [(function, Tensor(tensor.space, o)) for o in op.operands]
        if op.name in ("exponential", "logistic") or (
            not strict and self._never_negative(model, tensor.space, op)
        ):
            return True
        if op.name in ("add", "maximum"):
            first = [self.known_sign(place, strict, depth) for place in x]
            if op.name == "maximum":
                return any(first)
            return any(first) and all(self.known_sign(place, False, depth) for place in x)
        if "seq" in op.attrs:
            meets = model.plan.meets(op).items()
            x = [(function, Tensor(space, o)) for space, met in meets for o in met.operands]
        if op.name == "divide":
            return self.known_sign(x[0], strict, depth) and self.known_sign(x[1], True, depth)
        behind = x[1:] if op.name == "select" else x
        return op.name in ALL and all(
            self.known_sign(place, strict or op.name == "rsqrt", depth) for place in behind
        )

    @staticmethod
    def _never_negative(model: Model, space: str, op: Op) -> bool:
        """Whatever the operands are: `abs`, a square, an even power."""
        if op.name == "power":
            exponent = model.constant(Tensor(space, op.operands[1]))
            return isinstance(exponent, Fraction) and exponent.denominator == 1 and exponent % 2 == 0
        square = op.name == "multiply" and op.operands[0] == op.operands[1]
        return square or op.name in named("sign", "plus")
