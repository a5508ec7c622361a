"""The script of a refuted output runs with numpy alone and prints the numbers that the checker replayed."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.plan import Plan
from certificates.plan.writing import dumps
from checker.reading.plan import read_plan
from checker.reading.strict import read_json
from checker.refuting.inline import inline
from checker.report import script as module
from checker.report.findings import Findings
from checker.report.script import script
from checker.rules.relations import relation_facts
from tests.pipeline_plans import pipeline


def numbers(text: str, folder: Path) -> list[float]:
    """What the script prints, in an empty folder, in an interpreter that does not see this repository."""
    (folder / "difference.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", "difference.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [float(n) for n in re.findall(r": +(\S+)", done.stdout)]


def test_both_numbers_are_shown(wrong: Findings, tmp_path: Path) -> None:
    ((at, replay),) = wrong.refuted.items()
    witness: Any = read_json(wrong.members["witness.json"], "witness")
    fact = relation_facts(wrong.plan, wrong.plan.outputs[at], "outputs")[witness["piece"]]
    made = script(wrong.plan, fact, witness, dict(replay.symbols))
    assert made is not None and replay.plan is not None
    assert numbers(made, tmp_path) == pytest.approx([float(replay.plan[0]), float(replay.spec[0])])


def block(plan: Any, value: Fraction) -> dict[str, Any]:
    """A witness that gives every input one value; integers count from 0."""
    inputs = {}
    for name, kind in plan.spec.inputs.items():
        cuts = [[0, n] for n in kind.shape]
        one = {"Bool": "true", "Int": "1", "Real": str(value)}[kind.sort]
        inputs[name] = {"cuts": cuts, "values": [one]}
    return {"junk": "3", "inputs": inputs}


def test_right_plans_have_equal_numbers(any_plan: Plan, tmp_path: Path) -> None:
    """All ops and collectives of the hand-written plans, evaluated by the script: both sides agree."""
    both_sides_agree(any_plan, tmp_path)


def test_messages_and_runs_are_evaluated(tmp_path: Path) -> None:
    both_sides_agree(pipeline(2, 2, 2), tmp_path)


def test_receives_in_front_of_sends_are_evaluated(tmp_path: Path) -> None:
    """Both ranks receive first: no order of whole programs evaluates them, dataflow does."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[2]") * 4)
    first, last = (ProgramBuilder({"pp": 2}, box={"pp": (r, r + 1)}) for r in range(2))
    a = first.recv("f32[2]", 1, pp=1)
    first.send(first.input("x", "f32[2]") * 2, 0, pp=1)
    first.output("y", a + first.recv("f32[2]", 2, pp=1))
    b = last.recv("f32[2]", 0, pp=0)
    twice = last.input("x", "f32[2]") * 2
    last.send(twice, 1, pp=0)
    last.send(b * 1, 2, pp=0)
    last.output("y", b + twice)
    programs = [first.build(), last.build()]
    plan = build_plan(
        name="swap", mesh={"pp": 2}, specification=spec.build(),
        classes={f"c{r}": ({"pp": (r, r + 1)}, p) for r, p in enumerate(programs)},
        inputs={"x": {}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip
    both_sides_agree(plan, tmp_path)


def both_sides_agree(any_plan: Plan, tmp_path: Path) -> None:
    plan = inline(read_plan(dumps(any_plan)))
    for relation in plan.outputs[:3]:
        fact = relation_facts(plan, relation, "outputs")[0]
        symbols = {s: lo for s, lo, _ in fact.symbols}
        made = script(plan, fact, block(plan, Fraction(1, 2)), symbols)
        assert made is not None
        left, right = numbers(made, tmp_path)
        assert left == pytest.approx(right)


def test_a_plan_that_is_too_large_has_no_script(wrong: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    ((at, replay),) = wrong.refuted.items()
    witness: Any = read_json(wrong.members["witness.json"], "witness")
    fact = relation_facts(wrong.plan, wrong.plan.outputs[at], "outputs")[0]
    monkeypatch.setattr(module, "MOST", 100)
    assert script(wrong.plan, fact, witness, dict(replay.symbols)) is None
