"""A model that is run for real: which numbers it has, and what is changed in the libraries for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from orchestrator.capture import Definition
from orchestrator.capture.group import process_group
from orchestrator.capture.realstep import RealStep, premultiplied


@pytest.fixture(autouse=True)
def _dtype_restored() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def definition(build: Any, parallelize: Any = None) -> Definition:
    return Definition(
        name="real",
        mesh={"dp": 1},
        build=build,
        parallelize=parallelize or (lambda model, mesh: model),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=lambda model, optimizer, batch: {"y": model.weight.sum()},
        batch={},
    )


class Table(nn.Module):
    def __init__(self, fill: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8, 8), fill))
        self.register_buffer("angles", torch.arange(4.0))


@pytest.mark.parametrize("fill", [float("nan"), 1e30, 0.0, 1.0])
@pytest.mark.parametrize("wide", [True, False])
def test_parameters_are_moderate_and_all_different_and_buffers_as_they_were_made(
    fill: float, wide: bool
) -> None:
    """Zeros, ones and what memory happens to hold would hide mistakes; a table of angles is no weight."""
    states = RealStep(definition(lambda: Table(fill)), None, wide, 3).warm_up({})
    weight = states["params.weight"]
    assert np.isfinite(weight).all() and np.abs(weight).max() < 5 and len(np.unique(weight)) == 64
    np.testing.assert_array_equal(states["buffers.angles"], np.arange(4.0))


def test_a_policy_of_mixed_precision_is_none_in_a_real_run() -> None:
    """A plan has no rounding: a run in bfloat16 could be compared with it in two digits only."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def parallelize(model: Any, mesh: Any) -> Any:
        return fully_shard(model, mesh=mesh, mp_policy=policy)

    with process_group(0, 1):
        mesh = dist.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
        step = RealStep(definition(lambda: Table(1.0), parallelize), mesh, True, 0)
        state = step._model._get_fsdp_state()  # type: ignore[operator]
        groups = [g.mp_policy.param_dtype for g in state._fsdp_param_groups]
        assert (state._mp_policy.param_dtype, groups) == (None, [None])


@pytest.mark.parametrize("call", ["all_reduce", "reduce", "reduce_scatter_tensor"])
def test_a_factor_before_a_sum_is_a_product_where_gloo_has_none(call: str) -> None:
    """Outside, gloo says that it cannot; and afterwards it cannot again."""
    factor = dist.ReduceOp.PREMUL_SUM(0.5)  # type: ignore[operator]
    given, out = torch.full((2,), 3.0), torch.zeros(2)
    calls: dict[str, Any] = {
        "all_reduce": lambda: dist.all_reduce(given, factor),
        "reduce": lambda: dist.reduce(given, 0, factor),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(out, given, factor),
    }
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with premultiplied():
            calls[call]()
        result = out if call == "reduce_scatter_tensor" else given
        assert result.tolist() == [1.5, 1.5]
        with pytest.raises((RuntimeError, ValueError)):
            calls[call]()
    finally:
        dist.destroy_process_group()
