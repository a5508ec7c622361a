"""Where to look when an output has no proof: an op without model, or the first tensor without a relation.

Right plans hold tensors without relation too (a masked look-up before its sum), but what is made of them has
one again. So only chains of such tensors that reach the output count.
"""

from __future__ import annotations

from certificates.ir import COLLECTIVES, Op
from certificates.plan import Plan, RankClass, Relation
from smtlib_emit.errors import NoDefinition

from .knowledge import Knowledge


def hint(plan: Plan, knowledge: Knowledge, output: Relation) -> str:
    """One line naming op, class and Python line, or nothing. A guess for people."""
    return without_model(plan, knowledge, output) or first_unrelated(plan, knowledge, output)


def without_model(plan: Plan, knowledge: Knowledge, output: Relation) -> str:
    """A collective that the output depends on and that no premise can describe (``docs/certificate.md``)."""
    for name in dict.fromkeys(p.cls for p in output.pieces):
        cls = plan.by_class[name]
        for op in _cone(cls, output.plan):
            if op.name not in COLLECTIVES:
                continue
            try:
                knowledge.model.group(f"{name}:{op.out}")
            except NoDefinition as error:
                return f"no model of {error}{_place(plan, op)}"
            if op.name == "all_to_all" and op.integer("split_dim") == op.integer("concat_dim"):
                what = f"{op.name} {op.out} of {name}, which splits and joins one dimension"
                return f"no model of {what}{_place(plan, op)}"
    return ""


def first_unrelated(plan: Plan, knowledge: Knowledge, output: Relation) -> str:
    """The first op of the last chain of unrelated tensors that reaches the output."""
    for name in dict.fromkeys(p.cls for p in output.pieces):
        found = _first(plan, knowledge, plan.by_class[name], output.plan)
        if found:
            return found
    return ""


def _first(plan: Plan, knowledge: Knowledge, cls: RankClass, output: str) -> str:
    reaching = {cls.program.outputs[output]}
    for op in reversed(cls.program.ops):
        if op.out in reaching:
            if _related(knowledge, f"{cls.name}:{op.out}"):
                reaching.discard(op.out)
            else:
                reaching.update(op.ins)
    for op in cls.program.ops:
        if op.out in reaching:
            return f"first tensor without a relation: {op.name} {op.out} of {cls.name}{_place(plan, op)}"
    return ""


def _cone(cls: RankClass, output: str) -> list[Op]:
    """Ops that the output depends on at its own rank, in program order."""
    needed = {cls.program.outputs[output]}
    for op in reversed(cls.program.ops):
        if op.out in needed:
            needed.update(op.ins)
    return [op for op in cls.program.ops if op.out in needed]


def _place(plan: Plan, op: Op) -> str:
    return f" at {plan.sources[op.loc.source]}:{op.loc.line}" if op.loc else ""


def _related(knowledge: Knowledge, ref: str) -> bool:
    if knowledge.model.tensors.type(ref).sort != "Real" or knowledge.model.literal(ref) is not None:
        return True
    return ref in knowledge.partials or bool(knowledge.facts_for(ref))
