"""Which ops report.txt names as partial and not shown: signs through calls, collectives and literals.

``tests/checker/report/test_domains.py`` compares the words with the checker's, on small shipped plans too.
"""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.placements import Shard
from certificates.plan.plan import Function, Plan, RankClass
from certificates.plan.program import Op, Program
from certificates.plan.types import TensorType
from tests.oracles.domains import unshown

VECTOR = TensorType.parse("f32[4]")


def sharded(rank: ProgramBuilder, value: Value) -> Plan:
    """Two ranks that hold two entries of `x` each; `value` is what they make of it."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[4]"))
    rank.output("y", value)
    return build_plan(
        name="p", mesh={"dp": 2}, specification=spec.build(), classes=rank.build(),
        inputs={"x": {"dp": Shard(0)}}, outputs={"y": {"dp": Shard(0)}},
    )  # fmt: skip


@pytest.mark.parametrize(("square", "shown"), [(True, True), (False, False)])
def test_a_sign_passes_a_collective(square: bool, shown: bool) -> None:
    """A norm over ranks: the root of a sum of squares is in its domain, the root of a sum is not."""
    rank = ProgramBuilder({"dp": 2})
    x = rank.input("x", "f32[2]")
    plan = sharded(rank, rank.sqrt(rank.all_reduce(x * x if square else x, "dp")))
    said = ["sqrt where a >= 0 (0 in the specification, 1 in the plan), first c0:%"]
    assert [line[: len(said[0])] for line in unshown(plan)] == ([] if shown else said)


def called(first: str, second: str) -> Plan:
    """`f(x) = sqrt(x)`, called with the results of two ops of `x`."""
    body = Program({"a": VECTOR}, (Op("%0", "sqrt", ("a",), VECTOR),), {"r": "%0"})

    def call(out: str, of: str, instance: int) -> Op:
        return Op(out, "call", (of,), VECTOR, {"function": "f", "instance": instance, "output": 0})

    ops = (
        Op("%0", first, ("x",), VECTOR), call("%1", "%0", 0),
        Op("%2", second, ("%1",), VECTOR), call("%3", "%2", 1), Op("%4", "rsqrt", ("%3",), VECTOR),
    )  # fmt: skip
    program = Program({"x": VECTOR}, ops, {"y": "%4"})
    plain = sharded(rank := ProgramBuilder({"dp": 2}), rank.input("x", "f32[2]"))
    return Plan(
        "calls", plain.mesh, {}, (), program, (RankClass("c0", {"dp": (0, 2)}, program),), (), (),
        functions={"f": Function(body, {"c0": body})},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("exponential", "exponential", []),
        ("exponential", "abs", ["rsqrt where a > 0"]),
        ("exponential", "negate", ["rsqrt where a > 0", "sqrt where a >= 0"]),
        ("tanh", "exponential", ["rsqrt where a > 0", "sqrt where a >= 0"]),
    ],
)
def test_an_input_of_a_function_has_the_sign_of_all_its_operands(
    first: str, second: str, said: list[str]
) -> None:
    """The operand of the second call comes from the result of the first: signs are found for all at once."""
    found = unshown(called(first, second))
    assert [line.partition(" (")[0] for line in found] == said
    if len(said) == 2:
        assert found[1].endswith("first function f, s:%0")


def test_a_circle_of_calls_has_no_sign_of_its_own() -> None:
    """Each call hands its result to the next: what nothing shows is not shown by going round."""
    assert "sqrt where a >= 0" in unshown(called("convert", "convert"))[1]
