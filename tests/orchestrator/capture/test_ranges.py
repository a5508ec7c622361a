"""Which integers cannot be negative."""

from __future__ import annotations

import pytest

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder, Value
from orchestrator.capture.errors import LoweringError
from orchestrator.capture.lowering.ranges import in_table, non_negative, wrapped
from orchestrator.capture.lowering.table import Context


@pytest.fixture
def b() -> Builder:
    return Builder()


def number(b: Builder, name: str, low: int | None = None) -> Value:
    if low is not None:
        b.bounds[name] = (low, 1 << 20)
    return b.input(name, TensorType("i64", (4,)))


def test_inputs_are_what_their_declared_range_says(b: Builder) -> None:
    assert non_negative(b, number(b, "labels", 0)) and not non_negative(b, number(b, "ignored", -100))
    assert not non_negative(b, number(b, "undeclared"))


def test_sums_products_and_extremes(b: Builder) -> None:
    good, bad, zero = number(b, "good", 0), number(b, "bad"), b.iota(0, (4,))
    for op in ("add", "multiply", "minimum"):
        assert non_negative(b, b.binary(op, good, zero)) and not non_negative(b, b.binary(op, good, bad))
    assert non_negative(b, b.binary("maximum", good, bad)) and not non_negative(
        b, b.binary("subtract", good, zero)
    )


def test_a_guard_makes_a_difference_positive(b: Builder) -> None:
    """``where(i >= 2, i - 2, 0)``, and not with the branches exchanged."""
    i = number(b, "i")
    two, zero = b.like(2, i), b.like(0, i)
    inside, less = b.compare("GE", i, two), b.binary("subtract", i, two)
    assert non_negative(b, b.select(inside, less, zero)) and not non_negative(b, b.select(inside, zero, less))
    assert non_negative(b, b.select(b.unary("not", inside), zero, less))


def test_data_movement_keeps_what_is_known(b: Builder) -> None:
    good = number(b, "good", 0)
    assert non_negative(b, b.insert(b.slice(good, [1], [2]), 0, 3))
    assert not non_negative(b, b.concatenate([good, number(b, "bad")], 0))


def test_what_may_be_negative_counts_from_the_end(b: Builder) -> None:
    c = Context(b, lambda _group: ())
    good, bad = number(b, "good", 0), number(b, "bad")
    assert wrapped(c, good, 5) is good
    draft = b.made_by(wrapped(c, bad, 5), "select")
    assert draft is not None and draft.ins[2] == "bad"
    with pytest.raises(LoweringError, match="takes for a mask"):
        wrapped(c, b.input("bytes", TensorType("u8", (4,))), 5)


def test_a_guard_against_a_number_takes_away_where_that_number_was_put(b: Builder) -> None:
    """Labels of another kind are made -100 and then made 0: the loss looks them up as ranks do."""
    labels, counts = number(b, "labels", 0), b.input("counts", TensorType("i1", (4,)))
    ignored = b.like(-100, labels)
    marked = b.reshape(b.select(counts, labels, ignored), (2, 2))
    zero, number_of_ignored = b.like(0, marked), b.like(-100, marked)
    guard = b.compare("NE", marked, number_of_ignored)
    assert not non_negative(b, marked) and non_negative(b, b.select(guard, marked, zero))
    assert not non_negative(b, b.select(b.unary("not", guard), marked, zero))
    assert not non_negative(b, b.select(b.compare("NE", marked, b.like(-99, marked)), marked, zero))


def test_a_guard_of_one_element_says_nothing_of_another(b: Builder) -> None:
    """What is compared and what is taken are two slices of one tensor."""
    labels, counts = number(b, "labels", 0), b.input("counts", TensorType("i1", (4,)))
    marked = b.select(counts, labels, b.like(-100, labels))
    left, right = b.slice(marked, [0], [2]), b.slice(marked, [2], [2])
    guard = b.compare("NE", left, b.like(-100, left))
    assert non_negative(b, b.select(guard, left, b.like(0, left)))
    assert not non_negative(b, b.select(guard, right, b.like(0, left)))
    other = number(b, "other")
    facts = b.select(
        b.compare("GE", left, b.slice(other, [0], [2])), b.slice(marked, [1], [2]), b.like(0, left)
    )
    assert not non_negative(b, facts)


def test_a_row_that_was_counted_is_in_the_table(b: Builder) -> None:
    """No solver sees how large a sum may be; PyTorch would raise."""
    wide = b.input("wide", TensorType("i64", (4, 3)))
    counted = b.binary("add", b.reduce(wide, (1,), "add"), b.iota(0, (4,)))
    found = in_table(b, counted, 6)
    (low,) = (b.drafts[name] for name in b.drafts[found.name].ins if b.drafts[name].name == "maximum")
    assert b.drafts[found.name].name == "minimum" and counted.name in low.ins


def test_rows_that_are_given_or_known_stay_what_they_are(b: Builder) -> None:
    given = number(b, "given", 0)
    assert in_table(b, given, 6) == given
    shifted = b.binary("add", given, b.iota(0, (4,)))
    assert in_table(b, shifted, 6) == shifted
    known = b.reduce(b.iota(0, (4, 3)), (1,), "add")
    assert in_table(b, known, 6) == known
