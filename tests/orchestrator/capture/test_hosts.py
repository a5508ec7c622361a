"""A place on a host is no rank: who asks for it is noted, and told what a job on other hosts says."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch.distributed as dist

from orchestrator.capture import hosts
from orchestrator.capture.environment import as_rank
from orchestrator.capture.errors import StateError, StepError
from orchestrator.capture.frames import PROJECT
from orchestrator.capture.hosts import asked_at, depends, other_ways, reads_noted, spread, variables


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: Any) -> None:
    """What is meant for processes that end, tests begin without."""
    monkeypatch.setattr(hosts, "_each", [])
    monkeypatch.setattr(hosts, "_read", {})


def placed(rank: int, size: int) -> tuple[int, ...]:
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    return tuple(variables(rank, size)[name] for name in names)


def test_ranks_are_on_one_host_until_they_are_spread() -> None:
    assert placed(5, 8) == (5, 8, 0, 1)
    spread(4)
    assert [placed(rank, 8) for rank in (3, 5)] == [(3, 4, 0, 2), (1, 4, 1, 2)]
    assert placed(1, 2) == (1, 2, 0, 1), "no host has more ranks than there are"
    with as_rank(5, 8):
        assert (os.environ["RANK"], dist.get_node_local_rank(), dist.get_rank()) == ("5", 1, 5)
    spread(1)
    assert placed(5, 8) == (0, 1, 5, 8)


def test_a_host_may_have_one_rank_or_as_many_as_fit_on_the_fewest_hosts() -> None:
    """Code for several hosts may be written for hosts with several ranks alone."""
    found = {size: list(other_ways(size)) for size in (1, 2, 3, 4, 9, 12)}
    assert found == {1: [], 2: [1], 3: [1], 4: [1, 2], 9: [1, 3], 12: [1, 6]}


def test_who_asks_for_a_place_on_a_host_is_noted() -> None:
    with as_rank(1, 2):
        os.environ["RANK"], os.environ.get("WORLD_SIZE")
        assert asked_at() == ()
        os.environ.get("LOCAL_RANK"), os.environb.get(b"GROUP_RANK"), "LOCAL_WORLD_SIZE" in os.environ
        dist.get_node_local_rank()
    assert [said.split(",")[0] for said in asked_at()] == [
        *("LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
    ]
    assert asked_at()[0].startswith("LOCAL_RANK, read at test_hosts.py:")
    os.environ.get("LOCAL_RANK")
    assert len(asked_at()) == 4, "outside of a trace nothing is noted"
    with reads_noted(), pytest.raises(TypeError):
        os.environ[3]  # type: ignore[index]
    assert asked_at() == (), "each trace begins anew"


def test_what_pytorch_asks_below_a_command_is_not_noted() -> None:
    """All of ``tv-capture`` was traced anew on other hosts: the command's own file counted as a user's."""
    scope: dict[str, Any] = {"os": os}
    code = "def ask():\n    return os.environ.get('LOCAL_RANK')"
    exec(compile(code, PROJECT[0] + "endings.py", "exec"), scope)
    with reads_noted():
        scope["ask"]()
        assert asked_at() == ()


def test_another_program_on_other_hosts_is_refused_with_the_lines_that_ask() -> None:
    problem = depends(StateError("it runs another op"), [f"LOCAL_RANK, read at a.py:{n}" for n in range(5)])
    assert problem is not None and problem.message == (
        "it depends on how many hosts the ranks are on (LOCAL_RANK, read at a.py:0; LOCAL_RANK, read at "
        "a.py:1; LOCAL_RANK, read at a.py:2): it runs another op"
    )
    assert problem.instead is not None and "the place on a host" in problem.instead


def test_code_that_ends_on_other_hosts_computes_nothing_wrong_there() -> None:
    """An assertion that all ranks share a host is one in a job; what no trace can follow is none."""
    ends = StepError("AssertionError", traceback="", frame=None, instead=None)
    assert depends(ends, ["LOCAL_WORLD_SIZE"]) is None
    cannot = StepError("a value decides", traceback="", frame=None, instead="torch.where")
    assert depends(cannot, ["LOCAL_WORLD_SIZE"]) is not None
