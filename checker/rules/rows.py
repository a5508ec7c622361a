"""Packed rows (obligation 22), what a whole plan shows: keys lie in their range, ranks meet by one order.

What orders are within a program `reading/rows.py` has checked, and read as plain ops; `keys` and `shipped` of
a program are what it leaves to this module. A row whose key no rank owns would be 0 in the plain ops, and
anything where they run; so the range of keys is evident: from declared ranges, through ops that keep to them.
"""

from __future__ import annotations

from ..errors import Rejected
from ..language.affine import Affine
from ..language.plan import Plan

MAX_DEEP = 100
Known = dict[tuple[str, str], tuple[int, int] | None]
"""Least and greatest value of an integer tensor, by program and name."""


def check_rows(plan: Plan) -> None:
    """Keys lie in their range, ranks that meet ship rows of one order, and functions have no rows."""
    for function, body in plan.functions.items():
        if any(body.program(space).keys for space in ("s", *body.classes)):
            raise Rejected(22, "a function has no orders of rows", f"function {function}")
    for seq, ops in plan.rendezvous.items():
        if len({plan.program(c).shipped.get(seq) for c in ops}) > 1:
            raise Rejected(
                22, "rows of different orders meet, or rows and plain tensors", f"rendezvous {seq}"
            )
    known: Known = {}
    for space in ("s", *plan.classes):
        for order, (keys, count) in plan.program(space).keys.items():
            found = _bounds(plan, space, keys, known, 0)
            if found is None or found[0] < 0 or found[1] >= count:
                said = f"{found[0]} to {found[1]}" if found else "anything, as far as its ops show"
                raise Rejected(
                    22, f"keys of {order} are to lie in [0, {count}), and {keys} is {said}", f"class {space}"
                )


_MOVED = ("convert", "reshape", "broadcast_in_dim", "transpose", "slice")


def _bounds(plan: Plan, space: str, value: str, known: Known, depth: int) -> tuple[int, int] | None:
    """The smallest and the largest that an integer tensor may hold; None where its ops do not show it."""
    if (space, value) not in known and depth <= MAX_DEEP:
        program = plan.program(space)
        of = _given if value in program.inputs else _computed
        known[space, value] = of(plan, space, value, known, depth)
    return known.get((space, value))


def _computed(plan: Plan, space: str, value: str, known: Known, depth: int) -> tuple[int, int] | None:
    op = plan.program(space).producers[value]
    if op.name == "constant" and op.type.sort == "Int":
        form = op.attrs["value"]
        low, high = form.interval(plan.box(space)) if isinstance(form, Affine) else (form, form)
        return int(low), int(high)
    if op.name == "iota":
        return 0, op.type.shape[op.attrs["dim"]] - 1
    if op.variant == "convert Bool Int":
        return 0, 1
    if op.name in ("all_gather", "all_to_all"):
        sources = [(c, o.operands[0]) for c, o in plan.meets(op).items()]
    elif op.name in _MOVED or (op.name == "reduce" and op.attrs["kind"] in ("max", "min")):
        sources = [(space, op.operands[0])]
    elif op.name in ("select", "concatenate", "maximum", "minimum"):
        sources = [(space, o) for o in op.operands[op.name == "select" :]]
    else:
        return None
    parts = [_bounds(plan, c, o, known, depth + 1) for c, o in sources]
    ends = [p for p in parts if p is not None]
    if len(ends) < len(parts):
        return None
    choose = {"maximum": (max, max), "minimum": (min, min)}.get(op.name, (min, max))
    return choose[0](p[0] for p in ends), choose[1](p[1] for p in ends)


def _given(plan: Plan, space: str, value: str, _known: Known, _depth: int) -> tuple[int, int] | None:
    """The declared range of an input; of a plan's input if relations give all of its elements."""
    if space == "s":
        low, high = plan.ranges.get(value, (0, 0))
        return (low, high - 1) if value in plan.ranges else None
    covered, ends = 0, list[tuple[int, int]]()
    for relation in plan.inputs:
        for piece in relation.pieces if relation.plan == value and relation.reduce is None else ():
            if piece.cls != space:
                continue
            if relation.spec not in plan.ranges:
                return None
            said = {s for f in piece.plan for s in f.names()}
            volume = 1
            for i, n in enumerate(piece.sizes):
                volume *= n if f"z{i}" in said else 1
            covered += volume
            low, high = plan.ranges[relation.spec]
            ends.append((low, high - 1))
    if covered != plan.program(space).types[value].size or not ends:
        return None
    return min(p[0] for p in ends), max(p[1] for p in ends)
