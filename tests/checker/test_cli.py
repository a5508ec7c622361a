"""`tv-check` from outside: exit codes, hostile folders, lying, crashing and hanging solvers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from checker import cli
from checker import solvers as replay
from checker.cli import main

sys.path.insert(0, str(Path(__file__).parent))
from samples import Bundle, answers, dump, row_parallel, scheduled, shards, staged


def run(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return row_parallel().write(tmp_path / "bundle")


@pytest.mark.parametrize("make", [row_parallel, shards])
def test_valid(make: Callable[[], Bundle], tmp_path: Path) -> None:
    result = run(make().write(tmp_path / "bundle"), "--trusted-base")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[-1].startswith("VALID: all 1 outputs equal")
    assert any("2 of 2 obligations confirmed by cvc5" in line for line in lines)
    assert any("op semantics" in line for line in lines)
    assert any(line.startswith("outside the claim: floating-point rounding") for line in lines)


def test_json_and_own_plan(bundle: Path) -> None:
    (bundle.parent / "plan.json").write_bytes((bundle / "data/plan.json").read_bytes())
    result = run(bundle, "--json", "--plan", bundle.parent / "plan.json")
    assert json.loads(result.output)["outputs"][0]["verdict"] == "PROVED"
    (bundle.parent / "plan.json").write_bytes(dump(shards().plan))
    result = run(bundle, "--plan", bundle.parent / "plan.json")
    assert (result.exit_code, "not the plan you gave" in result.output) == (1, True)
    (bundle.parent / "plan.json").write_bytes(b"{}\n")
    assert run(bundle, "--plan", bundle.parent / "plan.json").exit_code == 5


LOOP = """import sys, time
for line in sys.stdin:
    if line == '"b"\\n': {}
    print("answer unsat", flush=True)
"""


def solver(folder: Path, body: str) -> str:
    path = folder / "solver.py"
    path.write_text(body)
    return f"{sys.executable} {path} {{file}}"


@pytest.mark.parametrize(
    "body,said",
    [
        ("print('sat')", "says sat"),
        ("print('unknown')", "says unknown"),
        ("print('unsat sat')", "says unsat sat"),
        ("import os; os.abort()", "says "),
        ("print('unsat'); raise SystemExit(3)", "says exit code 3"),
        ("import time; time.sleep(600)", "says no answer in time"),
    ],
)
def test_a_solver_that_misbehaves(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    # Long enough for z3 and cvc5 to start on a machine that does ten other things, too short for this solver.
    monkeypatch.setattr(replay, "SECONDS", 8 if "sleep" in body else 60)
    result = run(bundle, "--solver", solver(bundle.parent, body))
    assert result.exit_code == 3, result.output
    assert said in result.output and "z3 says unsat" in result.output
    assert result.output.splitlines()[-1].startswith("UNKNOWN: 1 of 1")


def test_progress_is_shown_while_solvers_work(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, so that what is printed stays as it is; with ``--quiet`` not at all."""
    monkeypatch.setattr(cli, "EVERY", 0.01)
    slow = solver(bundle.parent, "import time; time.sleep(0.3); print('unsat')")
    loud, quiet = run(bundle, "--solver", slow), run(bundle, "--solver", slow, "--quiet")
    counted = re.findall(r"^tv-check: solving, (\d+) of 6 answers, \d+ s$", loud.stderr, re.M)
    assert counted and counted == sorted(counted, key=int) and int(counted[-1]) <= 6
    assert quiet.stderr == "" and quiet.stdout == loud.stdout


def test_a_mistake_of_the_checker_is_no_verdict(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would end with 1, *refuted*."""

    def broken(*_: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(cli.kernel, "examine", broken)
    result = run(bundle)
    assert result.exit_code == 3 and result.stdout == ""
    assert result.stderr.splitlines()[-1] == "tv-check: unknown: internal error ValueError"


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
def test_a_machine_without_room_is_no_verdict(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(replay.subprocess, "Popen", full)
    assert run(bundle).exit_code == 6


def test_a_third_solver_that_agrees(bundle: Path) -> None:
    result = run(bundle, "--solver", solver(bundle.parent, "print('unsat')"))
    assert result.exit_code == 0 and "confirmed by" in result.output


@pytest.mark.parametrize(
    "loop,expected",
    [
        (LOOP.format("sys.exit(1)"), ["unsat", "crash", "unsat"]),
        (LOOP.format("time.sleep(600)"), ["unsat", "no answer in time", "unsat"]),
        ("print('unsat')", ["crash"] * 3),
    ],
)
def test_batches_survive_crashes(monkeypatch: pytest.MonkeyPatch, loop: str, expected: list[str]) -> None:
    monkeypatch.setattr(replay, "SECONDS", 8)
    assert replay._batch([sys.executable, "-I", "-c", loop], ["a", "b", "c"]) == expected


def test_a_solver_that_ends_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a child that crashes at once is gone before the first text is written."""
    started = replay.started

    @contextmanager
    def ended(words: list[str], stdin: int) -> Iterator[subprocess.Popen[str]]:
        with started(words, stdin) as child:
            child.wait()
            yield child

    monkeypatch.setattr(replay, "started", ended)
    assert replay._batch([sys.executable, "-I", "-S", "-c", ""], ["a", "b"]) == ["crash"] * 2


def test_the_default_solvers_answer(tmp_path: Path) -> None:
    files = {
        "0001": b"(set-logic QF_UFLRA)\n(declare-fun x () Real)\n(assert (< x 1.0))\n(check-sat)\n",
        "0002": b"(set-logic QF_UFLRA)\n(assert undeclared)\n(check-sat)\n",
    }
    for given in replay.replay(files, replay.solvers(()), 1).values():
        assert given["0001"] == "sat" and "unsat" not in given["0002"].split()


UNSAT = "0001 unsat\n0002 unsat\n"


def test_answers(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a solver here the answers of two solvers do, those of one do not, however often they come."""
    monkeypatch.setattr(replay, "RUNNERS", {})
    first, second = bundle.parent / "a.txt", bundle.parent / "b.txt"

    def said(text: str, other: str) -> tuple[int, str]:
        first.write_text(text)
        second.write_text(other)
        result = run(bundle, "--answers", first, "--answers", second)
        return result.exit_code, result.output

    z3, cvc5 = (answers(bundle, s, UNSAT) for s in ("z3", "cvc5"))
    code, output = said(z3, cvc5)
    assert code == 0
    assert "trusted for the answers of cvc5: whoever made b.txt (of 1)" in output
    assert run(bundle, "--answers", first).exit_code == run(bundle).exit_code == 4
    for copy in (z3, answers(bundle, "z3", UNSAT, "4.8.12"), answers(bundle, "Z3-4.8", UNSAT)):
        code, output = said(z3, copy)
        assert (code, "2 solvers must confirm, there is z3\n" in output) == (4, True)
    code, output = said(UNSAT, UNSAT)
    assert (code, "there is a solver that is not named\n" in output) == (4, True)
    assert said(z3, UNSAT)[0] == 0, "files without a head were made before, and by one other solver"
    code, output = said(z3, answers(bundle, "cvc5", "0001 unsat\n"))
    assert code == 3 and "cvc5 says nothing" in output
    assert said(z3, answers(bundle, "cvc5", "0001 unsat\n0001 unsat\n"))[0] == 5


def test_answers_in_parts_are_joined_and_a_contradiction_proves_nothing(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "RUNNERS", {})
    parts = []
    for i, (solver, lines) in enumerate(
        [("z3", UNSAT), ("cvc5", "0001 unsat\n"), ("cvc5", "0002 unsat\n"), ("cvc5", "0002 sat\n")]
    ):
        (bundle.parent / f"part{i}").write_text(answers(bundle, solver, lines))
        parts += ["--answers", bundle.parent / f"part{i}"]
    assert run(bundle, *parts[:6]).exit_code == 0
    result = run(bundle, *parts)
    assert result.exit_code == 3 and "cvc5 says unsat and sat" in result.output


def test_answers_about_another_bundle(bundle: Path) -> None:
    """Their numbers are the same; they say nothing of this one's obligations."""
    other = shards().write(bundle.parent / "other")
    (bundle.parent / "a.txt").write_text(answers(other, "yices", UNSAT))
    result = run(bundle, "--answers", bundle.parent / "a.txt")
    assert result.exit_code == 5
    assert "a.txt: these answers are about the obligations of another bundle" in result.output


def test_nothing_to_solve_needs_no_solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RUNNERS", {})
    assert run(refuted({"x": "1", "w": "1/2"}, AT).write(tmp_path / "bundle")).exit_code == 1


def test_policy(bundle: Path) -> None:
    policy = bundle.parent / "policy.json"
    policy.write_text('{"shape_reduction":false}')
    result = run(bundle, "--policy", policy)
    assert (result.exit_code, "does not accept shape reduction" in result.output) == (3, True)
    policy.write_text('{"confirmations":3}')
    assert run(bundle, "--policy", policy).exit_code == 4
    policy.write_text('{"confirmations":0}')
    assert run(bundle, "--policy", policy).exit_code == 5


def break_link(folder: Path) -> None:
    (folder / "data/proof.json").rename(folder.parent / "p.json")
    (folder / "data/proof.json").symlink_to(folder.parent / "p.json")


def traverse(folder: Path) -> None:
    with (folder / "manifest-sha256.txt").open("ab") as file:
        file.write(b"0" * 64 + b"  data/../outside\n")


def duplicate(folder: Path) -> None:
    data = (folder / "data/manifest.json").read_text()
    (folder / "data/manifest.json").write_text(
        data.replace('{"format"', '{"format":"trainverify-bundle","format"', 1)
    )


@pytest.mark.parametrize(
    "change,reason",
    [
        (break_link, "a link"),
        (traverse, "no valid text"),
        (duplicate, "duplicate key"),
        (lambda f: (f / "data/plan.json").unlink(), "is missing"),
        (lambda f: (f / "sub").mkdir(), "unexpected folder"),
        (lambda f: (f / "data/proof.json").write_bytes(b'{"format":'), "no JSON"),
        (lambda f: (f / "data/proof.json").write_bytes(b"[" * 9999), "deeply"),
        (lambda f: (f / "data/manifest.json").write_bytes(b"1" * 5000), "too many digits"),
    ],
)
def test_malformed_bundles(bundle: Path, change: Callable[[Path], object], reason: str) -> None:
    change(bundle)
    result = run(bundle)
    assert (result.exit_code, len(result.output.splitlines())) == (5, 1), result.output
    assert result.output.startswith("MALFORMED: ") and reason in result.output


def test_changed_member(bundle: Path) -> None:
    with (bundle / "data/proof.json").open("ab") as file:
        file.write(b" ")
    result = run(bundle)
    assert (result.exit_code, result.output.startswith("INVALID: obligation 1 ")) == (1, True)


def test_no_bundle(tmp_path: Path) -> None:
    assert run(tmp_path / "nothing").exit_code == 5
    assert run().exit_code == 2


def refuted(values: dict[str, str], symbols: dict[str, int], coef: str = "2") -> Bundle:
    """The claim that y is `coef` times what it is, with inputs that are constant."""
    bundle = row_parallel()
    bundle.plan["outputs"][0]["coef"] = coef
    bundle.proof |= {"facts": [], "stages": []}
    bundle.files, bundle.verdicts[0]["verdict"] = {}, "REFUTED"
    sizes = {"x": [4, 6], "w": [6, 8]}
    inputs = {n: {"cuts": [[0, s] for s in sizes[n]], "values": [v]} for n, v in values.items()}
    bundle.extra["witness.json"] = dump(
        {"output": 0, "piece": 0, "symbols": symbols, "junk": "0", "inputs": inputs}
    )
    return bundle


AT = {"tp": 1, "z0": 3, "z1": 7}


def test_a_witness_refutes(tmp_path: Path) -> None:
    result = run(refuted({"x": "1", "w": "1/2"}, AT).write(tmp_path / "bundle"))
    assert result.exit_code == 1, result.output
    assert result.output.splitlines()[-1].startswith("REFUTED: 1 of 1")
    assert "gives 3 on the plan's side and 6" in result.output
    assert "at tp = 1, z0 = 3" in result.output


def test_a_witness_of_enormous_numbers(tmp_path: Path) -> None:
    result = run(refuted({"x": "9" * 300, "w": "9" * 300}, AT).write(tmp_path / "bundle"))
    assert result.exit_code == 1 and "1e308 or more" in result.output


@pytest.mark.parametrize(
    "values,symbols,coef,code,said",
    [
        (
            {"x": "1", "w": "0"},
            AT,
            "2",
            1,
            "obligation 18 (witnesses) fails: the sides are not shown to differ",
        ),
        (
            {"x": "1", "w": "1"},
            AT,
            "1",
            1,
            "obligation 18 (witnesses) fails: the sides are not shown to differ",
        ),
        ({"x": "1", "w": "1"}, AT | {"tp": 2}, "2", 5, "no integer in [0, 2)"),
        ({"x": "1"}, AT, "2", 5, "member w is missing"),
        ({"x": "1", "w": "1"}, {"tp": 0}, "2", 5, "is missing"),
    ],
)
def test_witnesses_that_show_nothing(
    tmp_path: Path, values: dict[str, str], symbols: dict[str, int], coef: str, code: int, said: str
) -> None:
    result = run(refuted(values, symbols, coef).write(tmp_path / "bundle"))
    assert (result.exit_code, said in result.output) == (code, True), result.output


def test_refuted_needs_its_witness(tmp_path: Path) -> None:
    bundle = refuted({"x": "1", "w": "1"}, AT)
    bundle.extra.clear()
    result = run(bundle.write(tmp_path / "bundle"))
    assert (result.exit_code, "no witness shows it" in result.output) == (1, True)


def test_a_schedule_has_a_line_of_its_own(tmp_path: Path) -> None:
    found = run(scheduled().write(tmp_path / "safe"))
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[-1].endswith("under the stated relations, and the schedule is SAFE")
    assert "schedule: SAFE: 6 events in 2 lanes, on 1 communicators" in found.output
    assert "in the same run" not in found.output
    wrong = scheduled()
    wrong.plan["schedule"]["lanes"][0]["events"][0][2] = 1
    found = run(wrong.write(tmp_path / "unsafe"), "--json")
    told = json.loads(found.stdout)
    assert (found.exit_code, told["exit_code"]) == (1, 1)
    assert told["verdict"].startswith("UNSAFE: 1 of 1 outputs are proved, and the schedule is not safe: lane")
    assert told["schedule"].startswith("UNSAFE: lane first: event 2 (f, run 1): f, run 1 is done again")
    found = run(staged().write(tmp_path / "none"))
    assert found.exit_code == 0 and "schedule: not claimed, the plan has no schedule" in found.output
    assert "schedule:" not in run(row_parallel().write(tmp_path / "no messages")).output


def test_a_policy_asks_for_a_schedule(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text('{"safety":true}')
    assert run(scheduled().write(tmp_path / "safe"), "--policy", policy).exit_code == 0
    found = run(staged().write(tmp_path / "none"), "--policy", policy)
    assert found.exit_code == 3
    assert found.stdout.splitlines()[-1].startswith(
        "UNKNOWN: the policy wants a schedule that is shown to be"
    )
    policy.write_text('{"safety":1}')
    assert run(staged().write(tmp_path / "bad"), "--policy", policy).exit_code == 5


def test_a_schedule_without_a_certificate_is_invalid(tmp_path: Path) -> None:
    bundle = scheduled()
    del bundle.proof["when"]
    found = run(bundle.write(tmp_path / "bundle"))
    assert found.exit_code == 1 and "INVALID: obligation 23 (schedule)" in found.output
