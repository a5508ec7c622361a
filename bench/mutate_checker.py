"""Mutation test of the checker: is there a test that notices when one check is gone?

    python bench/mutate_checker.py                               every mutant of checker/
    python bench/mutate_checker.py --sample 60 --seed 1          a sample of all mutants
    python bench/mutate_checker.py --kind check --file kernel    every deleted check of kernel.py

What a mutant is, and how they are tried, is told in bench/mutation/. Of its kinds, those from `check` to
`number` are made of the checker.

What survives is a missing test or a change without effect on any verdict; docs/mutation.md explains the
latter one by one, and this program counts what is not explained there.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.mutation.judging import judge
from bench.mutation.operators import KINDS
from bench.mutation.report import table
from bench.mutation.sites import ROOT, Mutant, Target, key, mutants

EXPLAINED = ROOT / "docs" / "mutation.md"
CHECKER = Target(
    package=ROOT / "checker",
    tests=("tests/checker", "tests/test_forged.py"),
    first=tuple(
        f"tests/checker/{name}.py"
        for name in ("test_documents", "test_kernel", "rules/test_two_texts", "refuting/test_intervals")
    ),
    options=("-m", "not slow", "-k", "not shipped_plans"),  # these read large plans
    warm=(
        "pytest",
        "_pytest.assertion.rewrite",
        "hypothesis",
        "z3",
        "cvc5",
        "numpy",
        "networkx",
        "click",
        "click.testing",
        "jsonschema",
        "orchestrator.proving.engine",
        "orchestrator.solving.cores",
        "smtlib_emit",
        "certificates.plan.reading",
        "trainverify",
    ),
    kinds=KINDS[:6],
)

ROW = re.compile(r"\| ([\w/]+\.py):\d+ ([\w.]*) \| (\w+) \| (`.*`) \| (\d+) \| (.+) \|")


def explained() -> dict[str, str]:
    """Keys of the mutants that docs/mutation.md explains, with the reason: the rows of its tables."""
    text = EXPLAINED.read_text(encoding="utf-8") if EXPLAINED.exists() else ""
    rows = [found.groups() for found in map(ROW.fullmatch, text.splitlines()) if found]
    return {
        key(file, inside, kind, source[1:-1], int(nth)): why for file, inside, kind, source, nth, why in rows
    }


def row(mutant: Mutant, why: str) -> str:
    place = f"{mutant.file}:{mutant.line} {mutant.inside}"
    return f"| {place} | {mutant.kind} | `{mutant.source}` | {mutant.nth} | {why} |"


def renumber(found: Sequence[Mutant]) -> int:
    """Writes the rows of docs/mutation.md again, with the lines of the day; drops those that have no mutant
    now, and says how many.
    """
    known, now, stale = explained(), {m.key: m for m in found}, 0
    lines: list[str] = []
    for line in EXPLAINED.read_text(encoding="utf-8").splitlines():
        if match := ROW.fullmatch(line):
            file, inside, kind, source, nth, _ = match.groups()
            name = key(file, inside, kind, source[1:-1], int(nth))
            if name in now:
                lines.append(row(now[name], known[name]))
            else:
                stale += 1
        else:
            lines.append(line)
    EXPLAINED.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return stale


def lot(mutant: Mutant, seed: int) -> str:
    """What a sample is ordered by: the mutants of code that did not change are drawn again."""
    return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="so many mutants, drawn by --seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=CHECKER.kinds)
    parser.add_argument("--only", type=Path, help="only what this output of a former run says survived")
    parser.add_argument("--file", help="only this module, such as kernel")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--longest", type=float, default=60, metavar="SECONDS", help="without tests that take longer"
    )
    parser.add_argument("--recheck", action="store_true", help="try also what docs/mutation.md explains")
    parser.add_argument(
        "--renumber",
        action="store_true",
        help="only put the lines of the day into docs/mutation.md, without rows that explain nothing",
    )
    given = parser.parse_args()
    if given.renumber:
        print(f"{renumber(mutants(CHECKER))} rows explained nothing and are gone")
        raise SystemExit(0)
    found = [m for m in mutants(CHECKER, given.file or "") if given.kind in (None, m.kind)]
    if given.only:
        lines = [line.split(" ", 2) for line in given.only.read_text(encoding="utf-8").splitlines()]
        keys = {line[2] for line in lines if line[0] == "survived:"}
        found = [m for m in found if m.key in keys]
    if given.sample is not None:
        found = sorted(found, key=lambda m: lot(m, given.seed))[: given.sample]
    known = {} if given.recheck else explained()
    tried = [m for m in found if m.key not in known]
    told = judge(
        CHECKER, tried, given.jobs, given.longest, lambda text: print(text, file=sys.stderr, flush=True)
    )
    verdicts = {m.key: "explained" for m in found} | {
        m.key: said for m, said in zip(tried, told, strict=True)
    }
    words = {m: verdicts[m.key].split()[0] for m in found}
    for mutant in found:
        if words[mutant] == "survived":
            print(f"survived: {mutant}", flush=True)
    print(table(((m.kind, word) for m, word in words.items()), CHECKER.kinds))
    raise SystemExit(1 if "survived" in words.values() else 0)


if __name__ == "__main__":
    main()
