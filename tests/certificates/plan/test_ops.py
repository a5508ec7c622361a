"""The op table against what is written apart from it: the checker's table, numpy's, the document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from certificates.plan.ops import COLLECTIVES, ELEMENTWISE, FUNCTIONS, OPS, ROWS, Row, fill, functions_of
from checker.language import ops as checker
from orchestrator.evaluating.arrays import BINARY, COMPARE, UNARY

ROOT = Path(__file__).resolve().parents[3]


def test_both_sides_of_the_wall_know_the_same_ops_with_the_same_attributes() -> None:
    """An op that one side lacks makes bundles that nobody can check, or rules that nothing uses."""
    ours = {row.name: sorted(row.attrs) for row in ROWS}
    assert ours == {name: sorted(attrs.split()) for name, attrs in checker.ATTRIBUTES.items()}
    assert set(checker.COLLECTIVES) == COLLECTIVES


def test_both_sides_of_the_wall_count_the_same_operands() -> None:
    ours = {row.name: row.operands for row in ROWS}
    assert ours == {name: checker.OPERANDS.get(name, 1) for name in ours} | {"concatenate": None}


def test_both_sides_of_the_wall_allow_the_same_sorts() -> None:
    ours = {row.name: list(row.sorts) for row in ROWS if row.sorts}
    assert ours == {n: checker.ROWS[n].sorts.split() for n in ours}


def test_both_sides_of_the_wall_use_the_same_free_functions() -> None:
    """In the same order, with the same numbers of arguments: declarations in files depend on both."""
    assert list(FUNCTIONS.items()) == list(checker.ARITY.items())


@pytest.mark.parametrize(("ours", "theirs"), [("always", "plus"), ("kept", "keeps")])
def test_both_sides_of_the_wall_know_the_same_results_that_are_never_negative(ours: str, theirs: str) -> None:
    assert {row.name for row in ROWS if row.sign == ours} == checker.named("sign", theirs)


def test_every_elementwise_op_has_a_numpy_function() -> None:
    assert {*UNARY, *BINARY, "compare", "select", "convert"} == ELEMENTWISE
    assert {n: 1 for n in UNARY} | {n: 2 for n in BINARY} == {
        row.name: row.operands for row in ROWS if row.sorts
    }
    assert set(COMPARE) == set(OPS["compare"].terms)


def test_the_document_has_a_row_for_every_op() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    missing = [name for name in OPS if not re.search(rf"^\|[^|]*`[^|]*\b{name}\b", text, re.M)]
    assert missing == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_terms_mention_operands_only(row: Row) -> None:
    for name, (layout, algebra) in row.terms.items():
        for term in (layout, algebra):
            marks = [f"<{i}>" for i in range(row.operands or 0)]
            filled = fill(term, marks)
            assert all(mark in str(filled) for mark in marks), (name, term)
            assert dict(functions_of(term)).items() <= FUNCTIONS.items()
