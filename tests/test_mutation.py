"""The mutation tests: mutants are what they say, and a sample of them is noticed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import mutate_capture, mutate_checker
from bench.mutate_capture import CAPTURE
from bench.mutate_checker import CHECKER, explained
from bench.mutation.operators import KINDS
from bench.mutation.sites import Mutant, Target, changed, mutants, parsed

ROOT = Path(__file__).resolve().parents[1]


def changes(source: str, folder: Path) -> list[tuple[str, str]]:
    """Kind and text of every mutant of a module."""
    (folder / "inside").mkdir()
    (folder / "inside" / "m.py").write_text(source)
    target = Target(folder, (), (), (), (), KINDS)
    return [(m.kind, ast.unparse(changed(folder, m))) for m in mutants(target)]


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("need(x)\ny = f(x)", [("check", "pass\ny = f(x)")]),
        ("raise E", [("check", "pass")]),
        ("x = a and b", [("clause", "x = b and b"), ("clause", "x = a and a"), ("operator", "x = a or b")]),
        ("x = a < b", [("bound", "x = a <= b")]),
        ("x = a == b", [("operator", "x = a != b")]),
        ("x = a if b else c", [("condition", "x = a if not b else c")]),
        ("x = [a for a in b if c]", [("condition", "x = [a for a in b if not c]")]),
        ("x = 7", [("number", "x = 8")]),
        ("x = True", [("truth", "x = False")]),
        ("if a:\n    b()", [("check", "if a:\n    pass"), ("condition", "if not a:\n    b()")]),
        ("a.b = c", [("write", "pass")]),
        ("a[b] += c", [("write", "pass"), ("arithmetic", "a[b] -= c")]),
        ("for a in b:\n    continue", [("jump", "for a in b:\n    pass")]),
        (
            "def f() -> tuple[int, ...]:\n    return a",
            [("result", "def f() -> tuple[int, ...]:\n    return ()")],
        ),
        ("def f() -> int | None:\n    return a", [("result", "def f() -> int | None:\n    return None")]),
        ("def f() -> X:\n    return a", []),
        ("x = {a: b, c: d}", [("element", "x = {c: d}"), ("element", "x = {a: b}")]),
        ("x = ('a', 'b')", [("element", "x = ('b',)"), ("element", "x = ('a',)")]),
        ("x, y = y, x", []),
        ("x: Literal[1, 2] = a", []),
        ("x = a is b", [("identity", "x = a is not b")]),
        ("x = not a", [("identity", "x = a")]),
        ("x = a - b", [("arithmetic", "x = a + b")]),
        ("x = a % b", [("arithmetic", "x = a // b")]),
        ("x = 'a' + b", []),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_mutants(source: str, want: list[tuple[str, str]], tmp_path: Path) -> None:
    assert changes(source, tmp_path) == want


def test_every_mutant_is_another_program_and_has_a_name() -> None:
    """Names hold no line number: what docs/mutation.md explains stays explained when lines move."""
    found = mutants(CHECKER, "affine") + mutants(CHECKER, "rules/terms")
    assert {m.kind for m in found} == set(CHECKER.kinds)
    for m in found:
        assert ast.dump(changed(CHECKER.package, m)) != ast.dump(parsed(CHECKER.package / m.file)), m
    everything = mutants(CHECKER)
    assert len({m.key for m in everything}) == len(everything) > 2500


def test_what_is_explained_can_be_read_back() -> None:
    lines = mutate_checker.EXPLAINED.read_text().splitlines()
    rows = [line for line in lines if re.match(r"\| [\w/]+\.py:", line)]
    assert len(explained()) == len(rows) > 0, "a row that is no row explains nothing"
    example = Mutant("a.py", 7, "bound", 1, 0, 7, 7, "f", "x < y", 2)
    assert mutate_checker.row(example, "why") == "| a.py:7 f | bound | `x < y` | 2 | why |"
    assert mutate_checker.ROW.fullmatch(mutate_checker.row(example, "why"))


def test_the_list_of_the_capture_is_of_this_code_and_touches_every_rule() -> None:
    """Code that changes makes names stale; a list of other code tells nothing."""
    now, known = {m.key: m for m in mutants(CAPTURE)}, mutate_capture.listed()
    there = [now[name] for name in known if name in now]
    assert len(known) >= 400 and len(there) >= 0.75 * len(known), "draw the list anew: docs/mutation.md"
    assert {m.file for m in there} >= set(CAPTURE.files()) - {"lowering/__init__.py"}
    concerned = [rule for m in there for rule in mutate_capture.rules(m)]
    assert not [rule for rule in mutate_capture.RULES if concerned.count(rule) < 3]
    assert all(k.why for k in known.values() if k.word in ("killed", "explained"))


@pytest.mark.slow
def test_mutants_of_the_capture_that_a_test_noticed_are_noticed_still() -> None:
    words = [sys.executable, "bench/mutate_capture.py", "--replay", "10", "--seed", "7"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_a_sample_of_mutants_is_noticed_or_explained() -> None:
    """The whole run is in docs/mutation.md; it takes half an hour."""
    words = [sys.executable, "bench/mutate_checker.py", "--sample", "40", "--seed", "7", "--longest", "0.6"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
