"""Where to look when an output has no proof: the first tensor without a relation whose operands have one.

Right plans hold tensors without relation too (a masked look-up before its sum), but what is made of them has
one again. So only chains of such tensors that reach the output count.
"""

from __future__ import annotations

from certificates.plan import Plan, RankClass, Relation

from .knowledge import Knowledge


def first_unrelated(plan: Plan, knowledge: Knowledge, output: Relation) -> str:
    """One line naming op, class and Python line, or nothing. A guess for people."""
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
            place = f" at {plan.sources[op.loc.source]}:{op.loc.line}" if op.loc else ""
            return f"first tensor without a relation: {op.name} {op.out} of {cls.name}{place}"
    return ""


def _related(knowledge: Knowledge, ref: str) -> bool:
    if knowledge.model.tensors.type(ref).sort != "Real" or knowledge.model.literal(ref) is not None:
        return True
    return ref in knowledge.partials or bool(knowledge.facts_for(ref))
