"""A stack of the specification that the plan makes too is one tensor, not as many as it has parts."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Reduced
from orchestrator.relating.carried import sums_of_moved
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.landmarks import Landmarks
from orchestrator.relating.matching import Matcher
from smtlib_emit.model import Model

from .kit import facts, formulas, last


def norms(b: ProgramBuilder, order: tuple[int, ...] = (0, 1, 2), factor: int = 1, **weights: Value) -> Value:
    """The squared norm of every weight, stacked: how gradients are clipped."""
    squares = [(w * w).sum().reshape(1) for w in weights.values()]
    return b.concatenate([squares[i] * factor if factor != 1 else squares[i] for i in order], 0)


GIVEN = {name: ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)}) for name in ("u", "v", "w")}


def related(plan: Plan) -> tuple[Knowledge, bool]:
    """All ops matched; the plan's last one related by landmarks."""
    knowledge = Knowledge(Model(plan))
    knowledge.declare_inputs()
    landmarks = Landmarks(knowledge)
    landmarks.declare()
    matcher = Matcher(knowledge)
    matcher.index_specification(lambda _: False)
    for op in plan.classes[0].program.ops:
        matcher.relate(f"c0:{op.out}")
    return knowledge, landmarks.relate(last(plan))


def test_a_stack_of_shares_is_as_a_whole_a_share_of_the_stack() -> None:
    """One fact in place of one for each parameter of the model."""
    plan = formulas({"dp": 2}, norms, norms, GIVEN)
    knowledge, done = related(plan)
    (landmark,) = knowledge.landmarks
    stacked = Reduced("add", ("dp",), (last(plan),))
    assert done
    (fact,) = facts(knowledge, stacked)
    assert (fact.rhs, fact.coef) == (landmark, 1)


def test_all_parts_scaled_alike_scale_the_stack() -> None:
    plan = formulas({"dp": 2}, norms, lambda b, **w: norms(b, factor=3, **w), GIVEN)
    knowledge, done = related(plan)
    (fact,) = facts(knowledge, Reduced("add", ("dp",), (last(plan),)))
    assert done and fact.coef == 3


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 0, 2)])
def test_parts_in_another_order_are_not_the_stack(order: tuple[int, ...]) -> None:
    """Inside a function each is told to the caller, by its own place."""
    for claimed in (True, False):
        plan = formulas({"dp": 2}, norms, lambda b, **w: norms(b, order, **w), GIVEN, claimed)
        knowledge, done = related(plan)
        assert done is not claimed
        (landmark,) = knowledge.landmarks
        found = facts(knowledge, Reduced("add", ("dp",), (last(plan),)))
        assert (landmark in {f.rhs for f in found}) is not claimed
        places = {(f.lhs_index[0].const, f.rhs_index[0].const) for f in found if f.rhs == landmark}
        assert claimed or places == {*enumerate(order)}


def test_other_concatenations_are_no_landmarks() -> None:
    """Two halves put together are looked through: what matters is where their elements come from."""
    plan = formulas(
        {"dp": 2}, lambda b, u, v, w: b.concatenate([u[:4], v[4:]], 0) * w, lambda b, u, v, w: u * w, GIVEN
    )
    assert related(plan)[0].landmarks == {}


BATCH = {"x": ("f32[8,3,2]", "f32[4,3,2]", {"dp": Shard(0)})}


def turned(b: ProgramBuilder, x: Value) -> Value:
    return b.transpose(x.sum(0), (1, 0))


def turned_in_part(b: ProgramBuilder, x: Value) -> Value:
    return b.transpose(x.sum(0), (1, 0))[:1]


def named(plan: Plan) -> tuple[Knowledge, Reduced]:
    """A function's results, related; and the sum over ranks of what it hands back there."""
    knowledge, _ = related(plan)
    landmarks = Landmarks(knowledge)
    landmarks.declare()
    for reduced in list(sums_of_moved(knowledge, [last(plan)])):
        knowledge.facts_for(reduced)
    landmarks.name([last(plan)])
    return knowledge, Reduced("add", ("dp",), (last(plan),))


def test_what_a_function_hands_back_is_named_by_what_it_hands_back_there() -> None:
    """The sum before it is moved is nothing that a caller sees."""
    plan = formulas({"dp": 2}, turned, turned, BATCH)
    knowledge, total = named(plan)
    (result,) = plan.specification.outputs.values()
    assert f"s:{result}" in [fact.rhs for fact in facts(knowledge, total)]


def test_a_result_that_has_not_all_of_it_names_nothing() -> None:
    plan = formulas({"dp": 2}, turned_in_part, turned, BATCH)
    knowledge, total = named(plan)
    (result,) = plan.specification.outputs.values()
    assert f"s:{result}" not in [fact.rhs for fact in facts(knowledge, total)]
