"""The handles of collectives say what PyTorch's say, and what waits for them is known."""

from __future__ import annotations

import torch
import torch.distributed as dist

from orchestrator.capture.recorder import Recorder, recording
from orchestrator.capture.work import Future

from .world import recorded


def test_a_handle_that_was_waited_for_is_done_and_has_its_results() -> None:
    """Code asks ``if not work.wait(): raise``, and takes the tensors from the handle."""

    def act(x: torch.Tensor) -> None:
        work = dist.all_reduce(x, async_op=True)
        assert work.wait() is True and work.is_completed() is True
        (result,) = work.result()
        assert result is x

    assert [node.op for node in recorded(act)].count("dist.wait") == 2


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
