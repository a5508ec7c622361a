"""Values as a layout stage sees them: what is opened is computed, the rest is as facts say, or free."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.placements import Partial, Placement, Shard
from certificates.plan.plan import Function
from orchestrator.errors import EvaluationError
from orchestrator.proving.engine import Engine
from orchestrator.refuting.scenarios import Blocks, Scenario
from orchestrator.refuting.stage_values import Given, Opened
from orchestrator.relating.knowledge import Knowledge
from orchestrator.solving.premises import AllPremises

from ..plans import Write, pair

ROWS = Blocks(((0, 4, 8),), (Fraction(1), Fraction(2)))


def element(opened: Opened, node: int, *index: int) -> float:
    ((_, _, (grid,)),) = opened._scenario.evaluator.parts([(node, [(i, ()) for i in index])], ())
    return float(grid.data)


def step(rows: int) -> Write:
    return lambda b: b.output("y", b.tanh(b.exponential(b.input("x", f"f32[{rows}]"))))


def related(place: Placement, rows: int) -> Engine:
    plan = pair({"dp": 2}, step(8), step(rows), {"x": {"dp": place}}, {"y": {"dp": place}})
    engine = Engine(plan, AllPremises())
    engine.relate()
    return engine


@pytest.fixture
def knowledge() -> Knowledge:
    return related(Shard(0), 4).knowledge


def scenario() -> Scenario:
    return Scenario({"x": ROWS})


def test_a_tensor_that_is_not_opened_is_the_part_that_its_relation_says(knowledge: Knowledge) -> None:
    """Rows 4 to 7 of the specification's tensor on rank 1, whatever that tensor is."""
    opened = Opened(knowledge, scenario(), frozenset(), 0)
    whole, part = opened.value(-1, "%0"), opened.value(1, "%0")
    assert opened.network.nodes[whole].op == "block", "of the specification: free"
    for row in range(4):
        assert element(opened, part, row) == element(opened, whole, row + 4)


def test_an_opened_tensor_is_computed_from_its_operands(knowledge: Knowledge) -> None:
    both = frozenset(["s:%1", "c0:%1"])
    opened = Opened(knowledge, scenario(), both, 0)
    for rank, name in ((-1, "%1"), (0, "%1")):
        assert opened.network.nodes[opened.value(rank, name)].op == "tanh"
    assert element(opened, opened.value(0, "%1"), 2) == element(opened, opened.value(-1, "%1"), 2)


def test_free_values_depend_on_name_and_seed_alone(knowledge: Knowledge) -> None:
    """Both sides of a guess must see the same tensor; another seed tries another."""
    first, again, other = (Opened(knowledge, scenario(), frozenset(), seed) for seed in (0, 0, 1))
    value = [element(o, o.value(-1, "%0"), 3) for o in (first, again, other)]
    assert value[0] == value[1] != value[2]
    assert 0.5 <= value[0] <= 2


def test_what_nothing_is_known_of_has_no_value_in_a_stage(knowledge: Knowledge) -> None:
    """It would be no proof that the fact fails, nor that it holds."""
    bare = Knowledge(knowledge.model)
    with pytest.raises(EvaluationError, match="c0:x has no relation"):
        Opened(bare, scenario(), frozenset(), 0).value(0, "x")
    given = Given(bare, scenario(), 0)
    assert element(given, given.value(0, "x"), 0) == 3, "some value, for what it has no part in"


def test_the_first_rank_has_all_of_a_sum() -> None:
    """Facts about a sum over ranks say nothing of the summands but their total."""
    knowledge = related(Partial(), 8).knowledge
    given = Given(knowledge, scenario(), 0)
    assert [element(given, given.value(rank, "x"), 0) for rank in (0, 1)] == [1, 0]


def test_a_whole_program_is_computed_from_inputs_as_the_scenario_has_them(knowledge: Knowledge) -> None:
    given = Given(knowledge, scenario(), 0)
    assert [element(given, given.value(rank, "x"), 1) for rank in (-1, 0, 1)] == [1, 1, 2]
    assert given.network.nodes[given.value(1, "%1")].op == "tanh"


def test_a_fact_about_one_rank_gives_nothing_to_another(knowledge: Knowledge) -> None:
    numbers = knowledge.facts_for("c0:x")
    assert len(numbers) == 1
    fact = knowledge.facts[numbers[0]]
    here = (fact.lhs_index[0].substitute({"dp": fact.lhs_index[0].scale(0)}), *fact.lhs_index[1:])
    there = tuple(f.substitute({"dp": f.scale(0)}) for f in fact.rhs_index)
    alone = replace(fact, symbols=fact.symbols[1:], lhs_index=here, rhs_index=there)
    bare = Knowledge(knowledge.model)
    bare.add(alone, None)
    opened = Opened(bare, scenario(), frozenset(), 0)
    assert element(opened, opened.value(0, "x"), 0) == element(opened, opened.value(-1, "x"), 0)
    with pytest.raises(EvaluationError, match="has no relation"):
        opened.value(1, "x")


def test_integers_that_the_scenario_does_not_give_are_not_free() -> None:
    """Any number would do for a real one; a row number must lie in its range."""

    def look_up(b: ProgramBuilder) -> None:
        b.output("y", b.gather(b.input("x", "f32[8]"), b.input("n", "i64[2]")))

    plan = pair({"dp": 1}, look_up, look_up, {"x": {}, "n": {}}, {"y": {}}, {"n": (0, 8)})
    knowledge = Knowledge(Engine(plan, AllPremises()).model)
    with pytest.raises(EvaluationError, match="n has no values"):
        Opened(knowledge, scenario(), frozenset(["s:%0"]), 0).value(-1, "n")
    rows = Scenario({"x": ROWS, "n": Blocks(((0, 1, 2),), (7, 0))})
    opened = Opened(knowledge, rows, frozenset(["s:%0"]), 0)
    node = opened.value(-1, "%0")
    assert element(opened, node, 0) == element(opened, opened.value(-1, "x"), 7)


def test_integers_that_a_function_gives_are_no_op_on_its_operands() -> None:
    """A router in a function: its indices are what is known of them, not a pointwise op on weights."""
    mesh, spec, rank = {"dp": 2}, ProgramBuilder(), ProgramBuilder({"dp": 2})
    bodies = []
    for b, rows in ((spec, 8), (rank, 4)):
        body = ProgramBuilder({} if b is spec else mesh)
        x = body.input("x", f"f32[{rows},2]")
        body.output("y", body.convert(body.compare(x.sum(1), 0, "GT"), "i64"))
        bodies.append(body.build())
        (y,) = b.call("router", bodies[-1], 0, b.input("x", f"f32[{rows},2]"))
        b.output("y", y)
    place = {"dp": Shard(0)}
    plan = build_plan(
        name="router", mesh=mesh, specification=spec.build(), classes=rank.build(), inputs={"x": place},
        outputs={"y": place}, functions={"router": Function(bodies[0], {"c0": bodies[1]})},
    )  # fmt: skip
    opened = Opened(Engine(plan, AllPremises()).knowledge, scenario(), frozenset(), 0)
    with pytest.raises(EvaluationError, match="%0 has no values"):
        opened.value(-1, "%0")
    with pytest.raises(EvaluationError, match="c0:%0 has no relation"):
        opened.value(0, "%0")
