"""Right plans and their wrong twins, from the bundle to the checker's verdict: a table by group.

python bench/right_plans.py [--group G] [--seeds N] [--write]

Groups: ``bugs`` that happened, repaired and as reported; ``counts`` and numbers of ranks; steps in PyTorch
by hand, ``captured`` (wrong ones are in docs/breakages.md); whole programs by people who had not seen the
prover, ``front``; ``rewritings`` of small training steps, ``--seeds`` of each. What takes more than five
minutes is not proved. ``--write`` puts the rows of these groups into docs/coverage.md. Exit code 1 if
something wrong is proved or something right refuted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trainverify as tv
from certificates.plan.plan import Plan
from tests.right_plans.bugs import BUGS
from tests.right_plans.counts import COUNTS
from tests.right_plans.rewriting import rewritten
from tests.right_plans.steps import STEPS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"
BEGIN, END = "<!-- right plans -->", "<!-- end of right plans -->"
HEAD = (
    "| group | right plans | proved | not proved | wrong twins | refuted |",
    "| --- | ---: | ---: | --- | ---: | ---: |",
)
SEEDS = 10
#: Seconds after which a plan is not proved.
LIMIT = 300.0
#: Why a right plan is not proved, where that is known.
REASONS: dict[str, str] = {}
Make = Callable[[], Plan]


def bugs(_seeds: int) -> Iterator[tuple[str, Make, Make | None]]:
    for name, bug in BUGS.items():
        yield name, lambda bug=bug: bug.plan(True), lambda bug=bug: bug.plan(False)


def counts(_seeds: int) -> Iterator[tuple[str, Make, Make | None]]:
    for name, twins in COUNTS.items():
        yield name, lambda twins=twins: twins(True), lambda twins=twins: twins(False)


def captured(_seeds: int) -> Iterator[tuple[str, Make, Make | None]]:
    """Where PyTorch is."""
    from orchestrator.capture import capture
    from tests.right_plans.captured import CAPTURED, UNPROVED

    REASONS.update(UNPROVED)
    for name, define in CAPTURED.items():
        yield name, lambda define=define: capture(define(), jobs=1, root=PAGE.parent.parent), None


def front(_seeds: int) -> Iterator[tuple[str, Make, Make | None]]:
    """Where PyTorch is."""
    from orchestrator.capture import Definition, capture
    from tests.right_plans.front.programs import FRONT, UNPROVED

    def make(define: Callable[[bool], Definition], right: bool) -> Plan:
        return capture(define(right), jobs=1, root=PAGE.parent.parent)

    REASONS.update(UNPROVED)
    for name, define in FRONT.items():
        yield name, partial(make, define, True), partial(make, define, False)


def rewritings(seeds: int) -> Iterator[tuple[str, Make, Make | None]]:
    for name, step in STEPS.items():
        base = step()
        for seed in range(seeds):
            yield (
                f"{name} {seed}",
                lambda base=base, seed=seed: rewritten(base, seed),
                lambda base=base, seed=seed: rewritten(base, seed, spoiled=True),
            )


GROUPS = {"bugs": bugs, "counts": counts, "captured": captured, "front": front, "rewritings": rewritings}


@dataclass
class Tally:
    """What became of a group."""

    right: int = 0
    proved: int = 0
    wrong: int = 0
    refuted: int = 0
    unknown: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def row(self, name: str) -> str:
        share = f"{100 * self.proved / self.right:.1f} %" if self.right else ""
        names = "; ".join(self.unknown)
        return (
            f"| {name} | {self.right} | {self.proved} ({share}) | {names} | {self.wrong} | {self.refuted} |"
        )


def verdict(plan: Plan, seconds: float) -> tuple[tv.Kind, float]:
    """What the checker says of a plan, in a process of its own, which is ended after :data:`LIMIT`."""
    start, (here, there) = time.monotonic(), multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=checked, args=(plan, seconds, there))
    child.start()
    there.close()
    kind = tv.Kind.UNKNOWN
    if here.poll(LIMIT):
        kind = tv.Kind(here.recv())
    child.terminate()
    child.join()
    return kind, time.monotonic() - start


def checked(plan: Plan, seconds: float, answer: Connection) -> None:
    with tempfile.TemporaryDirectory(prefix="tv-right-") as scratch:
        emission = tv.emit(plan, Path(scratch, "bundle"), witness_seconds=seconds)
        answer.send(tv.check(emission.bundle).kind.value)


def tallied(group: str, seeds: int, twins: bool) -> Tally:
    tally = Tally()
    for name, right, wrong in GROUPS[group](seeds):
        kind, seconds = verdict(right(), 2.0)
        tally.right += 1
        tally.proved += kind is tv.Kind.PROVED
        if kind is not tv.Kind.PROVED:
            tally.unknown.append(f"{name} ({REASONS[name]})" if name in REASONS else name)
            print(f"{group}: {name} is {kind.value}, {seconds:.0f} s", flush=True)
        if kind is tv.Kind.REFUTED:
            tally.failures.append(f"{name} is right and refuted")
        if wrong is None or not twins:
            continue
        kind, _ = verdict(wrong(), 10.0)
        tally.wrong += 1
        tally.refuted += kind is tv.Kind.REFUTED
        if kind is not tv.Kind.REFUTED:
            print(f"{group}: the wrong twin of {name} is {kind.value}", flush=True)
        if kind is tv.Kind.PROVED:
            tally.failures.append(f"{name} is wrong and proved")
    return tally


def write(rows: Mapping[str, str]) -> None:
    """Put rows into the page, in place of those of the same groups."""
    head, rest = PAGE.read_text("utf-8").split(BEGIN)
    table, tail = rest.split(END, 1)
    old = {g: r for r in table.splitlines() for g in GROUPS if r.startswith(f"| {g} |")}
    lines = [BEGIN, *HEAD, *((old | dict(rows))[g] for g in GROUPS if g in old or g in rows), END]
    PAGE.write_text(head + "\n".join(lines) + tail, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=[*GROUPS], action="append")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="rewritings of each step")
    parser.add_argument("--right-only", action="store_true", help="without the wrong twins")
    parser.add_argument("--write", action="store_true", help="put the rows into docs/coverage.md")
    options = parser.parse_args()
    if options.write and options.right_only:
        parser.error("--write needs the twins")
    found = {g: tallied(g, options.seeds, not options.right_only) for g in options.group or GROUPS}
    rows = {group: tally.row(group) for group, tally in found.items()}
    failures = [failure for t in found.values() for failure in t.failures]
    print("\n".join([*HEAD, *rows.values(), *failures]))
    if options.write:
        write(rows)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
