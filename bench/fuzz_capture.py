"""Differential fuzzer of the capture: random programs, captured, against what PyTorch computes.

python bench/fuzz_capture.py --programs 20000 --jobs 1     single-process programs against eager PyTorch
python bench/fuzz_capture.py --runs 2000                   training steps on 2 to 4 gloo ranks, several steps

Exit code 1 if anything differs; each disagreement is shrunk and written to --out as a file that can be run.
With --write what was run is added to docs/fuzz.md, stretch by stretch, so that many sessions add up.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz_capture import record, run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "fuzz.md"
#: Seeds that a worker does at a time.
PROGRAMS, RUNS = 50, 100
#: What the numbers depend on.
_CODE = ("orchestrator", "certificates", "tests/fuzz_capture")


def _programs(job: tuple[range, Path]) -> run.Tally:
    return run.programs(*job)


def _runs(job: tuple[range, Path]) -> run.Tally:
    return run.runs(*job)


def _stretches(what: str, seeds: range, jobs: int, out: Path) -> Iterator[tuple[range, run.Tally]]:
    size, task = (PROGRAMS, _programs) if what == "programs" else (RUNS, _runs)
    parts = [seeds[i : i + size] for i in range(0, len(seeds), size)]
    given = [(part, out) for part in parts]
    if what == "runs":  # its processes are children: a pool's workers may have none
        yield from zip(parts, map(task, given), strict=True)
        return
    # A fresh process now and then: PyTorch keeps what fake tensors leave behind.
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=8) as pool:
        yield from zip(parts, pool.imap(task, given), strict=True)


def _revision() -> str:
    """The commit; an error if the code that is tried is another."""
    changed = subprocess.run(("git", "diff", "--quiet", "HEAD", "--", *_CODE), cwd=ROOT, check=False)
    if changed.returncode:
        sys.exit(f"--write names the revision: commit what is changed in {', '.join(_CODE)} first")
    told = subprocess.run(
        ("git", "rev-parse", "--short=8", "HEAD"), cwd=ROOT, check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; others follow")
    parser.add_argument("--jobs", type=int, default=1, help="processes of --programs")
    parser.add_argument("--out", type=Path, default=Path("fuzz-capture"))
    parser.add_argument("--write", action="store_true", help="add what was run to docs/fuzz.md")
    options = parser.parse_args()
    revision = _revision() if options.write else ""
    failed = False
    for what, count in (("programs", options.programs), ("runs", options.runs)):
        total = run.Tally()
        seeds = range(options.seed, options.seed + count)
        for part, tally in _stretches(what, seeds, options.jobs, options.out):
            total.add(tally)
            print(f"{total.programs.total()} {what}, {len(total.differing)} differ", file=sys.stderr)
            if options.write:
                record.add(PAGE, record.Row.of(what, revision, part, tally))
        if count:
            print(total.table(what))
        failed |= bool(total.differing)
    sys.exit(failed)


if __name__ == "__main__":
    main()
