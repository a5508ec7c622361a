"""A parameter has one name in a plan, whatever wraps the module that holds it."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel

from orchestrator.capture.names import buffers, parameters


class Counted(nn.Module):
    def __init__(self, wrap: bool) -> None:
        super().__init__()
        inner = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2, bias=False))
        self.inner = checkpoint_wrapper(inner) if wrap else inner


@pytest.mark.parametrize(("outside", "inside"), [(False, True), (True, False), (True, True)])
def test_wrappers_inside_and_around_a_model_leave_its_names_alone(outside: bool, inside: bool) -> None:
    """Of the whole model and of a module in it: names with a wrapper would be other tensors than without."""
    plain, wrapped = Counted(False), Counted(inside)
    model = checkpoint_wrapper(wrapped) if outside else wrapped
    assert [n for n, _ in parameters(model)] == [n for n, _ in parameters(plain)] == ["inner.1.weight"]
    assert [n for n, _ in buffers(model)] == [n for n, _ in buffers(plain)]


def test_fully_sharded_data_parallel_leaves_names_alone() -> None:
    """Without a process group it cannot be made, but it holds its module so."""
    wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper._fsdp_wrapped_module = Counted(False)
    model = nn.ModuleDict({"part": wrapper})
    assert [n for n, _ in parameters(model)] == ["part.inner.1.weight"]
