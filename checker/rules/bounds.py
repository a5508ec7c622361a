"""The least and the greatest that an integer tensor holds, as far as the ops that compute it show.

From declared ranges, positions and constants, through ops whose results lie between bounds that those of
their operands give (interval arithmetic). Keys of packed rows rest on it (obligation 22), and premises
about computed positions (obligation 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

from ..language.affine import Affine
from ..language.ops import Op
from ..language.plan import Plan

MAX_DEEP = 100
Pair = tuple[int, int]


class Bounds:
    """Bounds of a plan's tensors, or of a function's; the inputs of a function have none."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._known: dict[tuple[str, str], Pair | None] = {}

    def of(self, space: str, value: str, depth: int = 0) -> Pair | None:
        """Both ends are reached by no element beyond; None where the ops do not show any."""
        if (space, value) not in self._known and depth <= MAX_DEEP:
            program = self.plan.program(space)
            given = value in program.inputs
            self._known[space, value] = (
                self._given(space, value) if given else self._computed(space, program.producers[value], depth)
            )
        return self._known.get((space, value))

    def _computed(self, space: str, op: Op, depth: int) -> Pair | None:
        if op.type.sort != "Int":
            return None
        if op.name == "constant":
            form = op.attrs["value"]
            low, high = form.interval(self.plan.box(space)) if isinstance(form, Affine) else (form, form)
            return int(low), int(high)
        if op.name == "iota":
            return 0, op.type.shape[op.attrs["dim"]] - 1
        if op.variant == "convert Bool Int":
            return 0, 1
        kind = op.attrs.get("kind")
        if kind not in (None, "add", "max", "min"):
            return None
        parts = []
        for where, operand in self._sources(space, op):
            found = self.of(where, operand, depth + 1)
            if found is None:
                return None
            parts.append(found)
        if not parts:
            return None
        if kind == "add":
            return _times(_joined(parts), (self._count(op),) * 2)
        return _RESULTS.get(op.name, _joined)(parts)

    def _sources(self, space: str, op: Op) -> list[tuple[str, str]]:
        if op.name in ("all_gather", "all_to_all", "all_reduce", "reduce_scatter"):
            return [(c, o.operands[0]) for c, o in self.plan.meets(op).items()]
        if op.name in _MOVED or op.name in _RESULTS:
            return [(space, o) for o in op.operands]
        return [(space, o) for o in op.operands[1:]] if op.name == "select" else []

    def _count(self, op: Op) -> int:
        """How many elements of the operands a sum adds up."""
        if op.name == "reduce":
            return op.ins[0].size // op.type.size
        return self.plan.groups[op.attrs["group"]].size

    def _given(self, space: str, value: str) -> Pair | None:
        """The declared range of an input; of a plan's input if relations give all of its elements."""
        plan = self.plan
        if space == "s":
            low, high = plan.ranges.get(value, (0, 0))
            return (low, high - 1) if value in plan.ranges else None
        covered, ends = 0, list[Pair]()
        for relation in plan.inputs:
            for piece in relation.pieces if relation.plan == value and relation.reduce is None else ():
                if piece.cls != space:
                    continue
                if relation.spec not in plan.ranges:
                    return None
                said = {s for f in piece.plan for s in f.names()}
                covered += math.prod(n for i, n in enumerate(piece.sizes) if f"z{i}" in said)
                low, high = plan.ranges[relation.spec]
                ends.append((low, high - 1))
        if covered != plan.program(space).types[value].size or not ends:
            return None
        return _joined(ends)


def _joined(parts: list[Pair]) -> Pair:
    return min(low for low, _ in parts), max(high for _, high in parts)


def _times(a: Pair, b: Pair) -> Pair:
    corners = [x * y for x, y in product(a, b)]
    return min(corners), max(corners)


_MOVED = ("convert", "reshape", "broadcast_in_dim", "transpose", "slice", "concatenate", "reduce")
#: Results that are none of the operands' elements.
_RESULTS: Mapping[str, Callable[[list[Pair]], Pair]] = {
    "add": lambda of: (of[0][0] + of[1][0], of[0][1] + of[1][1]),
    "subtract": lambda of: (of[0][0] - of[1][1], of[0][1] - of[1][0]),
    "negate": lambda of: (-of[0][1], -of[0][0]),
    "multiply": lambda of: _times(*of),
    "maximum": lambda of: (max(of[0][0], of[1][0]), max(of[0][1], of[1][1])),
    "minimum": lambda of: (min(of[0][0], of[1][0]), min(of[0][1], of[1][1])),
}
