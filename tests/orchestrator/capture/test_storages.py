"""Whoever asks for the bytes of a storage is refused: a trace has none, and PyTorch would end the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.capture.errors import StateError
from orchestrator.capture.storages import bytes_refused


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize(
    "asks",
    [
        lambda t: t.untyped_storage()[0],
        lambda t: list(t.untyped_storage()),
        lambda t: t.untyped_storage().tolist(),
        lambda t: t.untyped_storage().clone(),
        lambda t: t.untyped_storage().byteswap(torch.float32),
        lambda t: t.untyped_storage().share_memory_(),
        lambda t: str(t.untyped_storage()),
        lambda t: t.storage()[0],
        lambda t: t.storage().tolist(),
        lambda t: t.storage().double(),
    ],
)
def test_the_bytes_of_a_storage_are_refused(asks: Callable[[Any], object]) -> None:
    """``byteswap`` ended the process, ``[0]`` raised what code may handle."""
    with FakeTensorMode(), bytes_refused(), pytest.raises(StateError, match="asks for the bytes") as caught:
        asks(torch.zeros(3))
    assert caught.value.frame is not None and caught.value.frame[0] == __file__
    assert "an op on the tensor itself" in (caught.value.instead or "")


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("storage", [lambda t: t.untyped_storage(), lambda t: t.storage()])
def test_so_is_where_they_lie(storage: Callable[[Any], Any]) -> None:
    """Gradients were averaged only where the device was ``meta``, and the plan was VALID."""
    with FakeTensorMode(), bytes_refused(), pytest.raises(StateError, match="says where the bytes") as caught:
        _ = storage(torch.zeros(3)).device
    assert caught.value.instead == "the device of the tensor itself (tensor.device)"


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_sizes_and_real_storages_are_answered() -> None:
    real = torch.arange(3.0)
    with bytes_refused():
        assert real.storage().tolist() == [0.0, 1.0, 2.0] and real.untyped_storage()[0] == 0
        assert real.untyped_storage().device.type == real.storage().device.type == "cpu"
        with FakeTensorMode():
            fake = torch.zeros(3)
            assert fake.untyped_storage().nbytes() == 12 and len(fake.storage()) == 3
    with FakeTensorMode(), pytest.raises(NotImplementedError):
        _ = torch.zeros(3).untyped_storage()[0]
