"""Choices of the largest, orders, and writes at what was chosen."""

from __future__ import annotations

from typing import Any

import torch

from .kit import FLOATS, NUMBERS, Case, Draw, cases, gradients


def _apart(d: Draw, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> Any:
    """A tensor without equal elements along ``dim``: nobody promises an order of equal ones."""
    order = torch.rand(shape, generator=d.generator).argsort(dim) - 2
    slot = d.tensor(shape, dtype, plain=True)
    d.bases[slot.number] = order.to(dtype) * (1 if not dtype.is_floating_point else 0.5)
    return slot


@cases("aten.topk")
def _topk(d: Draw) -> Case:
    shape, largest = d.shape(1, 3), d.chance(0.7)
    dim = d.random.randrange(len(shape))
    k, where = d.random.randint(1, shape[dim]), d.one(dim, dim - len(shape))
    form = d.one("plain", "plain", "gradient", "looked up", "masked", "unsorted")
    x = _apart(d, shape, dim, torch.float64 if form != "plain" else d.one(*FLOATS, torch.int64, torch.int32))
    if form == "plain":
        return Case(torch.topk, (x, k, where, largest))
    if form == "unsorted":  # in which order they come is not promised
        return Case(lambda a: torch.topk(a, k, where, largest, sorted=False)[0].sum(where), (x,))
    if form == "masked":  # as many as are left must be asked for, or ties decide
        never = float("-inf" if largest else "inf")
        keep = [n if i != dim else 1 for i, n in enumerate(shape)]
        few = min(k, max(shape[dim] - 1, 1))

        def masked(a: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            at = torch.arange(shape[dim]).view([-1 if i == dim else 1 for i in range(len(shape))])
            return torch.topk(a.masked_fill((at == i) & (i > 0), never), few, where, largest)[1]

        return Case(masked, (x, d.tensor(keep, torch.int64, (0, shape[dim]))))
    weights = d.tensor([k if i == dim else n for i, n in enumerate(shape)])

    def taken(a: torch.Tensor) -> torch.Tensor:
        values, ids = torch.topk(a, k, where, largest)
        return a.square().gather(where, ids) if form == "looked up" else values

    return Case(gradients(taken), (x, weights))


@cases("aten.sort")
def _sort(d: Draw) -> Case:
    """A stable sort keeps equal numbers in order, ascending or not."""
    shape, descending, stable = d.shape(0, 3), d.chance(0.5), d.chance(0.5)
    dim = d.random.randrange(len(shape)) if shape else 0
    where = d.one(dim, dim - max(len(shape), 1))
    if not stable and shape:
        x = _apart(d, shape, dim, d.one(*FLOATS, torch.int64, torch.int32))
        return Case(torch.sort, (x, where, descending))
    dtype = d.one(*NUMBERS, torch.bool)
    function = d.one(torch.sort, torch.argsort)
    return Case(function, (d.tensor(shape, dtype),), {"dim": where, "descending": descending, "stable": True})


@cases("aten.scatter", "aten.index_put")
def _written_at_a_choice(d: Draw, name: str) -> Case:
    """Ids of one choice differ, so no two values meet; those of two choices may."""
    rows, n = d.size(), d.size() + 1
    k, twice = d.random.randint(1, n), d.chance(0.3)
    score, x = _apart(d, (rows, n), 1, torch.float64), d.tensor((rows, n))
    values = d.tensor((rows, k * (1 + twice)))

    def run(s: torch.Tensor, a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ids = torch.topk(s, k).indices
        ids = torch.cat([ids, ids], 1) if twice else ids
        return (
            a.scatter(1, ids, v) if name == "scatter" else a.index_put((torch.arange(rows)[:, None], ids), v)
        )

    return Case(run, (score, x, values), {}, "two may be equal" if twice else None)
