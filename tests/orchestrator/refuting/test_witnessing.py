"""Only what the checker replays is a refutation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Replicate
from certificates.plan.plan import Plan
from orchestrator.refuting import witnessing
from orchestrator.refuting.search import Witness, search
from orchestrator.refuting.witnessing import refute, replayed

from ..plans import pair

#: What four numbers rarely add up to.
RARE = 26


@pytest.fixture(scope="module")
def wrong(uneven: Plan) -> Plan:
    """All rows are claimed to be twice what they are."""
    return replace(uneven, outputs=(replace(uneven.outputs[0], coef=Fraction(2)),))


def test_a_wrong_plan_is_refuted_with_the_place_and_the_op(wrong: Plan) -> None:
    found = refute(wrong, [(0, 0), (0, 1)], 60)
    assert found is not None and found.output == 0
    assert "; cause: " in found.reason or found.reason.endswith("; no op stands out")
    assert set(found.witness) >= {"inputs", "output", "piece", "symbols"}


def test_a_witness_that_shows_nothing_is_no_refutation(uneven: Plan, wrong: Plan) -> None:
    """Floating point may see a difference where there is none: the checker's intervals decide."""
    witness = search(wrong)
    assert witness is not None and replayed(wrong, witness) is not None
    assert replayed(uneven, witness) is None


def test_the_search_goes_on_where_the_checker_sees_nothing(
    wrong: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Witness] = []

    def deaf(_plan: Plan, witness: Witness) -> str | None:
        asked.append(witness)
        return "seen" if len(asked) == 3 else None

    monkeypatch.setattr(witnessing, "replayed", deaf)
    found = refute(wrong, [(0, 0)], 60)
    assert len(asked) == 3 and found is not None and found.reason.startswith("seen; ")


def test_without_time_or_facts_nothing_is_looked_for(wrong: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnessing, "search", lambda *_, **__: pytest.fail("searched"))
    assert refute(wrong, [(0, 0)], 0) is None
    assert refute(wrong, [], 60) is None


def test_what_is_rarely_wrong_is_found_with_more_inputs() -> None:
    """As where one row of many is treated otherwise: eight inputs do not meet it, and seconds are left."""

    def right(b: ProgramBuilder) -> None:
        b.output("y", b.input("x", "f32[4]") * 2)

    def rarely(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4]")
        total = b.broadcast(b.reduce(x, [0]), (4,), ())
        near = b.compare(b.abs(total - RARE), b.constant(1, "f32[4]"), "LT")
        b.output("y", b.select(near, x, x * 2))

    everywhere = {"dp": Replicate()}
    plan = pair({"dp": 2}, right, rarely, {"x": everywhere}, {"y": everywhere})
    facts = [(0, 0)]
    assert search(plan, facts) is None and refute(plan, facts, 1) is None
    assert refute(plan, facts, 30) is not None


@pytest.mark.parametrize(("factor", "refuted"), [(1, False), (2, True)])
def test_what_padding_alone_shows_is_no_refutation(factor: int, refuted: bool) -> None:
    """A flat shard is padded with zeros, which nothing says: a sum over it is right, and twice it is not."""

    def single(b: ProgramBuilder) -> None:
        b.output("y", b.reduce(b.input("x", "f32[3]"), [0]))

    def padded(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4]")
        b.output("y", b.reduce(x, [0]) * factor)

    everywhere = {"dp": Replicate()}
    plan = pair({"dp": 2}, single, single, {"x": everywhere}, {"y": everywhere})
    longer = pair({"dp": 2}, padded, padded, {"x": everywhere}, {"y": everywhere})
    plan = replace(plan, classes=longer.classes)
    found = refute(plan, [(0, 0)], 60)
    assert (found is not None) == refuted
    if found is not None:
        assert found.output == 0
