"""Facts as they are recorded: once each, and found again by their part of a tensor."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Reduced
from orchestrator.cells import Digits
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.ledger import LayoutRecipe
from smtlib_emit.model import Model


@pytest.fixture
def ledger(mlp: Plan) -> Knowledge:
    return Knowledge(Model(mlp))


def rows(lo: int, hi: int) -> Fact:
    """Rows of a tensor that come from rows further on."""
    z = Affine.symbol("z")
    return Fact("s:batch.x", "s:batch.t", (("z", lo, hi),), (z, Affine()), (z + 1, Affine()), Fraction(2))


def test_a_dropped_guess_may_be_made_again(mlp: Plan) -> None:
    """A guess whose first way to a proof failed is a new fact when it is guessed in another way."""
    knowledge = Knowledge(Model(mlp))
    fact = Fact("c0:%0", "s:%0", (), (Affine(),) * 4, (Affine(),) * 2)
    first = knowledge.add(fact, LayoutRecipe(), relates=False)
    knowledge.drop(first)
    second = knowledge.add(fact, LayoutRecipe(frozenset(("c0:%0",))))
    assert second != first and knowledge.by_lhs["c0:%0"] == [second]
    knowledge.drop(second)
    assert knowledge.add(fact, LayoutRecipe()) == second


def test_a_fact_is_recorded_once(mlp: Plan) -> None:
    knowledge = Knowledge(Model(mlp))
    knowledge.declare_inputs()
    count = len(knowledge.facts)
    assert knowledge.add(knowledge.facts[0], None) == 0 and len(knowledge.facts) == count


def test_a_claim_takes_the_way_that_was_found_since(ledger: Knowledge) -> None:
    """It is recorded with nothing but the hope that unfolding shows it."""
    fact = rows(0, 3)
    claim = ledger.add(fact, LayoutRecipe(), relates=False)
    assert "s:batch.x" not in ledger.by_lhs, "a claim is no relation yet"
    better = LayoutRecipe(frozenset(("s:batch.x",)))
    assert ledger.add(fact, better) == claim and ledger.recipes[claim] == better
    ledger.add(fact, LayoutRecipe())
    assert ledger.recipes[claim] == better


def test_a_sum_is_found_by_each_of_its_members(ledger: Knowledge) -> None:
    total = Reduced("add", ("dp",), ("c0:batch.x",))
    for _ in range(2):
        ledger.add(Fact(total, "s:batch.x", (), (Affine(),) * 3, (Affine(),) * 2, Fraction(_ + 1)), None)
    assert ledger.partials == {"c0:batch.x": [total]}


@pytest.mark.parametrize("parts", [3, 40])
def test_an_element_is_read_from_the_part_that_covers_it(ledger: Knowledge, parts: int) -> None:
    """A tensor with many parts, such as a stack of norms, is not searched from end to end."""
    numbers = [ledger.add(rows(2 * i, 2 * i + 2), LayoutRecipe()) for i in range(parts)]
    for position in range(2 * parts):
        at = (Affine(position), Affine())
        reading = ledger.through(numbers, at, {})
        assert reading is not None
        assert reading.fact == numbers[position // 2]
        assert (reading.coef, reading.target, reading.at[0]) == (2, "s:batch.t", Affine(position + 1))
        if parts > 8:
            assert ledger.near(numbers, at, {}) == [numbers[position // 2]]
    assert ledger.through(numbers, (Affine(2 * parts), Affine()), {}) is None


def test_parts_with_digits_of_their_own_are_told_apart_before_any_box_is_split(ledger: Knowledge) -> None:
    """Joined gradients of experts, ``[2, 3, 4]`` before ``[2, 4, 3]``: the second is cut as it is, not as the
    first."""
    z, y, x, high, low = map(Affine.symbol, ("z", "y", "x", "high", "low"))
    numbers = [
        ledger.add(
            Fact("s:batch.x", name, (("z", 0, 2), ("y", 0, 12 // width), ("x", 0, width)),
                 (z.scale(12) + y.scale(width) + x + start, Affine()), (z, y + x)),
            LayoutRecipe(),
        )
        for name, start, width in (("s:batch.x", 0, 4), ("s:batch.t", 24, 3))
    ]  # fmt: skip
    for start, width in ((0, 4), (24, 3)):
        with pytest.raises(Digits) as split:
            at = (high.scale(12) + low + start, Affine())
            ledger.through(numbers, at, {"high": (0, 2), "low": (0, 12)})
        assert (split.value.symbol, split.value.base) == ("low", width)


def test_parts_that_overlap_are_all_asked(ledger: Knowledge) -> None:
    numbers = [ledger.add(rows(0, 2 + i), LayoutRecipe()) for i in range(12)]
    assert ledger.near(numbers, (Affine(1), Affine()), {}) == numbers


def test_full_indices_name_mesh_axes_and_dimensions(ledger: Knowledge) -> None:
    cell = ledger.full_index("c0:batch.x")
    assert list(cell.ranges.items()) == [("dp", (0, 2)), ("tp", (0, 2)), ("o0", (0, 3)), ("o1", (0, 4))]
    assert ledger.full_index("s:hyper.lr").ranges == {}


def test_a_guess_that_is_made_again_as_a_relation_is_one(ledger: Knowledge) -> None:
    """Else only those parts of a tensor would be known of which nothing was guessed before."""
    guess = ledger.add(rows(0, 3), LayoutRecipe(), relates=False)
    other = ledger.add(rows(3, 5), LayoutRecipe())
    assert ledger.add(rows(0, 3), LayoutRecipe()) == guess
    assert sorted(ledger.by_lhs["s:batch.x"]) == [guess, other]
