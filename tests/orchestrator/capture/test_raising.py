"""No step goes on after an exception of a kernel: a trace runs none, and takes the other way."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from orchestrator.capture import capture
from orchestrator.capture.processes import survey
from orchestrator.capture.tracing import trace
from trainverify import Kind, verify

from .validating_steps import validating

SAID = "the step goes on where a kernel has raised an exception"


def no_such_label(loss: Any) -> None:
    try:
        F.cross_entropy(loss.expand(2, 2), torch.tensor([7, 8]))
    except IndexError:
        loss.zero_()


def singular(loss: Any) -> None:
    with contextlib.suppress(RuntimeError):
        torch.linalg.inv(loss.expand(2, 2))


def in_a_backward_pass(loss: Any) -> None:
    row = torch.ones(2, requires_grad=True)
    try:
        row.square().sum().backward()
    except RuntimeError:
        loss.zero_()


def gone(loss: Any) -> None:
    try:
        dist.all_reduce(loss)
    except dist.DistBackendError:
        loss.zero_()


def warned(loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            loss.expand(1).std()
        except UserWarning:
            loss.zero_()


def ends(loss: Any) -> None:
    try:
        F.embedding(torch.tensor([0]), loss.expand(2, 2))
    except IndexError as error:
        raise ValueError("no such row") from error
    except Exception:
        print("failed")
        raise
    finally:
        print()


def has_none(loss: Any) -> None:
    try:
        rows, _ = loss.shape
    except ValueError:
        rows = loss.exp().numel()
    try:
        loss.view(1, rows).squeeze()
    except RuntimeError:
        print("a copy")
    try:
        {"norm": loss.norm()}["loss"].backward()
    except KeyError:
        print("none")


def raises_in_a_trace_too(loss: Any) -> None:
    try:
        loss.expand(3) + loss.expand(2)
    except RuntimeError:
        print("no sum")


@pytest.mark.parametrize("check", [no_such_label, singular, in_a_backward_pass, gone, warned])
def test_who_goes_on_after_a_kernel_has_raised_is_refused(check: Callable[[Any], None]) -> None:
    """The ranks left out what followed in a job, and the plan was proved."""
    (error,) = survey(validating(check), [0], 1)
    (problem, *_) = error.problems()
    assert problem.message.startswith(SAID) and problem.frame is not None
    assert problem.frame[0] == __file__ and "so that a job ends" in str(problem)


@pytest.mark.parametrize("check", [ends, has_none, raises_in_a_trace_too])
def test_who_ends_or_runs_no_kernel_is_captured(check: Callable[[Any], None]) -> None:
    assert trace(validating(check), 0).program.outputs.keys() == {"loss", "params.weight"}


@pytest.mark.parametrize(("factor", "kind"), [(1.0, Kind.PROVED), (2.0, Kind.REFUTED)])
def test_a_step_that_raises_again_is_proved_if_it_is_right(factor: float, kind: Kind) -> None:
    assert verify(capture(validating(ends, factor), jobs=1), jobs=1).kind is kind


def test_who_asks_once_what_kernels_can_is_refused() -> None:
    """Nothing of it is left in the steps that are recorded."""
    able: list[bool] = []

    def once(loss: Any) -> None:
        if not able:
            try:
                torch.linalg.cholesky(loss.detach().expand(1, 1))
                able.append(True)
            except Exception:
                able.append(False)
        loss.mul_(2 if able[0] else 3)

    (error,) = survey(validating(once), [0], 1)
    assert str(error.message).startswith(SAID) and "the code catches" not in error.message
