"""Right plans and their wrong twins, from the bundle to the checker's verdict: a table by group.

python bench/right_plans.py [--group G] [--seeds N] [--write]

Groups: ``bugs`` that happened, repaired and as reported; steps ``by hand``; ``rewritings`` of small
training steps, ``--seeds`` of each. ``--write`` puts the rows of these groups into docs/coverage.md. Exit
code 1 if something wrong is proved or something right refuted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
Make = Callable[[], Plan]


def bugs(_seeds: int) -> Iterator[tuple[str, Make, Make | None]]:
    for name, bug in BUGS.items():
        yield name, lambda bug=bug: bug.plan(True), lambda bug=bug: bug.plan(False)


def by_hand(_seeds: int) -> Iterator[tuple[str, Make, Make | None]]:
    """The captured ones run where PyTorch is."""
    for name, twins in COUNTS.items():
        yield name, lambda twins=twins: twins(True), lambda twins=twins: twins(False)
    try:
        from orchestrator.capture import capture
        from tests.right_plans.captured import CAPTURED
    except ImportError:
        return
    root = PAGE.parent.parent
    for name, define in CAPTURED.items():
        yield name, lambda define=define: capture(define(), jobs=1, root=root), None


def rewritings(seeds: int) -> Iterator[tuple[str, Make, Make | None]]:
    for name, step in STEPS.items():
        base = step()
        for seed in range(seeds):
            yield (
                f"{name} {seed}",
                lambda base=base, seed=seed: rewritten(base, seed),
                lambda base=base, seed=seed: rewritten(base, seed, spoiled=True),
            )


GROUPS = {"bugs": bugs, "by hand": by_hand, "rewritings": rewritings}


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
        names = ", ".join(self.unknown)
        return (
            f"| {name} | {self.right} | {self.proved} ({share}) | {names} | {self.wrong} | {self.refuted} |"
        )


def verdict(plan: Plan, seconds: float) -> tuple[tv.Kind, float]:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tv-right-") as scratch:
        emission = tv.emit(plan, Path(scratch, "bundle"), witness_seconds=seconds)
        return tv.check(emission.bundle).kind, time.monotonic() - start


def tallied(group: str, seeds: int, twins: bool) -> Tally:
    tally = Tally()
    for name, right, wrong in GROUPS[group](seeds):
        kind, seconds = verdict(right(), 2.0)
        tally.right += 1
        tally.proved += kind is tv.Kind.PROVED
        if kind is not tv.Kind.PROVED:
            tally.unknown.append(name)
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
