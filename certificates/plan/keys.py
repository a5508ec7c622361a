"""Keys of packed rows lie in their range, as far as ops show; ranks that meet ship by one order."""

from __future__ import annotations

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan

from ..errors import FormatError


def check_rows(plan: Plan) -> None:
    """Ranks that meet ship rows of one order, and keys lie in their range: raises :class:`FormatError`."""
    for cls in plan.classes:
        for seq in cls.program.rows.shipped if cls.program.rows else ():
            ways = {
                p.rows.shipped.get(seq) if p.rows else None
                for p in (plan.by_class[c].program for c in plan.rendezvous(seq))
            }
            if len(ways) > 1:
                raise FormatError(
                    f"rendezvous {seq}: rows of different orders meet, or rows and plain tensors"
                )
    for name, program in (("", plan.specification), *((c.name, c.program) for c in plan.classes)):
        for order, (value, count) in (program.rows.keys if program.rows else {}).items():
            found = key_range(plan, name, value, {})
            if found is None or found[0] < 0 or found[1] >= count:
                said = f"{found[0]} to {found[1]}" if found else "anything, as far as its ops show"
                raise FormatError(f"keys of {order} are to lie in [0, {count}), and {value} is {said}")


def key_range(
    plan: Plan, cls: str, value: str, known: dict[tuple[str, str], tuple[int, int] | None]
) -> tuple[int, int] | None:
    """The least and the greatest number that an integer value of a class (``""``: the specification) may be,
    or ``None`` where its ops do not show it."""
    if (cls, value) not in known:
        known[cls, value] = None  # what rests on itself has no range
        program = plan.by_class[cls].program if cls else plan.specification
        known[cls, value] = (
            _input_range(plan, cls, value) if value in program.inputs else _op_range(plan, cls, value, known)
        )
    return known[cls, value]


def _op_range(
    plan: Plan, cls: str, value: str, known: dict[tuple[str, str], tuple[int, int] | None]
) -> tuple[int, int] | None:
    program = plan.by_class[cls].program if cls else plan.specification
    op = next(op for op in program.ops if op.out == value)
    if op.name == "constant" and op.type.sort == "Int":
        literal = op.attrs["value"]
        if isinstance(literal, Affine):
            return literal.interval(plan.by_class[cls].box if cls else {})
        return int(str(literal)), int(str(literal))
    if op.name == "iota":
        return 0, op.type.shape[op.integer("dim")] - 1
    types = program.types()
    if op.name == "convert" and types[op.ins[0]].sort == "Bool":
        return 0, 1
    kept = op.name in ("convert", "reshape", "broadcast_in_dim", "transpose", "slice", "concatenate")
    kept = kept or (op.name == "reduce" and op.text("kind") in ("max", "min"))
    if op.name in ("all_gather", "all_to_all"):
        sources = [(c, o.ins[0]) for c, o in plan.rendezvous(op.integer("seq")).items()]
    elif kept or op.name in ("select", "maximum", "minimum"):
        sources = [(cls, v) for v in op.ins[op.name == "select" :]]
    else:
        return None
    found = [key_range(plan, c, v, known) for c, v in sources]
    lows, highs = [r[0] for r in found if r], [r[1] for r in found if r]
    if len(lows) < len(found):
        return None
    low, high = (max if op.name == "maximum" else min), (min if op.name == "minimum" else max)
    return low(lows), high(highs)


def _input_range(plan: Plan, cls: str, value: str) -> tuple[int, int] | None:
    """The declared range; of a plan's input that of what it is made of, if relations give all of it."""
    if not cls:
        there = plan.ranges.get(value)
        return (there[0], there[1] - 1) if there else None
    given, lows, highs = 0, list[int](), list[int]()
    for relation in plan.inputs:
        for piece in relation.pieces if relation.plan == value and not relation.reduce else ():
            if piece.cls != cls:
                continue
            if relation.spec not in plan.ranges:
                return None
            digits = {s for form in piece.plan for s in form.symbols}
            size = 1
            for i, n in enumerate(piece.sizes):
                size *= n if f"z{i}" in digits else 1
            given += size
            lows.append(plan.ranges[relation.spec][0])
            highs.append(plan.ranges[relation.spec][1] - 1)
    whole = plan.by_class[cls].program.inputs[value].size
    return (min(lows), max(highs)) if lows and given == whole else None
