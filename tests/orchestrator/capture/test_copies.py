"""Copies of tensors, modules and states are in a trace what they are in a job."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from orchestrator.capture.assemble import capture, rank_program
from orchestrator.capture.copies import copied_by_ops
from orchestrator.capture.disguise import disguised
from orchestrator.capture.tracing import trace
from orchestrator.evaluating import interpreter
from trainverify import Kind, verify

from .copying_steps import CHANGES, Averaged, Step, average, averaging, changing, pulled_back

STEPS = {"average": average, "pulled_back": pulled_back} | {name: changing(name) for name in CHANGES}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_copies_computes_what_it_computes_in_a_job(name: str) -> None:
    """What was done to a copy was lost: an exponential average was "a value from outside"."""
    step: Step = STEPS[name]
    program = rank_program(trace(averaging(step), None).program)
    assert {"params.net.weight", "params.ema.weight"} <= set(program.outputs)
    model = Averaged().double()
    x = torch.randn(4, 3, dtype=torch.float64)
    given = {f"params.{n}": p.detach().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    given |= {"batch.x": x.numpy(), "hyper.lr": np.array(0.1)}
    inputs = {name: given[name] for name in program.inputs}
    values = interpreter.evaluate(program, inputs)
    step(model, optimizer, {"x": x})
    for of, parameter in model.named_parameters():
        found = values[program.outputs[f"params.{of}"]]
        np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("alone", "ranks", "kind"),
    [
        ("the_same_memory", "the_same_memory", Kind.PROVED),
        ("the_same_memory", "other_memory", Kind.REFUTED),
        ("other_memory", "average", Kind.PROVED),
        ("pulled_back", "pulled_back", Kind.PROVED),
        ("pulled_back", "average", Kind.REFUTED),
    ],
)
def test_which_memory_a_copy_has_makes_the_difference(alone: str, ranks: str, kind: Kind) -> None:
    plan = capture(averaging(STEPS[alone], STEPS[ranks]), jobs=1)
    assert verify(plan, jobs=1).kind is kind


def test_a_model_may_be_copied_while_it_is_made_parallel() -> None:
    made = averaging(
        average, build=lambda: copy.deepcopy(Averaged()), parallelize=lambda m, _: copy.deepcopy(m)
    )
    assert verify(capture(made, jobs=1), jobs=1).kind is Kind.PROVED


def marked(tensor: Tensor) -> Tensor:
    made: Any = tensor
    made.mark = [1]
    return tensor


def with_gradient() -> Tensor:
    tensor = torch.zeros(3, requires_grad=True)
    tensor.sum().backward()
    return tensor


def views() -> list[Tensor]:
    flat = torch.zeros(12)
    return [flat[2:8].view(2, 3).t(), flat, flat[1::2], torch.zeros(2, 3).t(), flat.view(torch.int32)]


def facts(made: Callable[[], Any], do: Callable[[Any], Any]) -> list[object]:
    """What code can learn of copies, and which memory they share with which tensor."""
    given = made()
    given = given if isinstance(given, list) else [given]
    tensors = [*given, *do(given)]
    grads = [t.grad for t in tensors if t.grad is not None]
    found = [*tensors, *grads]
    places = [t.untyped_storage()._cdata for t in found]
    return [
        [(t.dtype, t.shape, t.stride(), t.storage_offset(), t.requires_grad, t.is_leaf) for t in found],
        [(isinstance(t, nn.Parameter), t._is_view(), getattr(t, "mark", None)) for t in found],
        [places.index(place) for place in places],
        [[a is b for a in found] for b in found],
        [getattr(t, "mark", 0) is getattr(given[0], "mark", 1) for t in found],
        [t.untyped_storage().nbytes() for t in found],
    ]


@pytest.mark.parametrize(
    "do", [copy.deepcopy, lambda ts: [copy.copy(t) for t in ts], lambda ts: copy.copy(ts)]
)
@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.zeros(2, 3),
        lambda: marked(torch.zeros(3)),
        lambda: marked(nn.Parameter(torch.zeros(2, 3).t())),
        lambda: nn.Parameter(torch.zeros(4)[1:], requires_grad=False),
        with_gradient,
        lambda: nn.Parameter(with_gradient().detach()),
        views,
        lambda: [torch.zeros(2)] * 2,
        lambda: torch.zeros(3, 1).expand(3, 4),
        lambda: torch.zeros(0, 3),
        lambda: list(nn.LSTM(2, 2).parameters()),
    ],
)
def test_a_copy_is_what_it_is_in_a_job(made: Callable[[], Any], do: Callable[[Any], Any]) -> None:
    want = facts(made, do)
    with FakeTensorMode(), copied_by_ops(), disguised():
        assert facts(made, do) == want


def test_what_was_computed_is_not_copied_here_either() -> None:
    with FakeTensorMode(), copied_by_ops():
        computed = torch.zeros(3, requires_grad=True) * 2
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(computed)
        copied = copy.copy(computed)
        assert copied.requires_grad and copied.is_leaf


def test_a_copied_parameter_leaves_its_gradient_behind() -> None:
    """As PyTorch has it for real parameters; a copy that kept it would be stepped twice."""
    with FakeTensorMode(), copied_by_ops():
        weight = nn.Parameter(torch.zeros(3))
        weight.sum().backward()
        copied = copy.deepcopy(weight)
    assert weight.grad is not None and copied.grad is None and isinstance(copied, nn.Parameter)


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy])
def test_the_value_of_a_copied_constant_is_forgotten(do: Callable[[Any], Any]) -> None:
    """Nobody would tell a copy's remembered 3 of a write to its memory: `.item()` would still say 3."""
    with FakeTensorMode(), copied_by_ops():
        known, written = torch.tensor(3), torch.zeros((), dtype=torch.int64)
        copied = do(known)
        copied.add_(written)
        with pytest.raises(DataDependentOutputException):
            copied.item()
        if do is copy.copy:
            with pytest.raises(DataDependentOutputException):
                known.item()
