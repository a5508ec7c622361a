"""Rows packed in the order of their keys, in many ways, against what PyTorch computes with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .choices import _apart
from .kit import Case, Draw, cases, gradients


def _ordered(keys: Tensor, way: str) -> Tensor:
    ways = {
        "argsort": lambda: torch.argsort(keys),
        "stable": lambda: torch.argsort(keys, stable=True),
        "sort": lambda: keys.sort(stable=True)[1],
    }
    return ways[way]()


def _ends(keys: Tensor, count: int, way: str) -> Tensor:
    ways = {
        "bincount": lambda: torch.bincount(keys, minlength=count),
        "one hot": lambda: torch.nn.functional.one_hot(keys, count).sum(0),
        "histogram": lambda: torch.histc(keys.float(), count, 0, count).to(torch.int32),
        "closed histogram": lambda: torch.histc(keys.float(), count, 0, count - 1).to(torch.int32),
    }
    return torch.cumsum(ways[way](), 0).to(torch.int32)


def _back(rows: Tensor, order: Tensor, tokens: Tensor, count: int, way: str) -> Tensor:
    """The sum of the rows of each token."""
    width = rows.shape[1]
    zeros = rows.new_zeros(count, width)
    if way == "index_add":
        return zeros.index_add(0, tokens, rows)
    if way == "scatter_add":
        return zeros.scatter_add(0, tokens.reshape(-1, 1).expand(-1, width), rows)
    if way == "index_put":
        return zeros.index_put((tokens,), rows, accumulate=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    slots = rows[inverse] if way == "inverse" else torch.empty_like(rows).index_copy(0, order, rows)
    return zeros.index_add(0, tokens[inverse], slots)


@cases("aten._grouped_mm")
def _grouped(d: Draw) -> Case:
    """Rows of tokens through the weights of their keys, and added up by token; with gradients."""
    tokens, count, width, out = d.random.randint(5, 7), d.random.randint(3, 5), 8, d.one(8, 16)
    chosen = d.random.randint(1, 2)
    order_way = d.one("argsort", "stable", "sort")
    ends_way = d.one("bincount", "one hot", "histogram", "closed histogram")
    back, by_choice = d.one("index_add", "scatter_add", "index_put", "inverse", "index_copy"), d.chance(0.3)
    turned, weighted = d.chance(0.3), d.chance(0.5)

    def run(scores: Tensor, x: Tensor, w: Tensor) -> Tensor:
        best, ids = torch.topk(scores, chosen)
        keys, gates = (t.t().reshape(-1) if by_choice else t.reshape(-1) for t in (ids, best))
        order = _ordered(keys, order_way)
        token = order % tokens if by_choice else order // chosen
        weights = w.transpose(1, 2).contiguous().transpose(1, 2) if turned else w
        rows = torch._grouped_mm(x[token], weights, offs=_ends(keys, count, ends_way))
        rows = rows.double() * gates[order].unsqueeze(-1) if weighted else rows.double()
        return _back(rows, order, token, tokens, back)

    operands: tuple[Any, ...] = (
        _apart(d, (tokens, count), 1, torch.float64),
        d.tensor((tokens, width), torch.bfloat16),
        d.tensor((count, width, out), torch.bfloat16),
    )
    if not weighted or d.chance(0.3):
        return Case(run, operands)
    return Case(gradients(run), (*operands, d.tensor((tokens, out))))


@cases("aten.bincount", "aten.histc")
def _counts(d: Draw, name: str) -> Case:
    count, chosen, more = d.random.randint(2, 5), d.random.randint(1, 2), d.random.randint(0, 2)
    last = count + more - d.random.randint(0, 1)  # the number of bins, or of the last one
    scores = _apart(d, (d.random.randint(2, 5), count), 1, torch.float64)
    if name == "histc" and d.chance(0.2):  # keys of which nothing is known
        keys = d.tensor((6,), torch.int64, (0, count))
        return Case(lambda k: torch.histc(k.double(), count, 0, count), (keys,), {}, "other than of keys")

    def run(s: Tensor) -> Tensor:
        keys = torch.topk(s, chosen).indices.reshape(-1)
        if name == "bincount":
            return torch.bincount(keys, minlength=count + more)
        return torch.histc(keys.double(), count + more, 0, last)

    return Case(run, (scores,))


@cases("aten._local_scalar_dense.default")
def _sizes(d: Draw) -> Case:
    """All counts together are as many as there are rows; one of them is no size."""
    count, tokens, alone = d.random.randint(2, 4), d.random.randint(4, 6), d.chance(0.3)
    scores = _apart(d, (tokens, count), 1, torch.float64)

    def run(s: Tensor, x: Tensor) -> Tensor:
        keys = torch.topk(s, 1).indices.reshape(-1)
        counts = torch.bincount(keys, minlength=count).tolist()
        return x + x.new_ones(counts[0] if alone else sum(counts), 3).sum()

    words = "as many rows as a routing decides" if alone else None
    return Case(run, (scores, d.tensor((tokens, 3))), {}, words)


@cases("aten.nonzero.default")
def _picked(d: Draw) -> Case:
    """Rows of a mask go through ops of their own, and are added up where they were, or in all."""
    count, tokens, width = d.random.randint(2, 4), d.random.randint(4, 6), d.random.randint(2, 4)
    scores = _apart(d, (tokens, count), 1, torch.float64)
    way, back = d.one("choice", "map", "number"), d.one("index_add", "index_put", "sum", "product")

    def run(s: Tensor, x: Tensor) -> Tensor:
        best, ids = torch.topk(s, 2)
        masks = {"choice": ids == 1, "map": (ids == 1).t(), "number": s > 0}
        first, second = torch.where(masks[way])
        token = second if way == "map" else first
        rows = x[token].tanh() * (s[first, second] if way == "number" else best[token, 0])[:, None]
        if back == "index_add":
            return torch.zeros_like(x).index_add(0, token, rows)
        if back == "index_put":
            return x.index_put((token,), rows, accumulate=True)
        return rows.sum(0) if back == "sum" else rows.t() @ rows

    operands = scores, d.tensor((tokens, width), torch.float64)
    if d.chance(0.5):
        return Case(run, operands)
    shape = {"sum": (width,), "product": (width, width)}.get(back, (tokens, width))
    return Case(gradients(run), (*operands, d.tensor(shape, torch.float64)))
