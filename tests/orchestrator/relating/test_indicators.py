"""Masks as numbers are multiples of one another where their masks are one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.errors import Unproved
from orchestrator.proving.engine import Engine
from orchestrator.relating.indicators import Number, number
from smtlib_emit.model import Model

from ..plans import CORES, alone, pair, unproved

ROWS, WORDS = 3, 4
REAL = f"f32[{ROWS},{WORDS}]"


def mask(
    b: ProgramBuilder, labels: Value, words: int = WORDS, first: object = 0, turned: bool = False
) -> Value:
    """Where the label of a row is."""
    label = b.broadcast(labels, (ROWS, words), (0,))
    here = b.iota(f"i64[{ROWS},{words}]", 1) + b.constant(first, f"i64[{ROWS},{words}]")  # type: ignore[arg-type]
    return b.compare(here, label, "EQ") if turned else b.compare(label, here, "EQ")


def chosen(b: ProgramBuilder, where: Value, yes: Fraction | int, no: Fraction | int) -> Value:
    shape = f"f32[{ROWS},{where.type.shape[1]}]"
    return b.select(where, b.constant(yes, shape), b.constant(no, shape))


def some(b: ProgramBuilder) -> Value:
    return mask(b, b.input("labels", f"i64[{ROWS}]"))


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (lambda b: b.convert(some(b), "f32"), (Fraction(1), True)),
        (lambda b: chosen(b, some(b), -1, 0), (Fraction(-1), True)),
        (lambda b: chosen(b, some(b), 0, Fraction(1, 2)), (Fraction(1, 2), False)),
        (lambda b: chosen(b, some(b), 1, 2), None),
        (lambda b: chosen(b, some(b), 0, 0), None),
        (lambda b: b.convert(some(b), "i64"), None),
        (lambda b: b.convert(b.input("labels", f"i64[{ROWS}]"), "f32"), None),
        (
            lambda b: b.select(some(b), b.input("x", REAL), b.constant(0, f"f32[{ROWS},{WORDS}]")),
            None,
        ),
    ],
    ids=[
        "numbers",
        "-1 where it holds",
        "where it does not",
        "nowhere 0",
        "0",
        "integers",
        "no mask",
        "a tensor",
    ],
)
def test_what_a_mask_as_numbers_is(
    write: Callable[[ProgramBuilder], Value], found: tuple[Fraction, bool] | None
) -> None:
    b = ProgramBuilder()
    b.output("y", write(b))
    plan = alone(b)
    out = plan.specification.ops[-1]
    assert number(Model(plan), f"s:{out.out}") == (
        None if found is None else Number(f"s:{out.ins[0]}", *found)
    )


def gradient(b: ProgramBuilder, first: object, words: int, ranks: bool, wrong: bool = False) -> None:
    """The specification has the label's mask twice, in two ways; ranks have one, of their words."""
    x, labels = b.input("x", f"f32[{ROWS},{words}]"), b.input("labels", f"i64[{ROWS}]")
    hot = b.convert(mask(b, labels, words, first), "f32")
    if ranks:
        share = b.constant(1 if wrong else -1, f"f32[{ROWS},{words}]")
        b.output("margin", x * hot)
        b.output("gradient", b.exponential(x) + hot * share)
        return
    b.output("margin", x * hot)
    b.output("gradient", b.exponential(x) + chosen(b, mask(b, labels, turned=True), -1, 0))


def plan(wrong: bool = False) -> Plan:
    return pair(
        {"tp": 2},
        lambda b: gradient(b, 0, WORDS, False),
        lambda b: gradient(b, b.axis_index("tp").scale(WORDS // 2), WORDS // 2, True, wrong),
        {"labels": {}, "x": {"tp": Shard(1)}},
        {"margin": {"tp": Shard(1)}, "gradient": {"tp": Shard(1)}},
        {"labels": (0, WORDS)},
    )


def test_two_forms_of_one_mask_are_one() -> None:
    """As in a margin loss: the code adds something at the label, and PyTorch's gradient has its own mask."""
    assert unproved(plan()) == []
    engine = Engine(plan(), CORES)
    engine.relate()
    said = {
        str(engine.knowledge.facts[n])
        for lhs in engine.knowledge.by_lhs
        for n in engine.knowledge.by_lhs[lhs]
    }
    assert any(text.startswith("s:") and " = -1 * s:" in text for text in said), said


def test_a_mask_with_the_other_sign_is_not_that_one() -> None:
    engine = Engine(plan(wrong=True), CORES)
    engine.relate()
    margin, wrong = (facts[0] for facts in engine.claims())
    engine.prove(margin)
    with pytest.raises(Unproved):
        engine.prove(wrong)
