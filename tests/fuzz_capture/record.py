"""What the fuzzer has run so far: a table in a document, one row per stretch of seeds and revision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from .run import Tally

BEGIN, END = "<!-- fuzz -->", "<!-- end -->"
HEAD = (
    "| what | revision | first seed | last seed | captured | differ | refused | invalid "
    "| numbers or outputs compared | seconds |"
)


@dataclass(frozen=True)
class Row:
    """Seeds ``first`` to ``last`` at one revision; ``differ`` are among the ``captured``.

    ``invalid`` could not be run to compare with; ``seconds`` are those of processors.
    """

    what: str
    revision: str
    first: int
    last: int
    captured: int = 0
    differ: int = 0
    refused: int = 0
    invalid: int = 0
    numbers: int = 0
    seconds: int = 0

    def __str__(self) -> str:
        return f"| {' | '.join(str(getattr(self, f.name)) for f in fields(self))} |"

    @staticmethod
    def of(what: str, revision: str, seeds: range, tally: Tally) -> Row:
        kinds = tally.programs
        captured = kinds["agrees"] + kinds["differs"]
        return Row(
            what, revision, seeds[0], seeds[-1], captured, kinds["differs"], kinds["refused"],
            kinds["invalid"], tally.outputs, round(tally.seconds),
        )  # fmt: skip


def read(page: Path) -> list[Row]:
    """The rows of the table."""
    cells = [re.findall(r"[^| ]+", line) for line in _table(page)]
    return [Row(what, revision, *map(int, numbers)) for what, revision, *numbers in cells]


def add(page: Path, row: Row) -> None:
    """Put a row into the table; it extends the one that ends before it.

    Seeds that are there already at this revision are a :class:`ValueError`: they would count twice.
    """
    rows = read(page)
    for i, old in enumerate(rows):
        if (old.what, old.revision) != (row.what, row.revision):
            continue
        if old.first <= row.last and row.first <= old.last:
            raise ValueError(f"{page} has {row.what} of seeds {old.first} to {old.last} at {old.revision}")
        if old.last + 1 == row.first:
            rows[i] = _together(old, row)
            break
    else:
        rows.append(row)
    head, rest = page.read_text("utf-8").split(BEGIN)
    tail = rest.split(END, 1)[1]
    rule = "| --- | --- |" + " --- |" * 8
    page.write_text(
        head + "\n".join([BEGIN, HEAD, rule, *map(str, rows), "", total(rows), END]) + tail, "utf-8"
    )


def _together(a: Row, b: Row) -> Row:
    names = ("captured", "differ", "refused", "invalid", "numbers", "seconds")
    return replace(a, last=b.last, **{n: getattr(a, n) + getattr(b, n) for n in names})


def total(rows: Sequence[Row]) -> str:
    """All revisions together, in a sentence."""
    parts = []
    for what in ("programs", "runs"):
        chosen = [r for r in rows if r.what == what]
        numbers = sum(r.numbers for r in chosen)
        parts.append(f"{sum(r.captured for r in chosen):,} captured {what} ({numbers:,} numbers or outputs)")
    return f"All revisions together: {' and '.join(parts)}, {sum(r.differ for r in rows)} of them differed."


def _table(page: Path) -> list[str]:
    inside = page.read_text("utf-8").split(BEGIN)[1].split(END, 1)[0]
    return [line for line in inside.splitlines() if line.startswith(("| programs |", "| runs |"))]
