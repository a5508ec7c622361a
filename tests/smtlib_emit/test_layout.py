"""Layout definitions, read back and evaluated on the oracle's numbers: each must be true of every element."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Reduced
from certificates.proof.stages import BoundIndex, BoundSymbol, Def, Hyp, LayoutPremise, LayoutStage
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.ledger import LayoutRecipe
from orchestrator.staging.layout import LayoutBuilder
from smtlib_emit.errors import NoDefinition
from smtlib_emit.layout import LayoutText, lift
from smtlib_emit.model import Model
from tests.orchestrator.oracle import Numbers
from tests.orchestrator.plans import every_op, exchange
from tests.orchestrator.random_plans import random_plan

from .meaning import Meaning


def symbols(model: Model, ref: str) -> tuple[tuple[str, int, int], ...]:
    return tuple((f"x{i}", lo, hi) for i, (lo, hi) in enumerate(model.tensors.ranges(ref)))


def definitions(model: Model, ref: str) -> tuple[LayoutText, list[LayoutPremise]]:
    """The definition of a whole op at symbolic indices, with its index equations."""
    over = symbols(model, ref)
    index = tuple(Affine.symbol(s) for s, _, _ in over)
    knowledge = Knowledge(model)
    goal = knowledge.add(Fact(ref, ref, over, index, index), LayoutRecipe())
    builder = LayoutBuilder(knowledge, goal, LayoutRecipe(frozenset((ref,))))
    builder.define(ref, index)
    mine: list[LayoutPremise] = [
        p for p in builder.premises if isinstance(p, Def | BoundIndex) and p.t == ref
    ]
    stage = LayoutStage(goal, "", tuple(builder.symbols), tuple(mine))
    return LayoutText(model, knowledge.facts, stage), mine


def points(text: LayoutText, count: int) -> Iterator[dict[str, int]]:
    """Values of all symbols, those a little out of range included."""
    rng = random.Random(0)
    spaces = [range(lo, hi) for lo, hi in text.ranges.values()]
    for _ in range(count):
        yield dict(zip(text.ranges, (rng.choice(s) for s in spaces), strict=True))


def check(plan: Plan, seed: int = 0) -> int:
    """Every op of a plan that has a layout definition; how many there were."""
    model, numbers, done = Model(plan), Numbers(plan, seed), 0
    for ref, op in model.ops.items():
        if op.name in ("constant", "iota", "gather"):
            continue
        try:
            text, premises = definitions(model, ref)
            bodies = [text.premise(p) for p in premises]
        except NoDefinition:
            continue
        done += 1
        for at in points(text, 60):
            meaning = Meaning(numbers, at)
            equations = [b for p, b in zip(premises, bodies, strict=True) if isinstance(p, BoundIndex)]
            if not all(meaning.of(e) for e in equations):
                continue
            for p, body in zip(premises, bodies, strict=True):
                assert isinstance(p, BoundIndex) or meaning.of(body), f"{ref} {op.name} at {at}: {body}"
    return done


def test_definitions_are_true_of_hand_written_plans(any_plan: Plan) -> None:
    assert check(any_plan) > 3


def test_definitions_are_true_of_what_random_plans_do_not_draw() -> None:
    """all_to_all, concatenate, a transpose of three axes; every elementwise op."""
    assert check(exchange()) > 4
    assert check(every_op()) > 10


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_definitions_are_true_of_random_plans(seed: int) -> None:
    check(random_plan(seed, 10), seed)


def test_a_definition_at_an_index_that_may_not_exist_is_guarded(mlp: Plan) -> None:
    """Without the guard a file would assert something about row -1."""
    model = Model(mlp)
    ref = next(r for r, op in model.ops.items() if op.name == "transpose" and r.startswith("s:"))
    over = (("x0", -1, 3), ("x1", 0, 1))
    index = (Affine.symbol("x0"), Affine())
    stage = LayoutStage(0, "", (), ())
    text = LayoutText(model, [Fact(ref, ref, over, index, index)], stage)
    body = text.premise(Def(ref, index))
    assert isinstance(body, tuple) and body[0] == "=>" and body[1] == ("<=", "0", "x0")


def test_ranges_of_symbols() -> None:
    plan = random_plan(1)
    fact = Fact("s:in0", "s:in0", (("z0", 2, 5),), (Affine.symbol("z0"), Affine()), (Affine(), Affine()))
    text = LayoutText(Model(plan), [fact], LayoutStage(0, "", (("q0", 0, 7),), ()))
    assert text.premise(BoundSymbol("z0")) == ("and", ("<=", "2", "z0"), ("<", "z0", "5"))
    assert text.premise(BoundSymbol("q0")) == ("and", ("<=", "0", "q0"), ("<", "q0", "7"))


@pytest.mark.parametrize("kind", ["add", "max"])
def test_sum_congruence_is_true(mlp: Plan, kind: str) -> None:
    """From one fact per class: the sum over ranks of the left sides is that of the right sides."""
    model, numbers = Model(mlp), Numbers(mlp)
    ref = "c0:params.w1"
    over = (("dp", 0, 2), ("tp", 0, 2), ("z0", 0, 4), ("z1", 0, 4))
    forms = tuple(Affine.symbol(s) for s, _, _ in over)
    facts = {
        "replicated": Fact(ref, "s:params.w1", over, forms, (forms[2], forms[3] + forms[1].scale(4))),
        "summand": Fact(ref, ref, over, forms, forms),
    }
    for name, axes in (("replicated", ("dp",)), ("summand", ("tp",)), ("summand", ("dp", "tp"))):
        fact, lhs, rhs, factor = lift(model, [facts[name]], axes, kind)
        assert isinstance(lhs, Reduced) and lhs.kind == kind and lhs.axes == axes
        assert factor == (2 if name == "replicated" and kind == "add" else 1) and fact is facts[name]
        assert isinstance(rhs, Reduced) == (name == "summand")
        text = LayoutText(model, [facts[name]], LayoutStage(0, "", (), ()))
        at = tuple(Affine.symbol(s) for s, _, _ in over if s not in axes)
        body = text.premise(Hyp((0,), at, axes, kind))
        for point in itertools.product(range(2), range(2), range(4), range(4)):
            values = dict(zip(("dp", "tp", "z0", "z1"), point, strict=True))
            assert Meaning(numbers, values).of(body)
