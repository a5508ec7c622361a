"""Steps are counted: of what fails, not of what succeeds; when they are gone nothing more is tried."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.relating.tries import Tries


def test_only_what_fails_is_counted() -> None:
    tries = Tries(most=10)

    def task(steps: int, found: bool) -> Callable[[], bool]:
        def run() -> bool:
            tries.step(steps)
            return found

        return run

    assert tries.attempt(task(30, True), False) and (tries.in_vain, tries.left) == (0, True)
    assert not tries.attempt(task(9, False), False) and (tries.in_vain, tries.left) == (9, True)
    assert not tries.attempt(task(1, False), False) and (tries.in_vain, tries.left) == (10, False)
    assert not tries.attempt(task(0, True), False), "nothing is tried any more"
    assert tries.in_vain == 10

    tries = Tries(most=10)
    assert tries.attempt(lambda: not tries.attempt(task(4, False), False), False)
    assert tries.in_vain == 0, "what fails inside of what succeeds is forgotten with it"
    assert not tries.attempt(lambda: tries.attempt(task(4, True), False) and task(3, False)(), False)
    assert tries.in_vain == 3, "what succeeds inside is not in vain"


def test_a_step_is_one_unless_said() -> None:
    tries = Tries()
    tries.step()
    assert tries.in_vain == 1
