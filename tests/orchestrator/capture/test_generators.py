"""Real numbers of a generator of which a trace has made no weights, though a job has, are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.capture.errors import StateError
from orchestrator.capture.generators import Drawing


def weights(drawing: Drawing) -> None:
    with FakeTensorMode(), drawing:
        nn.Linear(2, 2)


def drawn() -> list[int]:
    return [int(x) for x in torch.randperm(50)]


def test_what_is_drawn_behind_weights_is_refused() -> None:
    """Rank 0 alone initialised, and the others were given another permutation in a job: that was proved."""
    drawing = Drawing()
    weights(drawing)
    with pytest.raises(StateError, match="weights were made before") as caught, drawing:
        drawn()
    assert "torch.manual_seed" in (caught.value.instead or "")
    assert caught.value.frame is not None and caught.value.frame[2] == "drawn"


def test_so_is_what_is_drawn_behind_real_weights_or_from_a_copy() -> None:
    drawing = Drawing()
    weights(drawing)
    copy = torch.Generator()
    copy.set_state(torch.get_rng_state())
    with drawing:
        nn.Linear(2, 2)
        with pytest.raises(StateError):
            drawn()
        with pytest.raises(StateError):
            torch.randperm(2, generator=copy)


def _seeded_again() -> None:
    torch.manual_seed(0)
    torch.randperm(2)


@pytest.mark.parametrize(
    "draw",
    [
        _seeded_again,
        lambda: torch.randperm(2, generator=torch.Generator().manual_seed(1)),
        lambda: torch.rand(2, device="meta"),
        lambda: nn.Linear(2, 2),
    ],
)
def test_a_seed_makes_it_known_again(draw: Callable[[], object]) -> None:
    drawing = Drawing()
    torch.manual_seed(0)
    weights(drawing)
    with drawing:
        draw()


def test_a_generator_of_which_no_weights_are_made_is_known() -> None:
    torch.manual_seed(0)
    expected = drawn()
    torch.manual_seed(0)
    drawing = Drawing()
    with FakeTensorMode(), drawing:
        nn.Linear(2, 2, device="meta")
        torch.zeros(2)
    with drawing:
        assert drawn() == expected
