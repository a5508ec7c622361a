"""What is said of wrong training steps: the line that a maintainer would change, another one, or none.

python bench/diagnosis.py [--part P] [--write]

Every mistake of tests/breakages is captured and emitted, as ``tv-emit`` does; the lines that count were
recorded before (tests/breakages/lines.py). A right plan of which a cause is printed is a false alarm. Exit
code 1 on a false alarm. ``--write`` replaces the rows of these parts in docs/diagnosis.md, and the totals.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trainverify as tv
from tests.breakages.corpus import PARTS
from tests.breakages.kit import Part
from tests.breakages.lines import recorded
from tests.breakages.outcome import SECONDS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "diagnosis.md"
BEGIN, END = "<!-- diagnosis -->", "<!-- end -->"
HEAD = ["| part | mistake | line | printed | suggestion |", "| --- | --- | --- | --- | --- |"]
OWN, OTHER, NONE = "own", "another", "none"


def cause(part: Part, plan_name: str, mistake: str = "") -> dict[str, object] | None:
    """The cause that an emission names, or ``None``."""
    plan = part.wrong(mistake) if mistake else part.right(plan_name)
    with tempfile.TemporaryDirectory(prefix="tv-diagnosis-") as scratch:
        found = tv.emit(plan, Path(scratch, "bundle"), witness_seconds=SECONDS).to_json()["cause"]
    assert found is None or isinstance(found, dict)
    return found


def row(number: str, part: Part, mistake: str) -> str:
    """One line of the table. A line counts only if it was recorded."""
    found = cause(part, part.mistakes[mistake].plan, mistake)
    if found is None or found["line"] is None:
        return f"| {part.title} | {mistake} | {NONE} | | none |"
    word = OWN if (found["file"], found["line"]) in recorded(number, mistake) else OTHER
    printed = f"{Path(str(found['file'])).name}:{found['line']}: {found['what']}".replace("|", "/")
    suggestion = re.sub(r"[\w/]+/(\w+\.py)", r"\1", str(found["suggestion"] or "none"))
    return f"| {part.title} | {mistake} | {word} | {printed} | {suggestion} |"


def totals(rows: list[str], alarms: int, right: int) -> str:
    """The figures of a table in one line."""
    words = [r.split(" | ")[2] for r in rows]
    suggested = sum(not r.endswith("| none |") for r in rows)
    return (
        f"{len(rows)} mistakes: own line {words.count(OWN)}, another {words.count(OTHER)}, none "
        f"{words.count(NONE)}; proved suggestion {suggested}; false alarms {alarms} of {right} right plans."
    )


def write(rows: list[str], summary: str) -> None:
    """Put the rows into the page, in place of those of the same parts."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    table, after = rest.split(END, 1)
    every = []
    for part in PARTS.values():
        start = f"| {part.title} | "
        mine = [r for r in rows if r.startswith(start)]
        every += mine or [r for r in table.splitlines() if r.startswith(start)]
    PAGE.write_text(before + "\n".join([BEGIN, summary, "", *HEAD, *every, END]) + after, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=[*PARTS], action="append")
    parser.add_argument("--write", action="store_true", help="put the table into docs/diagnosis.md")
    options = parser.parse_args()
    rows: list[str] = []
    alarms = right = 0
    for number in options.part or PARTS:
        part = PARTS[number]
        for plan in part.plans:
            right += 1
            if cause(part, plan) is not None:
                alarms += 1
                print(f"FALSE ALARM: {part.title}: {plan}", flush=True)
        for mistake in part.mistakes:
            rows.append(row(number, part, mistake))
            print(rows[-1], flush=True)
    summary = totals(rows, alarms, right)
    print(summary)
    if options.write:
        write(rows, summary)
    sys.exit(alarms > 0)


if __name__ == "__main__":
    main()
