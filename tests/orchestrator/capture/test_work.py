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
