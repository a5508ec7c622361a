"""The fuzzer's loop: pairs from four sources, the checker's verdict, exact evaluation at true sizes."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from certificates.bundle.bundle import Bundle, OutputVerdict, write
from checker import kernel
from checker.errors import Undecided
from checker.reading.bundle import read_bundle
from checker.reading.plan import read_plan
from checker.reading.proof import read_manifest, read_proof
from orchestrator.errors import Unproved
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores

from . import families
from .plans import plan_of
from .stages import Pair
from .terms import CLASSES, Random, Sizes, Term, differ, size

SIZES = {"i": (2, 5, 7, 9, 11), "j": (2, 4, 6), "r": (2, 3, 5), "k": (2, 3, 4), "u": (2, 3, 4), "v": (2, 4)}
SOURCES = ("equal", "mutated", "accident", "random")
LARGEST = 40


@dataclass
class Tally:
    """What the pairs came to; `false` lists those that were accepted and differ."""

    pairs: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    reduced: Counter[str] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    false: list[tuple[int, Term, Term, dict[str, int]]] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        lines = [f"{'source':<10}{'pairs':>9}{'accepted':>10}{'reduced':>9}{'too large':>11}{'missed':>8}"]
        for s in SOURCES:
            lines.append(
                f"{s:<10}{self.pairs[s]:>9}{self.accepted[s]:>10}{self.reduced[s]:>9}"
                f"{self.undecided[s]:>11}{self.missed[s]:>8}"
            )
        done = self.pairs.total()
        lines.append(
            f"{done} pairs in {self.seconds:.0f} s ({done / max(self.seconds, 1e-9):.0f}/s); "
            f"accepted though they differ: {len(self.false)}"
        )
        for number, left, right, sizes in self.false[:3]:
            lines += [f"pair {number}, sizes {sizes}:", f"  {left}", f"  {right}"]
        return "\n".join(lines)


def candidates(g: Random) -> Iterator[tuple[str, Term, Term, dict[str, int]]]:
    """Endless pairs with the source they come from."""
    rng = g.rng
    while True:
        sizes = {c: rng.choice(SIZES[c]) for c in CLASSES}
        scope = tuple(g.variable(k) for k in rng.choice(("", "", "i", "i", "ii", "ij", "p", "s")))
        if rng.random() < 0.4:
            plain = tuple(v for v in scope if v[0] == "i")[:1]
            build = rng.choice((families.diagrams, families.arguments))
            family = build(g, plain)
            try:
                found = families.accidents(g, family, sizes, rng.choice((1, 1, 1, 2, 3)))
            except Undecided:
                continue
            for left, right in found[:8]:
                yield "accident", left, right, sizes
            continue
        t = g.term(scope, rng.randint(2, 4))
        if size(t) > LARGEST:
            continue
        other = g.rewritten(t, rng.randint(1, 8))
        source = rng.choice(("equal", "equal", "mutated", "mutated", "mutated", "random"))
        if source == "mutated":
            other = g.mutated(other)
        elif source == "random":
            other = g.term(scope, rng.randint(1, 3))
        if size(other) <= LARGEST:
            yield source, t, other, sizes


def run(pairs: int, seed: int, weaken: str = "", *, first: bool = False, every: int = 1) -> Tally:
    """Judge this many pairs; `first`: stop at the first false acceptance. Every `every`-th pair is, if it is
    accepted, put to the checker itself as records, and if it is not, evaluated to count what is missed."""
    tally, g, start = Tally(), Random(seed), time.monotonic()
    for number, (source, left, right, sizes) in enumerate(candidates(g)):
        if number == pairs:
            break
        tally.pairs[source] += 1
        try:
            pair = Pair(left, right, sizes)
            accepted = pair.accepted(weaken, confirm=number % every == 0)
        except (Undecided, RecursionError):
            tally.undecided[source] += 1
            continue
        if accepted:
            tally.accepted[source] += 1
            tally.reduced[source] += pair.reduced
            if differ(left, right, sizes):
                tally.false.append((number, left, right, sizes))
                if first:
                    break
        elif number % every == 0:
            tally.missed[source] += not differ(left, right, sizes)
    tally.seconds = time.monotonic() - start
    return tally


def engine(pairs: int, seed: int) -> Tally:
    """The same with whole plans: the engine proves, and what it proves passes the checker's kernel.

    Equal pairs are one term on both sides, sharded on one; the engine rearranges little.
    """
    tally, g, start = Tally(), Random(seed), time.monotonic()
    for number, (source, left, right, sizes) in enumerate(candidates(g)):
        if number == pairs:
            break
        tally.pairs[source] += 1
        if source in ("equal", "mutated"):
            right = g.fresh(left) if source == "equal" else g.mutated(g.fresh(left))
        different = differ(left, right, sizes)
        if proved(left, right, sizes):
            tally.accepted[source] += 1
            if different:
                tally.false.append((number, left, right, sizes))
        elif not different:
            tally.missed[source] += 1
    tally.seconds = time.monotonic() - start
    return tally


def proved(left: Term, right: Term, sizes: Sizes) -> bool:
    """Does the engine prove the plan? If so, the checker examines the bundle, which must be valid."""
    plan = plan_of(left, right, sizes)
    found = Engine(plan, Cores())
    found.relate()
    wanted = [number for numbers in found.claims() for number in numbers]
    try:
        for number in wanted:
            found.prove(number)
    except Unproved:
        return False
    proof = found.proof(wanted, "unsat")
    verdict = (OutputVerdict("y", "y", "PROVED"),)
    bundle = Bundle(plan, proof.document, {o.file: o.text for o in proof.obligations}, verdict, "unsat")
    with tempfile.TemporaryDirectory(prefix="tv-fuzz-") as scratch:
        write(bundle, Path(scratch, "bundle"))
        members = read_bundle(Path(scratch, "bundle"))
    kernel.examine(
        read_manifest(members),
        read_plan(members["plan.json"]),
        read_proof(members["proof.json"]),
        members,
    )
    return True
