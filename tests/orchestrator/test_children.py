"""Child processes run this installation whatever the folder holds; only a readable answer is a verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from certificates.bundle.bundle import REPORTS
from certificates.plan.plan import Plan
from orchestrator import children
from orchestrator.children import Checked, _checked, command, run_checker, schedule_said, write_reports
from orchestrator.emit import emit

sys.path.insert(0, str(Path(__file__).parents[1] / "checker"))
from samples import seal

LINE = {"exit_code": 0, "lines": ["PROVED: all of it"], "outputs": []}


def answer(code: int, document: object, err: bytes = b"") -> Checked:
    return _checked(code, json.dumps(document).encode(), err)


def test_an_answer_is_what_the_checker_said() -> None:
    found = answer(0, LINE)
    assert (found.exit_code, found.lines) == (0, ("PROVED: all of it",))


@pytest.mark.parametrize(
    "document",
    [{}, [], {**LINE, "exit_code": 1}, {**LINE, "lines": []}, {**LINE, "lines": "PROVED"}, None],
    ids=range(6),
)
def test_success_without_a_document_is_no_verdict(document: object) -> None:
    """A checker that was killed, or another program of its name, cannot make a bundle proved."""
    found = answer(0, document, b"warning\nout of memory\n")
    assert found.exit_code == 3 and found.outputs == ()
    assert found.lines == ("UNKNOWN: tv-check ended with code 0: out of memory",)


def test_output_that_is_no_json_is_no_verdict() -> None:
    found = _checked(-9, b"\xff{", b"")
    assert (found.exit_code, found.lines) == (3, ("UNKNOWN: tv-check was ended by SIGKILL: no message",))


def test_what_stopped_the_checker_is_passed_on() -> None:
    """A full disk is no verdict either."""
    found = _checked(6, b"", b"tv-check: failed: No space left on device\n")
    assert found.exit_code == 6 and "No space left" in found.lines[-1]


def test_a_checker_whose_parent_is_interrupted_may_clean_up_and_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches the parent alone, which ends its child; it has solvers and folders of its own."""
    mark = tmp_path / "mark"
    child = (
        f"import os, pathlib, signal, sys, time; mark = pathlib.Path({str(mark)!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: (mark.write_text('cleaned'), sys.exit()))\n"
        "mark.write_text(str(os.getpid()))\ntime.sleep(600)"
    )
    monkeypatch.setattr(children, "command", lambda *_: [sys.executable, "-c", child])

    def interrupt() -> None:
        while not mark.exists() or not mark.read_text():
            time.sleep(0.02)
        pids.append(int(mark.read_text()))
        os.kill(os.getpid(), signal.SIGINT)

    pids: list[int] = []
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_checker(tmp_path)
    assert mark.read_text() == "cleaned"
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_missing_bundle_is_malformed(tmp_path: Path) -> None:
    assert run_checker(tmp_path / "absent").exit_code == 5


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    """A stranger's bundle may lie beside a `checker` or a `json` of its own."""
    (tmp_path / "json.py").write_text("raise SystemExit(0)")
    (tmp_path / "checker").mkdir()
    (tmp_path / "checker" / "__init__.py").write_text("raise SystemExit(0)")
    done = subprocess.run(
        command("checker.cli", "main", "--help"), cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0 and b"BUNDLE" in done.stdout


def test_reports_are_written_by_the_checker(mlp: Plan, tmp_path: Path) -> None:
    """As a child: what this process knows does not reach them. In this process the bytes are the same."""
    emit(mlp, tmp_path / "b", solve=False)
    here = {name: (tmp_path / "b/data" / name).read_bytes() for name in REPORTS}
    for name in REPORTS:
        (tmp_path / "b/data" / name).unlink()
    seal(tmp_path / "b")
    assert write_reports(tmp_path / "b") == here


def test_a_checker_that_writes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", "raise SystemExit('out of luck')"]
    monkeypatch.setattr("orchestrator.children.command", lambda *_: words)
    with pytest.raises(OSError, match=r"the checker wrote no report\.txt: out of luck"):
        write_reports(tmp_path / "nowhere")


def test_what_the_checker_does_not_call_safe_is_not() -> None:
    said = b"PROVED: all\n\nSchedule\n  SAFE: 3 events\n\nClaim\n"
    assert schedule_said(said) == "SAFE: 3 events"
    assert schedule_said(b"NO CERTIFICATE: why\n") == (
        "UNSAFE: the checker says nothing of the schedule, but NO CERTIFICATE: why"
    )
    assert schedule_said(b"").startswith("UNSAFE: ") and schedule_said(b"Schedule").startswith("UNSAFE: ")
