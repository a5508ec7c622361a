"""One trace: the specification runs alone, a rank in its place of the mesh, and nothing is read unwritten."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import CaptureError, ClosureError, DefinitionError
from orchestrator.capture.tracing import local_shape, trace


def definition(loss: Any, **changes: Any) -> Definition:
    """Data parallel over two ranks; ``loss(model, batch)`` is differentiated."""

    def step(model: nn.Module, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        total = loss(model, batch)
        total.backward()
        if dist.is_initialized():
            for p in model.parameters():
                if p.requires_grad:
                    dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    rows = Batch((4, 3), shard={"dp": 0})
    fields: dict[str, Any] = {
        "name": "alone",
        "mesh": {"dp": 2},
        "build": lambda: nn.Linear(3, 3, bias=False),
        "parallelize": lambda model, mesh: model,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "step": step,
        "batch": {"x": rows, "y": rows},
        "layouts": {"weight": {}},
        "mean_over": {"loss": ("dp",)},
    }
    return Definition(**fields | changes)


def error(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def by_world_size(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return error(model, batch) / dist.get_world_size()


def by_rank(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return error(model, batch) * (1 + dist.get_rank())


def reduced(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    loss = error(model, batch)
    dist.all_reduce(loss.detach())
    return loss


@pytest.mark.parametrize("loss", [by_world_size, by_rank, reduced])
def test_the_single_device_has_no_process_group(loss: Any) -> None:
    """``loss / get_world_size()`` used to divide on both sides."""
    with pytest.raises(ValueError, match="process group has not been initialized"):
        trace(definition(loss), None)


@pytest.mark.slow
def test_the_refusal_says_so_in_words_and_names_the_line() -> None:
    message = r"there is no process group here: a single device has none[\s\S]*\.py:\d+ in by_world_size"
    with pytest.raises(CaptureError, match=message):
        capture(definition(by_world_size), jobs=1)


@pytest.mark.slow
def test_a_loss_divided_by_the_world_size_of_the_environment_is_divided_on_the_ranks_only() -> None:
    def loss(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        return error(model, batch) * (13 * int(os.environ.get("WORLD_SIZE", "1")))

    plan = capture(definition(loss), jobs=1)
    scales = [[op.attrs.get("value") for op in p.ops] for p in (plan.classes[0].program, plan.specification)]
    assert "26" in scales[0] and "26" not in scales[1] and "13" in scales[1]


def test_uninitialised_memory_of_the_single_device_is_refused() -> None:
    """The plan may hold other garbage: equal names used to make the two equal."""

    def loss(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        noise = torch.empty(4, 3)
        noise[:2] = 0
        return error(model, {"x": batch["x"] + noise, "y": batch["y"]})

    message = r"memory that nothing has written[\s\S]*test_tracing\.py:\d+ in loss"
    with pytest.raises(ClosureError, match=message):
        trace(definition(loss), None)


def test_uninitialised_memory_that_is_written_before_it_is_read_is_none() -> None:
    def loss(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        doubled = torch.empty(4, 3)
        torch.mul(batch["x"], 2, out=doubled)
        return error(model, {"x": doubled, "y": batch["y"]})

    assert not any(n.startswith("uninit") for n in trace(definition(loss), None).program.inputs)


@pytest.mark.slow
def test_roles_are_declared() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3, bias=False)
            self.register_buffer("scale", torch.ones(3))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return super().forward(x * self.scale)

    plan = capture(
        definition(error, build=Scaled, optimizer=lambda params: torch.optim.AdamW(params)), jobs=1
    )
    assert plan.given == ("batch.x", "batch.y", "hyper.lr")
    assert plan.constants == ("buffers.scale",) and "buffers.calls" in plan.specification.outputs


def rows_of(**batch: Batch) -> Definition:
    return definition(error, mesh={"dp": 2, "cp": 3}, batch=batch)


@pytest.mark.parametrize(
    ("shard", "shape"),
    [({}, (12, 6)), ({"dp": 0}, (6, 6)), ({"dp": 0, "cp": 0}, (2, 6)), ({"dp": 0, "cp": 1}, (6, 2))],
)
def test_a_rank_reads_its_chunk_of_the_batch_and_the_single_device_all_of_it(
    shard: dict[str, int], shape: tuple[int, int]
) -> None:
    given = rows_of(x=Batch((12, 6), shard=shard))
    assert local_shape(given, "x", parallel=True) == shape
    assert local_shape(given, "x", parallel=False) == (12, 6)


@pytest.mark.parametrize("shard", [{"cp": 0}, {"tp": 0}])
def test_rows_that_do_not_divide_or_an_axis_of_no_mesh_are_refused(shard: dict[str, int]) -> None:
    with pytest.raises(DefinitionError, match=r"dimension 0 of .* does not divide over axis") as caught:
        local_shape(rows_of(x=Batch((4, 6), shard=shard)), "x", parallel=True)
    assert caught.value.tensor == "batch.x"


def over(group: str) -> Any:
    """A step that sums its gradients over a group that the model holds."""

    def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        total = error(model, batch)
        total.backward()
        if dist.is_initialized():
            dist.all_reduce(model.weight.grad, group=getattr(model, group))
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    return step


@pytest.mark.parametrize(
    ("ranks", "axes"), [([1, 4], "dp"), ([3, 4, 5], "cp"), ([0, 1, 2, 3, 4, 5], "dp_cp")]
)
def test_a_group_of_ranks_is_told_by_its_mesh_axes(ranks: list[int], axes: str) -> None:
    """Made by the numbers of its ranks alone, as scripts do that have no device mesh."""

    def parallelize(model: Any, mesh: Any) -> Any:
        model.group = dist.new_group(ranks)
        return model

    given = definition(error, mesh={"dp": 2, "cp": 3}, step=over("group"), parallelize=parallelize)
    traced = trace(given, 4)
    (reduce,) = [d for d in traced.program.drafts if d.name == "all_reduce"]
    assert str(reduce.attr("group")).partition(".")[0] == axes and traced.rank == 4


def test_names_that_no_plan_has_are_refused_all_at_once() -> None:
    """A key of a ``ParameterDict`` may be any text."""

    class Keyed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterDict({key: torch.ones(3) for key in ("up-projection", "a b", "fine")})

        def forward(self, x: Tensor) -> Tensor:
            return x * sum(self.scales.values())

    with pytest.raises(CaptureError) as refused:
        trace(definition(lambda model, batch: model(batch["x"]).sum(), build=Keyed), None)
    named = "(tensors params.scales.a b, params.scales.up-projection)"
    assert f"a name in a plan has letters, digits, _ and . only {named}" in str(refused.value)


@pytest.mark.parametrize("resharded", [False, True])
def test_a_frozen_teacher_that_fsdp_leaves_gathered_is_named(resharded: bool) -> None:
    """A root of FSDP2 that has forward passes alone keeps all of its weights: that was no layout at all."""

    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
            self.teacher.requires_grad_(False)

    def distill(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            wanted = model.teacher(batch["x"])
        return F.mse_loss(model.student(batch["x"]), wanted)

    def parallelize(model: Any, mesh: Any) -> nn.Module:
        fully_shard(model.teacher, mesh=mesh, reshard_after_forward=resharded or None)
        return model  # type: ignore[no-any-return]

    made = definition(
        distill,
        build=Distilled,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD([p for p in params if p.requires_grad], lr=0.1),
        layouts={"student.weight": {}},
    )
    if resharded:
        assert "params.teacher.weight" in trace(made, None).program.inputs and capture(made, jobs=1)
        return
    with pytest.raises(CaptureError) as told:
        capture(made, jobs=1)
    assert "params.teacher.weight" in str(told.value) and "as FSDP has gathered it" in str(told.value)
    assert "reshard_after_forward=True" in (told.value.instead or "")
