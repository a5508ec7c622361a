"""Collectives over ranks that are no fibre of the mesh: what arithmetic says, what gloo does, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from certificates.plan.ops import MESSAGES
from certificates.plan.plan import Plan
from certificates.plan.types import TensorType
from orchestrator.capture import CaptureError, Definition, capture
from orchestrator.capture.builder import Builder
from orchestrator.capture.lowering.members import MOST, apart, reduced
from orchestrator.capture.lowering.table import Context
from orchestrator.capture.recorder import GroupRef
from orchestrator.evaluating import interpreter

from .world import Member, Talk, run_ranks, talking

HERE = (0, 1, 3)


class Odd(Member):
    """Three of four ranks have a communicator of their own; ranks count it in another order than the mesh."""

    def __init__(self, model: Any, mesh: Any) -> None:
        super().__init__(model, mesh)
        self.odd = dist.new_group(list(HERE))


def definition(talk: Talk) -> Definition:
    return replace(talking(talk), parallelize=Odd)


def captured(talk: Talk) -> Plan:
    return capture(definition(talk), jobs=1)


def inside() -> bool:
    return dist.get_rank() in HERE


def talk(x: torch.Tensor, model: Any) -> Mapping[str, torch.Tensor]:
    total, least, most, sent = x * 1, x * 2, x * 3, x * 4
    every, listed = torch.zeros(6, 3), [torch.zeros(2, 3) for _ in HERE]
    if inside():
        dist.all_reduce(total, group=model.odd)
        dist.all_reduce(least, dist.ReduceOp.MIN, group=model.odd)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=model.odd)
        dist.broadcast(sent, 3, group=model.odd)
        dist.all_gather_into_tensor(every, x, group=model.odd)
        dist.all_gather(listed, x * 5, group=model.odd)
    results = {"total": total, "least": least, "most": most, "sent": sent}
    return results | {"every": every, "listed": torch.cat(listed)}


def inputs_of(plan: Plan) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    found: list[dict[str, Any]] = interpreter.scatter_inputs(plan, interpreter.random_inputs(plan, rng), rng)
    return found


def test_members_have_what_arithmetic_says_and_others_what_they_had() -> None:
    plan = captured(talk)
    inputs = inputs_of(plan)
    rows = [given["batch.x"] for given in inputs]
    members = [rows[r] for r in HERE]
    for rank, outputs in enumerate(interpreter.run_plan(plan, inputs)):
        x = rows[rank]
        want = [x, 2 * x, 3 * x, 4 * x, np.zeros((12, 3))]
        if rank in HERE:
            want = [
                sum(members),
                2 * np.minimum.reduce(members),
                3 * np.maximum.reduce(members),
                4 * rows[3],
                np.concatenate(members + [5 * m for m in members]),
            ]
        flat = np.concatenate([w.reshape(-1) for w in want])
        np.testing.assert_allclose(outputs["y"][: flat.size], flat, rtol=1e-6, err_msg=f"rank {rank}")


def test_a_mean_is_a_sum_and_a_factor() -> None:
    def mean(x: torch.Tensor, model: Any) -> Mapping[str, torch.Tensor]:
        mean = x.clone()
        if inside():
            dist.all_reduce(mean, dist.ReduceOp.AVG, group=model.odd)
        return {"mean": mean}

    plan = captured(mean)
    inputs = inputs_of(plan)
    want = sum(inputs[r]["batch.x"] for r in HERE) / 3
    found = interpreter.run_plan(plan, inputs)[1]["y"][: want.size]
    np.testing.assert_allclose(found, want.reshape(-1), rtol=1e-6)


@pytest.mark.slow
def test_gloo_does_the_same(tmp_path: Path) -> None:
    made = definition(talk)
    plan = capture(made, jobs=1)
    inputs = inputs_of(plan)
    real = run_ranks(made, inputs, tmp_path)
    for rank, outputs in enumerate(interpreter.run_plan(plan, inputs)):
        np.testing.assert_allclose(
            outputs["y"], real[rank]["y"], rtol=1e-5, atol=1e-6, err_msg=f"rank {rank}"
        )


def refusal(act: Any) -> CaptureError:
    def acts(x: torch.Tensor, model: Any) -> Mapping[str, torch.Tensor]:
        used = act(x, model) if inside() else None
        return {"x": x.clone() if used is None else x + used.sum()}

    with pytest.raises(CaptureError) as caught:
        captured(acts)
    return caught.value


def test_members_that_call_different_collectives_are_refused() -> None:
    """Each would wait for the other, or take its bytes for something else."""

    def two(x: torch.Tensor, model: Any) -> None:
        kind = dist.ReduceOp.MAX if dist.get_rank() == 3 else dist.ReduceOp.SUM
        dist.all_reduce(x, kind, group=model.odd)

    told = str(refusal(two))
    assert "what is sent in all_reduce by add is received in all_reduce by max" in told, told
    assert "test_members.py" in told and "in two" in told


def test_a_member_that_sends_by_hand_where_another_reduces_is_refused() -> None:
    def by_hand(x: torch.Tensor, model: Any) -> None:
        if dist.get_rank() != 3:
            dist.all_reduce(x, group=model.odd)
            return
        for other in (0, 1):
            dist.send(x, other, group=model.odd)
        for other in (0, 1):
            dist.recv(x, other, group=model.odd)

    told = str(refusal(by_hand))
    assert "with tag 0" in told and "in all_reduce by add" in told, told


def test_a_member_that_stays_away_is_refused() -> None:
    def two_of_three(x: torch.Tensor, model: Any) -> None:
        if dist.get_rank() != 1:
            dist.all_reduce(x, group=model.odd)

    assert "which receives none" in str(refusal(two_of_three))


def test_members_that_name_two_roots_are_refused() -> None:
    def roots(x: torch.Tensor, model: Any) -> None:
        dist.broadcast(x, 0 if dist.get_rank() == 0 else 3, group=model.odd)

    assert "message" in str(refusal(roots))


def truth(x: torch.Tensor, model: Any) -> torch.Tensor:
    dist.all_reduce(flags := x > 0, group=model.odd)
    return flags


def truth_of_one(x: torch.Tensor, model: Any) -> torch.Tensor:
    dist.broadcast(flags := x > 0, 0, group=model.odd)
    return flags


def bytes_summed(x: torch.Tensor, model: Any) -> torch.Tensor:
    dist.all_reduce(counts := torch.ones(2, dtype=torch.uint8), group=model.odd)
    return counts


def scattered(x: torch.Tensor, model: Any) -> torch.Tensor:
    dist.reduce_scatter_tensor(out := torch.empty(3), torch.ones(9), group=model.odd)
    return out


def to_one(x: torch.Tensor, model: Any) -> torch.Tensor:
    pieces = [torch.empty_like(x) for _ in HERE] if dist.get_rank() == 0 else None
    dist.gather(x, pieces, 0, group=model.odd)
    return x if pieces is None else torch.cat(pieces)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (truth, "collectives of a plan carry numbers"),
        (truth_of_one, "collectives of a plan carry numbers"),
        (bytes_summed, "by a sum, which wraps around"),
        (scattered, "reduce_scatter over the group [0, 1, 3], which is no fibre of mesh axes"),
        (to_one, "all_gather over the group [0, 1, 3], which is no fibre of mesh axes"),
    ],
)
def test_what_has_no_place_in_messages_is_refused(act: Any, words: str) -> None:
    assert words in str(refusal(act))


def test_messages_are_for_few_members_of_no_fibre_without_a_root() -> None:
    """Their number grows with the square of the members; a root would not be compared."""

    def apart_of(size: int, axes: tuple[str, ...] = (), rank: int | None = 1, root: bool = False) -> bool:
        c = Context(Builder(), lambda _group: axes, rank=rank)
        group = GroupRef(tuple(range(size)))
        if root:
            with c.rooted("gather", 0):
                return apart(c, group)
        return apart(c, group)

    assert apart_of(2) and apart_of(MOST) and not apart_of(MOST + 1) and not apart_of(1)
    assert not apart_of(2, ("dp",)) and not apart_of(2, rank=5) and not apart_of(2, rank=None)
    assert not apart_of(2, root=True)


def test_the_messages_of_a_collective_are_one_batch_of_their_own() -> None:
    """Each would wait for the other's receive if it stood behind its own send."""

    c = Context(Builder(), lambda _group: (), rank=0)
    x = c.b.input("x", TensorType("f32", (2,)))
    for _ in range(2):
        x = reduced(c, x, "add", GroupRef(HERE))
    ends = [d for d in c.b.drafts.values() if d.name in MESSAGES]
    assert [d.attr("batch") for d in ends] == [0] * 4 + [1] * 4
    assert [(d.name, d.attr("number")) for d in ends[::2]] == [
        ("send", 0),
        ("recv", 0),
        ("send", 1),
        ("recv", 1),
    ]
