"""What recording changes in PyTorch ends with it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from orchestrator.capture.errors import LoweringError
from orchestrator.capture.frames import inside_engine
from orchestrator.capture.geometry import Geometry
from orchestrator.capture.recorder import (
    GroupRef,
    Node,
    Recorder,
    ReduceRef,
    TensorRef,
    active,
    recording,
    reference,
)


def test_after_a_recording_pytorch_is_as_it_was() -> None:
    """A training loop that goes on in the same process resizes its storages unrecorded."""
    resize = torch.UntypedStorage.resize_
    recorder = Recorder()
    with recording(recorder):
        assert active() is recorder
        torch.UntypedStorage(8).resize_(0)
    torch.UntypedStorage(8).resize_(0)
    assert [node.op for node in recorder.nodes] == ["storage.resize"]
    assert torch.UntypedStorage.resize_ is resize and active() is None and "data" not in vars(FakeTensor)


def test_a_hook_of_the_users_in_a_backward_pass_is_the_users() -> None:
    """What the Reducer of DDP does there waits for its works; what a user does has to wait by itself."""
    asked: list[bool] = []
    x = torch.zeros(2, requires_grad=True)
    x.register_hook(lambda grad: asked.append(inside_engine()))
    x.sum().backward()
    assert asked == [False]


def test_a_backward_op_is_told_at_its_forward_line_and_the_first_where_the_pass_begins() -> None:
    """What follows an op without a gradient of its own takes no line from it."""
    recorder = Recorder()
    with FakeTensorMode(), recording(recorder):
        x = torch.zeros(2, requires_grad=True)
        wave = x.sin()
        shown = wave.detach().exp()
        loss = wave.sum()
        loss.backward()
    del shown
    lines = {node.op.split(".")[1]: node.frame[1] for node in recorder.nodes if node.frame is not None}
    assert lines["expand"] == lines["ones_like"] == lines["sum"] + 1
    assert lines["cos"] == lines["sin"] == lines["exp"] - 1


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *((torch.float64, "f64"), (torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")),
        *((torch.int64, "i64"), (torch.int32, "i32"), (torch.int16, "i16"), (torch.int8, "i8")),
        *((torch.uint8, "u8"), (torch.bool, "i1"), (torch.complex64, "f32"), (torch.complex128, "f64")),
    ],
)
def test_every_type_of_a_plan_is_recorded_by_its_name(dtype: torch.dtype, name: str) -> None:
    with FakeTensorMode():
        assert reference(torch.zeros(2, dtype=dtype)).dtype == name


def test_a_type_that_no_plan_has_is_refused_by_name() -> None:
    with FakeTensorMode(), pytest.raises(LoweringError, match=r"tensors of torch\.uint16 have no place"):
        reference(torch.zeros(2, dtype=torch.uint16))


def test_no_two_storages_of_a_step_are_taken_for_one() -> None:
    """What is freed while a step runs leaves its address to what is made next."""
    recorder = Recorder()
    with FakeTensorMode(), recording(recorder):
        x = torch.zeros(2)
        for _ in range(20):
            x + 1
    added = [node.outs.storage for node in recorder.nodes if node.op == "aten.add.Tensor"]
    assert len({*added}) == 20
    with recording(recorder):
        for _ in range(20):
            torch.UntypedStorage(8).resize_(0)
    freed = [node.args[0] for node in recorder.nodes if node.op == "storage.resize"]
    assert len({*added, *freed}) == 40


def test_what_the_reducer_holds_is_waited_for_when_the_backward_pass_is_over() -> None:
    """The first op after it comes after the wait."""
    recorder = Recorder()
    with FakeTensorMode(), recording(recorder):
        recorder.hold(3)
        torch.zeros(2)
    assert [node.op for node in recorder.nodes] == ["dist.wait", "aten.zeros.default"] and not recorder.held


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (TensorRef(1, "f32", Geometry.contiguous((2,))), "storage"),
        (GroupRef((0, 1)), "ordinal"),
        (ReduceRef("SUM"), "factor"),
        (Node("aten.neg.default", (), {}, None, (), None), "op"),
    ],
)
def test_what_was_recorded_does_not_change(item: object, field: str) -> None:
    """It is shared: by nodes, by the states of two steps, and by what compares them."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(item, field, None)


def test_a_view_of_a_real_tensor_is_one_of_its_storage() -> None:
    """A write to the view is a write to what lies outside, and a part is no other number than there."""
    table, recorder = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), Recorder()
    with FakeTensorMode(allow_non_fake_inputs=True), recording(recorder):
        row = table[1]
        row.mul_(torch.ones(2))
    view, write = recorder.nodes[0], recorder.nodes[-1]
    storage = table.untyped_storage()._cdata
    assert view.outs.storage == storage and view.outs.literal == (3.0, 4.0)
    assert [ref.storage for ref in write.writes] == [storage]
    assert table.tolist() == [[1.0, 2.0], [3.0, 4.0]]
