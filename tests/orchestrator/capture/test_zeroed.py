"""Gradients and counters that every step leaves at zero, and finds at zero, are no inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from certificates.plan.types import TensorType
from orchestrator.capture import Batch, Definition
from orchestrator.capture.assemble import capture
from orchestrator.capture.builder import Draft
from orchestrator.capture.errors import CaptureError
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.zeroed import begun_at_zero

REAL = TensorType("f32", (2,))


def step(leaves: str | None, type_: TensorType = REAL) -> RankProgram:
    """Adds to the gradient of ``w``, takes it from ``w``; leaves a constant, the sum (``sum``), or none."""
    drafts = [
        Draft("%0", "add", ("grads.w", "batch.x"), REAL, (), None),
        Draft("%1", "subtract", ("params.w", "%0"), REAL, (), None),
    ]
    outputs = {"params.w": "%1"}
    if leaves == "sum":
        outputs["grads.w"] = "%0"
    elif leaves is not None:
        drafts.append(Draft("%2", "constant", (), type_, (("value", leaves),), None))
        outputs["grads.w"] = "%2"
    inputs = {n: REAL for n in ("params.w", "grads.w", "batch.x")}
    return RankProgram(inputs, tuple(drafts), outputs, ())


def none() -> RankProgram:
    """A step that finds no gradient, and leaves none."""
    ops = (Draft("%0", "subtract", ("params.w", "batch.x"), REAL, (), None),)
    return RankProgram({"params.w": REAL, "batch.x": REAL}, ops, {"params.w": "%0"}, ())


def test_what_is_left_at_zero_is_found_at_zero() -> None:
    programs, names = begun_at_zero(step("0"), [step("0"), step("0")])
    assert names == ("grads.w",)
    for program in programs:
        assert list(program.inputs) == ["params.w", "batch.x"]
        assert [d.name for d in program.drafts] == ["constant", "add", "subtract"], (
            "it is there before it is read"
        )
        assert program.drafts[1].ins == ("%2", "batch.x")
        assert program.outputs == {"params.w": "%1", "grads.w": "%2"}, "that it is left so stays a claim"


def test_an_output_that_is_what_was_found_is_zero_too() -> None:
    """A step that returns the gradient as it was when the step began."""
    program = step("0")
    shown = replace(program, outputs={**program.outputs, "before": "grads.w"})
    (single, _), _ = begun_at_zero(shown, [shown])
    assert single.outputs["before"] == single.outputs["grads.w"] == "%2"


def test_any_program_that_leaves_something_else_has_all_read_it() -> None:
    for other in (step("1"), step("sum"), step(None), step("0", TensorType("f32", (1,)))):
        for programs in ([step("0"), other], [other, step("0")]):
            found, names = begun_at_zero(programs[0], programs[1:])
            assert names == () and found == programs


def test_no_gradient_and_a_gradient_of_zeros_are_one() -> None:
    for single, ranks in ((none(), step("0")), (step("0"), none())):
        (one, other), names = begun_at_zero(single, [ranks])
        assert names == ("grads.w",)
        assert [list(p.outputs) for p in (one, other)] == [["params.w"], ["params.w"]]


def test_other_states_that_are_left_at_zero_may_come_from_a_checkpoint() -> None:
    drafts = (Draft("%0", "constant", (), REAL, (("value", "0"),), None),)
    counter = RankProgram({"buffers.n": REAL}, drafts, {"buffers.n": "%0"}, ())
    assert begun_at_zero(counter, [counter]) == ([counter, counter], ())


def test_a_counter_that_build_makes_of_zeros_is_found_so() -> None:
    drafts = (Draft("%0", "constant", (), REAL, (("value", "0"),), None),)
    counter = RankProgram({"buffers.n": REAL}, drafts, {"buffers.n": "%0"}, ())
    (single, rank), names = begun_at_zero(counter, [counter], {"buffers.n"})
    assert names == ("buffers.n",) and not single.inputs and not rank.inputs
    assert single.outputs == rank.outputs == {"buffers.n": "%0"}


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("n", torch.zeros(3))


def counting(parallelize: Callable[[Any], None]) -> Definition:
    """A step that adds to a counter and to gradients, and leaves both at zero."""

    def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        model.n += batch["x"].sum(0)
        model.inner(batch["x"] * model.n).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        model.n.zero_()
        return {}

    def with_mesh(model: nn.Module, mesh: object) -> nn.Module:
        parallelize(model)
        return model

    return Definition(
        name="counting",
        mesh={"dp": 2},
        build=Counted,
        parallelize=with_mesh,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=step,
        batch={"x": Batch((4, 3))},
    )


def warmed(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def cleared(model: Any) -> None:
    warmed(model)
    model.zero_grad()


def kept_as_it_was(model: Any) -> None:
    model.n = model.n.clone()


@pytest.mark.parametrize("parallelize", [cleared, kept_as_it_was])
def test_what_is_zero_when_the_model_is_parallelized_is_no_input(parallelize: Callable[[Any], None]) -> None:
    plan = capture(counting(parallelize), jobs=1)
    assert "buffers.n is zero before the first step, and each step leaves it at zero" in str(plan.provenance)
    assert not {n for c in plan.classes for n in c.program.inputs if n.startswith(("grads.", "buffers."))}


@pytest.mark.parametrize(
    ("parallelize", "said"),
    [
        (lambda model: model.n.fill_(1.0), "buffers.n"),
        (warmed, "is there before the first step, which adds to it"),
    ],
)
def test_what_parallelize_has_changed_is_not_zero(parallelize: Callable[[Any], None], said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        capture(counting(parallelize), jobs=1)
