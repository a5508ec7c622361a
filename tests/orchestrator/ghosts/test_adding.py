"""Plans that merge blocks are proved with ghosts, and not without; their wrong twins are not."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainverify
from certificates.plan.checking import check_plan
from certificates.plan.plan import Plan
from orchestrator.emit import provable
from orchestrator.errors import Unproved
from orchestrator.ghosts.adding import with_ghosts
from orchestrator.proving.engine import Engine
from trainverify import Kind

from ..plans import CORES, unproved
from ..spanning.field_plans import cross_entropy
from .merged import MERGED


def proved_with_ghosts(plan: Plan) -> bool:
    added = with_ghosts(plan)
    assert added is not None
    engine = Engine(plan, CORES, ghosts=added)
    engine.relate()
    try:
        for claims in engine.claims():
            for number in claims:
                engine.prove(number)
    except Unproved:
        return False
    return True


@pytest.mark.parametrize("name", MERGED)
def test_blocks_that_are_merged_need_ghosts(name: str) -> None:
    right, wrong = MERGED[name](True), MERGED[name](False)
    assert unproved(right), "without ghosts"
    assert provable(right) and proved_with_ghosts(right)
    assert not provable(wrong)


@pytest.mark.parametrize("name", MERGED)
def test_the_checker_says_so_too(name: str, tmp_path: Path) -> None:
    right = trainverify.verify(MERGED[name](True), out=tmp_path / "right")
    wrong = trainverify.verify(MERGED[name](False), out=tmp_path / "wrong")
    assert (right.kind, wrong.kind) == (Kind.PROVED, Kind.REFUTED), right.report + wrong.report


def test_a_plan_with_ghosts_is_a_plan() -> None:
    plan = MERGED["by_logarithms"](True)
    added = with_ghosts(plan)
    assert added is not None
    check_plan(added.plan)
    assert added.plan.inputs == plan.inputs and added.plan.classes[0].program.outputs == {
        **plan.classes[0].program.outputs
    }


def test_where_nothing_is_merged_there_are_none() -> None:
    assert with_ghosts(cross_entropy(True)) is None


def test_a_proof_has_the_ghosts_that_it_names_and_those_behind_them() -> None:
    added = with_ghosts(MERGED["by_logarithms"](True))
    assert added is not None
    followed = added.followed[""]["c0"]
    hop = followed.hops[-1]
    found = added.behind({"": [f"c0:{hop.ghost}"]})
    assert set(found) == {""} and set(found[""]) == {"c0"}
    names = [op.out for op in found[""]["c0"]]
    assert names[-1] == hop.ghost and len(names) < len(followed.ghosts)
    own = {op.out for op in followed.program.ops} - followed.ghosts
    known = {*added.plan.classes[0].program.inputs, *own}
    for op in found[""]["c0"]:
        assert set(op.ins) <= known
        known.add(op.out)
    assert added.behind({"": ["c0:%0"]}) == {}
