"""Where to look when an output has no proof: the first tensor without a relation whose operands have one."""

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
    needed = {cls.program.outputs[output]}
    for op in reversed(cls.program.ops):
        if op.out in needed:
            needed.update(op.ins)
    for op in cls.program.ops:
        ref = f"{cls.name}:{op.out}"
        if op.out not in needed or op.type.sort != "Real" or ref in knowledge.by_lhs:
            continue
        if knowledge.model.literal(ref) is None and not knowledge.moves(ref):
            place = f" at {plan.sources[op.loc.source]}:{op.loc.line}" if op.loc else ""
            return f"first tensor without a relation: {op.name} {op.out} of {cls.name}{place}"
    return ""
