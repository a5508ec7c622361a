"""Is a guessed fact true on some inputs? Decides between guesses where no solver does.

A fact is evaluated at true sizes, in floating point, on block-constant inputs: with only the tensors opened
that its stage opens (:class:`Opened`), and from the plan's inputs. One that visibly fails is not pursued; one
that does not is still only a guess, and its obligation says so to whoever solves it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.plan.types import rational
from certificates.proof.facts import Fact, Reduced, Ref, split_ref

from ..errors import EvaluationError, OutOfTime
from ..evaluating.forms import Form
from ..evaluating.grids import Array, common_axes, flattened, refined
from ..evaluating.network import Expansion, Node
from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe
from .scenarios import Scenario, random_inputs
from .stage_values import Given, Opened

#: Relative and absolute difference from which a fact counts as failed; below it may be rounding.
VISIBLE, NOISE = 1e-7, 1e-9
_POINTS = 4
#: Inputs that are tried; two integers or booleans may well be the same by chance.
_SEEDS_OF_INTEGERS = 16


@dataclass(frozen=True)
class Effort:
    """Ranks and inputs on which a fact is tried, and the work on each; what takes more is not evaluated."""

    ranks: int
    seeds: int
    steps: float


#: Conclusions about functions are many, are seldom wrong, and a mistake shows in what rests on them too.
_GUESS, _CONCLUSION = Effort(8, 2, math.inf), Effort(2, 1, 5_000)


class Plausible:
    """Evaluations of one plan on a few inputs, kept between facts of one engine.

    Inputs are what the plan relates them to. In a function, and in programs with calls, whose results are
    given too, they are what is known of them.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._expanded: list[tuple[Scenario, Expansion]] = []
        self._related = bool(plan.inputs) and not plan.functions

    def __call__(
        self, knowledge: Knowledge, number: int, role: Literal["guess", "conclusion"] = "guess"
    ) -> bool:
        """False if the fact visibly fails somewhere; what cannot be evaluated is plausible."""
        fact = knowledge.facts[number]
        effort = _GUESS if self._related or role == "guess" else _CONCLUSION
        places = self._places(fact, effort.ranks)
        real = knowledge.model.tensors.type(fact.lhs).sort == "Real"
        return not any(
            self._fails(self._views(knowledge, number, seed), fact, at, effort.steps)
            for seed in range(effort.seeds if real else _SEEDS_OF_INTEGERS)
            for at in places
        )

    def _views(self, knowledge: Knowledge, number: int, seed: int) -> Iterator[tuple[Scenario, Expansion]]:
        """All tensors opened; where they vary too much, the fact's own. On the inputs of one seed."""
        scenario, whole = self._whole(knowledge, seed)
        yield scenario, whole
        recipe = knowledge.recipes.get(number)
        if isinstance(recipe, LayoutRecipe):
            yield scenario, Opened(knowledge, scenario, recipe.expand, seed)

    def _whole(self, knowledge: Knowledge, seed: int) -> tuple[Scenario, Expansion]:
        while len(self._expanded) <= seed:
            number = len(self._expanded)
            scenario = Scenario(random_inputs(self._plan, random.Random(number)))
            whole = scenario.expand(self._plan) if self._related else Given(knowledge, scenario, number)
            self._expanded.append((scenario, whole))
        return self._expanded[seed]

    def _places(self, fact: Fact, most: int) -> list[dict[str, int]]:
        """Values of the symbols that choose a rank: all of them if few, else some."""
        axes = len(self._plan.mesh.axes)
        chosen = {s for ref, index in ((fact.lhs, fact.lhs_index), (fact.rhs, fact.rhs_index))
                  for f in index[: axes if _of_plan(ref) else 0] for s in f.symbols}  # fmt: skip
        ranges = {s: r for s, r in fact.ranges.items() if s in chosen}
        if math.prod(hi - lo for lo, hi in ranges.values()) <= most:
            values = itertools.product(*(range(*r) for r in ranges.values()))
            return [dict(zip(ranges, v, strict=True)) for v in values]
        rng = random.Random(0)
        return [{s: rng.randrange(*r) for s, r in ranges.items()} for _ in range(most)]

    def _fails(
        self,
        views: Iterable[tuple[Scenario, Expansion]],
        fact: Fact,
        at: Mapping[str, int],
        steps: float,
    ) -> bool:
        """Compare all elements at a rank, or some single ones where all of them vary too much."""
        for scenario, view in views:
            scenario.network.work.last = scenario.network.work.steps + steps
            try:
                return self._differs(scenario, view, fact, at)
            except OutOfTime:
                continue
            except EvaluationError:
                pass
            rng = random.Random(0)
            for _ in range(_POINTS):
                point = {s: rng.randrange(*r) for s, r in fact.ranges.items()} | dict(at)
                try:
                    if self._differs(scenario, view, fact, point):
                        return True
                except (EvaluationError, OutOfTime):
                    continue
        return False

    def _differs(self, scenario: Scenario, expansion: Expansion, fact: Fact, at: Mapping[str, int]) -> bool:
        """Compare the elements that remain when the symbols in ``at`` have these values."""
        free = [s for s in fact.ranges if s not in at]
        variable = {s: i for i, s in enumerate(free)}
        sizes = [fact.ranges[s][1] - fact.ranges[s][0] for s in free]
        start = {s: fact.ranges[s][0] for s in free}

        def form(affine: Affine) -> Form:
            const, terms = affine.const, []
            for symbol, coef in affine.terms:
                const += coef * (at[symbol] if symbol in at else start[symbol])
                if symbol in variable:
                    terms.append((variable[symbol], coef))
            return const, tuple(sorted(terms))

        sides = [self._side(expansion, fact.lhs, [form(f) for f in fact.lhs_index])]
        literal = _literal(fact.rhs)
        if literal is None:
            sides.append(self._side(expansion, fact.rhs, [form(f) for f in fact.rhs_index]))
        for _, new, grids in scenario.evaluator.parts(sides, sizes):
            flat = [flattened(g, new) for g in grids]
            axes = common_axes(flat)
            values = [refined(g, axes) for g in flat]
            if _differ(values[0], values[1] if literal is None else np.asarray(literal), fact.coef):
                return True
        return False

    def _side(self, expansion: Expansion, ref: Ref, index: Sequence[Form]) -> tuple[int, list[Form]]:
        """The node behind a REF at the ranks that the index names, and the forms of its dimensions."""
        mesh = self._plan.mesh
        if isinstance(ref, str) and not _of_plan(ref):
            return expansion.value(-1, split_ref(ref)[1]), list(index)
        reduced = ref.axes if isinstance(ref, Reduced) else ()
        fixed = [a for a in mesh.axes if a not in reduced]
        here = {a: const for a, (const, _) in zip(fixed, index, strict=False)}
        members = dict(map(split_ref, ref.of if isinstance(ref, Reduced) else (ref,)))
        nodes = []
        for moving in itertools.product(*(range(mesh.axes[a]) for a in reduced)):
            rank = mesh.point(here | dict(zip(reduced, moving, strict=True)))
            nodes.append(expansion.value(rank, members[expansion.class_of(rank)]))
        if isinstance(ref, Reduced):
            first = expansion.network.nodes[nodes[0]]
            merged = Node("merge", tuple(sorted(nodes)), (ref.kind,), first.sort, first.shape)
            return expansion.network.add(merged), list(index[len(fixed) :])
        return nodes[0], list(index[len(fixed) :])


def _of_plan(ref: Ref) -> bool:
    return isinstance(ref, Reduced) or not ref.startswith(("s:", "#"))


def _literal(ref: Ref) -> float | int | bool | None:
    if isinstance(ref, Reduced) or not ref.startswith("#"):
        return None
    kind, text = ref[:3], ref[3:]
    if kind == "#b:":
        return text == "true"
    return float(rational(text)) if kind == "#f:" else int(text)


def _differ(left: Array, right: Array, coef: Fraction) -> bool:
    """Do the sides differ visibly where both are defined?"""
    if left.dtype != np.float64 or right.dtype != np.float64:
        return bool(np.any(left != right))
    scaled = right * float(coef)
    with np.errstate(all="ignore"):
        gap = np.abs(left - scaled)
        scale = np.maximum(np.abs(left), np.abs(scaled))
        return bool(np.any(np.isfinite(gap) & (gap > VISIBLE * scale + NOISE)))
