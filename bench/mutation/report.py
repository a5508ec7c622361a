"""Counts of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

WORDS = ("killed", "hung", "explained", "survived")


def table(verdicts: Iterable[tuple[str, str]], names: Sequence[str], head: str = "kind") -> str:
    """How many were noticed, by name and in all; of each a name and a word of `WORDS`."""
    counts: Mapping[tuple[str, str], int] = Counter(verdicts)
    wide = max(10, *(len(n) + 1 for n in names))
    lines = [
        f"{head:{wide}}{'all':>6}{'killed':>8}{'hung':>6}{'explained':>11}{'survived':>10}{'killed/all':>12}"
        f"{'/not explained':>16}"
    ]
    for name in (*(n for n in names if any(c == n for c, _ in counts)), "all"):
        row = [sum(n for (k, w), n in counts.items() if name in (k, "all") and w == word) for word in WORDS]
        total, noticed = sum(row), row[0] + row[1]
        lines.append(
            f"{name:{wide}}{total:6}{row[0]:8}{row[1]:6}{row[2]:11}{row[3]:10}{noticed / max(total, 1):12.1%}"
            f"{noticed / max(total - row[2], 1):16.1%}"
        )
    return "\n".join(lines)
