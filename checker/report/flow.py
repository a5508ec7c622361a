"""The flow of the step: the specification in parts, with the stages of the proof that lie there.

A part is a run of ops between calls, or a run of calls of one function (a layer, mostly).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..language.ops import COLLECTIVES, Op
from ..language.plan import Plan, Program
from ..language.proof import CallStage, Fact, Proof, Stage, Tensor

FEW = 3


@dataclass
class Part:
    """Calls of `function` (how many), or ops of the main program ("")."""

    function: str
    calls: int = 0
    ops: int = 0
    words: Counter[str] = field(default_factory=Counter)
    places: dict[str, None] = field(default_factory=dict)
    stages: int = 0


def parts(plan: Plan, facts: tuple[Fact, ...], proof: Proof) -> list[Part]:
    """The parts in order, with the number of stages whose goal lies there; calls count the lemma's."""
    found: list[Part] = []
    where: dict[str, Part] = {}
    first = {results[0]: site for site, (_, results) in plan.spec.calls.items()}
    for op in plan.spec.ops:
        function = op.attrs["function"] if op.name == "call" else ""
        if not found or found[-1].function != function:
            found.append(Part(function))
        part = found[-1]
        where[op.result] = part
        if function:
            part.calls += op.result in first
            continue
        part.ops += 1
        part.words[op.name] += 1
        if op.source:
            part.places.setdefault(f"{plan.sources[op.source[0]]}:{op.source[1]}")
    for part in found:
        if part.function:
            body = plan.functions[part.function].spec
            part.ops = len(body.ops)
            part.words = Counter(op.name for op in body.ops)
            part.places = _places(plan, body)
            part.stages = sum(len(m.stages) for m in proof.lemmas if m.function == part.function)
    for stage in proof.stages:
        if not isinstance(stage, CallStage) and (at := _where(facts, stage)) in where:
            where[at].stages += 1
    return found


def _where(facts: tuple[Fact, ...], stage: Stage) -> str:
    """The value of the specification that the goal of a stage speaks of."""
    right = facts[stage.goal].rhs
    return right.value if isinstance(right, Tensor) and right.space == "s" else ""


def _places(plan: Plan, body: Program) -> dict[str, None]:
    return {f"{plan.sources[op.source[0]]}:{op.source[1]}": None for op in body.ops if op.source}


def collectives(plan: Plan) -> Mapping[str, Counter[str]]:
    """Per process group how many collectives of each kind a rank takes part in, calls written out."""
    found: dict[str, Counter[str]] = {name: Counter() for name in plan.groups}
    for space, cls in plan.classes.items():
        mine: dict[str, Counter[str]] = {name: Counter() for name in plan.groups}
        times = Counter(f for f, _ in cls.program.calls)
        bodies: list[tuple[tuple[Op, ...], int]] = [(cls.program.ops, 1)]
        bodies += [(plan.functions[f].program(plan.role(f, space)).ops, n) for f, n in times.items()]
        for ops, n in bodies:
            for op in ops:
                if op.name in COLLECTIVES:
                    mine[op.attrs["group"]][op.name] += n
        for name, counts in mine.items():
            found[name] |= counts
    return found
