"""Ghosts are written once, and sums that were written before are kept together."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.program import Program
from certificates.plan.types import TensorType
from orchestrator.cells import Unfollowable
from orchestrator.ghosts import writing
from orchestrator.ghosts.values import ONE, Letter, Value, Values, letter, number
from orchestrator.ghosts.writing import Writer, fractions, groups

ALL_POSITIVE = Values(lambda _: True, lambda _: True)
KIND = TensorType("f32", (2, 3))


def program() -> Program:
    b = ProgramBuilder()
    for name in ("a", "b", "c", "d"):
        b.input(name, "f32[2,3]")
    b.input("r", "f32[2]")
    b.output("y", b.reshape(b.input("z", "f32[2,3,4]"), (6, 4)))
    return b.build()


a, b, c, d = (letter(n, (0, 1)) for n in "abcd")
r = letter("r", (0,))


def test_no_op_is_written_twice() -> None:
    w = Writer(program())
    value = ALL_POSITIVE.plus(ALL_POSITIVE.times(a, b), r)
    assert w.value(value, KIND) == w.value(value, KIND)
    names = [op.name for op in w.ghosts]
    assert names == ["multiply", "broadcast_in_dim", "add"]


def test_an_op_of_the_program_is_no_ghost() -> None:
    build = ProgramBuilder()
    build.output("y", build.input("a", "f32[2,3]") * build.input("b", "f32[2,3]"))
    own = build.build()
    w = Writer(own)
    w.passed(own.ops[0])
    assert w.value(ALL_POSITIVE.times(a, b), KIND) == own.ops[0].out and not w.ghosts


def test_a_sum_is_kept_together_and_what_terms_share_is_apart() -> None:
    w, v = Writer(program()), ALL_POSITIVE
    both = v.plus(a, b)
    w.value(both, KIND)
    before = len(w.ghosts)
    w.value(v.times(v.plus(c, d), both), KIND)
    assert [op.name for op in w.ghosts[before:]] == ["add", "multiply"]
    before = len(w.ghosts)
    w.value(v.plus(v.times(a, c), v.times(a, d)), KIND)
    assert [op.name for op in w.ghosts[before:]] == ["multiply"]


def test_a_quotient_is_written_as_fractions() -> None:
    v = ALL_POSITIVE
    under = v.inverse(v.plus(a, b))
    value = v.plus(v.times(c, under), v.times(d, v.times(under, under)))
    assert [len(above) for above, _ in fractions(value.above, value.below)] == [1, 1]
    w = Writer(program())
    w.value(value, KIND)
    assert [op.name for op in w.ghosts] == ["add", "divide", "divide", "divide", "add"]


def test_numbers_and_places() -> None:
    w = Writer(program())
    assert w.types[w.value(number(Fraction(1, 3)), KIND)] == KIND
    turned = w.placed("a", (1, 0), (0, 1), (3, 2))
    assert w.types[turned].shape == (3, 2)
    wide = w.value(Value({frozenset({(Letter("r", (0,)), ONE)}): Fraction(-2)}, {}), KIND)
    assert w.types[wide] == KIND


def test_reshapes_of_reshapes_are_of_what_was_there_before() -> None:
    own = program()
    w = Writer(own)
    for op in own.ops:
        w.passed(op)
    joined = own.ops[-1].out
    assert w.reshaped(joined, (2, 3, 4)) == "z" and w.merged(joined) == [(2, 3), (4,)]
    assert w.root(joined) == "z"


def test_powers_that_are_no_products_are_refused() -> None:
    with pytest.raises(Unfollowable, match="no product"):
        Writer(program()).value(Value({frozenset({(Letter("a", (0, 1)), Fraction(1, 2))}): ONE}, {}), KIND)


def test_ghosts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LEAST", 0)
    monkeypatch.setattr(writing, "MOST_PER_OP", 0)
    with pytest.raises(Unfollowable, match="more than"):
        Writer(program()).value(ALL_POSITIVE.times(a, b), KIND)


def test_groups_of_a_reshape() -> None:
    assert groups((2, 1, 3, 4), (6, 4)) == [((0, 2), (0,)), ((3,), (1,))]
    assert groups((6, 4), (2, 3, 4)) == [((0,), (0, 1)), ((1,), (2,))]
