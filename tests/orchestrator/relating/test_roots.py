"""A square of a square root is its radicand: only of the same root, and only where nothing is negative."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.plan import Plan
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.roots import Roots
from smtlib_emit.model import Model

from ..oracle import Numbers
from ..plans import pair

Formula = Callable[[ProgramBuilder, Value], Value]


def plan(formula: Formula) -> Plan:
    """A formula of what is no negative number."""

    def write(b: ProgramBuilder) -> None:
        b.output("y", formula(b, b.exponential(b.input("x", "f32[2,3]"))))

    return pair({"dp": 2}, write, write, {"x": {}}, {})


def square(b: ProgramBuilder, v: Value) -> Value:
    return v * v


def hops(formula: Formula, *, nonnegative: bool = True) -> tuple[Knowledge, Plan, list[str]]:
    made = plan(formula)
    knowledge = Knowledge(Model(made))
    knowledge.declare_inputs()
    roots = Roots(knowledge, lambda _: nonnegative)
    return knowledge, made, [ref for ref in knowledge.model.ops if roots.relate(ref)]


@pytest.mark.parametrize(
    ("formula", "factor"),
    [
        (lambda b, v: square(b, b.sqrt(v)), 1),
        (lambda b, v: square(b, b.sqrt(v).T), 1),
        (lambda b, v: square(b, b.sqrt(v) * 3), 9),
        (lambda b, v: square(b, b.sqrt(v) / b.sqrt(b.constant(5, v.type))), "1/5"),
    ],
)
def test_squares_are_followed_to_what_the_root_was_taken_of(formula: Formula, factor: int | str) -> None:
    knowledge, made, found = hops(formula)
    assert len(found) == 2, "in the specification and in the plan"
    for ref in found:
        (fact,) = (knowledge.facts[n] for n in knowledge.hops[ref])
        assert str(fact.coef) == str(factor)
        assert knowledge.model.ops[str(fact.rhs)].name == "exponential"
        assert Numbers(made).failure(fact) is None


@pytest.mark.parametrize(
    "formula",
    [
        lambda b, v: b.sqrt(v) * b.sqrt(v + 1),
        lambda b, v: square(b, b.tanh(v)),
        lambda b, v: square(b, b.sqrt(v) / b.sqrt(v + 1)),
        lambda b, v: b.sqrt(v) + b.sqrt(v),
    ],
)
def test_nothing_else_is_a_square_of_a_root(formula: Formula) -> None:
    assert hops(formula)[2] == []


def test_what_may_be_negative_has_no_root_to_square() -> None:
    """The root of a negative number is no number, and its square not the number."""
    assert hops(lambda b, v: square(b, b.sqrt(v)), nonnegative=False)[2] == []


@pytest.mark.parametrize("number", [0, 3])
def test_a_number_beside_roots_is_a_multiple_of_itself(number: int) -> None:
    """The norm of no rows, say, which a rank has of a tensor with fewer rows than ranks."""

    def stacked(b: ProgramBuilder, v: Value) -> Value:
        return square(b, b.concatenate([b.sqrt(v), b.constant(number, "f32[1,3]")], 0))

    knowledge, made, found = hops(stacked)
    assert len(found) == 2
    for ref in found:
        root, other = (knowledge.facts[n] for n in knowledge.hops[ref])
        assert knowledge.model.ops[str(root.rhs)].name == "exponential"
        assert str(knowledge.model.literal(other.rhs)) == str(number) and other.coef == (number or 1)
        assert all(Numbers(made).failure(fact) is None for fact in (root, other))


def test_a_number_alone_is_no_root() -> None:
    assert hops(lambda b, v: square(b, b.constant(2, v.type)))[2] == []
