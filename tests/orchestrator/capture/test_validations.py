"""A question of which one answer only raises is answered, unless somebody goes on after the exception."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from orchestrator.capture import capture
from orchestrator.capture.errors import CaptureError
from orchestrator.capture.processes import survey
from orchestrator.capture.tracing import trace
from orchestrator.capture.validations import validated
from trainverify import Kind, verify

from .validating_steps import GO_ON, ONLY_RAISE, validating


def unchecked(_: object) -> None:
    """What a step does that looks at nothing."""


@pytest.mark.parametrize("name", ONLY_RAISE)
def test_a_check_that_only_raises_is_captured(name: str) -> None:
    """``F.gaussian_nll_loss`` was refused, and every loss that is asserted to be finite."""
    for rank in (None, 0):
        want = [d.name for d in trace(validating(unchecked), rank).program.drafts]
        assert [d.name for d in trace(validating(ONLY_RAISE[name]), rank).program.drafts] == want


@pytest.mark.parametrize("name", GO_ON)
def test_what_goes_on_with_either_answer_is_refused(name: str) -> None:
    (error,) = survey(validating(GO_ON[name]), [0], 1)
    (problem, *_) = error.problems()
    assert "a trace has no values" in problem.message and problem.frame is not None
    assert problem.frame[0].endswith("validating_steps.py") and isinstance(error, CaptureError)


@pytest.mark.parametrize(("factor", "kind"), [(1.0, Kind.PROVED), (2.0, Kind.REFUTED)])
def test_a_step_that_checks_its_loss_is_proved_if_it_is_right(factor: float, kind: Kind) -> None:
    plan = capture(validating(ONLY_RAISE["raised"], factor), jobs=1)
    assert verify(plan, jobs=1).kind is kind


def test_a_value_that_is_known_is_the_answer() -> None:
    def check(tensor: torch.Tensor) -> str:
        if tensor:
            raise ValueError
        return "passed"

    with FakeTensorMode(), validated():
        assert check(torch.tensor(False)) == "passed"
        with pytest.raises(ValueError):
            check(torch.tensor(True))
        with pytest.raises(DataDependentOutputException):  # pytest handles what is raised here
            check(torch.zeros(()))
        with pytest.raises(RuntimeError, match="more than one value"):
            check(torch.zeros(2))
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        check(torch.zeros(()))
