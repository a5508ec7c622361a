"""Who listens to Python's audit events is told of them until it leaves."""

from __future__ import annotations

import sys

from orchestrator.capture.audits import leave, listen


def test_events_are_told_until_one_leaves() -> None:
    told: list[tuple[object, ...]] = []

    def hear(*arguments: object) -> None:
        told.append(arguments)

    sys.audit("of.a.test", 0)
    listen("of.a.test", hear)
    sys.audit("of.a.test", 1, "a")
    sys.audit("of.another", 2)
    leave("of.a.test", hear)
    sys.audit("of.a.test", 3)
    assert told == [(1, "a")]


def test_who_hears_may_leave_meanwhile_and_others_are_told() -> None:
    told: list[str] = []

    def once() -> None:
        told.append("once")
        leave("of.a.test", once)

    def always() -> None:
        told.append("always")

    listen("of.a.test", once)
    listen("of.a.test", always)
    try:
        sys.audit("of.a.test")
        sys.audit("of.a.test")
    finally:
        leave("of.a.test", always)
    assert told == ["once", "always", "always"]
