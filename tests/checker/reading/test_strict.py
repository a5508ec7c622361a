"""Values of untrusted JSON: each has one form, and a cap."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checker.errors import Malformed
from checker.reading import strict

sys.path.insert(0, str(Path(__file__).parents[1]))


def test_integers_and_intervals() -> None:
    big = 10**18
    assert [strict.integer(v, "x") for v in (-big, big - 1)] == [-big, big - 1]
    assert strict.integer(3, "x", 3, 4) == 3 and strict.interval([2, 3], "x") == (2, 3)
    assert strict.integers([0, (1 << 40) - 1], "x") == (0, (1 << 40) - 1)
    assert strict.natural(0, "x") == 0
    for wrong in (-big - 1, big, True, False, 1.0, "1", None):
        with pytest.raises(Malformed, match="is no integer in"):
            strict.integer(wrong, "x")
    for read, value in (
        (strict.natural, -1),
        (strict.integers, [-1]),
        (strict.integers, [1 << 40]),
        (strict.interval, [2, 2]),
        (strict.interval, [2]),
        (strict.interval, [1, 2, 3]),
    ):
        with pytest.raises(Malformed):
            read(value, "x")


def test_rationals() -> None:
    for good in ("0", "-3", "1/2", "-1/2", "9" * 400, "1/" + "9" * 400):
        assert str(strict.rational(good, "x")) == good
    for wrong in (
        "9" * 401,
        "1/" + "9" * 401,
        "1/0",
        "2/4",
        "1/1",
        "-0",
        "+1",
        "01",
        "1.5",
        "1/-2",
        "",
        1,
        None,
    ):
        with pytest.raises(Malformed):
            strict.rational(wrong, "x")


def test_forms() -> None:
    form = strict.affine({"z1": 2, "z0": -1, "": 3}, "x", {"z0", "z1"})
    assert (form.const, form.terms) == (3, (("z0", -1), ("z1", 2)))
    assert strict.affine(7, "x", ()).const == 7 and strict.affine({"z0": 1}, "x", {"z0"}).const == 0
    for wrong in ({"z0": 0}, {"z0": 1, "": 0}, {"": 1}, {}, {"z2": 1}, {"z0": "1"}, "z0", None, {"z0": True}):
        with pytest.raises(Malformed):
            strict.affine(wrong, "x", {"z0"})


def test_symbols_and_names() -> None:
    for good in ("dp", "a_1", "ta", "z", "zz0"):
        assert strict.symbol(good, "x") == good
    for wrong in (
        "t0",
        "e12",
        "q3",
        "v0",
        "z0",
        "",
        "Dp",
        "0a",
        "and",
        "mul",
        "neg_inf",
        "s",
        "dp\n",
        "sinh",
    ):
        with pytest.raises(Malformed):
            strict.symbol(wrong, "x")
    assert strict.symbol("z0", "x", "teqv") == "z0"
    for good in ("params.w", "_x", "A.b_1"):
        assert strict.name(good, "x") == good
    for wrong in ("%0", "a b", "", ".a", "1a", "a\n"):
        with pytest.raises(Malformed):
            strict.name(wrong, "x")


def test_the_size_of_a_file_is_capped() -> None:
    room = strict.MAX_BYTES - 2
    assert strict.read_json(b'"' + b" " * room + b'"', "x") == " " * room
    with pytest.raises(Malformed, match="x: larger than 67108864 bytes"):
        strict.read_json(b'"' + b" " * room + b'" ', "x")
