"""Warnings are kept, raised and shown as the user's filters say, and no filter of ours is among them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.capture.processes import quiet, survey
from orchestrator.capture.warned import unshown

from .asking_processes import asking, ignores, keeps_of_ops, shows_by_itself
from .world import one_layer


@pytest.mark.parametrize("asks", [keeps_of_ops, shows_by_itself])
def test_who_keeps_the_warnings_of_ops_is_refused(asks: Callable[[Any], bool]) -> None:
    (problem,) = survey(one_layer("asked", asking(asks)), [None], 1)
    assert "keeps the warnings of PyTorch's ops" in str(problem)
    assert "t.var()" in str(problem)


def test_who_ignores_them_is_not() -> None:
    assert survey(one_layer("asked", asking(ignores)), [None, 1], 1) == []


def test_words_of_pytorch_on_deprecations_and_fakes_are_not_shown() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        for repeated in (False, True):
            with quiet(repeated):
                assert list(warnings.filters) == before
                for kind in (UserWarning, FutureWarning, DeprecationWarning):
                    warnings.warn(f"by {kind.__name__}", kind, stacklevel=1)
                warnings.warn("a FakeTensor", stacklevel=1)
    assert [str(w.message) for w in found] == ["by UserWarning"]


def test_what_is_dropped_is_shown_again_afterwards() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with unshown(lambda _: True):
            warnings.warn("unshown", stacklevel=1)
        warnings.warn("shown", stacklevel=1)
    assert [str(w.message) for w in found] == ["shown"]
