"""Messages (obligation 19): what is received is what was sent, once, by the rank that both ends mean.

`to` of the sender and `from` of the receiver are inverse to each other on all of both boxes, so the points
that send a message and those that receive it are in a bijection: none is lost, doubled or left waiting.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import Rejected
from ..language.affine import Affine, evident
from ..language.ops import MESSAGES, Op
from ..language.plan import Plan, RankClass

Ranges = Mapping[str, tuple[int, int]]


def check_messages(plan: Plan) -> None:
    """Both ends of every message; a function has none."""
    for function, body in plan.functions.items():
        if body.messages:
            raise Rejected(19, "a function has no messages", f"function {function}")
    for cls in plan.classes.values():
        for op in cls.program.ops:
            if op.name in MESSAGES:
                problem = _problem(plan, cls, op)
                if problem:
                    raise Rejected(19, problem, f"class {cls.name}, {op.name} {op.result}")


def _problem(plan: Plan, cls: RankClass, op: Op) -> str | None:
    """One end: its forms stay in the mesh and at their time, and every class that they reach has the other
    end, of this type, whose forms lead back."""
    (key, back), other = (("to", "from"), "recv") if op.name == "send" else (("from", "to"), "send")
    box = plan.box(cls.name)
    single = {a: Affine(lo) if hi == lo + 1 else Affine.symbol(a) for a, (lo, hi) in box.items()}
    forms = {a: f.substitute(single) for (a, _), f in zip(plan.mesh, op.attrs[key], strict=True)}
    if not all(evident(forms[a], 0, n, box) for a, n in plan.mesh):
        return "there is no such rank"
    if any(forms[a] != single[a] for a in plan.time):
        return "a message goes to another time"
    for name in plan.reached(cls, op):
        end = getattr(plan.messages[op.attrs["seq"]], other).get(name)
        if end is None or end.type != op.type:
            return f"class {name} has no {other} of this number and type"
        if [f.substitute(forms) for f in end.attrs[back]] != [single[a] for a, _ in plan.mesh]:
            return f"the {other} of class {name} names another rank"
    return None
