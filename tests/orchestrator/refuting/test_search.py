"""Witnesses: a wrong output has one at the element where it is wrong, a right plan has none."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Partial, Placement, Shard
from certificates.plan.plan import Plan
from orchestrator.refuting.search import PLAIN, Refuter, search

from ..plans import pair


def doubled(b: ProgramBuilder, x: Value, wrong_row: int | None = None) -> Value:
    """Twice the input; of one row, if one is given, half of that."""
    if wrong_row is None:
        return x * 2
    row = b.iota(f"i64[{x.shape[0]},3]", 0)
    return b.select(b.compare(row, wrong_row, "EQ"), x, x * 2)


def sharded(wrong_row: int | None) -> Plan:
    cut = {"dp": Shard(0)}
    return pair(
        {"dp": 2},
        lambda s: s.output("y", doubled(s, s.input("x", "f32[8,3]"))),
        lambda b: b.output("y", doubled(b, b.input("x", "f32[4,3]"), wrong_row)),
        {"x": cut},
        {"y": cut},
    )


def test_right_plans_have_no_witness(any_plan: Plan) -> None:
    assert search(any_plan, seeds=range(2)) is None


@pytest.mark.parametrize("row", [0, 3])
def test_a_witness_stands_at_an_element_that_is_wrong(row: int) -> None:
    """The place is shown to the user, and replayed by the checker at true sizes."""
    found = search(sharded(row))
    assert found is not None
    assert found.symbols["z0"] == row
    assert found.plan_value == pytest.approx(found.spec_value / 2)


def test_the_fact_that_fails_is_told_by_its_number(mlp: Plan) -> None:
    """Three outputs are right; one of two claims about the fourth is for other rows than it has."""
    loss = next(i for i, r in enumerate(mlp.outputs) if r.plan == "loss")
    outputs = list(mlp.outputs)
    outputs[loss] = replace(outputs[loss], coef=Fraction(2))
    found = search(replace(mlp, outputs=tuple(outputs)))
    assert found is not None
    assert (found.output, found.piece) == (loss, 0)
    assert set(found.symbols) == {"dp", "tp"}


def test_facts_that_are_not_asked_about_are_not_looked_at() -> None:
    plan = sharded(2)
    assert search(plan, [], seeds=range(2)) is None
    assert search(plan, [(0, 0)]) is not None


@pytest.mark.parametrize(("place", "finds"), [({"dp": Partial()}, False), ({}, True)])
def test_a_sum_over_ranks_is_compared_as_a_whole(place: dict[str, Placement], finds: bool) -> None:
    """A rank's summand differs from the sum; claimed as a summand it is right."""
    plan = pair(
        {"dp": 2},
        lambda s: s.output("y", s.input("x", "f32[8]").sum()),
        lambda b: b.output("y", b.input("x", "f32[4]").sum()),
        {"x": {"dp": Shard(0)}},
        {"y": place},
    )
    found = search(plan, seeds=range(2))
    assert (found is not None) is finds
    if found is not None:
        assert abs(found.plan_value - found.spec_value) > PLAIN


def test_uneven_classes_are_compared_by_themselves(uneven: Plan) -> None:
    """The last rank has fewer rows: its claim is a fact of its own, and fails by itself."""
    (relation,) = uneven.outputs
    first, last = relation.pieces
    shifted = replace(last, spec=(last.spec[0] - 1, *last.spec[1:]))
    found = search(replace(uneven, outputs=(replace(relation, pieces=(first, shifted)),)))
    assert found is not None
    assert found.piece == 1 and found.symbols["dp"] == 2


def test_scenarios_are_kept_between_plans_with_one_specification() -> None:
    """Mutants of one plan are refuted on inputs that were drawn once."""
    refuter = Refuter(sharded(0), seeds=[5])
    assert refuter.scenario(5) is refuter.scenario(5)
    assert refuter.search(sharded(1)) is not None and refuter.search(sharded(None)) is None


def test_the_document_has_exact_numbers() -> None:
    found = search(sharded(1))
    assert found is not None
    document = found.to_json()
    assert set(document) == {"output", "piece", "symbols", "junk", "inputs"}
    (block,) = document["inputs"].values()  # type: ignore[attr-defined]
    assert all(Fraction(v) == Fraction(v) and isinstance(v, str) for v in block["values"])
