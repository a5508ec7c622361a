"""Random routings: different keys for each token, on each rank, evenly and unevenly spread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .kept_numbers import Numbers

#: How evenly tokens are spread in each draw.
DRAWS = (
    *("even", "uneven", "even", "one choice", "some never", "uneven"),
    *("even", "one choice", "even", "uneven", "even", "some never"),
)
#: So many numbers that a router chooses have each key many times: a draw of each kind tells them apart.
MANY, OF_MANY = 1 << 20, ("even", "uneven", "one choice", "some never")
#: Where a token has at most one of so many keys, one that it has already is drawn again; else all are ranked.
_SPARSE = 4
#: Of how many tickets one is drawn where all keys are as likely.
_TICKETS = 16


@dataclass(frozen=True)
class Choice:
    """Different ones of ``count`` keys along dimension ``dim`` of a tensor of ``shape``.

    Choices of a program are drawn apart: ``number`` counts them.
    """

    shape: tuple[int, ...]
    dim: int
    count: int
    number: int
    kinds: tuple[str, ...]

    def here(self) -> Numbers:
        """On the rank that is traced."""
        return next(self._drawn(0, 1))

    def elsewhere(self, ranks: int) -> list[Numbers]:
        """On as many other ranks, each of which chooses for tokens of its own."""
        return list(self._drawn(1, ranks))

    def _drawn(self, world: int, ranks: int) -> Iterator[Numbers]:
        generator = torch.Generator().manual_seed(1000 * world + self.number)
        others = (*self.shape[: self.dim], *self.shape[self.dim + 1 :])
        tokens, chosen = math.prod(others), self.shape[self.dim]
        drawn = [drawn_keys(kind, ranks, tokens, self.count, chosen, generator) for kind in self.kinds]
        for rank in range(ranks):
            yield tuple(keys[rank].reshape(*others, chosen).movedim(-1, self.dim) for keys in drawn)


def drawn_keys(
    kind: str, ranks: int, tokens: int, count: int, chosen: int, generator: torch.Generator
) -> torch.Tensor:
    """[ranks, tokens, chosen] keys below ``count``; those of one token differ."""
    weights = torch.ones(ranks, count)
    orders = torch.rand(ranks, count, generator=generator).argsort(dim=1)
    if kind == "uneven":
        weights = (1.0 / torch.arange(1, count + 1))[orders]
    if kind == "some never" and count >= 2 * chosen:
        weights = weights.scatter(1, orders[:, : count // 2], 1e-9)
    rows = 1 if kind == "one choice" else tokens
    rank_of = torch.arange(ranks).repeat_interleave(rows)
    keys = _keys(weights, rank_of, chosen, generator).reshape(ranks, rows, chosen)
    return keys.expand(ranks, tokens, chosen).contiguous()


def _keys(
    weights: torch.Tensor, rank_of: torch.Tensor, chosen: int, generator: torch.Generator
) -> torch.Tensor:
    """[rows, chosen] keys, likely as the ``weights`` [ranks, keys] of the row's rank say."""
    ranks, count = weights.shape
    if chosen * _SPARSE > count:
        scores = torch.rand(len(rank_of), count, generator=generator).log() / weights[rank_of]
        return scores.topk(chosen, dim=-1).indices
    tickets = (weights / weights.mean(1, keepdim=True) * _TICKETS).round().long()
    table = torch.arange(count).repeat(ranks).repeat_interleave(tickets.flatten())
    ends = tickets.sum(1).cumsum(0)
    starts = ends - tickets.sum(1)

    def draw(of: torch.Tensor) -> torch.Tensor:
        part = torch.rand(len(of), generator=generator, dtype=torch.float64)
        return table[starts[of] + (part * (ends - starts)[of]).long()]

    keys = draw(rank_of.repeat_interleave(chosen)).reshape(-1, chosen)
    rows = torch.arange(len(keys))
    while len(rows):
        again = _had(keys[rows])
        redrawn = again.any(dim=1)
        rows, again = rows[redrawn], again[redrawn]
        keys[rows] = keys[rows].masked_scatter(again, draw(rank_of[rows][again.nonzero()[:, 0]]))
    return keys


def _had(keys: torch.Tensor) -> torch.Tensor:
    """[rows, chosen]: does the row have this key before?"""
    equal = [(keys[:, :k] == keys[:, k : k + 1]).any(dim=1) for k in range(keys.shape[1])]
    return torch.stack(equal, dim=1)
