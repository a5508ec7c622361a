"""Confirmation in child processes: answers, crashes, hangs, and what the journal may say."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.errors import NoAnswer
from orchestrator.solving import confirming
from orchestrator.solving.confirming import Answers, Confirming
from orchestrator.solving.cores import VERSIONS
from orchestrator.solving.journal import Journal, key

HEAD = "(set-logic QF_UFLRA)\n(declare-fun e0 () Real)\n"
GOAL = "(assert (! (not (= e0 1.0)) :named goal))\n(check-sat)\n"
UNSAT = HEAD + "(assert (! (= e0 1.0) :named def.1))\n" + GOAL
SAT = HEAD + GOAL
BROKEN = HEAD + "(assert (= e0 nothing))\n(check-sat)\n"


def confirm(texts: Sequence[str], journal: Journal, versions: str, jobs: int) -> list[Answers]:
    with Confirming(journal, versions, jobs) as confirming:
        return confirming.answers(texts)


def test_both_solvers_answer_in_order() -> None:
    answers = confirm([SAT, UNSAT, SAT], Journal(), VERSIONS, 2)
    assert answers == [Answers("sat", "sat"), Answers("unsat", "unsat"), Answers("sat", "sat")]
    assert [a.unsat for a in answers] == [False, True, False]


def test_a_file_that_cannot_be_read_is_no_confirmation() -> None:
    broken, fine = confirm([BROKEN, UNSAT], Journal(), VERSIONS, 1)
    assert not broken.unsat and "error" in broken.z3 and "error" in broken.cvc5
    assert fine.unsat, "the child goes on"


def test_one_solver_is_not_enough() -> None:
    assert not Answers("unsat", "unknown").unsat
    assert not Answers("error", "unsat").unsat
    assert str(Answers("unsat", "sat")) == "z3 says unsat, cvc5 says sat"


@pytest.mark.parametrize(
    ("child", "answer"),
    [
        ("import sys, os; sys.stdin.readline(); os._exit(1)", "crash"),
        ("print('[1]', flush=True); input()", "crash"),
        ("raise SystemExit(0)", "crash"),
    ],
)
def test_a_child_that_fails_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch, child: str, answer: str
) -> None:
    monkeypatch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", child])
    assert confirm([UNSAT, SAT], Journal(), VERSIONS, 2) == [Answers(answer, answer)] * 2


def test_a_solver_without_memory_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no answer to the file, and nothing that the journal should keep."""
    journal = Journal()
    child = 'import sys; sys.stdin.readline(); print(\'["out of memory", "unsat"]\', flush=True)'
    monkeypatch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", child])
    with pytest.raises(MemoryError):
        confirm([UNSAT], journal, VERSIONS, 1)
    assert key("confirm", VERSIONS, UNSAT) not in journal


def test_a_child_tells_memory_from_files() -> None:
    def without(_text: str) -> str:
        raise RuntimeError("std::bad_alloc")

    assert confirming._guarded(without, UNSAT) == confirming.NO_MEMORY


def test_a_solver_that_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a slow machine would write another bundle than a fast one."""
    hung = "import sys, time; sys.stdin.readline(); time.sleep(60)"
    monkeypatch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", hung])
    monkeypatch.setattr(confirming, "SECONDS", 1)
    journal = Journal()
    with pytest.raises(NoAnswer, match="no answer to a file within 1 seconds"):
        confirm([UNSAT, SAT], journal, VERSIONS, 2)
    assert len(journal) == 0


def test_a_crash_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been the machine's; the next run asks again."""
    with monkeypatch.context() as patch:
        patch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", ""])
        assert confirm([UNSAT], Journal(tmp_path / "j"), VERSIONS, 1) == [Answers("crash", "crash")]
    assert confirm([UNSAT], Journal(tmp_path / "j"), VERSIONS, 1) == [Answers("unsat", "unsat")]


def test_the_journal_saves_solver_calls_of_the_same_text_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirm([UNSAT], Journal(tmp_path / "j"), VERSIONS, 1)
    monkeypatch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", ""])
    assert confirm([UNSAT], Journal(tmp_path / "j"), VERSIONS, 1) == [Answers("unsat", "unsat")]
    assert confirm([UNSAT], Journal(tmp_path / "j"), "z3 0.1", 1) == [Answers("crash", "crash")]
    assert confirm([SAT], Journal(tmp_path / "j"), VERSIONS, 1) == [Answers("crash", "crash")]


def test_comments_are_no_part_of_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    confirm([f"; a title\n{UNSAT}"], Journal(tmp_path / "j"), VERSIONS, 1)
    monkeypatch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", ""])
    assert confirm([f"; another\n{UNSAT}"], Journal(tmp_path / "j"), VERSIONS, 1)[0].unsat


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.1)
    return False


def test_what_is_asked_ahead_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Confirming(Journal(), VERSIONS, 2) as ahead:
        ahead.ahead(f"; a title\n{UNSAT}")
        ahead.ahead(UNSAT)
        assert eventually(lambda: all(task.done() for task in ahead._asked.values()))
        monkeypatch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", ""])
        assert ahead.answers([SAT, UNSAT]) == [Answers("crash", "crash"), Answers("unsat", "unsat")]


def test_files_that_nobody_wants_delay_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess on which solvers hang was asked ahead; what waits behind it is asked by others."""
    child = (
        "import sys, time\nfor line in sys.stdin:\n    time.sleep(60 if 'hangs' in line else 0)\n"
        '    print(\'["unsat", "unsat"]\', flush=True)'
    )
    monkeypatch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", child])
    monkeypatch.setattr(confirming, "SECONDS", 30)
    with Confirming(Journal(), VERSIONS, 2) as ahead:
        ahead.ahead(UNSAT.replace("e0", "hangs"))
        ahead.ahead(UNSAT)
        ahead.ahead(SAT)
        assert ahead.answers([UNSAT]) == [Answers("unsat", "unsat")]
        assert [task.cancelled() for task in ahead._asked.values()] == [False, True], "nobody wants it"
    assert eventually(lambda: all(p.poll() is not None for p in ahead._pool._all))
    threads = [*ahead._threads._threads, *ahead._aside._threads]
    assert eventually(lambda: not any(thread.is_alive() for thread in threads))


def test_a_wanted_file_that_hangs_ends_the_run_though_it_was_asked_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hung = "import sys, time; sys.stdin.readline(); time.sleep(60)"
    monkeypatch.setattr(confirming, "command", lambda *_: [sys.executable, "-c", hung])
    monkeypatch.setattr(confirming, "SECONDS", 1)
    with Confirming(Journal(), VERSIONS, 2) as ahead:
        ahead.ahead(UNSAT)
        with pytest.raises(NoAnswer):
            ahead.answers([UNSAT])


def test_one_job_leaves_no_room_for_what_may_be_wanted() -> None:
    with Confirming(Journal(), VERSIONS, 1) as ahead:
        ahead.ahead(UNSAT)
        assert not ahead._asked and not ahead._pool._all


@pytest.mark.parametrize("entry", [None, "unsat", ["unsat"], [1, 2], {"z3": "unsat"}])
def test_strange_journal_entries_are_asked_again(tmp_path: Path, entry: object) -> None:
    Journal(tmp_path / "j").put(key("confirm", VERSIONS, SAT), entry)
    assert confirm([SAT], Journal(tmp_path / "j"), VERSIONS, 1) == [Answers("sat", "sat")]
