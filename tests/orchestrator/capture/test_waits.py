"""A result that is used before anybody waited for it is refused, with both lines; waiting has many forms."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from orchestrator.capture.errors import WaitError
from orchestrator.capture.waits import Waits

from .world import recorded, talked


def late(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    x = x.clone()
    work = dist.all_reduce(x, async_op=True)  # started here
    y = x * 2  # used here
    work.wait()
    return {"y": y}


def never(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    x = x.clone()
    dist.all_reduce(x, async_op=True)  # started here
    return {"y": x * 2}  # used here


def through_a_view(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    x = x.clone()
    work = dist.all_reduce(x, async_op=True)  # started here
    rows = x.view(-1)[:3]
    y = rows + 1  # used here
    work.wait()
    return {"y": y}


def operand(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    x, out = x.clone(), torch.empty(8, 3)
    work = dist.all_gather_into_tensor(out, x, async_op=True)  # started here
    x.zero_()  # used here
    work.wait()
    return {"y": out}


def another(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    x, z = x.clone(), x * 3
    first = dist.all_reduce(x, async_op=True)  # started here
    dist.all_reduce(z, async_op=True).wait()
    y = x + z  # used here
    first.wait()
    return {"y": y}


def raw(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    name = dist.group.WORLD.group_name
    y = torch.ops._c10d_functional.all_reduce(x, "sum", name)  # started here
    return {"y": y + 1}  # used here


def gathered(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    x = x.clone()
    future = dist.all_reduce(x, async_op=True).get_future()  # started here
    future.then(lambda f: f.value()[0].div_(4))
    return {"y": x + 1}  # used here


@pytest.mark.slow
@pytest.mark.parametrize("talk", [late, never, through_a_view, operand, another, raw, gathered])
def test_a_use_before_the_wait_names_both_lines(talk: Any) -> None:
    with pytest.raises(WaitError) as caught:
        talked(talk)
    said = str(caught.value)
    assert "# started here" in said and "# used here" in said


@pytest.mark.slow
def test_a_state_that_is_under_way_at_the_end_is_refused() -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            dist.all_reduce(model.w, async_op=True)
        return {}

    with pytest.raises(WaitError, match=r"nobody waited for that.*params\.w"):
        talked(lambda x, m: talk(x, m) or {"x": x})


@pytest.mark.slow
@pytest.mark.parametrize(
    "wait",
    [
        lambda work: work.wait(),
        lambda work: work.synchronize(),
        lambda work: work.block_current_stream(),
        lambda work: work.get_future().wait(),
        lambda work: work.get_future().value(),
        lambda work: work.get_future().then(lambda f: f.value()[0].mul_(1)).wait(),
        lambda work: torch.futures.wait_all([work.get_future()]),
        lambda work: torch.futures.collect_all([work.get_future()]).wait(),
    ],
)
def test_every_way_to_wait_counts(wait: Any) -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        x = x.clone()
        wait(dist.all_reduce(x, async_op=True))
        return {"y": x * 2}

    names = [op.name for op in talked(talk).classes[0].program.ops]
    assert "all_reduce" in names


@pytest.mark.slow
def test_waiting_for_the_work_is_not_waiting_for_its_callback() -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        x, y = x.clone(), x * 2
        work = dist.all_reduce(x, async_op=True)
        work.get_future().then(lambda f: y.add_(f.value()[0]))
        work.wait()
        return {"x": x + 1, "y": y + 1}

    with pytest.raises(WaitError, match="a callback"):
        talked(talk)


@pytest.mark.slow
def test_a_coalesced_batch_is_waited_for_as_a_whole() -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        a, b = x.clone(), x * 2
        with dist._coalescing_manager(async_ops=True) as batch:
            dist.all_reduce(a)
            dist.all_reduce(b)
        early = a + b
        batch.wait()
        return {"y": early}

    with pytest.raises(WaitError):
        talked(talk)


def early(act: Any) -> list[str]:
    """What is said of the uses that come too early."""
    waits = Waits()
    return [error.message for node in recorded(act) for error in waits.see(node)]


def functional(x: torch.Tensor) -> torch.Tensor:
    return torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)  # type: ignore[no-any-return]


def waits_for_a_functional_one(x: torch.Tensor) -> None:
    torch.ops._c10d_functional.wait_tensor(functional(x)).add_(1)


def waits_for_a_callback(x: torch.Tensor) -> None:
    dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0].mul_(2)).wait()
    x.add_(1)


def waits_for_a_batch(x: torch.Tensor) -> None:
    y = x * 2
    with dist._coalescing_manager(async_ops=True) as batch:
        dist.all_reduce(x)
        dist.all_reduce(y)
    batch.wait()
    x.add_(y)


def waits_for_a_batch_of_broadcasts(x: torch.Tensor) -> None:
    """These are not joined to one call by PyTorch: the group has to remember them."""
    y = x * 2
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as batch:
        dist.broadcast(x, 0)
        dist.broadcast(y, 0)
    batch.wait()
    x.add_(y)


def uses_the_other_half(x: torch.Tensor) -> None:
    busy, idle = x.chunk(2)
    dist.all_reduce(busy, async_op=True)
    idle.add_(1)


def uses_nothing_of_it(x: torch.Tensor) -> None:
    dist.all_reduce(x, async_op=True)
    x[:0].add_(1)
    torch.ops.aten._unsafe_view(x, (2, 2))  # as matrix products name their result anew


def uses_what_was_gathered_first(x: torch.Tensor) -> None:
    """The first use waits, as a view does not."""
    every = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
    every.view(2, 4).sum(0)
    x.zero_()


def calls_wait_itself(x: torch.Tensor) -> None:
    every = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
    funcol.wait_tensor(every)
    x.zero_()


def parts(x: torch.Tensor) -> DTensor:
    with unset_fake_temporarily():
        mesh = DeviceMesh("cpu", [0, 1])
    return DTensor.from_local(x, mesh, [Shard(0)], run_check=False)


def redistributes_at_once(x: torch.Tensor) -> None:
    parts(x).redistribute(placements=[Replicate()])
    x.zero_()


def reduces_a_copy(x: torch.Tensor) -> None:
    funcol.all_reduce(x, "sum", dist.group.WORLD)
    x.zero_()


@pytest.mark.parametrize(
    "act",
    [
        uses_what_was_gathered_first,
        calls_wait_itself,
        redistributes_at_once,
        reduces_a_copy,
        waits_for_a_functional_one,
        waits_for_a_callback,
        waits_for_a_batch,
        waits_for_a_batch_of_broadcasts,
        uses_the_other_half,
        uses_nothing_of_it,
    ],
)
def test_a_use_after_the_wait_or_of_other_elements_is_none_too_early(act: Any) -> None:
    assert early(act) == []


def uses_a_result(x: torch.Tensor) -> None:
    dist.all_reduce(x, async_op=True)
    x * 2


def overwrites_an_operand(x: torch.Tensor) -> None:
    dist.all_gather_into_tensor(torch.empty(8), x, async_op=True)
    x.zero_()


def overwrites_what_is_gathered(x: torch.Tensor) -> None:
    """In a trace PyTorch waits at once; in a job it has begun to send ``x``."""
    every = funcol.all_gather_tensor(x, 0, dist.group.WORLD).view(2, 4)
    x.zero_()
    every.sum(0)


def overwrites_what_is_redistributed(x: torch.Tensor) -> None:
    parts(x).redistribute(placements=[Replicate()], async_op=True).to_local()
    x.zero_()


def uses_a_result_of_a_batch(x: torch.Tensor) -> None:
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True):
        dist.broadcast(x, 0)
    x * 2


def waits_for_nothing_by_giving_a_callback(x: torch.Tensor) -> None:
    y = x * 2
    dist.all_reduce(x, async_op=True).get_future().then(lambda f: y.add_(1))
    x * 3


_GATHERED = (
    "an operand of _c10d_functional.all_gather_into_tensor.default is overwritten by aten.zero_.default"
)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (uses_a_result, "a result of dist.all_reduce is used by aten.mul.Tensor"),
        (overwrites_an_operand, "an operand of dist.all_gather_single is overwritten by aten.zero_.default"),
        (overwrites_what_is_gathered, _GATHERED),
        (overwrites_what_is_redistributed, _GATHERED),
        (uses_a_result_of_a_batch, "a result of dist.broadcast is used by aten.mul.Tensor"),
        (waits_for_nothing_by_giving_a_callback, "a result of dist.all_reduce is used by aten.mul.Tensor"),
    ],
)
def test_a_use_that_comes_too_early_is_told_by_both_ops(act: Any, message: str) -> None:
    """A callback is run when the work is done; that it was given does not say that it has run."""
    (said,) = early(act)
    assert said.startswith(f"{message} before anybody waited for it, started at ")


@pytest.mark.parametrize(
    ("act", "instead"),
    [(uses_a_result, r"call wait\(\)"), (overwrites_what_is_gathered, "use the result first")],
)
def test_what_to_write_instead_is_what_there_is_to_wait_with(act: Any, instead: str) -> None:
    """A functional collective gives a tensor, and no handle."""
    waits = Waits()
    (error,) = [error for node in recorded(act) for error in waits.see(node)]
    assert re.search(instead, str(error))


def test_what_a_callback_inside_a_callback_writes_is_under_way_like_the_rest() -> None:
    def act(x: torch.Tensor) -> None:
        y, z = x * 2, x * 3

        def outer(f: Any) -> Any:
            return dist.all_reduce(y, async_op=True).get_future().then(lambda g: z.add_(1)).wait()

        future = dist.all_reduce(x, async_op=True).get_future().then(outer)
        z + 1
        future.wait()
        z + 2

    (said,) = early(act)
    assert said.startswith("a result of a callback is used by aten.add.Tensor")
