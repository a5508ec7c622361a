"""Reports that are begun before solvers have answered: the same bytes, or not used."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from certificates.bundle.bundle import Bundle, put
from certificates.plan.plan import Plan
from checker.report.render import unreadable
from orchestrator import children, early
from orchestrator.emit import emit
from orchestrator.errors import Unaccepted


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who asked for reports, in order."""
    asked: list[str] = []
    reporting, writing = children.reporting, children.write_reports

    @contextmanager
    def noted(folder):
        with reporting(folder) as end:
            asked.append("early")
            yield end

    monkeypatch.setattr(early, "reporting", noted)
    monkeypatch.setattr(early, "write_reports", lambda folder: (asked.append("late"), writing(folder))[1])
    return asked


def bundle(plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """What an emission expects."""
    found: list[Bundle] = []
    with monkeypatch.context() as patch:
        patch.setattr(early.Early, "begin", lambda _early, expected: found.append(expected))
        emit(plan, folder, jobs=2)
    return found[0]


def test_a_bundle_is_the_same_and_one_checker_is_asked(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = begun(monkeypatch)
    assert emit(mlp, tmp_path / "one", jobs=1).exit_code == 0
    assert emit(mlp, tmp_path / "two", jobs=2).exit_code == 0
    assert asked == ["late", "early"]
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_bundle_that_came_out_otherwise_has_its_own_reports(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Solvers refused a file, so an output that was expected to be proved is not."""
    expected = bundle(mlp, tmp_path / "made", monkeypatch)
    first, *others = expected.verdicts
    came = replace(expected, verdicts=(replace(first, verdict="UNKNOWN", reason="not shown"), *others))
    asked = begun(monkeypatch)
    put(came.files(), tmp_path / "b")
    with early.early() as ahead:
        ahead.begin(expected)
        found = ahead.reports(came, tmp_path / "b")
    assert asked == ["early", "late"] and found == children.write_reports(tmp_path / "b")
    assert b"not shown" in found["report.txt"]


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        ("outside", ""),
        ("an infinite literal reaches reduce", "; write instead: a finite number for the mask"),
    ],
)
@pytest.mark.parametrize("place", ["class {cls}", "specification", "elsewhere"])
def test_what_the_checker_does_not_accept_is_no_proof(
    place: str, what: str, instead: str, mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command said PROVED of a bundle that the checker called INVALID: its model has no such plan. The
    user's line is told of the op that is refused."""
    made = bundle(mlp, tmp_path / "made", monkeypatch)
    program = mlp.specification if place == "specification" else mlp.classes[0].program
    op = next(op for op in program.ops if op.loc is not None)
    assert op.loc is not None
    why = f"obligation 2 (plan) fails at {place.format(cls=mlp.classes[0].name)}, op {op.out}: {what}"
    line = f"; that is {mlp.sources[op.loc.source]}:{op.loc.line} in {op.loc.function}"
    said = {name: text.encode() for name, text in unreadable(why).items()}
    monkeypatch.setattr(early, "write_reports", lambda _folder: said)
    with early.early() as ahead, pytest.raises(Unaccepted) as told:
        ahead.reports(made, tmp_path / "b")
    begins = why + ("" if place == "elsewhere" else line) + instead
    assert str(told.value).startswith(begins) and (instead or str(told.value) == begins)


def test_a_checker_that_was_begun_for_nothing_is_ended(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bundle(mlp, tmp_path / "made", monkeypatch)
    mark = tmp_path / "mark"
    code = (
        f"import os, pathlib, time; pathlib.Path({str(mark)!r}).write_text(str(os.getpid())); time.sleep(600)"
    )
    monkeypatch.setattr(children, "command", lambda *_: [sys.executable, "-c", code])
    monkeypatch.setattr(early, "reporting", children.reporting)
    with pytest.raises(KeyboardInterrupt), early.early() as ahead:
        ahead.begin(expected)
        while not mark.exists() or not mark.read_text():
            time.sleep(0.02)
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), signal.SIGTERM)
