"""Code that asks for the class of a tensor, or looks into its text, does under a trace what a job does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from orchestrator.capture import Definition
from orchestrator.capture.disguise import disguised
from orchestrator.capture.errors import StateError
from orchestrator.capture.refusals import refused
from orchestrator.capture.tracing import trace

from .world import one_layer

HANDLERS: dict[type, float] = {Tensor: 3.0, nn.Parameter: 5.0}


def factors(text: Callable[[Tensor], object]) -> Definition:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["x"])
        loss.backward()
        for p in model.parameters():
            if type(p) is nn.Parameter and type(p.grad) is Tensor:
                p.grad.mul_(HANDLERS[type(p)] * HANDLERS[type(p.detach())])
            if text(loss.detach()):
                p.grad.mul_(2)
        optimizer.step()
        optimizer.zero_grad()
        return {}

    return one_layer("asked", step)


def constants(made: Definition) -> list[object]:
    drafts = trace(made, None).program.drafts
    return [d.attr("value") for d in drafts if d.name == "constant"]


def test_a_step_that_asks_for_classes_does_what_it_does_in_a_job() -> None:
    assert "15" in map(str, constants(factors(lambda t: False)))


def test_so_does_one_that_asks_the_tensor_itself() -> None:
    """Gradients were scaled in a job only: ``t.__class__`` said FakeTensor, and the plan was VALID."""
    yes, no = (constants(factors(lambda t, said=said: said)) for said in (True, False))
    assert constants(factors(lambda t: t.__class__ is not Tensor)) == no != yes
    assert constants(factors(lambda t: t.__class__.__name__ == "Tensor")) == yes
    with FakeTensorMode():
        made = torch.zeros(2)
        with disguised():
            assert made.__class__ is Tensor and nn.Parameter(made).__class__ is nn.Parameter
            assert isinstance(made, Tensor) and not isinstance(made, nn.Module)
        assert made.__class__.__name__ == "FakeTensor"


@pytest.mark.parametrize(
    "asks",
    [
        lambda rate: isinstance(rate, float),
        lambda rate: type(rate) is float,
        lambda rate: not isinstance(rate, Tensor | nn.Parameter),
        lambda rate: rate.__class__ is float,
    ],
)
def test_a_learning_rate_is_the_number_that_it_is_in_a_job(asks: Callable[[Any], bool]) -> None:
    """Gradients were scaled in a job only, and the plan was VALID: in a trace the rate is a tensor."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        F.mse_loss(model(batch["x"]), batch["x"]).backward()
        if asks(optimizer.param_groups[0]["lr"]):
            model.weight.grad.mul_(31)
        optimizer.step()
        optimizer.zero_grad()
        return {}

    made = replace(factors(bool), step=step, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3))
    assert "31" in map(str, constants(made))
    tensors = replace(made, optimizer=lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3)))
    assert "31" not in map(str, constants(tensors))


def test_a_number_of_rows_is_an_integer() -> None:
    rows = ShapeEnv().create_unbacked_symint()
    with disguised(test_a_number_of_rows_is_an_integer):
        assert isinstance(rows, int) and type(rows) is int and not isinstance(rows, Tensor | float)
        assert isinstance(True, int) and not isinstance("1", int | float)


def test_what_is_printed_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert "15" in map(str, constants(factors(lambda t: print("loss", t, str(t) + "\n"))))
    assert "loss FakeTensor(" in capsys.readouterr().out


@pytest.mark.parametrize(
    "asks",
    [
        lambda t: "nan" in str(t),
        lambda t: str(t).startswith("tensor(9"),
        lambda t: repr(t) == "tensor(0.)",
        lambda t: len(str(t) + "!") > 40,
        lambda t: hash(str(t)) % 2,
        lambda t: float(str(t)[7:-1]) > 1,
    ],
)
def test_who_looks_into_the_text_of_a_tensor_is_refused(asks: Callable[[Tensor], object]) -> None:
    with pytest.raises(DataDependentOutputException) as told:
        trace(factors(asks), None)
    assert refused(told.value).message.startswith("the value of a tensor becomes a Python number, or decides")


def test_what_type_is_otherwise_stays() -> None:
    def ask() -> None:
        class Meta(type):
            pass

        class Made(metaclass=Meta):
            pass

        assert type(Made) is Meta and type(Made()) is Made and int is int
        assert type("Named", (Made,), {"x": 1}).x == 1  # type: ignore[attr-defined]
        assert type("Named", (), {}).__module__ == __name__, "a class of the user's is followed to its counts"
        assert type("Named", (), {"__module__": "there"}).__module__ == "there"
        assert isinstance(int, type) and not isinstance(3, type) and issubclass(Meta, type)
        assert type(int) is type and type(type) is type
        with FakeTensorMode():
            assert [type(t) for t in (torch.ones(1), nn.Parameter(torch.ones(1)))] == [Tensor, nn.Parameter]

    with disguised(ask):
        ask()
    assert "type" not in globals()


def test_a_type_of_the_users_own_stays() -> None:
    scope: dict[str, Any] = {"__file__": __file__}
    exec(compile("type = 7\ndef f(): pass", __file__, "exec"), scope)
    with disguised(scope["f"]):
        assert scope["type"] == 7
    assert scope["type"] == 7


class Expert(nn.Parameter):
    """Whoever trains it leaves it out of what ranks add up."""

    shared = True


def test_a_parameter_of_a_class_of_the_users_own_is_refused() -> None:
    """Experts were averaged in the plan only, which was VALID: in a trace they were parameters as all are."""

    def build() -> nn.Module:
        made = nn.Linear(3, 3, bias=False)
        made.weight = Expert(made.weight.detach())
        return made

    with pytest.raises(StateError) as told:
        trace(replace(factors(bool), build=build), None)
    assert told.value.message.startswith("a tensor of the trace is made one of another class (Expert)")
    assert told.value.frame is not None and told.value.frame[2] == "build"
    assert type(Expert(torch.ones(2))) is Expert, "outside of a trace it is what it was"


def test_a_parameter_of_real_numbers_is_of_the_class_that_was_asked_for() -> None:
    with disguised():
        assert Expert(torch.ones(2)).shared and type(nn.Parameter(torch.ones(2))) is nn.Parameter
