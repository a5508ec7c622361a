"""SMT-LIB texts of terms, and of a whole obligation, byte for byte."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from checker.language.affine import Affine
from checker.language.proof import Tensor
from checker.rules.terms import (
    file_text,
    guarded,
    integer,
    literal,
    logic_of,
    nary,
    plain,
    range_guard,
    scaled,
    within,
)  # fmt: skip

A, B = Affine.symbol("a"), Affine.symbol("b")


@pytest.mark.parametrize(
    ("value", "sort", "text"),
    [
        ("0", "Real", "0.0"),
        ("3", "Real", "3.0"),
        ("-3", "Real", "(- 3.0)"),
        ("1/3", "Real", "(/ 1.0 3.0)"),
        ("-2/3", "Real", "(- (/ 2.0 3.0))"),
        ("3", "Int", "3"),
        ("-3", "Int", "(- 3)"),
    ],
)
def test_literals(value: str, sort: str, text: str) -> None:
    assert literal(Fraction(value), sort) == text


def test_what_is_evident_is_not_asked() -> None:
    """A guard that lacked a bound would let a definition speak of elements that do not exist."""
    ranges = {"a": (0, 4), "b": (-1, 3)}
    assert range_guard([A], [(0, 4)], ranges) == []
    assert range_guard([A], [(1, 3)], ranges) == [("<=", "1", A), ("<", A, "3")]
    assert range_guard([A, B], [(0, 3), (0, 3)], ranges) == [("<", A, "3"), ("<=", "0", B)]
    assert within(-2, B, 5) == ("and", ("<=", "(- 2)", B), ("<", B, "5")) and integer(0) == "0"


def test_one_part_needs_no_operator() -> None:
    assert nary("+", ["x"]) == "x" and nary("+", ["x", "y"]) == ("+", "x", "y")
    assert guarded([], "x") == "x" and guarded(["p"], "x") == ("=>", "p", "x")
    assert guarded(["p", "q"], "x") == ("=>", ("and", "p", "q"), "x")
    assert scaled(Fraction(1), "x", "Real") == "x" and scaled(Fraction(-2), "x", "Int") == ("*", "(- 2)", "x")


def test_a_file_declares_what_occurs_in_its_order() -> None:
    """Symbols in the stage's order, tensors by first occurrence, functions in the documented order."""
    x, y = Tensor("s", "x"), Tensor("s", "y")
    form = Affine.total([(1, A), (-2, B), (1, Affine(-5))])
    body = ("=", ("mul", ("fexp", (y, form)), (x, A)), "0.0")
    text = file_text(
        "t", 2, "a title", "unsat", ["unused", "b", "a"], [("def.1", body), ("goal", ("not", body))],
        lambda t: f"(Int) Real {t.value}", lambda t: f"told {t}",
    )  # fmt: skip
    assert text.decode().split("\n")[1:] == [
        "(set-logic ALL)",
        "(set-info :source |TrainVerify|)",
        '(set-info :license "https://creativecommons.org/licenses/by/4.0/")',
        '(set-info :category "industrial")',
        "(set-info :status unsat)",
        "; a title",
        "(declare-fun b () Int)",
        "(declare-fun a () Int)",
        "; t0 = told s:y",
        "(declare-fun t0 (Int) Real y)",
        "; t1 = told s:x",
        "(declare-fun t1 (Int) Real x)",
        "(declare-fun mul (Real Real) Real)",
        "(declare-fun fexp (Real) Real)",
        "(assert (! (= (mul (fexp (t0 (+ (* (- 2) b) a (- 5)))) (t1 a)) 0.0) :named def.1))",
        "(assert (! (not (= (mul (fexp (t0 (+ (* (- 2) b) a (- 5)))) (t1 a)) 0.0)) :named goal))",
        "(check-sat)",
        "(exit)",
        "",
    ]
    assert b"\n; " not in plain(text)
    assert plain(text + b"\n; more") == plain(text) != plain(text + b"\nmore")


@pytest.mark.parametrize(
    ("lines", "logic"),
    [
        ("(declare-fun e0 () Real)|(declare-fun mul (Real Real) Real)|(assert (! (= e0 2.0) :named def.1))",
         "QF_UFLRA"),
        ("(declare-fun e0 () Real)|(assert (! (= e0 (/ 1.0 3.0)) :named def.12))", "QF_LRA"),
        ("(declare-fun z0 () Int)|(declare-fun t0 (Int) Int)|(assert (! (= (t0 z0) 4) :named def.1))",
         "QF_UFLIA"),
        ("(declare-fun z0 () Int)|(declare-fun t0 (Int) Bool)|(assert (! (t0 z0) :named goal))", "QF_UFLIA"),
        ("(declare-fun z0 () Int)|(assert (! (<= 0 z0) :named bound.1))", "QF_LIA"),
        ("(declare-fun t0 () Bool)|(assert (! (not t0) :named goal))", "QF_UF"),
        ("(assert (! (not (= 3 3)) :named goal))", "QF_LIA"),
        ("(assert (! (not (= (- 3) (- 3))) :named goal))", "QF_LIA"),
        ("(assert (! (not (= 3.0 3.0)) :named goal))", "QF_LRA"),
        ("(declare-fun z0 () Int)|(declare-fun t0 (Int) Real)|(assert (! (= (t0 z0) 0.0) :named hyp.1))",
         "ALL"),
        ("(declare-fun z0 () Int)|(assert (! (not (= (to_real z0) (to_real z0))) :named goal))", "ALL"),
        ("(declare-fun t0 () Real)|(assert (! (= t0 (to_real 3)) :named def.1))", "ALL"),
        ("(declare-fun z0 () Int)|(declare-fun t0 () Value)|(assert (! (= t0 t0) :named goal))", "QF_UFLIA"),
        ("(declare-fun t0 () Value)|(assert (! (= t0 t0) :named goal))", "QF_UF"),
    ],
)  # fmt: skip
def test_the_logic_is_the_least_of_the_standard(lines: str, logic: str) -> None:
    """A logic that is too small is refused by solvers, one that is not of the list by some."""
    assert logic_of(lines.split("|")) == logic


def test_bundles_of_version_1_keep_their_logics() -> None:
    for prefix, logic in (("t", b"QF_UFLIRA"), ("e", b"QF_UFLRA")):
        text = file_text(prefix, 1, "t", "unsat", [], [("goal", "true")], str, str)
        assert b"(set-logic " + logic + b")" in text
        assert b"(set-logic QF_UF)" in file_text(prefix, 2, "t", "unsat", [], [("goal", "true")], str, str)


X, Y, N = Tensor("s", "x"), Tensor("s", "y"), Tensor("s", "n")
SIGNATURES = {X: "(Int) Real", Y: "() Real", N: "(Int) Int"}


@pytest.mark.parametrize(
    "term",
    [
        ("=", Y, ("+", (X, A), Y)),
        ("=", Y, ("-", (X, A))),
        ("=", Y, ("*", "3.0", (X, A))),
        ("=", Y, ("ite", ("<", A, "3"), (X, A), "0.0")),
        ("=", Y, "(- (/ 1.0 3.0))"),
        ("<", (X, A), Y),
        ("=", Y, ("ite", (">=", (X, A), Y), (X, A), Y)),
        ("=>", ("<=", ("ite", ("=", A, "3"), (X, A), Y), Y), "true"),
        ("=", Y, ("fexp", ("+", ("mul", Y, Y), "neg_inf"))),
        ("<=", "neg_inf", Y),
        ("=", Y, ("to_real", A)),
        ("not", ("=", Y, ("ite", ("<", ("fexp", Y), ("fexp", Y)), Y, Y))),
    ],
)
def test_what_is_computed_is_a_real(term: object) -> None:
    """A sum of values of a free sort has no meaning: solvers would refuse the file."""
    text = file_text("t", 2, "t", "unsat", ["a"], [("goal", term)], SIGNATURES.__getitem__, str).decode()
    assert "Value" not in text and re.search(r"^\(declare-fun t\d \(\) Real\)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("term", "logic"),
    [
        (("=", Y, (X, Affine.total([(3, A), (1, Affine(-2))]))), "QF_UFLIA"),
        (("=>", ("<", A, "3"), ("=", Y, ("ite", ("<=", (N, A), "(- 3)"), (X, A), "pos_inf"))), "QF_UFLIA"),
        (("=", ("mul", Y, ("recip", Y)), ("fexp", Y)), "QF_UF"),
        (("and", ("<=", "0", A), ("=", Y, Y)), "QF_UFLIA"),
        (("=", Y, "neg_inf"), "QF_UF"),
    ],
)
def test_what_is_only_passed_on_is_of_a_free_sort(term: object, logic: str) -> None:
    """No solver has to join two theories of numbers where one of them says nothing."""
    text = file_text("t", 2, "t", "unsat", ["a"], [("goal", term)], SIGNATURES.__getitem__, str).decode()
    assert f"(set-logic {logic})\n" in text and "Real" not in text
    lines = text.split("\n")
    assert lines[lines.index("; t") + 1] == "(declare-sort Value 0)"


def test_the_free_sort_is_declared_where_it_is_used() -> None:
    text = file_text("t", 2, "t", "unsat", ["a"], [("goal", ("<=", "0", A))], str, str)
    assert b"Value" not in text and b"(set-logic QF_LIA)" in text
