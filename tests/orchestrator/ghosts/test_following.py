"""Programs with exponentials, op by op."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from orchestrator.ghosts.following import Followed, Follower

from .merged import MERGED, over, softmax


def followed(b: ProgramBuilder) -> Followed:
    return Follower(b.build(), lambda _: False, lambda _: False).follow()


def test_without_exponentials_nothing_is_followed() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[4,5]")
    b.output("y", (x * x).sum(1))
    program = b.build()
    found = Follower(program, lambda _: False, lambda _: False).follow()
    assert found.program.ops == program.ops and not found.hops and not found.ghosts


def test_every_ghost_stands_behind_what_it_reads() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[4,5]")
    b.output("y", softmax(b, x))
    own = b.build()
    found = Follower(own, lambda _: False, lambda _: False).follow()
    assert [op for op in found.program.ops if op.out not in found.ghosts] == list(own.ops)
    known = set(own.inputs)
    for op in found.program.ops:
        assert set(op.ins) <= known
        known.add(op.out)
    assert not found.merges and {h.ghost for h in found.hops} <= {op.out for op in found.program.ops}


@pytest.mark.parametrize("name", MERGED)
def test_a_plan_merges_and_its_specification_does_not(name: str) -> None:
    plan = MERGED[name](True)
    assert not Follower(plan.specification, lambda _: True, lambda _: False).follow().merges
    assert any(Follower(c.program, lambda _: True, lambda _: False).follow().merges for c in plan.classes)


def test_what_a_law_cannot_follow_is_a_letter() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[4,5]")
    e = b.exponential(x)
    hidden = b.tanh(e)
    b.output("y", b.exponential(hidden) / over(b, b.exponential(hidden).sum(1), x))
    assert followed(b).hops


def test_two_programs_of_one_text_have_the_same_ghosts() -> None:
    def once() -> Followed:
        b = ProgramBuilder()
        x: Value = b.input("x", "f32[4,5]")
        b.output("y", softmax(b, x) * b.logistic(x))
        return followed(b)

    assert once() == once()
