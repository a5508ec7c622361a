"""Keys of packed rows lie in their range, as far as ops show; ranks that meet ship by one order."""

from __future__ import annotations

from certificates.plan.bounds import Bounds
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
    bounds = Bounds(plan)
    for space, program in (("s", plan.specification), *((c.name, c.program) for c in plan.classes)):
        for order, (value, count) in (program.rows.keys if program.rows else {}).items():
            found = bounds.of(space, value)
            if found is None or found[0] < 0 or found[1] >= count:
                said = f"{found[0]} to {found[1]}" if found else "anything, as far as its ops show"
                raise FormatError(f"keys of {order} are to lie in [0, {count}), and {value} is {said}")
