"""What a solver prints is read exactly or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.bundle.bundle import read as read_bundle
from certificates.plan.plan import Plan
from orchestrator.emit import emit
from orchestrator.solving.premises import AllPremises
from orchestrator.solving.sexpressions import NotSexp, named, read

LONG = "123456789012345678901234567890123456789.000000000000000000001"


def test_numerals_stay_what_they_are() -> None:
    """As floating point, this one and its neighbours would be equal."""
    assert read(f"(= x {LONG}) 007 -1") == [["=", "x", LONG], "007", "-1"]


def test_words_of_lisp_mean_nothing() -> None:
    assert read("(nil t true) nil") == [["nil", "t", "true"], "nil"]


def test_answers_comments_and_strings() -> None:
    said = 'unsat ; at once\n(hyp.1 |def.2| goal)\n(error "line 3: (x")\n'
    assert read(said) == ["unsat", ["hyp.1", "|def.2|", "goal"], ["error", '"line 3: (x"']]
    assert read("") == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(a", "ExpectClosingBracket"),
        ("a)", "ExpectNothing"),
        ('(error "x)', "AttributeError"),
        ("(" * 5000, "RecursionError"),
        ("'a", "Quoted is not of SMT-LIB"),
        ("([a])", "Brackets is not of SMT-LIB"),
        ("(|a b|)", "quoted symbol with white space"),
        ("|a|b|", "quoted symbol with white space"),
        ("a\\b", "backslash"),
    ],
)
def test_what_would_be_mangled_is_refused(text: str, reason: str) -> None:
    with pytest.raises(NotSexp, match=reason):
        read(text)


def test_names_of_assertions_in_order() -> None:
    text = "(declare-fun e0 () Real)\n(assert (! (= e0 1.0) :named def.1))\n(assert (! true :named goal))\n"
    assert named(text) == ["def.1", "goal"]


def test_an_assertion_without_a_name_is_in_no_core() -> None:
    with pytest.raises(NotSexp, match="without a name"):
        named("(assert true)")


def test_every_obligation_is_read(mlp: Plan, tmp_path: Path) -> None:
    """Each of its assertions has a name of its own, the goal's last: cores are told by them."""
    emit(mlp, tmp_path / "b", solve=False)
    texts = read_bundle(tmp_path / "b").obligations.values()
    assert texts
    for text in texts:
        names = named(text)
        assert names[-1] == "goal" and len(set(names)) == len(names)
        assert len(AllPremises().core(text)) == len(names) - 1
