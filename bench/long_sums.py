"""What a norm over many tensors costs whose summands the plan groups otherwise than the specification.

python bench/long_sums.py [--kind K] [COUNT …]

The squares of as many tensors, sharded over dp, are added up in two halves, and the halves over all ranks;
the specification adds them up one after the other. Of the kinds, ``chain`` adds each to those before it,
``stack`` sums a concatenation of them. The time is the whole emission's
(docs/adr/0181-long-sums-are-opened-as-a-whole.md). Exit code 1 unless all is proved.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.unexplained import measured
from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from tests.orchestrator.plans import pair

MESH, ROWS = {"dp": 2}, {"dp": Shard(0)}


def chain(_b: ProgramBuilder, squares: Sequence[Value]) -> Value:
    return reduce(lambda total, square: total + square, squares)


def stack(b: ProgramBuilder, squares: Sequence[Value]) -> Value:
    return b.concatenate([square.reshape(1) for square in squares], 0).sum()


KINDS: dict[str, Callable[[ProgramBuilder, Sequence[Value]], Value]] = {"chain": chain, "stack": stack}


def norm(kind: str, count: int, *, missing: int | None = None) -> Plan:
    """The sum of the squares of ``count`` tensors; without that of one, it is wrong."""
    add = KINDS[kind]

    def squares(b: ProgramBuilder, rows: int) -> list[Value]:
        given = [b.input(f"x{i}", f"f32[{rows}]") for i in range(count)]
        return [(x * x).sum() for x in given]

    def halves(b: ProgramBuilder) -> None:
        mine = squares(b, 2)
        left = [s for i, s in enumerate(mine[: count // 2]) if i != missing]
        b.output("norm", b.all_reduce(add(b, left) + add(b, mine[count // 2 :]), "dp"))

    return pair(
        MESH,
        lambda b: b.output("norm", add(b, squares(b, 4))),
        halves,
        {f"x{i}": ROWS for i in range(count)},
        {"norm": {"dp": Replicate()}},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", metavar="COUNT", type=int, nargs="*", default=[100, 300])
    parser.add_argument("--kind", choices=KINDS, action="append")
    options = parser.parse_args()
    proved = True
    for kind in options.kind or KINDS:
        for count in options.counts:
            verdict, seconds = measured(norm(kind, count))
            print(f"{kind} of {count}: {verdict} after {seconds:.0f} s", flush=True)
            proved &= verdict == "PROVED"
    sys.exit(not proved)


if __name__ == "__main__":
    main()
