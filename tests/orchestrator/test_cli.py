"""``tv-emit`` and ``tv-verify``: exit codes, last lines, JSON, and whose verdict counts."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from certificates.bundle.bundle import OutputVerdict, read
from certificates.plan.plan import Plan
from certificates.plan.writing import dump
from orchestrator import cli
from orchestrator.children import Checked
from orchestrator.cli import emit_main, verify_main
from orchestrator.emission import Emission
from tests.corpus.mutate import mutants

ROOT = Path(__file__).resolve().parents[2]


def emit(*args: object) -> Result:
    return CliRunner().invoke(emit_main, [str(a) for a in args])


def verify(*args: object) -> Result:
    return CliRunner().invoke(verify_main, [str(a) for a in args])


def last(result: Result) -> str:
    return result.stdout.splitlines()[-1]


def line_of(code: str) -> int:
    """Line of ``tests/conftest.py`` on which the step of the tests' plan says so."""
    lines = (ROOT / "tests/conftest.py").read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if code in line)
    return number


@pytest.fixture
def good(mlp: Plan, tmp_path: Path) -> Path:
    dump(mlp, tmp_path / "plan.json.gz")
    return tmp_path / "plan.json.gz"


@pytest.fixture
def bad(mlp: Plan, tmp_path: Path) -> Path:
    broken = next(m for m in mutants(mlp) if m.operator == "swap" and "subtract %31" in m.where)
    dump(broken.build(), tmp_path / "bad.json")
    return tmp_path / "bad.json"


# --- tv-emit -----------------------------------------------------------------------------------------------


def test_proved_is_0(good: Path, tmp_path: Path) -> None:
    result = emit(good, "--out", tmp_path / "b", "--jobs", 2)
    assert result.exit_code == 0
    assert last(result).startswith("PROVED: 5 of 5 outputs")
    assert "tv-emit: prove: " in result.stderr
    assert read(tmp_path / "b").status == "unsat"


def test_quiet_says_nothing_on_stderr(good: Path, tmp_path: Path) -> None:
    assert emit(good, "--out", tmp_path / "b", "--quiet").stderr == ""


def test_refuted_is_1(bad: Path, tmp_path: Path) -> None:
    result = emit(bad, "--out", tmp_path / "b")
    assert result.exit_code == 1
    assert last(result) == "REFUTED: 1 of 5 outputs differ on a concrete input; 4 proved"
    assert "cause: " in result.stdout


def test_unknown_is_3(bad: Path, tmp_path: Path) -> None:
    result = emit(bad, "--out", tmp_path / "b", "--witness-seconds", 0)
    assert result.exit_code == 3
    assert last(result) == "UNKNOWN: 1 of 5 outputs without a verdict; 4 proved"


def test_a_core_solver_that_is_not_there_is_4(good: Path, tmp_path: Path) -> None:
    result = emit(good, "--out", tmp_path / "b", "--core-solver", "no-such-solver --quiet")
    assert result.exit_code == 4
    assert last(result) == "SOLVER MISSING: no program 'no-such-solver' to ask for unsat cores"
    assert not (tmp_path / "b").exists()


def test_a_core_solver_without_solving_is_a_mistake(good: Path, tmp_path: Path) -> None:
    result = emit(good, "--out", tmp_path / "b", "--no-solve", "--core-solver", "z3")
    assert result.exit_code == 2 and "--no-solve asks no solver" in result.stderr


def test_one_json_object(bad: Path, tmp_path: Path) -> None:
    result = emit(bad, "--out", tmp_path / "b", "--json")
    said = json.loads(result.stdout)
    assert said["exit_code"] == result.exit_code == 1
    assert said["verdict"].startswith("REFUTED")
    assert {o["plan"]: o["verdict"] for o in said["outputs"]}["params.w2"] == "REFUTED"
    manifest = json.loads((tmp_path / "b/data/manifest.json").read_text("ascii"))
    assert f"{said['digest']}  data/plan.json\n" in (tmp_path / "b/manifest-sha256.txt").read_text("ascii")
    assert said["outputs"] == manifest["verdicts"]
    assert {"relate", "prove", "confirm", "witness", "write"} <= set(said["seconds"])


def test_usage_is_2(good: Path, tmp_path: Path) -> None:
    assert emit(good).exit_code == 2
    assert emit(good, "--out", tmp_path / "b", "--jobs", 0).exit_code == 2
    result = emit(good, "--out", tmp_path)
    assert result.exit_code == 2 and "it is not overwritten" in result.stderr
    assert good.exists()
    (tmp_path / "file").write_text("", encoding="ascii")
    result = emit(good, "--out", tmp_path / "file" / "b")
    assert result.exit_code == 6 and last(result).startswith("FAILED: ") and "file" in last(result)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff\x00", gzip.compress(b"[]", mtime=0)[:-4], b'{"format": "x"}', b"[" * 5000]
)
@pytest.mark.parametrize("command", [emit, verify])
def test_malformed_is_5_in_one_line(tmp_path: Path, data: bytes, command: type[object]) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(data)
    result = command(path, "--out", tmp_path / "b")
    assert isinstance(result, Result)
    assert result.exit_code == 5
    assert len(result.stdout.splitlines()) == 1 and last(result).startswith("MALFORMED: ")
    assert not (tmp_path / "b").exists()


def test_a_missing_plan_is_5(tmp_path: Path) -> None:
    result = emit(tmp_path / "none.json", "--out", tmp_path / "b")
    assert result.exit_code == 5 and "cannot read" in last(result)


def test_solver_missing_is_4(good: Path, tmp_path: Path) -> None:
    arguments = [str(good), "--out", str(tmp_path / "b")]
    code = "import sys; sys.modules['cvc5'] = None\n"
    code += f"from orchestrator.cli import emit_main\nemit_main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stdout.startswith("SOLVER MISSING: ") and "cvc5" in done.stdout


def test_without_solving_everything_written_is_0(good: Path, bad: Path, tmp_path: Path) -> None:
    result = emit(good, "--out", tmp_path / "b", "--no-solve")
    assert result.exit_code == 0 and last(result).startswith("UNSOLVED: 5 of 5 outputs")
    assert "PROVED" not in result.stdout
    assert emit(bad, "--out", tmp_path / "c", "--no-solve", "--witness-seconds", 0).exit_code == 3


def test_an_internal_error_is_not_refuted(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own exit code for an exception is 1, which would mean refuted."""

    def broken(*_: object, **__: object) -> None:
        raise ValueError("surprise")

    monkeypatch.setattr(cli, "emit", broken)
    result = emit(good, "--out", tmp_path / "b")
    assert result.exit_code == 3
    assert last(result) == "UNKNOWN: internal error ValueError: surprise"
    assert "Traceback" in result.stderr


def test_an_interrupted_run_is_not_refuted(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for step in ("run_checker", "emit", "load"):
        monkeypatch.setattr(cli, step, interrupted)
        result = verify(good, "--out", tmp_path / "b")
        assert result.exit_code == 130 and last(result).startswith("INTERRUPTED: no verdict"), step
    result = emit(good, "--out", tmp_path / "b")
    assert result.exit_code == 130 and last(result).startswith("INTERRUPTED: no verdict")


# --- tv-verify ---------------------------------------------------------------------------------------------


def test_verify_passes_on_the_checkers_report(good: Path, tmp_path: Path) -> None:
    result = verify(good, "--jobs", 2, "--out", tmp_path / "b")
    assert result.exit_code == 0
    assert last(result).startswith("VALID: all 5 outputs")
    assert "claim: the step is an INVARIANT" in result.stdout
    assert (tmp_path / "b/data/manifest.json").exists()


def test_verify_keeps_nothing_by_default(good: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert verify(good, "--quiet").exit_code == 0
    assert sorted(tmp_path.iterdir()) == before


def test_verify_refutes_and_says_where_to_look(bad: Path) -> None:
    result = verify(bad)
    assert result.exit_code == 1 and last(result).startswith("REFUTED")
    assert "diagnosis: params.w2: " in result.stdout
    assert f"conftest.py:{line_of('b.output(name, weight - ')}" in result.stdout


def test_verify_in_json(bad: Path) -> None:
    said = json.loads(verify(bad, "--json").stdout)
    assert said["exit_code"] == said["check"]["exit_code"] == 1
    assert said["verdict"].startswith("REFUTED")
    assert said["emit"]["counts"]["proved"] == 4 and "check" in said["seconds"]


@pytest.fixture(scope="module")
def emission(mlp: Plan, tmp_path_factory: pytest.TempPathFactory) -> Emission:
    return cli.emit(mlp, tmp_path_factory.mktemp("once") / "b")


@pytest.mark.parametrize("code", [1, 3, 4, 5, 6])
def test_only_the_checkers_exit_code_decides(
    good: Path, monkeypatch: pytest.MonkeyPatch, emission: Emission, code: int
) -> None:
    """Whatever the emitter believes, and whatever verdict the checker's text speaks of."""
    monkeypatch.setattr(cli, "emit", lambda *_, **__: emission)
    proved = OutputVerdict("loss", "loss", "PROVED")
    answer = Checked(code, ("VALID: it is fine",), (proved,), {})
    monkeypatch.setattr(cli, "run_checker", lambda *_: answer)
    assert verify(good, "--quiet").exit_code == code


def test_verify_compares_with_the_callers_plan(
    good: Path, bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle of another plan, however valid, is no answer to the question."""
    real = cli.emit
    monkeypatch.setattr(cli, "emit", lambda _plan, out, **options: real(cli.load(good), out, **options))
    assert verify(good, "--quiet").exit_code == 0
    result = verify(bad, "--quiet")
    assert result.exit_code == 1 and "not the plan you gave" in last(result)


def test_a_checker_that_dies_is_no_verdict(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator import children

    for code in ("raise SystemExit(0)", "print('{}')", "import os; os.abort()", "raise ValueError('x')"):
        monkeypatch.setattr(children, "command", lambda *_, c=code: [sys.executable, "-c", c])
        checked = children.run_checker(good)
        assert checked.exit_code not in (0, 1) and checked.outputs == ()
        assert re.match("UNKNOWN: tv-check (ended with code|was ended by SIGABRT)", checked.lines[-1])


def test_the_checker_that_runs_is_the_one_beside_this_package(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder called checker where the user happens to stand is not run."""
    (tmp_path / "checker").mkdir()
    (tmp_path / "checker" / "__init__.py").write_text("", encoding="ascii")
    (tmp_path / "checker" / "cli.py").write_text("def main(): raise SystemExit(0)", encoding="ascii")
    monkeypatch.chdir(tmp_path)
    result = verify(good, "--quiet")
    assert result.exit_code == 0 and last(result).startswith("VALID: all 5 outputs")


# --- what is said of the run -------------------------------------------------------------------------------


def test_what_is_said_of_the_run_is_kept_apart(good: Path, tmp_path: Path) -> None:
    """From a file and from options, which win; nothing of the proof changes."""
    (tmp_path / "about.json").write_text('{"who": "team", "commit": "old"}')
    said = ("--about", tmp_path / "about.json", "--about-commit", "new", "--about-dataset", "c4@1")
    assert emit(good, "--out", tmp_path / "b", "--no-solve", *said).exit_code == 0
    assert emit(good, "--out", tmp_path / "silent", "--no-solve").exit_code == 0
    told, silent = read(tmp_path / "b"), read(tmp_path / "silent")
    assert told.about == {"who": "team", "commit": "new", "dataset": "c4@1"} and silent.about is None
    assert (told.proof, told.obligations) == (silent.proof, silent.obligations)
    lines = told.reports["report.txt"].decode().splitlines()
    at = lines.index("Said by the maker, not checked")
    assert lines[at + 1 : at + 4] == ["  made by: team", "  source commit: new", "  data set: c4@1"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (("--about-who", "a\nVALID"), "MALFORMED: --about-...: who must be one line"),
        (("--about", "no such file"), "MALFORMED: cannot read no such file"),
    ],
)
def test_what_cannot_be_said_is_refused(
    good: Path, tmp_path: Path, said: tuple[str, ...], reason: str
) -> None:
    result = emit(good, "--out", tmp_path / "b", "--no-solve", *said)
    assert result.exit_code == 5 and last(result).startswith(reason)
    assert not (tmp_path / "b").exists()
