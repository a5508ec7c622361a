"""DESIGN section 6 as tests: who may import whom, and what the checker may use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("certificates", "smtlib_emit", "orchestrator", "checker")
FORBIDDEN = {
    "certificates": {"smtlib_emit", "orchestrator", "checker", "trainverify"},
    "smtlib_emit": {"orchestrator", "checker", "trainverify"},
    "orchestrator": {"checker", "trainverify"},
    "checker": {"certificates", "smtlib_emit", "orchestrator", "trainverify"},
}
CHECKER_LIBRARIES = {"z3", "cvc5", "click"}
#: Ways to import by a computed name; finding where a package lies is fine.
LOADERS = {"import_module", "exec_module", "spec_from_file_location"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every absolute import, wherever in the file it stands."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").partition(".")[0]


def relative_escapes(path: Path, package: str) -> Iterator[int]:
    """Lines of relative imports that climb out of the package."""
    depth = len(path.relative_to(ROOT / package).parts)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level > depth:
            yield node.lineno


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_the_design_allows(package: str) -> None:
    found = modules(package)
    assert found, f"{package}/ has no modules"
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in found
        for line, name in imports(tree(path))
        if name in FORBIDDEN[package]
    ]
    wrong += [
        f"{path.relative_to(ROOT)}:{line} climbs out of {package}"
        for path in found
        for line in relative_escapes(path, package)
    ]
    assert wrong == []


def test_checker_uses_the_standard_library_and_its_solvers_only() -> None:
    allowed = set(sys.stdlib_module_names) | CHECKER_LIBRARIES
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules("checker")
        for line, name in imports(tree(path))
        if name not in allowed
    ]
    assert wrong == []


def forbidden_in_checker(module: ast.Module) -> Iterator[tuple[int, str]]:
    """``assert`` vanishes under -O; the others run or load what a stranger's file says."""
    for node in ast.walk(module):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert"
        elif isinstance(node, ast.Name) and node.id in ("eval", "exec", "compile", "__import__"):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and node.attr in LOADERS:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in LOADERS)
    for line, name in imports(module):
        if name in ("pickle", "marshal", "shelve", "ctypes", "runpy"):
            yield line, name


def test_checker_has_no_assert_pickle_or_eval() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} uses {what}"
        for path in modules("checker")
        for line, what in forbidden_in_checker(tree(path))
    ]
    assert wrong == []


def test_the_rules_catch_what_they_forbid() -> None:
    source = "import pickle\nfrom certificates.ir import Op\ndef f(x):\n    assert x\n    return eval(x)\n"
    source += "from importlib import import_module\nimportlib.import_module(x)\n"
    module = ast.parse(source)
    assert set(forbidden_in_checker(module)) == {
        *((1, "pickle"), (4, "assert"), (5, "eval"), (6, "import_module"), (7, "import_module")),
    }
    assert (2, "certificates") in set(imports(module))
