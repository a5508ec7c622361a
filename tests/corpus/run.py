"""Runs mutants through the search for a witness, the checker's replay and, on small plans, the oracle."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from certificates.plan.plan import Plan, Relation
from certificates.plan.writing import dumps
from checker.errors import CheckerError
from checker.language.affine import Affine
from checker.language.plan import Plan as CheckedPlan
from checker.language.proof import Fact, Reduced, Tensor
from checker.reading.plan import read_plan
from checker.refuting.witness import Replay, replay
from orchestrator.errors import EvaluationError
from orchestrator.evaluating import interpreter, scatter
from orchestrator.refuting.search import Refuter

from .mutate import Mutant, mutants

REFUTED, EQUIVALENT, WRONG, UNKNOWN = "REFUTED", "equivalent", "wrong, no witness", "UNKNOWN"
#: No difference, but the oracle cannot run: a gather reads out of range, which has no meaning, and a mask
#: drops what it read.
MASKED = "masked"


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant. ``note``: the replayed intervals, or why there are none."""

    mutant: Mutant
    verdict: str
    seconds: float
    note: str


def sample(plan: Plan, count: int, seed: int = 0) -> list[Mutant]:
    """``count`` mutants, every operator represented as evenly as its sites allow."""
    rng = random.Random(seed)
    pools: dict[str, list[Mutant]] = {}
    for mutant in mutants(plan):
        pools.setdefault(mutant.operator, []).append(mutant)
    for pool in pools.values():
        rng.shuffle(pool)
    out: list[Mutant] = []
    while len(out) < count and any(pools.values()):
        out.extend(pool.pop() for pool in pools.values() if pool)
    return out[:count]


def claimed_fact(plan: CheckedPlan, output: int, number: int) -> Fact:
    """Claimed fact ``number`` of an output relation in the checker's records (``docs/certificate.md``)."""
    relation = plan.outputs[output]
    gone = relation.reduce[1] if relation.reduce else ()
    groups: dict[object, list[Any]] = {}
    for piece in relation.pieces:
        box = zip((a for a, _ in plan.mesh), plan.classes[piece.cls].box, strict=True)
        kept = tuple((a, lo, hi) for a, (lo, hi) in box if a not in gone)
        key = (piece.sizes, piece.plan, piece.spec, kept) if relation.reduce else len(groups)
        groups.setdefault(key, []).append((piece, kept))
    members = list(groups.values())[number]
    piece, kept = members[0]
    of = tuple(Tensor(p.cls, plan.classes[p.cls].program.outputs[relation.plan]) for p, _ in members)
    mesh = tuple(Affine.symbol(a) for a, _, _ in kept)
    return Fact(
        Reduced(relation.reduce[0], relation.reduce[1], of) if relation.reduce else of[0],
        Tensor("s", plan.spec.outputs[relation.spec]),
        relation.coef,
        (*kept, *((f"z{k}", 0, n) for k, n in enumerate(piece.sizes))),
        (*mesh, *piece.plan),
        piece.spec,
    )


def replayed(plan: Plan, witness: dict[str, Any]) -> Replay:
    """The checker's replay of a witness document. Raises a ``CheckerError`` if it shows nothing."""
    checked = read_plan(dumps(plan))
    return replay(checked, claimed_fact(checked, witness["output"], witness["piece"]), witness)


def shown(plan: Plan, seconds: float = 30.0) -> Relation:
    """The relation that a witness, which the checker replays, shows to be wrong; nothing is proved."""
    witness = Refuter(plan).search(plan, budget=seconds)
    assert witness is not None, "no witness"
    replayed(plan, witness.to_json())
    return plan.outputs[witness.output]


def oracle_equal(plan: Plan, seeds: Iterable[int] = range(3)) -> bool:
    """Does the claimed output relation hold on random dense inputs? Small plans only."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        inputs = scatter.random_inputs(plan, rng)
        spec = interpreter.run_specification(plan, inputs)
        ranks = interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng))
        if scatter.compare_outputs(plan, spec, ranks, 1e-7):
            return False
    return True


def run(mutant: Mutant, refuter: Refuter, *, budget: float = 30.0, oracle: bool = False) -> Outcome:
    """Search, replay, and where both find nothing, ask the oracle."""
    start = time.monotonic()
    plan = mutant.build()
    witness = refuter.search(plan, budget=budget)
    note = "no difference found"
    if witness is not None:
        try:
            shown = replayed(plan, witness.to_json())
            mine = "no real number" if shown.plan is None else f"{float(shown.plan[0]):.9g}"
            note = f"{mine} against {float(shown.spec[0]):.9g}"
            return Outcome(mutant, REFUTED, time.monotonic() - start, note)
        except CheckerError as error:
            note = f"not replayed: {error}"
    verdict = UNKNOWN
    if oracle:
        try:
            verdict = EQUIVALENT if oracle_equal(plan) else WRONG
        except EvaluationError as error:
            note += f"; the oracle: {error}"
            if witness is None and "reads index" in str(error):
                verdict = MASKED
    return Outcome(mutant, verdict, time.monotonic() - start, note)


def table(outcomes: Sequence[Outcome]) -> str:
    """Verdicts per operator, and every mutant that is not refuted."""
    verdicts = (REFUTED, EQUIVALENT, MASKED, WRONG, UNKNOWN)
    count = Counter((o.mutant.operator, o.verdict) for o in outcomes)
    lines = ["operator     " + "".join(f"{v:>20}" for v in verdicts)]
    for operator in sorted({o.mutant.operator for o in outcomes}):
        lines.append(f"{operator:<13}" + "".join(f"{count[operator, v]:>20}" for v in verdicts))
    lines.append(f"{'all':<13}" + "".join(f"{sum(o.verdict == v for o in outcomes):>20}" for v in verdicts))
    times = sorted(o.seconds for o in outcomes)
    if times:
        lines.append(f"seconds each: median {times[len(times) // 2]:.2f}, largest {times[-1]:.2f}")
    lines.extend(f"{o.verdict}: {o.mutant} ({o.note})" for o in outcomes if o.verdict != REFUTED)
    return "\n".join(lines)
