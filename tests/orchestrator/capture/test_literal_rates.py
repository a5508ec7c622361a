"""A learning rate that one side alone reads is the number which the optimizer was made with."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from certificates.plan.types import TensorType
from orchestrator.capture import Batch, Definition
from orchestrator.capture.assemble import capture
from orchestrator.capture.builder import Draft
from orchestrator.capture.literal_rates import bound_rates
from orchestrator.capture.lowering import RankProgram

SCALAR = TensorType("f32", ())


def program(*rates: str, unread: Sequence[str] = ()) -> RankProgram:
    """Takes these rates from ``w``, one after the other; ``unread`` are inputs that no op takes."""
    names = ("params.w", *rates)
    drafts = [
        Draft(f"%{i}", "subtract", (f"%{i - 1}" if i else "params.w", rate), SCALAR, (), None)
        for i, rate in enumerate(rates)
    ]
    left = drafts[-1].out if drafts else "params.w"
    return RankProgram(
        {n: SCALAR for n in (*names, *unread)}, tuple(drafts), {"params.w": left}, frozenset(), ()
    )


def test_what_no_rank_reads_is_a_constant() -> None:
    ranks = program(unread=("hyper.lr",))
    (single, one, other), told = bound_rates(program("hyper.lr"), [ranks, ranks], [{"hyper.lr": 0.1}] * 3)
    assert list(single.inputs) == list(one.inputs) == list(other.inputs) == ["params.w"]
    assert [(d.name, d.out) for d in single.drafts] == [("constant", "hyper.lr"), ("subtract", "%0")]
    assert single.drafts[0].attr("value") == "1/10" and single.drafts[0].type == SCALAR
    assert told == ("hyper.lr is 0.1: no rank reads it, so nothing is said of other learning rates",)


def test_so_is_what_the_single_device_does_not_read() -> None:
    (single, one), told = bound_rates(program(), [program("hyper.lr")], [{}, {"hyper.lr": 0.5}])
    assert single == program() and one.drafts[0].attr("value") == "1/2"
    assert told == (
        "hyper.lr is 0.5: the single device does not read it, so nothing is said of other learning rates",
    )


def test_a_rate_that_any_rank_reads_too_stays_an_input() -> None:
    given = program("hyper.lr"), [program(unread=("hyper.lr",)), program("hyper.lr")]
    found, told = bound_rates(*given, [{"hyper.lr": 0.1}] * 3)
    assert found == [given[0], *given[1]] and told == ()


def test_of_two_groups_each_is_asked_for_itself() -> None:
    made = [{"hyper.lr": 0.1, "hyper.lr.1": 0.2}] * 2
    (single, one), told = bound_rates(program("hyper.lr", "hyper.lr.1"), [program("hyper.lr")], made)
    assert list(single.inputs) == ["params.w", "hyper.lr"] == list(one.inputs)
    assert [said.partition(":")[0] for said in told] == ["hyper.lr.1 is 0.2"]


@pytest.mark.parametrize(
    "made", [[{}, {}], [{"hyper.lr": 0.1}, {"hyper.lr": 0.2}], [{"hyper.lr": float("nan")}] * 2]
)
def test_a_rate_without_one_number_stays_an_input(made: list[dict[str, float]]) -> None:
    found, told = bound_rates(program("hyper.lr"), [program()], made)
    assert found == [program("hyper.lr"), program()] and told == ()


def test_what_is_no_rate_stays_an_input() -> None:
    found, told = bound_rates(program("batch.x"), [program()], [{"batch.x": 0.1}] * 2)
    assert found == [program("batch.x"), program()] and told == ()


def test_a_rate_that_a_step_gives_back_is_read() -> None:
    shown = RankProgram({"hyper.lr": SCALAR}, (), {"rate": "hyper.lr"}, frozenset(), ())
    found, told = bound_rates(program("hyper.lr"), [shown], [{"hyper.lr": 0.1}] * 2)
    assert found == [program("hyper.lr"), shown] and told == ()


def by_hand(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]
) -> dict[str, Tensor]:
    loss = model(batch["x"]).square().sum()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(0.1 * p.grad)
    model.zero_grad()
    return {"loss": loss}


def by_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]
) -> dict[str, Tensor]:
    loss = model(batch["x"]).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


@pytest.mark.parametrize("single, ranks", [(by_optimizer, by_hand), (by_hand, by_optimizer)])
def test_a_plan_says_of_which_rate_it_speaks(single: object, ranks: object) -> None:
    definition = Definition(
        name="rates",
        mesh={"dp": 1},
        build=functools.partial(nn.Linear, 3, 1),
        parallelize=lambda model, mesh: model,
        optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1),
        step=single,  # type: ignore[arg-type]
        parallel_step=ranks,  # type: ignore[arg-type]
        batch={"x": Batch((2, 3))},
    )
    plan = capture(definition, jobs=1)
    assert "hyper.lr" not in plan.specification.inputs and "hyper.lr" not in plan.given
    (said,) = plan.provenance["assumed"]  # type: ignore[misc]
    assert str(said).startswith("hyper.lr is 0.1: ")
