"""One small step with its mistakes: a weighted sum of rows that lie on two ranks, minus a bias."""

from __future__ import annotations

import random
import time

from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.refuting.choosing import Choice
from orchestrator.refuting.edits import Edit
from orchestrator.refuting.proposals import Proposals
from orchestrator.refuting.scenarios import Scenario, random_inputs
from orchestrator.refuting.sites import Sites
from orchestrator.refuting.standing import Standings
from orchestrator.refuting.trials import Trials

from ..plans import pair


def specification(s: ProgramBuilder) -> None:
    x, w, bias = s.input("x", "f32[6,3]"), s.input("w", "f32[3]"), s.input("bias", "f32[3]")
    s.output("y", s.reduce(x, (0,), "add") * w - bias)
    s.output("z", x * 5)


def step(bug: str = "") -> Plan:
    """``bug``: "missing" has no reduction, "twice" counts double, "swapped" subtracts the other way round."""

    def plan(b: ProgramBuilder) -> None:
        x, w, bias = b.input("x", "f32[3,3]"), b.input("w", "f32[3]"), b.input("bias", "f32[3]")
        total = b.reduce(x, (0,), "add")
        total = total if bug == "missing" else b.all_reduce(total, "dp")
        total = total * 2 if bug == "twice" else total
        b.output("y", bias - total * w if bug == "swapped" else total * w - bias)
        b.output("z", x * 5)

    rows = {"dp": Shard(0)}
    return pair({"dp": 2}, specification, plan, {"x": rows, "w": {}, "bias": {}}, {"y": {}, "z": rows})


def trials(plan: Plan, seconds: float = 1e6) -> Trials:
    return Trials.of(plan, random_inputs(plan, random.Random(3)), time.monotonic() + seconds)


def standings(plan: Plan) -> Standings:
    scenario = Scenario(random_inputs(plan, random.Random(3)))
    return Standings(plan, scenario, scenario.expand(plan))


def value(plan: Plan, name: str, number: int = 0) -> str:
    """The result of the op of this name, the first unless told."""
    return [op.out for op in plan.classes[0].program.ops if op.name == name][number]


def repairs(plan: Plan) -> list[Edit]:
    """All edits after which every output is right, the likeliest first."""
    tried = trials(plan)
    wrong = tried.wrong()
    sites, known = Sites(plan, wrong), standings(plan)
    every = sorted(Proposals(sites, known).all(), key=Choice(plan, sites, known).key)
    return [edit for edit in every if tried.repairs(edit.apply(plan), wrong)]
