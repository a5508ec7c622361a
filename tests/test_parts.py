"""CI runs a part of the slow tests: no test is in none of the parts, and quick ones are in each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import PARTS, pytest_collection_modifyitems

COUNTS = {"a": 1, "b": 2, "c": 7, "d": 4, "e": 1, "f": 30}


def collected(part: str, counts: dict[str, int] = COUNTS) -> tuple[list[str], list[str]]:
    """What runs, and what is said to be left out, of so many slow cases of each test and two quick ones."""

    def item(name: str, slow: bool) -> Any:
        return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: slow or None)

    items = [item(f"{name}[{n}]", True) for name, count in counts.items() for n in range(count)]
    items += [item("quick[0]", False), item("quick[1]", False)]
    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    config: Any = SimpleNamespace(getoption=lambda _: part, hook=hook)
    pytest_collection_modifyitems(config, items)
    return [i.nodeid for i in items], [i.nodeid for i in left_out]


def test_every_slow_test_is_in_a_part_and_quick_ones_are_in_all() -> None:
    whole, nothing = collected("all")
    runs, left_out = zip(*(collected(str(part)) for part in range(PARTS * PARTS)), strict=True)
    assert not nothing and set().union(*runs) == set(whole)
    assert all({"quick[0]", "quick[1]"} <= set(part) for part in runs)
    assert all(sorted(part + rest) == sorted(whole) for part, rest in zip(runs, left_out, strict=True))
    assert max(map(len, runs)) < len(whole) / PARTS


@pytest.mark.parametrize("part", ["0", "8"])
def test_what_is_asked_for_by_name_runs_in_every_part(part: str) -> None:
    assert collected(part, {"a": PARTS})[1] == []
