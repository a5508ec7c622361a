"""The façade: three verdicts, of which only PROVED is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import trainverify as tv
from tests.corpus.mutate import mutants

ROOT = Path(__file__).resolve().parents[1]


def test_a_right_plan_is_proved(mlp: tv.Plan, tmp_path: Path) -> None:
    verdict = tv.verify(mlp, jobs=2, out=tmp_path / "b")
    assert verdict and verdict.kind is tv.Kind.PROVED and verdict.exit_code == 0
    assert verdict.bundle == tmp_path / "b" and len(verdict.outputs) == 5
    assert verdict.report.splitlines()[-1].startswith("VALID")
    assert tv.check(tmp_path / "b") == verdict


def test_a_plan_file_and_no_bundle_kept(mlp: tv.Plan, tmp_path: Path) -> None:
    tv.dump(mlp, tmp_path / "plan.json.gz")
    verdict = tv.verify(str(tmp_path / "plan.json.gz"))
    assert verdict and verdict.bundle is None
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json.gz"]


def test_a_wrong_plan_is_refuted(mlp: tv.Plan) -> None:
    broken = next(m for m in mutants(mlp) if m.operator == "drop" and "subtract %31" in m.where).build()
    verdict = tv.verify(broken)
    assert not verdict and verdict.kind is tv.Kind.REFUTED and verdict.exit_code == 1
    assert [o.plan for o in verdict.outputs if o.verdict == "REFUTED"] == ["params.w2"]
    unknown = tv.verify(broken, witness_seconds=0)
    assert not unknown and unknown.kind is tv.Kind.UNKNOWN and unknown.exit_code == 3


def test_an_invalid_bundle_says_nothing_about_the_plan(mlp: tv.Plan, tmp_path: Path) -> None:
    tv.emit(mlp, tmp_path / "b")
    (tmp_path / "b/data/proof.json").write_bytes((tmp_path / "b/data/proof.json").read_bytes() + b"\n")
    verdict = tv.check(tmp_path / "b")
    assert not verdict and verdict.kind is tv.Kind.UNKNOWN and verdict.exit_code == 1
    assert "INVALID: obligation 1 (members)" in verdict.report


def test_a_path_is_as_good_as_a_plan(mlp: tv.Plan, tmp_path: Path) -> None:
    """``tv.emit(path)`` ended in an AttributeError deep inside."""
    tv.dump(mlp, tmp_path / "plan.json.gz")
    for number, plan in enumerate((mlp, tmp_path / "plan.json.gz", str(tmp_path / "plan.json.gz"))):
        done = tv.emit(plan, tmp_path / f"b{number}", solve=False)
        assert done.bundle == tmp_path / f"b{number}" and done.complete == 5


def test_everything_promised_is_there() -> None:
    assert sorted(tv.__all__) == sorted(set(tv.__all__))
    assert all(hasattr(tv, name) for name in tv.__all__)


@pytest.mark.parametrize("module", ["torch", "z3", "cvc5", "checker"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, trainverify; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
