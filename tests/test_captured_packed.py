"""Experts with real dispatch as PyTorch runs them: captured and PROVED, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import trainverify
from certificates.plan.plan import Plan
from orchestrator.capture import capture
from orchestrator.capture.errors import CaptureError
from tests.captured_packed import (
    REFUSED,
    RIGHT,
    RIGHT_ON_BOTH,
    SENT_REFUSED,
    SENT_REFUTED,
    SENT_RIGHT,
    definition,
)
from tests.captured_stack import definition as stack
from tests.test_experts import as_it_runs

pytestmark = pytest.mark.slow
#: Each replica has the whole layer.
ALONE = {"ep": 1}


def proved(plan: Plan) -> None:
    verdict = trainverify.verify(plan, jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report


def packed_ops(plan: Plan) -> set[str]:
    return {op.name for cls in plan.classes for op in cls.program.written}


def test_rows_sorted_by_expert_are_captured_and_proved() -> None:
    plan = capture(definition(**ALONE), jobs=1)
    assert packed_ops(plan) >= {"sort_rows", "pack", "unpack", "ragged_dot", "ragged_outer"}
    assert plan.specification.rows is not None
    proved(plan)


def test_rows_sent_to_their_experts_are_captured_and_proved() -> None:
    """And what was captured computes the same when rows are sorted, sent and cut by counts."""
    plan = capture(definition(), jobs=1)
    assert packed_ops(plan) >= {"ship_rows", "regroup_rows", "ship", "ship_back", "regroup", "ungroup"}
    assert as_it_runs(plan, 0) == set()
    proved(plan)


def _masked(self: Any, x: Tensor) -> Tensor:
    """All experts on all tokens, with gates that are zero for those not chosen."""
    scores, ids = self.route(x)
    gates = torch.zeros(len(x), self.router.out_features).scatter(1, ids, scores)
    inner = F.silu(torch.einsum("td,edh->teh", x, self.gate)) * torch.einsum("td,edh->teh", x, self.up)
    return x + torch.einsum("te,ted->td", gates, torch.einsum("teh,ehd->ted", inner, self.down))


def test_the_single_device_may_have_all_experts_see_all_tokens() -> None:
    proved(capture(definition(single={"forward": _masked}), jobs=1))


def test_more_ranks_experts_and_choices() -> None:
    sizes = {"dp": 1, "ep": 4, "experts": 8, "chosen": 3, "tokens": 20}
    plan = capture(definition(**sizes), jobs=1)
    assert as_it_runs(plan, 0) == set()
    proved(plan)


def test_more_layers_than_one_are_captured_and_proved() -> None:
    """Each has as many slots as the others and not as many rows: the positions of its rows are its own."""
    proved(capture(stack(layers=2), jobs=1))


@pytest.mark.parametrize("way", RIGHT)
def test_ranks_may_sort_and_put_back_in_another_way(way: str) -> None:
    proved(capture(definition(RIGHT[way], **ALONE), jobs=1))


@pytest.mark.parametrize("way", SENT_RIGHT)
def test_ranks_may_send_in_another_way(way: str) -> None:
    proved(capture(definition(SENT_RIGHT[way]), jobs=1))


@pytest.mark.parametrize("way", REFUSED)
def test_what_rests_on_no_order_is_refused_by_name(way: str) -> None:
    methods, words = REFUSED[way]
    with pytest.raises(CaptureError, match=words):
        capture(definition(methods, **ALONE), jobs=1)


@pytest.mark.parametrize("way", SENT_REFUSED)
def test_what_is_sent_by_no_counts_is_refused_by_name(way: str) -> None:
    methods, words = SENT_REFUSED[way]
    with pytest.raises(CaptureError, match=words):
        capture(definition(methods), jobs=1)


@pytest.mark.parametrize("way", SENT_REFUTED)
def test_a_wrong_layer_is_refuted_by_numbers(way: str) -> None:
    methods, output = SENT_REFUTED[way]
    verdict = trainverify.verify(capture(definition(methods), jobs=1), jobs=1)
    assert verdict.kind is trainverify.Kind.REFUTED, verdict.report
    assert output in verdict.report


@pytest.mark.parametrize("way", RIGHT_ON_BOTH)
def test_both_sides_may_have_another_layer(way: str) -> None:
    methods = RIGHT_ON_BOTH[way]
    proved(capture(definition(methods, single=methods, **ALONE), jobs=1))


def test_a_router_whose_scores_are_sent_with_the_rows_is_proved() -> None:
    """A sum over keys within a sum over columns, and the other way round."""
    methods = RIGHT_ON_BOTH["scores before the experts"]
    proved(capture(definition(methods, single=methods), jobs=1))


Step = Callable[[nn.Module, torch.optim.Optimizer, Mapping[str, Tensor]], dict[str, Tensor]]


def in_microbatches(share: int = 2, again: bool = False) -> Step:
    """Ranks take their tokens in two halves, each with orders of its own, and add up the gradients.

    Each loss is divided by ``share``; with ``again`` the second half has the tokens of the first.
    """

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        if not hasattr(model, "dp"):
            total = F.mse_loss(model(batch["x"]), batch["y"])
            total.backward()
        else:
            halves = list(zip(batch["x"].chunk(2), batch["y"].chunk(2), strict=True))
            if again:
                halves[1] = halves[0][0], halves[1][1]
            total = torch.zeros(())
            for x, y in halves:
                loss = F.mse_loss(model(x), y) / share
                loss.backward()
                total = total + loss.detach()
            for name, parameter in model.named_parameters():
                dist.all_reduce(parameter.grad, group=model.dp)
                if name.startswith("router"):
                    dist.all_reduce(parameter.grad, group=model.ep)
                parameter.grad /= model.dp.size() * model.ep.size()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    return step


def test_each_microbatch_has_orders_of_its_own() -> None:
    plan = capture(replace(definition(), step=in_microbatches()), jobs=1)
    assert plan.mesh.axes["mb"] == 2, plan.provenance.get("microbatches")
    assert packed_ops(plan) >= {"ship_rows", "regroup_rows", "ship", "ship_back"}
    assert as_it_runs(plan, 0) == set()
    proved(plan)


@pytest.mark.parametrize("wrong", [{"share": 1}, {"again": True}])
def test_microbatches_that_are_not_the_batch_are_refuted(wrong: dict[str, Any]) -> None:
    verdict = trainverify.verify(
        capture(replace(definition(), step=in_microbatches(**wrong)), jobs=1), jobs=1
    )
    assert verdict.kind is trainverify.Kind.REFUTED, verdict.report
