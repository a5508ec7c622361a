"""A plan with its calls written out, as a witness evaluates it."""

from __future__ import annotations

from dataclasses import replace

from ..language.ops import COLLECTIVES, Op
from ..language.plan import Plan, Program, Site
from ..reading.meeting import meetings


def inline(plan: Plan) -> Plan:
    """The plan without calls, as a witness evaluates it."""
    seqs: dict[tuple[Site, int], int] = {}

    def written(space: str) -> Program:
        ops, name, program = dict[str, Op](), dict[str, str](), plan.program(space)
        first = {results[0]: (site, operands, results) for site, (operands, results) in program.calls.items()}
        for op in program.ops:
            if op.name != "call":
                ops[op.result] = replace(op, operands=tuple(name.get(o, o) for o in op.operands))
            elif op.result in first:
                site, operands, results = first[op.result]
                body = plan.functions[site[0]].program(plan.role(site[0], space))
                local = dict(zip(body.inputs, (name.get(o, o) for o in operands), strict=True))
                for inner in body.ops:
                    attrs = dict(inner.attrs)
                    if inner.name in COLLECTIVES:
                        attrs["seq"] = -1 - seqs.setdefault((site, attrs["seq"]), len(seqs))
                    local[inner.result] = f"{site[0]}.{site[1]}.{inner.result}"
                    ops[local[inner.result]] = replace(
                        inner,
                        result=local[inner.result],
                        attrs=attrs,
                        operands=tuple(local[o] for o in inner.operands),
                    )
                name |= {r: local[v] for r, v in zip(results, body.outputs.values(), strict=True)}
        outputs = {n: name.get(v, v) for n, v in program.outputs.items()}
        types = dict(program.inputs) | {r: op.type for r, op in ops.items()}
        return Program(program.inputs, tuple(ops.values()), outputs, types, ops, {})

    if not plan.functions:
        return plan
    classes = {c: replace(cls, program=written(c)) for c, cls in plan.classes.items()}
    meets, messages = meetings(classes)
    return replace(
        plan, spec=written("s"), classes=classes, rendezvous=meets, messages=messages, functions={}
    )
