"""Schedules that go wrong: each UNSAFE for its reason, and in a simulator too; docs/schedules.md has them."""

from __future__ import annotations

import pytest

from bench.schedules import PAGE, breakages
from tests.schedule_breakages import BREAKAGES
from tests.schedule_plans import reason
from tests.schedule_simulator import trouble


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_breakage_is_unsafe_for_its_reason(name: str) -> None:
    make, words = BREAKAGES[name]
    plan = make()
    assert words in reason(plan)
    assert trouble(plan, 1) != "" or name == "send that nobody waits for", (
        "its message may arrive all the same"
    )


def test_the_page_tells_them() -> None:
    text = PAGE.read_text("utf-8")
    assert all(row in text for row in breakages())
