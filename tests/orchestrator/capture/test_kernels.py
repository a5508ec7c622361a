"""A kernel of the user's in place of PyTorch's: a trace runs none, and would take the op for what it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from orchestrator.capture.errors import DefinitionError
from orchestrator.capture.kernels import kernels_stay


def by_library() -> None:
    torch.library.Library("aten", "IMPL").impl("tanh", torch.sin, "CPU")


def by_overload() -> None:
    torch.library.Library("aten", "IMPL").impl(torch.ops.aten.add.Tensor, torch.sub, "CPU")


def by_decorator() -> None:
    torch.library.impl("aten::tanh", "cpu")(torch.sin)


@pytest.mark.parametrize(
    ("register", "op"), [(by_library, "tanh"), (by_overload, "add.Tensor"), (by_decorator, "tanh")]
)
def test_an_op_of_pytorch_keeps_its_kernels(register: Callable[[], None], op: str) -> None:
    """The plan was VALID, and every rank computed another function."""
    with pytest.raises(DefinitionError, match=f"kernel of your own for aten::{op}") as caught, kernels_stay():
        register()
    assert caught.value.frame is not None and caught.value.frame[2] == register.__name__
    assert "called by your code" in (caught.value.instead or "")
    assert torch.allclose(torch.tanh(torch.ones(1)), torch.tensor([0.7615942]))


def test_who_handles_the_exception_is_refused_all_the_same() -> None:
    with pytest.raises(DefinitionError, match="aten::tanh"), kernels_stay(), suppress(DefinitionError):
        by_library()


def test_ops_of_ones_own_have_kernels_of_ones_own() -> None:
    """Whether such an op is captured is said where it is used."""
    with kernels_stay():
        library = torch.library.Library("lies", "FRAGMENT")
        library.define("twice(Tensor x) -> Tensor")

        def twice(x: Any) -> Any:
            return x * 2

        library.impl("twice", twice, "CPU")
        assert torch.ops.lies.twice(torch.ones(1)).item() == 2
        library._destroy()


def test_what_pytorch_registers_itself_stays() -> None:
    """A module of it that the user's code is the first to need."""
    scope: dict[str, Any] = {"torch": torch}
    code = 'there = torch.library.Library("aten", "IMPL"); there.impl("tanh", torch.sin, "Meta")'
    with kernels_stay():
        exec(compile(code, torch.optim.__file__, "exec"), scope)
    scope["there"]._destroy()
