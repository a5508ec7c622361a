"""Whole captures that take a second: a layer cut over two ranks, in numbers and relations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from certificates.plan.plan import Plan
from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import CaptureError, DefinitionError, LayoutError
from orchestrator.evaluating import interpreter


class Layer(nn.Module):
    def __init__(self, w: Tensor, b: Tensor, count: Tensor) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(w), nn.Parameter(b)
        self.register_buffer("count", count)


def build() -> nn.Module:
    return Layer(torch.zeros(6, 4), torch.zeros(4), torch.zeros(()))


def cut(model: Any, mesh: DeviceMesh) -> nn.Module:
    """Rows of ``w`` over tp; the bias is whole everywhere."""
    rows = model.w.detach().chunk(2)[mesh.get_local_rank("tp")]
    return Layer(rows.clone(), model.b.detach().clone(), model.count)


def finish(model: Any, optimizer: Any, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model.count.add_(1)
    return {"loss": loss}


def alone(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    y = batch["x"] @ model.w + model.b
    return finish(model, optimizer, y.square().sum())


def together(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    rank = dist.get_rank()
    y = batch["x"][:, 3 * rank : 3 * rank + 3] @ model.w
    total = y.detach().clone()
    dist.all_reduce(total)
    y = y + (total - y.detach()) + model.b
    return finish(model, optimizer, y.square().sum())


def definition(**changes: Any) -> Definition:
    base = Definition(
        name="layer",
        mesh={"tp": 2},
        build=build,
        parallelize=cut,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        step=alone,
        parallel_step=together,
        batch={"x": Batch((5, 6))},
    )
    return dataclasses.replace(base, **changes)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return capture(definition(), jobs=1)


def test_the_plan_computes_what_the_specification_does(plan: Plan) -> None:
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    assert interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks, 1e-9) == []


def test_what_is_cut_and_what_is_whole_is_seen(plan: Plan) -> None:
    """The layouts are not declared: parameter and momentum are cut in rows of three, the bias is whole."""
    pieces = {r.spec: [(p.cls, p.sizes, p.spec) for p in r.pieces] for r in plan.inputs}
    assert {n for n in pieces if n.endswith(".w")} == {"params.w", "opt.momentum_buffer.w"}
    for name in ("params.w", "opt.momentum_buffer.w"):
        rows = {
            rank: piece[2][0].evaluate({"tp": rank, "z0": 0, "z1": 0})
            for piece in pieces[name]
            for rank in range(2)
            if dict(plan.classes[[c.name for c in plan.classes].index(piece[0])].box)["tp"][0] <= rank
            and rank < dict(plan.classes[[c.name for c in plan.classes].index(piece[0])].box)["tp"][1]
        }
        assert rows == {0: 0, 1: 3}, name
        assert {p[1] for p in pieces[name]} == {(3, 4)}
    assert {p[1] for p in pieces["params.b"]} == {(4,)}


def test_every_state_is_an_input_and_an_output(plan: Plan) -> None:
    states = {"params.w", "params.b", "opt.momentum_buffer.w", "opt.momentum_buffer.b", "buffers.count"}
    for program in (plan.specification, *(c.program for c in plan.classes)):
        assert states <= set(program.inputs) and states | {"loss"} == set(program.outputs)


def test_the_plan_tells_where_it_comes_from(plan: Plan) -> None:
    assert plan.provenance["traced_ranks"] == ["0", "1"]
    assert any(s.endswith("test_small_capture.py") for s in plan.sources)
    assert all(op.loc is not None for op in plan.specification.ops if op.name == "dot_general")


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"layouts": {"w": {"tp": 1}}}, LayoutError, "where its layout implies"),
        ({"layouts": {"w": {}}}, LayoutError, "layout implies"),
        ({"mean_over": {"nothing": ("tp",)}}, DefinitionError, "which the step does not return"),
    ],
    ids=["another dimension", "not cut", "no such result"],
)
def test_what_contradicts_the_trace_is_refused(
    changes: dict[str, Any], kind: type[CaptureError], message: str
) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        capture(definition(**changes), jobs=1)
    assert any(isinstance(p, kind) for p in caught.value.problems())


def test_a_result_that_only_ranks_return_or_only_the_single_device_is_refused() -> None:
    def more(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return together(model, optimizer, batch) | {"extra": batch["x"].sum()}

    def less(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        together(model, optimizer, batch)
        return {}

    with pytest.raises(CaptureError, match="extra"):
        capture(definition(parallel_step=more), jobs=1)
    with pytest.raises(DefinitionError, match="does not return it, the single-device step does"):
        capture(definition(parallel_step=less), jobs=1)
