"""Random routings of packed rows as they run, against the form that proofs are about.

    python bench/routings.py --count 500000 --seed 0 --jobs 2 [--write]

Each is a plan of tests/packed_plans.py on one routing: rows sorted by key, sent to the rank that owns it,
regrouped, multiplied by the key's weights and brought back; outputs and gradients of rows and weights. Its
ranks run it twice: with buffers of as many rows as there are, equal keys in an order drawn anew in every sort
(tests/packed_runs.py), and as a plan's reader lowers it to slots. Both are compared with the specification,
which has neither rows nor orders. `--write` puts the table into docs/fuzz.md. Exit code 1 if any differs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.schedules import put
from certificates.plan.plan import Plan
from orchestrator.evaluating import interpreter, scatter
from tests.packed_plans import dispatch
from tests.packed_runs import Run

PAGE = Path(__file__).resolve().parent.parent / "docs" / "fuzz.md"
#: Ranks, rows and keys on each: few keys for many rows, more keys than rows, one rank, one row, one key.
SHAPES = ((1, 4, 3), (2, 1, 2), (2, 2, 1), (2, 3, 2), (2, 6, 1), (3, 2, 2), (4, 1, 3), (4, 3, 2))
BATCH = 200
Draw = Callable[[np.random.Generator, int, int], np.ndarray]


def _owned(rng: np.random.Generator, rows: int, keys: int) -> np.ndarray:
    """All rows go to a few keys: the ranks of the others get none."""
    few = rng.choice(keys, size=max(1, keys // 3), replace=False)
    return rng.choice(few, size=rows)


def _single(rng: np.random.Generator, rows: int, keys: int) -> np.ndarray:
    """All rows but one have one key."""
    found = np.full(rows, rng.integers(keys))
    found[rng.integers(rows)] = rng.integers(keys)
    return found


KINDS: dict[str, Draw] = {
    "any": lambda rng, rows, keys: rng.integers(keys, size=rows),
    "one key": lambda rng, rows, keys: np.full(rows, rng.integers(keys)),
    "few keys": _owned,
    "all but one": _single,
    "in turn": lambda rng, rows, keys: rng.permutation(np.arange(rows) % keys),
}


@cache
def plans() -> tuple[Plan, ...]:
    return tuple(dispatch(*shape) for shape in SHAPES)


def differs(seed: int) -> tuple[str, str]:
    """The kind of a routing, and how it differs if it does."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(len(SHAPES)))
    plan, (ranks, rows, per) = plans()[number], SHAPES[number]
    kind = list(KINDS)[int(rng.integers(len(KINDS)))]
    inputs = scatter.random_inputs(plan, rng) | {"keys": KINDS[kind](rng, ranks * rows, ranks * per)}
    spec = interpreter.run_specification(plan, inputs)
    found = {
        "as it runs": Run(plan, scatter.scatter_inputs(plan, inputs, rng), rng).outputs(),
        "in slots": interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng)),
    }
    wrong = [way for way, outputs in found.items() if scatter.compare_outputs(plan, spec, outputs, 1e-9)]
    return kind, f"seed {seed}, {SHAPES[number]}, {kind}: {', '.join(wrong)}" if wrong else ""


def batch(seeds: range) -> list[tuple[str, str]]:
    return [differs(seed) for seed in seeds]


def rows(seed: int, count: int, kinds: Counter[str], wrong: Counter[str]) -> Iterator[str]:
    yield "| keys of the rows | routings | differ |"
    yield "| --- | ---: | ---: |"
    for kind in KINDS:
        yield f"| {kind} | {kinds[kind]:,} | {wrong[kind]} |"
    yield f"| all, seeds {seed:,} to {seed + count - 1:,} | {kinds.total():,} | {wrong.total()} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the table into docs/fuzz.md")
    given = parser.parse_args()
    end = given.seed + given.count
    parts = [range(first, min(first + BATCH, end)) for first in range(given.seed, end, BATCH)]
    kinds, wrong = Counter[str](), Counter[str]()
    with multiprocessing.Pool(given.jobs) as pool:
        for done, told in enumerate(pool.imap_unordered(batch, parts), 1):
            kinds.update(kind for kind, _ in told)
            wrong.update(kind for kind, said in told if said)
            for said in filter(None, (said for _, said in told)):
                print(said, flush=True)
            if done % 50 == 0:
                print(f"{kinds.total():,} routings, {wrong.total()} differ", file=sys.stderr, flush=True)
    table = list(rows(given.seed, given.count, kinds, wrong))
    print("\n".join(table))
    if given.write:
        PAGE.write_text(put(PAGE.read_text("utf-8"), "routings", table), "utf-8")
    sys.exit(wrong.total() > 0)


if __name__ == "__main__":
    main()
