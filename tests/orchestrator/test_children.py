"""Child processes run this installation whatever the folder holds; only a readable answer is a verdict."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from certificates.bundle.bundle import REPORTS
from certificates.plan.plan import Plan
from orchestrator.children import Checked, _checked, command, run_checker, write_reports
from orchestrator.emit import emit

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
    assert (found.exit_code, found.lines) == (-9, ("UNKNOWN: tv-check ended with code -9: no message",))


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
    here = {name: (tmp_path / "b" / name).read_bytes() for name in REPORTS}
    for name in REPORTS:
        (tmp_path / "b" / name).unlink()
    manifest = json.loads((tmp_path / "b/manifest.json").read_bytes())
    manifest["members"] = {n: d for n, d in manifest["members"].items() if n not in REPORTS}
    (tmp_path / "b/manifest.json").write_text(json.dumps(manifest))
    assert write_reports(tmp_path / "b") == here


def test_a_checker_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"the checker wrote no report\.txt"):
        write_reports(tmp_path / "nowhere")
