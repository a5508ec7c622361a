"""A learning rate is a number to the user's code, as it is in a job, and a tensor where tensors take part."""

from __future__ import annotations

import copy
import logging
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from orchestrator.capture import Definition
from orchestrator.capture.disguise import disguised
from orchestrator.capture.rates import Rate, taken_for_numbers, tensor_of
from orchestrator.capture.tracing import trace

from .world import one_layer


@pytest.fixture
def rate() -> Iterator[Any]:
    with FakeTensorMode(), disguised(copied), taken_for_numbers():
        yield Rate(torch.zeros(()))


def copied() -> None:
    """Its module is the user's."""


ASKS: list[Callable[[Any], object]] = [
    lambda rate: torch.is_tensor(rate),
    lambda rate: torch.overrides.is_tensor_like(rate),
    lambda rate: isinstance(rate, Tensor),
    lambda rate: hasattr(rate, "device"),
    lambda rate: callable(getattr(rate, "detach", None)),
    lambda rate: hasattr(rate, "tensor") or hasattr(rate, "__deepcopy__") or hasattr(rate, "__dict__"),
    lambda rate: torch.typename(rate) != "float" and torch.typename(rate) != torch.typename(1.0),
    lambda rate: not {"hex", "real"} <= set(dir(rate)) or "item" in dir(rate),
    lambda rate: not isinstance(rate, float) or type(rate) is not float or rate.__class__ is not float,
    lambda rate: torch.is_tensor(2 / (rate * 2 + 1) ** 2 - 1),
]


@pytest.mark.parametrize("asks", ASKS)
def test_a_rate_is_no_tensor(rate: Any, asks: Callable[[Any], object]) -> None:
    assert not asks(rate) and not asks(0.1)


@pytest.mark.parametrize("asks", [*ASKS[:1], *ASKS[3:5], lambda rate: torch.is_tensor(-rate * 2)])
def test_an_optimizer_of_the_users_is_told_so(asks: Callable[[Any], object]) -> None:
    """Gradients were scaled in a job only, and the plan was VALID."""

    class Mine(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1, "capturable": True})

        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for group in self.param_groups:
                factor = 1 if asks(group["lr"]) else 31
                for p in group["params"]:
                    p.sub_(p.grad * group["lr"] * factor)

    made = replace(stepping(lambda optimizer: None), optimizer=Mine)
    assert "31" in constants(made)


def stepping(then: Callable[[Any], object]) -> Definition:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        model(batch["x"]).square().mean().backward()
        then(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        return {}

    return one_layer("rated", step)


def constants(made: Definition) -> set[str]:
    return {str(d.attr("value")) for d in trace(made, None).program.drafts if d.name == "constant"}


def test_what_is_computed_with_numbers_is_a_number_and_with_tensors_a_tensor(rate: Any) -> None:
    x = torch.ones(3)
    names = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
    for compute in (getattr(operator, name) for name in names):
        for number in (2, 0.5, np.float64(2), rate):
            assert (
                type(tensor_of(compute(rate, number))) is not Rate is not type(compute(rate, number)) is float
            )
            assert isinstance(compute(number, rate), float)
        assert compute(rate, x).shape == compute(x, rate).shape == (3,)
    assert isinstance(-rate, float) and isinstance(abs(rate), float) and +rate is rate
    assert rate.real is rate and rate.imag == 0.0 and rate.conjugate() is rate
    with pytest.raises(TypeError):
        rate + "text"


def test_it_is_what_it_stands_for() -> None:
    """The operands are not turned round, and what PyTorch would read is what it means."""
    t, x = torch.tensor(0.25), torch.tensor([1.0, 2.0])
    rate: Any = Rate(t)
    assert (tensor_of(2 - rate), tensor_of(rate - 2), tensor_of(2**rate)) == (1.75, -1.75, 2**0.25)
    assert torch.equal(x.clone().add_(x, alpha=-rate), x * 0.75)
    assert torch.equal(torch.addcdiv(x, x, x, value=rate), x + 0.25)
    assert torch.equal(torch._foreach_mul([x], rate)[0], x * 0.25)
    assert torch.equal(torch.sub(x, rate), x - 0.25) and torch.equal(torch.full((2,), rate), t.expand(2))
    assert torch.equal(x / rate, x * 4) and torch.equal(rate / x, 0.25 / x)
    with taken_for_numbers():
        made = torch.tensor(rate)
        assert torch.equal(made, t) and made is not t and torch.as_tensor(3.0) == 3
        assert torch.as_tensor(rate, dtype=torch.float64).dtype == torch.float64


def test_where_a_job_has_no_tensor_there_is_none(rate: Any) -> None:
    for function in (torch.numel, torch.sqrt, torch.is_floating_point, torch.clone):
        for given in (rate, 0.1):
            with pytest.raises(TypeError):
                function(given)


@pytest.mark.parametrize(
    "asks",
    [
        lambda rate: rate > 0.1,
        lambda rate: rate == 0.1 or rate in (0.1, 0.2),
        lambda rate: rate in {0.1},
        lambda rate: 1 if rate else 2,
        lambda rate: float(rate) or int(rate),
        lambda rate: math.sqrt(rate),
        lambda rate: round(rate, 3),
        lambda rate: f"{rate:.3f}" == "0.100",
        lambda rate: {"0.1": 1}.get("%.1f" % rate),  # noqa: UP031
        lambda rate: print(int(rate)),
        lambda rate: max(rate, 1e-5),
        lambda rate: rate.is_integer(),
        lambda rate: str(rate)[0],
        lambda rate: hasattr(rate, "__torch_function__") or rate.hex(),
    ],
)
def test_who_asks_for_its_value_is_refused(rate: Any, asks: Callable[[Any], object]) -> None:
    with pytest.raises(DataDependentOutputException):
        asks(rate)


def test_it_can_be_printed_and_logged(
    rate: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nearly all loops do; the text is no number's."""
    print(f"rate {rate:.3f}", "{:.1e}".format(rate))  # noqa: UP032
    print("%.3f" % rate)  # noqa: UP031
    logging.getLogger("step").warning("%.2e and %s", rate, rate)
    assert "rate float(" in capsys.readouterr().out and "nan and float(" in caplog.text
    with pytest.raises(ValueError, match="format"):
        print(f"{rate:d}")


def test_it_can_be_copied_and_compared_with_what_is_no_number(rate: Any) -> None:
    assert copy.copy(rate) is rate and copy.deepcopy([rate])[0] is rate
    assert rate != "adam" and rate is not None and rate not in (None, "x")
    with pytest.raises(TypeError):
        len(rate)
    with pytest.raises(TypeError):
        iter(rate)


def test_a_rate_of_the_trace_goes_into_what_a_step_computes() -> None:
    """Decay by hand, a rate put back, and another factor on a rank that takes it for a tensor."""

    def decay(optimizer: Any) -> None:
        (group,) = optimizer.param_groups
        rate = group["lr"] if torch.is_tensor(group["lr"]) else group["lr"] * 31
        with torch.no_grad():
            for p in group["params"]:
                p.mul_(1 - rate)
        group["lr"] = group["lr"] * 1.0

    made = replace(stepping(decay), optimizer=lambda p: torch.optim.AdamW(p, lr=0.1))
    assert "31" in constants(made) and "hyper.lr" in trace(made, None).program.inputs
    assert not dist.is_initialized()
