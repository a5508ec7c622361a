"""Wrong training steps and their right twins, part by part: a line per plan, exit code 1 on a surprise.

python bench/breakages.py [--part P] [--write]

Every plan is captured, emitted and checked, as ``tv-capture`` and ``tv-verify`` do; of pipelines and experts
(parts 13 to 17) the right ones are, and a wrong one's witness is looked for and replayed. ``--write``
replaces the rows of these parts in docs/breakages.md, and the table of what is refused before. Parts whose
library is not installed are left out, and their rows stay.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.schedules import put
from tests.breakages.by_hand import BY_HAND, refusals
from tests.breakages.corpus import PARTS
from tests.breakages.experts import OF_LIBRARIES, installed
from tests.breakages.experts import refusals as refused_experts
from tests.breakages.outcome import Outcome, judged, witnessed
from tests.breakages.staged import PART as STAGED
from tests.breakages.staged import refusals as refused_stages

PAGE = Path(__file__).resolve().parent.parent / "docs" / "breakages.md"
BEGIN, END = "<!-- breakages -->", "<!-- end -->"
EVERY = PARTS | BY_HAND | {"16": STAGED} | OF_LIBRARIES


def row(title: str, name: str, outcome: Outcome) -> str:
    proved = "" if outcome.proved is None else f"{outcome.proved} of {outcome.total}"
    return f"| {title} | {name} | {outcome.verdict} | {outcome.refuted} | {proved} |"


def reason_row(title: str, mistake: str, word: str, why: str) -> str:
    """A mistake that is ``refused``, or UNSAFE, before anything is proved."""
    return f"| {title} | {mistake} | {word} | {why} |"


def write(rows: list[str]) -> None:
    """Put the rows into the page, in place of those of the same parts."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    table, after = rest.split(END, 1)
    by_title = {part.title: [r for r in rows if r.startswith(f"| {part.title} |")] for part in EVERY.values()}
    for title, found in by_title.items():
        found.extend([] if found else [r for r in table.splitlines() if r.startswith(f"| {title} |")])
    head = ["| part | plan or mistake | verdict | refuted output | proved outputs |"]
    head.append("| --- | --- | --- | --- | --- |")
    every = [r for found in by_title.values() for r in found]
    text = before + "\n".join([BEGIN, *head, *every, END]) + after
    PAGE.write_text(put(text, "refused", refused()), "utf-8")


def refused() -> list[str]:
    """The table of mistakes that are refused before anything is proved."""
    head = ["| part | mistake | verdict | reason |", "| --- | --- | --- | --- |"]
    stages = (
        (STAGED.title, f"{style}: {mistake}", word, why) for style, mistake, word, why in refused_stages()
    )
    absent = tuple(f"| {part.title} |" for number, part in OF_LIBRARIES.items() if not installed(number))
    kept = [
        line
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith(absent) and "| refused |" in line
    ]
    told = (*refusals(), *stages, *refused_experts())
    return [*head, *(reason_row(*found) for found in told), *kept]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=[*EVERY], action="append")
    parser.add_argument("--mistake", help="only plans whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the table into docs/breakages.md")
    options = parser.parse_args()
    if options.write and options.mistake:
        parser.error("--write needs all mistakes of a part")
    rows: list[str] = []
    surprises = 0
    for number in options.part or filter(installed, EVERY):
        found = EVERY[number]
        for name, plan, mistake in [
            *((f"*right: {p}*", p, "") for p in found.plans),
            *((m, found.mistakes[m].plan, m) for m in found.mistakes),
        ]:
            if options.mistake and options.mistake not in name:
                continue
            start = time.monotonic()
            outcome = (witnessed if mistake and number not in PARTS else judged)(found, plan, mistake)
            rows.append(row(found.title, name, outcome))
            surprises += bool(outcome.surprises)
            seconds = f"{outcome.captured:.1f} + {time.monotonic() - start - outcome.captured:.1f} s"
            print(rows[-1], seconds, flush=True)
            print(*(f"  SURPRISE: {s}\n" for s in outcome.surprises), sep="", end="", flush=True)
    print(f"{len(rows)} plans, {surprises} surprises")
    if options.write:
        write(rows)
    sys.exit(surprises > 0)


if __name__ == "__main__":
    main()
