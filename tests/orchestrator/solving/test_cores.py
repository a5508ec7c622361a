"""Unsat cores of z3: found once, minimal, and guesses when they come from a journal."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import z3

from orchestrator.solving import cores
from orchestrator.solving.cores import Cores, confirm_cvc5, confirm_z3, minimal_core
from orchestrator.solving.journal import Journal, key

TEXT = """\
(set-logic QF_UFLRA)
(declare-fun e0 () Real)
(declare-fun e1 () Real)
(assert (! (= e1 2.0) :named def.1))
(assert (! (= e0 1.0) :named def.2))
(assert (! (not (<= e0 1.0)) :named goal))
(check-sat)
"""


def test_a_core_has_no_premise_too_many() -> None:
    """Of two premises that say the same, one is enough; the third is needed."""
    twice = TEXT.replace(":named def.2))", ":named def.2))\n(assert (! (= e0 e0) :named def.3))")
    assert minimal_core(twice) == (1,)


def test_a_hard_core_is_minimised_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """z3's own minimisation of a layout stage of 60 premises took minutes."""
    many = "\n".join(f"(assert (! (= e0 (+ 1.0 (* {n}.0 (- e1 2.0)))) :named def.{n}))" for n in range(3, 9))
    text = TEXT.replace("(assert (! (= e0 1.0) :named def.2))", many)
    minimal = minimal_core(text)
    assert minimal is not None and len(minimal) == 2
    monkeypatch.setattr(cores, "HARD", 0)
    bounded = minimal_core(text)
    assert bounded is not None and len(bounded) == 2
    monkeypatch.setattr(cores, "CHECKS", 0)
    whole = minimal_core(text)
    assert whole is not None and set(whole) <= set(range(7))


def pieces(sizes: list[int]) -> str:
    """A place in one of several tensors that stand one after another, in rows each: the goal is about the
    last but one. Without the range of a digit there is no end of places to try."""
    starts = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    names = ["p", "a", "b", *(f"{d}{k}" for k in range(len(sizes)) for d in "qr")]
    lines = ["(set-logic QF_UFLIA)", "(declare-sort Value 0)", "(declare-fun t (Int) Value)"]
    lines += [f"(declare-fun {n} () Int)" for n in names]
    lines += [f"(declare-fun {f}{k} (Int Int) Value)" for k in range(len(sizes)) for f in "uv"]
    said = [f"(= (+ (* {2 * starts[-1]} a) (* {starts[-1]} b) p) (+ {starts[-3]} 5))"]
    for k, (start, size) in enumerate(zip(starts, sizes, strict=False)):
        inside = f"(and (<= {start} p) (< p {start + size}))"
        said.append(f"(=> {inside} (= (t p) (u{k} q{k} r{k})))")
        said.append(f"(=> {inside} (= p (+ {start} (* 64 q{k}) r{k})))")
        said.append(f"(= (u{k} q{k} r{k}) (v{k} (+ (* 8 a) (* 4 b) q{k}) r{k}))")
    said += [f"(and (<= 0 p) (< p {starts[-1]}))", "(and (<= 0 a) (< a 2))", "(and (<= 0 b) (< b 2))"]
    said += [f"(and (<= 0 q{k}) (< q{k} {size // 64}))" for k, size in enumerate(sizes)]
    said += [f"(and (<= 0 r{k}) (< r{k} 64))" for k in range(len(sizes))]
    lines += [f"(assert (! {text} :named def.{n}))" for n, text in enumerate(said)]
    lines += [f"(assert (! (not (= (t p) (v{len(sizes) - 2} 0 5))) :named goal))", "(check-sat)"]
    return "\n".join(lines) + "\n"


def test_a_premise_is_left_out_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """z3's own minimisation of a stage like this, of a bucket of ten tensors, did not end in ten minutes, and
    a check of all premises takes no time."""
    said: list[int] = []
    real = cores.z3.Solver.set

    def noted(self: object, *args: object, **keys: object) -> None:
        said.extend([args[1]] if args[0] == "rlimit" and isinstance(args[1], int) else [])
        real(self, *args, **keys)

    monkeypatch.setattr(cores.z3.Solver, "set", noted)
    core = minimal_core(pieces([64 * n for n in (16, 6, 2, 20, 10, 1, 1, 5)]))
    assert core is not None and 4 <= len(core) <= 8
    whole, *without = said
    assert whole == cores.Z3_RLIMIT and len(without) >= len(core)
    assert all(steps <= cores.LEFT_OUT for steps in without)


def test_what_does_not_follow_has_no_core() -> None:
    assert minimal_core(TEXT.replace("(= e0 1.0) :named def.2", "(= e0 e1) :named def.2")) is None


def test_an_interrupt_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """z3 takes Ctrl-C for itself and says unknown, which stood in the journal for ever: no proof."""
    monkeypatch.setattr(cores, "Z3_RLIMIT", 4_000_000)
    holes = [f"h{i}.{j}" for i in range(11) for j in range(10)]  # eleven pigeons, ten holes
    each = [f"(or {' '.join(f'h{i}.{j}' for j in range(10))})" for i in range(11)]
    alone = [f"(not (and h{i}.{j} h{k}.{j}))" for j in range(10) for i in range(11) for k in range(i)]
    said = "".join(f"(assert (! {clause} :named p.{n}))\n" for n, clause in enumerate([*each, *alone]))
    text = "(set-logic QF_UF)\n" + "".join(f"(declare-fun {h} () Bool)\n" for h in holes) + said
    text += "(assert (! (not false) :named goal))\n(check-sat)\n"
    journal = Journal(tmp_path / "j")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        Cores(journal).core(text)
        time.sleep(60)
    assert len(Journal(tmp_path / "j")) == 0


def test_a_step_limit_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs out of steps has not shown anything, in the core or in the confirmation."""
    product = TEXT.replace("QF_UFLRA", "QF_NRA").replace(
        "(= e0 1.0) :named def.2", "(= (* e0 e0 e0) 1.0) :named def.2"
    )
    assert minimal_core(product) == (1,)
    monkeypatch.setattr(cores, "Z3_RLIMIT", 1)
    assert minimal_core(product) is None and confirm_z3(product) == "unknown"


def test_both_solvers_confirm() -> None:
    wrong = TEXT.replace("(= e0 1.0) :named def.2", "(= e0 e1) :named def.2")
    assert (confirm_z3(TEXT), confirm_cvc5(TEXT)) == ("unsat", "unsat")
    assert (confirm_z3(wrong), confirm_cvc5(wrong)) == ("sat", "sat")


def test_no_answer_depends_on_what_was_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """z3 orders terms by what its context holds: a file has a context of its own, as in the checker."""
    monkeypatch.setattr(z3.z3, "main_ctx", lambda: pytest.fail("asked in the context of all the other files"))
    assert confirm_z3(TEXT) == "unsat" and minimal_core(TEXT) == (1,)


def test_cores_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Cores(Journal(tmp_path / "j")).core(TEXT) == (1,)
    monkeypatch.setattr(cores, "minimal_core", lambda _: pytest.fail("asked again"))
    assert Cores(Journal(tmp_path / "j")).core(TEXT) == (1,)


@pytest.mark.parametrize(("entry", "core"), [([0, 9, "x", -1], (0,)), (None, None), ("01", None), ({}, None)])
def test_a_core_from_a_journal_is_a_guess(entry: object, core: tuple[int, ...] | None) -> None:
    journal = Journal()
    journal.put(key("core", cores.z3.get_version_string(), TEXT), entry)
    assert Cores(journal).core(TEXT) == core
