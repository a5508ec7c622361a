"""A collective that one rank calls and another does not is refused with the line, not as a malformed plan."""

from __future__ import annotations

import dataclasses
import linecache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import GroupError

from .world import talked


def definition(reduces: Any) -> Definition:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).sum()
        loss.backward()
        if dist.is_initialized():
            reduces(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Definition(
        name="unmet",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3, bias=False),
        parallelize=lambda model, mesh: model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        step=step,
        batch={"x": Batch((4, 3), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


def only_the_first(grad: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(grad)


def of_another_kind(grad: torch.Tensor) -> None:
    dist.all_reduce(grad, op=dist.ReduceOp.MAX if dist.get_rank() == 1 else dist.ReduceOp.SUM)


@pytest.mark.parametrize(
    ("reduces", "line"),
    [
        (only_the_first, "        dist.all_reduce(grad)"),
        (of_another_kind, "    dist.all_reduce(grad, op="),
    ],
)
def test_a_collective_that_another_rank_does_not_call_has_its_line(reduces: Any, line: str) -> None:
    with pytest.raises(GroupError, match="rank 0 calls it, and rank 1 calls none like it") as caught:
        capture(definition(reduces), jobs=1)
    file, number, _ = caught.value.frame or ("", 0, "")
    assert file == __file__ and linecache.getline(file, number).startswith(line)
    assert "on all ranks of the group" in (caught.value.instead or "")


def test_a_collective_of_all_ranks_is_met() -> None:
    assert capture(definition(dist.all_reduce), jobs=1).groups["dp"].size == 2


def from_itself(grad: torch.Tensor) -> None:
    dist.broadcast(grad, src=dist.get_rank())


def to_itself(grad: torch.Tensor) -> None:
    dist.reduce(grad, dst=dist.get_rank())


def handed_out(grad: torch.Tensor) -> None:
    rank = dist.get_rank()
    dist.scatter(grad, [grad.clone(), grad * 2], src=rank)


def or_gathered(grad: torch.Tensor) -> None:
    pieces = [torch.zeros_like(grad) for _ in range(2)]
    if dist.get_rank() == 0:
        dist.all_gather(pieces, grad)
    else:
        dist.broadcast(grad, src=0)


@pytest.mark.parametrize("reduces", [from_itself, to_itself, handed_out, or_gathered])
def test_a_collective_whose_ranks_name_several_roots_is_refused_with_both_lines(reduces: Any) -> None:
    """Each rank took its own piece of an all-gather, and the plan was proved; a job hangs."""
    with pytest.raises(GroupError, match=r"of group dp rank \d calls .* with root \d, and rank \d") as caught:
        capture(definition(reduces), jobs=1)
    file, number, name = caught.value.frame or ("", 0, "")
    assert file == __file__ and number and name == reduces.__name__
    assert reduces is or_gathered or f"in {name}" in caught.value.message
    assert "one root on all ranks" in (caught.value.instead or "")


def test_one_root_in_each_group_is_right() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).sum()
        loss.backward()
        if dist.is_initialized():
            dist.broadcast(model.weight.grad, group=model.group, group_src=1)
            dist.all_reduce(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    def grouped(model: Any, mesh: Any) -> Any:
        model.group = mesh["tp"].get_group()
        return model

    made = dataclasses.replace(
        definition(dist.all_reduce), mesh={"dp": 2, "tp": 2}, parallelize=grouped, step=step
    )
    assert capture(made, jobs=1).groups["tp"].size == 2


def in_another_order(rank: int) -> list[list[int]]:
    return [[0, 1], [2, 3]] if rank < 2 else [[2, 3], [0, 1]]


def its_own_alone(rank: int) -> list[list[int]]:
    return [[0, 1] if rank < 2 else [2, 3]]


def one_more_on_one_rank(rank: int) -> list[list[int]]:
    return [[0, 3], [0, 1], [2, 3]] if rank == 1 else [[0, 1], [2, 3]]


def in_one_order(_: int) -> list[list[int]]:
    return [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            in_another_order,
            r"\[2, 3\] find .* the name '\d+', .* those of ranks \[0, 1\] as well, on",
        ),
        (
            its_own_alone,
            r"\[2, 3\] find .* the name '\d+', .* those of ranks \[0, 1\] as well, on",
        ),
        (one_more_on_one_rank, r"\[0, 1\] find each other by the name '\d+', .* rank 0 by '\d+'"),
        (in_one_order, None),
    ],
)
def test_groups_that_ranks_make_in_another_order_are_refused(groups: Any, message: str | None) -> None:
    """A job names them by their number: ranks 1 and 2 would reduce with each other."""

    def made(model: Any, mesh: Any) -> Any:
        for ranks in groups(dist.get_rank()):
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                model.group = group
        model.again = mesh["dp"].get_group()
        return model

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).sum()
        loss.backward()
        if dist.is_initialized():
            dist.all_reduce(model.weight.grad, group=model.group)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    given = dataclasses.replace(
        definition(dist.all_reduce), mesh={"dp": 2, "tp": 2}, parallelize=made, step=step
    )
    if message is None:
        assert [group.size for group in capture(given, jobs=1).groups.values()] == [2]
        return
    with pytest.raises(GroupError, match=message) as caught:
        capture(given, jobs=1)
    file, number, _ = caught.value.frame or ("", 0, "")
    assert file == __file__ and "dist.new_group(ranks)" in linecache.getline(file, number)
    assert "in one order" in (caught.value.instead or "")


def logged_at_the_end(x: torch.Tensor, _: Any) -> dict[str, torch.Tensor]:
    dist.all_reduce(total := x.clone())
    if dist.get_rank() == 0:
        dist.all_reduce(x.clone())
    return {"y": total}


def a_barrier_at_the_end(x: torch.Tensor, _: Any) -> dict[str, torch.Tensor]:
    dist.all_reduce(total := x.clone())
    if dist.get_rank() == 0:
        dist.barrier()
    return {"y": total}


def one_rank_alone(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    if dist.get_rank() == 3:
        dist.all_reduce(x.clone(), group=model.mesh.get_group("tp"))
    return {"y": x.clone()}


@pytest.mark.parametrize(
    ("act", "group", "numbers"),
    [
        (logged_at_the_end, "dp_tp", "rank 0 calls 2 collectives and barriers in a step, and rank 1 1"),
        (a_barrier_at_the_end, "dp_tp", "rank 0 calls 2 collectives and barriers in a step, and rank 1 1"),
        (one_rank_alone, "tp", "rank 3 calls 1 collectives and barriers in a step, and rank 2 0"),
    ],
)
def test_what_one_rank_calls_alone_is_refused_though_nobody_reads_it(
    act: Any, group: str, numbers: str
) -> None:
    """It meets the gradients of the others' next step: gloo trains on with wrong ones."""
    with pytest.raises(GroupError, match=f"of group {group} {numbers}") as caught:
        talked(act)
    assert caught.value.frame is not None and caught.value.frame[2] == act.__name__


def test_a_barrier_of_all_ranks_is_no_matter() -> None:
    def waits(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        dist.barrier()
        dist.all_reduce(total := x.clone(), group=model.again)
        dist.barrier(group=model.mesh.get_group("tp"))
        return {"y": total}

    assert talked(waits).classes


def test_a_barrier_has_a_place_among_the_collectives() -> None:
    def crossed(x: torch.Tensor, _: Any) -> dict[str, torch.Tensor]:
        if dist.get_rank() == 0:
            dist.barrier()
        dist.all_reduce(total := x.clone())
        if dist.get_rank():
            dist.barrier()
        return {"y": total}

    with pytest.raises(GroupError, match="calls none like it"):
        talked(crossed)
