"""The law `root`: `sqrt(p) * sqrt(p) = p` where p cannot be negative (obligation 7)."""

from __future__ import annotations

from fractions import Fraction

from ..language.ops import Op, named
from ..language.plan import Plan
from ..language.proof import Element, Reduced, Ref, Tensor
from .model import Model
from .normalise import Node

#: Results that are not negative whatever the operands are, or if all operands (of all ranks) are not.
ALWAYS, CLOSED = named("sign", "plus"), named("sign", "keeps") | {"call"}
MAX_CONE = 10_000


def holds(model: Model, left: Node, right: Node) -> bool:
    """Is `left = right` an instance? `p` is a tensor's element or a positive literal; also, for a
    positive literal c, `sqrt(c) * recip(sqrt(c)) = 1`."""
    match left, right:
        case ("mul", ("fsqrt", p), ("fsqrt", q)), r:
            positive = isinstance(p, tuple) and p[0] == "lit" and p[1] > 0
            return bool(p == q == r and (positive or (isinstance(p, Element) and nonnegative(model, p.ref))))
        case ("mul", ("fsqrt", ("lit", p)), ("recip", ("fsqrt", ("lit", q)))), ("lit", r):
            return bool(p == q and p > 0 and r == 1)
    return False


def called(plan: Plan, tensor: Tensor, op: Op) -> tuple[str, Tensor]:
    """What the result of a call is inside its function."""
    function = op.attrs["function"]
    return function, Tensor(plan.role(function, tensor.space), op.attrs["value"])


def nonnegative(model: Model, ref: Ref) -> bool:
    """Does the way in which a tensor is computed show that it has no negative element?

    The result of a call is what its function computes; an input of a function is its operand at every call.
    """
    caller = model.caller or model.plan
    work = [(model.function, t) for t in (ref.of if isinstance(ref, Reduced) else (ref,))]
    seen = set(work)
    while work and len(seen) <= MAX_CONE:
        function, tensor = work.pop()
        here = Model(caller.functions[function] if function else caller)
        value, op = here.constant(tensor), here.producer(tensor)
        if (isinstance(value, Fraction) and value >= 0) or (op is not None and op.name in ALWAYS):
            continue
        if op is None and function and tensor.space[:1] != "#":
            behind = {("", Tensor(c, o)) for c, o in caller.operands(function, tensor.space, tensor.value)}
        elif op is None or op.name not in CLOSED:
            return False
        elif op.name == "multiply" and op.operands[0] == op.operands[1]:
            continue
        elif op.name == "call":
            behind = {called(caller, tensor, op)}
        else:
            meets = here.plan.meets(op) if "seq" in op.attrs else {tensor.space: op}
            behind = {(function, Tensor(space, o)) for space, met in meets.items() for o in met.operands}
        work += behind - seen
        seen |= behind
    return not work
