"""Obligations as formulas: parentheses where they are needed, names escaped, the goal not negated."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from checker.report.findings import Findings
from checker.report.mathematics import BEGIN, html, parsed, written


def said(term: str) -> str:
    """The text of a formula: signs with spaces around them as browsers set them, a fraction as a / b."""
    made = re.sub(r"<mfrac>(<m\w>\d+</m\w>)", r"\1<mo>/</mo>", html(parsed(term)).replace(BEGIN, "<mo>"))
    made = re.sub(r"<mo>([^<\[\](),…]+)</mo>", r" \1 ", made).replace("<mo>,</mo>", ", ")
    return re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", "", made))).strip()


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


def test_formulas_are_mathml_of_its_core() -> None:
    """Browsers lay out nothing else without a script; a formula of theirs has one root and is well-formed."""
    core = {"math", "mi", "mn", "mo", "msub", "mfrac", "mtext"}
    for term in ("(= (t0 dp z0) (* (/ 1.0 3.0) (t1 (+ (* 4096 dp) z0))))", "(ite (< a 1) neg_inf (- e1))"):
        (root,) = ElementTree.fromstring(f"<p>{html(parsed(term)).replace('&nbsp;', ' ')}</p>")
        assert root.tag == "math" and {element.tag for element in root.iter()} <= core
        assert all((len(e) == 2) == (e.tag in ("msub", "mfrac")) for e in root.iter() if e is not root)


def test_a_long_formula_has_places_to_end_a_line_at() -> None:
    """On phones and paper it would be cut: browsers do not break the lines of MathML."""
    term = "(= (t0 z0) (+ " + " ".join(f"(t{i} z0 z1)" for i in range(1, 9)) + "))"
    rows = ElementTree.fromstring(f"<p>{html(parsed(term))}</p>")
    assert [(row.tag, row[0].text) for row in rows][1:] == [("math", "=")] + [("math", "+")] * 7
    assert all(row.tail == " " for row in rows[:-1])


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
