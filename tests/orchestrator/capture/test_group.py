"""Every collective that a step calls is in its plan, does there what gloo does, or is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import capture
from orchestrator.capture.ddp import built
from orchestrator.capture.disguise import disguised
from orchestrator.capture.environment import as_rank
from orchestrator.capture.errors import CaptureError, GroupError
from orchestrator.capture.group import process_group
from orchestrator.capture.recorder import ReduceRef
from orchestrator.capture.work import Work

from .copying_steps import average, averaging
from .world import agrees_with_gloo, recorded, talked


def rooted(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    """Collectives with a root, over the world and over a fibre."""
    tp = model.mesh.get_group("tp")
    here, there = x.clone(), x * 2
    dist.broadcast(here, 2)
    dist.broadcast(there, group=tp, group_src=1)
    piece = torch.empty(2, 3)
    dist.scatter(piece, [x + i for i in range(4)] if dist.get_rank() == 1 else None, src=1)
    total = x.clone()
    dist.reduce(total, 3)
    lines = [torch.empty(2, 3) for _ in range(4)] if dist.get_rank() == 2 else None
    dist.gather(x * 3, lines, dst=2)
    told = torch.stack(lines or [x] * 4) if dist.get_rank() in (2,) else x.new_zeros(4, 2, 3)
    return {
        "here": here,
        "there": there,
        "piece": piece,
        "total": total if dist.get_rank() == 3 else torch.zeros(2, 3),
        "told": told,
    }


def lists(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    """List forms, coalesced forms, and a communicator of its own."""
    gathered = [torch.empty(2, 3) for _ in range(4)]
    dist.all_gather(gathered, x, group=model.again)
    swapped = torch.empty(4, 3)
    dist.all_to_all_single(swapped, torch.cat([x, x * 2]))
    with dist._coalescing_manager():
        both = [x.clone(), x * 5]
        for t in both:
            dist.all_reduce(t)
    scalar = x.sum()
    every = torch.empty(4)
    dist.all_gather_into_tensor(every, scalar.reshape(1))
    low = x.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    turned = (x * 7).t()
    dist.all_reduce(turned)
    dist.barrier()
    named = functional.broadcast(x, 1, dist.group.WORLD) + 0
    return {
        "gathered": torch.stack(gathered),
        "swapped": swapped,
        "both": torch.stack(both),
        "every": every,
        "low": low,
        "turned": turned.contiguous(),
        "named": named,
    }


def sliced(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    """A mesh that is sliced in the step computes with real tensors of its own."""
    return {"wide": functional.all_gather_tensor(x, 1, model.mesh["tp"]) + 0}


@pytest.mark.slow
@pytest.mark.parametrize("talk", [rooted, lists, sliced])
def test_collectives_do_what_gloo_does(talk: Any, tmp_path: Path) -> None:
    agrees_with_gloo(talk, tmp_path)


@pytest.mark.slow
def test_lists_of_pieces_that_gloo_has_not(tmp_path: Path) -> None:
    """A sum handed out in pieces, and pieces that change hands, written with what gloo has."""

    def pieces(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        mine, rank = [x * i for i in range(4)], dist.get_rank()
        if dist.get_backend() == "gloo":
            everyone = [torch.empty(4, 2, 3) for _ in range(4)]
            dist.all_gather(everyone, torch.stack(mine))
            summed, got = sum(e[rank] for e in everyone), torch.stack([e[rank] for e in everyone])
        else:
            summed, line = torch.empty(2, 3), [torch.empty(2, 3) for _ in range(4)]
            dist.reduce_scatter(summed, mine)
            dist.all_to_all(line, mine)
            got = torch.stack(line)
        return {"summed": torch.as_tensor(summed), "got": got}

    plan = agrees_with_gloo(pieces, tmp_path)
    assert {"reduce_scatter", "all_to_all"} <= {op.name for op in plan.classes[0].program.ops}


def refused(talk: Any, message: str, kind: type[CaptureError] = CaptureError) -> None:
    with pytest.raises(kind, match=message):
        talked(talk)


@pytest.mark.slow
def test_a_broadcast_over_shards_is_in_the_plan() -> None:
    """It was taken for a view: the plan said that every rank keeps its own rows."""

    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        x = x.clone()
        dist.broadcast(x, 0)
        return {"x": x}

    plan = talked(talk)
    assert [op.name for op in plan.classes[0].program.ops if "group" in op.attrs] == ["all_gather"]


@pytest.mark.slow
def test_rows_that_change_hands_are_in_a_form_that_stages_have() -> None:
    """An exchange along one dimension has no definition in a proof: rows are joined along another one."""

    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        swapped, piece = torch.empty(4, 3), torch.empty(1, 3)
        dist.all_to_all_single(swapped, torch.cat([x, x * 2]))
        dist.scatter(piece, [x[:1]] * 4 if dist.get_rank() == 0 else None)
        return {"swapped": swapped, "piece": piece}

    for cls in talked(talk).classes:
        moved = [op for op in cls.program.ops if op.name == "all_to_all"]
        assert [(op.attrs["split_dim"], op.attrs["concat_dim"]) for op in moved] == [(0, 1)] * 2


@pytest.mark.slow
def test_what_reduce_leaves_on_other_ranks_is_undefined() -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        x = x.clone()
        dist.reduce(x, 0)
        return {"x": x}

    refused(talk, r"dist\.reduce left undefined on this rank.*rank")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("talk", "message"),
    [
        (lambda x, m: {"y": x} if dist.irecv(x).wait() else {}, "a recv from any rank"),
        (lambda x, m: {"y": x} if dist.isend(x[:, :2], 1).wait() else {}, "not contiguous"),
        (
            lambda x, m: (
                {"y": x} if dist.all_gather([x.new_zeros(i + 1, 3) for i in range(4)], x) is None else {}
            ),
            "pieces of different shapes",
        ),
    ],
)
def test_calls_without_a_place_are_refused_by_name(talk: Any, message: str) -> None:
    refused(talk, message)


@pytest.mark.slow
def test_an_object_collective_is_refused_by_name() -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        found: list[Any] = [None] * 4
        dist.all_gather_object(found, dist.get_rank())
        return {"x": x * len(found)}

    refused(talk, r"object")


@pytest.mark.slow
def test_a_raw_op_of_c10d_is_refused() -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        y = x.clone()
        torch.ops.c10d.broadcast_([y], dist.group.WORLD.boxed(), 0, 0, False, -1)
        return {"y": x}

    refused(talk, r"c10d\.broadcast_")


@pytest.mark.slow
def test_a_count_is_not_what_it_was_before_the_collective() -> None:
    """A fake tensor made by torch.tensor(3) remembers 3; the sum over the ranks is 12."""

    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        count = torch.tensor(3)
        dist.all_reduce(count)
        return {"y": x / count.item()}

    refused(talk, r"count\.item\(\)|DataDependent")


@pytest.mark.slow
def test_a_number_from_outside_is_no_operand() -> None:
    outside = torch.tensor(3.0)

    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        dist.all_reduce(outside)
        return {"y": x / outside.item()}

    refused(talk, "all_reduce on a real tensor")


@pytest.mark.slow
def test_communicators_over_the_same_ranks_are_told_apart(tmp_path: Path) -> None:
    """Ranks use two of them in different orders; in one merged order they would meet wrongly."""

    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        a, b = x.clone(), x * 2
        first, second = (a, None), (b, model.again)
        if dist.get_rank() % 2:
            first, second = second, first
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in (first, second)]
        for work in works:
            work.wait()
        return {"a": a, "b": b}

    plan = agrees_with_gloo(talk, tmp_path)
    assert set(plan.groups) == {"dp_tp", "dp_tp.1"}


@pytest.mark.slow
def test_one_communicator_in_different_orders_is_what_runs(tmp_path: Path) -> None:
    """The sums mix up; the plan says so too."""

    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        a, b = x.clone(), x * 2
        for t in (b, a) if dist.get_rank() % 2 else (a, b):
            dist.all_reduce(t)
        return {"a": a, "b": b}

    agrees_with_gloo(talk, tmp_path)


def test_a_collective_on_a_real_tensor_is_named_as_the_user_called_it() -> None:
    """The group is called ``all_gather_single``, the user ``all_gather_into_tensor``."""
    with process_group(0, 2):
        for call, name in (
            (lambda x: dist.all_gather_into_tensor(torch.empty(8), x), "all_gather_into_tensor"),
            (lambda x: dist.all_reduce(x), "all_reduce"),
        ):
            with pytest.raises(GroupError, match=rf"torch\.distributed\.{name} on a real tensor"):
                call(torch.zeros(4))


def test_the_method_of_a_group_takes_a_tensor_and_a_plain_reduction() -> None:
    """A call without options, which are a sum, ended in a TypeError."""

    def act(x: torch.Tensor) -> None:
        world: Any = dist.group.WORLD
        world.allreduce(x).wait()
        world.allreduce([x], dist.ReduceOp.MAX).wait()
        world.allreduce(x, dist.ReduceOp.PREMUL_SUM(0.5)).wait()

    calls = [node for node in recorded(act) if node.op == "dist.all_reduce"]
    assert [(node.args[3], len(node.writes)) for node in calls] == [
        (ReduceRef("SUM"), 1),
        (ReduceRef("MAX"), 1),
        (ReduceRef("PREMUL_SUM", 0.5), 1),
    ]


def test_a_barrier_is_recorded_with_and_without_ddp() -> None:
    """Beside the integers that the Reducer keeps, a barrier has no tensor to be told by."""

    def act(x: torch.Tensor) -> None:
        dist.barrier()
        assert not built()
        DistributedDataParallel(nn.Linear(2, 2))
        assert built()
        dist.barrier()

    assert [node.op for node in recorded(act)].count("dist.barrier") == 2


def test_communicators_of_a_trace_before_do_not_count() -> None:
    """The number of a communicator is the same on every rank, whatever its process traced before."""
    for _ in range(2):
        with process_group(0, 2):
            world, again = dist.group.WORLD, dist.new_group()
            assert [g.reference.ordinal for g in (world, again)] == [0, 1]


@pytest.mark.parametrize("name", ["_get_backend", "_device_types", "bound_device_id"])
def test_what_a_group_of_a_trace_has_not_is_refused(name: str) -> None:
    """``_get_backend`` raised in a trace only, and the code went another way than in a job."""
    with process_group(0, 2):
        assert hasattr(dist.ProcessGroup, name)
        with pytest.raises(GroupError, match=f"group.{name} asks the group of a trace"):
            getattr(dist.group.WORLD, name)
        group: Any = dist.group.WORLD
        group.mine = 3
        assert group.mine == 3 and not hasattr(group, "others_of_mine") and group.size() == 2


def test_groups_and_handles_are_of_the_classes_of_a_job() -> None:
    def ask() -> None:
        group: Any = dist.group.WORLD
        work = Work([], [])
        assert type(group) is dist.ProcessGroup and isinstance(group, dist.ProcessGroup)
        assert type(work) is dist.Work and isinstance(work, dist.Work)
        assert type(work.get_future()) is torch._C.Future
        assert not isinstance(work.get_future(), torch.futures.Future)

    with process_group(0, 2), disguised(ask):
        ask()


def makes(backend: Any) -> list[Any]:
    """Groups that are asked for with this backend, in several ways."""
    enumerated = dist.new_subgroups_by_enumeration([[0, 1]], backend=backend)[0]
    return [dist.new_group(backend=backend), dist.new_group([0, 1], backend=backend), enumerated]


@pytest.mark.parametrize("backend", ["gloo", "nccl", dist.Backend.GLOO, "NCCL"])
def test_a_group_may_be_asked_for_with_its_backend(backend: Any) -> None:
    """That of gloo ended in an assertion of PyTorch, as did one with ``backend=dist.get_backend()``."""
    with as_rank(0, 2), FakeTensorMode():
        for group in makes(backend):
            dist.all_reduce(torch.zeros(3), group=group)
            assert group.name() == dist.get_backend(group) == str(backend).lower()
            assert type(group) is type(dist.group.WORLD) and group.size() == 2
        assert dist.get_backend() == dist.get_backend(dist.new_group()) == "nccl"


def test_a_group_of_no_backend_may_be_made_and_not_called() -> None:
    """torchtitan makes such for axes of its mesh that nobody uses."""
    with process_group(0, 2), FakeTensorMode():
        dist.all_reduce(torch.ones(2), group=dist.new_group([0], backend="fake"))
        both = dist.new_group([0, 1], backend="fake")
        with pytest.raises(GroupError, match="with the backend 'fake'"):
            dist.all_reduce(torch.ones(2), group=both)


@pytest.mark.parametrize("backend", ["mpi", "ucc", "cpu:gloo,cuda:nccl"])
def test_a_group_of_a_backend_that_no_trace_knows_is_refused(backend: str) -> None:
    with process_group(0, 2), pytest.raises(GroupError, match=f"with the backend '{backend}'") as raised:
        makes(backend)
    assert raised.value.frame is not None and raised.value.frame[2] == "makes"
    assert "gloo" in str(raised.value.instead)


@pytest.mark.parametrize("op", [dist.ReduceOp.AVG, dist._make_nccl_premul_sum(2.0)])
def test_what_gloo_lacks_is_refused(op: Any) -> None:
    with process_group(0, 2), FakeTensorMode():
        group = dist.new_group(backend="gloo")
        dist.all_reduce(torch.zeros(3), op=op)
        with pytest.raises(GroupError, match="gloo has no ReduceOp"):
            dist.all_reduce(torch.zeros(3), op=op, group=group)


def test_members_that_make_a_group_with_two_backends_do_not_find_each_other() -> None:
    def parallelize(model: Any, _: object) -> Any:
        dist.new_group(backend=("gloo", "nccl")[dist.get_rank()])
        return model

    with pytest.raises(CaptureError, match=r"name '\d+', .*rank 0 by '\d+ of gloo'"):
        capture(replace(averaging(average), parallelize=parallelize), jobs=1)
