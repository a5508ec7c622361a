"""What only a tensor of a trace has, the user's code does not find: of attributes a job knows others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.capture.disguise import disguised, of_traces
from orchestrator.capture.errors import StateError
from orchestrator.capture.tracing import trace

from .asking_tensors import ASKED, asking
from .world import one_layer


@pytest.mark.parametrize("how", ASKED)
def test_what_only_a_tensor_of_a_trace_has_does_not_exist(how: str) -> None:
    """A mark that no parameter had was found on all of them, in a trace alone."""
    drafts = trace(one_layer("asked", asking(how)), None).program.drafts
    assert "31" not in [str(d.attr("value")) for d in drafts if d.name == "constant"]


def test_attributes_of_the_users_own_are_there_however_they_are_set() -> None:
    with FakeTensorMode(), disguised():
        made: Any = nn.Parameter(torch.zeros(2))
        made.mine = 1
        vars(made)["second"] = 2
        vars(made).update(third=3)
        assert (made.mine, made.second, made.third) == (1, 2, 3)
        assert vars(made) == {"mine": 1, "second": 2, "third": 3} and {"mine", "grad"} <= {*dir(made)}
        assert vars(made).pop("mine") == 1 and not hasattr(made, "mine")
        del vars(made)["second"]
        assert not hasattr(made, "second") and type(vars(made)) is dict
        with pytest.raises(AttributeError, match="'Parameter' object has no attribute 'constant'"):
            _ = made.constant


def marked(tensor: Any) -> None:
    tensor.constant = True


@pytest.mark.parametrize("marks", [marked, lambda t: vars(t).update(constant=True)])
def test_a_mark_that_would_change_the_trace_is_refused(marks: Callable[[Any], object]) -> None:
    with (
        FakeTensorMode(),
        disguised(),
        pytest.raises(StateError, match="its own that is named constant"),
    ):
        marks(torch.zeros(2))


def test_after_a_trace_its_tensors_have_what_they_had() -> None:
    with FakeTensorMode():
        made: Any = torch.zeros(2)
    with disguised():
        assert not hasattr(made, "fake_mode")
    assert made.fake_mode is not None and made.constant is None and made.item_memo is None
    assert {"constant", "fake_mode", "fake_device", "_is_param"} <= of_traces() - {"grad", "data"}
