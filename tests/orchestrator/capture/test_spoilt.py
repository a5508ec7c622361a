"""Gradients after a step of an optimizer: what PyTorch's formula for many parameters at once does to them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition
from orchestrator.capture.errors import CaptureError
from orchestrator.capture.spoilt import _writes
from orchestrator.capture.tracing import trace


def made(read: str, **options: Any) -> Definition:
    """A step that reads the gradient's sum before its optimizer's step, after it, or when it is zero."""

    def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        model(batch["x"]).square().mean().backward()
        results = {"before": model.weight.grad.sum()} if read == "before" else {}
        optimizer.step()
        if read == "after":
            results["after"] = model.weight.grad.sum()
        optimizer.zero_grad(set_to_none=read != "zero")
        if read == "zero":
            results["zero"] = model.weight.grad.sum()
        return results

    return Definition(
        name="spoilt",
        mesh={},
        build=lambda: nn.Linear(3, 3, bias=False),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, **options),
        step=step,
        batch={"x": Batch((4, 3))},
    )


@pytest.mark.parametrize("foreach", [None, True])
def test_a_gradient_that_nesterov_may_have_added_to_is_not_read(foreach: bool | None) -> None:
    with pytest.raises(CaptureError, match=r"may have written to it.*foreach") as raised:
        trace(made("after", nesterov=True, foreach=foreach), None)
    assert "foreach=False" in str(raised.value)


@pytest.mark.parametrize(
    ("read", "options"),
    [
        ("before", {"nesterov": True}),
        ("zero", {"nesterov": True}),
        ("nothing", {"nesterov": True}),
        ("after", {"nesterov": True, "foreach": False}),
        ("after", {"nesterov": True, "weight_decay": 0.1}),  # adds to a sum of its own
        ("after", {}),
    ],
)
def test_what_no_formula_writes_to_is_read(read: str, options: dict[str, Any]) -> None:
    program = trace(made(read, **options), None).program
    assert read == "nothing" or read in program.outputs


OPTIMIZERS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("SGD", "sgd", {"momentum": 0.9}, False),
    ("SGD", "sgd", {"momentum": 0.9, "nesterov": True}, True),
    ("Adam", "adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}, False),
    ("AdamW", "adam", {}, False),
    ("Adamax", "adamax", {"weight_decay": 0.1}, False),
    ("NAdam", "nadam", {}, False),
    ("RAdam", "radam", {}, False),
    ("RMSprop", "rmsprop", {"momentum": 0.1, "centered": True}, False),
    ("Adagrad", "adagrad", {"weight_decay": 0.1, "maximize": True}, False),
    ("Adadelta", "adadelta", {}, False),
    ("ASGD", "asgd", {}, False),
    ("Rprop", "rprop", {}, False),
]


@pytest.mark.parametrize(("name", "module", "options", "writes"), OPTIMIZERS)
def test_pytorch_is_asked_what_its_formulas_write(
    name: str, module: str, options: dict[str, Any], writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are called in a step; and it is what they do to a gradient."""
    scope = sys.modules[f"torch.optim.{module}"]
    formula = getattr(scope, f"_single_tensor_{module}")
    found: list[bool] = []

    def asked(*args: Any, **kwargs: Any) -> None:
        found.append(_writes(formula, args, kwargs))
        formula(*args, **kwargs)

    monkeypatch.setattr(scope, formula.__name__, asked)
    for foreach in (False, True):
        weight = nn.Parameter(torch.ones(2, 3))
        optimizer = getattr(torch.optim, name)([weight], lr=0.1, foreach=foreach, **options)
        for _ in range(2):
            weight.grad = torch.full((2, 3), 0.25)
            optimizer.step()
            assert (foreach and writes) == bool((weight.grad != 0.25).any())
    assert found == [writes, writes]
