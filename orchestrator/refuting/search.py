"""Looking for a witness: inputs at true sizes on which a claimed output fact fails.

:func:`search` tries scenarios until a claimed fact visibly fails and returns the document ``witness.json`` of
``docs/certificate.md``. A witness found here is a guess in floating point: only the checker's interval
arithmetic decides.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from certificates.plan.plan import Plan, Relation
from certificates.plan.types import format_rational
from certificates.proof.facts import Fact, relation_facts

from ..errors import EvaluationError, OutOfTime
from ..evaluating.grids import Array, Grid, common_axes, flattened, refined
from ..evaluating.network import SPEED, Expansion, Node, Work
from .scenarios import Blocks, Scenario, forms, random_inputs

#: Relative difference from which a fact counts as failed, and from which a better one is not looked for.
VISIBLE, PLAIN = 1e-9, 1e-4
#: Score where the plan divides by zero or takes a root of a negative number and the specification does not.
UNDEFINED = 1e-8
_RANKS_PER_FACT = 8
#: Of inputs, seed by seed: a clipped norm is small for some and large for others.
SIZES = tuple(Fraction(n) for n in ("1", "1", "1", "1/64", "1", "16", "1/1024", "1"))
#: Seeds for which moments are as large as all other inputs: a bound on them is reached.
LARGE = (2, 5)


@dataclass(frozen=True)
class Witness:
    """Inputs and the element at which claimed fact ``piece`` of output relation ``output`` fails."""

    output: int
    piece: int
    symbols: Mapping[str, int]
    junk: Fraction
    inputs: Mapping[str, Blocks]
    plan_value: float
    spec_value: float

    def to_json(self) -> dict[str, object]:
        """The document ``witness.json``."""
        return {
            "output": self.output,
            "piece": self.piece,
            "symbols": dict(self.symbols),
            "junk": format_rational(self.junk),
            "inputs": {
                name: {"cuts": [list(c) for c in b.cuts], "values": [_text(v) for v in b.values]}
                for name, b in self.inputs.items()
            },
        }


def _text(value: Fraction | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else format_rational(value)


@dataclass(frozen=True)
class Difference:
    """Where a fact fails most visibly in one scenario."""

    score: float
    output: int
    piece: int
    symbols: dict[str, int]
    plan_value: float
    spec_value: float


class Refuter:
    """Searches for witnesses against plans with one specification; keeps its scenarios between searches."""

    def __init__(self, plan: Plan, seeds: Iterable[int] = range(8), work: Work | None = None) -> None:
        self._plan = plan
        self._seeds = tuple(seeds)
        self._work = work or Work()
        self._scenarios: dict[int, Scenario] = {}

    def scenario(self, seed: int) -> Scenario:
        """The scenario of a seed; its memory is dropped when it has grown large."""
        found = self._scenarios.get(seed)
        if found is None:
            rng, size = random.Random(seed), SIZES[seed % len(SIZES)]
            inputs = random_inputs(self._plan, rng, size, moments=seed % len(SIZES) not in LARGE)
            found = self._scenarios[seed] = Scenario(inputs, work=self._work)
        elif len(found.network.nodes) > 200_000:
            found = self._scenarios[seed] = Scenario(found.inputs, work=self._work)
        return found

    def search(
        self, plan: Plan, facts: Sequence[tuple[int, int]] | None = None, *, budget: float = 60.0
    ) -> Witness | None:
        """A witness against one of ``facts`` (output relation, claimed fact; default: all), or ``None``.

        Stops at the first plain difference, else returns the most visible one found in ``budget`` seconds of
        ``SPEED`` steps: no clock is read, and every machine finds the same. What was begun before is given up
        after as many steps again: a deep plan on many ranks has more tensors than there is memory.
        """
        work = self._work
        enough = work.steps + budget * SPEED
        work.last = enough + budget * SPEED
        best: tuple[Difference, Scenario] | None = None
        for seed in self._seeds:
            if work.steps > enough:
                break
            with suppress(OutOfTime):
                scenario = self.scenario(seed)
                for found in differences(plan, scenario, facts):
                    if best is None or found.score > best[0].score:
                        best = found, scenario
                    if found.score >= PLAIN or work.steps > enough:
                        break
            if best is not None and best[0].score > UNDEFINED:
                break
        work.last = math.inf
        if best is None:
            return None
        found, scenario = best
        return Witness(
            found.output, found.piece, found.symbols, scenario.junk, scenario.inputs,
            found.plan_value, found.spec_value,
        )  # fmt: skip


def search(
    plan: Plan,
    facts: Sequence[tuple[int, int]] | None = None,
    *,
    seeds: Iterable[int] = range(8),
    budget: float = 60.0,
    work: Work | None = None,
) -> Witness | None:
    """One search with scenarios of its own; see :meth:`Refuter.search`. ``work`` counts its steps."""
    return Refuter(plan, seeds, work).search(plan, facts, budget=budget)


def differences(
    plan: Plan, scenario: Scenario, facts: Sequence[tuple[int, int]] | None = None
) -> Iterator[Difference]:
    """Visible failures of claimed facts in one scenario, the cheap outputs (scalars, losses) first."""
    expansion = scenario.expand(plan)
    wanted = None if facts is None else set(facts)
    order = sorted(range(len(plan.outputs)), key=lambda i: len(plan.outputs[i].pieces[0].sizes) > 0)
    for output in order:
        relation = plan.outputs[output]
        for number, fact in enumerate(relation_facts(plan, relation, "output", output)):
            if wanted is not None and (output, number) not in wanted:
                continue
            for at in places({s: r for s, r in fact.ranges.items() if s in plan.mesh.axes}):
                try:
                    found = difference(plan, scenario, expansion, relation, fact, at)
                except EvaluationError:
                    continue
                if found is not None:
                    score, symbols, plan_value, spec_value = found
                    yield Difference(score, output, number, symbols, plan_value, spec_value)


def places(box: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """Mesh coordinates to look at: all of a small box, else its corners and some others."""
    if math.prod(hi - lo for lo, hi in box.values()) <= _RANKS_PER_FACT:
        return [
            dict(zip(box, at, strict=True)) for at in itertools.product(*(range(*r) for r in box.values()))
        ]
    rng = random.Random(0)
    out = [{a: lo for a, (lo, _) in box.items()}, {a: hi - 1 for a, (_, hi) in box.items()}]
    out += [{a: rng.randrange(lo, hi) for a, (lo, hi) in box.items()} for _ in range(_RANKS_PER_FACT - 2)]
    return out


def fact_nodes(
    plan: Plan, expansion: Expansion, relation: Relation, at: Mapping[str, int]
) -> tuple[int, int]:
    """Nodes of the plan side (reduced over ranks if the relation is) and of the specification side."""
    spec = expansion.value(-1, plan.specification.outputs[relation.spec])
    axes = relation.reduce[1] if relation.reduce else ()
    nodes = []
    for moving in itertools.product(*(range(plan.mesh.axes[a]) for a in axes)):
        rank = plan.mesh.point({**at, **dict(zip(axes, moving, strict=True))})
        nodes.append(expansion.value(rank, expansion.program(rank).outputs[relation.plan]))
    if relation.reduce is None:
        return nodes[0], spec
    first = expansion.network.nodes[nodes[0]]
    merged = Node("merge", tuple(sorted(nodes)), (relation.reduce[0],), first.sort, first.shape)
    return expansion.network.add(merged), spec


def difference(
    plan: Plan,
    scenario: Scenario,
    expansion: Expansion,
    relation: Relation,
    fact: Fact,
    at: Mapping[str, int],
) -> tuple[float, dict[str, int], float, float] | None:
    mine, theirs = fact_nodes(plan, expansion, relation, at)
    # Symbols of a fact are mesh axes, as many as its left index begins with, then digits.
    digits = [hi - lo for s, lo, hi in fact.symbols if s not in plan.mesh.axes]
    mine_at = forms(fact.lhs_index[len(fact.symbols) - len(digits) :], at)
    theirs_at = forms(fact.rhs_index, at)
    if mine == theirs and mine_at == theirs_at and relation.coef == 1:
        return None
    best: tuple[float, dict[str, int], float, float] | None = None
    parts = scenario.evaluator.parts([(mine, mine_at), (theirs, theirs_at)], digits)
    pairs = []
    for olds, sizes, grids in parts:
        left, right = (flattened(g, sizes) for g in grids)
        axes = common_axes([left, right])
        shape = [len(c) - 1 for _, c in axes]
        pairs.append((
            olds, axes, np.broadcast_to(refined(left, axes), shape),
            np.broadcast_to(refined(right, axes) * _scale(relation, right), shape),
        ))  # fmt: skip
    # rounding errors are relative to the tensor's scale: cancellation leaves noise where the truth is 0
    floor = max(
        (float(np.max(np.abs(np.nan_to_num(r.astype(np.float64))))) for _, _, _, r in pairs), default=0.0
    )
    for olds, axes, a, b in pairs:
        score = _scores(a, b, floor)
        cell = np.unravel_index(int(np.argmax(score)), score.shape) if score.shape else ()
        value = float(score[cell])
        if value < VISIBLE or (best is not None and value <= best[0]):
            continue
        corner = {v: cuts[int(i)] for (v, cuts), i in zip(axes, cell, strict=True)}
        symbols = dict(at) | {
            f"z{z}": const + sum(c * corner.get(v, 0) for v, c in terms)
            for z, (const, terms) in enumerate(olds)
        }
        best = value, symbols, float(a[cell]), float(b[cell])
    return best


def _scale(relation: Relation, grid: Grid) -> float | int | bool:
    return float(relation.coef) if grid.data.dtype == np.float64 else grid.data.dtype.type(1)


def _scores(a: Array, b: Array, floor: float) -> Array:
    """Relative difference per cell; 1 where integers or booleans differ; barely visible where only the plan's
    side leaves the real numbers; 0 where the specification's does."""
    if a.dtype != np.float64:
        return np.asarray((a != b).astype(np.float64))
    with np.errstate(all="ignore"):
        scale = np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-6 * floor)
        score = np.abs(a - b) / scale
    score = np.where(np.isfinite(a), np.where(scale > 0, score, 0.0), UNDEFINED)
    return np.where(np.isfinite(b), score, 0.0)
