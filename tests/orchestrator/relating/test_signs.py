"""Tensors that are never negative: what is emitted by the law ``root`` is what the checker accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.functions import body_plan
from certificates.plan.placements import Replicate
from certificates.plan.plan import Plan
from certificates.plan.writing import dumps
from checker.language.proof import Tensor
from checker.reading.plan import read_plan
from checker.rules.model import Model
from checker.rules.roots import nonnegative
from orchestrator.emit import emit
from orchestrator.outlining.outline import outline
from orchestrator.relating.signs import Signs
from tests.orchestrator.deep_plans import clipped, deep
from tests.orchestrator.random_plans import random_plan
from trainverify import Kind, check


def agree(plan: Plan) -> tuple[int, int]:
    """How many tensors are never negative, and how many may be; the checker says the same of each."""
    signs, theirs = Signs(plan), read_plan(dumps(plan))
    found = [0, 0]
    for function in ("", *plan.functions):
        here = body_plan(plan, function) if function else plan
        model = Model(theirs.functions[function], function, theirs) if function else Model(theirs)
        for owner, program in {"s": here.specification, **{c.name: c.program for c in here.classes}}.items():
            for value in program.types():
                mine = signs.nonnegative(function, f"{owner}:{value}")
                assert mine == nonnegative(model, Tensor(owner, value)), (function, owner, value)
                found[not mine] += 1
    return found[0], found[1]


@pytest.mark.parametrize("functions", ["none", "layers", "all"])
@pytest.mark.parametrize("flat", [clipped(4), deep(4)], ids=["clipped", "deep"])
def test_the_checker_has_the_same_signs(flat: Plan, functions: str) -> None:
    plan = flat if functions == "none" else outline(flat, (lambda _: True) if functions == "all" else None)
    good, bad = agree(plan)
    assert good > 3 and bad > 3


@pytest.mark.parametrize("seed", range(12))
def test_the_checker_has_the_same_signs_in_random_plans(seed: int) -> None:
    agree(random_plan(seed))


def squared_root(positive: bool) -> Plan:
    """``sqrt(r) * sqrt(r)`` against ``r``, which is an input or the square of one."""
    spec, b = ProgramBuilder(), ProgramBuilder({"tp": 2}, {"tp": ("tp",)})
    for p in (spec, b):
        x = p.input("x", "f32[4]")
        x = x * x if positive else x
        root = p.sqrt(x)
        p.output("y", root * root if p is b else x)
    whole = {n: {"tp": Replicate()} for n in ("x", "y")}
    return build_plan(
        name="root", mesh={"tp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"x": whole["x"]}, outputs={"y": whole["y"]},
    )  # fmt: skip


@pytest.mark.parametrize("positive", [True, False])
def test_a_root_of_what_may_be_negative_is_not_squared_away(positive: bool, tmp_path: Path) -> None:
    """``sqrt(x) * sqrt(x)`` is no real number where x is negative: it is not x."""
    done = emit(squared_root(positive), tmp_path / "b", witness_seconds=5)
    assert (done.exit_code == 0) == positive
    kind = check(tmp_path / "b").kind
    assert kind is Kind.PROVED if positive else kind in (Kind.REFUTED, Kind.UNKNOWN)
