"""Steps as people write them: a mistake is told at the line that was marked before, a right one not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from orchestrator.emit import provable
from orchestrator.refuting.diagnose import diagnose
from orchestrator.refuting.search import search

from .diagnosed.programs import MARK, PROGRAMS, expected


def test_every_program_has_one_marked_line() -> None:
    assert len({expected(name) for name in PROGRAMS}) == len(PROGRAMS)
    with pytest.raises(ValueError, match="not enough"):
        expected(f"{MARK} nowhere")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        # the loss of both has a factor at the same line: what the ranks divide by themselves is told
        ("divided_in_two_places", "remove the divide"),
        ("microbatches_not_averaged", "divide by 2, after"),
        ("one_layer_left_out", "add an all_reduce over dp, after"),
        ("pieces_in_another_order", "concatenate in the order 1, 0"),
    ],
)
def test_a_mistake_is_told_at_the_marked_line(name: str, suggestion: str) -> None:
    plan = PROGRAMS[name](False)
    witness = search(plan)
    assert witness is not None
    found = diagnose(plan, witness, 30.0, lambda edited, _: provable(edited))
    assert found is not None and found.at is not None
    assert (found.at.file, found.at.line) == ("tests/diagnosed/programs.py", expected(name))
    assert found.suggestion.startswith(suggestion)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["divided_in_two_places", "norm_of_own_rows", "mask_not_shifted"])
def test_the_program_without_the_mistake_has_no_witness(name: str) -> None:
    assert search(PROGRAMS[name](True), budget=2.0) is None
