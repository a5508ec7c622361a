"""How solvers are run: children that hang, crash or say something else prove nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from checker import solvers as replay
from checker.errors import Malformed

sys.path.insert(0, str(Path(__file__).parent))


def script(folder: Path, body: str) -> str:
    path = folder / "solver.py"
    path.write_text(body)
    return f"{sys.executable} -S -E {path} {{file}}"


def test_a_program_is_run_once_per_file(tmp_path: Path) -> None:
    """What it prints is the answer, in one line, cut; unsat counts with exit code 0 only."""
    texts = ["unsat", "sat", ""]
    command = script(tmp_path, "import sys; t = open(sys.argv[1]).read(); print(t); sys.exit(t == 'sat')")
    assert replay._singly(command, texts) == ["unsat", "sat", ""]
    assert replay._singly(script(tmp_path, "print('unsat'); raise SystemExit(3)"), texts[:1]) == [
        "exit code 3"
    ]
    assert replay._singly(script(tmp_path, "print('a\\n' * 300)"), texts[:1]) == [("a " * 300)[:200]]
    (failed,) = replay._singly("/no/such/solver {file}", texts[:1])
    assert failed == "cannot start: No such file or directory"


def test_a_program_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SECONDS", 0.05)
    assert replay._singly("sleep 60", ["a", "b"]) == ["no answer in time"] * 2


LOOP = """import sys
for line in sys.stdin:
    name = line.strip()[1:-1]
    if name == "x": sys.exit(1)
    if name == "p": print("answer unsa", end=""); sys.exit(0)
    print("answer " + name if name != "j" else "unsat", flush=True)
"""


@pytest.mark.parametrize(
    "names,want",
    [
        ("", []),
        ("ab", ["a", "b"]),
        ("axb", ["a", "crash", "b"]),
        ("xx", ["crash", "crash"]),
        ("ap", ["a", "crash"]),
        ("pa", ["crash", "a"]),
        ("jb", ["crash", "b"]),
    ],
)
def test_one_child_answers_many_texts(names: str, want: list[str]) -> None:
    """After a crash, a half line or a line that is no answer, a new child goes on with the next file."""
    words = [sys.executable, "-S", "-E", "-c", LOOP]
    assert replay._batch(words, list(names)) == want


def test_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file has no answer, the next one does, and nobody waits for it."""
    monkeypatch.setattr(replay, "SECONDS", 0.3)
    loop = LOOP.replace('if name == "x": sys.exit(1)', 'if name == "x": time.sleep(30)')
    words = [sys.executable, "-S", "-E", "-c", "import time\n" + loop]
    start = time.monotonic()
    assert replay._batch(words, ["x", "b"])[0] == "no answer in time"
    assert time.monotonic() - start < 10


def test_files_are_given_out() -> None:
    """Every solver answers every file, whatever the number of jobs; it sees these texts."""
    files = {f"{n:04}": str(n).encode() for n in range(1, 6)}

    def read(texts: list[str], tick: Callable[[], None]) -> list[str]:
        for _ in texts:
            tick()
        return list(texts)

    for jobs in (1, 2, 9):
        ticks = Mock()
        found = replay.replay(files, {"a": read, "b": read}, jobs, ticks)
        assert ticks.call_count == 10
        assert found == {s: {n: t.decode() for n, t in files.items()} for s in "ab"}


def test_which_solvers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RUNNERS", {"json": "", "nothing": "", "prog": ""})
    monkeypatch.setattr("shutil.which", lambda name: "/bin/prog" if name == "prog" else None)
    assert list(replay.solvers(())) == ["json", "prog"]
    assert list(replay.solvers(["/x/prog {file}", "other -a {file}", "other -b {file}", ""])) == [
        "json", "prog", "/x/prog {file}", "other", "other -b {file}", "?"]  # fmt: skip


def test_files_of_answers() -> None:
    good = "0001 unsat\n  1234567\tsat  \n"
    assert replay.read_answers(good, "f") == ("", "", "", {"0001": "unsat", "1234567": "sat"})
    assert replay.read_answers("", "f").answers == {}
    for wrong in ("001 unsat", "12345678 sat", "0001 UNSAT", "0001", "0001 unsat x", "\n", "# more"):
        with pytest.raises(Malformed, match=r"f: .* is no line of the form 'NNNN answer'"):
            replay.read_answers(wrong, "f")
    with pytest.raises(Malformed, match="f: a second answer for 0001"):
        replay.read_answers("0001 unsat\n0001 sat\n", "f")


HEAD = "# trainverify answers 1\n# solver z3\n# version Z3 version 4.8.12 - 64 bit\n# obligations ab\n"


def test_answers_name_their_solver_and_their_obligations() -> None:
    """Parts that are put together as one file say it several times, and must say the same."""
    found = replay.read_answers(f"{HEAD}0001 unsat\n{HEAD}0002 error\n", "f")
    assert found == ("z3", "Z3 version 4.8.12 - 64 bit", "ab", {"0001": "unsat", "0002": "error"})
    with pytest.raises(Malformed, match="f: says twice which solver"):
        replay.read_answers(HEAD + HEAD.replace("z3", "cvc5"), "f")
    with pytest.raises(Malformed, match="f: says not all of solver, version and obligations"):
        replay.read_answers("# solver z3\n0001 unsat\n", "f")


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        ("z3", "z3"), ("/opt/z3-4.8.12/bin/z3 {file}", "z3"), ("z3-4.8", "z3"), ("Z3", "z3"),
        ("yices-smt2", "yices"), ("cvc5-Linux", "cvc5"), ("cvc4", "cvc4"), ("42", "42"),
    ],
)  # fmt: skip
def test_another_version_is_no_other_solver(name: str, solver: str) -> None:
    assert replay.independent(name) == solver


def test_what_tells_of_one_solver_is_joined() -> None:
    found = replay.joined([("a", {"1": "unsat"}), ("b", {}), ("a", {"2": "unsat", "1": "unsat"})])
    assert found == {"a": {"1": "unsat", "2": "unsat"}, "b": {}}
    assert replay.joined([("a", {"1": "unsat"}), ("a", {"1": "sat"})]) == {"a": {"1": "unsat and sat"}}


def test_a_child_that_runs_is_ended() -> None:
    child = subprocess.Popen(["sleep", "60"], text=True, start_new_session=True)
    replay.end(child)
    assert child.wait(30) == -signal.SIGKILL
    replay.end(child)
