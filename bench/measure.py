"""What the shipped plans cost: a Markdown table of tv-emit and tv-check, whole fresh processes, no cache.

python bench/measure.py             print the table
python bench/measure.py --write     and put it into README.md (of some plans: their rows)
python bench/measure.py --check     fail if README.md's table is off by more than a factor of 2

Memory is the largest sum of resident sets of a command and all of its child processes, sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from certificates.plan.plan import Plan
from certificates.plan.reading import load
from orchestrator.children import command

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end -->\n"
COLUMNS = (
    "plan", "proved", "ranks", "ops", "stages", "obligations", "plan KiB", "bundle KiB",
    "emit s", "emit MiB", "check s", "check MiB",
)  # fmt: skip
#: Seconds below this are start-up and say nothing about a ratio.
SECONDS_FLOOR = 2.0


@dataclass(frozen=True)
class Cost:
    """Of one command: wall-clock seconds, largest memory in MiB, and what it printed."""

    seconds: float
    mib: float
    printed: str


def run(words: Sequence[str], every: float = 0.05) -> Cost:
    """Run a command in a session of its own and sample the memory of that session."""
    start, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(words, stdout=out, stdin=subprocess.DEVNULL, start_new_session=True)
        while child.poll() is None:
            peak = max(peak, resident(child.pid))
            time.sleep(every)
        seconds = time.monotonic() - start
        out.seek(0)
        printed = out.read()
    if child.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(words)} ended with code {child.returncode}: {printed[-500:]}")
    return Cost(seconds, peak / 2**20, printed)


def resident(session: int) -> int:
    """Bytes that all processes of a session hold in memory."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


@dataclass(frozen=True)
class Measured:
    """One plan emitted and checked; ``bundle`` is in bytes and holds ``text`` bytes of the plan itself."""

    plan: Plan
    emit: Cost
    check: Cost
    counts: Mapping[str, int]
    valid: bool
    bundle: int
    text: int

    @property
    def ops(self) -> int:
        return len(self.plan.specification.ops) + sum(len(c.program.ops) for c in self.plan.classes)


def measured(path: Path) -> Measured:
    """Emit and check a plan in fresh processes."""
    with tempfile.TemporaryDirectory(prefix="tv-measure-") as folder:
        bundle = Path(folder, "bundle")
        options = ("--out", str(bundle), "--json", "--quiet")
        emit = run(command("orchestrator.cli", "emit_main", str(path), *options))
        check = run(command("checker.cli", "main", str(bundle), "--json"))
        size = sum(f.stat().st_size for f in bundle.rglob("*") if f.is_file())
        text = (bundle / "data/plan.json").stat().st_size
    counts, valid = json.loads(emit.printed)["counts"], json.loads(check.printed)["exit_code"] == 0
    return Measured(load(path), emit, check, counts, valid, size, text)


def row_of(path: Path) -> tuple[str, ...]:
    """One row of the table."""
    m = measured(path)
    numbers = (
        m.plan.mesh.ranks, m.ops, m.counts["stages"], m.counts["obligations"],
        round(path.stat().st_size / 1024), round(m.bundle / 1024),
    )  # fmt: skip
    costs = (f"{m.emit.seconds:.1f}", f"{m.emit.mib:.0f}", f"{m.check.seconds:.1f}", f"{m.check.mib:.0f}")
    proved = f"{m.counts['proved']} of {m.counts['outputs']}"
    return (m.plan.name, proved, *map(str, numbers), *costs)


def table(rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> str:
    """Markdown, numbers to the right."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, rule, *rows))


def published(text: str) -> dict[str, tuple[str, ...]]:
    """Rows of README's table by plan name."""
    match = re.search(re.escape(BEGIN) + "(.*?)" + re.escape(END), text, re.DOTALL)
    lines = match.group(1).splitlines()[2:] if match else []
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return {row[0]: row for row in rows}


def merged(told: Mapping[str, Sequence[str]], rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Rows of README's table, those that were measured in place of theirs, new ones at the end."""
    return list((dict(told) | {row[0]: row for row in rows}).values())


def differences(row: Sequence[str], told: Sequence[str] | None, factor: float = 2.0) -> list[str]:
    """Columns in which a measured row is more than ``factor`` away from README, and other verdicts."""
    if told is None or len(told) != len(COLUMNS):
        return [f"{row[0]}: not in README.md"]
    out = []
    for name, new, old in zip(COLUMNS[1:], row[1:], told[1:], strict=True):
        if name == "proved":
            out += [f"{row[0]}: {new} outputs are proved, README.md says {old}"] if new != old else []
            continue
        a, b = float(new), float(old)
        floor = SECONDS_FLOOR if name.endswith(" s") else 1.0
        if max(a, floor) > factor * max(b, floor) or max(b, floor) > factor * max(a, floor):
            out.append(f"{row[0]}: {name} is {new}, README.md says {old}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plans", type=Path, nargs="*", help="plan files (default: all of examples/)")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    shipped = sorted((ROOT / "examples").glob("*.json.gz"), key=lambda p: p.stat().st_size)
    rows = [row_of(path) for path in options.plans or shipped]
    print(table(rows), end="")
    text = README.read_text("utf-8")
    if options.write:
        every = merged(published(text), rows) if options.plans else rows
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        README.write_text(f"{before}{BEGIN}{table(every)}{END}{after}", encoding="utf-8")
    if options.check:
        wrong = [line for r in rows for line in differences(r, published(text).get(r[0]))]
        print("\n".join(wrong) or "README.md's table holds")
        sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
