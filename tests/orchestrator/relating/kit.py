"""What tests of the matcher share: a plan related op by op, without a prover."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Placement
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Ref
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.matching import Matcher
from smtlib_emit.model import Model

from ..oracle import Numbers
from ..plans import pair

#: What a program computes from its inputs, by their names.
Formula = Callable[..., Value]


def formulas(
    mesh: Mapping[str, int],
    spec: Formula,
    plan: Formula,
    inputs: Mapping[str, tuple[str, str, Mapping[str, Placement]]],
    claimed: bool = False,
) -> Plan:
    """Two formulas over inputs: name -> (type there, type here, placements).

    Without a claim that their results are equal they are related like a function, for its callers.
    """

    def write(formula: Formula, side: int) -> Callable[[ProgramBuilder], None]:
        def inner(b: ProgramBuilder) -> None:
            values = {name: b.input(name, given[side]) for name, given in inputs.items()}
            b.output("out" if claimed else ("there", "here")[side], formula(b, **values))

        return inner

    layouts = {name: given[2] for name, given in inputs.items()}
    return pair(mesh, write(spec, 0), write(plan, 1), layouts, {"out": {}} if claimed else {})


def related(plan: Plan) -> tuple[Knowledge, Matcher]:
    """The plan with all ops matched in order, and nothing proved."""
    knowledge = Knowledge(Model(plan))
    knowledge.declare_inputs()
    matcher = Matcher(knowledge)
    matcher.index_specification(lambda _: False)
    for cls in plan.classes:
        for op in cls.program.ops:
            matcher.relate(f"{cls.name}:{op.out}")
    return knowledge, matcher


def facts(knowledge: Knowledge, ref: Ref) -> list[Fact]:
    """What is said of a tensor, each checked on numbers."""
    numbers = Numbers(knowledge.model.plan)
    found = [knowledge.facts[n] for n in knowledge.by_lhs.get(ref, ())]
    assert [numbers.failure(f) for f in found] == [None] * len(found)
    return found


def last(plan: Plan, cls: int = 0) -> str:
    """The tensor that a class's only output is."""
    (name,) = plan.classes[cls].program.outputs.values()
    return f"{plan.classes[cls].name}:{name}"
