"""Tensors made from nothing."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.errors import ClosureError

x = torch.randn(3, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a + torch.zeros(4) + torch.ones_like(a) * a.new_full((4,), 0.1),
        lambda a: torch.full((2,), 3, dtype=torch.int64),
        lambda a: a.clone().fill_(a[0, 0]),
        lambda a: torch.arange(5, -3, -2) * torch.arange(0.5, 2, 0.4)[:4].gt(0),
        lambda a: a.clone().zero_() + torch.scalar_tensor(2.5),
    ],
)
def test_made_tensors(agrees, function) -> None:
    agrees(function, x)


def test_a_literal_is_the_decimal_that_python_prints(lowered) -> None:
    (draft,) = lowered(
        lambda a: (
            torch.full((), 0.1, dtype=torch.float64) + a.detach()[:0].sum() * 0
            if False
            else torch.full((2,), 0.1)
        ),
        x,
    ).drafts
    assert draft.attr("value") == "1/10"


def test_memory_that_is_written_in_part_has_an_input_of_its_own(lowered) -> None:
    def begun(a: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(4, dtype=torch.float64)
        memory[:2] = a[0, :2]
        return memory + a[0]

    assert "uninitialised.0" in lowered(begun, x).inputs


def test_memory_that_nothing_wrote_is_not_computed_with(lowered) -> None:
    with pytest.raises(ClosureError, match="add of memory that nothing has written"):
        lowered(lambda a: torch.empty(4, dtype=torch.float64) + a, x)


def test_the_specification_may_not_read_it() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from orchestrator.capture.lowering import Lowering
    from orchestrator.capture.recorder import Recorder, recording, reference

    lowering = Lowering(lambda _group: (), specification=True)
    with FakeTensorMode(), recording(Recorder()) as recorder:
        result = torch.empty(4) + 1
    lowering.run(recorder.nodes)
    with pytest.raises(ClosureError, match="memory that nothing has written"):
        lowering.finish({"y": reference(result)})
