"""Inputs are constant on blocks, keep the step well conditioned and reach the ranks as the relations say."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Partial, Placement, Replicate, Shard
from certificates.plan.plan import Plan
from orchestrator.evaluating.network import Expansion
from orchestrator.refuting.scenarios import Blocks, Scenario, forms, random_inputs
from orchestrator.refuting.search import LARGE, SIZES, search

from ..plans import alone, pair

#: Eight rows: two of 1, four of 2, two of 3.
ROWS = Blocks(((0, 2, 6, 8),), (Fraction(1), Fraction(2), Fraction(3)))
Formula = Callable[[ProgramBuilder, Value], Value]


def step(rows: int) -> Callable[[ProgramBuilder], None]:
    return lambda b: b.output("y", b.input("x", f"f32[{rows}]") * 2)


def placed(place: Placement, rows: int) -> Plan:
    given = {"x": {"dp": place}, "y": {"dp": place}}
    return pair({"dp": 2}, step(8), step(rows), {"x": given["x"]}, {"y": given["y"]})


def element(scenario: Scenario, node: int, *index: int) -> float:
    """One number of a tensor."""
    ((_, _, (grid,)),) = scenario.evaluator.parts([(node, [(i, ()) for i in index])], ())
    return float(grid.data)


def rows(scenario: Scenario, expansion: Expansion, rank: int, name: str) -> list[float]:
    node = expansion.value(rank, name)
    return [element(scenario, node, i) for i in range(scenario.network.nodes[node].shape[0])]


@pytest.mark.parametrize(
    ("place", "size", "first", "second"),
    [
        (Shard(0), 4, [1, 1, 2, 2], [2, 2, 3, 3]),
        (Replicate(), 8, [1, 1, 2, 2, 2, 2, 3, 3], [1, 1, 2, 2, 2, 2, 3, 3]),
        (Partial(), 8, [1, 1, 2, 2, 2, 2, 3, 3], [0] * 8),
    ],
)
def test_a_rank_is_given_what_its_relation_says(
    place: Placement, size: int, first: list[int], second: list[int]
) -> None:
    """Of a sum over ranks the first has all: any split of it is one that the plan must bear."""
    scenario = Scenario({"x": ROWS})
    expansion = scenario.expand(placed(place, size))
    assert rows(scenario, expansion, -1, "x") == [1, 1, 2, 2, 2, 2, 3, 3]
    assert [rows(scenario, expansion, r, "x") for r in (0, 1)] == [first, second]
    assert rows(scenario, expansion, 1, "%1") == [2 * v for v in second]


def test_what_no_relation_speaks_of_is_junk() -> None:
    """Padding stays open: a plan that lets it reach an output is wrong."""
    plan = placed(Shard(0), 4)
    (relation,) = plan.inputs
    (piece,) = relation.pieces
    short = replace(piece, sizes=(3, *piece.sizes[1:]))
    plan = replace(plan, inputs=(replace(relation, pieces=(short,)),))
    scenario = Scenario({"x": ROWS}, junk=Fraction(7, 2))
    assert rows(scenario, scenario.expand(plan), 0, "x") == [1, 1, 2, 3.5]


def test_equal_values_are_one_node_whatever_plan_they_stand_in() -> None:
    """What a thousand mutants of a plan have in common is computed once."""
    scenario = Scenario({"x": ROWS})
    plan = placed(Replicate(), 8)
    first, second = scenario.expand(plan), scenario.expand(plan)
    assert first.value(0, "%1") == first.value(1, "%1") == second.value(0, "%1") == first.value(-1, "%1")


def test_index_forms_are_over_digits_at_the_coordinates_of_a_rank() -> None:
    given = [Affine.of(3, {"dp": 4, "z1": 2, "z0": 1}), Affine.symbol("tp")]
    assert forms(given, {"dp": 2, "tp": 1}) == ((11, ((0, 1), (1, 2))), (1, ()))


def drawn(formula: Formula, type_: str = "f32[64,64]", **given: object) -> list[Blocks]:
    """The input of a formula, for many seeds."""
    b = ProgramBuilder()
    b.output("y", formula(b, b.input("x", type_)))
    plan = alone(b)
    return [random_inputs(plan, random.Random(seed), **given)["x"] for seed in range(40)]  # type: ignore[arg-type]


def test_blocks_cover_the_tensor_and_differ() -> None:
    for blocks in drawn(lambda b, x: b.tanh(x)):
        assert all(c[0] == 0 and c[-1] == 64 and list(c) == sorted(set(c)) for c in blocks.cuts)
        cells = [len(c) - 1 for c in blocks.cuts]
        assert len(blocks.values) == cells[0] * cells[1] > 1
        assert len(set(blocks.values)) > 1, "constant inputs hide exchanged rows"


@pytest.mark.parametrize(
    "formula",
    [
        lambda b, x: b.sqrt(x),
        lambda b, x: b.log(b.reshape(x, (4096,)) + 1),
        lambda b, x: b.rsqrt(x * x.T),
        lambda b, x: b.power(x, x),
    ],
)
def test_what_reaches_a_root_a_logarithm_or_a_base_is_positive(formula: Formula) -> None:
    """Elsewhere there is no real number, and the checker would refuse the witness."""
    assert all(v > 0 for blocks in drawn(formula) for v in blocks.values)
    assert any(v < 0 for blocks in drawn(lambda b, x: b.tanh(x)) for v in blocks.values)


def test_what_is_contracted_is_small_so_that_no_sum_grows() -> None:
    large = max(abs(v) for blocks in drawn(lambda b, x: x.sum(0)) for v in blocks.values)
    contracted = max(abs(v) for blocks in drawn(lambda b, x: b.tanh(x @ x)) for v in blocks.values)
    assert contracted <= large * 4 / 64


def test_the_size_of_what_may_be_negative_is_chosen_by_the_caller() -> None:
    """Saturated functions tell nothing apart: the search tries small inputs too."""
    plain, small = (drawn(lambda b, x: b.tanh(x), size=size) for size in (Fraction(1), Fraction(1, 64)))
    assert [[v / 64 for v in blocks.values] for blocks in plain] == [list(b.values) for b in small]


def test_integers_stay_in_their_range_and_come_near_what_the_plan_compares_with() -> None:
    """A vocabulary that is cut at row 40 is wrong at rows 39 to 41, or nowhere."""

    def spec(b: ProgramBuilder) -> None:
        n = b.input("n", "i64[16]")
        b.output("y", b.select(b.compare(n, 40, "LT"), b.constant(1, "f32[16]"), b.constant(0, "f32[16]")))

    plan = pair({"dp": 2}, spec, spec, {"n": {}}, {"y": {}}, {"n": (0, 100)})
    values = [v for seed in range(40) for v in random_inputs(plan, random.Random(seed))["n"].values]
    assert all(0 <= v < 100 for v in values)
    assert {39, 40, 41, 0, 99} <= set(values)
    assert sum(v in (39, 40, 41, 0, 99) for v in values) > len(values) / 2


def test_cuts_stand_where_shards_begin_and_beside() -> None:
    """A row that the wrong shard takes lies at its border."""
    plan = placed(Shard(0), 4)
    cuts = [random_inputs(plan, random.Random(seed))["x"].cuts[0] for seed in range(60)]
    assert all(any(at in c for c in cuts) for at in (3, 4, 5))
    assert sum(4 in c for c in cuts) > len(cuts) / 3


@pytest.mark.parametrize("among_themselves", [True, False])
def test_elements_that_are_compared_with_each_other_differ(among_themselves: bool) -> None:
    """Of equal scores no enclosure says which is chosen; to compare with another input, blocks are enough."""
    b = ProgramBuilder()
    x, y = b.input("x", "f32[6]"), b.input("y", "f32[6]")
    other = x if among_themselves else y
    b.output("p", b.compare(b.broadcast(x, (6, 6), (0,)), b.broadcast(other, (6, 6), (1,)), "GT"))
    for seed in range(4):
        values = random_inputs(alone(b), random.Random(seed))["x"].values
        assert (len(set(values)) == 6) == among_themselves


def wrong_bound(kind: str) -> Plan:
    """The ranks bound or choose by another number than the specification."""

    def formula(b: ProgramBuilder, x: Value, wrong: bool) -> Value:
        match kind:
            case "clamp":
                return b.minimum(x, b.constant(2 if wrong else 1, x.type))
            case "small clamp":
                return b.minimum(x, b.constant("1/4" if wrong else "1/2", x.type))
            case "equal":
                found = b.compare(x, b.constant(1, x.type), "LT" if wrong else "LE")
                return b.select(found, x, b.constant(0, x.type))
            case "opaque":
                return b.minimum(b.tanh(x) * 9, b.constant(7 if wrong else 6, x.type))
            case _:
                return b.select(b.compare(x, b.constant(1 if wrong else 2, x.type), "GT"), x * 2, x)

    def write(b: ProgramBuilder, rows: int, wrong: bool) -> None:
        b.output("y", formula(b, b.input("x", f"f32[{rows},3]"), wrong))

    cut = {"x": {"dp": Shard(0)}}
    return pair({"dp": 2}, lambda b: write(b, 8, False), lambda b: write(b, 4, True), cut, {"y": cut["x"]})


@pytest.mark.parametrize("kind", ["clamp", "small clamp", "equal", "opaque", "threshold"])
def test_a_wrong_bound_on_what_is_not_mixed_with_other_positions_is_seen(kind: str) -> None:
    """As small as moments, such inputs never reached the bound: the wrong plan had no witness."""
    found = search(wrong_bound(kind))
    assert found is not None and found.plan_value != found.spec_value


def test_only_state_is_as_small_as_gradients_and_not_for_every_seed() -> None:
    def sized(state: bool, moments: bool) -> Fraction:
        b = ProgramBuilder()
        x = b.input("x", "f32[4,4]")
        b.output("x" if state else "y", b.tanh(x))
        blocks = random_inputs(alone(b), random.Random(1), moments=moments)["x"]
        return max(abs(Fraction(v)) for v in blocks.values)

    assert sized(True, True) < Fraction(1, 256)
    assert min(sized(True, False), sized(False, True)) > Fraction(1, 4)
    assert 0 < len(LARGE) < len(SIZES)
