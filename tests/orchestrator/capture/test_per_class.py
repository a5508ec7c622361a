"""Classes are asked once each, whatever their metaclass says of equality."""

from __future__ import annotations

from orchestrator.capture.per_class import per_class


class Alike(type):
    """All of its classes are equal; they have no hash."""

    def __eq__(cls, other: object) -> bool:
        return True


def test_each_class_is_asked_once() -> None:
    asked: list[type] = []

    @per_class
    def name(kind: type) -> str:
        asked.append(kind)
        return kind.__name__

    first, second = Alike("First", (), {}), Alike("Second", (), {})
    assert [name(kind) for kind in (first, second, int, first, second)] == [
        *("First", "Second", "int", "First", "Second")
    ]
    assert len(asked) == 3
