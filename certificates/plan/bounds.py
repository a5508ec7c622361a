"""The range of an integer tensor's elements, as far as the ops that compute it show.

Interval arithmetic from declared ranges, positions and constants. The checker has a rule of its own
(``checker/rules/bounds.py``); a test compares the two on random programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod

from .affine import Affine
from .plan import Plan
from .program import Op
from .types import TensorType

#: So many ops are followed, one after another.
MAX_DEEP = 100
_Ends = tuple[int, int]


class Bounds:
    """The least and the greatest of every tensor of a plan; ``s`` is the space of the specification."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        programs = {"s": plan.specification, **{c.name: c.program for c in plan.classes}}
        self.inputs = {space: program.inputs for space, program in programs.items()}
        self.ops = {space: {op.out: op for op in program.ops} for space, program in programs.items()}
        self.known: dict[tuple[str, str], _Ends | None] = {}

    def of(self, space: str, value: str, deep: int = 0) -> _Ends | None:
        """Both ends included; ``None`` where no range is shown."""
        if (space, value) in self.known:
            return self.known[space, value]
        if deep > MAX_DEEP:
            return None
        op = self.ops[space].get(value)
        found = self._result(space, op, deep) if op else self._input(space, value)
        self.known[space, value] = found
        return found

    def _result(self, space: str, op: Op, deep: int) -> _Ends | None:
        if op.type.sort != "Int":
            return None
        match op.name:
            case "constant":
                return self._literal(space, op)
            case "iota":
                return 0, op.type.shape[op.integer("dim")] - 1
            case "convert" if self._type(space, op.ins[0]).sort == "Bool":
                return 0, 1
            case "all_gather" | "all_to_all" | "all_reduce" | "reduce_scatter":
                places = [(c, o.ins[0]) for c, o in self.plan.meets(op).items()]
            case "select":
                places = [(space, v) for v in op.ins[1:]]
            case name if name in _KEEP or name in _COMPUTED:
                places = [(space, v) for v in op.ins]
            case _:
                return None
        ranges = []
        for where, operand in places:
            found = self.of(where, operand, deep + 1)
            if found is None:
                return None
            ranges.append(found)
        if "kind" not in op.attrs:
            return _COMPUTED.get(op.name, _hull)(ranges) if ranges else None
        return self._reduced(space, op, _hull(ranges))

    def _reduced(self, space: str, op: Op, of: _Ends) -> _Ends | None:
        kind = op.text("kind")
        if kind in ("max", "min"):
            return of
        if kind != "add":
            return None
        if op.name == "reduce":
            count = self._type(space, op.ins[0]).size // op.type.size
        else:
            count = self.plan.groups[op.text("group")].size
        return _scaled(of, (count, count))

    def _literal(self, space: str, op: Op) -> _Ends | None:
        value = op.attrs["value"]
        if isinstance(value, Affine):
            return value.interval(self.plan.by_class[space].box if space != "s" else {})
        return int(str(value)), int(str(value))

    def _type(self, space: str, value: str) -> TensorType:
        return self.inputs[space].get(value) or self.ops[space][value].type

    def _input(self, space: str, value: str) -> _Ends | None:
        """What is declared; of a plan's input the range of what it is made of, if that is all of it."""
        declared = self.plan.ranges
        if space == "s":
            return (declared[value][0], declared[value][1] - 1) if value in declared else None
        given, ranges = 0, list[_Ends]()
        for relation in self.plan.inputs:
            pieces = [p for p in relation.pieces if p.cls == space] if relation.plan == value else []
            if not pieces or relation.reduce:
                continue
            if relation.spec not in declared:
                return None
            low, high = declared[relation.spec]
            ranges.append((low, high - 1))
            for piece in pieces:
                digits = {s for form in piece.plan for s in form.symbols}
                given += prod(n for i, n in enumerate(piece.sizes) if f"z{i}" in digits)
        return _hull(ranges) if ranges and given == self.inputs[space][value].size else None


def _hull(ranges: list[_Ends]) -> _Ends:
    return min(r[0] for r in ranges), max(r[1] for r in ranges)


def _scaled(a: _Ends, b: _Ends) -> _Ends:
    ends = [x * y for x, y in product(a, b)]
    return min(ends), max(ends)


#: Ops each element of whose result is one of the operands', or follows from its kind.
_KEEP = ("convert", "reshape", "broadcast_in_dim", "transpose", "slice", "concatenate", "reduce")
_COMPUTED: Mapping[str, Callable[[list[_Ends]], _Ends]] = {
    "add": lambda r: (r[0][0] + r[1][0], r[0][1] + r[1][1]),
    "subtract": lambda r: (r[0][0] - r[1][1], r[0][1] - r[1][0]),
    "negate": lambda r: (-r[0][1], -r[0][0]),
    "multiply": lambda r: _scaled(r[0], r[1]),
    "maximum": lambda r: (max(r[0][0], r[1][0]), max(r[0][1], r[1][1])),
    "minimum": lambda r: (min(r[0][0], r[1][0]), min(r[0][1], r[1][1])),
}
