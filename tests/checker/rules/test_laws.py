"""The table of laws: every law is known by one row, and what has no row is refused."""

from __future__ import annotations

import sys
from pathlib import Path

from checker.rules.laws import LAWS

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import one_case, op, program, refuses

ROOT = Path(__file__).resolve().parents[3]


def test_documents_name_every_law() -> None:
    trust, checking = ((ROOT / name).read_text() for name in ("TRUST.md", "docs/checking.md"))
    assert all(f"`{law}`" in trust and f"`{law}`" in checking for law in LAWS)
    assert all(rule.sentence and rule.sound for rule in LAWS.values())


def test_laws_with_a_condition_may_not_stand_beside_a_sum() -> None:
    """Which terms are summed how often decides the widths; these have not been shown to leave that alone."""
    assert {law for law, rule in LAWS.items() if not rule.sums} == {"root", "field"}


def test_a_law_that_the_table_does_not_have_is_refused() -> None:
    spec = program([["g", "f32[]"], ["x", "f32[4]"]], [op("%0", "exponential", ["x"], "f32[4]")], [])
    x = ["e", "s:%0", [[0, 0]]]
    law = {"k": "law", "schema": "distributive", "lhs": x, "rhs": x}
    trees = {"s:x": [[[0, ["i"]]]], "s:%0": [[[0, ["i"]]]]}
    with refuses(7, "there is no law distributive"):
        one_case([law], spec=spec, trees=trees, classes=(("i", 4, 2),))
