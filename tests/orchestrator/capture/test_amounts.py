"""Elements that a step reads: of a routing's integers symbols, of all others nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from orchestrator.capture.amounts import PICKS, Amount, Unrecorded, amount
from orchestrator.capture.errors import LoweringError
from orchestrator.capture.recorder import Recorder, recording


def counts() -> Any:
    return torch.bincount(torch.randn(6, 4).topk(2).indices.flatten(), minlength=4)


def test_sums_of_elements_are_amounts_in_the_order_of_reading() -> None:
    with FakeTensorMode(), recording(Recorder()):
        a, b, *_ = counts().tolist()
        assert amount(a) == Amount(0, ((0, 1),))
        assert amount(b - 2 * a + 3) == Amount(3, ((0, -2), (1, 1)))
        with pytest.raises(LoweringError, match="no sum of numbers of rows"):
            amount(a * b)


@pytest.mark.parametrize("ask", [bool, int, range, lambda n: bool(n > 3)])
def test_no_question_about_an_amount_is_answered(ask: Any) -> None:
    with FakeTensorMode(), recording(Recorder()), pytest.raises(GuardOnDataDependentSymNode):
        ask(counts().sum().item())


@pytest.mark.parametrize(
    "read",
    [
        lambda: torch.arange(4).sum().item(),
        lambda: torch.randn(4).sum().item(),
        lambda: torch.randn(6, 4).topk(2).values.sum().item(),
        lambda: (counts() > 2).any().item(),
    ],
)
def test_no_other_value_can_be_read(read: Any) -> None:
    with FakeTensorMode(), recording(Recorder()), pytest.raises(DataDependentOutputException):
        read()


def test_a_dropped_step_reads_as_a_recorded_one() -> None:
    with FakeTensorMode(), Unrecorded():
        assert amount(counts().tolist()[1]) == Amount(0, ((1, 1),))


def test_a_dropped_step_steps_aside_for_wrappers() -> None:
    """With tensor parallelism a router chooses from DTensors: what is done to their parts is to be seen."""
    mode, func = Unrecorded(), torch.ops.aten.topk.default
    for wrapper in (DTensor, AsyncCollectiveTensor):
        assert mode.__torch_dispatch__(func, (wrapper,), (torch.randn(6, 4), 2)) is NotImplemented
    assert mode.__torch_dispatch__(func, (torch.Tensor,), (torch.randn(6, 4), 2)) is not NotImplemented


def test_places_of_true_elements_are_as_many_as_an_amount() -> None:
    with FakeTensorMode(), recording(Recorder()):
        token, choice = torch.where(torch.randn(6, 4) > 0)
        assert amount(token.shape[0]) == amount(choice.shape[0]) == Amount(0, ((0, 1),))  # type: ignore[arg-type]


def test_a_mask_has_as_many_true_elements_as_at_the_last_time_unless_it_was_written() -> None:
    def number(mask: torch.Tensor) -> Amount:
        found = amount(mask.nonzero().shape[0])  # type: ignore[arg-type]
        assert isinstance(found, Amount)
        return found

    with FakeTensorMode(), recording(Recorder()):
        mask = torch.randn(6, 4) > 0
        first = number(mask)
        assert number(mask) == first != number(mask[0])
        assert number(mask.clone()) != first, "another tensor"
        mask.logical_not_()
        assert number(mask) != first
        with torch.inference_mode():
            made = torch.randn(6, 4) > 0  # of which nobody counts versions
            assert number(made) != number(made)


def test_a_mask_among_indices_is_the_places_of_its_true_elements() -> None:
    recorder = Recorder()
    with FakeTensorMode(), recording(recorder):
        x, mask = torch.randn(6, 4), torch.randn(6) > 0
        x[mask] = x[mask] + 1
        x[mask] = 0.0
        x[mask] = x[0]  # one row for all
    puts = [node.args for node in recorder.nodes if node.op.startswith("aten.index_put_")]
    assert [args[1][0].dtype for args in puts] == ["i64", "i1", "i1"]
    (read,) = (node for node in recorder.nodes if node.op == "aten.index.Tensor")
    assert read.args[1][0].dtype == "i64"


def test_places_in_a_real_tensor_are_what_they_are() -> None:
    """A device mesh finds its ranks so, in the middle of a step."""
    assert Unrecorded().counted.run(PICKS, (torch.eye(3),), {}) is NotImplemented


def test_an_amount_of_an_earlier_step_is_none_of_this_one() -> None:
    with FakeTensorMode():
        with recording(Recorder()):
            kept = counts().tolist()[0]
        with recording(Recorder()), pytest.raises(LoweringError, match="another step has read"):
            counts().tolist()
            torch.zeros(kept)


def test_an_op_says_whether_it_has_an_amount() -> None:
    recorder = Recorder()
    with FakeTensorMode(), recording(recorder):
        rows = torch.zeros(sum(counts().tolist()), 3)
        rows + 1
    said = {node.op: node.sized for node in recorder.nodes}
    assert said["aten.zeros.default"] and said["aten.add.Tensor"]
    assert not said["aten.topk.default"] and not said["aten.bincount.default"]
