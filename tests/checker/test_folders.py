"""Who may import whom inside the checker: data, rules, kernel; witnesses and words beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKER = Path(__file__).resolve().parents[2] / "checker"
#: Rows of docs and TRUST.md's picture: a folder (or a module at the top) and what it may import.
MAY = {
    "errors": (),
    "language": ("errors",),
    "reading": ("errors", "language"),
    "rules": ("errors", "language"),
    "scheduling": ("errors", "language"),
    "kernel": ("errors", "language", "rules", "scheduling"),
    "solvers": ("errors",),
    "refuting": ("errors", "language", "reading", "rules"),
    "report": ("language", "reading", "rules", "scheduling", "kernel", "refuting"),
    "endings": (),
    "reporting": ("endings", "errors", "language", "reading", "kernel", "refuting", "report"),
    "run": ("errors", "language", "reading", "rules"),
    "cli": ("endings", "errors", "reading", "kernel", "solvers", "refuting", "report", "reporting", "run"),
    "starting": ("cli", "reporting"),
}


def folder(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The folders of the checker that a module imports from, its own left out."""
    here = path.relative_to(CHECKER).parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (found for n in names if (found := folder((*base, *n.split(".")))) != folder(here))


@pytest.mark.parametrize("name", MAY)
def test_a_folder_imports_what_its_row_says(name: str) -> None:
    """A rule that imported a reader, or the kernel a report, would put it behind every PROVED."""
    paths = [p for p in CHECKER.rglob("*.py") if folder(p.relative_to(CHECKER).parts) == name]
    assert paths
    found = {other for path in paths for other in imported(path)}
    assert found <= set(MAY[name]), f"{name} imports {sorted(found - set(MAY[name]))}"


def test_every_folder_has_a_row_and_rows_go_down() -> None:
    there = {folder(p.relative_to(CHECKER).parts) for p in CHECKER.rglob("*.py")} - {"__init__"}
    assert there == set(MAY)
    order = list(MAY)
    assert all(order.index(low) < order.index(high) for high, lows in MAY.items() for low in lows)
