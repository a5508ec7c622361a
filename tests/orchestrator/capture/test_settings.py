"""Settings of the process count like numbers: a counter may lie in one, and in no object of the user's."""

from __future__ import annotations

import decimal
import gc
import os
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from orchestrator.capture.counters import counted, numbers
from orchestrator.capture.settings import SETTINGS


def decimals() -> None:
    decimal.getcontext().prec += 1


def files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def limit() -> None:
    torch.backends.cudnn.benchmark_limit = (torch.backends.cudnn.benchmark_limit or 0) + 1


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "the context of decimal numbers": (decimals, lambda: decimal.setcontext(decimal.Context())),
    "Python's limit of recursion": (
        lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
        lambda: sys.setrecursionlimit(1000),
    ),
    "whether the garbage collector is on": (gc.disable, gc.enable),
    "the thresholds of the garbage collector": (
        lambda: gc.set_threshold(gc.get_threshold()[0] + 1),
        lambda: gc.set_threshold(700),
    ),
    "PyTorch's number of threads": (
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        lambda: torch.set_num_threads(1),
    ),
    "how PyTorch prints": (
        lambda: torch.set_printoptions(precision=7),
        lambda: torch.set_printoptions(profile="default"),
    ),
    "the settings of PyTorch's kernels": (
        limit,
        lambda: setattr(torch.backends.cudnn, "benchmark_limit", 10),
    ),
    "the number of filters of warnings": (
        lambda: warnings.filterwarnings("ignore", message="never said"),
        lambda: warnings.filters.pop(0),  # type: ignore[attr-defined]
    ),
    "the limits of the process": (files, lambda: None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_a_step_changes_is_a_counter(name: str) -> None:
    """`sys.setrecursionlimit(sys.getrecursionlimit() + 1)`, and from 5,000 on the step does another thing."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    change, back = CHANGES[name]
    before = numbers(change, model, optimizer)
    try:
        change()
        error = counted(before, numbers(change, model, optimizer))
    finally:
        back()
    assert error is not None and f"the step changes {name}" in error.message


def test_settings_that_nobody_changes_stay(tmp_path: Path) -> None:
    was = {name: read() for name, read in SETTINGS.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.Linear(2, 2)(torch.ones(2)).sum().backward()
    os.makedirs(tmp_path / "a")
    assert {name: read() for name, read in SETTINGS.items()} == was
