"""A result that is used before anybody waited for it is refused, with both lines; waiting has many forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from orchestrator.capture.errors import WaitError

from .world import talked

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("talk", [late, never, through_a_view, operand, another, raw, gathered])
def test_a_use_before_the_wait_names_both_lines(talk: Any) -> None:
    with pytest.raises(WaitError) as caught:
        talked(talk)
    said = str(caught.value)
    assert "# started here" in said and "# used here" in said


def test_a_state_that_is_under_way_at_the_end_is_refused() -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            dist.all_reduce(model.w, async_op=True)
        return {}

    with pytest.raises(WaitError, match=r"nobody waited for that.*params\.w"):
        talked(lambda x, m: talk(x, m) or {"x": x})


def polled(work: Any) -> None:
    while not work.is_completed():
        pass


@pytest.mark.parametrize(
    "wait",
    [
        lambda work: work.wait(),
        lambda work: work.synchronize(),
        lambda work: work.block_current_stream(),
        polled,
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


def test_waiting_for_the_work_is_not_waiting_for_its_callback() -> None:
    def talk(x: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
        x, y = x.clone(), x * 2
        work = dist.all_reduce(x, async_op=True)
        work.get_future().then(lambda f: y.add_(f.value()[0]))
        work.wait()
        return {"x": x + 1, "y": y + 1}

    with pytest.raises(WaitError, match="a callback"):
        talked(talk)


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
