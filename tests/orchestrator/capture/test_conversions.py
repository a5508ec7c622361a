"""``model.to(…)`` and its kin do to a module of a trace what they do to one of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from orchestrator.capture import Definition, capture
from orchestrator.capture.conversions import converted_as_in_a_job
from orchestrator.capture.errors import CaptureError
from orchestrator.capture.refusals import refused
from orchestrator.capture.tracing import trace
from trainverify import Kind, verify

from .converted_models import converting, overwriting

ON_META = torch.device("meta")


class Tied(nn.Module):
    """A weight of two names, one that is frozen, buffers, one of them of two names, and a recurrent layer."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, device=device)
        self.second = nn.Linear(3, 3, bias=False, device=device)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.zeros(2, 2, device=device).t(), requires_grad=False)
        self.number = nn.Parameter(torch.full((), 2.0, device=device))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("scale", torch.ones(3, device=device))
        self.again = self.scale
        self.rnn = nn.LSTM(2, 2, device=device)


def held(model: nn.Module) -> dict[str, Tensor]:
    """All that a module holds, and the gradients of it."""
    found = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    return found | {f"{name}.grad": t.grad for name, t in found.items() if t.grad is not None}


def facts(made: Callable[[], Any], convert: Callable[[Any], Any]) -> list[object]:
    """What code can learn of a module's tensors after a conversion, and whether they are those of before."""
    model = made()
    for parameter in model.parameters():
        if parameter.requires_grad and not parameter.is_meta:
            parameter.grad = torch.zeros_like(parameter)
    model.number.marked = True
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = held(model)
    # Kept, so that no memory of later has the identity of memory of before.
    memory = {name: t.untyped_storage() for name, t in before.items()}
    given = convert(model)
    after = held(model)
    whose = {memory[name]._cdata: name for name in reversed(memory)}
    return [
        given is model,
        [
            (name, t is before.get(name), t.dtype, t.device, t.shape, t.stride(), t.requires_grad, t.is_leaf)
            for name, t in after.items()
        ],
        [(name, isinstance(t, nn.Parameter), hasattr(t, "marked")) for name, t in after.items()],
        {name: whose.get(t.untyped_storage()._cdata) for name, t in after.items()},
        [a == b for a in map(id, after.values()) for b in map(id, after.values())],
        [any(p is t for t in after.values()) for group in optimizer.param_groups for p in group["params"]],
    ]


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.to("cpu"),
        lambda m: m.to(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        lambda m: m.to(torch.float32),
        lambda m: m.to("cpu", torch.bfloat16, non_blocking=True),
        lambda m: m.to(torch.zeros(1, dtype=torch.float64)),
        lambda m: m.cpu(),
        lambda m: m.float(),
        lambda m: m.double(),
        lambda m: m.half(),
        lambda m: m.bfloat16(),
        lambda m: m.double().float(),
        lambda m: m.type(torch.float64),
        lambda m: m.to("meta"),
        lambda m: m.to_empty(device="cpu"),
        lambda m: m.to_empty(device="cpu", recurse=False),
        lambda m: (m.first.half(), m.rnn.double(), m)[-1],
        lambda m: m._apply(lambda t: t),
        lambda m: m._apply(torch.clone, recurse=False),
        lambda m: m.requires_grad_(False).bfloat16().requires_grad_(True),
    ],
)
def test_a_conversion_does_what_it_does_in_a_job(convert: Callable[[Any], Any]) -> None:
    want = facts(Tied, convert)
    with FakeTensorMode(), converted_as_in_a_job():
        assert facts(Tied, convert) == want


@pytest.mark.parametrize(
    "convert", [lambda m: m.to_empty(device="cpu"), lambda m: m.half(), lambda m: m.to("meta")]
)
def test_so_does_one_of_a_model_without_memory(convert: Callable[[Any], Any]) -> None:
    want = facts(lambda: Tied(ON_META), convert)
    with FakeTensorMode(), converted_as_in_a_job():
        assert facts(lambda: Tied(ON_META), convert) == want


def test_other_objects_take_the_place_of_parameters_where_the_file_says_so() -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        want = facts(Tied, nn.Module.double)
        with FakeTensorMode(), converted_as_in_a_job():
            assert facts(Tied, nn.Module.double) == want
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_a_number_that_was_rounded_is_no_longer_the_one_before() -> None:
    """A tensor of a trace remembers what it was made of."""
    with FakeTensorMode(), converted_as_in_a_job():
        model = nn.ParameterList([nn.Parameter(torch.tensor(1.3))])
        assert model[0].item() == torch.tensor(1.3).item()
        with pytest.raises(DataDependentOutputException):
            model.half()[0].item()


def test_afterwards_pytorch_has_its_own() -> None:
    own = nn.Module._apply
    with converted_as_in_a_job():
        assert nn.Module._apply is not own
    assert nn.Module._apply is own


def test_an_exchange_that_the_file_asks_for_is_refused() -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with FakeTensorMode(), converted_as_in_a_job(), pytest.raises(RuntimeError) as raised:
            Tied().double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    said = refused(raised.value)
    assert "exchanges" in said.message and "set_swap_module_params_on_conversion" in str(said.instead)


@pytest.mark.parametrize("how", ["device", "float", "half and back"])
def test_a_model_that_stays_what_it_is_gives_the_same_program(how: str) -> None:
    for rank in (None, 0):
        want = drafts(converting("no", "no"), rank)
        assert want == drafts(converting(how, "no"), rank) == drafts(converting("no", how), rank)


def drafts(definition: Definition, rank: int | None) -> list[object]:
    return [(d.name, d.ins) for d in trace(definition, rank).program.drafts]


@pytest.mark.parametrize(("build", "parallelize"), [("device", "device"), ("double", "no"), ("no", "double")])
def test_a_converted_model_is_proved(build: str, parallelize: str) -> None:
    assert verify(capture(converting(build, parallelize), jobs=1), jobs=1).kind is Kind.PROVED


@pytest.mark.parametrize(
    ("parallelize", "why"),
    [
        ("doubled", "is computed from params.0.weight"),
        ("without memory", "holds nothing of the single device's"),
    ],
)
def test_a_conversion_that_changes_numbers_is_no_shard(parallelize: str, why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        capture(converting("no", parallelize), jobs=1)


@pytest.mark.parametrize(("overwrite", "kind"), [(False, Kind.PROVED), (True, Kind.REFUTED)])
def test_who_held_parameters_before_holds_them_after_or_does_not(overwrite: bool, kind: Kind) -> None:
    assert verify(capture(overwriting(overwrite), jobs=1), jobs=1).kind is kind
