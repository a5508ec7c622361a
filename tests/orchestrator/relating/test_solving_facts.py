"""Solving affine forms, and the normal form of facts: against all elements that they speak of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from certificates.plan.affine import Affine, Range, fold
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact
from orchestrator.cells import Cell, Unfollowable, explore
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.solving_facts import as_there, make_fact, merge, solve
from smtlib_emit.model import Model

from ..random_plans import random_plan

Row = tuple[int, ...]


def points(ranges: dict[str, Range]) -> Iterable[dict[str, int]]:
    for p in itertools.product(*(range(lo, hi) for lo, hi in ranges.values())):
        yield dict(zip(ranges, p, strict=True))


def rows(fact: Fact) -> set[tuple[Row, Row]]:
    """The index pairs that a fact speaks of."""
    return {
        (tuple(f.evaluate(p) for f in fact.lhs_index), tuple(f.evaluate(p) for f in fact.rhs_index))
        for p in points(fact.ranges)
    }


@st.composite
def mixed_radix(draw: st.DrawFn) -> tuple[Affine, dict[str, Range]]:
    """``c + s0*x0 + s1*x1 + …`` in which every stride exceeds what smaller terms reach."""
    stride, terms, ranges = 1, {}, {}
    for i in range(draw(st.integers(0, 3))):
        size = draw(st.integers(2, 4))
        terms[f"x{i}"], ranges[f"x{i}"] = stride, (0, size)
        stride *= size * draw(st.integers(1, 2))
    return Affine.of(draw(st.integers(0, 5)), terms), ranges


@settings(max_examples=300)
@given(mixed_radix(), st.integers(0, 6), st.integers(1, 30), st.sampled_from([1, 1, 2, 3]))
def test_solutions_are_solutions_and_none_is_missed(
    problem: tuple[Affine, dict[str, Range]], lo: int, count: int, stride: int
) -> None:
    form, symbols = problem
    reached = {form.evaluate(p) for p in points(symbols)}

    def compute(cell: Cell) -> dict[str, Affine] | None:
        return solve([form], symbols, [cell.at["i"].scale(stride)], cell.ranges)

    try:
        parts = explore(Cell.whole({"i": (lo, lo + count)}), compute)
    except Unfollowable:
        assume(False)
    for cell, values in parts:
        for p in points(dict(cell.ranges)):
            target = cell.at["i"].scale(stride).evaluate(p)
            if values is None:
                assert target not in reached
                continue
            found = {s: f.evaluate(p) for s, f in values.items()}
            assert form.evaluate(found) == target
            assert all(a <= found[s] < b for s, (a, b) in symbols.items())


def test_a_symbol_that_no_form_mentions_takes_its_smallest_value() -> None:
    """Such a fact holds for all of them; another value might be out of range."""
    values = solve([Affine.symbol("x")], {"x": (0, 4), "y": (3, 9)}, [Affine(2)], {})
    assert values == {"x": Affine(2), "y": Affine(3)}


def test_what_is_out_of_reach_has_no_solution() -> None:
    assert solve([Affine.symbol("x")], {"x": (0, 4)}, [Affine.symbol("i")], {"i": (4, 9)}) is None
    assert solve([Affine(3)], {}, [Affine(4)], {}) is None


MODEL = Model(random_plan(0))


@settings(max_examples=300)
@given(st.data())
def test_a_fact_speaks_of_the_elements_of_its_cell(data: st.DataObject) -> None:
    """Joining digits and renaming must neither lose nor add an element."""
    names = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    ranges = {}
    for s in names:
        lo = data.draw(st.integers(0, 2))
        ranges[s] = (lo, lo + data.draw(st.integers(1, 4)))
    coefs = st.sampled_from([0, 0, 1, 1, 2, 3, 4, 6])

    def form() -> Affine:
        return Affine.of(data.draw(st.integers(0, 3)), {s: data.draw(coefs) for s in names})

    left = [Affine.symbol(s) + data.draw(st.integers(0, 3)) for s in names]
    if len(names) > 1 and data.draw(st.booleans()):
        left = [left[0].scale(ranges[names[1]][1]) + left[1], *left[2:]]
    right = [form() for _ in range(data.draw(st.integers(0, 2)))]
    fact = make_fact(MODEL, Cell.whole(ranges), "s:in0", left, "s:in1", right, Fraction(2, 3))
    expected = {
        (tuple(f.evaluate(p) for f in left), tuple(f.evaluate(p) for f in right)) for p in points(ranges)
    }
    assert rows(fact) == expected and fact.coef == Fraction(2, 3)
    assert all(s == f"z{i}" for i, (s, _, _) in enumerate(fact.symbols))


def test_mesh_coordinates_keep_their_names(mlp: Plan) -> None:
    knowledge = Knowledge(Model(mlp))
    cell = knowledge.full_index("c0:params.w1")
    index = list(cell.at.values())
    fact = make_fact(knowledge.model, cell, "c0:params.w1", index, "c0:params.w1", index, Fraction(1))
    assert [s for s, _, _ in fact.symbols] == ["dp", "tp", "z0", "z1"]


def test_one_value_is_folded() -> None:
    form = Affine.of(1, {"a": 2, "b": 1})
    assert fold(form, {"a": (3, 4), "b": (0, 2)}) == Affine.of(7, {"b": 1})


@settings(max_examples=200)
@given(st.data())
def test_merging_keeps_exactly_what_was_said(data: st.DataObject) -> None:
    z0, z1 = Affine.symbol("z0"), Affine.symbol("z1")
    facts = []
    for _ in range(data.draw(st.integers(1, 5))):
        lo, lo1 = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 1))
        box = (("z0", lo, lo + data.draw(st.integers(1, 3))), ("z1", lo1, lo1 + data.draw(st.integers(1, 2))))
        right = z0.scale(data.draw(st.sampled_from([1, 1, 2]))) + data.draw(st.integers(0, 2))
        facts.append(Fact("s:in0", "s:in1", box, (z0, z1), (right, z1)))
    before = set().union(*map(rows, facts))
    assert set().union(*map(rows, merge(facts))) == before
    assert len(merge(facts)) <= len(facts)


def test_pieces_of_one_line_become_one() -> None:
    z = Affine.symbol("z0")
    pieces = [Fact("s:a", "s:b", (("z0", lo, lo + 2),), (z,), (z + 3,)) for lo in (0, 4, 2)]
    (whole,) = merge(pieces)
    assert whole.symbols == (("z0", 0, 6),)
    single = [Fact("s:a", "s:b", (("z0", i, i + 1),), (z,), (Affine(5 * i),)) for i in range(3)]
    (line,) = merge(single)
    assert line.rhs_index == (z.scale(5),)
    apart = [pieces[0], Fact("s:a", "s:b", (("z0", 3, 5),), (z,), (z + 3,))]
    assert len(merge(apart)) == 2, "position 2 was not spoken of"


@pytest.mark.parametrize("rows", [2, 1000])
def test_rows_without_their_last_place_are_one_part_however_many_there_are(rows: int) -> None:
    """Not a part for each row: the row is a digit, and the place is cut."""
    fact, ranges = [Affine.of(0, {"z0": 8, "z1": 1})], {"z0": (0, rows), "z1": (0, 7)}

    def solved(cell: Cell) -> dict[str, Affine] | None:
        return solve(fact, ranges, [cell.at["o"]], cell.ranges)

    parts = explore(Cell.whole({"o": (0, 8 * rows)}), solved)
    assert [found is None for _, found in parts] == [False, True]


def test_an_element_that_is_there_many_times_is_read_where_the_other_side_reads_it() -> None:
    """A sum of two positions: 3 is at (0, 3), (1, 2) and so on; without a choice nothing is preferred."""
    i, j, a, b = map(Affine.symbol, "ijab")
    names, ranges = {"o0": i, "o1": j}, {"a": (0, 4), "b": (0, 3)}
    symbols = (("i", 0, 4), ("j", 0, 3))
    sums = Fact("s:%2", "s:%0", symbols, (i, j), (i + j,), Fraction(1))
    like = {"o0": a, "o1": b}
    assert as_there(sums, names, [a + b], ranges, like) == {"i": a, "j": b}
    assert as_there(sums, names, [a + b + 1], ranges, like) is None, "another element"
    assert as_there(sums, names, [a + b], {"a": (0, 5), "b": (0, 3)}, like) is None, "out of range"
    assert as_there(sums, names, [a + b], ranges, {"o0": a}) is None
    once = Fact("s:%2", "s:%0", symbols, (i, j), (i.scale(3) + j,), Fraction(1))
    assert as_there(once, names, [a.scale(3) + b], ranges, like) is None
    windows = Fact("s:%2", "s:%0", symbols, (i, j), (i.scale(2) + j,), Fraction(1))
    found = as_there(windows, names, [a.scale(2) + b], ranges, like)
    assert found == {"i": a, "j": b}, "windows of three, two apart, share a place"
    narrow = replace(windows, symbols=(("i", 0, 4), ("j", 0, 2)))
    assert as_there(narrow, names, [a.scale(2) + b], {"a": (0, 4), "b": (0, 2)}, like) is None


def test_positions_that_both_sides_count_from_the_end_are_solved_for() -> None:
    z, k = Affine.symbol("z"), Affine.symbol("k")
    from_end, there = Affine(2) - z, Affine(2) - k
    assert solve([from_end], {"z": (0, 3)}, [there], {"k": (0, 3)}) == {"z": k}
    assert solve([from_end], {"z": (0, 3)}, [k], {"k": (0, 3)}) == {"z": there}


def test_a_zigzag_runs_down_in_its_second_half() -> None:
    """The second pieces of four ranks, from the last to the first: two elements each."""
    r, z, a, b = (Affine.symbol(s) for s in "rzab")
    symbols, here = {"r": (0, 4), "z": (0, 2)}, {"a": (0, 4), "b": (0, 2)}
    down = r.scale(-2) + z + 6
    assert solve([down], symbols, [a.scale(-2) + b + 6], here) == {"r": a, "z": b}
    assert solve([down], symbols, [a.scale(2) + b], here) == {"r": Affine(3) - a, "z": b}
    assert solve([down], symbols, [Affine(8)], {}) is None
    with pytest.raises(Unfollowable, match="run upwards and downwards"):
        solve([r, down], symbols, [a, a.scale(-2) + b + 6], here)


@given(st.data())
@settings(max_examples=200)
def test_digits_are_found_wherever_they_begin(data: st.DataObject) -> None:
    """``2*u + v`` with ``v`` in [1, 3): each element that the form takes once has its digits."""
    symbols: dict[str, Range] = {}
    form, step = Affine(data.draw(st.integers(-4, 4))), 1
    for name in ("z0", "z1")[: data.draw(st.integers(1, 2))]:
        low, size = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
        symbols[name] = (low, low + size)
        form = form + Affine.of(0, {name: step})
        step *= size
    found = explore(Cell.whole({"o": (0, 12)}), lambda c: solve([form], symbols, [c.at["o"]], c.ranges))
    values = {form.evaluate(point): point for point in points(symbols)}
    told = dict[int, dict[str, int] | None]()
    for cell, digits in found:
        for point in points(dict(cell.ranges)):
            known = digits and {s: f.evaluate(point) for s, f in digits.items()}
            told[cell.at["o"].evaluate(point)] = known
    assert told == {o: values.get(o) for o in range(12)}
