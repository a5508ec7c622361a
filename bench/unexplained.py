"""What a plan costs that the prover cannot explain: specification and plan compute chains that have nothing
to do with each other.

python bench/unexplained.py [--kind K] [LENGTH …]

Each op of a chain takes the one before and an input, so each has one operand with a relation and one without.
Of the kinds, ``apart`` has other ops on both sides, ``alike`` the same ones in another order, ``ranks``
sums over ranks in between. The time is the whole emission's, without a search for a witness: what was tried
in vain until the plan is UNKNOWN (docs/adr/0171-guesses-in-vain-are-counted.md). Exit code 1 if it is proved,
or refuted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trainverify as tv
from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from tests.orchestrator.plans import pair

MESH, ROWS = {"dp": 2}, {"dp": Shard(0)}
#: The ops of the two chains, in turn; ``all_reduce`` is one over all ranks, in the plan only.
KINDS = {
    "apart": (("multiply", "tanh"), ("add", "sine")),
    "alike": (("multiply", "add", "tanh"), ("add", "tanh", "multiply")),
    "ranks": (("multiply", "tanh"), ("multiply", "all_reduce", "tanh")),
}


def chain(b: ProgramBuilder, rows: int, ops: Sequence[str], length: int) -> None:
    """As many ops after each other."""
    value = x = b.input("x", f"f32[{rows},3]")
    for i in range(length):
        value = step(b, ops[i % len(ops)], value, x)
    b.output("y", value)


def step(b: ProgramBuilder, op: str, value: Value, x: Value) -> Value:
    if op == "all_reduce":
        return b.all_reduce(value, "dp")
    ins = [value, x] if op in ("add", "multiply") else [value]
    return b.op(op, ins, value.type)


def unexplained(kind: str, length: int) -> Plan:
    """A plan without an explanation; each of its chains is ``length`` ops long."""
    theirs, mine = KINDS[kind]
    return pair(
        MESH,
        lambda b: chain(b, 4, theirs, length),
        lambda b: chain(b, 2, mine, length),
        {"x": ROWS},
        {"y": ROWS},
    )


def measured(plan: Plan) -> tuple[str, float]:
    """What an emission says of a plan, and its seconds."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tv-unexplained-") as scratch:
        emission = tv.emit(plan, Path(scratch, "bundle"), witness_seconds=0)
    (output,) = emission.verdicts
    return output.verdict, time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lengths", metavar="LENGTH", type=int, nargs="*", default=[5_000])
    parser.add_argument("--kind", choices=KINDS, action="append")
    options = parser.parse_args()
    decided = False
    for kind in options.kind or KINDS:
        for length in options.lengths:
            verdict, seconds = measured(unexplained(kind, length))
            print(f"{kind}, {length} ops: {verdict} after {seconds:.0f} s", flush=True)
            decided |= verdict != "UNKNOWN"
    sys.exit(decided)


if __name__ == "__main__":
    main()
