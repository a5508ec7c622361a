"""The numbered obligations say the same in docs/checking.md, in the kernel's docstring and in messages."""

from __future__ import annotations

import copy
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from checker import errors, kernel
from checker.errors import OBLIGATIONS, Rejected
from checker.reading.plan import read_plan
from checker.reading.proof import read_manifest, read_proof

sys.path.insert(0, str(Path(__file__).parent))
from samples import row_parallel, scheduled, sorted_rows, staged

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / "checker"
FILES = [p for p in CHECKER.rglob("*.py") if p.stem != "__init__"]
MODULES = sorted(p.relative_to(CHECKER).as_posix()[:-3] for p in FILES)


def test_obligations_have_one_numbering() -> None:
    table = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", (ROOT / "docs/checking.md").read_text(), re.MULTILINE)
    docstring = re.findall(r"^ ?(\d+) ([a-z]+(?: [a-z]+)*)  ", kernel.__doc__ or "", re.MULTILINE)
    assert {int(n): name for n, name in table} == OBLIGATIONS == {int(n): name for n, name in docstring}
    assert str(Rejected(9, "why", "stage 3")) == "obligation 9 (widths) fails at stage 3: why"


def test_every_obligation_is_checked_in_the_module_that_the_table_names() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*?) \|$", (ROOT / "docs/checking.md").read_text(), re.MULTILINE)
    for number, modules in rows:
        for module in re.findall(r"`([\w/]+\.py)`", modules):
            assert (ROOT / "checker" / module).exists(), f"{number}: {module}"


def test_trust_names_every_module_of_the_checker() -> None:
    trusted = (ROOT / "TRUST.md").read_text() + (ROOT / "docs/checking.md").read_text()
    missing = [m for m in MODULES if f"{m}.py" not in trusted]
    assert missing == []


def test_caps_are_those_of_the_document() -> None:
    """A cap decides which bundles get a verdict: whoever changes one says so."""
    text = (ROOT / "docs/checking.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)\.(\w+)` \| (\d+) \|", text, re.MULTILINE)
    told = {(module, name): int(value) for module, name, value in rows}
    modules = {m.replace("/", "."): import_module(f"checker.{m.replace('/', '.')}") for m in MODULES}
    real = {
        (m, n): v
        for m, module in modules.items()
        for n, v in vars(module).items()
        if (n.startswith("MAX_") or n == "SECONDS") and isinstance(v, int)
    }
    imported = {("reading.bundle", "MAX_BYTES"), ("reading.proof", "MAX_REPS"), ("rules.algebra", "MAX_REPS")}
    assert {k: v for k, v in real.items() if k not in imported} == told


EXAMPLE = re.compile(r"^ ?(\d+)  (\w+) (\S+) (\+?=) (.+)\n    (.+)$", re.MULTILINE)
EXAMPLES = EXAMPLE.findall((ROOT / "docs/checking.md").read_text())


def put(box: Any, path: str, value: Any) -> None:
    """Changes a member of nested lists and objects, or appends to a list."""
    *steps, last = (int(s) if s.isdigit() and len(s) < 4 else s for s in path.split("."))
    for step in steps:
        box = box[step]
    if isinstance(box, list) and last == len(box):
        box.append(value)
    else:
        box[last] = value


def said(part: str, path: str, value: Any, number: int = 0) -> str:
    """What the checker says of a sample after one change, made before or (`sealed`) after sealing."""
    late = {21: row_parallel, 22: sorted_rows, 23: scheduled}
    sample = row_parallel if number < 19 else late.get(number, staged)
    bundle = copy.deepcopy(sample())
    answers = {solver: {"0001": "unsat", "0002": "unsat"} for solver in ("z3", "cvc5")}
    data: dict[str, bytes] = {}
    if part == "sealed":
        data = bundle.members()
        data[path] += value.encode()
    else:
        put(answers if part == "answers" else getattr(bundle, part), path, value)
        data = bundle.members()
    try:
        read = read_manifest(data), read_plan(data["plan.json"])
        examined = kernel.examine(*read, read_proof(data["proof.json"], data["plan.json"]), data)
        output = kernel.conclude(examined, answers, 2, {}).outputs[0]
    except errors.CheckerError as error:
        return str(error)
    return f"{output.verdict}: {output.reason}"


def test_the_sample_is_valid_and_every_obligation_has_an_example() -> None:
    for number in (0, 19, 21, 22):
        assert said("answers", "z3.0001", "unsat", number) == "PROVED: "
    assert [int(number) for number, *_ in EXAMPLES] == sorted(OBLIGATIONS)


@pytest.mark.parametrize(("number", "part", "path", "how", "value", "words"), EXAMPLES)
def test_the_examples_of_the_document(
    number: str, part: str, path: str, how: str, value: str, words: str
) -> None:
    assert how == ("+=" if part == "sealed" else "=")
    assert said(part, path, json.loads(value), int(number)) == words
