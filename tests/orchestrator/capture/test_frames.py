"""Whose line runs now."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import certificates
import checker
import smtlib_emit
import trainverify
from orchestrator.capture.frames import (
    frames,
    inside_engine,
    installed,
    is_installed,
    is_users,
    of_user,
    runs_in,
    user_frame,
    users,
    written_in,
)
from orchestrator.evaluating import interpreter


def test_a_file_is_the_users_unless_it_is_pythons_or_pytorchs() -> None:
    assert is_users(__file__) and not is_installed(__file__)
    assert not is_users(os.__file__) and not is_users(torch.__file__)


def test_this_project_is_installed_wherever_its_folders_lie() -> None:
    """Its own counts are no counters of the user's, from a checkout as from an installed package."""
    for module in (certificates, checker, interpreter, smtlib_emit, trainverify):
        assert is_installed(module.__file__ or "") and is_users(module.__file__ or "")


def test_packages_of_an_environment_that_this_one_sees_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The system's, for one: what they keep is no counter of the user's."""
    system, own = tmp_path / "dist-packages", tmp_path / "project"
    monkeypatch.setattr(sys, "path", [*sys.path, str(system), str(own)])
    assert f"{system}/" in installed() and f"{own}/" not in installed()


def test_the_innermost_line_of_the_user_is_found() -> None:
    assert user_frame() == frames(engine=False)[0] is not None
    assert (user_frame() or ("", 0, ""))[2] == "test_the_innermost_line_of_the_user_is_found"


def test_nothing_here_is_called_by_the_engine() -> None:
    assert not inside_engine()
    assert frames(engine=True)[0] is not None


def _run(text: str, scope: dict[str, Any]) -> dict[str, Any]:
    exec(text, scope)
    return scope


def test_code_that_was_made_of_a_text_is_of_the_module_that_it_runs_in() -> None:
    """``exec("def late(): return time.time() > START", globals())`` asked for the time, and was VALID."""
    text = "import sys\ndef f(): return sys._getframe()"
    for scope, users_own in (
        ({"__file__": __file__}, True),
        ({"__file__": os.__file__}, False),
        ({"__name__": "os"}, False),
        ({}, True),  # nobody says whose it is
        ({"__name__": "made_for_itself"}, False),  # packages make such ones
    ):
        made = _run(text, scope)["f"]
        assert is_users(written_in(made)) == users_own == is_users(runs_in(made()))


def test_a_class_that_was_made_of_a_text_is_the_users_and_python_s_own_are_not() -> None:
    """Its variables counted steps, and nobody looked."""
    made = _run("class Counts: steps = 0", {})["Counts"]
    assert made.__module__ == "builtins" and of_user(made)
    assert not any(map(of_user, (int, type, dict, torch.Tensor, torch.Generator)))


def test_a_module_that_code_has_made_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_here", ModuleType("made_here"))
    assert users("made_here") and not users("nowhere") and not users("sys") and not users("torch._C._fft")
    assert not users(42)  # what Cython has as the module of a class
