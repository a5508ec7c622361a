"""Ghosts: tensors that a proof computes besides the plan's, of which no claim speaks (obligation 21)."""

from __future__ import annotations

from ..errors import Rejected
from ..language.plan import Plan, Program

GHOSTS = frozenset(
    [
        "add",
        "subtract",
        "negate",
        "multiply",
        "divide",
        "exponential",
        "log",
        "not",
        "convert",
        "constant",
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "slice",
        "concatenate",
        "reduce",
        "dot_general",
    ]
)


def check_ghosts(plan: Plan, extended: Plan) -> None:
    """Obligation 21: the extended plan is the plan, with ghosts behind the ops of its programs."""
    for function, body in {"": plan, **plan.functions}.items():
        other = extended.functions[function] if function else extended
        if _around(body) != _around(other):
            raise Rejected(21, f"{function or 'the plan'} with ghosts is another one")
        for space in ("s", *body.classes):
            _check(body.program(space), other.program(space), f"{function} {space}".strip())


def _around(plan: Plan) -> tuple[object, ...]:
    """All but the programs' ops."""
    boxes = {c: cls.box for c, cls in plan.classes.items()}
    return plan.mesh, plan.groups, boxes, plan.inputs, plan.outputs, plan.ranges, plan.plays


def _check(program: Program, longer: Program, where: str) -> None:
    count = len(program.ops)
    kept = longer.inputs, longer.ops[:count], longer.outputs, longer.calls
    if kept != (program.inputs, program.ops, program.outputs, program.calls):
        raise Rejected(21, "the program with ghosts is another one", where)
    for op in longer.ops[count:]:
        said = f"{op.name} {op.attrs.get('kind', '')}".strip()
        if op.name not in GHOSTS or said in ("reduce max", "reduce min"):
            raise Rejected(21, f"a ghost is no {said}", f"{where}, op {op.result}")
