"""Recipes of algebra stages: sums taken apart rank by rank, and facts about the operands themselves."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact
from orchestrator.cells import Unfollowable
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.recipes import MAX_RANKS, AlgebraRecipe, Instance, Pair, Use, by_rank, direct, tied
from smtlib_emit.model import Model

RANK, ROW = Affine.symbol("c0.dp"), Affine.symbol("o0")


@pytest.fixture
def knowledge(mlp: Plan) -> Knowledge:
    return Knowledge(Model(mlp))


@pytest.fixture
def recipe() -> AlgebraRecipe:
    """A sum over the ranks of dp."""
    return AlgebraRecipe(
        frozenset(("c0:%1",)),
        (Instance(3, (RANK, ROW)), Instance(4, (ROW,), "rhs")),
        (Use("c0:%1", (RANK, ROW)), Use("s:%1", (ROW,))),
        {"c0.dp": (0, 2), "o0": (0, 5)},
        {"z0": ROW},
    )


def test_ranks_of_a_sum_stand_one_by_one(recipe: AlgebraRecipe) -> None:
    """What is the same on all of them stands once."""
    found = by_rank(recipe, "dp")
    assert found is not None
    assert found.instances == (
        Instance(3, (Affine(0), ROW)), Instance(3, (Affine(1), ROW)), Instance(4, (ROW,), "rhs"),
    )  # fmt: skip
    assert found.uses == (Use("c0:%1", (Affine(0), ROW)), Use("c0:%1", (Affine(1), ROW)), Use("s:%1", (ROW,)))
    assert found.ranges == {"o0": (0, 5)}


def test_only_a_short_axis_that_is_summed_is_taken_apart(recipe: AlgebraRecipe) -> None:
    assert by_rank(recipe, "tp") is None, "nothing is summed over tp"
    assert by_rank(replace(recipe, goal={"z0": RANK}), "dp") is None, "the goal speaks of each rank"
    assert by_rank(replace(recipe, ranges={"c0.dp": (0, MAX_RANKS + 1)}), "dp") is None
    assert by_rank(replace(recipe, ranges={"c0.dp": (0, MAX_RANKS)}), "dp") is not None


def test_operands_are_tied_to_operands(knowledge: Knowledge, recipe: AlgebraRecipe) -> None:
    """Not through the tensor that both come from, whose axes no tree can cut and join."""
    mine, theirs, source = (
        Use("c0:batch.x", (Affine(), Affine(), ROW, Affine())),
        Use("s:batch.x", (ROW, Affine())),
        Use("s:%0", ()),
    )
    old = Instance(4, (ROW,), "rhs")
    paired = replace(
        recipe,
        ranges={"o0": (0, 3)},
        uses=(*recipe.uses, source),
        pairs=(Pair(mine, theirs, Fraction(2), (old,), (source,)),),
    )
    found = direct(knowledge, paired)
    assert old not in found.instances and source not in found.uses and not found.pairs
    assert {mine, theirs} <= set(found.uses)
    fact = knowledge.facts[found.instances[-1].fact]
    assert (fact.lhs, fact.rhs, fact.coef) == ("c0:batch.x", "s:batch.x", 2)


def test_a_fact_is_used_where_it_was_made_for(knowledge: Knowledge) -> None:
    z = Affine.symbol("z")
    fact = Fact("s:batch.x", "s:batch.t", (("z", 0, 3),), (z, Affine()), (z, Affine()))
    found = tied(knowledge, fact, (ROW, Affine()), {"o0": (0, 3)})
    assert found.values == (ROW,) and knowledge.by_lhs == {}, "no relation of the tensor: a tie for one stage"
    with pytest.raises(Unfollowable, match="does not cover its own cell"):
        tied(knowledge, fact, (ROW, Affine(1)), {"o0": (0, 3)})
