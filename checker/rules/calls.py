"""Functions and calls: what a lemma about a function says at a call, and a plan with its calls written out.

The bodies of a function are a plan of their own. A stage about them speaks of any values of their inputs
that fulfil the lemma's assumptions, so of the operands of every call; its tensors are then that instance's.
"""

from __future__ import annotations

from dataclasses import replace

from ..language.ops import COLLECTIVES, Op
from ..reading.plan import Plan, Program, Site
from ..reading.proof import Fact, Reduced, Ref, Tensor


class Call:
    """One call, in the specification and in every class: names outside for what can be seen inside."""

    def __init__(self, plan: Plan, site: Site) -> None:
        body = plan.functions[site[0]]
        self.names: dict[Tensor, Tensor] = {}
        for space in ("s", *plan.classes):
            inside, (operands, results) = body.program(space), plan.program(space).calls[site]
            for name, value in zip(inside.inputs, operands, strict=True):
                self.names[Tensor(space, name)] = Tensor(space, value)
            for name, value in zip(inside.outputs.values(), results, strict=True):
                self.names.setdefault(Tensor(space, name), Tensor(space, value))

    def fact(self, fact: Fact) -> Fact:
        """A fact about inputs and outputs of the function, at this call."""
        return Fact(self._ref(fact.lhs), self._ref(fact.rhs), fact.coef, fact.symbols, fact.lhs_index,
                    fact.rhs_index)

    def _ref(self, ref: Ref) -> Ref:
        if isinstance(ref, Reduced):
            return replace(ref, of=tuple(self.names[t] for t in ref.of))
        return self.names.get(ref, ref)  # a literal stays


def tensors(fact: Fact) -> list[Tensor]:
    """The tensors of a fact, literals left out."""
    both = [t for ref in (fact.lhs, fact.rhs) for t in (ref.of if isinstance(ref, Reduced) else (ref,))]
    return [t for t in both if t.space[:1] != "#"]


def seen(body: Plan, outputs: bool) -> set[Tensor]:
    """Inputs of a function, with its output values or without."""
    programs = [(s, body.program(s)) for s in ("s", *body.classes)]
    return {Tensor(s, v) for s, p in programs for v in (*p.inputs, *(p.outputs.values() if outputs else ()))}


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
                body = plan.functions[site[0]].program(space)
                local = dict(zip(body.inputs, (name.get(o, o) for o in operands), strict=True))
                for inner in body.ops:
                    attrs = dict(inner.attrs)
                    if inner.name in COLLECTIVES:
                        attrs["seq"] = -1 - seqs.setdefault((site, attrs["seq"]), len(seqs))
                    local[inner.result] = f"{site[0]}.{site[1]}.{inner.result}"
                    ops[local[inner.result]] = replace(inner, result=local[inner.result], attrs=attrs,
                                                       operands=tuple(local[o] for o in inner.operands))
                name |= {r: local[v] for r, v in zip(results, body.outputs.values(), strict=True)}
        outputs = {n: name.get(v, v) for n, v in program.outputs.items()}
        types = dict(program.inputs) | {r: op.type for r, op in ops.items()}
        return Program(program.inputs, tuple(ops.values()), outputs, types, ops, {})

    if not plan.functions:
        return plan
    classes = {c: replace(cls, program=written(c)) for c, cls in plan.classes.items()}
    meets: dict[int, dict[str, Op]] = {}
    for c, cls in classes.items():
        for op in cls.program.ops:
            if op.name in COLLECTIVES:
                meets.setdefault(op.attrs["seq"], {})[c] = op
    return replace(plan, spec=written("s"), classes=classes, rendezvous=meets, functions={})
