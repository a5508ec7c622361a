"""Packed rows (obligation 22), what a whole plan shows: keys lie in their range, ranks meet by one order.

What orders are within a program `reading/rows.py` has checked, and read as plain ops; `keys` and `shipped` of
a program are what it leaves to this module. A row whose key no rank owns would be 0 in the plain ops, and
anything where they run; so the range of keys is evident (`bounds.py`).
"""

from __future__ import annotations

from ..errors import Rejected
from ..language.plan import Plan
from .bounds import Bounds


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
    bounds = Bounds(plan)
    for space in ("s", *plan.classes):
        for order, (keys, count) in plan.program(space).keys.items():
            found = bounds.of(space, keys)
            if found is None or found[0] < 0 or found[1] >= count:
                said = f"{found[0]} to {found[1]}" if found else "anything, as far as its ops show"
                raise Rejected(
                    22, f"keys of {order} are to lie in [0, {count}), and {keys} is {said}", f"class {space}"
                )
