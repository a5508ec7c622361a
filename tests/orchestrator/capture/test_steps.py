"""Two consecutive steps: what one leaves the next reads, and both are one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from certificates.plan.types import TensorType
from orchestrator.capture import Batch, Definition
from orchestrator.capture.assemble import rank_program
from orchestrator.capture.builder import Draft
from orchestrator.capture.errors import CaptureError, ClosureError, StateError
from orchestrator.capture.geometry import Geometry
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.processes import survey
from orchestrator.capture.recorder import GroupRef, Node, Recorder, ReduceRef, TensorRef
from orchestrator.capture.states import Snapshot
from orchestrator.capture.steps import Recorded, _differences, _Matching, same
from orchestrator.capture.tracing import trace
from orchestrator.evaluating import interpreter

Results = Mapping[str, Tensor]


class Sgd(torch.optim.Optimizer):
    """Plain descent: enough to see what a step does to its parameters."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p -= self.param_groups[0]["lr"] * p.grad


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Results) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def definition(**changes: Any) -> Definition:
    rows = Batch((4, 3))
    base = Definition(
        name="steps",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3),
        parallelize=lambda model, mesh: model,
        optimizer=Sgd,
        step=plain_step,
        batch={"x": rows, "y": rows},
    )
    return dataclasses.replace(base, **changes)


def runs_like_pytorch(made: Definition, steps: int = 2) -> Mapping[str, Any]:
    """Assert that the captured program computes, step for step, what PyTorch does; return its inputs.

    The state is that of PyTorch after the step that makes what is made lazily.
    """
    traced = trace(made, None).program
    program = rank_program(traced)
    model = made.build().double()
    optimizer = made.optimizer(model.parameters())
    generator = torch.Generator().manual_seed(0)

    def batch() -> dict[str, Tensor]:
        return {
            n: torch.randn(b.shape, generator=generator, dtype=torch.float64) for n, b in made.batch.items()
        }

    def state() -> dict[str, Tensor]:
        names = {p: n for n, p in model.named_parameters()}
        found = {f"params.{n}": p for p, n in names.items()}
        found |= {f"grads.{n}": p.grad for p, n in names.items() if p.grad is not None}
        found |= {f"buffers.{n}": b for n, b in model.named_buffers()}
        for p, entries in optimizer.state.items():
            found |= {f"opt.{key}.{names[p]}": t for key, t in entries.items() if isinstance(t, Tensor)}
        return {n: t.detach().clone() for n, t in found.items()}

    made.step(model, optimizer, batch())
    held = {n: t.numpy() for n, t in state().items() if n in program.inputs}
    for _ in range(steps):
        given = batch()
        inputs = held | {f"batch.{n}": t.numpy() for n, t in given.items()}
        values = interpreter.evaluate(program, inputs)
        got = {n: values[v] for n, v in program.outputs.items()}
        results = {n: t.detach().clone() for n, t in made.step(model, optimizer, given).items()}
        want = results | {n: t for n, t in state().items() if n in program.inputs}
        for name, tensor in want.items():
            np.testing.assert_allclose(
                got.get(name, held.get(name)), tensor.numpy(), rtol=1e-9, atol=1e-12, err_msg=name
            )
        held = {n: got.get(n, value) for n, value in held.items()}
    return program.inputs


def refused(made: Definition, kind: type[CaptureError], message: str) -> None:
    with pytest.raises(kind, match=message):
        trace(made, None)


# --- gradients --------------------------------------------------------------------------------------------


def test_gradients_that_are_never_zeroed_are_states() -> None:
    """A forgotten ``zero_grad`` used to be hidden by a zeroing that capture forced."""

    def forgetful(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    inputs = runs_like_pytorch(definition(step=forgetful), steps=3)
    assert {"grads.weight", "grads.bias"} <= set(inputs)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_gradients_that_are_zeroed_are_no_states(first: bool, to_none: bool) -> None:
    def step(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        if first:
            optimizer.zero_grad(set_to_none=to_none)
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        if not first:
            optimizer.zero_grad(set_to_none=to_none)
        return {"loss": loss}

    inputs = runs_like_pytorch(definition(step=step))
    # Zeros that one step leaves and the next adds to are a state, whose value the claim carries along.
    assert ("grads.weight" in inputs) == (not first and not to_none)


def test_a_momentum_of_gradients_that_are_scaled_instead_of_zeroed() -> None:
    def step(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(0.9)
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    assert "grads.bias" in runs_like_pytorch(definition(step=step), steps=3)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_validation_in_the_step_is_taken_apart_as_a_forward_pass_is(mode: Any) -> None:
    """Under inference mode no dispatch of autograd's takes ``linear`` and others apart."""

    def step(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with mode():
            return {"loss": loss, "after": F.mse_loss(model(batch["x"]), batch["y"])}

    runs_like_pytorch(definition(step=step), steps=3)


# --- states that are rebound ------------------------------------------------------------------------------


class Rebinding(torch.optim.Optimizer):
    """An optimizer as people write them: nothing in place."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            momentum = state.get("momentum", torch.zeros_like(p))
            state["momentum"] = 0.9 * momentum + p.grad
            p.data = p.data - 0.1 * state["momentum"]


def test_parameters_and_optimizer_state_that_are_rebound_are_outputs() -> None:
    assert "opt.momentum.weight" in runs_like_pytorch(definition(optimizer=Rebinding), steps=3)


class Average(nn.Linear):
    """Keeps a running mean by assignment."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x - self.mean)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return y


def test_a_buffer_that_is_rebound_is_an_output() -> None:
    assert "buffers.mean" in runs_like_pytorch(definition(build=Average), steps=3)


def test_swapped_parameters_are_read_through_their_names() -> None:
    def swapping(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        loss = F.mse_loss(model[1](model[0](batch["x"])), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            first = model[0].weight.data
            model[0].weight.data, model[1].weight.data = model[1].weight.data, first
        return {"loss": loss}

    made = definition(build=lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), step=swapping)
    runs_like_pytorch(made, steps=3)


# --- what is no state -------------------------------------------------------------------------------------


def test_a_stashed_tensor_is_refused() -> None:
    stash: dict[str, Tensor] = {}

    def smoothed(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        results = plain_step(model, optimizer, batch)
        before = stash.get("loss", results["loss"])
        stash["loss"] = results["loss"].detach()
        return results | {"smooth": 0.5 * before + 0.5 * results["loss"]}

    refused(definition(step=smoothed), ClosureError, "no parameter, buffer, batch input")


def test_a_counter_in_python_is_refused() -> None:
    class Decaying(Sgd):
        calls = 0

        def step(self, closure: Any = None) -> None:
            self.calls += 1
            self.param_groups[0]["lr"] = 0.1 / self.calls
            super().step()

    refused(
        definition(optimizer=Decaying),
        StateError,
        r"the second step runs constant value=.* at test_steps\.py:\d+ where the first ran constant",
    )


def test_another_branch_in_the_second_step_is_refused() -> None:
    def alternating(turn: list[int]) -> Callable[..., dict[str, Tensor]]:
        def step(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
            turn[0] += 1
            x = batch["x"] * 2 if turn[0] % 2 else torch.tanh(batch["x"])
            return plain_step(model, optimizer, {"x": x, "y": batch["y"]})

        return step

    message = r"the second step runs .* at test_steps\.py:\d+ where the first ran tanh at test_steps\.py:\d+"
    refused(definition(step=alternating([0])), StateError, message)


def test_states_that_do_not_settle_are_named() -> None:
    def growing(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        state = optimizer.state[model.weight]
        state.setdefault("history", []).append(model.weight.detach().clone())
        return plain_step(model, optimizer, batch)

    message = r"exists only after a step.*does not settle in 6 steps \(tensor opt\.history\.\d\.weight"
    refused(definition(step=growing), StateError, message)


def test_optimizer_state_of_a_foreign_tensor_is_refused() -> None:
    def replacing(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        results = plain_step(model, optimizer, batch)
        optimizer.state[model.weight]["old"] = torch.zeros(())
        model.weight = nn.Parameter(model.weight.detach().clone())
        return results

    refused(definition(step=replacing), StateError, "keeps opt.old for a tensor of shape .* no parameter")


def test_a_batch_is_new_in_every_step() -> None:
    def remembering(seen: list[Tensor]) -> Callable[..., dict[str, Tensor]]:
        def step(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
            seen.append(batch["x"])
            return plain_step(model, optimizer, {"x": seen[-2] if seen[1:] else seen[-1], "y": batch["y"]})

        return step

    refused(definition(step=remembering([])), ClosureError, "no parameter, buffer, batch input")


def test_a_state_that_comes_late_is_refused_though_the_step_before_had_none() -> None:
    def late(calls: list[int]) -> Callable[..., dict[str, Tensor]]:
        def step(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
            calls.append(1)
            if len(calls) == 3:
                optimizer.state[model.weight]["late"] = torch.zeros(())
            return plain_step(model, optimizer, batch)

        return step

    refused(definition(step=late([])), StateError, r"exists only after a step.*opt\.late\.weight")


# --- are two recorded steps one program? -------------------------------------------------------------------


def summed(storage: int, work: int, reduction: str = "SUM", writes: int | None = None) -> Node:
    """A recorded collective on a tensor of its own."""
    geometry = Geometry.contiguous((4,))
    ref, out = (TensorRef(s, "f32", geometry) for s in (storage, storage if writes is None else writes))
    arguments = ([out], [ref], GroupRef((0, 1)), ReduceRef(reduction))
    return Node("dist.all_reduce", arguments, {"work": work}, None, (out,), None)


def waited_for(work: int) -> Node:
    return Node("dist.wait", (work,), {}, None, (), None)


def scaled(storage: int, factor: object) -> Node:
    ref = TensorRef(storage, "f32", Geometry.contiguous((4,)))
    return Node("aten.mul_.Tensor", (ref, factor), {}, ref, (ref,), None)


def alike(first: list[Node], second: list[Node]) -> bool:
    matching = _Matching()
    return all(map(matching.nodes, first, second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([summed(1, 5), waited_for(5)], [summed(7, 9), waited_for(9)]),
        ([summed(1, 5), summed(2, 6), scaled(1, 2.0)], [summed(2, 8), summed(1, 3), scaled(2, 2.0)]),
        ([scaled(1, 2.0), scaled(1, 2.0)], [scaled(3, 2.0), scaled(3, 2.0)]),
        ([scaled(1, {"a": 1})], [scaled(3, {"a": 1})]),
    ],
)
def test_steps_that_differ_in_storages_and_works_only_are_one_program(first: Any, second: Any) -> None:
    assert alike(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([summed(1, 5)], [summed(1, 5, "MAX")]),
        ([summed(1, 5), summed(2, 6), waited_for(5)], [summed(1, 5), summed(2, 6), waited_for(6)]),
        ([summed(1, 5), summed(2, 6)], [summed(1, 5), summed(1, 6)]),
        ([summed(1, 5), summed(1, 6)], [summed(1, 5), summed(2, 6)]),
        ([summed(1, 5, writes=2)], [summed(1, 5)]),
        ([scaled(1, 2.0)], [scaled(1, 3.0)]),
        ([scaled(1, 1)], [scaled(1, True)]),
        ([scaled(1, {"a": 1})], [scaled(1, [1])]),
        ([scaled(1, {"a": 1})], [scaled(1, {"b": 1})]),
        ([scaled(1, 2.0)], [waited_for(3)]),
    ],
)
def test_steps_that_differ_in_anything_else_are_two(first: Any, second: Any) -> None:
    """Such as in the collective that is waited for, or in two tensors that are one."""
    assert not alike(first, second)


def test_two_steps_are_the_same_in_states_batch_ops_and_results() -> None:
    """In all of them: one that is alike does not make up for another."""
    row, column = (TensorRef(1, "f32", Geometry.contiguous(size)) for size in ((1, 4), (4, 1)))

    def step(factor: float = 2.0, batch: TensorRef = row, result: TensorRef = row) -> Recorded:
        recorder = Recorder([scaled(1, factor)])
        return Recorded(recorder, Snapshot({}), Snapshot({}), {"x": batch}, {"loss": result})

    assert same(step(), step()) and same(step(batch=column), step(batch=column))
    for other in (step(3.0), step(batch=column), step(result=column)):
        assert not same(step(), other)


def test_a_tensor_from_outside_is_told_by_its_type() -> None:
    """It has no name in a plan."""
    stash: list[Tensor] = []

    def step(model: Any, optimizer: Any, batch: Results) -> dict[str, Tensor]:
        stash.append(batch["x"] * 2)
        return plain_step(model, optimizer, {"x": stash[-2] if stash[1:] else stash[-1], "y": batch["y"]})

    refused(definition(step=step), ClosureError, r"\(tensor f32\[4,3\]")


# --- two programs, whatever the order of their ops ----------------------------------------------------------


def programs(*drafts: tuple[str, str, tuple[str, ...]]) -> RankProgram:
    """Ops on one tensor ``x``: result, name, operands; ``%r`` is the only output."""
    kind = TensorType("f32", (2,))
    made = []
    for out, name, ins in drafts:
        attrs: Any = (("value", "0"),) if name == "constant" else ()
        made.append(Draft(out, name, ins, kind, attrs, None))
    return RankProgram({"x": kind}, tuple(made), {"r": "%r"}, (), frozenset(), frozenset())


SPURIOUS = (("%a", "constant", ()), ("%b", "exp", ("x",)), ("%r", "add", ("%b", "%a")))
LATER = (("%b", "exp", ("x",)), ("%a", "constant", ()), ("%r", "add", ("%b", "%a")))
TURNED = (("%b", "exp", ("x",)), ("%a", "constant", ()), ("%r", "add", ("%a", "%b")))
MEETING = (("%a", "all_reduce", ("x",)), ("%b", "all_gather", ("x",)), ("%r", "add", ("%a", "%b")))
MET_OTHERWISE = (("%b", "all_gather", ("x",)), ("%a", "all_reduce", ("x",)), ("%r", "add", ("%a", "%b")))


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        (SPURIOUS, LATER, False),
        (SPURIOUS, TURNED, True),
        (MEETING, MEETING, False),
        (MEETING, MET_OTHERWISE, True),
    ],
)
def test_an_op_may_stand_elsewhere_but_no_rendezvous(first: Any, second: Any, differ: bool) -> None:
    assert bool(list(_differences(programs(*first), programs(*second)))) == differ


def test_dtensors_rule_of_an_op_is_worked_out_in_the_first_recorded_step() -> None:
    """Zeroing a gradient in place runs there for the first time: on a tensor of the whole shape, too."""

    def parallelize(model: nn.Module, mesh: Any) -> nn.Module:
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Results) -> dict[str, Tensor]:
        optimizer.zero_grad(set_to_none=False)
        loss = F.relu(model(batch["x"])).sum()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    made = Definition(
        name="columns",
        mesh={"tp": 2},
        build=lambda: nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 5)),
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        step=step,
        batch={"x": Batch((12, 5))},
    )
    assert survey(made, [0], 1) == []
