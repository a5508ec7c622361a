"""What capture changes in PyTorch: copies of fake tensors are those that PyTorch makes of real ones."""

from __future__ import annotations

import copy
import operator
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition
from orchestrator.capture.assemble import capture
from orchestrator.capture.disguise import disguised
from orchestrator.capture.errors import CaptureError
from orchestrator.capture.running import run
from orchestrator.capture.shims import (
    NUMBERS,
    READ,
    TensorNumbers,
    capturable_on_cpu,
    one_path,
    symbolic_hyperparameters,
    writes_forget,
)
from orchestrator.capture.tracing import trace
from trainverify import Kind, verify

from .world import one_layer

Step = Any


def _shared(t: Tensor, loss: Tensor) -> None:
    torch.empty(0).set_(t.untyped_storage(), 0, (), ()).copy_(loss)


@pytest.mark.parametrize(
    "write",
    [
        lambda t, loss: torch._foreach_add_([t], [loss]),
        lambda t, loss: torch._foreach_copy_([torch.zeros(()), t.view(())], [torch.ones(()), loss]),
        lambda t, loss: torch.split_copy(loss.reshape(1), 1, out=[t.view(1)]),
        _shared,
    ],
)
def test_what_is_written_in_a_list_is_remembered_no_more(write: Any) -> None:
    """``t.item()`` said 0 still, and ranks that the loss should have sent another way were proved right."""
    with FakeTensorMode(), writes_forget():
        t, known = torch.tensor(0.0), torch.tensor(0.0)
        torch._foreach_add_([known], [torch.tensor(2.0)])
        assert known.item() == 2
        write(t, torch.ones(()))
        with pytest.raises(DataDependentOutputException):
            t.item()
        assert known.item() == 2


def test_a_step_that_decides_by_what_it_has_written_in_a_list_is_refused() -> None:
    def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        loss = model(batch["x"]).square().mean()
        total = torch.tensor(0.0)
        torch._foreach_add_([total], [loss.detach()])
        if total.item() < 5:
            loss.backward()
        return {"loss": loss.detach()}

    with pytest.raises(CaptureError, match="becomes a Python number, or decides"):
        capture(one_layer("listed", step))


def test_an_optimizer_runs_one_tensor_at_a_time_with_a_learning_rate_in_a_tensor() -> None:
    """Fused and list forms are other ops, of which the plan would have to say something else."""
    weight = torch.zeros(2, requires_grad=True)
    for options in ({"foreach": True}, {"fused": True}):
        optimizer = torch.optim.AdamW([weight], lr=0.1, **options)
        symbolic_hyperparameters(optimizer)
        (group,) = optimizer.param_groups
        pytorchs = eval("lambda g, key: (g[key], g.get(key))", vars(sys.modules["torch.optim.adam"]))
        for key, value in (("foreach", False), ("fused", False), ("capturable", True)):
            assert pytorchs(group, key) == (value, value)
        assert isinstance(pytorchs(group, "lr")[0], torch.Tensor)


def test_the_users_code_reads_the_options_that_the_optimizer_was_made_with() -> None:
    """A step that doubles gradients where `capturable` is off did so in a job only: its plan was VALID."""
    optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)], lr=0.1, foreach=True)
    symbolic_hyperparameters(optimizer)
    (group,) = optimizer.param_groups
    assert (group["foreach"], group.get("capturable"), group["fused"]) == (True, False, None)
    assert group["betas"] == (0.9, 0.999) and group.get("none", 1) == 1
    group["foreach"] = False
    assert group["foreach"] is False and dict(group)["foreach"] is False


READS: list[Any] = [
    lambda g: {k: v for k, v in g.items()},
    lambda g: dict(zip(g.keys(), g.values(), strict=True)),
    lambda g: {k: g[k] for k in g},
    lambda g: g.copy(),
    lambda g: dict(g),
    lambda g: {**g},
    lambda g: g | {},
    lambda g: {} | g,
    lambda g: (lambda **given: given)(**g),
    lambda g: copy.copy(g),
    lambda g: copy.deepcopy(g),
    lambda g: {k: g.setdefault(k, 7) for k in g},
    lambda g: {k: g.copy().pop(k) for k in g},
    lambda g: {k: operator.itemgetter(k)(g) for k in g},
    lambda g: {k: g.pop(k) for k in list(g)},
]


@pytest.mark.parametrize("read", READS)
def test_however_options_are_read_they_are_those_of_a_job(read: Any) -> None:
    """A copy of the items said `capturable`, as the trace has it; ranks that asked it were proved right."""
    optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)], lr=0.1, foreach=True)
    symbolic_hyperparameters(optimizer)
    with disguised(read):
        found = read(optimizer.param_groups[0])
        assert (found["foreach"], found["capturable"], found["fused"]) == (True, False, None)
        assert isinstance(found["lr"], float) and not hasattr(found["lr"], "detach") and type(found) is dict


def test_options_are_a_dictionary_and_so_is_what_an_optimizer_saves() -> None:
    optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)], lr=0.1)
    symbolic_hyperparameters(optimizer)
    (group,) = optimizer.param_groups
    with disguised(test_options_are_a_dictionary_and_so_is_what_an_optimizer_saves):
        assert type(group) is dict and group.__class__ is dict and isinstance(group, dict)
        assert not hasattr(group, "missed") and hasattr(group, "fromkeys")
        with pytest.raises(DataDependentOutputException):
            assert "capturable" in str(group)
    (saved,) = optimizer.state_dict()["param_groups"]
    assert saved["capturable"] is False and not isinstance(saved["lr"], Tensor)


def test_a_rate_that_pytorch_computes_is_a_number_still() -> None:
    optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)], lr=0.1)
    with FakeTensorMode():
        symbolic_hyperparameters(optimizer)
        (group,) = optimizer.param_groups
        exec("g['lr'] = g['lr'] * 2", {"g": group, "__name__": "torch.optim.lr_scheduler"})
        assert not isinstance(group["lr"], Tensor)
        group["lr"] = torch.ones(())
        assert isinstance(group["lr"], Tensor), "one that the step puts there is one in a job"


def test_a_step_that_asks_a_copy_of_the_options_does_what_it_does_in_a_job() -> None:
    def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        options = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        loss = model(batch["x"]).square().mean() * (31 if options["capturable"] else 1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    made = replace(rated(lambda params: torch.optim.AdamW(params, lr=0.1)), step=step)
    assert not any(
        str(d.attr("value")) == "31" for d in trace(made, None).program.drafts if d.name == "constant"
    )


def test_a_tensor_in_place_of_a_number_means_that_number() -> None:
    x, y, z = (torch.rand(3, dtype=torch.float64) + 0.5 for _ in range(3))
    t, used = torch.tensor(-0.3, dtype=torch.float64), set[str]()
    with TensorNumbers(used):
        x + y
    assert used == set(), "a plan lists what changed something"
    for name in ("addcdiv", "addcmul"):
        want = getattr(torch, name)(x, y, z, value=float(t))
        with TensorNumbers(used):
            assert torch.allclose(getattr(torch, name)(x, y, z, value=t), want)
            assert torch.allclose(getattr(x.clone(), f"{name}_")(y, z, value=t), want)
    for name in ("add", "sub"):
        want = getattr(torch, name)(x, y, alpha=float(t))
        with TensorNumbers(used):
            assert torch.allclose(getattr(x.clone(), f"{name}_")(y, alpha=t), want)
            assert torch.equal(getattr(torch, name)(x, y, alpha=2), getattr(torch, name)(x, 2 * y))
    assert used == {NUMBERS}


class Descent(torch.optim.SGD):
    """PyTorch's step, by another name."""


class Own(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        return super().step(closure)


@pytest.mark.parametrize(
    ("kind", "symbolic"),
    [
        (torch.optim.RMSprop, True),
        (torch.optim.Adadelta, True),
        (torch.optim.Rprop, False),
        (torch.optim.SGD, True),
        (torch.optim.Adagrad, True),
        (Descent, True),
        (Own, False),
    ],
)
def test_a_learning_rate_is_an_input_where_a_step_reads_it(kind: Any, symbolic: bool) -> None:
    """Rprop's is the size of its first step alone. SGD has no option for tensors (``capturable``), and takes
    them; what code of the user's does with a rate, nobody knows."""
    made = Definition(
        name="optimizers",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3, bias=False),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: kind(params, lr=0.1),
        step=plain,
        batch={"x": Batch((2, 3))},
        layouts={"weight": {}},
    )
    assert ("hyper.lr" in trace(made, None).program.inputs) == symbolic


def plain(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


class Scaled(torch.optim.Optimizer):
    """One whose options are its own: with ``foreach`` it forgets the decay."""

    def __init__(self, params: Any, foreach: bool) -> None:
        super().__init__(params, {"lr": 0.5, "foreach": foreach, "capturable": False})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if not group["foreach"] and not group["capturable"]:
                    p.mul_(0.5)
                p.add_(p.grad, alpha=-group["lr"])


def squared(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def rated(optimizer: Any) -> Definition:
    return Definition(
        name="rated",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3, bias=False),
        parallelize=lambda model, mesh: model,
        optimizer=optimizer,
        step=squared,
        batch={"x": Batch((4, 3))},
    )


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (lambda: 0.01 * (1 + torch.distributed.get_rank()), "with 0.02 here, with 0.01 on the single device"),
        (lambda: 0.01 * torch.distributed.get_world_size(), "with 0.02 here, with 0.01 on the single device"),
        (lambda: torch.tensor(0.03), "with 0.03 here, with 0.01"),
    ],
)
def test_ranks_with_another_learning_rate_are_refused(rates: Any, said: str) -> None:
    """The plan has one input for all: two rates were one, whatever they were."""

    def optimizer(params: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=rates() if torch.distributed.is_initialized() else 0.01)

    with pytest.raises(CaptureError, match=re.escape(said)) as caught:
        capture(rated(optimizer), jobs=1)
    assert "one learning rate on both" in str(caught.value)


def test_groups_in_another_order_are_told_so() -> None:
    """Their rates are the same numbers: "another learning rate" would send their author the wrong way."""

    def optimizer(params: Any) -> torch.optim.Optimizer:
        weights, biases = [p for p in params if p.ndim > 1], [torch.nn.Parameter(torch.zeros(3))]
        groups: list[dict[str, Any]] = [{"params": weights, "lr": 0.1}, {"params": biases, "lr": 0.2}]
        return torch.optim.AdamW(groups[::-1] if torch.distributed.is_initialized() else groups)

    with pytest.raises(CaptureError, match="the groups of parameters in one order on both"):
        capture(rated(optimizer), jobs=1)


def test_a_learning_rate_in_a_tensor_is_the_number_that_it_holds() -> None:
    plan = capture(rated(lambda params: torch.optim.Adam(params, lr=torch.tensor(0.01))), jobs=1)
    assert "hyper.lr" in plan.specification.inputs


def test_an_optimizer_of_the_users_keeps_its_options() -> None:
    """What stands for a fast path in PyTorch's own optimizers is any program in another one."""
    plan = capture(rated(lambda params: Scaled(params, torch.distributed.is_initialized())), jobs=1)
    assert len(plan.classes[0].program.ops) < len(plan.specification.ops)
    alike = capture(rated(lambda params: Scaled(params, False)), jobs=1)
    assert len(alike.classes[0].program.ops) == len(alike.specification.ops)


def test_a_number_that_a_formula_reads_stays_a_tensor() -> None:
    """Outside of formulas there is no number to be had, and of plain numbers ``min`` is Python's own."""
    from torch.optim import _adafactor as formula

    before = vars(formula).get("min", min)
    used: set[str] = set()
    with FakeTensorMode(), capturable_on_cpu():
        x = torch.ones(1)
        with TensorNumbers(used):
            assert x.item().shape == () and used == {READ}
        with pytest.raises(DataDependentOutputException):
            x.item()
        assert vars(formula)["min"](x, 0.5).shape == x.shape and vars(formula)["max"](x, 2.0).shape == x.shape
        assert vars(formula)["min"](3, 2.0) == 2.0 and vars(formula)["max"]([1, 4], key=lambda n: -n) == 1
    assert vars(formula).get("min", min) is before


def with_adafactor() -> Definition:
    """A linear layer: its moments are factored, its bias' are not."""

    return Definition(
        name="adafactor",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 4),
        parallelize=lambda model, mesh: DistributedDataParallel(model),
        optimizer=lambda params: torch.optim.Adafactor(params, lr=1e-2, weight_decay=0.1),
        step=squared,
        batch={"x": Batch((4, 3), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


@pytest.mark.parametrize("held", ["the list that it was made of", "its group as it was made"])
def test_options_are_not_written_where_only_a_job_finds_them(held: str) -> None:
    """An optimizer keeps the dicts that it is given; that of a trace has others in their place."""
    kept: dict[str, Any] = {}

    def optimizer(params: Any) -> torch.optim.Optimizer:
        groups = [{"params": list(params)}]
        found = torch.optim.AdamW(groups, lr=0.1)
        kept["group"] = groups[0] if "list" in held else found.param_groups[0]
        return found

    def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        kept["group"]["weight_decay"] = 0.5
        return squared(model, optimizer, batch)

    with pytest.raises(CaptureError, match="writes weight_decay into a dict that the optimizer was made"):
        trace(replace(rated(optimizer), step=step), None)


@pytest.mark.slow
def test_adafactor_is_proved_where_a_rank_holds_whole_parameters() -> None:
    made = with_adafactor()
    plan = capture(made, jobs=1)
    assert READ in plan.provenance["shims"]  # type: ignore[operator]
    assert verify(plan, jobs=1).kind is Kind.PROVED
    assert run(plan, made, steps=2).largest < 1e-6


@torch.jit.script  # type: ignore[untyped-decorator]
def fused(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """TorchScript runs it otherwise after it has run twice."""
    return torch.tanh(x + bias) * 0.5


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fused(x @ self.inner.weight, self.inner.bias)


class Recurrent(nn.Module):
    """One op of oneDNN's on a CPU, and the formula elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x[:, None])[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [Scripted, Recurrent])
def test_what_pytorch_runs_in_ways_of_its_own_is_captured_as_it_is_written(build: Any) -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    given = Definition(
        name="own ways",
        mesh={"dp": 2},
        build=build,
        parallelize=lambda model, mesh: model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        step=step,
        batch={"x": Batch((2, 3))},
    )
    before = torch._C._get_mkldnn_enabled()
    plan = capture(given, jobs=1)
    assert any(op.name == "tanh" for op in plan.specification.ops)
    assert torch._C._get_mkldnn_enabled() == before


def test_whether_onednn_is_on_is_what_the_file_has_set() -> None:
    """Gradients were scaled in a trace only, where it is off."""
    assert torch.backends.mkldnn.enabled
    with one_path():
        assert torch.backends.mkldnn.enabled and torch._C._get_mkldnn_enabled()
        with torch.backends.mkldnn.flags(enabled=False):
            assert not torch.backends.mkldnn.enabled
        assert torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled
