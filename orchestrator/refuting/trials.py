"""Does a plan, edited, keep its output relations? Evaluated at true sizes on the inputs of a few scenarios.

The scenarios' networks are shared: of an edited plan only what rests on an op that is another one is made and
computed. What is said here is a guess in floating point; an edit is suggested only after it was proved.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, relation_facts

from ..errors import EvaluationError
from ..evaluating.network import Expansion, Work
from .scenarios import Blocks, Scenario, random_inputs
from .search import SIZES, difference, places

#: A network of more nodes is made anew.
_NODES = 200_000


@dataclass
class Trials:
    """Trials of plans with one specification and one mesh. All of them together are ``work``."""

    plan: Plan
    scenarios: list[Scenario]
    work: Work
    #: Plans that were evaluated.
    count: int = 0
    _facts: list[list[Fact]] = field(default_factory=list)
    #: Outputs that cannot be evaluated, so that nothing is said of them.
    _unseen: set[int] = field(default_factory=set)
    #: The plan itself, by scenario.
    _bases: dict[int, Expansion] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, inputs: Mapping[str, Blocks], work: Work, more: Sequence[int] = (3, 6)) -> Trials:
        """On the inputs of a witness, and on those of more seeds."""
        found = [Scenario(inputs, work=work)]
        for seed in more:
            drawn = random_inputs(plan, random.Random(100 + seed), SIZES[seed % len(SIZES)])
            found.append(Scenario(drawn, work=work))
        facts = [relation_facts(plan, r, "output", i) for i, r in enumerate(plan.outputs)]
        return cls(plan, found, work, 0, facts)

    def wrong(self) -> list[int]:
        """Numbers of the output relations that fail visibly in one of the scenarios."""
        found = set[int]()
        for number in range(len(self.scenarios)):
            scenario = self._scenario(number)
            expansion = self._bases[number]
            for i in range(len(self.plan.outputs)):
                if i not in found:
                    failed = self._fails(self.plan, scenario, expansion, i)
                    (found if failed else self._unseen if failed is None else set()).add(i)
        return sorted(found, key=lambda i: (len(self.plan.outputs[i].pieces[0].sizes) > 0, i))

    def ranks(self, output: int) -> tuple[int, ...]:
        """The ranks at which an output relation fails on the first scenario's inputs."""
        scenario, expansion = self._scenario(0), self._bases[0]
        relation, mesh = self.plan.outputs[output], self.plan.mesh
        found = set[int]()
        for fact in self._facts[output]:
            for at in places({s: r for s, r in fact.ranges.items() if s in mesh.axes}):
                with suppress(EvaluationError):
                    if difference(self.plan, scenario, expansion, relation, fact, at) is not None:
                        found.add(mesh.rank({a: at.get(a, 0) for a in mesh.axes}))
        return tuple(sorted(found))

    def repairs(self, plan: Plan, wrong: Sequence[int]) -> bool:
        """Do all relations hold, those in ``wrong`` first? What cannot be evaluated is not right."""
        self.count += 1
        changed = self._changed(plan)
        rest = [i for i in range(len(plan.outputs)) if i not in {*wrong, *self._unseen}]
        for number in range(len(self.scenarios)):
            scenario = self._scenario(number)
            expansion = scenario.expand(plan)
            expansion.take(self._bases[number], changed)
            for output in (*wrong, *rest):
                if self._fails(plan, scenario, expansion, output) is not False:
                    return False
        return True

    def _scenario(self, number: int) -> Scenario:
        found = self.scenarios[number]
        if number not in self._bases or len(found.network.nodes) > _NODES:
            if number in self._bases:
                found = self.scenarios[number] = Scenario(found.inputs, found.junk, self.work)
            base = self._bases[number] = found.expand(self.plan)
            for rank in range(self.plan.mesh.points):
                for value in base.program(rank).outputs.values():
                    with suppress(EvaluationError):
                        base.value(rank, value)
        return found

    def _changed(self, plan: Plan) -> dict[str, set[str]]:
        """By class, values that rest on an op that the plan itself does not have."""
        found: dict[str, set[str]] = {}
        waiting = []
        for mine, theirs in zip(self.plan.classes, plan.classes, strict=True):
            found[mine.name] = set()
            if mine.program is not theirs.program:
                known = {op.out: op for op in mine.program.ops}
                waiting += [(mine.name, op.out) for op in theirs.program.ops if known.get(op.out) is not op]
        while waiting:
            cls, value = waiting.pop()
            if value not in found[cls]:
                found[cls].add(value)
                waiting += self._readers.get((cls, value), ())
        return found

    @cached_property
    def _readers(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Results that are made of a value; of what a collective or a message is given, in all classes."""
        found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for c in self.plan.classes:
            for op in c.program.ops:
                met = self.plan.meets(op) if op.name in COLLECTIVES | MESSAGES else {c.name: op}
                for name, other in met.items():
                    for v in other.ins:
                        found[name, v].append((c.name, op.out))
        return found

    def _fails(self, plan: Plan, scenario: Scenario, expansion: Expansion, output: int) -> bool | None:
        """``None`` if it cannot be evaluated. Raises :class:`OutOfTime`."""
        relation = plan.outputs[output]
        for fact in self._facts[output]:
            for at in places({s: r for s, r in fact.ranges.items() if s in plan.mesh.axes}):
                self.work.tick()
                try:
                    if difference(plan, scenario, expansion, relation, fact, at) is not None:
                        return True
                except (EvaluationError, IndexError, KeyError, ValueError):
                    return None
        return False
