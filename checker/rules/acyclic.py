"""No value of a plan rests on itself, however rank classes meet (obligation 14).

A program alone is in static single assignment. A circle passes from class to class at a rendezvous or in a
message; then the definitions of its ops are equations that need not have a solution, and what follows says
nothing of a run. A rendezvous is one node for all classes that its rank lists connect; what a class receives
rests on what the classes that it may come from send, so a class whose ranks take turns along an axis is
refused. A function is looked at once: what its results rest on, of which inputs in which classes, stands for
its ops at every call, as a circle of the written-out plan either stays within one instance or enters it at
inputs and leaves it at results.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..errors import Rejected, Undecided
from ..language.ops import COLLECTIVES
from ..language.plan import Group, Plan, apart

MAX_BITS = 1 << 31
Node = tuple[Any, ...]
Rests = tuple[dict[Node, int], list[list[tuple[str, int]]]]
"""Per class and value of a function a number, and per number the inputs (class, position) it rests on."""


def check_acyclic(plan: Plan) -> None:
    """The graph of all ops of all classes, calls written out, has no circle; else `Rejected`."""
    functions = {f: _rests(body, _ordered(body, {}, f"function {f}")) for f, body in plan.functions.items()}
    _ordered(plan, functions, "")


def joined(plan: Plan, group: Group) -> dict[str, int]:
    """Numbers of classes, equal where rank lists connect them (or might: a group without factorisation)."""
    if not group.factorised:
        return dict.fromkeys(plan.classes, 0)
    keep = [i for i, (a, _) in enumerate(plan.mesh) if a not in group.axes]
    rest = {c: tuple(cls.box[i] for i in keep) for c, cls in plan.classes.items()}
    label = {c: i for i, c in enumerate(plan.classes)}
    for c in plan.classes:
        for other in plan.classes:
            if label[c] != label[other] and not apart(rest[c], rest[other]):
                old = label[other]
                label = {k: label[c] if n == old else n for k, n in label.items()}
    return label


def _ordered(plan: Plan, functions: dict[str, Rests], where: str) -> dict[Node, list[Node]]:
    """What each node needs, in an order in which all it needs stands before it."""
    needs: dict[Node, list[Node]] = {}
    labels = {
        g: joined(plan, plan.groups[g])
        for g in {op.attrs["group"] for ops in plan.rendezvous.values() for op in ops.values()}
    }
    for c, cls in plan.classes.items():
        for op in cls.program.ops:
            order = cls.program.after.get(op.result)
            operands: list[Node] = [(c, o) for o in (*op.operands, *([order] if order else []))]
            if op.name in COLLECTIVES:
                meeting = ("rendezvous", op.attrs["seq"], labels[op.attrs["group"]][c])
                needs[meeting] = needs.get(meeting, []) + operands
                operands = [meeting]
            elif op.name == "recv":
                sent = plan.messages[op.attrs["seq"]].send
                operands = [(k, sent[k].operands[0]) for k in plan.reached(cls, op)]
            needs[c, op.result] = [] if op.name == "call" else operands
        for site, (_, results) in cls.program.calls.items():
            role = plan.role(site[0], c)
            values = plan.functions[site[0]].program(role).outputs.values()
            number, inputs = functions[site[0]]
            for result, value in zip(results, values, strict=True):
                passed = ("call", *site, number[role, value])
                needs[c, result] = [passed]
                if passed not in needs:
                    plays = {plan.role(site[0], k): k for k in plan.callers(site)}
                    given = [
                        (plays[r], plan.program(plays[r]).calls[site][0][i]) for r, i in inputs[passed[3]]
                    ]
                    needs[passed] = [(k, v) for k, v in given if v in plan.program(k).producers]
    try:
        return {node: needs.get(node, []) for node in TopologicalSorter(needs).static_order()}
    except CycleError as error:
        circle = [
            " ".join(map(str, node[:3])) if len(node) > 2 else f"{node[0]}:{node[1]}"
            for node in error.args[1]
        ]
        shown = " <- ".join(circle[:12]) + (" ..." if len(circle) > 12 else "")
        raise Rejected(14, f"a value rests on itself: {shown}", where) from None


def _rests(body: Plan, needs: dict[Node, list[Node]]) -> Rests:
    """What the outputs of a function rest on, by bits, one per input and class."""
    entries = [(c, i, name) for c in body.classes for i, name in enumerate(body.program(c).inputs)]
    if len(entries) * len(needs) > MAX_BITS:
        raise Undecided("a function has too many inputs to say what its results rest on")
    reach: dict[Node, int] = {(c, name): 1 << k for k, (c, _, name) in enumerate(entries)}
    for node, before in needs.items():
        bits = reach.get(node, 0)
        for b in before:
            bits |= reach[b]
        reach[node] = bits
    number: dict[Node, int] = {}
    kinds: dict[int, int] = {}
    for c in body.classes:
        for value in body.program(c).outputs.values():
            number[c, value] = kinds.setdefault(reach[c, value], len(kinds))
    return number, [[(c, i) for k, (c, i, _) in enumerate(entries) if bits >> k & 1] for bits in kinds]
