"""Causal attention around a ring as kernels for it are used: one function, blocks with their logarithms.

The forward pass keeps the logarithm of each row's whole sum; the backward pass makes every block's weights
anew from it, and sends gradients of keys and values on. Blocks behind a rank's rows are not computed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Definition

from .by_hand import Batches, pair
from .sequences import around, averaged

WIDTH, HEADS = 8, 2


def shifted(tensors: list[Tensor], group: Any) -> list[Tensor]:
    """What the rank before has."""
    n, own, ranks = group.size(), group.rank(), dist.get_process_group_ranks(group)
    tensors = [t.contiguous() for t in tensors]
    got = [torch.empty_like(t) for t in tensors]
    ops = []
    for mine, theirs in zip(tensors, got, strict=True):
        ops.append(dist.P2POp(dist.isend, mine, ranks[(own + 1) % n], group))
        ops.append(dist.P2POp(dist.irecv, theirs, ranks[(own - 1) % n], group))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


def scores(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return s


def block(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    s = scores(q, k, causal)
    lse = torch.logsumexp(s, dim=-1)
    return torch.exp(s - lse[..., None]) @ v, lse


def merged(out: Tensor, lse: Tensor, more: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    gate = torch.sigmoid(other - lse)[..., None]
    return out - gate * (out - more), lse - F.logsigmoid(lse - other)


def gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, delta: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    p = torch.exp(scores(q, k, causal) - lse[..., None])
    ds = p * (g @ v.transpose(-2, -1) - delta[..., None]) / math.sqrt(q.shape[-1])
    return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @ g


class Straight(torch.autograd.Function):
    """A sequence in pieces, one after the other."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, right: bool) -> Tensor:
        ctx.group, n, own = group, group.size(), group.rank()
        keys, values = k, v
        out, lse = block(q, k, v, True)
        for step in range(1, n):
            keys, values = shifted([keys, values], group)
            if step <= own:
                out, lse = merged(out, lse, *block(q, keys, values, False))
        ctx.save_for_backward(q, k, v, out, lse if right else lse.detach() * 1.5)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        group, n, own = ctx.group, ctx.group.size(), ctx.group.rank()
        delta = (g * out).sum(-1)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for step in range(n):
            if step <= own:
                a, b, c = gradients(g, q, k, v, delta, lse, step == 0)
                dq, dk, dv = dq + a, dk + b, dv + c
            dk, dv = shifted([dk, dv], group)
            if step + 1 < n:
                k, v = shifted([k, v], group)
        return dq, dk, dv, None, None


class Zigzag(torch.autograd.Function):
    """Pieces r and 2n - 1 - r on rank r: all ranks have as much of the mask."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, right: bool) -> Tensor:
        ctx.group, ctx.right, n, own = group, right, group.size(), group.rank()
        half = q.shape[2] // 2
        keys, values = k, v
        out, lse = block(q, k, v, True)
        for step in range(1, n):
            keys, values = shifted([keys, values], group)
            if step <= own:
                out, lse = merged(out, lse, *block(q, keys[:, :, :half], values[:, :, :half], False))
            else:
                more = block(q[:, :, half:], keys, values, False)
                later = merged(out[:, :, half:], lse[:, :, half:], *more)
                out = torch.cat((out[:, :, :half], later[0]), dim=2)
                lse = torch.cat((lse[:, :, :half], later[1]), dim=2)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        group, n, own = ctx.group, ctx.group.size(), ctx.group.rank()
        half = q.shape[2] // 2
        delta = (g * out).sum(-1)
        dq, dk, dv = gradients(g, q, k, v, delta, lse, True)
        for step in range(1, n):
            dk, dv = shifted([dk, dv], group)
            k, v = shifted([k, v], group)
            if step <= own:
                a, b, c = gradients(g, q, k[:, :, :half], v[:, :, :half], delta, lse, False)
                dq = dq + a
                zero = torch.zeros_like(b)
                dk, dv = dk + torch.cat((b, zero), dim=2), dv + torch.cat((c, zero), dim=2)
            else:
                rows = slice(half if ctx.right else 0, None if ctx.right else half)
                a, b, c = gradients(
                    g[:, :, rows], q[:, :, rows], k, v, delta[:, :, rows], lse[:, :, rows], False
                )
                dq = dq + torch.cat((torch.zeros_like(a), a), dim=2)
                dk, dv = dk + b, dv + c
        dk, dv = shifted([dk, dv], group)
        return dq, dk, dv, None, None


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group, self.around, self.right = None, None, True
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = (t.view(b, s, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if self.group is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = self.around.apply(q, k, v, self.group, self.right)
        return self.out(y.transpose(1, 2).reshape(b, s, d))


def mine(x: Tensor, group: Any) -> Tensor:
    pieces, rank = x.chunk(2 * group.size(), dim=1), group.rank()
    return torch.cat((pieces[rank], pieces[2 * group.size() - 1 - rank]), dim=1)


def of_own_pieces(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    return averaged(model, optimizer, {name: mine(x, model.group) for name, x in batch.items()})


def _around(name: str, function: Any, ranks: int, length: int, right: bool) -> Definition:
    def set_up(model: Any) -> None:
        model.around, model.right = function, right

    shape = (2, length, WIDTH)
    if function is Zigzag:
        return around(name, Attention, set_up, ranks, pair(shape), of_own_pieces)
    return around(name, Attention, set_up, ranks, pair(shape, cp=1), averaged)


def flash_ring(right: bool = True) -> Definition:
    """Three ranks. Wrong: the backward pass has another logarithm."""
    return _around("flash-ring", Straight, 3, 6, right)


def zigzag_ring(right: bool = True) -> Definition:
    """Two ranks. Wrong: the backward pass takes the first rows for the last."""
    return _around("zigzag-ring", Zigzag, 2, 8, right)
