"""A forged report is found and named, also behind a manifest that was sealed again."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from certificates.plan.plan import Plan
from checker import solvers
from checker.cli import main as check_main
from checker.reporting import main
from orchestrator.emit import emit

sys.path.insert(0, str(Path(__file__).parent))
from samples import answers, row_parallel, seal


@pytest.fixture(scope="module")
def emitted(mlp: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emitted") / "b"
    emit(mlp, folder, jobs=1)
    return folder


@pytest.fixture
def bundle(emitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(emitted, tmp_path / "b"))


def tv_check(bundle: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, list[str]]:
    monkeypatch.setattr(solvers, "RUNNERS", {})
    count = len(list((bundle / "data/obligations").iterdir()))
    for name in ("one", "two"):
        lines = "".join(f"{i:04} unsat\n" for i in range(1, count + 1))
        (bundle.parent / name).write_text(answers(bundle, name, lines))
        options = (*options, "--answers", str(bundle.parent / name))
    result = CliRunner().invoke(check_main, [str(bundle), *options])
    return result.exit_code, result.output.splitlines()


def test_true_reports_are_said_to_be_true(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines = tv_check(bundle, monkeypatch)
    assert code == 0 and "report.txt and report.html are what this checker writes of the bundle" in lines


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("report.txt", "floating-point rounding", "nothing"),
        ("report.txt", "equal", "EQUAL"),
        ("report.html", "PROVED", "VERIFIED"),
        ("report.html", "</body>", " </body>"),
    ],
)
def test_a_forged_report_is_named(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
) -> None:
    text = (bundle / "data" / name).read_text()
    assert old in text
    (bundle / "data" / name).write_text(text.replace(old, new, 1))
    seal(bundle)
    code, lines = tv_check(bundle, monkeypatch)
    assert code == 1
    assert lines[-1].startswith(
        f"INVALID: obligation 1 (members) fails: {name} is not what the checker writes"
    )


@pytest.mark.parametrize("name", ["report.txt", "report.html"])
def test_a_report_that_is_missing_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Else a forger would drop the page, or both, to have them not compared."""
    (bundle / "data" / name).unlink()
    seal(bundle)
    missing = f"INVALID: obligation 1 (members) fails: {name} is missing"
    code, lines = tv_check(bundle, monkeypatch)
    assert (code, lines[-1]) == (1, missing)
    (bundle / "data/report.txt").unlink(missing_ok=True)
    (bundle / "data/report.html").unlink(missing_ok=True)
    seal(bundle)
    code, lines = tv_check(bundle, monkeypatch)
    assert (code, lines[-1]) == (1, missing.replace(name, "report.txt"))
    policy = bundle.parent / "policy.json"
    policy.write_text('{"reports":false}')
    code, lines = tv_check(bundle, monkeypatch, "--policy", str(policy))
    assert code == 0 and any("were not compared" in line for line in lines), "who wants none may say so"


def test_a_policy_may_leave_the_reports_alone_and_says_so(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a bundle whose reports another version wrote: the proof counts, the reports do not."""
    (bundle / "data/report.html").write_text("<h1>PROVED by magic</h1>")
    seal(bundle)
    policy = bundle.parent / "policy.json"
    policy.write_text('{"reports":false}')
    code, lines = tv_check(bundle, monkeypatch, "--policy", str(policy))
    assert (
        code == 0
        and "outside the claim: report.txt and report.html of the bundle, which were not compared" in lines
    )


def test_older_bundles_have_no_page_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = row_parallel()
    old.version = 1
    for new, first in (("QF_UFLIA", "QF_UFLIRA"), ("(declare-sort Value 0)\n", ""), (" Value)", " Real)")):
        old.files["0002"] = old.files["0002"].replace(new, first)
    result = CliRunner().invoke(check_main, [str(old.write(tmp_path / "b"))])
    assert result.exit_code == 0 and "were not compared" in result.output
    (tmp_path / "out").mkdir()
    result = CliRunner().invoke(main, [str(tmp_path / "b"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, "but tv-report writes one"
    assert (tmp_path / "out/report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_bundle_that_does_not_hold_gets_reports_that_say_so(tmp_path: Path) -> None:
    bundle = row_parallel()
    bundle.files["0001"] += "<x>"
    bundle.write(tmp_path / "b")
    (tmp_path / "out").mkdir()
    result = CliRunner().invoke(main, [str(tmp_path / "b"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "NO CERTIFICATE" in (tmp_path / "out/report.txt").read_text()
    assert "obligation 12" in (tmp_path / "out/report.html").read_text()


def test_reports_that_are_there_are_replaced_by_force_only(tmp_path: Path) -> None:
    """A folder may have a report.txt of its own."""
    row_parallel().write(tmp_path / "b")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/report.txt").write_text("minutes of the meeting")
    words = [str(tmp_path / "b"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and "report.txt exists" in " ".join(result.stderr.split())
    assert [p.read_text() for p in (tmp_path / "out").iterdir()] == ["minutes of the meeting"]
    assert CliRunner().invoke(main, [*words, "--force"]).exit_code == 0
    assert (tmp_path / "out/report.txt").read_text() != "minutes of the meeting"
