"""Layouts of a rank's tensors: of DTensors by their placements, of plain ones as they are declared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

from certificates.plan.plan import Mesh
from orchestrator.capture import Batch, Definition
from orchestrator.capture.errors import LayoutError
from orchestrator.capture.layouts import Layout, _dtensor_layout, axes_of, layout_of, padded_shape
from orchestrator.capture.recorder import reference


def declared(**layouts: dict[str, int]) -> Definition:
    return Definition(
        name="two",
        mesh={"dp": 2, "tp": 2},
        build=lambda: nn.Linear(4, 4),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=lambda model, optimizer, batch: {},
        batch={"x": Batch((4, 4))},
        layouts=layouts,
    )


def test_states_of_the_optimizer_follow_their_parameter() -> None:
    layout = Layout({}, (), (4,), "w")
    named = {n: layout.source(n) for n in ("params.w", "buffers.w", "grads.w", "opt.exp_avg.w")}
    assert named == {n: n if n[0] in "pb" else "params.w" for n in named}


def test_a_plain_tensor_lies_as_it_is_declared_major_axis_first() -> None:
    definition = declared(w={"tp": 0, "dp": 0}, b={})
    w = layout_of(definition, "opt.exp_avg.w", "w", torch.zeros(2, 4))
    assert (w.shards, w.order, w.local) == ({"tp": 0, "dp": 0}, ("tp", "dp"), (2, 4))
    b, unknown = (layout_of(definition, f"params.{n}", n, torch.zeros(4)) for n in ("b", "c"))
    assert (b.shards, b.order) == ({}, ()) and (unknown.shards, unknown.order) == (None, ())
    assert not w.traced


def placed(**placements: Any) -> Any:
    """A DTensor on a mesh of 2 x 1 x 3 x 2 ranks, as far as its layout is asked for."""
    sizes = {"dp": 2, "one": 1, "cp": 3, "tp": 2}

    class Mesh:
        mesh_dim_names, shape = tuple(sizes), tuple(sizes.values())

    given = [placements.get(axis, Replicate()) for axis in sizes]
    return SimpleNamespace(device_mesh=Mesh(), placements=given)


def read(tensor: Any, **parts: tuple[str, ...]) -> tuple[dict[str, int], tuple[str, ...]]:
    """The layout on a mesh whose axes are those of the definition, but for those that have ``parts``."""
    shards, order, summed = _dtensor_layout("params.w", tensor, lambda axis: parts.get(axis, (axis,)))
    assert not summed
    return shards, tuple(axis for unit in order for axis in unit)


def test_shards_of_one_dimension_are_read_from_major_to_minor() -> None:
    """A strided shard, as FSDP makes of what tensor parallelism has cut, is minor to what it was cut over."""
    found = {
        order: read(placed(**placements))
        for order, placements in {
            (): {},
            ("dp", "tp"): {"dp": Shard(0), "tp": Shard(0)},
            ("tp", "dp"): {"dp": _StridedShard(0, split_factor=2), "tp": Shard(0)},
            ("cp", "tp", "dp"): {
                "dp": _StridedShard(0, split_factor=6), "cp": Shard(0), "tp": Shard(0),
            },
            ("cp", "dp", "tp"): {
                "dp": _StridedShard(0, split_factor=3), "cp": Shard(0), "tp": Shard(0),
            },
        }.items()
    }  # fmt: skip
    assert {order: seen for order, (_, seen) in found.items()} == {order: order for order in found}
    assert all(shards == dict.fromkeys(order, 0) for order, (shards, _) in found.items())
    apart = read(placed(dp=Shard(1), tp=Shard(0)))
    assert apart[0] == {"dp": 1, "tp": 0}


def test_a_shard_over_an_axis_of_one_rank_is_the_whole_tensor() -> None:
    """Such an axis may be no axis of the plan's mesh, as where FSDP wraps a stage that has one rank."""
    assert read(placed(one=Shard(0))) == ({}, ())
    cut = placed(dp=_StridedShard(0, split_factor=2), one=_StridedShard(0, split_factor=2), tp=Shard(0))
    assert read(cut) == ({"dp": 0, "tp": 0}, ("tp", "dp"))


def test_an_axis_of_the_jobs_mesh_may_be_several_of_the_definitions() -> None:
    """As FSDP's is where expert parallelism cuts the same ranks in another way."""
    parts = {"dp": ("efsdp", "ep")}
    both = dict.fromkeys(("efsdp", "ep", "tp"), 0)
    assert read(placed(dp=Shard(0), tp=Shard(0)), **parts) == (both, ("efsdp", "ep", "tp"))
    strided = placed(dp=_StridedShard(0, split_factor=2), tp=Shard(0))
    assert read(strided, **parts) == (both, ("tp", "efsdp", "ep"))
    apart = _dtensor_layout("params.w", strided, lambda axis: parts.get(axis, (axis,)))
    assert apart[1] == (("tp",), ("efsdp", "ep")), "they cut at once, which rows that are left over show"
    with pytest.raises(LayoutError, match="an axis 'dp' whose ranks follow no axes") as caught:
        read(placed(dp=Shard(0)), dp=())
    assert caught.value.tensor == "params.w"
    assert read(placed(tp=Shard(0)), dp=()) == ({"tp": 0}, ("tp",))


def test_summands_are_told_apart_from_shards() -> None:
    """As counts of tokens by expert are, where ranks count their own."""
    tensor = placed(dp=Partial(), one=Partial(), tp=Shard(0))
    found = _dtensor_layout("w", tensor, lambda axis: ("a", "b") if axis == "dp" else (axis,))
    assert found == ({"tp": 0}, (("tp",),), ("a", "b"))
    assert not Layout(found[0], ("tp",), (4,), "w", summed=found[2]).traced


def test_axes_are_told_by_their_ranks_in_order() -> None:
    mesh = Mesh({"a": 2, "one": 1, "b": 2, "c": 2})
    known = {(1, 5): ("a",), (4, 5): ("c",), (1, 3, 5, 7): ("a", "b"), (1, 5, 3, 7): ("b", "a")}
    assert {ranks: axes_of(mesh, 5, ranks) for ranks in known if 5 in ranks} == known
    assert axes_of(mesh, 5, (5, 1)) == axes_of(mesh, 5, (2, 5)) == axes_of(mesh, 5, (0, 4)) == ()
    assert axes_of(mesh, None, (0, 4)) == ()


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ({"dp": _StridedShard(0, split_factor=2)}, "over no matching axes"),
        ({"dp": _StridedShard(0, split_factor=2), "tp": Shard(1)}, "over no matching axes"),
        ({"dp": _StridedShard(0, split_factor=4), "tp": Shard(0)}, "over no matching axes"),
        ({"dp": _StridedShard(0, split_factor=3), "tp": Shard(0)}, "splits an axis"),
        ({"tp": Partial("avg")}, "of a state tensor"),
        ({"one": Partial("max")}, "of a state tensor"),
    ],
)
def test_placements_that_are_no_layout_are_refused(placements: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        read(placed(**placements))
    assert caught.value.tensor == "params.w"


def test_only_dense_rows_at_the_start_of_a_longer_storage_are_padded() -> None:
    storage = torch.zeros(4, 3)

    def shape(view: torch.Tensor) -> tuple[int, ...] | None:
        return padded_shape(view, reference(view))

    assert shape(storage[:3]) == (4, 3)
    assert shape(storage) is None
    assert shape(storage[1:]) is None
    assert shape(storage[:, :2]) is None
    assert shape(storage.view(-1)[:9].view(3, 3)) == (4, 3)
    assert shape(storage.view(-1)[:10].view(2, 5)) is None
