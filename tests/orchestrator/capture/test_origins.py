"""Where elements come from: data movement is followed backwards to inputs, element by element."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder, Value
from orchestrator.capture.origins import Computed, Origins

X = np.arange(24).reshape(4, 6)
COMPARED = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal}
ROWS = np.array([3, 1, 2, 0])


def computed(b: Builder, name: str, number: int) -> Value:
    """Two row numbers: 0 and 1, with a number added, subtracted or multiplied."""
    return b.binary(name, b.iota(0, (2,)), b.constant(number, TensorType("i64", (2,))))


def chosen(b: Builder, direction: str) -> Value:
    """Row 3 for the numbers 0 to 3 that compare so with 1, row 0 for the others."""
    type_ = TensorType("i64", (4,))
    holds = b.compare(direction, b.iota(0, (4,)), b.constant(1, type_))
    return b.select(holds, b.constant(3, type_), b.constant(0, type_))


#: A movement of ``x`` of shape [4, 6], and the same in NumPy; ``r`` are four row numbers.
MOVES: dict[str, tuple[Callable[[Builder, Value, Value], Value], Callable[[Any], Any]]] = {
    "slice": (lambda b, x, r: b.narrow(x, 1, 2, 3), lambda a: a[:, 2:5]),
    "transpose": (lambda b, x, r: b.transpose(x, (1, 0)), lambda a: a.T),
    "reshape": (lambda b, x, r: b.reshape(x, (8, 3)), lambda a: a.reshape(8, 3)),
    "broadcast": (lambda b, x, r: b.broadcast(x, (2, 4, 6), (1, 2)), lambda a: np.stack([a, a])),
    "joined": (
        lambda b, x, r: b.concatenate([b.narrow(x, 0, 2, 2), x], 0),
        lambda a: np.concatenate([a[2:], a]),
    ),
    "pad": (
        lambda b, x, r: b.pad(x, 0, (1, 2), (0, 1)),
        lambda a: np.pad(a, ((1, 0), (2, 1)), constant_values=-1),
    ),
    "rows": (lambda b, x, r: b.gather(x, r, 0, 0), lambda a: a[ROWS]),
    "columns": (lambda b, x, r: b.gather(x, b.narrow(r, 0, 1, 3), 1, 0), lambda a: a[:, ROWS[1:]]),
    "rows of a part": (lambda b, x, r: b.gather(b.narrow(x, 1, 1, 2), r, 0, 0), lambda a: a[ROWS, 1:3]),
    "even rows": (
        lambda b, x, r: b.gather(x, computed(b, "multiply", 2), 0, 0),
        lambda a: a[::2],
    ),
    "shifted rows": (
        lambda b, x, r: b.gather(x, computed(b, "add", 1), 0, 0),
        lambda a: a[1:3],
    ),
    "rows from the end": (
        lambda b, x, r: b.gather(x, computed(b, "subtract", 2), 0, 0),
        lambda a: a[2:],
    ),
    **{
        f"rows by {direction}": (
            lambda b, x, r, d=direction: b.gather(x, chosen(b, d), 0, 0),
            lambda a, f=function: a[np.where(f(np.arange(4), 1), 3, 0)],
        )
        for direction, function in COMPARED.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_every_element_comes_from_where_numpy_takes_it(name: str) -> None:
    build, move = MOVES[name]
    b = Builder()
    x, rows = b.input("x", TensorType("f32", (4, 6))), b.input("rows", TensorType("i64", (4,)))
    want = move(X)
    got = np.full(want.shape, -2)
    for part in Origins(b, {"rows": ROWS}).parts(build(b, x, rows)):
        for digits in itertools.product(*(range(n) for n in part.sizes)):
            at = {f"z{i}": digit for i, digit in enumerate(digits)}
            place = tuple(f.evaluate(at) for f in part.at)
            assert got[place] == -2, "parts do not overlap"
            assert part.source in ("x", None)
            got[place] = X[tuple(f.evaluate(at) for f in part.index)] if part.source else -1
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 1, 1, 1], [0, 2, 1, 3], [3, 2, 1, 0], [0, 1, 3, 2]])
def test_tables_of_row_numbers_are_cut_where_their_slope_changes(rows: list[int]) -> None:
    b = Builder()
    x, r = b.input("x", TensorType("f32", (4, 6))), b.input("rows", TensorType("i64", (4,)))
    got = np.full((4, 6), -2)
    for part in Origins(b, {"rows": np.array(rows)}).parts(b.gather(x, r, 0, 0)):
        for digits in itertools.product(*(range(n) for n in part.sizes)):
            at = {f"z{i}": digit for i, digit in enumerate(digits)}
            got[tuple(f.evaluate(at) for f in part.at)] = X[tuple(f.evaluate(at) for f in part.index)]
    np.testing.assert_array_equal(got, X[rows])


def test_an_entry_of_a_table_of_two_dimensions_is_found() -> None:
    """As the rows of a batch of sequences; the numbers run along both dimensions."""
    b = Builder()
    x, r = b.input("x", TensorType("f32", (4, 6))), b.input("rows", TensorType("i64", (3, 2)))
    numbers = np.array([[2, 3], [1, 2], [0, 1]])
    got = np.full((3, 2, 6), -2)
    for part in Origins(b, {"rows": numbers}).parts(b.gather(x, r, 0, 0)):
        for digits in itertools.product(*(range(n) for n in part.sizes)):
            at = {f"z{i}": digit for i, digit in enumerate(digits)}
            got[tuple(f.evaluate(at) for f in part.at)] = X[tuple(f.evaluate(at) for f in part.index)]
    np.testing.assert_array_equal(got, X[numbers])


def test_what_is_computed_is_told_with_its_op() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (4, 6)))
    with pytest.raises(Computed) as caught:
        Origins(b, {}).parts(b.narrow(b.unary("exponential", x), 0, 1, 2))
    assert caught.value.draft.name == "exponential"


def test_a_value_reads_every_input_below_it_once() -> None:
    b = Builder()
    x, y, z = (b.input(n, TensorType("f32", (2,))) for n in "xyz")
    twice = b.binary("add", x, y)
    both = b.binary("multiply", twice, b.binary("add", twice, x))
    origins = Origins(b, {})
    assert origins.reads(both.name) == {"x", "y"} and origins.reads(z.name) == {"z"}
    assert sorted(d.name for d in origins.drafts(both.name)) == ["add", "add", "multiply"]


def test_a_digest_is_that_of_what_was_passed_on() -> None:
    """A broadcast along one axis of a mesh after one along another: the members of the first are others."""
    b = Builder()
    x = b.input("x", TensorType("f32", (2,)))
    passed = [b.emit("agreed", (x,), x.type, shared=False, digests=d) for d in ("0-2#0=a", "1-3#0=a")]
    origins = Origins(b, {})
    assert {origins.digest(v.name) for v in passed} == {origins.digest("x")}


def test_digests_tell_ways_of_computing_apart() -> None:
    def digest(name: str, left: str, tables: dict[str, np.ndarray]) -> str:
        b = Builder()
        values = {n: b.input(n, TensorType("f32", (2,))) for n in ("x", "y")}
        return Origins(b, tables).digest(b.binary(name, values[left], values["y"]).name)

    assert digest("add", "x", {}) == digest("add", "x", {})
    assert len({digest("add", "x", {}), digest("subtract", "x", {}), digest("add", "y", {})}) == 3
    one, two = np.array([1, 2]), np.array([1, 3])
    assert digest("add", "x", {"x": one}) != digest("add", "x", {"x": two})
