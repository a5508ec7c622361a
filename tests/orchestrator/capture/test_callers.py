"""The user's code sees its own frames, and words of a command line that are a job's."""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.capture.callers import begun_as, callers_unseen
from orchestrator.capture.errors import CaptureError, StateError
from orchestrator.capture.processes import survey
from orchestrator.capture.tracing import trace
from orchestrator.capture.userfile import load_definition

from .validating_steps import validating

SEEING: list[Callable[[], object]] = [
    lambda: inspect.stack(),
    lambda: inspect.getouterframes(sys._getframe()),
    lambda: traceback.extract_stack(),
    lambda: traceback.format_stack(limit=9),
    lambda: list(traceback.walk_stack(None)),
    lambda: sys._getframe(3),
]


@pytest.mark.parametrize("sees", SEEING)
def test_who_has_called_is_not_seen(sees: Callable[[], object]) -> None:
    with callers_unseen(), pytest.raises(StateError, match="says who has called the step") as caught:
        exec(compile("def run(does):\n    does()", "<library>", "exec"), found := {"__name__": "os"})
        found["run"](sees)  # type: ignore[operator]
    assert caught.value.frame is not None and caught.value.frame[0] == __file__
    assert sees()


def test_frames_of_ones_own_and_what_libraries_ask_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    def inner() -> str:
        return sys._getframe(1).f_code.co_name

    with callers_unseen():
        here = inspect.currentframe()
        assert here is sys._getframe() and here is not None and inner() == here.f_code.co_name
        logging.getLogger("a").warning("said")
        with pytest.warns(UserWarning) as kept:
            warnings.warn("said", stacklevel=1)
        try:
            raise KeyError
        except KeyError:
            assert "KeyError" in traceback.format_exc()
    assert caplog.records[0].funcName == here.f_code.co_name and kept[0].filename == __file__


def test_a_step_that_looks_at_its_callers_is_refused() -> None:
    """It reduced its gradients where this package had called it, and was proved."""

    def check(loss: object) -> None:
        if any("orchestrator" in each.filename for each in inspect.stack()):
            return

    (error,) = survey(validating(check), [0], 1)
    assert "inspect.stack says who has called the step" in error.message


def test_a_program_is_begun_with_its_file(tmp_path: Path) -> None:
    found: list[list[str]] = []
    with pytest.raises(StateError, match="found"):  # a list that grows
        trace(validating(lambda _: found.append(list(sys.argv))), 0)
    assert found and all(words[0].endswith("validating_steps.py") and len(words) == 1 for words in found)
    (file := tmp_path / "parses.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--wide', default=3)\n"
        "definition = parser.parse_args().wide"
    )
    before = list(sys.argv)
    with pytest.raises(CaptureError, match="`definition` is a int"):  # it has parsed its arguments
        load_definition(file)
    with begun_as("a.py"):
        assert sys.argv == ["a.py"]
    assert sys.argv == before
