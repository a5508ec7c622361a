"""Mutation test of the checker: is there a test that notices when one check is gone?

    python bench/mutate_checker.py --sample 60 --seed 1          a sample of all mutants
    python bench/mutate_checker.py --kind check --file kernel    every deleted check of kernel.py

A mutant is the checker with one change of its syntax tree:

    check       a statement `need(...)`, `self.need(...)`, `require(...)`, `check_...(...)` or `raise` is
    deleted
    condition   the condition of an `if`, a conditional expression or a comprehension is negated
    bound       `<` and `<=`, `>` and `>=` are exchanged
    operator    `and` and `or`, `==` and `!=`, `in` and `not in` are exchanged
    number      an integer literal grows by one

Each runs the fast tests of the checker in a copy of the tree, two at a time. What survives is printed with
file
and line, and is either a missing test or a change without effect (a cap, a message, a shortcut).
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ["tests/checker/test_kernel.py", "tests/checker/test_algebra.py", "tests/checker/test_tampering.py",
         "tests/checker", "tests/test_forged.py"]
CHECKS = ("need", "require")
EXCHANGED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or,
    ast.Or: ast.And}


@dataclass(frozen=True)
class Mutant:
    """One change: the number of a node in the walk over a file, and which operator of it."""

    file: str
    line: int
    kind: str
    node: int
    part: int
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.source}"


def is_check(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in CHECKS or name.startswith(("check_", "_check", "_tile", "_meet", "_fact", "_claim",
                                              "_introduce"))


def sites(tree: ast.Module) -> Iterator[tuple[int, ast.AST, str, int]]:
    for number, node in enumerate(ast.walk(tree)):
        if is_check(node):
            yield number, node, "check", 0
        if isinstance(node, (ast.If, ast.IfExp)):
            yield number, node, "condition", 0
        if isinstance(node, ast.comprehension):
            yield from ((number, node.ifs[k], "condition", k) for k in range(len(node.ifs)))
        if isinstance(node, ast.Compare):
            for k, op in enumerate(node.ops):
                if type(op) in EXCHANGED or type(op) in SWAPPED:
                    yield number, node, "bound" if type(op) in EXCHANGED else "operator", k
        if isinstance(node, ast.BoolOp):
            yield number, node, "operator", 0
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield number, node, "number", 0


def negated(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def mutated(tree: ast.Module, mutant: Mutant) -> ast.Module:
    tree = copy.deepcopy(tree)
    node = list(ast.walk(tree))[mutant.node]
    match node:
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.If() | ast.IfExp() if mutant.kind == "condition":
            node.test = negated(node.test)
        case ast.comprehension():
            node.ifs[mutant.part] = negated(node.ifs[mutant.part])
        case ast.Compare():
            kind = type(node.ops[mutant.part])
            node.ops[mutant.part] = (EXCHANGED | SWAPPED)[kind]()  # type: ignore[call-overload]
        case ast.BoolOp():
            node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        case _:
            for parent in ast.walk(tree):
                for body in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
                    if isinstance(body, list) and node in body:
                        body[body.index(node)] = ast.copy_location(ast.Pass(), node)
    return ast.fix_missing_locations(tree)


def mutants(files: list[Path]) -> list[Mutant]:
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for number, node, kind, part in sites(ast.parse(text)):
            line = getattr(node, "lineno", 0)
            found.append(Mutant(path.name, line, kind, number, part, lines[line - 1].strip()[:100]))
    return found


def survives(mutant: Mutant, seconds: int) -> str:
    """`killed`, `survived` or `hung` (which counts as noticed)."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        place = Path(name)
        for entry in ROOT.iterdir():
            if entry.name not in ("checker", ".git", ".pytest_cache", ".hypothesis"):
                (place / entry.name).symlink_to(entry)
        shutil.copytree(ROOT / "checker", place / "checker", ignore=shutil.ignore_patterns("__pycache__"))
        target = place / "checker" / mutant.file
        target.write_text(ast.unparse(mutated(ast.parse(target.read_text(encoding="utf-8")), mutant)))
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider",
                 "-k", "not shipped_plans and not crashes and not misbehaves"]
        for test in TESTS:  # one run each: pytest would sort them, and the quickest to notice come first
            try:
                done = subprocess.run([*words, test], cwd=place, capture_output=True, timeout=seconds,
                                      check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
            except subprocess.TimeoutExpired:
                return "hung"
            if done.returncode:
                break
        last = [line for line in done.stdout.decode().splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "survived" if done.returncode == 0 else f"killed {last[0][:120] if last else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="so many mutants, drawn by --seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=["check", "condition", "bound", "operator", "number"])
    parser.add_argument("--file", help="only this module, such as kernel")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=300, help="limit per mutant")
    given = parser.parse_args()
    files = sorted((ROOT / "checker").glob(f"{given.file or '*'}.py"))
    found = [m for m in mutants(files) if given.kind in (None, m.kind)]
    if given.sample is not None:
        found = random.Random(given.seed).sample(found, min(given.sample, len(found)))
    counts: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, verdict in zip(found, pool.map(lambda m: survives(m, given.seconds), found), strict=True):
            counts[mutant.kind, verdict.split()[0]] += 1
            print(f"{sum(counts.values())}/{len(found)} {verdict} {mutant}", file=sys.stderr, flush=True)
            if verdict == "survived":
                print(f"survived: {mutant}", flush=True)
    for (kind, verdict), n in sorted(counts.items()):
        print(f"{kind:10} {verdict:9} {n}")


if __name__ == "__main__":
    main()
