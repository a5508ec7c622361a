"""Rendezvous and messages are collected by their numbers; a rendezvous has its whole groups."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.reading.plan import read_plan

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, staged


def summed(group: str, seq: int = 8) -> Any:
    return op("%9", "all_reduce", ["%0"], "f32[2]", group=group, kind="add", seq=seq)


def test_messages_are_no_rendezvous() -> None:
    plan = read_plan(dump(staged().plan))
    assert list(plan.rendezvous) == [1] and list(plan.messages) == [0]
    assert plan.messages[0].send.keys() == {"c0"} and plan.messages[0].recv.keys() == {"c1"}
    recv = plan.messages[0].recv["c1"]
    assert plan.meets(recv) == plan.messages[0].send and plan.reached(plan.classes["c1"], recv) == ["c0"]


def test_one_number_for_a_message_and_a_rendezvous() -> None:
    document = staged().plan
    document["classes"][1]["program"]["ops"][1][4]["seq"] = 0
    with pytest.raises(Malformed, match="message 0 is a rendezvous as well"):
        read_plan(dump(document))


def test_a_member_of_a_group_of_ranks_is_absent_at_every_time() -> None:
    document = staged().plan
    document["groups"]["pp"] = {"axes": ["pp"], "ranks": [[0, 1]]}
    document["classes"][1]["program"]["ops"].append(summed("pp"))
    with pytest.raises(Malformed, match="rendezvous 8: a member of a group is absent"):
        read_plan(dump(document))
    document["classes"][0]["program"]["ops"].append(summed("pp"))
    read_plan(dump(document))


def test_runs_of_one_rank_need_no_other_rank() -> None:
    document = staged().plan
    document["classes"][0]["program"]["ops"].append(summed("runs"))
    assert read_plan(dump(document)).groups["runs"].size == 2
