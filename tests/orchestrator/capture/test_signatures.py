"""What an op writes and what it only names anew."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.signatures import foreign, signature

aten = torch.ops.aten


@pytest.mark.parametrize(
    "op",
    [
        *(aten.view.default, aten.unsqueeze_.default, aten.t_.default, aten.unsafe_split.Tensor),
        aten.set_.source_Tensor,
    ],
)
def test_views_are_views_whatever_their_schema_says(op) -> None:
    """``unsqueeze_`` changes what a tensor names and no element, ``unsafe_split`` does not say what it is."""
    said = signature(op)
    assert said.view and not said.writes


@pytest.mark.parametrize("op", [aten.resize_.default, aten.set_.source_Storage, aten.add_.Tensor])
def test_what_changes_memory_is_a_write(op) -> None:
    assert not signature(op).view and signature(op).writes == ((0, "self"),)


def test_batch_norm_writes_its_running_statistics_though_its_schema_is_silent() -> None:
    assert [name for _, name in signature(aten.native_batch_norm.default).writes] == [
        "running_mean",
        "running_var",
    ]


def test_profiler_ops_are_silent_and_functional_collectives_name_their_group() -> None:
    assert signature(torch.ops.prim.device.default).silent
    assert signature(torch.ops._c10d_functional.all_reduce.default).group == (2, "group_name")


def test_ops_that_pytorch_does_not_define_are_foreign() -> None:
    library = torch.library.Library("aten", "FRAGMENT")
    library.define("of_nobody(Tensor x) -> Tensor")
    assert foreign(str(torch.ops.aten.of_nobody.default)) and foreign("torchvision.nms.default")
    known = ("aten.add.Tensor", "complex.aten.mul.Tensor", "aten.exp.default", "dist.all_reduce")
    assert not any(map(foreign, (*known, "_dtensor.shard_dim_alltoall.default", "storage.resize")))
