"""Code is read once: what it imports, sets and names is the same when bytes are looked at first."""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from orchestrator.capture import bytecode

TEXT = """
import torch
import torch.distributed as dist

class Model:
    def forward(self, x):
        self.calls = 1
        return dist.nn.all_reduce(x)

    @staticmethod
    @torch.no_grad()
    def made():
        def inner():
            from . import helpers
            from .more import one, two
            import numpy.linalg
            helpers.count = 2
        return inner

def texts(model):
    setattr(model, "steps", 3)
    return __import__("mine.other")

def nothing(x):
    return x + 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file = tmp_path / "bytes_of_mine.py"
    found = ModuleType("bytes_of_mine")
    found.__file__ = str(file)
    monkeypatch.setitem(sys.modules, found.__name__, found)
    exec(compile(TEXT, file, "exec"), vars(found))
    return found


def of(function: Any) -> CodeType:
    function = getattr(function, "__wrapped__", function)
    assert isinstance(function, FunctionType)
    return function.__code__


def test_what_code_imports(module: Any) -> None:
    assert bytecode.imports(of(module.Model.made)) == (
        *("$", "$.helpers", "$.more", "$.more.one", "$.more.two", "numpy.linalg"),
    )
    assert "mine.other" in bytecode.imports(of(module.texts)) and bytecode.imports(of(module.nothing)) == ()


def test_what_code_sets(module: Any) -> None:
    assert bytecode.sets(of(module.Model.forward)) == {"calls"}
    assert bytecode.sets(of(module.Model.made)) == set()  # DDP's own counts are told by its methods alone
    assert bytecode.stored(of(module.Model.made)) == {"count"}
    assert "steps" in bytecode.stored(of(module.texts)) and bytecode.stored(of(module.nothing)) == set()


@pytest.mark.parametrize(
    "way",
    [
        'setattr(x, "steps", 1)',
        'x.__setattr__("steps", 1)',
        'vars(x)["steps"] = 1',
        'x.__dict__["steps"] = 1',
    ],
)
def test_every_way_to_set_an_attribute_by_a_text(way: str) -> None:
    assert "steps" in bytecode.stored(compile(way, "mine.py", "exec"))


@pytest.mark.parametrize("way", ['getattr(x, "steps")', 'vars(x)["steps"]', 'x.__dict__["steps"]'])
def test_every_way_to_read_an_attribute_by_a_text(way: str) -> None:
    assert "steps" in bytecode.texts(compile(way, "mine.py", "exec"))
    assert "steps" not in bytecode.texts(compile('print("steps")', "mine.py", "exec"))


def test_what_code_names(module: Any) -> None:
    assert ("dist", "nn", "all_reduce") in bytecode.chains(of(module.Model.forward))
    assert {"helpers", "count"} <= bytecode.names(of(module.Model.made))


def test_what_is_read_ahead_is_not_read_again(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are traced in forks: what their parent has read they need not."""
    bytecode.read_ahead()
    monkeypatch.setattr(dis, "get_instructions", None)
    readers = (bytecode.imports, bytecode.stored, bytecode.texts, bytecode.chains, bytecode.names)
    for function in (module.Model.forward, module.Model.made, module.texts, module.nothing):
        for reader in (*readers, bytecode.built_names):
            reader(of(function))


def test_code_of_libraries_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    bytecode.read_ahead()
    read: list[str] = []
    monkeypatch.setattr(bytecode, "names", lambda code: read.append(code.co_filename))
    bytecode.read_ahead()
    assert __file__ in read and not [f for f in read if "site-packages" in f or f == bytecode.__file__]
