"""Does a plan, edited, keep its output relations? Evaluated at true sizes on the inputs of a few scenarios.

The scenarios' networks are shared: of an edited plan only what is different is computed. What is said here is
a guess in floating point; an edit is suggested only after it was proved.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, relation_facts

from ..errors import EvaluationError
from ..evaluating.network import SPEED, Expansion, Work
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

    @classmethod
    def of(
        cls, plan: Plan, inputs: Mapping[str, Blocks], seconds: float, more: Sequence[int] = (3, 6)
    ) -> Trials:
        """On the inputs of a witness, and on those of more seeds, for seconds of ``SPEED`` steps."""
        work = Work(last=seconds * SPEED)
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
            expansion = scenario.expand(self.plan)
            for i in range(len(self.plan.outputs)):
                if i not in found:
                    failed = self._fails(self.plan, scenario, expansion, i)
                    (found if failed else self._unseen if failed is None else set()).add(i)
        return sorted(found, key=lambda i: (len(self.plan.outputs[i].pieces[0].sizes) > 0, i))

    def ranks(self, output: int) -> tuple[int, ...]:
        """The ranks at which an output relation fails on the first scenario's inputs."""
        scenario = self._scenario(0)
        expansion = scenario.expand(self.plan)
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
        rest = [i for i in range(len(plan.outputs)) if i not in {*wrong, *self._unseen}]
        for number in range(len(self.scenarios)):
            scenario = self._scenario(number)
            expansion = scenario.expand(plan)
            for output in (*wrong, *rest):
                if self._fails(plan, scenario, expansion, output) is not False:
                    return False
        return True

    def _scenario(self, number: int) -> Scenario:
        found = self.scenarios[number]
        if len(found.network.nodes) > _NODES:
            found = self.scenarios[number] = Scenario(found.inputs, found.junk, self.work)
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
