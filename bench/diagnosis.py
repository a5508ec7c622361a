"""What is said of wrong training steps: the line that a maintainer would change, told first or beside another
one, another one alone, or none.

python bench/diagnosis.py [--part P] [--plans FOLDER] [--write]

Every mistake of tests/breakages and tests/diagnosed is captured and emitted, as ``tv-emit`` does, and every
bug of tests/right_plans/bugs.py is emitted. Lines that count were recorded before, in tests/breakages and by
marks in tests/diagnosed; of bugs the marks were, the rule for further lines was written later. A line
is *named too* if the message has it, but another one first. A right plan of which a cause is printed is
a false alarm. Exit code 1 on a false alarm. ``--write`` replaces the rows of these parts in
docs/diagnosis.md, and the totals of all.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trainverify as tv
from certificates.plan.plan import Plan
from certificates.plan.reading import load
from certificates.plan.writing import dump
from tests.breakages.corpus import PARTS
from tests.breakages.lines import recorded
from tests.breakages.outcome import SECONDS
from tests.diagnosed.programs import PROGRAMS, expected
from tests.right_plans.bugs import BUGS, lines

PAGE = Path(__file__).resolve().parent.parent / "docs" / "diagnosis.md"
BEGIN, END = "<!-- diagnosis -->", "<!-- end -->"
HEAD = ["| part | mistake | line | printed | suggestion |", "| --- | --- | --- | --- | --- |"]
OWN, NAMED, OTHER, NONE, ALARM, QUIET = "own", "named too", "another", "none", "FALSE ALARM", "right"
PUBLIC, CODE, CODE_FILE = "bugs", "code", "tests/diagnosed/programs.py"
TITLES = {number: part.title for number, part in PARTS.items()} | {
    PUBLIC: "bugs that happened",
    CODE: "code as people write it",
}
#: A line as a cause names it.
_LINE = re.compile(r"([\w./-]+\.py):([0-9]+)")


def cause(plan: Plan) -> dict[str, object] | None:
    """The cause that an emission names, or ``None``."""
    with tempfile.TemporaryDirectory(prefix="tv-diagnosis-") as scratch:
        found = tv.emit(plan, Path(scratch, "bundle"), witness_seconds=SECONDS).to_json()["cause"]
    assert found is None or isinstance(found, dict)
    return found


def right(title: str, name: str, plan: Plan) -> str:
    """The line of the table about a right plan."""
    return f"| {title} | *{name}* | {QUIET if cause(plan) is None else ALARM} | | none |"


def wrong(title: str, name: str, plan: Plan, own: frozenset[tuple[str, int]]) -> str:
    """The line about a mistake. A place counts only if it was recorded: ``own`` are files and lines."""
    found = cause(plan)
    if found is None or found["line"] is None:
        return f"| {title} | {name} | {NONE} | | none |"
    others = [str(o["suggestion"]) for o in found["or"]]
    suggestion = "; or: ".join([str(found["suggestion"] or "none"), *others])
    printed = f"{Path(str(found['file'])).name}:{found['line']}: {found['what']}".replace("|", "/")
    named = {(file, int(line)) for file, line in _LINE.findall(f"{found['what']} {suggestion}")}
    word = OWN if (found["file"], found["line"]) in own else NAMED if named & own else OTHER
    short = re.sub(r"[\w./-]+/(\w+\.py)", r"\1", suggestion)
    return f"| {title} | {name} | {word} | {printed} | {short} |"


def kept(folder: Path | None, name: str, make: Callable[[], Plan]) -> Plan:
    """A plan, captured, or as it was captured into a folder before."""
    if folder is None:
        return make()
    path = folder / (re.sub(r"[^\w-]+", "-", name) + ".json.gz")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        dump(make(), path)
    return load(path)


def rows(number: str, folder: Path | None = None) -> Iterator[str]:
    """The lines about one part, one by one."""
    title = TITLES[number]
    if number == PUBLIC:
        for name, bug in BUGS.items():
            own = frozenset((bug.module, line) for line in lines(bug))
            yield right(title, f"{name}, repaired", bug.plan(True))
            yield wrong(title, name, bug.plan(False), own)
        return
    if number == CODE:
        for name, make in PROGRAMS.items():
            yield right(title, f"{name}, repaired", kept(folder, f"right-{name}", partial(make, True)))
            plan = kept(folder, f"{CODE}-{name}", partial(make, False))
            yield wrong(title, name, plan, frozenset([(CODE_FILE, expected(name))]))
        return
    part = PARTS[number]
    for name in part.plans:
        yield right(title, name, kept(folder, f"{number}-right-{name}", partial(part.right, name)))
    for mistake in part.mistakes:
        plan = kept(folder, f"{number}-{mistake}", partial(part.wrong, mistake))
        yield wrong(title, mistake, plan, recorded(number, mistake))


def totals(table: list[str]) -> str:
    """The figures of a table in one line."""
    words = [r.split(" | ")[2] for r in table]
    mistakes = [r for r, word in zip(table, words, strict=True) if word in (OWN, NAMED, OTHER, NONE)]
    suggested = sum(not r.endswith("| none |") for r in mistakes)
    return (
        f"{len(mistakes)} mistakes: own line {words.count(OWN)}, named beside another {words.count(NAMED)}, "
        f"another {words.count(OTHER)}, none {words.count(NONE)}; proved suggestion {suggested}; "
        f"false alarms {words.count(ALARM)} of "
        f"{len(table) - len(mistakes)} right plans."
    )


def write(new: list[str]) -> None:
    """Put the rows into the page, in place of those of the same parts."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    table, after = rest.split(END, 1)
    every = []
    for title in TITLES.values():
        start = f"| {title} | "
        mine = [r for r in new if r.startswith(start)]
        every += mine or [r for r in table.splitlines() if r.startswith(start)]
    PAGE.write_text(before + "\n".join([BEGIN, totals(every), "", *HEAD, *every, END]) + after, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=[*TITLES], action="append")
    parser.add_argument("--write", action="store_true", help="put the table into docs/diagnosis.md")
    parser.add_argument("--plans", type=Path, help="a folder to keep captured plans in, and read them from")
    options = parser.parse_args()
    found: list[str] = []
    for number in options.part or TITLES:
        for row in rows(number, options.plans):
            found.append(row)
            print(row, flush=True)
    print(totals(found))
    if options.write:
        write(found)
    sys.exit(any(r.split(" | ")[2] == ALARM for r in found))


if __name__ == "__main__":
    main()
