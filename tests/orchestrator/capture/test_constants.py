"""What is made once of numbers alone and kept is made anew by the program; nothing else that is kept."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition
from orchestrator.capture.assemble import capture, rank_program
from orchestrator.capture.errors import CaptureError, ClosureError
from orchestrator.capture.tracing import trace
from orchestrator.evaluating import interpreter
from trainverify import Kind, verify

Uses = Callable[[nn.Module, SimpleNamespace, Tensor], Tensor]


class Model(nn.Module):
    def __init__(self, kept: Callable[[nn.Linear], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        nn.init.zeros_(self.linear.bias)
        self.kept = kept(self.linear)


def step_with(uses: Uses) -> Callable[..., dict[str, Tensor]]:
    """A step whose output is what ``uses`` makes of a batch; what it keeps is in a namespace."""
    held = SimpleNamespace(first=None, turn=itertools.cycle("ab"))

    def step(model: nn.Module, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        loss = model.linear(batch["x"]).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"y": uses(model, held, batch["x"].detach())}

    return step


def traced(uses: Uses, kept: Callable[[nn.Linear], Tensor] = lambda _linear: torch.ones(3)) -> Any:
    made = Definition(
        name="constants",
        mesh={"dp": 2},
        build=lambda: Model(kept),
        parallelize=lambda model, mesh: model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        step=step_with(uses),
        batch={"x": Batch((4, 3))},
    )
    return trace(made, None).program


def given(uses: Uses, kept: Callable[[nn.Linear], Tensor] = lambda _linear: torch.ones(3)) -> np.ndarray:
    """What the captured step makes of a batch."""
    program = rank_program(traced(uses, kept))
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(type_.shape) for name, type_ in program.inputs.items()}
    inputs["batch.x"] = np.arange(12.0).reshape(4, 3)
    return interpreter.evaluate(program, inputs)[program.outputs["y"]]


def refused(uses: Uses, kept: Callable[[nn.Linear], Tensor] = lambda _linear: torch.ones(3)) -> str:
    with pytest.raises(CaptureError) as caught:
        traced(uses, kept)
    assert isinstance(caught.value, ClosureError), caught.value
    return caught.value.message


def rotations() -> Tensor:
    angles = torch.outer(torch.arange(4.0), 1.0 / 10 ** (torch.arange(0, 3).float() / 3))
    return torch.polar(torch.ones_like(angles), angles)


def test_what_build_keeps_beside_buffers() -> None:
    def uses(model: Any, _held: Any, x: Tensor) -> Tensor:
        return torch.view_as_real(torch.complex(x, x) * model.kept)[..., 1]

    x = np.arange(12.0).reshape(4, 3)
    turned = rotations().numpy()
    want = x * turned.imag + x * turned.real
    np.testing.assert_allclose(given(uses, lambda _linear: rotations()), want, 1e-6)


def test_what_a_cache_keeps() -> None:
    @functools.lru_cache(maxsize=2)
    def mask(n: int, upper: bool) -> Tensor:
        made = torch.ones(n, n)
        return made.triu_(1) if upper else made.tril_()

    x = np.arange(12.0).reshape(4, 3)
    want = x @ np.triu(np.ones((3, 3)), 1) + x @ np.tril(np.ones((3, 3)))
    np.testing.assert_allclose(given(lambda _m, _h, x: x @ mask(3, True) + x @ mask(3, False)), want)


def test_what_is_made_in_pieces_of_the_type_of_a_parameter() -> None:
    def uses(model: Any, held: Any, x: Tensor) -> Tensor:
        if held.first is None:
            held.first = model.linear.weight.new_zeros(3)
            held.first[1:] = torch.arange(2.0)
            held.view = held.first[:2]
        return x[:, :2] + held.view

    np.testing.assert_allclose(given(uses), np.arange(12.0).reshape(4, 3)[:, :2] + [0.0, 0.0])


def test_what_has_no_place_in_a_plan_is_passed_by() -> None:
    """Transformers asks ``torch.tensor([])`` for its device; an exception inside would be told."""

    def kept(linear: nn.Linear) -> Tensor:
        held = [torch.zeros(2, dtype=torch.uint16).view(torch.uint8), torch.zeros(2, dtype=torch.complex32)]
        linear.held = [*held, torch.complex(torch.ones(2), torch.ones(2)).conj().imag]
        assert torch.tensor([]).device.type == "cpu"
        return torch.ones(3)

    x = np.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(given(lambda model, _held, x: x * model.kept, kept), x)


def _for_the_next_step(_model: Any, held: Any, x: Tensor) -> Tensor:
    """Each step reads what the one before it left."""
    read, held.first = held.first, torch.full((3,), 2.0)
    return x if read is None else x * read


def _by_turns(turn: Callable[[Any], object], read: Callable[[Any], Tensor]) -> Uses:
    """Of three constants two are alike: two steps are one program, and the third is not."""

    def uses(_model: Any, held: Any, x: Tensor) -> Tensor:
        if held.first is None:
            one, other = torch.full((3,), 1.0), torch.full((3,), 2.0)
            held.first = deque((one, one, other))
            held.views = deque(torch.arange(2.0).repeat_interleave(2).view(4, 1)[i] for i in (0, 1, 2))
            held.names = {"a": one, "b": one, "c": other}
        turn(held)
        return x * read(held)

    return uses


@pytest.mark.parametrize(
    "uses",
    [
        _for_the_next_step,
        _by_turns(lambda held: held.first.rotate(1), lambda held: held.first[0]),
        _by_turns(lambda held: held.views.rotate(-1), lambda held: held.views[0]),
        _by_turns(lambda h: h.names.update(a=h.names["b"], b=h.names["c"]), lambda h: h.names["a"]),
        _by_turns(lambda held: held.first.append(held.first[0]), lambda held: held.first[-3]),
    ],
)
def test_what_a_later_step_may_find_elsewhere_is_refused(uses: Uses) -> None:
    with pytest.raises(CaptureError, match=r"changes which constant .* is|where the first ran"):
        traced(uses)


def _once(make: Callable[[nn.Module, Tensor], Tensor]) -> Uses:
    def uses(model: nn.Module, held: SimpleNamespace, x: Tensor) -> Tensor:
        if held.first is None:
            held.first = make(model, x)
        return x * held.first

    return uses


def _of_lazy_state(model: nn.Module, _x: Tensor) -> Tensor:
    """Made beside a state before it is known that it is one."""
    made = torch.zeros(3)
    model.register_buffer("lazy", made)
    return made + 1


def _by_chance(_model: nn.Module, _x: Tensor) -> Tensor:
    made = torch.ones(3)
    return made.uniform_() if made.dim() else made


@pytest.mark.parametrize(
    "make",
    [
        lambda _model, x: x[0],
        lambda _model, x: x.new_zeros(3) + x[0],
        lambda model, _x: model.linear.bias.detach().clone(),
        lambda model, _x: torch.ones(3) * model.linear.weight.detach().sum(),
        lambda model, _x: torch.rand(3),
        _by_chance,
        _of_lazy_state,
    ],
)
def test_what_a_step_made_of_other_things_is_no_constant(make: Any) -> None:
    assert "no parameter, buffer, batch input" in refused(_once(make))


@pytest.mark.parametrize(
    "kept",
    [
        lambda linear: linear.bias.detach() + 1,
        lambda linear: torch.zeros(3).copy_(linear.bias.detach()),
        lambda linear: torch.randn(3),
    ],
)
def test_so_is_what_build_made_of_them(kept: Any) -> None:
    """The bias is zeros when it is made, and whatever a checkpoint says when a step reads it."""
    refused(lambda model, _held, x: x * model.kept, kept)


def _changes(change: Callable[[Tensor, Tensor], Any]) -> Uses:
    def uses(model: Any, _held: SimpleNamespace, x: Tensor) -> Tensor:
        read = x * model.kept
        change(model.kept, x)
        return read

    return uses


@pytest.mark.parametrize(
    "change",
    [
        lambda kept, x: kept.add_(1),
        lambda kept, x: kept[:1].zero_(),
        lambda kept, x: kept.copy_(x[0]),
        lambda kept, x: kept.data.mul_(2),
        lambda kept, x: torch.neg(kept, out=kept),
        lambda kept, x: torch._foreach_add_([kept], 1.0),
        lambda kept, x: kept.normal_(),
        lambda kept, x: kept.untyped_storage().resize_(0) and kept.untyped_storage().resize_(12),
    ],
)
def test_what_a_later_step_changes_is_no_constant(change: Any) -> None:
    refused(_changes(change))


def test_nor_is_what_a_later_step_puts_in_its_place() -> None:
    """`set_` changes no memory: the name leads to another constant from then on."""
    uses = _changes(lambda kept, _x: torch.ops.aten.set_.source_Tensor(kept, torch.zeros(3)))
    with pytest.raises(CaptureError, match=r"changes which constant model\.kept is"):
        traced(uses, lambda _linear: torch.ones(3))


def test_nor_is_what_two_steps_in_turn_read() -> None:
    """Two constants of one shape: the ops of both steps are alike, and what they read is not."""

    def uses(_model: Any, held: SimpleNamespace, x: Tensor) -> Tensor:
        if held.first is None:
            held.first = {"a": torch.full((3,), 1.0), "b": torch.full((3,), 2.0)}
        return x * held.first[next(held.turn)]

    with pytest.raises(
        CaptureError, match=r"the second step runs multiply .* where the first ran constant value=2"
    ):
        traced(uses)


class Sloped(nn.Module):
    """A table that is a plain attribute, made by `build`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.slopes = torch.tensor([1.0, 0.5, 0.25, 0.125])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda slopes: slopes.clone().flip(0), Kind.REFUTED),
        (lambda slopes: torch.cat([half.clone() for half in slopes.chunk(2)]), Kind.PROVED),
        (lambda slopes: slopes * 2.0, Kind.REFUTED),
        (lambda slopes: slopes.mul_(2.0), Kind.REFUTED),
    ],
)
def test_a_table_may_be_computed_with_while_the_model_is_parallelized(change: Any, kind: Kind) -> None:
    def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        (model.inner(batch["x"]) * model.slopes).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return {}

    def parallelize(model: Any, mesh: object) -> nn.Module:
        model.slopes = change(model.slopes)
        made: nn.Module = model
        return made

    made = Definition(
        name="sloped",
        mesh={"dp": 2},
        build=Sloped,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=step,
        batch={"x": Batch((4, 4))},
    )
    assert verify(capture(made, jobs=1), jobs=1).kind is kind
