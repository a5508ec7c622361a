"""Algebra definitions: true of every element when nothing is reduced; weights add up when something is."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Ref
from certificates.proof.stages import AlgebraStage, Case, Elem, ElemDef, ElemHyp
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model
from tests.orchestrator.oracle import Numbers
from tests.orchestrator.plans import alone, every_op
from tests.orchestrator.random_plans import random_plan

from .meaning import Meaning, elem, exact_stage, positions


def reduced(model: Model) -> list[Ref]:
    """The sums over ranks of a plan."""
    return [model.reduced(r, "add") for r, op in model.ops.items() if op.name == "all_reduce"]


def check(plan: Plan, seed: int = 0) -> int:
    """Every op of a plan with an algebra definition; how many there were."""
    model, numbers, done = Model(plan), Numbers(plan, seed), 0
    sums = reduced(model)
    refs = [*model.tensors.types, *sums]
    stage = exact_stage(model, 0, refs)
    text = AlgebraText(model, [], stage)
    rng = random.Random(seed)
    for ref in [*model.ops, *sums]:
        for _ in range(6):
            at = tuple(rng.randrange(lo, hi) for lo, hi in model.tensors.ranges(ref))
            e = elem(model, ref, at)
            assert positions(stage, e) == at
            try:
                body = text.premise(ElemDef(e))
            except NoDefinition:
                break
            assert Meaning(numbers, {}, stage).of(body), f"{ref} at {at}: {body}"
            done += 1
    return done


def test_definitions_are_true_of_hand_written_plans(any_plan: Plan) -> None:
    assert check(any_plan) > 10


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_definitions_are_true_of_random_plans(seed: int) -> None:
    check(random_plan(seed, 10), seed)


def test_definitions_are_true_of_every_elementwise_op_and_reduction() -> None:
    assert check(every_op()) > 100


def sum_stage(n: int, m: int) -> tuple[Model, AlgebraStage]:
    """``y = sum_i x_i w_i`` and the maximum, with ``m`` representatives for ``n`` positions in two pieces."""
    b = ProgramBuilder()
    x, w = b.input("x", f"f32[{n + 3}]"), b.input("w", f"f32[{n + 3}]")
    b.output("y", b.dot(x, w, contract=((0,), (0,))))
    b.output("z", b.reduce(x, (0,), "max"))
    plan = alone(b)
    tree = ((0, ("k",), (1,)), (n, ("r",), (1,)))
    trees: dict[Ref, tuple[object, ...]] = {"s:x": (tree,), "s:w": (tree,), "s:%0": (), "s:%1": ()}
    stage = AlgebraStage(0, "", {"k": (n, m), "r": (3, 3)}, trees, (), ())  # type: ignore[arg-type]
    return Model(plan), stage


@given(st.integers(1, 10**6), st.integers(1, 5))
def test_the_weights_of_a_sum_add_up_to_the_true_size(n: int, m: int) -> None:
    """Otherwise a mean over 4096 columns would be divided by another number."""
    m = min(n, m)
    model, stage = sum_stage(n, m)
    pairs = AlgebraText(model, [], stage).expand_dot(Elem("s:%0", ()))
    assert sum((w for w, _ in pairs), Fraction(0)) == n + 3
    assert len(pairs) == m + 3 and len({e for _, e in pairs}) == m + 3


def test_maxima_carry_no_weights() -> None:
    model, stage = sum_stage(1000, 2)
    body = AlgebraText(model, [], stage).definition(Elem("s:%1", ()))
    assert isinstance(body, tuple) and body[0] == "max2" and "*" not in str(body)


@pytest.mark.parametrize("op", ["reshape", "slice", "pad", "concatenate", "iota"])
def test_data_movement_has_no_algebra_definition(op: str) -> None:
    """At reduced sizes the index maps of these ops would be other maps."""
    b = ProgramBuilder()
    x = b.input("x", "f32[4,6]")
    made = {
        "reshape": lambda: x.reshape(24), "slice": lambda: x[1:3], "pad": lambda: b.pad(x, (0, 0), (1, 0)),
        "concatenate": lambda: b.concatenate([x, x], 0), "iota": lambda: b.iota("f32[4]", 0),
    }[op]()  # fmt: skip
    b.output("y", made)
    plan = alone(b)
    model = Model(plan)
    ref = f"s:{made.name}"
    stage = exact_stage(model, 0, list(model.tensors.types))
    with pytest.raises(NoDefinition, match="no definition in an algebra stage"):
        AlgebraText(model, [], stage).definition(elem(model, ref, (0,) * len(made.shape)))


def test_hypotheses_and_goals_stand_at_the_places_of_their_symbols(mlp: Plan) -> None:
    model = Model(mlp)
    over = (("dp", 0, 2), ("tp", 0, 2), ("z0", 0, 4), ("z1", 0, 4))
    dp, tp, z0, z1 = (Affine.symbol(s) for s, _, _ in over)
    fact = Fact("c0:params.w1", "s:params.w1", over, (dp, tp, z0, z1), (z0, z1 + tp.scale(4)))
    classes = {"d": (2, 2), "t": (2, 2), "i": (4, 2), "j": (4, 2)}
    trees: dict[Ref, object] = {
        "c0:params.w1": tuple(((0, (c,), (1,)),) for c in "dtij"),
        "s:params.w1": (((0, ("i",), (1,)),), ((0, ("t", "j"), (4, 1)),)),
    }
    case = Case(((0,), (1,), (0,), (1,)), ())
    stage = AlgebraStage(0, "", classes, trees, (("d",), ("t",), ("i",), ("j",)), (case,))  # type: ignore[arg-type]
    text = AlgebraText(model, [fact], stage)
    at = tuple(Affine.symbol(s) for s in ("d.0", "t.1", "i.0", "j.1"))
    left, right = text.sides(fact, dict(zip(("dp", "tp", "z0", "z1"), at, strict=True)))
    assert left == Elem("c0:params.w1", ((0, 0), (0, 1), (0, 0), (0, 1)))
    assert right == Elem("s:params.w1", ((0, 0), (0, 1, 1)))
    assert text.goal(case) == text.premise(ElemHyp(0, at)), "the goal is the hypothesis at its own places"
    with pytest.raises(NoDefinition, match="is not a place of its tree"):
        text.element("s:params.w1", (Affine.symbol("i.0"), Affine.symbol("j.1")))


def test_infinities_are_free_constants_and_rank_dependent_numbers_have_none() -> None:
    b = ProgramBuilder()
    b.output("y", b.constant(-math.inf, "f32[]"))
    p = ProgramBuilder({"tp": 2})
    number = p.constant(p.axis_index("tp"), "f32[]")
    plan = build_plan(
        name="infinite", mesh={"tp": 2}, specification=b.build(), classes=p.build(), inputs={}, outputs={}
    )
    model = Model(plan)
    text = AlgebraText(model, [], exact_stage(model, 0, list(model.tensors.types)))
    assert text.read(Elem("s:%0", ())) == "neg_inf"
    with pytest.raises(NoDefinition, match="rank-dependent"):
        text.read(Elem(f"c0:{number.name}", ((0, 0),)))
