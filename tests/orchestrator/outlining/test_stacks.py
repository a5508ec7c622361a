"""Long concatenations: what may be rearranged so that a part stays with the code that made it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.plan.program import Program
from orchestrator.emit import emit
from orchestrator.evaluating.interpreter import run_specification
from orchestrator.evaluating.scatter import random_inputs
from orchestrator.outlining.stacks import flattened, gathered, grouped, spread
from trainverify import Kind, check

PARTS = 10


def stacked(use: str = "square") -> Program:
    """A stack of ten vectors, and what is done with it."""
    b = ProgramBuilder()
    xs = [b.input(f"x{k}", f"f32[{1 + k % 3},2]") for k in range(PARTS)]
    stack = b.concatenate([b.tanh(x) for x in xs], 0)
    y = {
        "square": lambda: b.sqrt(b.abs(stack * stack)),
        "twice": lambda: stack * stack + b.exponential(stack),
        "scaled": lambda: stack * b.broadcast(xs[0].sum(0, 1), stack.shape),
        "summed": lambda: stack.sum(0),
    }[use]()
    b.output("y", y)
    return bare(b.build())


def bare(program: Program) -> Program:
    """Without locations, which name source files that no plan lists."""
    ops = tuple(replace(op, loc=None) for op in program.ops)
    return Program(program.inputs, ops, program.outputs)


def names(program: Program) -> list[str]:
    return [op.name for op in program.ops]


def same(a: Program, b: Program) -> bool:
    """Whether two programs compute the same on some inputs."""
    one, two = (plan_of(p) for p in (a, b))
    inputs = random_inputs(one, np.random.default_rng(3))
    left, right = (run_specification(p, inputs)["y"] for p in (one, two))
    return bool(np.array_equal(left, right))


def plan_of(program: Program) -> Plan:
    idle = ProgramBuilder({"r": 1})
    return build_plan(
        name="p", mesh={"r": 1}, specification=program, classes=idle.build(), inputs={}, outputs={}
    )


def test_elementwise_work_is_done_on_the_parts() -> None:
    """However many such ops follow each other: here a product, its absolute value and the root."""
    before = stacked()
    after = spread(before)
    assert names(after)[-1] == "concatenate" and after.ops[-1].out == before.outputs["y"]
    assert all(names(after).count(name) == PARTS for name in ("multiply", "abs", "sqrt"))
    assert same(before, after)
    whole = gathered(after)
    assert names(whole) == ["concatenate", "tanh", "multiply", "abs", "sqrt"]
    assert same(before, whole)


@pytest.mark.parametrize("use", ["twice", "scaled", "summed"])
def test_a_stack_that_is_needed_as_a_whole_stays_one(use: str) -> None:
    assert spread(stacked(use)) == stacked(use)
    assert names(gathered(stacked(use))).count("tanh") == 1
    assert same(stacked(use), gathered(stacked(use)))


def test_neighbours_of_one_kin_are_joined_first_and_can_be_parted_again() -> None:
    before = stacked("summed")
    (stack,) = (op for op in before.ops if op.name == "concatenate")
    kin = dict(zip(stack.ins, [None, 1, 1, 1, 2, 3, 3, 1, None, None], strict=True))
    after = grouped(before, kin.get)
    joined = [op for op in after.ops if op.name == "concatenate"]
    assert [len(op.ins) for op in joined] == [3, 2, 7], "single parts and those of no kin stay"
    assert [str(op.type) for op in joined[:2]] == ["f32[6,2]", "f32[4,2]"]
    assert same(before, after)
    assert flattened(after) == before


def test_a_concatenation_that_is_needed_elsewhere_is_not_dissolved() -> None:
    b = ProgramBuilder()
    x, y = b.input("x", "f32[2]"), b.input("y", "f32[2]")
    inner = b.concatenate([x, y], 0)
    b.output("z", b.concatenate([inner, x], 0) + b.concatenate([y, inner], 0))
    assert names(flattened(b.build())).count("concatenate") == 3


@pytest.mark.parametrize("parts", [2, PARTS])
def test_a_stack_that_is_an_output_is_proved(parts: int, tmp_path: Path) -> None:
    """As a whole it equals the specification's because its parts do."""
    spec, b = ProgramBuilder(), ProgramBuilder({"dp": 2})
    for p, columns in ((spec, 4), (b, 2)):
        xs = [p.input(f"x{k}", f"f32[2,{columns}]") for k in range(parts)]
        p.output("y", p.concatenate([p.tanh(x) for x in xs], 0))
    layouts = {f"x{k}": {"dp": Shard(1)} for k in range(parts)}
    plan = build_plan(
        name="stacked", mesh={"dp": 2}, specification=spec.build(), classes=b.build(), inputs=layouts,
        outputs={"y": {"dp": Shard(1)}},
    )  # fmt: skip
    assert emit(plan, tmp_path / "b").exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED
