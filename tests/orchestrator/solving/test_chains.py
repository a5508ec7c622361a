"""Chains of equalities, read off instead of asked for."""

from __future__ import annotations

import pytest

from orchestrator.solving import cores
from orchestrator.solving.chains import chain
from orchestrator.solving.cores import Cores, confirm_z3, minimal_core


def written(*premises: str, goal: str) -> str:
    lines = ["(set-logic QF_UFLIA)", "(declare-sort Value 0)"]
    lines += [f"(declare-fun {name} () Int)" for name in ("i", "pp", "tp")]
    lines += [f"(declare-fun {name} (Int Int) Value)" for name in ("a", "b", "c", "d")]
    lines += [f"(assert (! {premise} :named hyp.{i}))" for i, premise in enumerate(premises, 1)]
    return "\n".join([*lines, f"(assert (! (not {goal}) :named goal))", "(check-sat)", "(exit)", ""])


PP = "(and (<= 15 pp) (< pp 16))"
TP = "(and (<= 0 tp) (< tp 8))"
STEP = "(= (a i 15) (b i 3))"
GOAL = "(= (a i pp) (b i 3))"

FOUND = {
    "one step": (written("(= (a i pp) (b i 3))", TP, goal=GOAL), (0,)),
    "two steps, one of them turned round": (
        written("(= (c i tp) (b i 3))", TP, "(= (a i pp) (b i 3))", goal="(= (a i pp) (c i tp))"),
        (0, 2),
    ),
    "the shorter way": (
        written(
            "(= (a i i) (b i i))", "(= (b i i) (d i i))", "(= (a i i) (d i i))", goal="(= (a i i) (d i i))"
        ),
        (2,),
    ),
    "a variable of one value": (
        written(STEP, TP, PP, goal=GOAL),
        (0, 2),
    ),
    "its value in a sum and in a product": (
        written(
            "(= (a i 180) (b (+ (* 2 i) 19) (- 15)))",
            PP,
            goal="(= (a i (* 12 pp)) (b (+ pp (* 2 i) 4) (* (- 1) pp)))",
        ),
        (0, 1),
    ),
    "a sum of which one term is left": (
        written("(= (a i i) (b i i))", "(and (<= 0 pp) (< pp 1))", goal="(= (a (+ pp i) i) (b i i))"),
        (0, 1),
    ),
    "both sides are one": (written(TP, goal="(= (a i tp) (a i tp))"), ()),
}

NONE = {
    "another place": written(STEP, PP, goal="(= (a i pp) (b i 4))"),
    "only under a condition": written("(=> (< i 3) (= (a i 3) (b i 3)))", TP, goal="(= (a i 3) (b i 3))"),
    "more than one value": written(STEP, "(and (<= 15 pp) (< pp 17))", goal=GOAL),
    "a range of two variables": written(STEP, "(and (<= 15 pp) (< tp 16))", goal=GOAL),
    "what is not equal": written("(not (= (a i 3) (b i 3)))", goal="(= (a i 3) (b i 3))"),
    "no equality to prove": written("(= (a i 3) (b i 3))", goal="(<= i 3)"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "core"), FOUND.values(), ids=FOUND)
def test_a_chain_is_what_a_solver_finds(text: str, core: tuple[int, ...]) -> None:
    assert chain(text) == core and confirm_z3(text) == "unsat"
    assert minimal_core(text) == core


@pytest.mark.parametrize("text", NONE.values(), ids=NONE)
def test_what_is_no_chain_is_left_to_a_solver(text: str) -> None:
    assert chain(text) is None and confirm_z3(text) == "sat"


def test_no_solver_is_asked_for_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "minimal_core", lambda _: pytest.fail("asked"))
    text, core = FOUND["a variable of one value"]
    assert Cores().core(text) == core


def test_a_text_without_assertions_is_no_chain() -> None:
    assert chain("(check-sat)") is None
