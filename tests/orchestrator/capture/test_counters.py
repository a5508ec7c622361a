"""Numbers in Python that a step can reach: a counter that is not seen makes one step stand for all."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import mmap
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import CellType, MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp._exec_order_utils import _ExecOrderData
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from orchestrator import cells
from orchestrator.capture.counters import Numbers, counted, line_of, numbers, place_of


class Counting(nn.Linear):
    calls = 0


def model() -> tuple[nn.Module, torch.optim.Optimizer]:
    made = Counting(2, 2)
    return made, torch.optim.SGD(made.parameters(), lr=0.1)


def step() -> None: ...


def hook(kind: str) -> Callable[[nn.Module], Numbers]:
    """A module's hook that holds a counter."""

    def change(made: nn.Module) -> Numbers:
        held = {"calls": 0}

        def called(*_: Any, held: Any = held) -> None: ...

        getattr(made, kind)(called)
        return held

    return change


@pytest.mark.parametrize(
    "kind", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_a_counter_in_a_hook_is_seen(kind: str) -> None:
    made, optimizer = model()
    held: Any = hook(kind)(made)
    before = dict(numbers(step, made, optimizer))
    held["calls"] += 1
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and "calls" in error.message and "from 0 to 1" in error.message


@pytest.mark.parametrize("name", ["calls", "_calls", "training"])
def test_an_attribute_of_a_module_counts_public_or_private(name: str) -> None:
    made, optimizer = model()
    setattr(made, name, 0)
    before = dict(numbers(step, made, optimizer))
    setattr(made, name, 1)
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and f"model.{name}" in error.message


def test_a_module_that_the_step_holds_counts_like_the_model() -> None:
    """A teacher, a loss module: in a closure, a global or an object of the user's."""
    made, optimizer = model()
    teacher = nn.Sequential(nn.Linear(2, 2))
    teacher[0]._calls = 0

    def taught() -> object:
        return teacher

    before = dict(numbers(taught, made, optimizer))
    teacher[0]._calls = 1
    error = counted(before, numbers(taught, made, optimizer))
    assert error is not None and "teacher.0._calls" in error.message


@pytest.mark.parametrize("name", ["calls", "_calls"])
def test_an_attribute_of_an_optimizer_counts_public_or_private(name: str) -> None:
    made, optimizer = model()
    setattr(optimizer, name, 0)
    before = dict(numbers(step, made, optimizer))
    setattr(optimizer, name, 1)
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and f"optimizer.{name}" in error.message


def test_the_attributes_of_an_optimizer_and_its_groups_count() -> None:
    made, optimizer = model()
    before = dict(numbers(step, made, optimizer))
    optimizer.param_groups[0]["momentum"] = 0.5
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and "param_groups[0]['momentum']" in error.message


def test_a_generator_counts_by_its_position_and_its_variables() -> None:
    def count() -> Iterator[int]:
        n = 0
        while n < 3:
            n += 1
            yield n

    made, optimizer = model()
    source = count()

    def reads() -> int:
        return next(source)

    before = dict(numbers(reads, made, optimizer))
    reads()
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and "a later step may do something else" in error.message
    first = dict(numbers(reads, made, optimizer))
    reads()
    error = counted(first, numbers(reads, made, optimizer))
    assert error is not None and "changes n," in error.message and "from 1 to 2" in error.message
    assert list(source) == [3]  # its frame is gone
    assert numbers(reads, made, optimizer)["the position of source"] == -1


@pytest.mark.parametrize(("depth", "seen"), [(30, True), (45, False)])
def test_containers_are_followed_to_a_depth(depth: int, seen: bool) -> None:
    innermost: list[Any] = [0]
    held: list[Any] = innermost
    for _ in range(depth):
        held = [held]

    def reads() -> Any:
        return held

    made, optimizer = model()
    before = dict(numbers(reads, made, optimizer))
    innermost[0] = 1
    assert (counted(before, numbers(reads, made, optimizer)) is not None) == seen


class Lazy(dict[str, Any]):
    """A dictionary that would import what it can give, as a registry of models does."""

    def items(self) -> Any:
        raise ImportError("a model that needs another library")

    def __len__(self) -> int:
        raise ImportError("a model that needs another library")


def test_a_lazy_dictionary_counts_by_what_it_holds() -> None:
    held = Lazy(calls=0)

    def reads() -> Any:
        return held

    made, optimizer = model()
    before = dict(numbers(reads, made, optimizer))
    held["calls"] = 1
    assert counted(before, numbers(reads, made, optimizer)) is not None
    before = dict(numbers(reads, made, optimizer))
    held["more"] = None
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and "the position of held" in error.message


def test_the_line_that_changes_a_number_is_found() -> None:
    """The line of the definition says nothing to somebody who has to find `n += 1` in a large project."""
    made, optimizer = model()
    held = {"calls": 0, "others": 0}

    def helps() -> int:
        held["others"] += 1
        return 1

    def reads() -> None:
        held["others"] += 1
        held["calls"] += helps()
        held["others"] += 1

    place = place_of("held['calls']", reads, made, optimizer)
    assert place is not None and place.holder is held
    first = reads.__code__.co_firstlineno
    assert line_of(place.read, reads) == (__file__, first + 2, "reads")
    assert line_of(lambda: held["others"], reads) == (__file__, first + 1, "reads")
    assert line_of(lambda: 0, reads) is None


def test_a_number_that_a_library_changes_is_told_at_the_line_that_calls_it() -> None:
    made, optimizer = model()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)

    def schedules() -> None:
        optimizer.step()
        scheduler.step()

    place = place_of("scheduler.last_epoch", schedules, made, optimizer)
    assert place is not None and place.holder is scheduler
    line = schedules.__code__.co_firstlineno + 2
    assert line_of(place.read, schedules) == (__file__, line, "schedules")


def changes_nothing() -> None: ...


def test_a_run_that_fails_leaves_a_refusal_without_a_line() -> None:
    made, optimizer = model()

    def fails() -> None:
        raise ValueError

    made.calls = 1
    before = dict(numbers(changes_nothing, made, optimizer))
    made.calls = 2
    error = counted(
        before,
        numbers(changes_nothing, made, optimizer),
        lambda path: place_of(path, changes_nothing, made, optimizer),
        fails,
    )
    assert error is not None and error.frame is None and "model.calls" in error.message


# --- what a step can count with, and keep out of sight ------------------------------------------------------


class Slotted:
    __slots__ = ("__hidden", "n")

    def __init__(self) -> None:
        self.n = 0
        self.__hidden = 0

    def hide(self) -> None:
        self.__hidden += 1


class Named(dict[str, int]):
    n = 0


class Ticking:
    @staticmethod
    def tick(held: list[int] = [0]) -> None:  # noqa: B006
        held[0] += 1

    @property
    def ticks(self, held: list[int] = [0]) -> int:  # noqa: B006
        held[0] += 1
        return held[0]


class Scalar:
    value: Any = np.int64(0)


def _from() -> Iterator[int]:
    yield from itertools.cycle([1, 1, 0])


LOCAL, SPACE, SLOTTED, NAMED, TICKING, ARRAY = (
    threading.local(),
    SimpleNamespace(n=0),
    Slotted(),
    Named(),
    Ticking(),
    np.zeros(2),
)
LOCAL.n = 0
CONTEXT: ContextVar[int] = ContextVar("CONTEXT", default=0)
CACHED = functools.lru_cache(lambda n: n)
CYCLE, NUMBERED, FROM = (
    itertools.cycle([1, 1, 0]),
    enumerate(iter(int, 1)),
    _from(),
)


def _add(holder: Any, name: str = "n") -> None:
    setattr(holder, name, getattr(holder, name) + 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: _add(LOCAL), "LOCAL.n, which is no tensor, from 0 to 1"),
        (lambda: _add(SPACE), "SPACE.n, which is no tensor, from 0 to 1"),
        (lambda: _add(SLOTTED), "SLOTTED.n, which is no tensor, from 0 to 1"),
        (lambda: SLOTTED.hide(), "SLOTTED._Slotted__hidden, which is no tensor, from 0 to 1"),
        (lambda: _add(Scalar, "value"), "Scalar.value, which is no tensor, from np.int64(0) to np.int64(1)"),
        (lambda: ARRAY.__setitem__(0, 1), "the position of ARRAY, which is no tensor, from [0.0, 0.0]"),
        (lambda: CONTEXT.set(CONTEXT.get() + 1), "CONTEXT, which is no tensor, from 0 to 1"),
        (lambda: CACHED(object()), "the position of CACHED"),
        (lambda: TICKING.tick(), "the defaults of "),
        (lambda: TICKING.ticks, "the defaults of "),
        (lambda: next(CYCLE), "CYCLE"),
        (lambda: next(NUMBERED), "NUMBERED"),
        (lambda: next(FROM), "what FROM yields from"),
        (
            lambda: os.environ.__setitem__("COUNT_OF_STEPS", "1"),
            "COUNT_OF_STEPS, which is no tensor",
        ),
        (lambda: torch.manual_seed(torch.initial_seed() + 1), "the seed of PyTorch"),
        (lambda: cells.__setattr__("counted_here", 1), "counted_here, which is no tensor, from 0 to 1"),
    ],
)
def test_numbers_out_of_sight_are_seen(
    change: Callable[[], object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNT_OF_STEPS", "0")
    monkeypatch.setattr(cells, "counted_here", 0, raising=False)
    # Its own file, in place of a user's: this package's are not.
    monkeypatch.setattr(cells, "__file__", __file__)
    _add(NAMED)
    TICKING.tick()
    next(CYCLE)
    next(FROM)

    def reads() -> Any:
        return LOCAL, SPACE, SLOTTED, Scalar, ARRAY, CONTEXT, CACHED, TICKING, CYCLE, NUMBERED, FROM, cells

    made, optimizer = model()
    before = dict(numbers(reads, made, optimizer))
    assert counted(before, numbers(reads, made, optimizer)) is None
    change()
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and says in error.message


def test_attributes_of_parameters_and_of_mappings_are_seen() -> None:
    made, optimizer = model()
    made.weight.calls = 0  # type: ignore[union-attr]
    held = Named()
    held.n = 0

    def reads() -> Any:
        return held

    before = dict(numbers(reads, made, optimizer))
    made.weight.calls = 1  # type: ignore[union-attr]
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and "model.weight.calls" in error.message
    before = dict(numbers(reads, made, optimizer))
    held.n = 1
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and "held.n" in error.message


def test_a_cache_that_is_asked_again_and_a_large_array_count_nothing() -> None:
    CACHED(1)
    table = np.zeros((1 << 28) + 1, dtype=np.int8)  # its pages are made when they are written

    def reads() -> Any:
        return CACHED, table

    made, optimizer = model()
    before = dict(numbers(reads, made, optimizer))
    CACHED(1)
    assert counted(before, numbers(reads, made, optimizer)) is None
    table[0] = 1
    assert counted(before, numbers(reads, made, optimizer)) is None


def test_variables_of_one_name_in_two_closures_are_two() -> None:
    def counter() -> Callable[[], int]:
        n = 0

        def tick() -> int:
            nonlocal n
            n += 1
            return n

        return tick

    made, optimizer = model()
    first, second = counter(), counter()

    def reads() -> Any:
        return first, second

    before = dict(numbers(reads, made, optimizer))
    first()
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and "the step changes n, which is no tensor, from 0 to 1" in error.message
    before = dict(numbers(reads, made, optimizer))
    second()
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and "the step changes n (2), which is no tensor, from 0 to 1" in error.message


__ticks = 0


def test_a_global_with_two_underscores_counts() -> None:
    """Python itself gives names with two at both ends only."""

    def ticked() -> None:
        global __ticks
        __ticks += 1

    made, optimizer = model()
    before = dict(numbers(ticked, made, optimizer))
    ticked()
    error = counted(before, numbers(ticked, made, optimizer))
    assert error is not None and "__ticks" in error.message


def test_a_module_that_only_the_step_imports_counts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a name in the code, or by a text that names it."""
    (tmp_path / "helper_of_a_step.py").write_text("calls = 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def counts() -> None:
        import helper_of_a_step  # type: ignore[import-not-found]

        helper_of_a_step.calls += 1

    def by_text() -> None:
        importlib.import_module("helper_of_a_step").calls += 1

    made, optimizer = model()
    for ticked in (counts, by_text):
        ticked()
        before = dict(numbers(ticked, made, optimizer))
        ticked()
        error = counted(before, numbers(ticked, made, optimizer))
        assert error is not None and "changes calls" in error.message
    del sys.modules["helper_of_a_step"]


@pytest.mark.parametrize("name", ["_calls", "calls", "__calls__"])
def test_an_attribute_of_a_parameter_counts_public_or_private(name: str) -> None:
    made, optimizer = model()
    setattr(made.weight, name, 0)
    before = dict(numbers(step, made, optimizer))
    setattr(made.weight, name, 1)
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and f"model.weight.{name}" in error.message


def test_the_defaults_of_an_optimizer_count_and_so_does_one_in_another() -> None:
    made, optimizer = model()
    optimizer.inner = torch.optim.Adam(made.parameters())
    for held, path in ((optimizer, "optimizer.defaults"), (optimizer.inner, "optimizer.inner.defaults")):
        before = dict(numbers(step, made, optimizer))
        held.defaults["calls"] = held.defaults.get("calls", 0) + 1
        before |= {f"{path}['calls']": 0}
        error = counted(before, numbers(step, made, optimizer))
        assert error is not None and path in error.message
    optimizer.inner.state[made.weight]["calls"] = 0
    before = dict(numbers(step, made, optimizer))
    optimizer.inner.state[made.weight]["calls"] = 1
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and "optimizer.inner.state" in error.message


def _steps(lines: str, **scope: object) -> Callable[[], object]:
    """A step of a file that names nothing else; a function inside of it says ``lines``."""
    text = f"def step():\n    def inner():\n        {lines}\n    inner()\n"
    exec(compile(text, "/users/own.py", "exec"), scope)
    return scope["step"]  # type: ignore[return-value]


@pytest.mark.parametrize("hits", [False, True])
def test_hits_of_a_cache_count_where_the_code_asks_for_them(hits: bool) -> None:
    """`if table.cache_info().hits % 100 == 99` counts steps; who only uses the cache is left alone."""
    table = functools.lru_cache(len)
    step = _steps("table('a')" + "; table.cache_info().hits > 1000" * hits, table=table)
    step()
    before = numbers(step, *model())
    step()
    error = counted(before, numbers(step, *model()))
    assert (error is not None) == hits and (error is None or "the hits of table" in error.message)


@pytest.mark.parametrize("asks", [False, True])
def test_what_fsdp_notes_for_a_backward_pass_counts_where_the_code_names_it(asks: bool) -> None:
    """A frozen teacher under FSDP2 has forward passes alone, and notes each: that was refused."""
    noted = object.__new__(FSDPParamGroup)
    vars(noted)["_post_forward_indices"] = []
    made, optimizer = model()
    made.register_forward_hook(noted.post_forward)
    looks = "; len(noted._post_forward_indices) > 1000" * asks
    step = _steps("vars(noted)['_post_forward_' + 'indices'].append(1)" + looks, noted=noted)
    before = numbers(step, made, optimizer)
    step()
    error = counted(before, numbers(step, made, optimizer))
    assert (error is not None) == asks


@pytest.mark.parametrize("asks", [False, True])
def test_iterations_of_fsdp_count_where_the_code_names_them(asks: bool) -> None:
    """The first ``FullyShardedDataParallel`` counts them, and asks for nothing but the first."""
    order = object.__new__(_ExecOrderData)
    vars(order)["_iter"] = 1
    made, optimizer = model()
    made.order = order
    step = _steps("vars(model.order)['_' + 'iter'] += 1" + "; model.order._iter > 1000" * asks, model=made)
    before = numbers(step, made, optimizer)
    step()
    error = counted(before, numbers(step, made, optimizer))
    assert (error is not None) == asks


def test_bytes_of_mapped_memory_count() -> None:
    memory = mmap.mmap(-1, 8)

    def step() -> None:
        memory[0] += 1

    before = numbers(step, *model())
    step()
    error = counted(before, numbers(step, *model()))
    assert error is not None and "the position of memory" in error.message


class Chained:
    """A list of objects, each of which has the one before."""

    __slots__ = ("before",)

    def __init__(self, before: object) -> None:
        self.before = before


@pytest.mark.parametrize(
    ("first", "following", "says"),
    [
        (("a",), lambda x: (*x, "a"), "the position of held.x, which is no tensor, from 2 to 3"),
        (Chained(None), Chained, "held.x.before.before, which is no tensor, from None to an object"),
        (MappingProxyType({}), lambda x: MappingProxyType({**x, len(x): 1}), "the position of held.x"),
        ({}.keys(), lambda x: dict.fromkeys((*x, len(x))).keys(), "the position of held.x"),
        (CellType(1), lambda x: CellType(x.cell_contents + 1), "held.x, which is no tensor, from 2 to 3"),
        (torch.zeros(2, 0), lambda x: torch.zeros(2, x.shape[1] + 1), "the shape of held.x"),
    ],
)
def test_what_takes_the_place_of_a_thing_may_count(
    first: object, following: Callable[[Any], object], says: str
) -> None:
    """``seen = (*seen, x)``: nothing changes, but the name is bound to more."""
    held = SimpleNamespace(x=first)

    def step() -> None:
        held.x = following(held.x)

    made, optimizer = model()
    step()
    before, kept = dict(numbers(step, made, optimizer)), held.x
    step()
    assert held.x is not kept
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and says in error.message


def test_equal_things_in_the_place_of_others_count_nothing() -> None:
    held = SimpleNamespace(x=None)

    def step() -> None:
        held.x = (1, "a", MappingProxyType({"b": Chained(CellType(2.5))}), torch.zeros(3))

    made, optimizer = model()
    step()
    before = dict(numbers(step, made, optimizer))
    step()
    assert counted(before, numbers(step, made, optimizer)) is None


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("sys.modules['one more'] = sys", "how many modules code has named"),
        ("logging.getLogger(str(len(logging.root.manager.loggerDict)))", "how many loggers there are"),
        ("warnings.warn('x' * len(globals()['__warningregistry__']))", "what was warned of"),
    ],
)
def test_what_python_keeps_for_a_process_counts_where_the_code_names_it(
    lines: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    step = _steps(lines, sys=sys, logging=logging, warnings=warnings, __warningregistry__={})
    before = numbers(step, *model())
    with warnings.catch_warnings(record=True):
        step()
    error = counted(before, numbers(step, *model()))
    assert error is not None and says in error.message


class Pair:
    __slots__ = ("first", "second")

    def __init__(self) -> None:
        self.first = "done"


class Bare: ...


#: What a step may hold, and what gives it one more name.
GAINS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "a namespace": (SimpleNamespace, lambda held: setattr(held, "step1", "done")),
    "an object": (Bare, lambda held: setattr(held, "step1", "done")),
    "slots": (Pair, lambda held: setattr(held, "second", "done")),
    "a slot that is emptied": (Pair, lambda held: delattr(held, "first")),
    "a tensor": (lambda: torch.zeros(2), lambda held: setattr(held, "warm1", True)),
    "modules": (nn.Module, lambda held: held.add_module("n1", nn.Identity())),
    "modules inside": (lambda: nn.Sequential(nn.Module()), lambda held: held[0].add_module("n", nn.Module())),
    "buffers": (nn.Module, lambda held: held.register_buffer("n1", torch.zeros(1))),
    "parameters": (nn.Module, lambda held: held.register_parameter("n1", None)),
    "a function": (lambda: lambda: None, lambda held: setattr(held, "step1", "done")),
    "a class": (lambda: type("Local", (), {}), lambda held: setattr(held, "step1", "done")),
    "a partial": (lambda: functools.partial(step), lambda held: setattr(held, "step1", "done")),
}


@pytest.mark.parametrize("name", GAINS)
def test_an_attribute_that_appears_or_vanishes_counts(name: str) -> None:
    """``setattr(history, f"step{n}", …)`` counts steps; all that was compared was there before and after."""
    made, optimizer = model()
    make, change = GAINS[name]
    made.held = make()
    before = numbers(step, made, optimizer)
    assert counted(before, numbers(step, made, optimizer)) is None
    change(made.held)
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and error.message.startswith("the step changes the attributes of ")
    assert " entries: a later step" in error.message


def test_what_is_made_anew_alike_is_no_other() -> None:
    made, optimizer = model()
    made.held = SimpleNamespace(a=1)  # type: ignore[assignment]
    before = numbers(step, made, optimizer)
    made.held = SimpleNamespace(a=1)  # type: ignore[assignment]
    assert counted(before, numbers(step, made, optimizer)) is None
