"""What a value of a microbatch is made of in it: two sums correspond only if all below them does."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder
from orchestrator.capture.reach import Reach


def reach() -> tuple[Reach, dict[str, str], dict[str, int | None]]:
    """Two microbatches that read one shared value; numbers are those of the ops in one microbatch."""
    b = ProgramBuilder()
    x, y = b.input("x", "f32[2]"), b.input("y", "f32[2]")
    shared = b.tanh(x)
    names, home = dict[str, int](), dict[str, int | None]({"x": None, "y": None, shared.name: None})
    at = {"shared": shared.name}
    for m in range(2):
        made = [y * y if m else x * x]
        made.append(made[0] + shared)
        made.append(b.tanh(made[1]))
        for number, value in enumerate(made):
            at[f"{number} of {m}"] = value.name
            names[value.name], home[value.name] = number, m
    return Reach(b.build(), home, names), at, home


def test_a_value_is_made_of_itself_and_of_all_below_it_in_its_microbatch() -> None:
    found, at, _ = reach()
    assert found.of([at["0 of 0"]], 0) == 0b001
    assert found.of([at["2 of 0"]], 0) == 0b111 == found.of([at["2 of 1"]], 1)
    assert found.of([at["0 of 1"], at["1 of 1"]], 1) == 0b011


def test_values_of_others_and_of_none_count_for_nothing() -> None:
    found, at, _ = reach()
    assert found.of([at["2 of 0"], at["shared"]], 1) == 0
    assert found.of([], 0) == 0


def test_what_is_learnt_later_is_found_once_the_old_is_forgotten() -> None:
    found, at, home = reach()
    assert found.of([at["2 of 1"]], 1) == 0b111
    home[at["0 of 1"]] = None
    assert found.of([at["2 of 1"]], 1) == 0b111, "asked before"
    found.forget()
    assert found.of([at["2 of 1"]], 1) == 0b110
