"""Stages of ``torch.distributed.pipelining``: what ranks agree on before the first microbatch.

In its first step each stage votes whether it knows the shapes of what it receives; the product of all votes
goes round the ranks, and its value decides what they do. A trace of one rank has no such value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.pipelining import stage as stages

from .errors import DefinitionError
from .frames import user_frame

#: Recorded where a step has such stages.
VOTE = "stages of torch.distributed.pipelining agree that shapes are known, as those of every traced rank say"
_INSTEAD = (
    "PipelineStage(…, input_args=x, output_args=y): tensors as those of one microbatch, which may be meta "
    "tensors, with requires_grad where a gradient comes back"
)


class _Static:
    """The product of all votes, as it comes round."""

    def item(self) -> int:
        return 1


@contextmanager
def static_stages() -> Iterator[set[str]]:
    """Every stage that is asked must know its shapes; then it is told that the others do, too.

    Yields what of this was needed, as a plan records it.
    """
    used: set[str] = set()

    def votes(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def vote(self: Any, has_backward: bool, received_acc: Any = None) -> _Static:
            if stages.InferenceMode.needs_dynamic(self._user_meta, has_backward):
                raise DefinitionError(
                    f"stage {self.stage_index} learns in its first step what shapes it receives and sends",
                    frame=user_frame(),
                    instead=_INSTEAD,
                )
            used.add(VOTE)
            return _Static()

        return vote

    def result(self: Any, received_result: Any = None) -> _Static:
        return _Static()

    kind: Any = stages.PipelineStage
    saved = kind._warmup_forward_vote, kind._warmup_backward_result
    kind._warmup_forward_vote, kind._warmup_backward_result = votes(saved[0]), result
    try:
        yield used
    finally:
        kind._warmup_forward_vote, kind._warmup_backward_result = saved
