"""DESIGN section 6 as tests: who may import whom, and what the checker may use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
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


#: Who may import whom: per package, a row for every folder and every module beside the folders. A row names
#: rows of its own package, and whole packages below it. Nothing may be imported that is not in the row.
ROWS = {
    "certificates": {
        "errors": "",
        "words": "",
        "endings": "words",
        "canonical": "errors",
        "shapes": "errors",
        "plan": "canonical errors shapes",
        "proof": "canonical errors plan shapes",
        "bundle": "canonical endings errors plan proof shapes words",
        "authoring": "errors plan",
        "showing": "plan proof words",
        "attesting": "bundle canonical errors",
        "cli": "bundle canonical endings errors plan proof showing words",
        "starting": "cli",
    },
    "smtlib_emit": {
        "errors": "",
        "regroup": "certificates",
        "sexp": "certificates",
        "model": "certificates errors regroup",
        "layout": "certificates errors model regroup sexp",
        "algebra": "certificates errors layout model sexp",
    },
    "orchestrator": {
        "errors": "",
        "progress": "",
        "room": "",
        "children": "certificates",
        "early": "certificates children errors",
        "cells": "certificates",
        "scheduling": "certificates",
        "outlining": "certificates scheduling",
        "evaluating": "certificates errors",
        "solving": "certificates smtlib_emit children errors room",
        "relating": "certificates smtlib_emit cells",
        "staging": "certificates smtlib_emit relating",
        "ghosts": "certificates smtlib_emit cells relating staging",
        "spanning": "certificates smtlib_emit cells ghosts relating staging",
        "proving": "certificates smtlib_emit cells errors ghosts relating solving spanning staging",
        "refuting": "certificates children errors evaluating relating",
        "standalone": "",
        "emission": "certificates",
        "emit": "certificates children early emission errors ghosts progress proving refuting relating room "
        "scheduling solving standalone",
        "cli": "certificates children emit errors progress",
        "starting": "certificates",
        "attesting": "certificates children",
        # A front end asks a prover nothing itself: its command hands one in.
        "capture": "certificates smtlib_emit cells errors evaluating outlining",
        "capture/cli": "certificates emit",
        "capture/elsewhere": "children",
    },
    "checker": {
        "errors": "",
        "endings": "",
        "solvers": "errors",
        "language": "errors",
        "reading": "errors language",
        "rules": "errors language",
        "scheduling": "errors language",
        "kernel": "errors language rules scheduling",
        "report": "kernel language reading refuting rules scheduling",
        "refuting": "errors language reading rules",
        "reporting": "endings errors kernel language reading refuting report",
        "run": "errors language reading rules",
        "cli": "endings errors kernel reading refuting report reporting run solvers",
        "starting": "cli reporting",
    },
}
#: A folder counts as one.
LEVELS = 8


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


def named(path: Path) -> tuple[str, ...]:
    """A module's full name in parts; a folder's ``__init__`` is the folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def import_graph() -> nx.DiGraph:
    """From every module of the four packages to those that it imports, wherever in the file it does."""
    paths = {named(path): path for package in PACKAGES for path in modules(package)}
    graph = nx.DiGraph()
    graph.add_nodes_from(paths)
    for name, path in paths.items():
        folder = name if path.name == "__init__.py" else name[:-1]
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                targets = [tuple(alias.name.split(".")) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = folder[: len(folder) - node.level + 1] if node.level else ()
                base += tuple(node.module.split(".")) if node.module else ()
                targets = [(*base, a.name) if (*base, a.name) in paths else base for a in node.names]
            else:
                continue
            graph.add_edges_from((name, target) for target in targets if target in paths and target != name)
    return graph


def row(name: tuple[str, ...]) -> str:
    """The row of a module in its package: its own, or its folder's."""
    own = "/".join(name[1:])
    return own if own in ROWS[name[0]] else name[1]


def upwards(graph: nx.DiGraph) -> list[str]:
    """Imports that no row allows."""
    wrong = []
    for module, target in sorted(graph.edges):
        if len(module) == 1 or len(target) == 1:
            continue  # a package's own __init__ imports nothing, and importing it imports no module
        allowed = f"{ROWS[module[0]][module[1]]} {ROWS[module[0]][row(module)]}".split()
        wanted = target[1] if module[0] == target[0] else target[0]
        if wanted not in allowed and module[:2] != target[:2]:
            wrong.append(f"{'.'.join(module)} imports {'.'.join(target)}")
    return wrong


def folders(graph: nx.DiGraph, package: str) -> nx.DiGraph:
    """The import graph of a package, a folder counted as one."""
    found = nx.DiGraph()
    for module, target in graph.edges:
        if module[0] == target[0] == package and len(module) > 1 and len(target) > 1:
            found.add_node(module[1])
            if module[1] != target[1]:
                found.add_edge(module[1], target[1])
    return found


def test_no_module_imports_itself_through_others() -> None:
    circles = [
        sorted(".".join(m) for m in c) for c in nx.strongly_connected_components(import_graph()) if len(c) > 1
    ]
    assert circles == []


def test_every_import_stands_in_the_table() -> None:
    graph = import_graph()
    there = {(m[0], m[1]) for m in graph if len(m) > 1}
    assert there == {(p, name) for p, rows in ROWS.items() for name in rows if "/" not in name}
    assert upwards(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_stand_on_few_levels(package: str) -> None:
    graph = folders(import_graph(), package)
    assert nx.is_directed_acyclic_graph(graph)
    levels = nx.dag_longest_path_length(graph) + 1
    assert levels <= LEVELS, " > ".join(nx.dag_longest_path(graph))


def test_the_checker_needs_every_arrow_of_its_rows() -> None:
    """What a row allows and nothing uses would let a rule import a reader again unseen."""
    graph = folders(import_graph(), "checker")
    assert {n: set(graph.successors(n)) for n in graph} == {
        n: set(r.split()) for n, r in ROWS["checker"].items()
    }


def test_an_import_that_no_row_allows_is_named() -> None:
    graph = nx.DiGraph()
    graph.add_edge(("orchestrator", "capture", "assemble"), ("orchestrator", "emit"))
    graph.add_edge(("orchestrator", "capture", "cli"), ("orchestrator", "emit"))
    graph.add_edge(("orchestrator", "relating", "signs"), ("orchestrator", "proving", "lemmas"))
    graph.add_edge(("certificates", "plan", "calls"), ("smtlib_emit", "model"))
    assert upwards(graph) == [
        "certificates.plan.calls imports smtlib_emit.model",
        "orchestrator.capture.assemble imports orchestrator.emit",
        "orchestrator.relating.signs imports orchestrator.proving.lemmas",
    ]
    assert "proving" in folders(graph, "orchestrator")


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


#: Modules that may read a clock, and why no byte of a plan or bundle follows from it.
CLOCKS = {
    "checker/cli.py": "progress on standard error",
    "checker/solvers.py": "a solver that hangs in spite of its limit in steps is UNKNOWN",
    "orchestrator/attesting.py": "the time of a verification, which is what it says",
    "orchestrator/capture/answers.py": "dates that a clock has said to the user's step",
    "orchestrator/capture/asking.py": "clocks of the user's step, which is refused if it decides by them",
    "orchestrator/capture/deadlines.py": "threads of the user's step, which is refused if it decides by them",
    "orchestrator/capture/pace.py": "dates that a clock has said to the user's step, hours later",
    "orchestrator/capture/holding.py": "numbers of dates in Python's own objects, no clock",
    "orchestrator/capture/workers.py": "the patience of a process group, which ends the capture",
    "orchestrator/children.py": "patience with a child that ends anyway",
    "orchestrator/progress.py": "progress on standard error, seconds of --json",
    "orchestrator/solving/command_cores.py": "ends the run: NoAnswer",
    "orchestrator/solving/confirming.py": "ends the run: NoAnswer",
}
_CLOCKS = {"time", "datetime", "timeit", "sched"}


def clocks(module: ast.Module) -> Iterator[int]:
    """Lines that import a clock, or wait for something no longer than so many seconds."""
    yield from (line for line, name in imports(module) if name in _CLOCKS)
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            limited = any(k.arg == "timeout" for k in node.keywords)
            if limited or (called in ("select", "poll", "wait") and len(node.args) == 1):
                yield node.lineno


def test_no_clock_decides_what_is_written() -> None:
    """Two machines, one slow and one fast, write the same bytes: what is given up is counted in steps."""
    found = {p.relative_to(ROOT).as_posix() for package in PACKAGES for p in modules(package)
             if any(clocks(tree(p)))}  # fmt: skip
    assert found == CLOCKS.keys()
    source = "import time\nx.wait(3)\ny.poll()\nz.communicate(timeout=2)\nfrom datetime import datetime\n"
    assert set(clocks(ast.parse(source))) == {1, 2, 4, 5}


def untested(package: str) -> list[str]:
    """Modules with code of their own and without a test module of their name, in their folder or above it."""
    found = []
    for path in modules(package):
        place = path.relative_to(ROOT)
        named_after = [ROOT / "tests" / folder / f"test_{path.name}" for folder in list(place.parents)[:2]]
        code = any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree(path)))
        if code and path.name != "__init__.py" and not any(t.exists() for t in named_after):
            found.append(place.with_suffix("").as_posix())
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_a_test_module_of_its_name(package: str) -> None:
    """Whoever changes a module finds its tests by its name."""
    assert untested(package) == []
