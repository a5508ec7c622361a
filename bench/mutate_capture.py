"""Mutation test of the capture: is there a test that notices when one rule of it is gone?

    python bench/mutate_capture.py --save                   the sample of the list, tried with the quick tests
    python bench/mutate_capture.py --survived --slow --save  what survived those, with the slow tests too
    python bench/mutate_capture.py --counts                 the tables of the list
    python bench/mutate_capture.py --file lowering          every mutant of modules or folders
    python bench/mutate_capture.py --replay 10 --seed 3     ten of the list: are they noticed still?
    python bench/mutate_capture.py --fill 408 --save        tries new ones in place of those that code lost

What a mutant is, and how they are tried, is told in bench/mutation/; the result in docs/mutation.md. The
list, bench/mutants_of_capture.txt, has a line per mutant: what came of it, its name, and the test that
noticed or the reason why none can.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.mutation.judging import judge
from bench.mutation.operators import KINDS
from bench.mutation.report import table
from bench.mutation.sites import ROOT, Mutant, Target, mutants

LIST = ROOT / "bench" / "mutants_of_capture.txt"
CAPTURE = Target(
    package=ROOT / "orchestrator" / "capture",
    tests=("tests/orchestrator/capture", "tests/test_fuzz_capture.py"),
    first=("tests/orchestrator/capture/test_lowerings.py", "tests/orchestrator/capture/test_refusals.py"),
    options=("--part", "all"),
    warm=(
        "pytest", "_pytest.assertion.rewrite", "hypothesis", "numpy", "networkx", "click.testing", "torch",
        "torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed.pipelining",
        "torch.nn.parallel", "orchestrator.evaluating.interpreter", "orchestrator.proving.engine",
        "certificates.plan.reading",
    ),
    kinds=KINDS,
    patience=20,
    clock=240,
    calls=3000,
    apart=True,
)  # fmt: skip
QUICK = replace(CAPTURE, options=("-m", "not slow"))
SEED, MANY, PER_RULE = 12, 380, 8
#: The rules that a capture must not lose, with the places that uphold each: files, or functions of a file.
RULES = {
    "states that are rebound": ("states.py",),
    "collectives that vanish": ("group.py Traced.", "lowering/collectives.py"),
    "the specification runs alone": ("environment.py",),
    "what stays between steps": ("steps.py", "counters.py"),
    "constants do not survive a collective": ("group.py forget_constant", "group.py Traced._event"),
    "missing waits": ("waits.py", "work.py"),
    "communicators and their order": ("assemble.py _Numbering", "group.py Traced.reference", "fitting.py"),
    "output masks of backward ops": ("lowering/normalization.py _layer",),
    "negative and repeated indices, booleans": (
        "lowering/indexing.py", "lowering/ranges.py", "lowering/elementwise.py",
    ),
    "uninitialised memory": (
        "lowering/creation.py", "lowering/driver.py Lowering._missing", "lowering/driver.py Lowering.finish",
        "lowering/driver.py Lowering.undefined", "memory.py Memory.allocate",
    ),
    "threads and unrecorded writes": ("unrecorded.py",),
    "cuts of parallelize": ("cutting.py", "placing.py", "origins.py"),
    "provenance and real runs": ("assemble.py _provenance", "running.py", "output.py"),
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A line of the list: `killed`, `hung`, `explained` or `survived`, and the test or the reason."""

    word: str
    key: str
    why: str

    def __str__(self) -> str:
        return f"{self.word}\t{self.key}\t{self.why}".rstrip()


def listed() -> dict[str, Known]:
    lines = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    found = [Known(*(line + "\t\t").split("\t")[:3]) for line in lines if line and line[0] != "#"]
    return {k.key: k for k in found}


def drawn(found: Sequence[Mutant], many: int, seed: int) -> list[Mutant]:
    """So many, spread over modules by size, within a module over the kinds; then more for scarce rules."""
    files: dict[str, list[Mutant]] = {}
    for mutant in found:
        files.setdefault(mutant.file, []).append(mutant)
    chosen = []
    for file, all_ in sorted(files.items()):
        rng = random.Random(f"{seed} {file}")
        share, kinds = max(1, round(many * len(all_) / len(found))), dict[str, list[Mutant]]()
        for mutant in rng.sample(all_, len(all_)):
            kinds.setdefault(mutant.kind, []).append(mutant)
        # Half by turns of the kinds, so that each has its share, half as they come.
        turns = [group[k] for k in range(len(all_)) for group in kinds.values() if k < len(group)]
        picked = dict.fromkeys(turns[: (share + 1) // 2])
        rest = [m for m in rng.sample(all_, len(all_)) if m not in picked]
        chosen += [*picked, *rest[: share - len(picked)]]
    for rule in RULES:
        concerned = [m for m in found if rule in rules(m)]
        lacking = PER_RULE - sum(rule in rules(m) for m in chosen)
        more = [m for m in concerned if m not in chosen]
        chosen += random.Random(f"{seed} {rule}").sample(more, min(max(lacking, 0), len(more)))
    return chosen


def rules(mutant: Mutant) -> list[str]:
    place = f"{mutant.file} {mutant.inside}"
    return [rule for rule, places in RULES.items() if place.startswith(places)]


def save(outcomes: Iterable[Known]) -> None:
    head = "# What came of it, the mutant, and the test that noticed or why none can. See docs/mutation.md.\n"
    LIST.write_text(head + "".join(f"{k}\n" for k in sorted(outcomes, key=lambda k: k.key)), encoding="utf-8")


def outcome(mutant: Mutant, said: str) -> Known:
    word, _, rest = said.partition(" by ")
    return Known(word, mutant.key, rest)


def replay(now: Mapping[str, Mutant], many: int, seed: int) -> int:
    """Tries some of the list that a test noticed, each with that test; how many it misses now.

    Tests are renamed, and their parameters numbered anew: what the test of that name misses, or is no longer
    there to notice, may be noticed by another of its file.
    """
    known = [k for k in listed().values() if k.word == "killed" and "::" in k.why and k.key in now]
    chosen = random.Random(seed).sample(known, min(many, len(known)))
    told = judge(
        CAPTURE, [now[k.key] for k in chosen], 1, 60, _say, only={n: k.why for n, k in enumerate(chosen)}
    )
    missed: list[Known] = []
    for known_one in (k for k, said in zip(chosen, told, strict=True) if said == "survived"):
        file = (known_one.why.split("::")[0],)
        _say(f"{known_one.why} misses it; the others of {file[0]}:")
        target = replace(CAPTURE, tests=file, first=file)
        missed += [known_one] * (judge(target, [now[known_one.key]], 1, 60, _say) == ["survived"])
    print(*(f"{k.key}\n    {k.why}" for k in missed), sep="\n")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} are noticed still")
    return len(missed)


def tell(chosen: Sequence[Mutant], known: Mapping[str, Known]) -> None:
    print(table(((m.kind, known[m.key].word) for m in chosen), KINDS))
    print(table(((m.file, known[m.key].word) for m in chosen), sorted({m.file for m in chosen}), "module"))
    print(table(((r, known[m.key].word) for m in chosen for r in rules(m)), [*RULES], "rule"))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--many", type=int, default=MANY, help="mutants of the list")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--file", nargs="+", help="every mutant of these modules or folders, such as lowering, instead"
    )
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--survived", action="store_true", help="only what survived, by the list")
    parser.add_argument("--fill", type=int, metavar="MANY", help="new ones, until the list has so many")
    parser.add_argument("--tests", nargs="+", help="only these files of tests")
    parser.add_argument("--slow", action="store_true", help="with the tests that are marked as slow")
    parser.add_argument("--save", action="store_true", help="write the outcomes to the list")
    parser.add_argument(
        "--replay", type=int, metavar="MANY", help="only so many of the list, with their tests"
    )
    parser.add_argument("--counts", action="store_true", help="only the tables of the list as it is")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--most", type=float, default=1e9, metavar="SECONDS", help="of tests for one mutant")
    parser.add_argument("--longest", type=float, default=20, metavar="SECONDS", help="without longer tests")
    parser.add_argument(
        "--lines", type=Path, help="a file that keeps what tests execute until the code changes"
    )
    given = parser.parse_args()
    found = [m for under in given.file or [""] for m in mutants(CAPTURE, under)]
    if not found:
        parser.error(f"no module or folder of the capture is called {' or '.join(given.file)}")
    if given.replay:
        raise SystemExit(replay({m.key: m for m in found}, given.replay, given.seed) > 0)
    known = listed()
    if given.counts:
        tell([m for m in found if m.key in known], known)
        return
    if given.survived:
        chosen = [m for m in found if m.key in known and known[m.key].word == "survived"]
    elif given.fill:
        every = mutants(CAPTURE)
        lacking = max(given.fill - sum(m.key in known for m in every), 0)
        new = [m for m in drawn(every, given.many, given.seed) if m.key not in known and m in found]
        chosen = random.Random(given.seed).sample(new, min(lacking, len(new)))
    else:
        sample = [m for m in found if m.key in known] if known else drawn(found, given.many, given.seed)
        chosen = found if given.file else sample
    chosen = [m for m in chosen if given.kind in (None, m.kind)]
    tried = [m for m in chosen if m.key not in known or known[m.key].word != "explained"]
    target = CAPTURE if given.slow else QUICK
    if given.tests:
        target = replace(target, tests=tuple(given.tests), first=tuple(given.tests))
    told = judge(
        target,
        tried,
        given.jobs,
        given.longest,
        _say,
        kept=given.lines,
        most=given.most,
    )
    now = {m.key: outcome(m, said) for m, said in zip(tried, told, strict=True)}
    result = {m.key: now.get(m.key) or known[m.key] for m in chosen}
    print(*(f"survived: {m}" for m in chosen if result[m.key].word == "survived"), sep="\n")
    tell(chosen, result)
    if given.save:
        names = {m.key for m in found} if not given.file else {m.key for m in mutants(CAPTURE)}
        save((({k: v for k, v in known.items() if k in names}) | result).values())
    raise SystemExit(any(k.word == "survived" for k in result.values()))


if __name__ == "__main__":
    main()
