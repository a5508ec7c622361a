"""How large the checker is, in tokens, folder by folder, by what rests on it.

    python bench/checker_size.py

Lines would count how tightly the code is set. A token is what Python's tokenizer gives, without comments,
docstrings, line ends and indentation; an f-string counts as one. The budgets are in
tests/checker/test_size.py (docs/adr/0013-checker-size.md and the ADR that supersedes it).
"""

from __future__ import annotations

import ast
import io
import token
import tokenize
from collections.abc import Iterator
from pathlib import Path

CHECKER = Path(__file__).resolve().parents[1] / "checker"
#: What must be right for whom. A part that is named later rests on the parts before it.
PARTS = {
    "PROVED": ("errors", "language", "reading", "rules", "kernel", "solvers", "endings", "cli", "starting"),
    "REFUTED": ("refuting",),
    "SAFE": ("scheduling",),
    "report": ("report", "reporting"),
    "run": ("run",),
}
LAYOUT = {
    *(token.NEWLINE, token.INDENT, token.DEDENT, token.ENDMARKER),
    *(tokenize.NL, tokenize.COMMENT, tokenize.ENCODING),
}
#: Python 3.12 and later give the inside of an f-string as tokens of its own.
OPEN, CLOSE = (getattr(token, f"FSTRING_{end}", None) for end in ("START", "END"))


def docstrings(source: str) -> set[tuple[int, int]]:
    """Where a string stands as a statement of its own."""
    return {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def tokens(source: str) -> int:
    """The size of a module."""
    said, count, inside = docstrings(source), 0, 0
    for found in tokenize.generate_tokens(io.StringIO(source).readline):
        if found.type == CLOSE:
            inside -= 1
        elif found.type not in LAYOUT and not inside and found.start not in said:
            count += 1
        if found.type == OPEN:
            inside += 1
    return count


def folder(path: Path) -> str:
    """The folder of a module, or its own name if it stands at the top."""
    return path.relative_to(CHECKER).parts[0].removesuffix(".py")


def sizes() -> dict[str, int]:
    """Tokens by folder; a module at the top counts as one."""
    found: dict[str, int] = {}
    for path in sorted(CHECKER.rglob("*.py")):
        found[folder(path)] = found.get(folder(path), 0) + tokens(path.read_text(encoding="utf-8"))
    found.pop("__init__")
    return found


def parts() -> dict[str, int]:
    """Tokens by what rests on them."""
    size = sizes()
    return {part: sum(size[name] for name in names) for part, names in PARTS.items()}


def table() -> Iterator[str]:
    size = sizes()
    for part, names in PARTS.items():
        yield f"{part:10}{'':12}{sum(size[n] for n in names):8,}"
        yield from (f"{'':10}{name:12}{size[name]:8,}" for name in names)
    yield f"{'all':22}{sum(size.values()):8,}"


if __name__ == "__main__":
    print("\n".join(table()))
