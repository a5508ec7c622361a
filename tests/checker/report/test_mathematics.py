"""Obligations as formulas: parentheses where they are needed, names escaped, the goal not negated."""

from __future__ import annotations

import re
from html import unescape

import pytest

from checker.report.findings import Findings
from checker.report.mathematics import html, parsed, written


def said(term: str) -> str:
    return unescape(re.sub("<[^>]*>", "", html(parsed(term))))


@pytest.mark.parametrize(
    ("term", "want"),
    [
        ("(= (t0 dp z0) (t1 (+ (* 4096 dp) z0)))", "t0[dp, z0] = t1[4096 · dp + z0]"),
        ("(* 2.0 (+ e0 e1))", "2 · (e0 + e1)"),
        ("(- e0 (- e1 e2))", "e0 − (e1 − e2)"),
        ("(- e0 (+ e1 e2))", "e0 − (e1 + e2)"),
        ("(+ (- e0 e1) e2)", "e0 − e1 + e2"),
        ("(/ 1.0 2.0)", "1 / 2"),
        ("(- 3)", "−3"),
        ("(and (<= 0 q0) (< q0 6))", "0 ≤ q0 < 6"),
        ("(and (<= 0 q0) (< q1 6))", "0 ≤ q0 ∧ q1 < 6"),
        ("(=> (< z0 4) (= (t0 z0) pos_inf))", "z0 < 4 ⟹ t0[z0] = ∞"),
        ("(= e0 (ite (< dp 1) e1 (ite (< dp 2) e2 e3)))", "e0 = (e1 if dp < 1 else (e2 if dp < 2 else e3))"),
        ("(mul (fexp e0) (max2 e1 e2))", "exp(e0) · max(e1, e2)"),
        ("(not (cmp_lt e0 e1))", "¬cmp_lt(e0, e1)"),
        ("(to_real (+ z0 1))", "z0 + 1"),
    ],
)
def test_formulas(term: str, want: str) -> None:
    assert said(term) == want


def test_a_term_without_end_is_cut() -> None:
    assert "…" in html(parsed("(+ 1 " * 900 + "1" + ")" * 900))


def test_every_obligation_of_a_bundle_is_read(right: Findings) -> None:
    for text in right.examined.files.values():
        told = written(text)
        assert told.title and told.formulas[-1].kind == "to show" and told.legend
        assert len(told.formulas) == text.count(b"(assert ")
        assert not any("(not" in f.html or "named" in f.html for f in told.formulas)


def test_what_a_name_stands_for_is_escaped() -> None:
    text = b"; t <x>\n; t0 = s:<script> input f32[]\n(assert (! (not (= (t0 a) 1.0)) :named goal))\n"
    assert written(text).legend[0][1] == "s:&lt;script&gt; input f32[]"
