"""Mutation test of a plan file: a table of verdicts per operator.

python bench/mutants.py examples/mlp-handwritten.json.gz --count 300
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from certificates.plan.reading import load
from orchestrator.refuting.search import Refuter
from tests.corpus import mutate, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument(
        "--count", type=int, default=0, help="a stratified sample of this many (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of search per mutant")
    parser.add_argument("--oracle", action="store_true", help="decide the rest densely; small plans only")
    options = parser.parse_args()
    plan = load(options.plan)
    chosen = run.sample(plan, options.count, options.seed) if options.count else mutate.mutants(plan)
    refuter = Refuter(plan)
    outcomes = []
    for number, mutant in enumerate(chosen, 1):
        outcomes.append(run.run(mutant, refuter, budget=options.budget, oracle=options.oracle))
        if sys.stderr.isatty():
            print(f"\r{number}/{len(chosen)}", end="", file=sys.stderr, flush=True)
    print(f"{plan.name}: {len(outcomes)} mutants")
    print(run.table(outcomes))


if __name__ == "__main__":
    main()
