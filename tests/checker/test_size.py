"""The checker's size, in tokens: what a reader must go through for a PROVED, and what only for the rest."""

from __future__ import annotations

from bench.checker_size import PARTS, parts, sizes, tokens
from checker.report.verdict import PROVING

#: Ratchets (docs/adr/0038-the-checker-is-counted-in-tokens.md): lowered freely, raised by an ADR only.
BUDGET = {
    **{"errors": 190, "language": 5_910, "reading": 16_700, "rules": 30_110, "kernel": 3_420},
    **{"solvers": 1_500, "endings": 300, "cli": 1_820, "refuting": 11_500, "report": 14_400},
    **{"reporting": 625, "run": 3_100, "scheduling": 7_500, "starting": 240},
}
PROVED = 60_140


def test_every_folder_stays_within_its_budget() -> None:
    """Whoever makes the checker larger says so, and why, in an ADR: each token is one more to believe."""
    over = {name: size for name, size in sizes().items() if size > BUDGET[name]}
    assert over == {}
    assert parts()["PROVED"] <= PROVED


def test_every_folder_belongs_to_one_part() -> None:
    named = [name for names in PARTS.values() for name in names]
    assert sorted(named) == sorted(sizes()) == sorted(BUDGET)
    assert PARTS["PROVED"] == PROVING, "tv-check --trusted-base says the same"


def test_what_is_no_code_is_not_counted() -> None:
    bare = "x = f(1)\n"
    said = '"""Says what it is."""\n\n# why\nx = f(\n    1\n)\n"""What x is."""\n'
    assert tokens(bare) == tokens(said) == 6
    assert tokens("x = 'a'\n") == tokens("x = f'{a!r:>{n}} and {b}'\n") == 3
