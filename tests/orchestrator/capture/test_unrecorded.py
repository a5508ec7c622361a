"""What a dispatch mode does not see is refused: raw memory, threads, real tensors, counters in Python."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import linecache
import random
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException

from orchestrator.capture import Batch, Definition
from orchestrator.capture.checks import checked
from orchestrator.capture.errors import CaptureError, StateError
from orchestrator.capture.tracing import trace

Model, Optimizer = nn.Module, torch.optim.Optimizer
Results = Mapping[str, Tensor]
CALLS = torch.zeros(())
STEPS = {"done": 0}
KEPT: list[Tensor] = []
HERE = r"test_unrecorded\.py:\d+ in "


def train(model: Model, optimizer: Optimizer, batch: Results) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def after(more: Callable[[Any, Any], object]) -> Any:
    """A step that does ``more`` with model and optimizer at its end."""

    def step(model: Model, optimizer: Optimizer, batch: Results) -> dict[str, Tensor]:
        results = train(model, optimizer, batch)
        more(model, optimizer)
        return results

    return step


def definition(step: Any = train, **changes: Any) -> Definition:
    rows = Batch((4, 3))
    fields: dict[str, Any] = {
        "build": lambda: nn.Linear(3, 3),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        **changes,
    }
    return Definition(
        name="unrecorded",
        mesh={"dp": 2},
        parallelize=lambda model, mesh: model,
        step=step,
        batch={"x": rows, "y": rows},
        **fields,
    )


def refused(made: Definition, message: str, kind: type[CaptureError] = StateError) -> None:
    with pytest.raises(kind) as caught:
        trace(made, None)
    assert re.search(message, str(caught.value)), str(caught.value)


# --- raw memory -------------------------------------------------------------------------------------------


def decayed_in_memory(model: Any, _: Any) -> None:
    model.weight.untyped_storage().fill_(0)


def copied_in_memory(model: Any, _: Any) -> None:
    model.weight.untyped_storage().copy_(model.weight.detach().clone().untyped_storage())


def one_byte(model: Any, _: Any) -> None:
    model.weight.untyped_storage()[0] = 1


def through_ctypes(model: Any, _: Any) -> None:
    ctypes.memset(model.weight.data_ptr(), 0, 0)


def swallowed(model: Any, _: Any) -> None:
    with contextlib.suppress(Exception):
        model.weight.untyped_storage().fill_(0)


def one_number(model: Any, _: Any) -> None:
    model.weight.storage()[0] = 1.0


def copied_as_numbers(model: Any, _: Any) -> None:
    model.weight.storage().copy_(model.weight.detach().clone().storage())


def filled_with_a_number(model: Any, _: Any) -> None:
    model.weight.storage().fill_(0.0)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize(
    "more",
    [
        *(decayed_in_memory, copied_in_memory, one_byte, swallowed),
        *(one_number, copied_as_numbers, filled_with_a_number),
    ],
)
def test_a_raw_write_to_a_storage_is_refused(more: Any) -> None:
    refused(definition(after(more)), r"writes to a storage behind the tensors[\s\S]*" + HERE + more.__name__)


def through_dlpack(model: Any, _: Any) -> None:
    torch.utils.dlpack.to_dlpack(model.weight.detach())


def of_its_storage(model: Any, _: Any) -> None:
    model.weight.storage().data_ptr()


def of_its_bytes(model: Any, _: Any) -> None:
    model.weight.untyped_storage().data_ptr()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("more", [through_ctypes, through_dlpack, of_its_storage, of_its_bytes])
def test_the_address_of_a_tensor_is_refused(more: Any) -> None:
    """In a trace all addresses are 0: weights told apart by them would all be the same."""
    refused(definition(after(more)), r"asks for the memory of a tensor[\s\S]*" + HERE + more.__name__)


class Addressed(nn.Linear):
    """Its forward pass is called by PyTorch, and asks for an address."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data_ptr()
        return super().forward(x)


def test_an_address_that_the_model_itself_asks_for_is_refused() -> None:
    made = definition(build=lambda: Addressed(3, 3))
    refused(made, r"asks for the memory of a tensor[\s\S]*" + HERE + "forward")


# --- other threads ----------------------------------------------------------------------------------------


def test_a_helper_thread_that_writes_weights_is_refused() -> None:
    def decay(model: Any) -> None:
        with torch.no_grad():
            model.weight.mul_(0.99)

    def helped(model: Any, _: Any) -> None:
        thread = threading.Thread(target=decay, args=(model,))
        thread.start()
        thread.join()

    threading.excepthook, hook = lambda _args: None, threading.excepthook
    try:
        refused(definition(after(helped)), r"another thread works on tensors of the step[\s\S]*in decay")
    finally:
        threading.excepthook = hook


def in_a_pool(model: Any, _: Any) -> None:
    """Joined or not: in a trace all is in order, in a job another thread's collectives are in none."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(dist.all_reduce, model.weight.grad).result()


def waited_elsewhere(model: Any, _: Any) -> None:
    work = dist.all_reduce(model.weight.grad, async_op=True)
    thread = threading.Thread(target=work.wait)
    thread.start()


@pytest.mark.parametrize("more", [in_a_pool, waited_elsewhere])
def test_collectives_and_waits_of_other_threads_are_refused(
    more: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """An all-reduce in a thread pool was captured: no op ran in that thread, only the call."""

    def step(model: Model, optimizer: Optimizer, batch: Results) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        more(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    with pytest.raises(StateError) as caught:
        trace(definition(parallel_step=step), 0)
    text = str(caught.value)
    assert "another thread works on tensors of the step" in text and more.__name__ in text
    assert "async_op=True" in text and "Traceback" not in capsys.readouterr().err


# --- real tensors -----------------------------------------------------------------------------------------


def test_a_global_tensor_that_the_step_writes_is_refused() -> None:
    def warmed(model: Model, optimizer: Optimizer, batch: Results) -> dict[str, Tensor]:
        CALLS.add_(1)
        return train(model, optimizer, {"x": batch["x"] * CALLS.clamp(max=10.0), "y": batch["y"]})

    refused(definition(warmed), r"writes to a tensor that is no parameter, buffer[\s\S]*" + HERE + "warmed")


def test_a_global_tensor_that_is_only_read_is_a_literal() -> None:
    scale = torch.tensor(0.5)

    def scaled(model: Model, optimizer: Optimizer, batch: Results) -> dict[str, Tensor]:
        return train(model, optimizer, {"x": batch["x"] * scale, "y": batch["y"]})

    assert trace(definition(scaled), None).program.outputs


# --- numbers in Python ------------------------------------------------------------------------------------


class Lookahead(torch.optim.SGD):
    """Pulls the weights back every tenth step: two steps show nothing of that."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.count = getattr(self, "count", 0) + 1
        if self.count % 10 == 0:
            for p in self.param_groups[0]["params"]:
                p.data.mul_(0.5)


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (0.5 if self.calls % 100 == 0 else 1.0)


def stepped_in_state(model: Any, optimizer: Any) -> None:
    state = optimizer.state[model.weight]
    state["step"] = state.get("step", 0) + 1


def counted_globally(_: Any, __: Any) -> None:
    STEPS["done"] += 1


def scheduled(params: Any) -> Any:
    optimizer = torch.optim.SGD(params, lr=0.1)
    optimizer.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    return optimizer


def nonlocal_counter() -> Any:
    calls = 0

    def more(_: Any, __: Any) -> None:
        nonlocal calls
        calls += 1

    return after(more)


class Sometimes:
    """Ways to count that are no attribute of a module: each decides in a step that two do not show."""

    calls = 0
    numbers = itertools.count()
    items = iter(range(10**6))
    log: ClassVar[list[int]] = []

    @staticmethod
    def in_a_class(_: Any, __: Any) -> None:
        Sometimes.calls += 1

    @staticmethod
    def by_an_iterator(_: Any, __: Any) -> None:
        next(Sometimes.numbers)

    @staticmethod
    def by_items(_: Any, __: Any) -> None:
        next(Sometimes.items)

    @staticmethod
    def by_a_length(_: Any, __: Any) -> None:
        Sometimes.log.append(1)

    @staticmethod
    def in_a_default(_: Any, __: Any, calls: list[int] = [0]) -> None:  # noqa: B006
        calls[0] += 1

    @staticmethod
    def by_chance(model: Any, __: Any) -> None:
        if random.random() < 0.001:
            model.weight.data.mul_(0.5)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        (Sometimes.in_a_class, r"Sometimes\.calls"),
        (Sometimes.by_an_iterator, r"the position of Sometimes\.numbers"),
        (Sometimes.by_items, r"the position of Sometimes\.items"),
        (Sometimes.by_a_length, r"the position of Sometimes\.log"),
        (Sometimes.in_a_default, r"the defaults of "),
        (Sometimes.by_chance, "the random numbers of Python"),
    ],
)
def test_other_ways_to_count_are_named(more: Any, path: str) -> None:
    refused(definition(after(more)), rf"the step changes {path}")


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (definition(optimizer=lambda params: Lookahead(params, lr=0.1)), r"optimizer\.count"),
        (definition(build=Counting), r"model\.calls"),
        (definition(after(stepped_in_state)), r"optimizer\.state\[weight\]\['step'\]"),
        (definition(after(counted_globally)), r"STEPS\['done'\]"),
        (
            definition(after(lambda _, optimizer: optimizer.scheduler.step()), optimizer=scheduled),
            r"scheduler\.last_epoch",
        ),
        (definition(nonlocal_counter()), "calls"),
    ],
)
def test_a_counter_in_python_is_named(made: Definition, path: str) -> None:
    refused(made, rf"the step changes \S*{path}, which is no tensor, from \d+ to \d+")


@pytest.mark.parametrize("read", [lambda model: model.count > 20, lambda model: model.count.item() > 20])
def test_a_counter_in_a_buffer_decides_nothing(read: Callable[[Any], object]) -> None:
    """`torch.tensor(0)` knows its value in a trace: at the twentieth step it has another."""

    def build() -> Model:
        made = nn.Linear(3, 3)
        made.register_buffer("count", torch.tensor(0))
        return made

    def more(model: Any, _: Optimizer) -> None:
        if read(model):
            model.weight.data.mul_(2)
        model.count += 1

    with pytest.raises(DataDependentOutputException):
        trace(definition(after(more), build=build), None)


def test_a_global_counts_though_no_class_of_the_users_is_in_its_file() -> None:
    """The model is PyTorch's own: only the step's function leads to the list."""

    def step(model: Model, optimizer: Optimizer, batch: Results) -> dict[str, Tensor]:
        results = train(model, optimizer, batch)
        KEPT.append(results["loss"].detach())
        return results

    with pytest.raises(StateError, match="the step changes the position of KEPT"):
        trace(checked(definition(step, build=lambda: nn.Sequential(nn.Linear(3, 3)))), None)


@pytest.mark.parametrize(
    ("made", "code", "instead"),
    [
        (definition(build=Counting), "self.calls += 1", "a buffer or optimizer state"),
        (definition(after(counted_globally)), 'STEPS["done"] += 1', "count outside the step"),
        (
            definition(after(lambda _, optimizer: optimizer.scheduler.step()), optimizer=scheduled),
            "optimizer.scheduler.step()",
            "scheduler.step() outside of the step",
        ),
        (definition(nonlocal_counter()), "calls += 1", "a buffer or optimizer state"),
        (definition(after(Sometimes.by_a_length)), "Sometimes.log.append(1)", "among what the step returns"),
        (definition(after(Sometimes.by_items)), "next(Sometimes.items)", "an entry of the batch"),
        (definition(after(Sometimes.by_chance)), "if random.random() < 0.001:", "an entry of the batch"),
        (definition(after(stepped_in_state)), 'state["step"] = state.get("step", 0) + 1', "a buffer"),
    ],
)
def test_a_number_that_changes_is_told_with_the_line_that_changes_it(
    made: Definition, code: str, instead: str
) -> None:
    with pytest.raises(StateError) as caught:
        trace(made, None)
    (found,) = [p for p in caught.value.problems() if "which is no tensor" in p.message]
    assert found.frame is not None and found.frame[0] == __file__ and found.instead is not None
    assert code in linecache.getline(*found.frame[:2]) and instead in found.instead
