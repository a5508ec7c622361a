"""Ends of whole numbers and masks hold whatever the inputs are, and say where a label never lies."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates.plan.program import Op, Program
from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder, Value
from orchestrator.capture.lowering.enclosing import ENDLESS, FAR, Enclosing, never_picked
from orchestrator.evaluating import interpreter

SHAPE = (2, 3)
BOUNDS = {"x0": (-2, 3), "x1": (0, 5)}


def inputs(b: Builder) -> list[Value]:
    for name, bounds in BOUNDS.items():
        b.bounds[name] = bounds
    return [b.input(name, TensorType("i64", SHAPE)) for name in BOUNDS]


def moved(b: Builder, draw: Callable[..., object], x: Value) -> Value:
    """Out and back: every op of data movement, and the shape of before."""
    match draw(st.integers(0, 5)):
        case 0:
            return b.reshape(b.transpose(x, (1, 0)), SHAPE)
        case 1:
            return b.expand(b.narrow(x, 1, 1, 1), SHAPE)
        case 2:
            return b.concatenate([b.narrow(x, 1, 2, 1), b.narrow(x, 1, 0, 2)], 1)
        case 3:
            return b.reshape(b.reshape(b.expand(b.narrow(x, 0, 1, 1), SHAPE), (6,)), SHAPE)
        case 4:
            wide = b.concatenate([x, x], 1)
            return b.slice(wide, [0, 1], [2, 3], [1, 2])
        case _:
            return b.expand(b.reshape(b.narrow(b.narrow(x, 0, 1, 1), 1, 2, 1), (1, 1)), SHAPE)


@given(st.data())
def test_elements_lie_between_their_ends(data: st.DataObject) -> None:
    b = Builder()
    numbers = [*inputs(b), b.iota(0, SHAPE), b.iota(1, SHAPE), b.constant(2, TensorType("i64", SHAPE))]
    masks: list[Value] = [b.constant(True, TensorType("i1", SHAPE))]
    for _ in range(data.draw(st.integers(1, 8))):
        x, y = data.draw(st.sampled_from(numbers)), data.draw(st.sampled_from(numbers))
        p, q = data.draw(st.sampled_from(masks)), data.draw(st.sampled_from(masks))
        match data.draw(st.integers(0, 9)):
            case 8:
                masks.append(b.convert(x, "i1"))
            case 9:
                half = b.constant(Fraction(5, 2), TensorType("f64", SHAPE))
                masks.append(b.compare("LT", b.binary("multiply", b.convert(x, "f64"), half), half))
            case 0:
                op = data.draw(st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"]))
                numbers.append(b.binary(op, x, y))
            case 1:
                numbers.append(b.select(p, x, y))
            case 2:
                numbers.append(b.convert(p, "i64"))
            case 3:
                numbers.append(moved(b, data.draw, x))
            case 4:
                masks.append(b.select(p, q, masks[0]) if data.draw(st.booleans()) else b.unary("not", p))
            case 5:
                masks.append(b.binary(data.draw(st.sampled_from(["and", "or"])), p, q))
            case 6:
                masks.append(moved(b, data.draw, p))
            case _:
                way = data.draw(st.sampled_from(["EQ", "NE", "LT", "LE", "GT", "GE"]))
                masks.append(b.compare(way, x, y))
    made = [v for v in (*numbers, *masks) if v.name not in BOUNDS]
    ops = tuple(Op(d.out, d.name, d.ins, d.type, dict(d.attrs)) for d in b.drafts.values())
    program = Program(b.inputs, ops, {v.name: v.name for v in made})
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    given_ = {name: rng.integers(low, end, SHAPE) for name, (low, end) in BOUNDS.items()}
    values, found = interpreter.evaluate(program, given_), Enclosing(b)
    for v in made:
        ends, value = found.of(v.name), np.asarray(values[v.name]).astype(np.int64)
        assert (np.broadcast_to(ends.low.numpy(), v.shape) <= value).all()
        assert (value <= np.broadcast_to(ends.high.numpy(), v.shape)).all()


def test_far_numbers_have_no_end() -> None:
    """Nothing follows from two large numbers but that they are large; they could be any."""
    b = Builder()
    type_ = TensorType("i64", (1,))
    free, large, larger = b.input("free", type_), b.constant(1 << 40, type_), b.constant(1 << 41, type_)
    b.bounds["wide"] = (-(1 << 62), 1 << 62)
    b.bounds["one_sided"] = (3, 1 << 40)
    one_sided, _ = b.input("one_sided", type_), b.input("wide", type_)
    found = Enclosing(b)
    assert (int(found.of("one_sided").low), int(found.of("one_sided").high)) == (3, ENDLESS)
    seen = found.of(b.compare("LT", one_sided, b.constant(1 << 30, type_)).name)
    assert (int(seen.low), int(seen.high)) == (0, 1)
    assert (int(found.of("wide").low), int(found.of("wide").high)) == (-ENDLESS, ENDLESS)
    ends = {v.name: (int(e.low), int(e.high)) for v in (free, large) for e in [found.of(v.name)]}
    assert ends == {"free": (-ENDLESS, ENDLESS), large.name: (FAR, ENDLESS)}
    for way in ("LT", "EQ", "GE"):
        for x, y in ((large, larger), (free, large), (b.binary("subtract", free, large), free)):
            seen = found.of(b.compare(way, x, y).name)
            assert (int(seen.low), int(seen.high)) == (0, 1)
    twice = found.of(b.binary("multiply", b.binary("multiply", free, free), large).name)
    assert (int(twice.low), int(twice.high)) == (-ENDLESS, ENDLESS)


def padded(b: Builder, end: int, low: int = 0) -> tuple[Value, Value]:
    """Scores of 10 tokens and 6 that nobody has, and a label below ``end`` for each of 4 rows."""
    b.bounds["label"] = (low, end)
    label = b.input("label", TensorType("i64", (4,)))
    place = b.iota(1, (4, 16))
    return b.compare("GE", place, b.like(10, place)), b.reshape(label, (4, 1))


@pytest.mark.parametrize(("end", "never"), [(10, True), (11, False), (16, False)])
def test_a_label_of_the_vocabulary_lies_before_its_padding(end: int, never: bool) -> None:
    b = Builder()
    assert never_picked(b, *padded(b, end)) is never
    assert b.relied == ({"label"} if never else set())


def test_an_index_outside_picks_nothing() -> None:
    b = Builder()
    mask, label = padded(b, 10, low=-100)
    assert never_picked(b, mask, label)
    assert not never_picked(b, b.unary("not", mask), label)
    assert never_picked(b, mask, b.binary("add", label, b.like(116, label)))


def test_a_row_is_not_its_own_partner() -> None:
    """Each row's label is known, and so is the place that is masked in it: they differ, row by row."""
    b = Builder()
    row, place = b.iota(0, (4, 8)), b.iota(1, (4, 8))
    itself, at = b.compare("EQ", row, place), b.iota(0, (4, 1))
    assert never_picked(b, itself, b.binary("add", at, b.like(4, at)))
    assert never_picked(b, itself, b.binary("add", at, b.like(1, at)))
    assert not never_picked(b, itself, b.iota(0, (4, 1)))
    assert not never_picked(b, b.expand(b.narrow(itself, 0, 2, 1), (4, 8)), at)


def test_what_is_alike_costs_nothing() -> None:
    """A vocabulary at true size, and a mask of it spread over more rows than are looked at one by one."""
    b = Builder()
    b.bounds["label"] = (0, 128_000)
    rows = b.input("label", TensorType("i64", (1 << 17,)))
    place = b.iota(0, (128_256,))
    mask = b.insert(b.compare("GE", place, b.like(128_000, place)), 0, 1 << 17)
    spread = b.reshape(b.reshape(mask, (1 << 10, 1 << 7, 128_256)), mask.shape)
    assert never_picked(b, spread, b.reshape(rows, (1 << 17, 1)))
    label = b.reshape(rows, (1 << 17, 1))
    assert not never_picked(b, spread, b.binary("add", label, b.like(1, label)))
