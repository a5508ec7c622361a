"""Places in which a count hides from a step's function: each decides long after what a trace shows."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import enum
import functools
import hashlib
import io
import itertools
import logging
import multiprocessing
import numbers as numbers_of_python
import queue
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.modules.module import register_module_forward_hook

from orchestrator.capture.counters import counted, numbers
from orchestrator.capture.errors import CaptureError
from orchestrator.capture.holding import followed, handed_out, kind, parts
from orchestrator.capture.tracing import trace

from .world import one_layer

Tick = Callable[[], object]
Made = tuple[nn.Module, torch.optim.Optimizer]


def plain() -> Made:
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def seen(made: Made, step: Any) -> str:
    """What is told of a step that is done twice before, as a trace's is."""
    before = dict(numbers(step, *made))
    step()
    step()
    first = dict(numbers(step, *made))
    step()
    error = counted(first, numbers(step, *made))
    assert before and error is not None, "nothing is noticed"
    return error.message


def counter() -> tuple[list[int], Callable[..., Any]]:
    """What a hook counts with, and the hook, which halves a gradient or result after fifty calls."""
    calls = [0]

    def hook(*given: Any) -> Any:
        calls[0] += 1
        last = given[-1] if given else None
        return last * 0.5 if calls[0] > 50 and isinstance(last, Tensor) else None

    return calls, hook


def of_gradient(model: Any, _: Any, hook: Any) -> Any:
    return model.weight.register_hook(hook)


def after_accumulation(model: Any, _: Any, hook: Any) -> Any:
    return model.weight.register_post_accumulate_grad_hook(hook)


def before_backward(model: Any, _: Any, hook: Any) -> Any:
    return model.register_full_backward_pre_hook(lambda module, grad: hook(module, grad))


def before_step(_: Any, optimizer: Any, hook: Any) -> Any:
    return optimizer.register_step_pre_hook(lambda *given: hook())


def after_step(_: Any, optimizer: Any, hook: Any) -> Any:
    return optimizer.register_step_post_hook(lambda *given: hook())


def of_all_modules(_: Any, __: Any, hook: Any) -> Any:
    return register_module_forward_hook(hook)


HOOKS = (of_gradient, after_accumulation, before_backward, before_step, after_step, of_all_modules)


@pytest.mark.parametrize("register", HOOKS)
def test_a_hook_may_count_wherever_it_hangs(register: Any) -> None:
    made = plain()
    handle = register(*made, counter()[1])
    try:
        assert "the step changes calls[0], which is no tensor, from 2 to 3" in seen(made, lambda: run(*made))
    finally:
        handle.remove()


def attribute_of_a_class() -> nn.Module:
    class Net(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return super().forward(x)

    return Net(2, 2)


def closure_of_a_method() -> nn.Module:
    calls = [0]

    class Net(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            calls[0] += 1
            return super().forward(x)

    return Net(2, 2)


def function_of_autograd() -> nn.Module:
    class Halved(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            Halved.calls += 1
            return grad

    class Net(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Halved.apply(super().forward(x))  # type: ignore[no-any-return]

    return Net(2, 2)


@pytest.mark.parametrize("build", [attribute_of_a_class, closure_of_a_method, function_of_autograd])
def test_a_class_that_is_local_to_build_may_count(build: Callable[[], nn.Module]) -> None:
    model = build()
    made = model, torch.optim.SGD(model.parameters(), lr=0.1)
    assert "calls" in seen(made, lambda: run(*made))


def called(tick: Tick) -> Any:
    """A step that reaches a count through its closure."""
    return lambda: tick()


def shared() -> Tick:
    calls = multiprocessing.Value("i", 0)

    def tick() -> None:
        calls.value += 1

    return tick


def of_c() -> Tick:
    calls = threading.local()
    calls.n = ctypes.c_int(0)

    def tick() -> None:
        calls.n.value += 1

    return tick


def queued() -> Tick:
    waiting: queue.Queue[int] = queue.Queue()
    return lambda: waiting.put(1)


def of_a_set() -> Tick:
    held = {0}
    return lambda: held.add(held.pop() + 1)


def of_a_frozen_set() -> Tick:
    held = frozenset({0})

    def tick() -> None:
        nonlocal held
        (n,) = held
        held = frozenset({n + 1})

    return tick


def of_a_range() -> Tick:
    held = range(100)

    def tick() -> None:
        nonlocal held
        held = held[1:]

    return tick


def averager() -> Tick:
    """PyTorch's own: it averages the models after a hundred steps."""
    found: Any = object.__new__(PeriodicModelAverager)
    found.step, found.warmup_steps, found.period = 0, 100, 4

    def tick() -> None:
        found.step += 1

    return tick


def turning() -> Tick:
    acts = deque([F.relu] * 9 + [F.gelu])
    return lambda: acts.rotate(-1)


def of_modules() -> Tick:
    """The last of them is met first by another name."""
    blocks, other = nn.ModuleList([nn.Linear(2, 2) for _ in range(9)]), nn.Linear(2, 2)
    turns = deque([blocks[0]] * 9 + [other])
    return lambda: (turns.rotate(-1), blocks)


def method_of_an_iterator() -> Tick:
    return itertools.count().__next__


def of_an_iterator_in_an_iterator() -> Tick:
    numbered = iter(itertools.count().__next__, -1)
    chained = itertools.chain(numbered)
    return lambda: next(chained)


def of_a_tensor() -> Tick:
    held: Any = torch.zeros(1)
    held.calls = 0

    def tick() -> None:
        held.calls += 1

    return tick


def text() -> Tick:
    log = io.StringIO()
    return lambda: log.write("x")


def of_a_large_list() -> Tick:
    held = [0] * 5000

    def tick() -> None:
        held[4321] += 1

    return tick


def object_of_a_local_class() -> Tick:
    calls = [0]

    class Ticking:
        def __call__(self) -> None:
            calls[0] += 1

    return Ticking()


def of_a_cache(size: int | None) -> Tick:
    """Who asks a cache again gets the same object."""

    @functools.lru_cache(maxsize=size)
    def state(name: str) -> dict[str, int]:
        return {"calls": 0}

    def tick() -> None:
        state("one")["calls"] += 1

    return tick


class Held:
    calls = 0


def of_a_member_of_a_set() -> Tick:
    held = {Held()}

    def tick() -> None:
        for member in held:
            member.calls += 1

    return tick


def behind_a_pointer() -> Tick:
    pointer = ctypes.pointer(ctypes.c_int(0))

    def tick() -> None:
        pointer.contents.value += 1

    return tick


def of_annotations() -> Tick:
    def tick() -> None:
        tick.__annotations__["calls"] = tick.__annotations__.get("calls", 0) + 1

    tick()
    return tick


def of_a_name() -> Tick:
    def tick() -> None:
        tick.__name__ += "."

    return tick


def of_a_logger() -> Tick:
    logging.getLogger("of mine").calls = 0  # type: ignore[attr-defined]

    def tick() -> None:
        logging.getLogger("of mine").calls += 1  # type: ignore[attr-defined]

    return tick


def of_a_thread() -> Tick:
    threading.current_thread().calls = 0  # type: ignore[attr-defined]

    def tick() -> None:
        threading.current_thread().calls += 1  # type: ignore[attr-defined]

    return tick


class Trainer:
    def __init__(self) -> None:
        self.calls = 0

    def close(self) -> None: ...


def known(weakly: Callable[[Trainer], Any], get: Callable[[Any], Trainer]) -> Tick:
    """A trainer that an exit handler holds, and that the step knows weakly."""
    trainer = Trainer()
    atexit.register(trainer.close)
    kept = weakly(trainer)

    def tick() -> None:
        get(kept).calls += 1

    return tick


WEAKLY: tuple[tuple[Callable[[Trainer], Any], Callable[[Any], Trainer]], ...] = (
    (weakref.ref, lambda kept: kept()),
    (weakref.proxy, lambda kept: kept),
    (lambda trainer: weakref.WeakMethod(trainer.close), lambda kept: kept().__self__),
    (lambda trainer: weakref.finalize(trainer, print), lambda kept: kept.peek()[0]),
    (lambda trainer: weakref.WeakSet([trainer]), lambda kept: next(iter(kept))),
    (lambda trainer: weakref.WeakKeyDictionary({trainer: 1}), lambda kept: next(iter(kept))),
    (lambda trainer: weakref.WeakValueDictionary({1: trainer}), lambda kept: kept[1]),
    (lambda trainer: {trainer: 1}, lambda kept: next(iter(kept))),
)


TICKS = (
    *(functools.partial(known, *each) for each in WEAKLY),
    functools.partial(of_a_cache, None), functools.partial(of_a_cache, 8), of_a_member_of_a_set,
    behind_a_pointer, of_annotations, of_a_name, of_a_logger, of_a_thread,
    shared, of_c, queued, of_a_set, of_a_frozen_set, of_a_range, averager, turning, of_modules,
    method_of_an_iterator, of_an_iterator_in_an_iterator, text, of_a_tensor, of_a_large_list,
    object_of_a_local_class,
)  # fmt: skip


@pytest.mark.parametrize("make", TICKS)
def test_whatever_holds_a_count_is_looked_into(make: Callable[[], Tick]) -> None:
    assert "which is no tensor, from" in seen(plain(), called(make()))


def stepping(change: Callable[[Any], object]) -> Callable[..., Any]:
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        model(batch["x"]).square().mean().backward()
        change(optimizer.param_groups[0])
        optimizer.step()
        optimizer.zero_grad()
        return {}

    return step


def test_an_option_of_a_group_counts_and_a_rate_that_is_kept_may_be_another_one() -> None:
    """A scheduler outside changes the rate: what a step has kept of it is the one of the step before."""
    kept: dict[str, Any] = {}
    adam = functools.partial(torch.optim.AdamW, lr=0.1)
    changes: list[tuple[Callable[[Any], object], str]] = [
        (lambda group: group.__setitem__("k", group.get("k", 0) + 1), "optimizer.param_groups[0]['k']"),
        (lambda group: kept.__setitem__("lr", group["lr"]), "kept['lr']"),
    ]
    for change, name in changes:
        with pytest.raises(CaptureError, match="which is no tensor, from") as told:
            trace(replace(one_layer("kept", stepping(change)), optimizer=adam), None)
        assert f"the step changes {name}" in str(told.value)
    trace(replace(one_layer("read", stepping(lambda group: group["lr"] * 2)), optimizer=adam), None)


def test_what_is_asked_again_or_made_anew_counts_nothing() -> None:
    held: list[Any] = [None]
    known = functools.lru_cache(lambda n: n)

    class Told:
        n = 0

    def step() -> None:
        held[0] = Told()
        known(1)

    made = plain()
    step()
    before = dict(numbers(step, *made))
    step()
    assert counted(before, numbers(step, *made)) is None


def test_parts_of_an_object_and_what_they_are() -> None:
    class Holder:
        __slots__ = ("n",)

        def __init__(self) -> None:
            self.n = 1

    assert dict(parts("it", Holder()))["it.n"] == 1
    assert (kind(Holder()), kind(len)) == ("test_parts_of_an_object_and_what_they_are.<locals>.Holder", "len")
    assert followed([]) and followed(nn.Linear(1, 1)) and not followed(queue.Queue())


class Turn(enum.Enum):
    LEFT = 1


class Name(str):
    """A text that can hold more; without slots it has a dictionary."""


class Length(numbers_of_python.Number):
    def __hash__(self) -> int:
        return 1


class Weight(float):
    """A number that can."""


@pytest.mark.parametrize("held", [Turn.LEFT, Name("a"), Length(), Weight(1.0)])
def test_an_attribute_of_a_plain_value_of_the_users_counts(held: Any) -> None:
    held.calls = 0

    def ticked() -> None:
        held.calls += 1

    assert "calls" in seen(plain(), ticked)


def test_the_documentation_of_a_class_counts() -> None:
    class Told:
        """0"""

    def ticked() -> None:
        Told.__doc__ = str(int(Told.__doc__ or "0") + 1)

    assert "Told.__doc__" in seen(plain(), ticked)


def test_the_order_of_keys_a_data_base_and_a_large_array_count() -> None:
    """Whose turn it is among ten, rows of a table, a number in front of 32 MB."""
    turns = dict.fromkeys("abcdefghij")
    base = sqlite3.connect(":memory:")
    base.execute("create table calls (n int)")
    large = np.zeros(1 << 22)

    def turn() -> None:
        first = next(iter(turns))
        turns[first] = turns.pop(first)

    def insert() -> None:
        base.execute("insert into calls values (1)")

    def write() -> None:
        large[0] += 1

    assert "the position of turns" in seen(plain(), turn)
    assert "the position of base" in seen(plain(), insert)
    assert "the position of large" in seen(plain(), write)


def test_a_simple_queue_counts_by_its_length() -> None:
    held: queue.SimpleQueue[int] = queue.SimpleQueue()
    assert "the position of held" in seen(plain(), lambda: held.put(1))


def test_how_far_a_file_is_read_counts_and_what_is_written_does_not(tmp_path: Any) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("one\ntwo\nthree\nfour\n" * 10000, encoding="utf-8")
    with path.open(encoding="utf-8") as held, (tmp_path / "log.txt").open("w", encoding="utf-8") as log:
        assert "the position of held" in seen(plain(), lambda: held.readline())
        with pytest.raises(AssertionError, match="nothing is noticed"):
            seen(plain(), lambda: log.write("a line"))


def test_a_logger_that_is_made_in_a_step_counts_nothing() -> None:
    """Whatever is imported late makes some."""
    logging.getLogger("first of mine")

    def step() -> None:
        logging.getLogger("another of mine").info("done")

    made = plain()
    before = dict(numbers(step, *made))
    step()
    assert counted(before, numbers(step, *made)) is None


def test_how_far_a_file_is_written_counts_for_code_that_asks_for_it(tmp_path: Any) -> None:
    """`if log.tell() > 10_000: return` ends a step's work one day; who only writes a log decides nothing."""
    log, space = (tmp_path / "log.txt").open("w"), dict[str, Any]()
    for last in ("", "; log.tell()"):  # nothing of this module may have the name
        exec(compile(f"def write(log): log.write('line'){last}", __file__, "exec"), space)
        step, made = functools.partial(space["write"], log), plain()
        before = dict(numbers(step, *made))
        step()
        error = counted(before, numbers(step, *made))
        assert (error is not None and "the end of step.args[0]" in error.message) == bool(last), error


def test_coroutines_and_asynchronous_generators_count() -> None:
    class Step:
        def __await__(self) -> Any:
            yield None

    async def count() -> None:
        n = 0
        while True:
            n += 1
            await Step()

    async def each() -> Any:
        n = 0
        while True:
            n += 1
            yield n

    one, many = count(), each()
    assert "changes" in seen(plain(), lambda: one.send(None))

    def next_of_many() -> None:
        with contextlib.suppress(StopIteration):
            many.__anext__().send(None)

    assert "changes" in seen(plain(), next_of_many)
    one.close()


def test_digests_and_generators_of_pytorch_count() -> None:
    digest, generator = hashlib.md5(), torch.Generator()
    assert "the position of digest" in seen(plain(), lambda: digest.update(b"x"))
    again = seen(plain(), lambda: generator.manual_seed(generator.initial_seed() + 1))
    assert "the position of generator" in again


def test_what_lies_in_a_large_container_counts() -> None:
    held = {i: [0] for i in range(2000)}

    def ticked() -> None:
        held[5][0] += 1

    assert "held[5][0]" in seen(plain(), ticked)


def test_an_attribute_that_the_user_gave_to_ddp_counts_and_its_own_do_not() -> None:
    """What its own code sets are its counters."""

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self) -> None:
            self.steps += 1

    Wrapper.__module__ = "torch.nn.parallel.some"
    wrapper = Wrapper()
    made = wrapper, torch.optim.SGD([torch.zeros(1)], lr=0.1)
    with pytest.raises(AssertionError, match="nothing is noticed"):
        seen(made, functools.partial(wrapper))
    wrapper.calls = 0
    before = dict(numbers(run, *made))
    wrapper.calls += 1
    error = counted(before, numbers(run, *made))
    assert error is not None and "model.calls" in error.message


def test_levels_and_handlers_of_loggers_count() -> None:
    """`logger.setLevel(logger.level + 1)` counts in an attribute of Python's own."""
    logging.getLogger("step").setLevel(7)
    held = dict(handed_out({"getLogger"}))["the logger step"]
    assert isinstance(held, dict) and held["level"] == 7 and held["handlers"] == []
    assert not {"manager", "parent", "_cache"} & held.keys() and not dict(handed_out({"print"}))
    logging.getLogger("step").setLevel(logging.NOTSET)


def test_an_exception_holds_what_it_was_made_with_and_where_it_has_been() -> None:
    """One that is raised again in every step counts the steps."""
    cause, kept = KeyError("a"), ValueError("b", 7)

    def raised() -> None:
        try:
            raise kept from cause
        except ValueError:
            pass

    raised()
    once = dict(parts("kept", kept))
    assert once["kept.args"] == ["b", 7] and once["kept.__cause__"] is cause
    raised()
    assert len(dict(parts("kept", kept))["kept.__traceback__"]) == len(once["kept.__traceback__"]) + 1
