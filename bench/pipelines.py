"""What a pipeline of Llama 3 405B costs that is written by hand (tests/llama_pipeline.py), as a table.

python bench/pipelines.py                           126 layers, PP16 x TP8 x DP64, 16 and 64 microbatches
python bench/pipelines.py --layers 32 --stages 4    less of it
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import COLUMNS, row_of, table
from certificates.plan.writing import dump
from tests.llama_pipeline import llama


def row(layers: int, stages: int, microbatches: int) -> tuple[str, ...]:
    """One row: the plan is written to a file, which `tv-emit` and `tv-check` get."""
    with tempfile.TemporaryDirectory(prefix="tv-pipelines-") as folder:
        path = Path(folder, "plan.json.gz")
        dump(llama(layers, stages, microbatches, "405b"), path)
        found = row_of(path)
    return (f"{found[0]}, {microbatches} microbatches", *found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=126)
    parser.add_argument("--stages", type=int, default=16)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[16, 64])
    given = parser.parse_args()
    print(table([row(given.layers, given.stages, m) for m in given.microbatches], COLUMNS), end="")


if __name__ == "__main__":
    main()
