"""Affine forms against all values of their symbols."""

from __future__ import annotations

import sys
from pathlib import Path

from checker.language.affine import Affine, evident, row_major

sys.path.insert(0, str(Path(__file__).parents[1]))


X, Y = Affine.symbol("x"), Affine.symbol("y")


def test_forms_are_substituted_and_bounded() -> None:
    """Against all values of their symbols."""
    ranges = {"x": (-2, 3), "y": (1, 4)}
    points = [{"x": x, "y": y} for x in range(-2, 3) for y in range(1, 4)]

    def at(form: Affine, point: dict[str, int]) -> int:
        return form.const + sum(c * point[s] for s, c in form.terms)

    for const, a, b in ((0, 1, 0), (5, 2, -3), (-7, -1, 1), (4, 0, 0)):
        form = Affine.total([(1, Affine(const)), (a, X), (b, Y)])
        assert [at(form, p) for p in points] == [const + a * p["x"] + b * p["y"] for p in points]
        values = [at(form, p) for p in points]
        assert form.interval(ranges) == (min(values), max(values))
        assert form.interval({"x": None, "y": None}) == (
            (form.const, form.const) if not form.terms else (-float("inf"), float("inf"))
        )
        moved = form.substitute({"x": Affine.total([(2, Y), (1, Affine(3))]), "y": X})
        assert [at(moved, p) for p in points] == [const + a * (2 * p["y"] + 3) + b * p["x"] for p in points]
        assert evident(form, min(values), max(values) + 1, ranges) and evident(form, None, None, ranges)
        assert not evident(form, min(values) + 1, None, ranges)
        assert not evident(form, None, max(values), ranges)
    assert row_major([X, Y, Affine(1)], [9, 3, 5]) == Affine(1, (("x", 15), ("y", 5)))
