"""Functions of a plan file: one body per program for code that the step runs many times, such as a layer.

A call site names a function and an instance; the specification and every rank class call each instance once.
The meaning of a plan with functions is that of :func:`inline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from certificates.plan.calls import Site, calls
from certificates.plan.plan import Plan
from certificates.plan.slices import ground

from .ops import CALL, COLLECTIVES
from .program import Op, Program


def body_plan(plan: Plan, name: str) -> Plan:
    """A function as a problem of its own, without relations: its bodies on the plan's mesh, or on that of a
    slice.

    An input of the specification's body has a range if its operand at every call is an input with one.
    """
    function = plan.functions[name]
    mesh, groups, classes = ground(plan, function)
    return replace(
        plan, name=name, mesh=mesh, groups=groups, specification=function.specification, classes=classes,
        inputs=(), outputs=(),
        ranges=plan.operand_ranges.get(name, {}), provenance={}, functions={}, given=(), constants=(),
        schedule=None,
    )  # fmt: skip


def inline(plan: Plan) -> Plan:
    """The same plan without functions, and without a schedule, which numbers the ops of a program that calls.
    Values outside calls, results included, keep their names."""
    plan = plan if plan.schedule is None else replace(plan, schedule=None)
    if not plan.functions:
        return plan
    seqs = _Sequences(plan)
    specification = _inlined(
        plan.specification, {f: g.specification for f, g in plan.functions.items()}, seqs
    )
    classes = tuple(
        replace(c, program=_inlined(c.program, _bodies(plan, c.name), seqs)) for c in plan.classes
    )
    return replace(plan, specification=specification, classes=classes, functions={})


def _bodies(plan: Plan, cls: str) -> dict[str, Program]:
    """The bodies that a class may run."""
    roles = {name: plan.role(name, cls) for name in plan.functions}
    return {name: plan.functions[name].classes[role] for name, role in roles.items() if role}


class _Sequences:
    """Fresh rendezvous numbers: one per rendezvous of a function and instance."""

    def __init__(self, plan: Plan) -> None:
        used = [op.integer("seq") for c in plan.classes for op in c.program.ops if "seq" in op.attrs]
        self._next = 1 + max(used, default=-1)
        self._known: dict[tuple[Site, int], int] = {}

    def number(self, site: Site, seq: int) -> int:
        key = (site, seq)
        if key not in self._known:
            self._known[key] = self._next
            self._next += 1
        return self._known[key]


def _inlined(program: Program, bodies: Mapping[str, Program], seqs: _Sequences) -> Program:
    fresh = 1 + max((int(op.out[1:]) for op in program.ops), default=-1)
    ops: list[Op] = []
    name: dict[str, str] = {}
    sites = {c.results[0]: c for c in calls(program)}
    for op in program.ops:
        if op.name != CALL:
            ops.append(replace(op, ins=tuple(name.get(v, v) for v in op.ins)))
        elif op.out in sites:
            call = sites[op.out]
            body = bodies[call.function]
            local = {i: name.get(v, v) for i, v in zip(body.inputs, call.ins, strict=True)}
            shown: dict[str, str] = {}
            for result, value in zip(call.results, body.outputs.values(), strict=True):
                shown.setdefault(value, result)
            for inner in body.ops:
                attrs = dict(inner.attrs)
                if inner.name in COLLECTIVES:
                    attrs["seq"] = seqs.number(call.site, inner.integer("seq"))
                out = shown.get(inner.out, f"%{fresh}")
                fresh += inner.out not in shown
                ops.append(replace(inner, out=out, ins=tuple(local[v] for v in inner.ins), attrs=attrs))
                local[inner.out] = out
            name |= {r: local[v] for r, v in zip(call.results, body.outputs.values(), strict=True)}
    return Program(program.inputs, tuple(ops), {n: name.get(v, v) for n, v in program.outputs.items()})
