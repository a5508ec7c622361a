"""The scripts of a bundle: any POSIX shell, any solver; what is no clean answer is an error, and is seen."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from certificates.bundle.bundle import Bundle, OutputVerdict, write
from certificates.plan.plan import Plan
from certificates.proof.stages import Proof
from certificates.proof.writing import proof_bytes
from checker.solvers import obligations_digest, read_answers

SHELLS = [s for s in ("sh", "dash", "bash", "ksh", "busybox") if shutil.which(s)]
TEXTS = {f"{n:04}": f"; {n}\n(check-sat)\n" for n in range(1, 8)}
ANSWER = '[ "$1" != --version ] || { echo "Fake 1.2"; exit; }'


@pytest.fixture
def bundle(mlp: Plan, tmp_path: Path) -> Path:
    verdicts = tuple(OutputVerdict(r.spec, r.plan, "UNKNOWN") for r in mlp.outputs)
    write(Bundle(mlp, proof_bytes(Proof([], [])), TEXTS, verdicts, "unknown"), tmp_path / "a b")
    return tmp_path / "a b"


def solver(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{ANSWER}\n{script}\n", encoding="ascii")
    path.chmod(0o755)
    return path


def run(bundle: Path, *words: object, shell: str = "sh") -> subprocess.CompletedProcess[str]:
    start = [shell, "sh"] if shell == "busybox" else [shell]
    command = [*start, str(bundle / "data/run.sh"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("shell", SHELLS)
def test_any_shell_asks_any_solver(bundle: Path, tmp_path: Path, shell: str) -> None:
    """The solver sees its options, then the file; whatever else it prints is an error, and is shown."""
    script = """
case $3 in
  *0001*) echo unsat ;;
  *0002*) echo unsat; exit 3 ;;
  *0003*) echo "(x)"; echo unsat ;;
  *0004*) echo "out of memory" >&2; exit 1 ;;
  *0005*) echo sat ;;
  *0006*) echo unknown ;;
esac"""
    fake = solver(tmp_path / "fake", f'[ "$1 $2" = "--lang smt2" ] || exit 9{script}')
    done = run(bundle, fake, "--lang", "smt2", shell=shell)
    said = read_answers(done.stdout, "answers")
    assert list(said.answers.values()) == ["unsat", "error", "error", "error", "sat", "unknown", "error"]
    assert (said.solver, said.version, done.returncode) == ("fake", "Fake 1.2", 1)
    assert said.obligations == obligations_digest({n: t.encode() for n, t in TEXTS.items()})
    assert "run.sh: 0002: exit code 3, printed: unsat\n" in done.stderr
    assert "out of memory\nrun.sh: 0004: exit code 1" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_side_by_side_each_is_asked_once(bundle: Path, tmp_path: Path, shell: str) -> None:
    fake = solver(tmp_path / "fake", f'echo "$1" >>"{tmp_path}/asked"; echo unsat')
    for words in ((), ("-j", 3), ("-j", 20)):
        (tmp_path / "asked").unlink(missing_ok=True)
        done = run(bundle, *words, fake, shell=shell)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(lines(done.stdout)) == [f"{n} unsat" for n in TEXTS]
        assert len((tmp_path / "asked").read_text().splitlines()) == len(TEXTS)


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_parts_make_up_the_whole(bundle: Path, tmp_path: Path, parts: int) -> None:
    fake = solver(tmp_path / "fake", "echo unsat")
    said = [run(bundle, "-p", f"{k}/{parts}", "-j", 2, fake) for k in range(1, parts + 1)]
    assert sorted(line for done in said for line in lines(done.stdout)) == [f"{n} unsat" for n in TEXTS]


@pytest.mark.parametrize("shell", SHELLS)
def test_an_interrupted_run_goes_on(bundle: Path, tmp_path: Path, shell: str) -> None:
    """What is answered is not asked again; errors and a line that was cut short are."""
    out, fake = tmp_path / "answers", solver(tmp_path / "fake", "echo unsat")
    assert run(bundle, "-o", out, fake, shell=shell).returncode == 0
    head = "".join(line for line in out.read_text().splitlines(keepends=True) if line.startswith("#"))
    out.write_text(f"{head}0001 unsat\n0002 error\n0003 unsat\n0004 unsa")
    solver(fake, f'echo "${{1##*/}}" >>"{tmp_path}/asked"; echo unsat')
    assert run(bundle, "-o", out, "-j", 2, fake, shell=shell).returncode == 0
    asked = sorted((tmp_path / "asked").read_text().splitlines())
    assert asked == [f"000{n}.smt2" for n in (2, 4, 5, 6, 7)]
    assert set(read_answers(out.read_text(), "answers").answers.values()) == {"unsat"}
    out.write_text(f"{head}" + "".join(f"{n} sat\n" for n in TEXTS))
    assert run(bundle, "-o", out, fake, shell=shell).returncode == 1, "sat stays what it is"


def test_answers_of_something_else_are_not_touched(bundle: Path, tmp_path: Path) -> None:
    out, fake = tmp_path / "answers", solver(tmp_path / "fake", "echo unsat")
    other = solver(tmp_path / "other", "echo unsat")
    assert run(bundle, "-o", out, fake).returncode == 0
    for content in (out.read_bytes(), b"my notes\n"):
        out.write_bytes(content)
        done = run(bundle, "-o", out, other)
        assert (done.returncode, out.read_bytes()) == (2, content)
        assert "holds something else" in done.stderr


def test_a_command_may_place_the_file_and_say_who_it_is(bundle: Path, tmp_path: Path) -> None:
    fake = solver(tmp_path / "wrapper", '[ "$1 $3" = "-in -q" ] && [ -f "$2" ] && echo unsat')
    done = run(bundle, "-n", "yices", "-v", "2.6.5 (wrapped)", "--", fake, "-in", "{}", "-q")
    said = read_answers(done.stdout, "answers")
    assert (said.solver, said.version, done.returncode) == ("yices", "2.6.5 (wrapped)", 0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("no-such-solver",), "there is no command no-such-solver"),
        (("-j", "0"), "-j takes a number"),
        (("-j", "x"), "-j takes a number"),
        (("-p", "3/2"), "-p takes a part"),
        (("-p", "2"), "-p takes a part"),
        (("-z",), "usage: sh run.sh"),
    ],
)
def test_mistakes(bundle: Path, words: tuple[str, ...], reason: str) -> None:
    done = run(bundle, *words)
    assert done.returncode == 2 and done.stdout == ""
    assert reason in done.stderr


def test_without_its_bag_nothing_is_asked(bundle: Path, tmp_path: Path) -> None:
    """Answers would not say of which obligations they are."""
    (bundle / "manifest-sha256.txt").unlink()
    done = run(bundle, solver(tmp_path / "fake", "echo unsat"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no bag: it has no manifest-sha256.txt" in done.stderr


def test_an_interrupt_ends_the_children(bundle: Path, tmp_path: Path) -> None:
    fake = solver(tmp_path / "fake", f'echo $$ >>"{tmp_path}/pids"; exec sleep 600')
    words = ["sh", str(bundle / "data/run.sh"), "-j", "2", "-v", "1", str(fake)]
    child = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        assert child.poll() is None
        time.sleep(0.01)
    # As a terminal does: the whole foreground gets the signal.
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait() != 0


@pytest.mark.parametrize("tasks", [1, 3])
def test_the_slurm_array_writes_answers_in_parts(bundle: Path, tmp_path: Path, tasks: int) -> None:
    """Slurm copies the script elsewhere and numbers its tasks; the bundle is an argument."""
    fake = solver(tmp_path / "fake", "echo unsat")
    copy = tmp_path / "slurm_script"
    shutil.copy(bundle / "data/slurm.sh", copy)
    for task in range(5, 5 + tasks):
        env = {
            "PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_MIN": "5",
            "SLURM_ARRAY_TASK_COUNT": str(tasks), "SLURM_CPUS_PER_TASK": "2",
        }  # fmt: skip
        words = ["sh", str(copy), str(bundle), str(tmp_path / "answers"), str(fake)]
        assert subprocess.run(words, env=env, check=False).returncode == 0
    parts = [read_answers(p.read_text(), p.name) for p in tmp_path.glob("answers.*")]
    assert len(parts) == tasks and {p.solver for p in parts} == {"fake"}
    assert sorted(n for p in parts for n in p.answers) == list(TEXTS)
