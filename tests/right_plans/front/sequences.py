"""Attention as it is spread by hand: fused and grouped heads, a ring, all-to-all of all heads at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor, wait_tensor
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, pair, regress

# --- fused grouped heads, key and value heads on several ranks ---------------------------------------------


class _F(torch.autograd.Function):
    """Megatron's f: nothing, and a sum of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _G(torch.autograd.Function):
    """Megatron's g: a sum, and nothing of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Grouped(nn.Module):
    """``qkv`` has for each group its queries, its key and its value, one group after another."""

    def __init__(self, dim: int = 16, groups: int = 2, heads: int = 8) -> None:
        super().__init__()
        self.groups, self.each, self.size = groups, heads // groups, dim // heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, groups * (self.each + 2) * self.size)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        mixed = self.qkv(self.norm(x)).view(b, s, self.groups, self.each + 2, self.size)
        q, k, v = torch.split(mixed, [self.each, 1, 1], dim=3)
        k, v = k.expand(-1, -1, -1, self.each, -1), v.expand(-1, -1, -1, self.each, -1)
        q, k, v = (t.reshape(b, s, -1, self.size).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.proj(y.transpose(1, 2).reshape(b, s, d))


class GroupedOnRanks(nn.Module):
    """Two groups on four ranks: a rank has half of the queries of a group, and all of its key and value."""

    def __init__(self, model: Grouped, mesh: DeviceMesh) -> None:
        super().__init__()
        self.tp, self.copies = dist.group.WORLD, mesh["copy"].get_group()
        kv, copy = mesh.get_local_rank("kv"), mesh.get_local_rank("copy")
        self.size, self.mine = model.size, model.each // 2
        self.norm = model.norm

        def rows(t: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
            own = t.detach().unflatten(0, (model.groups, model.each + 2, model.size))[kv]
            q = own[copy * self.mine : (copy + 1) * self.mine]
            return tuple(nn.Parameter(part.flatten(0, 1).clone()) for part in (q, own[model.each :]))

        self.q, self.kv = rows(model.qkv.weight)
        self.q_bias, self.kv_bias = rows(model.qkv.bias)
        width = self.mine * model.size
        first = (kv * 2 + copy) * width
        self.proj = nn.Parameter(model.proj.weight.detach()[:, first : first + width].clone())
        self.proj_bias = model.proj.bias

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        inner = _F.apply(self.norm(x), self.tp)
        q = F.linear(inner, self.q, self.q_bias).view(b, s, self.mine, self.size).transpose(1, 2)
        kv = F.linear(inner, self.kv, self.kv_bias).view(b, s, 2, self.size)
        k, v = (t.transpose(1, 2).expand(-1, self.mine, -1, -1) for t in kv.split(1, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, s, -1)
        return x + _G.apply(F.linear(y, self.proj), self.tp) + self.proj_bias


def fused_grouped_heads(right: bool = True) -> Definition:
    """Wrong: the bias of keys and values, that two ranks have, gets the gradient of one rank's queries."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        dist.all_reduce(model.kv.grad, group=model.copies)
        if right:
            dist.all_reduce(model.kv_bias.grad, group=model.copies)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="fused-grouped-heads",
        mesh={"kv": 2, "copy": 2},
        build=Grouped,
        parallelize=GroupedOnRanks,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.1),
        step=regress,
        parallel_step=step,
        batch=pair((2, 6, 16)),
    )


# --- a ring of keys and values -----------------------------------------------------------------------------


class _Shift(torch.autograd.Function):
    """What the rank before has; gradients go back to where the values came from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, by: int) -> Tensor:
        ctx.group, ctx.by = group, by
        ranks, own = dist.get_process_group_ranks(group), group.rank()
        x = x.contiguous()
        got = torch.empty_like(x)
        ops = [
            dist.P2POp(dist.isend, x, ranks[(own + by) % len(ranks)], group),
            dist.P2POp(dist.irecv, got, ranks[(own - by) % len(ranks)], group),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return got

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Shift.apply(grad, ctx.group, -ctx.by), None, None


class Ring(nn.Module):
    """Attention without a mask; on ranks, block by block, merged by the logarithms of their sums."""

    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.group, self.scaled = heads, None, True
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def around(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = lse = None
        for i in range(self.group.size()):
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            block_lse = torch.logsumexp(scores, -1, keepdim=True)
            block = torch.exp(scores - block_lse) @ v
            if out is None:
                out, lse = block, block_lse
            else:
                out = out - torch.sigmoid(block_lse - lse) * (out - block)
                lse = lse - F.logsigmoid(lse - block_lse)
            if i + 1 < self.group.size():
                k, v = _Shift.apply(k, self.group, 1), _Shift.apply(v, self.group, 1 if self.scaled else -1)
        return out

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v) if self.group is None else self.around(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, d))


def averaged(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=model.group)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def ring_attention(right: bool = True) -> Definition:
    """Three ranks. Wrong: values go round the other way than keys."""
    return _ring("ring-attention", Ring, 3, (2, 6, 8), right)


def around(
    name: str, build: Callable[[], Any], set_up: Callable[[Any], None], ranks: int, batch: Any, step: Any
) -> Definition:
    """A ring of ranks; ``set_up`` is told of the model that has its group."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["cp"].get_group()
        set_up(model)
        return model

    return Definition(
        name=name,
        mesh={"cp": ranks},
        build=build,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=regress,
        parallel_step=step,
        batch=batch,
        mean_over={"loss": ("cp",)},
    )


def _ring(name: str, build: type[Ring], ranks: int, shape: tuple[int, ...], right: bool) -> Definition:
    def set_up(model: Any) -> None:
        model.scaled = right

    return around(name, build, set_up, ranks, pair(shape, cp=1), averaged)


class CausalRing(Ring):
    """The same with a mask, merged by running maxima as in the flash attention of textbooks."""

    def around(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        size, own, s = self.group.size(), self.group.rank(), q.shape[2]
        most = q.new_full((*q.shape[:3], 1), -1e9)
        total, out = torch.zeros_like(most), torch.zeros_like(q)
        rows = torch.arange(s) + own * s
        for i in range(size):
            block = (own - i) % size
            columns = torch.arange(s) + block * s
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(columns[None, :] > rows[:, None], -1e9)
            new = torch.maximum(most, scores.amax(-1, keepdim=True).detach())
            weights, old = torch.exp(scores - new), torch.exp(most - new)
            weights = weights.masked_fill(columns[None, :] > rows[:, None], 0.0)
            total = total * (old if self.scaled else 1) + weights.sum(-1, keepdim=True)
            out, most = out * old + weights @ v, new
            if i + 1 < size:
                k, v = _Shift.apply(k, self.group, 1), _Shift.apply(v, self.group, 1)
        return out / total

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if self.group is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = self.around(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, d))


def causal_ring(right: bool = True) -> Definition:
    """Two ranks. Wrong: the running sum is not scaled to the new maximum."""
    return _ring("causal-ring", CausalRing, 2, (2, 4, 8), right)


# --- all heads at once -------------------------------------------------------------------------------------


class _Heads(torch.autograd.Function):
    """``[b, s/n, 3, h, e]`` to ``[b, s, 3, h/n, e]`` by one ``all_to_all_single``, or back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, back: bool) -> Tensor:
        ctx.group, ctx.back, n = group, back, group.size()
        cut, joined = (1, 3) if back else (3, 1)
        parts = torch.stack(x.chunk(n, dim=cut)).contiguous()
        got = torch.empty_like(parts)
        dist.all_to_all_single(got, parts, group=group)
        return torch.cat(got.unbind(0), dim=joined)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Heads.apply(grad, ctx.group, not ctx.back), None, None


class Rotary(nn.Module):
    """Pairs of neighbours are rotated; a norm of each head's queries and keys."""

    def __init__(self, dim: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.group, self.shifted = heads, None, True
        self.norm = nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = nn.RMSNorm(dim // heads), nn.RMSNorm(dim // heads)

    def rotated(self, x: Tensor, first: int) -> Tensor:
        at = torch.arange(first, first + x.shape[1], dtype=torch.float32)
        inverse = 1.0 / 100 ** (torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
        angle = torch.outer(at, inverse)[None, :, None, :]
        a, b = x[..., 0::2], x[..., 1::2]
        turned = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos())
        return torch.stack(turned, dim=-1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        first = self.group.rank() * s if self.group is not None and self.shifted else 0
        qkv = self.qkv(self.norm(x)).view(b, s, 3, self.heads, -1)
        q, k, v = qkv.unbind(2)
        q, k = self.rotated(self.q_norm(q), first), self.rotated(self.k_norm(k), first)
        if self.group is not None:
            q, k, v = _Heads.apply(torch.stack((q, k, v), dim=2), self.group, False).unbind(2)
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        y = y.transpose(1, 2)
        if self.group is not None:
            y = _Heads.apply(y.unsqueeze(2), self.group, True).squeeze(2)
        return x + self.out(y.reshape(b, s, d))


def ulysses_fused(right: bool = True) -> Definition:
    """Wrong: positions start at 0 on every rank."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group, model.shifted = mesh["sp"].get_group(), right
        return model

    return Definition(
        name="ulysses-fused",
        mesh={"sp": 4},
        build=Rotary,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=regress,
        parallel_step=averaged,
        batch=pair((2, 8, 16), sp=1),
        mean_over={"loss": ("sp",)},
    )


# --- sequence parallel, functional collectives -------------------------------------------------------------


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return wait_tensor(all_gather_tensor(x, 1, group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return wait_tensor(reduce_scatter_tensor(grad, "sum", 1, ctx.group)), None


class _ScatterRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return wait_tensor(reduce_scatter_tensor(x, "sum", 1, group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return wait_tensor(all_gather_tensor(grad, 1, ctx.group)), None


class Gated(nn.Module):
    """``up`` is fused: gate and values, one after the other."""

    def __init__(self, dim: int = 8, hidden: int = 12) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(self.before(x)).chunk(2, dim=-1)
        return self.after(x + self.down(F.silu(gate) * value))


class GatedOnRanks(nn.Module):
    def __init__(self, model: Gated, mesh: DeviceMesh) -> None:
        super().__init__()
        self.tp, n, own = mesh["tp"].get_group(), mesh["tp"].size(), mesh.get_local_rank("tp")
        self.before, self.after = model.before, model.after

        def both(t: Tensor) -> nn.Parameter:
            return nn.Parameter(torch.cat([half.chunk(n)[own] for half in t.detach().chunk(2)]))

        self.up, self.up_bias = both(model.up.weight), both(model.up.bias)
        self.down = nn.Parameter(model.down.weight.detach().chunk(n, 1)[own].clone())
        self.down_bias = model.down.bias

    def forward(self, x: Tensor) -> Tensor:
        whole = _GatherRows.apply(self.before(x), self.tp)
        gate, value = F.linear(whole, self.up, self.up_bias).chunk(2, dim=-1)
        inner = _ScatterRows.apply(F.linear(F.silu(gate) * value, self.down), self.tp)
        return self.after(x + inner + self.down_bias)


def sequence_norms(right: bool = True) -> Definition:
    """A sequence in pieces between the layers. Wrong: the bias of the row-parallel layer is forgotten."""
    shared = ["before.weight", "before.bias", "after.weight", "after.bias", "down_bias"]

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        out = model(batch["x"])
        loss = (out - batch["y"]).square().sum() / (out.numel() * model.tp.size())
        loss.backward()
        names = dict(model.named_parameters())
        partial = [names[n].grad for n in (shared if right else shared[:-1])]
        flat = torch._utils._flatten_dense_tensors(partial)
        dist.all_reduce(flat, group=model.tp)
        for old, new in zip(partial, torch._utils._unflatten_dense_tensors(flat, partial), strict=True):
            old.copy_(new)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss, group=model.tp)
        return {"loss": loss.detach()}

    def single(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="sequence-norms",
        mesh={"tp": 2},
        build=Gated,
        parallelize=GatedOnRanks,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        step=single,
        parallel_step=step,
        batch={n: Batch((2, 4, 8), shard={"tp": 1}) for n in "xy"},
    )
