"""``tv-capture``: outputs and exit codes."""

import inspect
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from certificates.plan.reading import load
from certificates.plan.writing import dump, is_plan_file
from orchestrator.capture import capture
from orchestrator.capture.cli import _refuse, _setting, main
from orchestrator.capture.errors import (
    CaptureError,
    DefinitionError,
    DisagreementError,
    StateError,
    StepError,
)
from orchestrator.capture.running import Comparison
from orchestrator.capture.running import run as really
from tests.conftest import build_mlp

MODELS = Path(__file__).resolve().parents[3] / "examples" / "models"
SMALL = ["--set", "dim=4", "--set", "hidden=8", "--set", "rows=4"]


def run(*arguments: object):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.slow
def test_a_plan_is_written(tmp_path: Path) -> None:
    out = tmp_path / "plan.json.gz"
    result = run(MODELS / "mlp_handwritten.py", "--out", out, *SMALL)
    assert result.exit_code == 0 and "4 ranks in 1 classes" in result.output
    assert load(out).name == "mlp-handwritten"


@pytest.mark.slow
def test_nothing_is_unsupported_in_the_shipped_mlp() -> None:
    result = run(MODELS / "mlp_handwritten.py", "--list-unsupported", *SMALL)
    assert (result.exit_code, result.output) == (0, "")


def test_without_pytorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.startswith("orchestrator.capture.")]:
        if not module.endswith((".cli", ".errors")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run(MODELS / "mlp_handwritten.py", "--list-unsupported")
    checkout = Path(__file__).resolve().parents[3]
    assert result.exit_code == 2 and f'pip install "{checkout}[torch]"' in " ".join(result.output.split())


def test_output_or_listing_is_needed() -> None:
    assert run(MODELS / "mlp_handwritten.py").exit_code == 2


def test_an_unusable_file_is_told_with_its_line_and_code_5(tmp_path: Path) -> None:
    """In which ways a file can be unusable: test_userfile.py."""
    file = tmp_path / "mine.py"
    file.write_text("x = 1\ndef definition(layers=1): return x")
    for words, message in (
        ([], "returns a int"),
        (["--set", "layer=2"], "no setting layer; it takes layers"),
    ):
        result = run(file, "--out", tmp_path / "plan.json", *words)
        assert result.exit_code == 5 and message in result.output and "Traceback" not in result.output
        assert "mine.py:2" in result.output and "def definition(layers=1): return x" in result.output
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_no_plan_is_not_overwritten(tmp_path: Path) -> None:
    """What is refused, and why: test_output.py."""
    file, precious = tmp_path / "mine.py", tmp_path / "notes.txt"
    file.write_text("definition = 3")
    precious.write_text("notes")
    result = run(file, "--out", precious)
    assert result.exit_code == 2 and "is not a plan file" in " ".join(result.output.split())
    assert precious.read_text() == "notes"
    assert run(file, "--out", precious, "--force").exit_code == 5  # past the question, to the file itself


def test_a_plan_file_of_ours_is_overwritten_and_a_failed_write_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = load(MODELS.parent / "mlp-handwritten.json.gz")
    for name in ("plan.json", "plan.json.gz"):
        out = tmp_path / name
        dump(plan, out)
        assert is_plan_file(out)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as stream:
            stream.write(data[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(KeyboardInterrupt):
        dump(plan, out)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_plan_is_written_through_a_link(tmp_path: Path) -> None:
    plan = load(MODELS.parent / "mlp-handwritten.json.gz")
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    there.write_text("old")
    link.symlink_to(there)
    dump(plan, link)
    assert link.is_symlink() and load(there).name == plan.name


def test_an_interrupt_is_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise KeyboardInterrupt")
    result = run(file, "--out", tmp_path / "plan.json")
    assert result.exit_code == 130 and result.stderr == "tv-capture: interrupted, nothing is written\n"
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_missing_lowerings_are_listed_with_code_3(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        """
import torch
from orchestrator.capture import Batch, Definition

def step(model, optimizer, batch):
    return {"loss": model(batch["x"]).cumprod(0).lgamma().sum()}

definition = Definition(
    name="odd", mesh={"dp": 2}, build=lambda: torch.nn.Linear(2, 2), parallelize=lambda m, mesh: m,
    optimizer=torch.optim.AdamW, step=step, batch={"x": Batch((2, 2))},
    layouts={"weight": {}, "bias": {}},
)
"""
    )
    listed = run(file, "--list-unsupported")
    refused = run(file, "--out", tmp_path / "plan.json", "--quiet")
    for result in (listed, refused):
        assert result.exit_code == 3
        for op in ("cumprod", "lgamma"):
            where = f"(op aten.{op}.default, single device, ranks 0, 1)"
            assert f"unsupported-op: no lowering for {op} {where}\n" in result.output
        assert "odd.py:6 in step: return" in result.output and "odd.py:7" not in result.output
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2), ("-3", -3), ("0.5", 0.5), ("1e-3", 1e-3), ("-2.", -2.0), ("True", True), ("False", False),
        ("", ""), ("1F1B", "1F1B"), ("--1", "--1"), ("1.2.3", "1.2.3"), ("nan", "nan"), ("true", "true"),
    ],
)  # fmt: skip
def test_a_setting_is_a_number_a_truth_value_or_a_text(text: str, value: object) -> None:
    """``--set wrong=False`` was a text, which is true."""
    name, found = _setting(f"x={text}")
    assert (name, found, type(found)) == ("x", value, type(value))


@pytest.mark.parametrize("setting", ["2x=3", "x", "=3", "a b=3"])
def test_a_setting_that_no_function_can_take_is_no_setting(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def definition(**settings): return 3")
    result = run(file, "--list-unsupported", "--set", setting)
    assert result.exit_code == 2 and f"'{setting}' is not KEY=VALUE" in result.stderr


HINT = "(--traceback shows where in Python it was raised)"


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (StepError("boom", traceback="Traceback: boom", frame=None, instead=None), 3, True),
        (StepError("boom", traceback="Traceback: boom", frame=None, instead="another"), 3, False),
        (StateError("a counter"), 3, False),
        (DefinitionError("no mesh"), 5, False),
        (DisagreementError("3 and 4"), 1, False),
    ],
)
def test_the_code_says_what_kind_of_problem_and_the_hint_helps_with_unknown_ones(
    capsys: pytest.CaptureFixture[str], error: CaptureError, code: int, hint: bool
) -> None:
    """A problem with advice needs no traceback; ``--traceback`` itself is not advised when it is given."""
    for traceback in (False, True):
        with pytest.raises(SystemExit) as caught:
            _refuse(error, traceback, sys.stderr)
        said = capsys.readouterr().err
        assert caught.value.code == code and f"tv-capture: {error}" in said
        assert (HINT in said) == (hint and not traceback)
        assert ("Traceback: boom" in said) == (traceback and isinstance(error, StepError))


def test_a_plan_is_compared_with_a_run_where_that_is_asked_for_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes processes and time, and what it found stands in the plan."""
    plan, file, asked = build_mlp(), tmp_path / "mine.py", []
    file.write_text("definition = 3")

    def compared(plan: object, definition: object, **given: object) -> Comparison:
        asked.append(given)
        return Comparison(2, 4, 5, 10, "float64", 0.0)

    monkeypatch.setattr("orchestrator.capture.userfile.load_definition", lambda file, given: None)
    monkeypatch.setattr("orchestrator.capture.assemble.capture", lambda definition, **given: plan)
    monkeypatch.setattr("orchestrator.capture.running.run", compared)
    for words, given in (([], []), (["--run"], [{"steps": 3, "seed": 0}])):
        out = tmp_path / "plan.json"
        assert run(file, "--out", out, *words).exit_code == 0
        assert asked == given and ("run" in load(out).provenance) == bool(words)
    defaults = {name: p.default for name, p in inspect.signature(really).parameters.items()}
    assert given == [{"steps": defaults["steps"], "seed": defaults["seed"]}]


def test_the_command_traces_as_many_ranks_as_the_function() -> None:
    """Of a large mesh; a plan from the one and a plan from the other are the same file."""
    (option,) = [p for p in main.params if p.name == "most"]
    page = (MODELS.parents[1] / "docs" / "capture.md").read_text()
    assert option.default == inspect.signature(capture).parameters["most"].default
    assert f"exceeds {option.default} ranks (`--most`)" in page
