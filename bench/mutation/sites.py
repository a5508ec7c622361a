"""The mutants of a package, named so that other changes of a file leave their names alone."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

from .operators import KINDS, mutated, sites

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Target:
    """A package under test: its folder, and which tests should notice.

    `first` are prefixes of test names that notice most of what goes wrong at import; `options` go to pytest;
    `warm` are modules that are imported before any mutant is made, and import nothing of the package. A test
    may use ten times its usual time and `patience` seconds more of each process, thrice that and `clock`
    seconds on the clock. A function is watched for lines until so many `calls` show none. Where fixtures of a
    session take long, tests are measured `apart`, one process each, so that the first does not pay for all.
    """

    package: Path
    tests: tuple[str, ...]
    first: tuple[str, ...]
    options: tuple[str, ...]
    warm: tuple[str, ...]
    kinds: tuple[str, ...]
    patience: float = 3
    clock: float = 120
    calls: int = 200
    apart: bool = False

    def files(self, under: str = "") -> list[str]:
        """Its modules, relative to its folder; only those of that name, or of that folder, if given."""
        names = sorted(p.relative_to(self.package).as_posix() for p in self.package.rglob("*.py"))
        wanted = [n for n in names if f"/{n}".endswith(f"/{under}.py") or n.startswith(f"{under}/")]
        return wanted if under else names

    def module(self, file: str) -> str:
        parts = (self.package.relative_to(ROOT) / file).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True)
class Mutant:
    """One change: the number of a node in the walk over a file, and which part of it.

    `first` and `last` are the lines of the statement (of its head, if it has a body); `inside` is the
    function, empty for what runs at import; `nth` tells those apart that are alike otherwise.
    """

    file: str
    line: int
    kind: str
    node: int
    part: int
    first: int
    last: int
    inside: str
    source: str
    nth: int = 0

    @property
    def key(self) -> str:
        """Names the mutant without a line number, which any change above it would make stale."""
        return key(self.file, self.inside, self.kind, self.source, self.nth)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.key}"


def key(file: str, inside: str, kind: str, source: str, nth: int) -> str:
    return f"{file} {inside} {kind} `{source}`" + (f" {nth}" if nth else "")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def changed(package: Path, mutant: Mutant) -> ast.Module:
    return mutated(parsed(package / mutant.file), mutant.kind, mutant.node, mutant.part)


def compiled(package: Path, mutant: Mutant) -> CodeType:
    return compile(changed(package, mutant), str(package / mutant.file), "exec", dont_inherit=True)


def mutants(target: Target, under: str = "") -> list[Mutant]:
    """All of them, by kind, file and line."""
    found = []
    for file in target.files(under):
        path = target.package / file
        tree = parsed(path)
        place, same = _places(tree), Counter[tuple[str, str, str]]()
        written = path.read_text(encoding="utf-8").splitlines()
        for number, node in enumerate(ast.walk(tree)):
            if node not in place:
                continue
            for kind, part, what in sites(node):
                if kind not in target.kinds:
                    continue
                first, last, inside = place[node]
                line = getattr(node, "lineno", first)
                if isinstance(node, ast.FunctionDef):  # what it returns
                    _, last, inside = place[node.body[-1]]
                if kind in ("number", "truth"):
                    what += f" of {written[line - 1].strip()}"
                what = " ".join(what.split()).replace("|", "¦").replace("`", "'")[:160]
                nth = same[inside, kind, what]
                found.append(Mutant(file, line, kind, number, part, first, last, inside, what, nth))
                same[inside, kind, what] += 1
    return sorted(found, key=lambda m: (KINDS.index(m.kind), m.file, m.line, m.node, m.part))


def _places(tree: ast.Module) -> dict[ast.AST, tuple[int, int, str]]:
    """Of every node that is code, the lines of its statement and the function around it."""
    found: dict[ast.AST, tuple[int, int, str]] = {}

    def visit(node: ast.AST, span: tuple[int, int], names: tuple[str, ...], inside: str) -> None:
        if isinstance(node, ast.stmt):
            body: list[ast.stmt] = getattr(node, "body", [])
            span = node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or 0
        found[node] = (*span, inside)
        names = (*names, node.name) if isinstance(node, ast.FunctionDef | ast.ClassDef) else names
        for child in ast.iter_child_nodes(node):
            if child in _annotations(node):
                continue
            own = isinstance(node, ast.FunctionDef) and child in node.body
            visit(child, span, names, ".".join(names) if own else inside)

    visit(tree, (0, 0), (), "")
    return found


def _annotations(node: ast.AST) -> list[ast.AST | None]:
    """What only a type checker reads."""
    return [getattr(node, "annotation", None), getattr(node, "returns", None)]
