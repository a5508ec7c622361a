"""The handles of collectives say what PyTorch's say, and what waits for them is known."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from orchestrator.capture.errors import StateError
from orchestrator.capture.recorder import Recorder, recording
from orchestrator.capture.tracing import trace
from orchestrator.capture.work import Future

from .world import recorded, talking


def test_a_handle_that_was_waited_for_has_its_results() -> None:
    """Code asks ``if not work.wait(): raise``, and takes the tensors from the handle."""

    def act(x: torch.Tensor) -> None:
        work = dist.all_reduce(x, async_op=True)
        assert work.wait() is True
        (result,) = work.result()
        assert result is x

    assert [node.op for node in recorded(act)].count("dist.wait") == 1


def test_a_future_is_held_in_a_trace_and_nowhere_else() -> None:
    """DDP can be run under the patches before a step is recorded: nobody is there to remember works."""
    Future([3], None).held_by_reducer()
    recorder = Recorder()
    with recording(recorder):
        Future([3], None).held_by_reducer()
        assert set(recorder.held) == {3}
        recorder.waited(3)


def promised(wait: bool) -> list[str]:
    """A future of PyTorch's own that a callback sets."""

    def act(x: torch.Tensor) -> None:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        begun = dist.all_reduce(x, async_op=True).get_future()
        begun.then(lambda done: future.set_result(done.value()[0] / 2))
        if wait:
            future.wait()

    return [node.op for node in recorded(act)]


def test_who_waits_for_a_future_that_a_callback_set_has_waited_for_the_callback() -> None:
    assert "dist.then_end" in promised(wait=True)
    assert promised(wait=True).count("dist.wait") == promised(wait=False).count("dist.wait") + 1


def test_a_future_that_no_callback_set_waits_for_nothing() -> None:
    def act(x: torch.Tensor) -> None:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        dist.all_reduce(x, async_op=True)
        future.set_result(x)
        assert future.wait() is x

    assert "dist.wait" not in [node.op for node in recorded(act)]


def promise(x: torch.Tensor, work: Any) -> Any:
    """A future of PyTorch's own, which a callback of the work sets."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    work.get_future().then(lambda done: future.set_result(x))
    return future


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize(
    ("asks", "name"),
    [
        (lambda x, work: work.is_completed(), "work.is_completed()"),
        (lambda x, work: work.is_success(), "work.is_success()"),
        (lambda x, work: work.exception(), "work.exception()"),
        (lambda x, work: work.wait() and work.is_completed(), "work.is_completed()"),
        (lambda x, work: work.get_future().done(), "future.done()"),
        (lambda x, work: work.get_future().then(lambda f: f.value()).done(), "future.done()"),
        (lambda x, work: promise(x, work).done(), "future.done()"),
    ],
)
def test_how_far_the_network_is_is_refused(
    asks: Callable[[Any, Any], object], name: str, swallowed: bool
) -> None:
    """A step that skips a straggler was proved: the trace said that every collective is done at once."""

    def talk(x: torch.Tensor, _: Any) -> dict[str, torch.Tensor]:
        work = dist.all_reduce(x, async_op=True)
        with contextlib.suppress(Exception) if swallowed else contextlib.nullcontext():
            asks(x, work)
        work.wait()
        return {"x": x}

    with pytest.raises(StateError) as caught:
        trace(talking(talk), 0)
    assert f"{name} asks how far a collective is" in caught.value.message
    assert caught.value.frame is not None and caught.value.frame[0] == __file__
    assert "wait() on the handle" in (caught.value.instead or "")


def test_in_a_callback_its_future_is_known_to_be_done() -> None:
    def act(x: torch.Tensor) -> None:
        told = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.done())
        assert told.wait() is True

    recorded(act)
