"""What code has put on modules and classes of libraries: a counter there decides as one in its own file does.

``dist.all_reduce = counting(dist.all_reduce)``: every hundredth gradient is not summed, and nothing that the
step names holds the count.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from orchestrator.capture import grafted
from orchestrator.capture.counters import counted, numbers


def counting(original: Any) -> Any:
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*args, **kwargs) if calls % 100 else None

    return call


class Skipping:
    def __init__(self, original: Any) -> None:
        self.original, self.calls = original, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1


@pytest.fixture(autouse=True)
def _looked_for_anew() -> Iterator[None]:
    grafted.functions.cache_clear()
    yield
    grafted.functions.cache_clear()


def changed(step: Callable[[], object]) -> str | None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = dict(numbers(step, model, optimizer))
    step()
    error = counted(before, numbers(step, model, optimizer))
    return None if error is None else error.message


@pytest.mark.parametrize("wrap", [counting, Skipping, lambda f: functools.partial(counting(f))])
def test_a_function_that_stands_for_a_libraries_may_count(monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    monkeypatch.setattr(dist, "get_rank", wrap(lambda: 0))
    assert "calls" in str(changed(lambda: dist.get_rank()))


def test_so_may_a_method_of_a_libraries_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.SGD, "zero_grad", counting(torch.optim.SGD.zero_grad))
    optimizer = torch.optim.SGD([torch.zeros(2)], lr=0.1)
    assert "calls" in str(changed(optimizer.zero_grad))


def test_an_optimizer_wraps_what_stands_for_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.SGD, "step", counting(lambda self: None))
    optimizer = torch.optim.SGD([torch.zeros(2)], lr=0.1)
    assert "optim" in torch.optim.SGD.step.__code__.co_filename
    assert "calls" in str(changed(optimizer.step))


def on_a_module() -> None:
    dist.lies = getattr(dist, "lies", 0) + 1  # type: ignore[attr-defined]


def on_a_class() -> None:
    torch.nn.Module.lies += 1  # type: ignore[operator]


def by_text() -> None:
    setattr(math, "lies", math.lies + 1)  # type: ignore[attr-defined]  # noqa: B010


def by_dictionary() -> None:
    vars(math)["lies"] += 1


def on_a_function() -> None:
    inspect.getdoc.lies += 1  # type: ignore[attr-defined]


def on_a_functions_defaults() -> None:
    inspect.getdoc.__annotations__["lies"] += 1


def by_a_function() -> None:
    """Nobody names the module whose variable this is."""
    scope = nn.Linear.forward.__globals__
    scope["lies"] = scope["lies"] + 1


@pytest.mark.parametrize("step", [on_a_function, on_a_functions_defaults, by_a_function])
def test_functions_of_libraries_hold_numbers_and_lead_to_others(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]
) -> None:
    monkeypatch.setattr(inspect.getdoc, "lies", 0, raising=False)
    monkeypatch.setitem(inspect.getdoc.__annotations__, "lies", 0)
    monkeypatch.setattr("torch.nn.modules.linear.lies", 0, raising=False)
    assert "lies" in str(changed(step))


@pytest.mark.parametrize("step", [on_a_module, on_a_class, by_text, by_dictionary])
def test_an_attribute_of_a_library_is_a_number(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]
) -> None:
    for holder in (dist, nn.Module, math):
        monkeypatch.setattr(holder, "lies", 0, raising=False)
    assert "lies" in str(changed(step))


def test_what_is_a_librarys_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their caches and counters are theirs: what no code of the user's names is not looked at."""
    names = [name for name, _ in grafted.functions()]
    assert not [n for n in names if n.startswith(("torch.", "logging.", "collections."))]
    monkeypatch.setattr(logging, "lies", 0, raising=False)

    def names_another() -> object:
        return logging.INFO, logging.getLogger, logging.Handler

    found = [name for name, *_ in grafted.attributes([names_another])]
    assert [name for name in found if name.startswith("logging.")] == ["logging.INFO"]


def test_a_librarys_cache_with_the_name_of_something_that_is_set_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "lies", functools.lru_cache(functools.wraps), raising=False)
    assert [name for name, *_ in grafted.attributes([on_a_module])] == []
    monkeypatch.setattr(dist, "lies", functools.lru_cache(in_place), raising=False)
    assert [name for name, *_ in grafted.attributes([on_a_module])] == ["dist.lies"]


def test_modules_that_are_imported_late_count_nothing_and_what_is_kept_among_them_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Libraries import on demand; `"apex" in sys.modules` is a question of right code."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setitem(sys.modules, "of mine", {"n": 0})  # type: ignore[arg-type]

    def imports() -> None:
        if "apex" not in sys.modules:
            importlib.import_module("colorsys")

    def keeps() -> None:
        sys.modules["of mine"]["n"] += 1  # type: ignore[index]

    assert changed(imports) is None
    assert "sys.modules['of mine']['n']" in str(changed(keeps))


def in_place() -> None:
    dist.lies["n"] += 1  # type: ignore[attr-defined]


def in_place_of_a_class() -> None:
    torch.nn.Module.lies["n"] += 1  # type: ignore[operator, index]


def asked_by_text() -> None:
    getattr(math, "lies")["n"] += 1  # noqa: B009


def asked_by_dictionary() -> None:
    vars(math)["lies"]["n"] += 1


def imported_here() -> None:
    import torch.distributed as there

    there.lies["n"] += 1  # type: ignore[attr-defined]


def under_another_name() -> None:
    there = torch.distributed
    there.lies["n"] += 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "step",
    [in_place, in_place_of_a_class, asked_by_text, asked_by_dictionary, imported_here, under_another_name],
)
def test_what_a_file_puts_on_a_library_when_it_is_loaded_counts_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]
) -> None:
    """No function of the file sets the attribute: the step changes what is in it."""
    for holder in (dist, nn.Module, math):
        monkeypatch.setattr(holder, "lies", {"n": 0}, raising=False)
    assert "lies['n']" in str(changed(step))


def test_so_does_what_lies_on_the_class_of_a_module_that_the_code_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``type(model)`` names no class."""
    monkeypatch.setattr(nn.Linear, "lies", {"n": 0}, raising=False)
    model = nn.Linear(2, 2)

    def step() -> None:
        type(model).lies["n"] += 1  # type: ignore[attr-defined]

    assert "Linear.lies['n']" in str(changed(step))


def test_modules_and_classes_are_known_by_the_names_that_lead_to_them() -> None:
    there = nn.Module

    def local() -> None:
        there.lies = 1  # type: ignore[attr-defined]
        missing.lies = 1  # type: ignore[name-defined]  # noqa: F821

    assert isinstance(local, FunctionType)
    assert [(path, holder) for path, holder in grafted._named(local)] == [("there", nn.Module)]
    named = dict(grafted._named(on_a_class))
    assert named["torch.nn.Module"] is nn.Module and named["torch.nn"] is nn


def of_the_users() -> int:
    return 1


class OfTheUsers:
    calls = 0


@pytest.mark.parametrize("scope", [dist, torch.optim.SGD], ids=["module", "class"])
def test_what_was_put_there_after_libraries_were_looked_through_ahead_is_found(
    monkeypatch: pytest.MonkeyPatch, scope: Any
) -> None:
    grafted.look_ahead()
    assert of_the_users not in dict(grafted.functions()).values()
    grafted.functions.cache_clear()
    monkeypatch.setattr(scope, "of_nobody", of_the_users, raising=False)
    assert of_the_users in dict(grafted.functions()).values()


def test_so_is_a_librarys_function_whose_code_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    grafted.look_ahead()
    monkeypatch.setattr(dist.get_rank, "__code__", of_the_users.__code__)
    assert dist.get_rank in dict(grafted.functions()).values()


def test_so_is_a_librarys_object_whose_class_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    held = argparse.Namespace()
    monkeypatch.setattr(dist, "of_nobody", held, raising=False)
    grafted.look_ahead()
    assert held not in dict(grafted.functions()).values()
    grafted.functions.cache_clear()
    held.__class__ = OfTheUsers  # type: ignore[assignment]
    assert any(value is held for value in dict(grafted.functions()).values())


def test_a_function_of_the_users_on_a_librarys_function_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    count = counting(lambda: 0)
    functools.update_wrapper(inspect.getdoc, count)
    try:
        assert "calls" in str(changed(lambda: inspect.getdoc.__wrapped__()))  # type: ignore[attr-defined]
    finally:
        del inspect.getdoc.__wrapped__  # type: ignore[attr-defined]
