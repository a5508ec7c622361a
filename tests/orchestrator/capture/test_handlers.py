"""Who would go on after an exception is known of every handler and context manager on the stack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.capture import handlers, steps
from orchestrator.capture.handlers import KNOWN, goes_on

from .handling import GO_ON, PASS_ON, Mine, handles, handles_another

RAISED = RuntimeError, IndexError
#: A function of what runs a step: nobody above goes on with it.
OURS: dict[str, Any] = {}
exec(compile("def run(does, ask):\n    does(ask)", steps.__file__, "exec"), OURS)


def asked(does: Callable[..., None], raised: handlers.Raised = RAISED) -> set[bool]:
    found = set[bool]()
    OURS["run"](does, lambda: found.add(goes_on(sys._getframe(1), lambda _: True, raised)))
    return found


@pytest.mark.parametrize("name", GO_ON)
def test_a_handler_that_ends_is_seen(name: str) -> None:
    assert asked(GO_ON[name]) == {True}


@pytest.mark.parametrize("name", PASS_ON)
def test_what_passes_an_exception_on_is_none(name: str) -> None:
    assert asked(PASS_ON[name]) == {False}


def test_any_exception_is_one_of_everybodys() -> None:
    assert asked(handles_another, None) == {True} == asked(handles_another, (Mine,))


def test_who_is_not_meant_is_not_asked_nor_is_who_runs_the_step() -> None:
    found = []
    OURS["run"](handles, lambda: found.append(goes_on(sys._getframe(1), lambda _: False)))
    try:
        assert asked(PASS_ON["alone"]) == {False} and found == [False]
    except RuntimeError:
        found.clear()


def test_a_manager_that_is_not_known_may_handle_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KNOWN
    monkeypatch.setattr(handlers, "KNOWN", False)
    assert asked(PASS_ON["managed"]) == {True}
    assert asked(PASS_ON["alone"]) == {False}
