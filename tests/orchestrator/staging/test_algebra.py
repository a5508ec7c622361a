"""Stages from recipes: coordinates are tiled, sizes are the least that will do, nothing false is built."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Reduced
from certificates.proof.stages import ElemDef, ElemHyp
from orchestrator.proving.engine import Engine
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.recipes import AlgebraRecipe, Use
from orchestrator.solving.premises import AllPremises
from orchestrator.staging.algebra import AlgebraBuilder, aligned_by, patterns
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from ..plans import alone, pair

S = Affine.symbol
RANGES = {"r": (0, 2), "d": (0, 63), "q": (0, 3)}


def tree(*forms: Affine) -> list[tuple[int, tuple[int, ...]]]:
    """The tree of a vector of 128 elements that a stage reads at these positions."""
    b = ProgramBuilder()
    b.output("y", b.tanh(b.input("x", "f32[128]")))
    k = Knowledge(Model(alone(b)))
    number = k.add(Fact("s:%0", "s:%0", (("z0", 0, 128),), (S("z0"),), (S("z0"),)), None)
    uses = tuple(Use("s:x", (f,)) for f in forms)
    builder = AlgebraBuilder(k, number, AlgebraRecipe(frozenset(), (), uses, RANGES, {}))
    return [(offset, steps) for offset, _, steps in builder.trees["s:x"][0]]


def test_gaps_of_interleaved_pieces_are_filled() -> None:
    row = S("r").scale(64)
    whole = [(0, (64, 1)), (63, (64,))]
    assert tree(row + S("d")) == tree(row + 63) == tree(row + S("d"), row + 63) == whole
    assert tree(row + 5) == [(0, (64, 1)), (5, (64,)), (6, (64, 1))]
    assert tree(row + S("d") + 1) == [(0, (64,)), (1, (64, 1))]
    assert tree(S("d")) == [(0, (1,)), (63, (1,))]
    assert tree(S("q").scale(20) + 10) == [(0, (20, 1)), (10, (20,)), (11, (20, 1)), (60, (1,))]


@pytest.mark.parametrize(("forms", "reason"), [
    ((S("r").scale(62) + S("d"),), "overlap or do not nest"),
    ((S("r").scale(64) + S("d"), S("r").scale(64) + 62), "overlap or do not nest"),
    ((S("r").scale(64) + S("d"), S("q").scale(40) + 63), "overlap or do not nest"),
    ((S("r").scale(64) + S("d"), Affine(63)), "overlap or do not nest"),
    ((S("r").scale(128) + S("d"),), "overlap or do not nest"),
    ((S("d").scale(-1) + 127,), "runs downwards"),
])  # fmt: skip
def test_positions_without_a_tree(forms: tuple[Affine, ...], reason: str) -> None:
    with pytest.raises(NoDefinition, match=reason):
        tree(*forms)


# Whole stages -------------------------------------------------------------------------------------------


def product(rows: int) -> Callable[[ProgramBuilder], Value]:
    return lambda b: b.input("x", f"f32[5,{rows}]") @ b.input("w", f"f32[{rows},7]")


def row_parallel() -> Plan:
    """Each rank contracts its half; the halves are added."""
    return pair(
        {"tp": 2}, lambda b: b.output("y", product(8)(b)),
        lambda b: b.output("y", b.all_reduce(product(4)(b), "tp")),
        {"x": {"tp": Shard(1)}, "w": {"tp": Shard(0)}}, {"y": {}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Engine:
    found = Engine(row_parallel(), AllPremises())
    found.relate()
    return found


@pytest.fixture(scope="module")
def recipe(engine: Engine) -> tuple[int, AlgebraRecipe]:
    """That the sum over the ranks is the product."""
    recipes = engine.knowledge.recipes.items()
    ((number, found),) = [(n, r) for n, r in recipes if isinstance(r, AlgebraRecipe)]
    return number, found


def test_every_coordinate_is_tiled_once(engine: Engine, recipe: tuple[int, AlgebraRecipe]) -> None:
    """What a stage says of pieces it says of every element."""
    stage = AlgebraBuilder(engine.knowledge, *recipe).build("t")
    sizes = {name: n for name, (n, _) in stage.classes.items()}
    for ref, trees in stage.trees.items():
        for cut, (lo, hi) in zip(trees, engine.model.tensors.ranges(ref), strict=True):
            covered = [
                offset + sum(part)
                for offset, classes, steps in cut
                for part in itertools.product(
                    *([s * i for i in range(sizes[c])] for c, s in zip(classes, steps, strict=True))
                )
            ]
            assert sorted(covered) == list(range(lo, hi))


def test_a_contraction_keeps_few_representatives_whatever_its_size(
    engine: Engine, recipe: tuple[int, AlgebraRecipe]
) -> None:
    stage = AlgebraBuilder(engine.knowledge, *recipe).build("t")
    used = {n: m for n, m in stage.classes.values()}
    assert used[5] == used[7] == 1 and all(m <= 2 for m in used.values())
    (case,) = stage.cases
    assert {p.e.ref for p in case.premises if isinstance(p, ElemDef)} >= {"c0:%0", "s:%0"}
    assert any(isinstance(p, ElemHyp) for p in case.premises)


def test_sides_that_differ_are_no_stage(engine: Engine, recipe: tuple[int, AlgebraRecipe]) -> None:
    """No file is written for what could only fail."""
    number, found = recipe
    fact = engine.knowledge.facts[number]
    twice = Fact(fact.lhs, fact.rhs, fact.symbols, fact.lhs_index, fact.rhs_index, fact.coef * 2)
    wrong = engine.knowledge.add(twice, found, relates=False)
    with pytest.raises(NoDefinition, match="two sides have different normal forms"):
        AlgebraBuilder(engine.knowledge, wrong, found).build("t")


def test_coordinates_that_an_op_runs_over_together_have_one_tree(engine: Engine) -> None:
    model = engine.model
    both = {frozenset(p) for p in aligned_by(model, ["c0:%0"], ["c0:%0", "c0:x", "c0:w"]) if p[0] != p[1]}
    shared = [{("c0:%0", 1), ("c0:x", 1)}, {("c0:%0", 2), ("c0:w", 2)}, {("c0:x", 2), ("c0:w", 1)}]
    assert all(frozenset(s) in both for s in shared)
    assert frozenset({("c0:%0", 1), ("c0:w", 1)}) not in both
    assert not list(aligned_by(model, [], ["c0:%0", "c0:x"])), "what is not opened ties nothing"
    total = Reduced("add", ("tp",), ("c0:%0",))
    assert list(aligned_by(model, [total], [total])) == [
        ((total, 0), ("c0:%0", 1)), ((total, 1), ("c0:%0", 2)),
    ]  # fmt: skip


@pytest.mark.parametrize(("size", "least", "count"), [(9, 3, 1), (3, 3, 5), (2, 2, 4), (1, 1, 1)])
def test_free_indices_of_an_exact_class_may_coincide_in_every_way(size: int, least: int, count: int) -> None:
    """Three indices over two positions: all but the pattern of three different ones."""
    found = patterns([("k",), ("k",), ("k",)], {"k": (size, least)})
    assert len(found) == len(set(found)) == count
    if least < size:
        assert found == [((0,), (1,), (2,))], "representatives of a reduced class are distinct"


def test_patterns_of_two_classes_are_all_pairs() -> None:
    found = patterns([("a", "b"), ("a",), ("b",)], {"a": (4, 4), "b": (4, 4)})
    assert set(found) == {((0, 0), (x,), (y,)) for x in (0, 1) for y in (0, 1)}
