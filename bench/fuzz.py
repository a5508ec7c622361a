"""Fuzzer of the reduction theorem: random pairs of programs, the checker's verdict against exact evaluation.

python bench/fuzz.py --pairs 200000
python bench/fuzz.py --pairs 20000 --weaken width      must find a pair that is accepted and differs
python bench/fuzz.py --pairs 200000 --field             the law `field`, against floating point
python bench/fuzz.py --pairs 2000 --engine             plans with reshapes, cuts, masks, lookups, shards
python bench/fuzz.py --tampered 500 --write         changed bundles of the newer kinds, into docs/fuzz.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.schedules import put
from tests.fuzz import fields, run, tampering

PAGE = Path(__file__).resolve().parent.parent / "docs" / "fuzz.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--weaken",
        choices=("width", "weights", "max", "collapse"),
        default="",
        help="w less one; weights dropped; a maximum over one representative; widths before ADR 0010",
    )
    parser.add_argument("--engine", action="store_true", help="whole plans: engine, solver, checker")
    parser.add_argument("--field", action="store_true", help="the law `field`: both normal forms, and floats")
    parser.add_argument("--tampered", type=int, default=0, help="changed bundles of each of the newer kinds")
    parser.add_argument("--write", action="store_true", help="put the table of --tampered into docs/fuzz.md")
    options = parser.parse_args()
    if options.tampered:
        changed = tampering.run(options.tampered, options.seed)
        print("\n".join([*changed.rows(), *changed.false]))
        if options.write:
            PAGE.write_text(put(PAGE.read_text("utf-8"), "tampered", list(changed.rows())), "utf-8")
        sys.exit(bool(changed.false))
    if options.field:
        found = fields.run(options.pairs, options.seed)
        print(found.table())
        sys.exit(bool(found.false) or bool(found.apart))
    if options.engine:
        tally = run.engine(options.pairs, options.seed)
        print(tally.table())
        sys.exit(bool(tally.false))
    tally = run.run(options.pairs, options.seed, options.weaken, first=bool(options.weaken), every=10)
    print(tally.table())
    sys.exit(bool(tally.false) != bool(options.weaken))


if __name__ == "__main__":
    main()
