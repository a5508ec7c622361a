"""The user's file is run and its definition taken; what is wrong with it is told with the line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from orchestrator.capture.errors import CaptureError, DefinitionError
from orchestrator.capture.userfile import load_definition

RIGHT = """
from orchestrator.capture import Definition
def definition(name="x", ranks=2):
    nothing = dict.fromkeys(("build", "parallelize", "optimizer", "step"))
    return Definition(name=name, mesh={"dp": ranks}, batch={}, **nothing)
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _imports_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("x = 1\ndefinition = 3", "`definition` is a int", 1),
        ("import torch", "defines no `definition`", 1),
        ("x = 1\nimport nowhere_to_be_found", "install nowhere_to_be_found beside PyTorch", 2),
        ("x = 1\ndef definition(n): return n", "--set n=VALUE", 2),
        ("x = 1\ndef definition(): return x", "returns a int", 2),
        ("x = 1\ndef definition(): pass", "returns None", 2),
        ("def definition():\n    return 1 / 0", "ZeroDivisionError: division by zero", 2),
        ("x = 1\nif x:\ndefinition = 3", "IndentationError: expected", 3),
        ("import sys\nsys.exit(3)", "sys.exit(3)", 2),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(
    tmp_path: Path, text: str, message: str, line: int
) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(written(tmp_path, text))
    assert message in str(caught.value)
    assert re.search(rf"mine\.py:{line}( in definition)?: ", str(caught.value))


def test_settings_are_handed_to_the_function(tmp_path: Path) -> None:
    path = written(tmp_path, RIGHT)
    assert load_definition(path).name == "x"
    assert dict(load_definition(path, {"ranks": 4}).mesh) == {"dp": 4}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (RIGHT, {"layer": 2}, "no setting layer; it takes name, ranks"),
        ("def definition(layers, dim=4): return None", {"dim": 2}, "needs layers; it takes layers, dim"),
        ("definition = 3", {"dim": 2}, "definition is no function, so it takes no settings"),
    ],
    ids=["unknown", "missing", "no function"],
)
def test_a_setting_that_the_file_does_not_take_or_miss_is_named_with_those_it_takes(
    tmp_path: Path, text: str, settings: dict[str, int | str], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        load_definition(written(tmp_path, text), settings)
    assert " in " not in str(caught.value).partition("mine.py:")[2]


def test_a_function_that_takes_any_settings_is_asked_for_none(tmp_path: Path) -> None:
    text = RIGHT.replace('name="x", ranks=2', "**given").replace("name=name", "name=given['title']")
    assert load_definition(written(tmp_path, text.replace("ranks}", "2}")), {"title": "y"}).name == "y"


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside_mine.py").write_text("SIZE = 8")
    path = written(tmp_path, "from beside_mine import SIZE\n" + RIGHT.replace("ranks=2", "ranks=SIZE"))
    assert load_definition(path).mesh["dp"] == 8


@pytest.mark.parametrize("name", ["mine.txt", "missing.py", "folder.py"])
def test_what_is_no_python_file_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.txt").write_text(RIGHT)
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(CaptureError, match="is not a Python file"):
        load_definition(tmp_path / name)
