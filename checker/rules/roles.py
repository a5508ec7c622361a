"""The role of each input in a run of many steps: given anew, constant, or else a state.

The first two are declared in the plan file, and nothing proves them. A claim is the inductive invariant of a
run only if every state leaves the step under the relation that it enters under.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..language.plan import Plan, Relation

Stated = dict[tuple[str, str], set[tuple[Any, ...]]]


def role(plan: Plan, name: str) -> str:
    return "given anew" if name in plan.given else "constant" if name in plan.constants else "a state"


def states(plan: Plan) -> list[str]:
    """Inputs of both sides that a relation ties and that nobody declares to be anything else."""
    tied = dict.fromkeys(n for r in plan.inputs for n in (r.spec, r.plan))
    return [n for n in tied if role(plan, n) == "a state"]


def broken(plan: Plan) -> list[str]:
    """Why the states do not leave the step as they enter it; empty if they do."""
    reasons: dict[str, None] = {}
    for r in plan.inputs:
        roles = role(plan, r.spec), role(plan, r.plan)
        if roles[0] != roles[1]:
            reasons[f"{r.spec} is {roles[0]}, {r.plan}, to which it is tied, is {roles[1]}"] = None
    entering, leaving = _stated(plan.inputs), _stated(plan.outputs)
    for (side, name), before in entering.items():
        if role(plan, name) != "a state":
            continue
        owners = {"s"} if side == "specification" else {p.cls for *_, p in before}
        if not all(name in plan.program(owner).outputs for owner in owners):
            reasons[f"{name} is read but leaves no value; it is neither declared given nor constant"] = None
        elif before != leaving.get((side, name)):
            reasons[f"{side} state {name} leaves the step under another relation than it enters"] = None
    for name in plan.ranges:
        if role(plan, name) == "a state":
            reasons[f"the declared range of the state {name} is not re-established"] = None
    return list(reasons)


def _stated(relations: Sequence[Relation]) -> Stated:
    """What relations say of each tensor, in whatever order and grouping."""
    found: Stated = {}
    for r in relations:
        pieces = {(r.spec, r.plan, r.coef, r.reduce, p) for p in r.pieces}
        for key in (("specification", r.spec), ("plan", r.plan)):
            found.setdefault(key, set()).update(pieces)
    return found
