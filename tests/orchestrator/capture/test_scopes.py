"""A module that changes is looked at again: what a child has put there must not be missed."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import MappingProxyType, ModuleType
from typing import Any

import pytest

from orchestrator.capture.scopes import NUMBERED, Kept, ours

numbered = pytest.mark.skipif(not NUMBERED, reason="this Python does not number changes of dictionaries")


class Looks:
    """Counts how often one looks."""

    def __init__(self) -> None:
        self.seen = 0
        self.kept = Kept(self)

    def __call__(self, scope: Any) -> tuple[str, ...]:
        self.seen += 1
        return tuple(vars(scope))


def module() -> ModuleType:
    made = ModuleType("of_a_test")
    made.a = 1  # type: ignore[attr-defined]
    return made


@numbered
@pytest.mark.parametrize("scope", [module(), type("Local", (), {"a": 1})], ids=["module", "class"])
@pytest.mark.parametrize(
    "change",
    [
        lambda scope: setattr(scope, "a", 2),
        lambda scope: setattr(scope, "b", 1),
        lambda scope: delattr(scope, "a"),
    ],
    ids=["bound anew", "added", "deleted"],
)
def test_what_is_changed_is_looked_at_again(scope: Any, change: Callable[[Any], None]) -> None:
    scope.a = 1
    looks = Looks()
    first = looks.kept(scope)
    assert looks.kept(scope) == first and looks.seen == 1
    change(scope)
    assert looks.kept(scope) == tuple(vars(scope)) and looks.seen == 2
    assert looks.kept(scope) and looks.seen == 2


@numbered
@pytest.mark.parametrize(
    "write",
    [
        lambda variables: variables.update(a=3),
        lambda variables: variables.setdefault("c", 1),
        lambda variables: variables.pop("a"),
        lambda variables: variables.__setitem__("a", 3),
        lambda variables: variables.clear(),
        lambda variables: variables.__ior__({"a": 3}),
        lambda variables: exec("a = 3", variables),
    ],
)
def test_so_is_what_is_written_into_its_dictionary(write: Callable[[dict[str, Any]], object]) -> None:
    made, looks = module(), Looks()
    looks.kept(made)
    write(vars(made))
    assert looks.kept(made) == tuple(vars(made)) and looks.seen == 2


@numbered
def test_imported_modules_are_a_scope_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = itertools.count()
    kept = Kept(lambda _modules: next(looked))
    assert kept(sys.modules) == kept(sys.modules) == 0
    monkeypatch.setitem(sys.modules, "of_a_test", module())
    assert kept(sys.modules) == 1


def test_a_change_during_the_look_counts() -> None:
    made = module()

    def look(scope: Any) -> tuple[str, ...]:
        found = tuple(vars(scope))
        scope.late = 1
        return found

    kept = Kept(look)
    assert "late" not in kept(made) and "late" in kept(made)


@numbered
def test_what_the_capture_writes_itself_stays_found_but_for_who_asks_for_it() -> None:
    made, other = Looks(), Looks()
    scope = module()
    first = made.kept(scope), other.kept(scope)
    with ours([vars(scope)], other.kept):
        scope.b = 2  # type: ignore[attr-defined]
    assert made.kept(scope) == first[0] and made.seen == 1
    assert "b" in other.kept(scope) and other.seen == 2


@numbered
def test_what_was_changed_before_the_capture_writes_is_looked_at_all_the_same() -> None:
    looks, scope = Looks(), module()
    looks.kept(scope)
    scope.of_the_users = 1  # type: ignore[attr-defined]
    with ours([vars(scope)]):
        scope.b = 2  # type: ignore[attr-defined]
    assert "of_the_users" in looks.kept(scope)


def test_what_is_forgotten_is_looked_at_again() -> None:
    looks, scope = Looks(), module()
    looks.kept(scope)
    looks.kept.forget()
    looks.kept(scope)
    assert looks.seen == 2


def test_a_class_or_module_that_shows_other_variables_is_always_looked_at() -> None:
    class Shows(type):
        @property
        def __dict__(cls) -> Any:  # type: ignore[override]
            return MappingProxyType({"shown": 1})

    class Lazy(ModuleType):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            return {"shown": 1}

    class Library:
        """As cffi's: among the imported modules, and a module by its own words only."""

        __class__ = ModuleType  # type: ignore[assignment]

        def __init__(self) -> None:
            self.shown = 1

    for scope in (Shows("Local", (), {}), Lazy("of_a_test"), Library()):
        looks = Looks()
        assert looks.kept(scope) == looks.kept(scope) == ("shown",) and looks.seen == 2


def test_without_numbers_all_is_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.capture.scopes.NUMBERED", False)
    looks, scope = Looks(), module()
    looks.kept(scope)
    looks.kept(scope)
    assert looks.seen == 2
