"""``tv-show``: what it prints and how it exits."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from certificates.canonical import canonical_bytes
from certificates.cli import main
from certificates.plan.plan import Plan
from certificates.plan.writing import dump
from certificates.proof.stages import Proof
from certificates.proof.writing import proof_bytes
from certificates.showing.plan_text import plan_text, relations_text
from certificates.showing.proof_text import stage_text


def show(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def file(mlp: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "mlp.json.gz"
    dump(mlp, path)
    return path


def test_a_whole_plan(file: Path, mlp: Plan) -> None:
    result = show(file)
    assert result.exit_code == 0
    assert result.stdout == "\n".join(plan_text(mlp)) + "\n"


def test_parts_may_be_combined(file: Path, mlp: Plan) -> None:
    relations = show(file, "--relations").stdout
    assert relations.endswith("\n".join(relations_text(mlp)) + "\n") and relations.startswith("plan mlp")
    both = show(file, "--spec", "--class", "c0").stdout
    assert both.startswith("specification {") and "\n\nclass c0 on dp 0..1" in both
    assert "relation" not in both


def test_one_value_in_every_program_or_in_one(file: Path) -> None:
    everywhere = show(file, "--op", "%3").stdout
    assert "specification\n" in everywhere and "class c0\n" in everywhere
    assert show(file, "--op", "c0:%3").stdout.startswith("class c0\n")
    assert show(file, "--op", "s:params.w1", "--op", "c0:%0").exit_code == 0


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--class", "c9"], "no rank class c9; the plan has c0"),
        (["--op", "%999"], "no value %999 in the plan"),
        (["--op", "c7:%3"], "no value c7:%3 in the plan"),
        (["--nonsense"], "No such option"),
    ],
)
def test_usage_errors(file: Path, args: list[str], reason: str) -> None:
    result = show(file, *args)
    assert result.exit_code == 2 and reason in result.stderr and result.stdout == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read"),
        (b"", "not a JSON document"),
        (b"\x1f\x8bgarbage", "is a damaged gzip file"),
        (b"[" * 100_000, "not a JSON document"),
        (b'{"a\\nb\\u001b": 1.5}', "floating-point number 1.5"),
        (b"{}", "a plan must be an object"),
    ],
)
def test_unreadable_files_get_one_line_and_exit_code_5(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_bytes(content)
    result = show(path)
    assert result.exit_code == 5 and result.stdout == ""
    assert result.stderr.startswith("tv-show: ") and reason in result.stderr
    assert result.stderr.count("\n") == 1 and len(result.stderr) < 600


def test_no_arguments_is_a_usage_error() -> None:
    assert show().exit_code == 2
    assert "Exit codes: 0 shown, 2 usage, 5 unreadable" in show("--help").stdout


MANIFEST = {
    "format": "trainverify-bundle",
    "verdicts": [
        {"spec": "loss", "plan": "loss", "verdict": "PROVED", "reason": ""},
        {"spec": "a", "plan": "b", "verdict": "UNKNOWN", "reason": "timeout\u001b"},
    ],
}


@pytest.fixture
def bundle(mlp: Plan, proof: Proof, tmp_path: Path) -> Path:
    dump(mlp, tmp_path / "plan.json")
    (tmp_path / "proof.json").write_bytes(proof_bytes(proof))
    (tmp_path / "manifest.json").write_bytes(canonical_bytes(MANIFEST))
    return tmp_path


def test_the_overview_of_a_bundle(bundle: Path) -> None:
    result = show(bundle)
    assert result.exit_code == 0
    assert "  PROVED   loss\n  UNKNOWN  b ~ a: timeout\\x1b\n" in result.stdout
    assert "2 stages, each proves one fact:\n  stage 0 layout: sum of the loss (7 premises)" in result.stdout


def test_one_stage_and_parts_of_the_plan_inside(bundle: Path, mlp: Plan, proof: Proof) -> None:
    result = show(bundle, "--stage", 1, "--op", "c0:%3")
    assert result.exit_code == 0 and result.stdout.startswith("class c0\n")
    assert result.stdout.endswith("\n".join(stage_text(mlp, proof, 1)) + "\n")


def test_stages_that_do_not_exist(bundle: Path) -> None:
    result = show(bundle, "--stage", 2)
    assert result.exit_code == 2 and "no stage 2; the bundle has 2" in result.stderr
    result = show(bundle / "plan.json", "--stage", 0)
    assert result.exit_code == 2 and "a plan has no stages" in result.stderr


@pytest.mark.parametrize(
    ("member", "content", "reason"),
    [
        ("plan.json", None, "No such file"),
        ("proof.json", None, "No such file"),
        ("manifest.json", b"{}", "not a trainverify-bundle manifest"),
        ("manifest.json", b"[", "not a JSON document"),
        ("proof.json", b"{}", "a proof must be an object"),
    ],
)
def test_damaged_bundles(bundle: Path, member: str, content: bytes | None, reason: str) -> None:
    (bundle / member).unlink()
    if content is not None:
        (bundle / member).write_bytes(content)
    result = show(bundle)
    assert result.exit_code == 5 and reason in result.stderr and result.stderr.count("\n") == 1
