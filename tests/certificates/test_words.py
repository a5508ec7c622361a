"""Text for people: folded, and harmless on a terminal."""

from __future__ import annotations

from certificates.words import folded


def test_many_lines_that_differ_in_numbers_only_are_folded() -> None:
    many = [f"  PROVED   w.{k}" for k in range(200)]
    assert folded(many) == many
    found = folded([*many, "  REFUTED  w.7: why 1", "  PROVED   y"])
    assert found == ["  PROVED   w.# (200 such lines)", "  REFUTED  w.7: why 1", "  PROVED   y"]
