"""Bundles on disk: complete, deterministic, replaced as a whole; nobody's other files are lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from certificates.bundle.bundle import (
    GENERATOR,
    Bundle,
    NotABundle,
    OutputVerdict,
    read,
    read_manifest,
    summary,
    write,
)
from certificates.canonical import digest
from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.writing import dumps
from certificates.proof.stages import Proof
from certificates.proof.writing import proof_bytes
from checker.solvers import read_answers

ROOT = Path(__file__).resolve().parents[3]


WORDS = {"report.txt": b"in words\n", "report.html": b"<p>in words\n"}


@pytest.fixture
def bundle(mlp: Plan) -> Bundle:
    verdicts = tuple(OutputVerdict(r.spec, r.plan, "PROVED") for r in mlp.outputs)
    texts = {"0001": "(check-sat)\n", "0002": "; second\n(check-sat)\n", "0010": "(exit)\n"}
    return Bundle(mlp, proof_bytes(Proof([], [])), texts, verdicts, "unsat", reports=WORDS)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_file_is_listed_with_its_digest(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    files = contents(tmp_path / "b")
    manifest = json.loads(files.pop("manifest.json"))
    assert manifest["members"] == {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}
    assert set(files) == {
        *("plan.json", "proof.json", "run.sh", "report.txt", "report.html"),
        *(f"obligations/{n}.smt2" for n in ("0001", "0002", "0010")),
    }
    assert manifest["members"]["plan.json"] == digest(dumps(bundle.plan))
    assert [v["plan"] for v in manifest["verdicts"]] == [r.plan for r in bundle.plan.outputs]


def test_reading_gives_what_was_written(bundle: Bundle, tmp_path: Path) -> None:
    bundle = replace(bundle, witness={"output": 0, "junk": "3"}, status="unknown", about={"who": "team"})
    write(bundle, tmp_path / "b")
    found = read(tmp_path / "b")
    assert found == replace(bundle, plan=found.plan)
    assert dumps(found.plan) == dumps(bundle.plan)


def test_reports_are_written_of_all_other_members(bundle: Bundle, tmp_path: Path) -> None:
    """Whoever writes them reads a bundle that is whole but for them."""

    def report(folder: Path) -> dict[str, bytes]:
        members = read_manifest(folder).members
        assert set(members) == set(contents(folder)) - {"manifest.json"}
        return {"report.txt": b"".join(sorted(n.encode() for n in members))}

    write(replace(bundle, reports={}), tmp_path / "b", report)
    found = read(tmp_path / "b")
    assert b"plan.jsonproof.jsonrun.sh" in found.reports["report.txt"]


def test_generator_names_the_released_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"{project['name']} {project['version']}" == GENERATOR


def test_a_bundle_is_replaced_as_a_whole(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    write(replace(bundle, obligations={"0001": "new\n"}), tmp_path / "b")
    assert sorted(p.name for p in (tmp_path / "b" / "obligations").iterdir()) == ["0001.smt2"]
    assert [p.name for p in tmp_path.iterdir()] == ["b"], "no scratch folder is left"


def test_leftovers_of_a_killed_run_are_no_obstacle(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / ".b.partial" / "obligations").mkdir(parents=True)
    (tmp_path / ".b.partial" / "stale").write_text("", encoding="ascii")
    write(bundle, tmp_path / "b")
    assert "stale" not in contents(tmp_path / "b")


def test_a_failure_while_writing_leaves_the_old_bundle(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bundle, tmp_path / "b")
    before = contents(tmp_path / "b")
    original = Path.write_bytes

    def full_disk(self: Path, data: bytes) -> int:
        if self.name == "manifest.json":
            raise OSError("no space left")
        return original(self, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="no space"):
        write(replace(bundle, obligations={}), tmp_path / "b")
    assert contents(tmp_path / "b") == before


def test_an_empty_folder_may_be_filled(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write(bundle, tmp_path / "b")
    assert read_manifest(tmp_path / "b").status == "unsat"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: (p.mkdir(), (p / "thesis.tex").write_text("x")), "is no bundle"),
        (lambda p: p.write_text("x"), "no folder"),
        (lambda p: p.symlink_to(p.parent), "no folder"),
        (lambda p: (p.mkdir(), (p / "manifest.json").write_text("{}")), "is no bundle"),
    ],
)
def test_other_things_are_not_overwritten(bundle: Bundle, tmp_path: Path, make: object, reason: str) -> None:
    assert callable(make)
    make(tmp_path / "b")
    with pytest.raises(NotABundle, match=reason):
        write(bundle, tmp_path / "b")
    assert not (tmp_path / ".b.partial").exists()


def test_notes_in_a_bundle_are_not_deleted(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    (tmp_path / "b" / "obligations" / "notes.txt").write_text("mine", encoding="ascii")
    with pytest.raises(NotABundle, match=r"notes\.txt"):
        write(bundle, tmp_path / "b")
    assert (tmp_path / "b" / "obligations" / "notes.txt").read_text(encoding="ascii") == "mine"


def test_a_changed_member_is_noticed(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    (tmp_path / "b" / "obligations" / "0002.smt2").write_text("(exit)\n", encoding="ascii")
    with pytest.raises(FormatError, match=r"0002\.smt2 has not the SHA-256"):
        read(tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "sat"}, "status"),
        ({"members": {"../plan.json": "0"}}, "outside"),
        ({"members": {"plan.json": 1}}, "digests"),
        ({"members": {}}, "does not list plan.json"),
        ({"version": 3}, "version 1"),
        ({"verdicts": [{"spec": "a", "plan": "a", "verdict": "FINE", "reason": ""}]}, "a verdict is"),
    ],
)
def test_a_bad_manifest_is_refused(
    bundle: Bundle, tmp_path: Path, change: Mapping[str, object], reason: str
) -> None:
    write(bundle, tmp_path / "b")
    path = tmp_path / "b" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text("ascii")) | change), encoding="ascii")
    with pytest.raises(FormatError, match=reason):
        read(tmp_path / "b")


# --- run.sh ------------------------------------------------------------------------------------------------


def solver(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("shell", [s for s in ("sh", "dash", "bash") if shutil.which(s)])
def test_run_sh_needs_nothing_but_a_shell_and_a_solver(bundle: Bundle, tmp_path: Path, shell: str) -> None:
    """PATH is empty; the solver sees its options, then the file; every strange answer is an error."""
    write(bundle, tmp_path / "a b")
    script = 'case $3 in *0001*) echo unsat;; *2.smt2) echo unsat; exit 3;; *) echo "(x)"; echo unsat;; esac'
    fake = solver(tmp_path / "fake", f'[ "$1 $2" = "--lang smt2" ] || exit 1; {script}')
    words = [str(shutil.which(shell)), str(tmp_path / "a b" / "run.sh"), str(fake), "--lang", "smt2"]
    done = subprocess.run(words, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert done.stdout == "0001 unsat\n0002 error\n0010 error\n"
    assert done.returncode == 1 and done.stderr == ""
    assert read_answers(done.stdout, "answers") == {"0001": "unsat", "0002": "error", "0010": "error"}


def test_run_sh_uses_z3_by_default_from_inside_the_folder(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    solver(tmp_path / "z3", "echo unsat")
    words = [str(shutil.which("sh")), "run.sh"]
    done = subprocess.run(
        words, env={"PATH": str(tmp_path)}, cwd=tmp_path / "b", capture_output=True, text=True, check=False
    )
    assert done.stdout == "0001 unsat\n0002 unsat\n0010 unsat\n"
    assert done.returncode == 0


def test_run_sh_without_the_solver_proves_nothing(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    words = [str(shutil.which("sh")), str(tmp_path / "b" / "run.sh")]
    done = subprocess.run(words, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert set(read_answers(done.stdout, "answers").values()) == {"error"}
    assert done.returncode == 1


def test_nothing_claimed_is_no_success() -> None:
    assert summary([]).startswith("UNKNOWN")
    refuted = [OutputVerdict("a", "a", "REFUTED"), OutputVerdict("b", "b", "PROVED")]
    assert summary(refuted) == "REFUTED: 1 of 2 outputs differ on a concrete input; 1 proved"
