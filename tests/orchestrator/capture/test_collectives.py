"""What collectives leave on every rank, as arithmetic says: the plan's numbers, without real processes.

``test_group.py`` compares the same with gloo, which takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from orchestrator.capture.errors import CaptureError, GroupError, LoweringError, WaitError
from orchestrator.evaluating import interpreter

from .world import talked

#: Rows of each rank, elements of a row.
ROWS, WIDE = 2, 3


def talk(x: torch.Tensor, model: Any) -> Mapping[str, torch.Tensor]:
    rank, tp = dist.get_rank(), model.mesh.get_group("tp")
    total, least, sent, near = x.clone(), x.clone(), x.clone(), x.clone()
    dist.all_reduce(total)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    mean = x.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    dist.broadcast(sent, 2)
    dist.all_reduce(near, group=tp)
    every = torch.empty(4 * ROWS, WIDE)
    dist.all_gather_into_tensor(every, x)
    listed = [torch.empty(ROWS, WIDE) for _ in range(4)]
    dist.all_gather(listed, x, group=model.again)
    mine = torch.empty(WIDE)
    dist.reduce_scatter_tensor(mine, torch.cat([x.reshape(-1), x.reshape(-1) * 2]))
    swapped = torch.empty(4, WIDE)
    dist.all_to_all_single(swapped, torch.cat([x, x * 2]))
    piece = torch.empty(ROWS, WIDE)
    dist.scatter(piece, [x + i for i in range(4)] if rank == 1 else None, src=1)
    there, sums = x * 2, torch.empty(4)
    dist.broadcast(there, group=tp, group_src=1)
    dist.all_gather_into_tensor(sums, x.sum())
    handle = dist.all_reduce(late := x * 5, async_op=True)
    handle.wait()
    half, odd = x.clone(), torch.empty(WIDE)
    dist.all_reduce(half, dist.ReduceOp.PREMUL_SUM(0.5))
    dist.reduce_scatter_tensor(odd, torch.cat([x, x * 2], 1))
    result = dist.all_reduce(x * 7, async_op=True)
    result.wait()
    said = [
        total,
        least,
        mean,
        sent,
        near,
        every,
        torch.stack(listed),
        mine,
        swapped,
        piece,
        there,
        sums,
        late,
        half,
        odd,
        result.result()[0],
    ]
    return {str(i): t for i, t in enumerate(said)}


def expected(rows: list[np.ndarray], rank: int) -> list[np.ndarray]:
    total, fibre = sum(rows), rows[rank // 2 * 2] + rows[rank // 2 * 2 + 1]
    doubled = sum(np.concatenate([x.reshape(-1), x.reshape(-1) * 2]) for x in rows)
    handed = [np.concatenate([x, x * 2])[rank : rank + 1] for x in rows]
    return [
        total,
        np.minimum.reduce(rows),
        total / 4,
        rows[2],
        fibre,
        np.concatenate(rows),
        np.stack(rows),
        doubled.reshape(4, WIDE)[rank],
        np.concatenate(handed),
        rows[1] + rank,
        2 * rows[rank // 2 * 2 + 1],
        np.array([x.sum() for x in rows]),
        5 * total,
        total / 2,
        (sum(np.concatenate([x, x * 2], 1) for x in rows)).reshape(4, WIDE)[rank],
        7 * total,
    ]


def test_every_rank_has_what_arithmetic_says() -> None:
    plan = talked(talk)
    rng = np.random.default_rng(0)
    inputs = interpreter.scatter_inputs(plan, interpreter.random_inputs(plan, rng), rng)
    rows = [given["batch.x"] for given in inputs]
    for rank, outputs in enumerate(interpreter.run_plan(plan, inputs)):
        want = np.concatenate([part.reshape(-1) for part in expected(rows, rank)])
        np.testing.assert_allclose(outputs["y"][: want.size], want, rtol=1e-6, err_msg=f"rank {rank}")


def test_two_communicators_over_the_same_ranks_are_two() -> None:
    """Merged, ranks that use them in another order would look alike."""

    def crossed(x: torch.Tensor, model: Any) -> Mapping[str, torch.Tensor]:
        first, second = x.clone(), x * 2
        dist.all_reduce(first, group=model.again)
        dist.all_reduce(second)
        return {"first": first, "second": second}

    plan = talked(crossed)
    meetings = [op.attrs["seq"] for op in plan.classes[0].program.ops if op.name == "all_reduce"]
    assert len(set(meetings)) == 2


def test_a_number_that_went_through_a_collective_is_known_no_longer() -> None:
    """It is the sum over the ranks: 3 was on every rank before."""

    def known(x: torch.Tensor, model: Any) -> Mapping[str, torch.Tensor]:
        count = torch.tensor(3.0)
        dist.all_reduce(count)
        return {"x": x * count.item()}

    with pytest.raises(CaptureError, match="item"):
        talked(known)


@pytest.mark.parametrize("first", [True, False], ids=["the first half", "the second half"])
def test_only_the_part_of_a_buffer_that_is_under_way_has_to_be_waited_for(first: bool) -> None:
    def early(x: torch.Tensor, model: Any, other: bool) -> Mapping[str, torch.Tensor]:
        halves = torch.cat([x, x]).chunk(2)
        busy, idle = halves if first else halves[::-1]
        work = dist.all_reduce(busy, async_op=True)
        used = (idle if other else busy) * 2
        work.wait()
        return {"used": used, "busy": busy.clone()}

    talked(lambda x, model: early(x, model, True))
    with pytest.raises(WaitError):
        talked(lambda x, model: early(x, model, False))


def test_a_message_that_nobody_receives_is_refused() -> None:
    """A send reaches no output on its own rank, and is not for that reason of no concern."""

    def sends(x: torch.Tensor, model: Any) -> Mapping[str, torch.Tensor]:
        if dist.get_rank() == 0:
            dist.send(x * 2, 1)
        return {"x": x.clone()}

    with pytest.raises(CaptureError, match="rank 0 sends 1 message to rank 1 on dp_tp") as caught:
        talked(sends)
    assert caught.value.rank == 0


def bytes_summed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    counts = torch.ones(4, dtype=dtype)
    dist.all_reduce(counts)
    return counts


def bytes_averaged(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    counts = torch.ones(4, dtype=dtype)
    dist.all_reduce(counts, dist.ReduceOp.AVG)
    return counts


def test_an_average_of_whole_numbers_is_refused() -> None:
    """What is left over is rounded in a way of the backend's own."""
    with pytest.raises(
        LoweringError, match=r"an average of i64\[4\]: how whole numbers are rounded"
    ) as caught:
        talked(lambda x, _: {"y": bytes_averaged(x, torch.int64).float()})
    assert "ReduceOp.SUM" in (caught.value.instead or "")


def bytes_scattered(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    counts, mine = torch.ones(4, dtype=dtype), torch.empty(1, dtype=dtype)
    dist.reduce_scatter_tensor(mine, counts)
    return mine


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8])
@pytest.mark.parametrize("act", [bytes_summed, bytes_averaged, bytes_scattered])
def test_a_sum_of_small_integers_over_ranks_wraps_and_is_refused(act: Any, dtype: torch.dtype) -> None:
    """200 + 200 is 144 in bytes, and was proved to be 400."""
    with pytest.raises(LoweringError, match="by a sum, which wraps around") as caught:
        talked(lambda x, _: {"y": act(x, dtype).float()})
    assert caught.value.frame is not None and caught.value.frame[2] == act.__name__
    assert "torch.int64" in (caught.value.instead or "")


def test_the_largest_of_small_integers_is_no_sum() -> None:
    def largest(x: torch.Tensor, _: Any) -> dict[str, torch.Tensor]:
        counts = torch.ones(4, dtype=torch.uint8)
        dist.all_reduce(counts, dist.ReduceOp.MAX)
        return {"y": counts.float()}

    assert talked(largest).classes


def test_truth_values_in_a_collective_are_refused_at_their_line() -> None:
    def agreed(x: torch.Tensor, _: Any) -> dict[str, torch.Tensor]:
        dist.all_reduce(found := x > 0)
        return {"y": found.float()}

    with pytest.raises(LoweringError, match="collectives of a plan carry numbers") as caught:
        talked(agreed)
    assert caught.value.frame is not None and caught.value.frame[2] == "agreed"
    assert "torch.int32" in (caught.value.instead or "")


def exchanged_in_place(x: torch.Tensor) -> None:
    dist.all_to_all_single(x, x)


def listed_in_place(x: torch.Tensor) -> None:
    dist.all_to_all(list(x.reshape(4, -1)), list(x.reshape(4, -1)))


def gathered_from_the_front(x: torch.Tensor) -> None:
    dist.all_gather_into_tensor(x, x[:1])


def scattered_to_the_front(x: torch.Tensor) -> None:
    dist.reduce_scatter_tensor(x[:1], x)


def handed_out_elsewhere(x: torch.Tensor) -> None:
    dist.scatter(x[1], list(x) if dist.get_rank() == 0 else None, src=0)


def collected_elsewhere(x: torch.Tensor) -> None:
    dist.gather(x[1], list(x) if dist.get_rank() == 0 else None, dst=0)


@pytest.mark.parametrize(
    "act",
    [
        exchanged_in_place,
        listed_in_place,
        gathered_from_the_front,
        scattered_to_the_front,
        handed_out_elsewhere,
        collected_elsewhere,
    ],
)
def test_results_in_memory_of_operands_are_refused(act: Any) -> None:
    """gloo exchanges in place what it has already overwritten: the plan was VALID, the gradients were not."""

    def run(x: torch.Tensor, _: Any) -> dict[str, torch.Tensor]:
        act(wide := torch.cat([x, x * 2]))
        return {"y": wide}

    with pytest.raises(GroupError, match="into memory that it reads") as caught:
        talked(run)
    assert caught.value.frame is not None and caught.value.frame[2] == act.__name__


def test_a_ranks_own_chunk_may_be_in_place() -> None:
    def run(x: torch.Tensor, _: Any) -> dict[str, torch.Tensor]:
        wide, rank = torch.cat([x, x * 2]), dist.get_rank()
        own = wide[rank : rank + 1]
        dist.reduce_scatter_tensor(own, wide)
        dist.all_gather_into_tensor(wide, own)
        return {"y": wide}

    assert talked(run).classes
