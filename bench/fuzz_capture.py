"""Differential fuzzer of the capture: random programs, captured, against what PyTorch computes.

python bench/fuzz_capture.py --programs 20000 --jobs 1     single-process programs against eager PyTorch
python bench/fuzz_capture.py --runs 2000                   training steps on 2 to 4 gloo ranks, several steps

Exit code 1 if anything differs; each disagreement is shrunk and written to --out as a file that can be run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz_capture import run

CHUNK = 50


def _programs(job: tuple[range, Path]) -> run.Tally:
    return run.programs(*job)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; others follow")
    parser.add_argument("--jobs", type=int, default=1, help="processes of --programs")
    parser.add_argument("--out", type=Path, default=Path("fuzz-capture"))
    options = parser.parse_args()
    first, failed = options.seed, False
    if options.programs:
        last = first + options.programs
        jobs = [(range(a, min(a + CHUNK, last)), options.out) for a in range(first, last, CHUNK)]
        total = run.Tally()
        # A fresh process now and then: PyTorch keeps what fake tensors leave behind.
        with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=8) as pool:
            for tally in pool.imap(_programs, jobs):
                total.add(tally)
                print(f"{total.programs.total()} programs, {len(total.differing)} differ", file=sys.stderr)
        print(total.table())
        failed |= bool(total.differing)
    if options.runs:
        total = run.runs(range(first, first + options.runs), options.out)
        print(total.table())
        failed |= bool(total.differing)
    sys.exit(failed)


if __name__ == "__main__":
    main()
