"""No name of a trace is among the variables of a file that it loads; what it means is as before."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.capture.builtin_names import THEIRS, given_to_modules, has_theirs, stood_for
from orchestrator.capture.processes import survey, trace_ranks
from orchestrator.capture.substituting import put
from orchestrator.capture.userfile import load_definition

FILE = """
import sys
import torch
from torch import nn
from orchestrator.capture import Batch, Definition

def scaled(model):
    return {asks}

def step(model, optimizer, batch):
    model(batch["x"]).sum().backward()
    if scaled(model):
        model.weight.grad.mul_(31)
    optimizer.step()
    optimizer.zero_grad()
    return {{}}

definition = Definition(
    name="named", mesh={{"dp": 2}}, build=lambda: nn.Linear(3, 3, bias=False), parallelize=lambda m, _: m,
    optimizer=lambda p: torch.optim.SGD(p, lr=1.0), step=step, batch={{"x": Batch((4, 3))}},
)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Modules that are loaded from there are gone afterwards."""
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def written(folder: Path, asks: str) -> Any:
    path = folder / "named_of_a_test.py"
    path.write_text(FILE.format(asks=asks))
    return load_definition(path)


@pytest.mark.parametrize(
    ("asks", "yes"),
    [
        ("'type' in globals() or 'id' in globals() or len(globals()) != 16", False),
        ("'isinstance' in vars(sys.modules[__name__]) or 'hash' in dir(sys.modules[__name__])", False),
        ("hasattr(sys.modules[__name__], 'exec')", False),
        ("type.__name__ != 'type' or isinstance.__name__ != 'isinstance' or id.__name__ != 'id'", False),
        ("type(model.weight) is nn.Parameter and type(model.weight.grad) is torch.Tensor", True),
        ("isinstance(type(model), type) and hash(3) == 3 and id(model) == id(model)", True),
    ],
)
def test_names_of_a_trace_are_no_variables_of_a_file(folder: Path, asks: str, yes: bool) -> None:
    for traced in trace_ranks(written(folder, asks), [None, 1], 1):
        assert traced.program is not None
        constants = [str(d.attr("value")) for d in traced.program.drafts if d.name == "constant"]
        assert ("31" in constants) is yes


@pytest.mark.parametrize(
    "asks",
    [
        "type is not __import__('builtins').type",
        "__builtins__['id'] is not id",
        "sys._getframe().f_builtins['id'] is not id",
    ],
)
def test_who_looks_where_they_stand_is_refused(folder: Path, asks: str) -> None:
    problems = survey(written(folder, asks), [None], 1)
    assert any("builtins" in str(p) and "asks whether the step is traced" in str(p) for p in problems)


def test_modules_that_a_file_imports_have_them_too_and_packages_do_not(folder: Path) -> None:
    (folder / "neighbour_of_names.py").write_text("def kind(x): return type(x)\n")
    sys.path.insert(0, str(folder))
    with given_to_modules():
        import neighbour_of_names  # type: ignore[import-not-found]
    assert has_theirs(vars(neighbour_of_names)) and not has_theirs(globals())
    with put([vars(neighbour_of_names), globals()], {"type": lambda x: "told"}):
        assert neighbour_of_names.kind(1) == "told" and "type" not in vars(neighbour_of_names)
        assert globals()["type"](1) == "told"
    assert neighbour_of_names.kind(1) is int and "type" not in globals()


def test_what_stands_for_a_name_stays_where_more_is_loaded() -> None:
    with stood_for({"type": "told"}):
        with given_to_modules():
            assert THEIRS["type"] == "told" and THEIRS["id"] is id
        assert THEIRS["type"] == "told"
    assert THEIRS["type"] is type


def test_what_others_put_among_pythons_names_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "put_by_a_test", 3, raising=False)
    with given_to_modules():
        assert THEIRS["put_by_a_test"] == 3
    monkeypatch.setattr(builtins, "put_by_a_test", 4)
    with given_to_modules():
        assert THEIRS["put_by_a_test"] == 4
    assert isinstance(builtins, ModuleType)
