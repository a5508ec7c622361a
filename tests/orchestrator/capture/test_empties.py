"""Shards of ranks that own no row: a value head of one row is on the first rank only."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import LayoutError
from orchestrator.capture.geometry import Geometry
from orchestrator.capture.lowering.empties import padded, without_empties
from orchestrator.capture.recorder import Node, TensorRef
from orchestrator.capture.tracing import trace
from orchestrator.emit import provable


class Critic(nn.Module):
    """Rows by four ranks: two each, two, two and one on the third, one on the first."""

    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        self.body, self.middle, self.value = nn.Linear(3, 8), nn.Linear(8, 5), nn.Linear(5, rows)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(torch.tanh(self.middle(torch.tanh(self.body(x))))).sum(-1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def definition(ranks: int, summed: bool = False, rows: int = 1) -> Definition:
    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        fully_shard(model, mesh=mesh)
        if summed:
            model.set_gradient_divide_factor(1.0)
        return model

    return Definition(
        name="critic",
        mesh={"dp": ranks},
        build=lambda: Critic(rows),
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        batch={"x": Batch((4, 3), shard={"dp": 0}), "y": Batch((4,), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


@pytest.mark.slow
def test_a_row_that_few_ranks_own_is_proved_and_a_wrong_gradient_of_it_is_not() -> None:
    plan = capture(definition(4), jobs=1)
    held = {c.name: {n for n in c.program.inputs if n.endswith("value.weight")} for c in plan.classes}
    assert {"params.value.weight", "opt.exp_avg.value.weight"} <= held["c0"]
    assert held["c1"] == {"opt.step.value.weight"}  # a number that each rank counts, whatever it owns
    assert provable(plan)
    assert not provable(capture(definition(2, summed=True), jobs=1))


def test_a_model_without_elements_is_refused() -> None:
    with pytest.raises(LayoutError, match="has no elements"):
        trace(definition(2, rows=0), None)


def ref(*size: int, storage: int = 1) -> TensorRef:
    return TensorRef(storage, "f32", Geometry.contiguous(size))


class Driver:
    """What is written and allocated."""

    def __init__(self) -> None:
        self.written: list[tuple[TensorRef, object]] = []
        self.allocated: list[int] = []
        self.builder = self.memory = self

    def constant(self, value: float, type_: object) -> tuple[float, str]:
        return value, str(type_)

    def write(self, ref: TensorRef, value: object) -> None:
        self.written.append((ref, value))

    def knows(self, storage: int) -> bool:
        return storage == 9

    def allocate(self, storage: int, dtype: str, geometry: Geometry) -> None:
        self.allocated.append(geometry.size[0])


def node(op: str, args: tuple[object, ...], outs: object, writes: tuple[TensorRef, ...] = ()) -> Node:
    return Node(op, args, {}, outs, writes, None)


@pytest.mark.parametrize(
    ("given", "over", "zeros"),
    [
        (node("aten.mul.Tensor", (ref(0, 5), 2), ref(0, 5)), True, 0),
        (node("aten.add_.Tensor", (ref(0),), ref(0), (ref(0),)), True, 0),
        (node("aten.linalg_vector_norm.default", (ref(0, 5),), ref()), True, 1),
        (node("aten.sum.dim_IntList", (ref(0, 5), [0]), ref(5)), True, 1),
        (node("aten.mean.default", (ref(0, 5),), ref()), False, 0),
        (node("aten.sum.default", (ref(2, 5),), ref()), False, 0),
        (node("dist.all_reduce", ([ref(0)], []), None, (ref(0),)), False, 0),
    ],
)
def test_of_nothing_nothing_is_made_or_a_sum_of_zero(given: Node, over: bool, zeros: int) -> None:
    driver = Driver()
    left, done = without_empties(driver, given)
    assert (left, done, len(driver.written)) == (given, over, zeros)
    assert all(value[0] == 0.0 for _, value in driver.written)  # type: ignore[index]


def test_what_has_no_elements_is_no_part_of_a_concatenation() -> None:
    left, done = without_empties(Driver(), node("aten.cat.default", ([ref(0), ref(3), ref(0)], 0), ref(3)))
    assert not done and left.args == ([ref(3)], 0)


def test_what_lies_behind_no_elements_is_memory_that_nothing_has_written() -> None:
    driver = Driver()
    padded(driver, ref(0, 5), torch.empty(5)[:0])
    padded(driver, ref(0, 5), torch.empty(0))
    padded(driver, ref(0, 5, storage=9), torch.empty(5)[:0])  # another state has told of it
    assert driver.allocated == [5]
