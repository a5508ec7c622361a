"""Elements of the specification that a mask of positions makes zero."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from orchestrator.proving.engine import Engine
from orchestrator.relating.recipes import AlgebraRecipe
from orchestrator.spanning.terms import Leaf, Term
from orchestrator.spanning.vanishing import Vanishing

from ..plans import CORES, alone

SHAPE = "f32[6,6]"


def causal(b: ProgramBuilder) -> Value:
    return b.convert(b.compare(b.iota("i64[6,6]", 0), b.iota("i64[6,6]", 1), "GE"), "f32")


def asked(write: Callable[[ProgramBuilder, Value], Value]) -> tuple[Engine, Vanishing, str]:
    b = ProgramBuilder()
    b.output("y", write(b, b.input("x", SHAPE)))
    plan = alone(b)
    engine = Engine(plan, CORES)
    vanishing = Vanishing(engine.knowledge, engine.relations.positions)
    return engine, vanishing, f"s:{plan.specification.outputs['y']}"


def at(ref: str, row: tuple[int, int], column: tuple[int, int]) -> tuple[Term, dict[str, tuple[int, int]]]:
    leaf = Leaf(ref, (Affine.symbol("i"), Affine.symbol("j")))
    return Term(Fraction(2), (leaf,), {"j": column}), {"i": row}


MASKED: dict[str, Callable[[ProgramBuilder, Value], Value]] = {
    "a product": lambda b, x: causal(b) * x,
    "a quotient of one": lambda b, x: causal(b) * x / b.exponential(x),
    "a sum of two": lambda b, x: causal(b) * x - x * causal(b) * 3,
    "the mask": lambda b, x: causal(b),
    "a product with the opposite": lambda b, x: x * b.convert(
        b.logical_not(b.compare(b.iota("i64[6,6]", 1), b.iota("i64[6,6]", 0), "GT")), "f32"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_a_block_behind_the_diagonal_is_zero(name: str) -> None:
    engine, vanishing, ref = asked(MASKED[name])
    term, ranges = at(ref, (0, 2), (2, 6))
    found = vanishing.without([term], ranges)
    assert found is not None and [t.coef for t in found] == [0]
    (instance,) = found[0].trace.instances
    fact = engine.knowledge.facts[instance.fact]
    assert (
        fact.lhs == ref
        and fact.rhs == "#f:0"
        and isinstance(engine.knowledge.recipes[instance.fact], AlgebraRecipe)
    )
    engine.prove(instance.fact)


@pytest.mark.parametrize("name", MASKED)
def test_what_is_not_zero_everywhere_stays(name: str) -> None:
    _, vanishing, ref = asked(MASKED[name])
    for columns in ((0, 1), (1, 3), (0, 6)):
        term, ranges = at(ref, (0, 2), columns)
        assert vanishing.without([term], ranges) is None


def test_without_a_mask_nothing_is_asked() -> None:
    _, vanishing, ref = asked(lambda b, x: x * x)
    term, ranges = at(ref, (0, 2), (2, 6))
    assert vanishing.without([term], ranges) is None
    _, vanishing, ref = asked(lambda b, x: causal(b) + x)
    term, ranges = at(ref, (0, 2), (2, 6))
    assert vanishing.without([term], ranges) is None, "one summand is zero, the other is not"
