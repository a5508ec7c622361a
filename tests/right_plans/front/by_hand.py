"""Parallel by hand, with nothing but torch.distributed: Ulysses, flat optimizers, LoRA, MLA, experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Bucket, Definition

Batches = Mapping[str, Tensor]


class _Enter(torch.autograd.Function):
    """The same on every rank; gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Leave(torch.autograd.Function):
    """Partial results add up; the gradient is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def own(w: Tensor, group: Any, dim: int) -> nn.Parameter:
    return nn.Parameter(w.detach().chunk(group.size(), dim)[group.rank()].clone())


def regress(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def pair(shape: tuple[int, ...], out: tuple[int, ...] | None = None, **shard: int) -> dict[str, Batch]:
    return {"x": Batch(shape, shard=shard), "y": Batch(out or shape, shard=shard)}


# --- Ulysses -----------------------------------------------------------------------------------------------


class _AllToAll(torch.autograd.Function):
    """DeepSpeed's: heads are scattered and the sequence gathered, or the other way round."""

    @staticmethod
    def forward(ctx: Any, group: Any, x: Tensor, scatter: int, gather: int) -> Tensor:
        ctx.group, ctx.scatter, ctx.gather = group, scatter, gather
        parts = [t.contiguous() for t in torch.tensor_split(x, group.size(), scatter)]
        received = [torch.empty_like(parts[0]) for _ in parts]
        dist.all_to_all(received, parts, group=group)
        return torch.cat(received, dim=gather).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        return None, _AllToAll.apply(ctx.group, grad, ctx.gather, ctx.scatter), None, None


class Attention(nn.Module):
    group: Any = None

    def __init__(self, dim: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = (w(x).view(b, s, self.heads, d // self.heads) for w in (self.q, self.k, self.v))
        if self.group is not None:
            q, k, v = (_AllToAll.apply(self.group, t, 2, 1) for t in (q, k, v))
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        y = y.transpose(1, 2)
        if self.group is not None:
            y = _AllToAll.apply(self.group, y, 1, 2)
        return self.o(y.reshape(b, s, d))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), Attention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


def ulysses_separate(right: bool = True) -> Definition:
    """Sequence in pieces, DeepSpeed's all-to-all around the attention. Wrong: gradients are not averaged."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.attention.group = mesh["sp"].get_group()
        return model

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        group = model.attention.group
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
            if right:
                p.grad.div_(group.size())
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=group)
        return {"loss": loss.detach()}

    return Definition(
        name="ulysses-separate",
        mesh={"sp": 2},
        build=Residual,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        step=regress,
        parallel_step=step,
        batch=pair((2, 6, 8), sp=1),
    )


# --- a distributed optimizer over flat gradients -----------------------------------------------------------


class PlainAdam(torch.optim.Optimizer):
    """Adam without correction of its start, each parameter for itself."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {n: torch.zeros_like(p) for n in ("exp_avg", "exp_avg_sq")}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["exp_avg"].lerp_(p.grad, 0.1)
            state["exp_avg_sq"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(1e-8), value=-1e-3)


class FlatAdam(torch.optim.Optimizer):
    """The same of a shard of one flat vector; the shards of all ranks are gathered."""

    def __init__(self, params: Any, mean: bool) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.mean, self.ranks = mean, dist.get_world_size()
        first, size = self._params()[0], sum(p.numel() for p in self._params())
        self.pad = -size % self.ranks
        shard = (size + self.pad) // self.ranks
        self.state[first]["flat"] = {n: torch.zeros(shard) for n in ("exp_avg", "exp_avg_sq")}

    def _params(self) -> list[nn.Parameter]:
        return self.param_groups[0]["params"]

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        return F.pad(torch.cat([t.reshape(-1) for t in tensors]), (0, self.pad))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        params = self._params()
        state = self.state[params[0]]["flat"]
        grad = torch.empty_like(state["exp_avg"])
        dist.reduce_scatter_tensor(grad, self._flat([p.grad for p in params]))
        if self.mean:
            grad /= self.ranks
        value = self._flat(params).chunk(self.ranks)[dist.get_rank()]
        state["exp_avg"].lerp_(grad, 0.1)
        state["exp_avg_sq"].mul_(0.99).addcmul_(grad, grad, value=0.01)
        value = value.addcdiv(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(1e-8), value=-1e-3)
        whole = torch.empty(value.numel() * self.ranks)
        dist.all_gather_into_tensor(whole, value)
        at = 0
        for p in params:
            p.copy_(whole[at : at + p.numel()].view_as(p))
            at += p.numel()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.SiLU(), nn.Linear(7, 7), nn.SiLU(), nn.Linear(7, 3))


def flat_adam(right: bool = True) -> Definition:
    """ZeRO-1 over flat gradients, reduced and scattered. Wrong: shards are not averaged."""
    names = [f"{i}.{n}" for i in (0, 2, 4) for n in ("weight", "bias")]

    def build_optimizer(params: Any) -> torch.optim.Optimizer:
        return FlatAdam(params, right) if dist.is_initialized() else PlainAdam(params)

    return Definition(
        name="flat-adam",
        mesh={"dp": 2},
        build=mlp,
        parallelize=lambda model, mesh: model,
        optimizer=build_optimizer,
        step=regress,
        batch=pair((4, 5), (4, 3), dp=0),
        buckets={
            f"opt.flat.{m}.0.weight": Bucket(tuple(f"opt.{m}.{n}" for n in names), "dp")
            for m in ("exp_avg", "exp_avg_sq")
        },
        mean_over={"loss": ("dp",)},
    )


# --- accumulation and clipping under TP --------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class ParallelPerceptron(nn.Module):
    def __init__(self, model: Any, mesh: DeviceMesh) -> None:
        super().__init__()
        self.dp, self.tp = mesh["dp"].get_group(), mesh["tp"].get_group()
        self.norm, self.up, self.down = model.norm, model.up, model.down
        self.up.weight, self.up.bias = own(model.up.weight, self.tp, 0), own(model.up.bias, self.tp, 0)
        self.down.weight = own(model.down.weight, self.tp, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(_Enter.apply(self.norm(x), self.tp)), approximate="tanh")
        return x + _Leave.apply(F.linear(h, self.down.weight), self.tp) + self.down.bias


def accumulate_and_clip(right: bool = True) -> Definition:
    """TP 2, DP 2, two microbatches, the norm of all gradients. Wrong: replicated ones count twice."""

    def single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        total = torch.zeros(())
        for x, y in zip(batch["x"], batch["y"], strict=True):
            loss = F.mse_loss(model(x), y) / len(batch["x"])
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        total = torch.zeros(())
        for x, y in zip(batch["x"], batch["y"], strict=True):
            loss = F.mse_loss(model(x), y) / len(batch["x"])
            loss.backward()
            total = total + loss.detach()
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p.grad, group=model.dp)
                p.grad /= model.dp.size()
            cut = [model.up.weight, model.up.bias, model.down.weight]
            whole = [model.norm.weight, model.norm.bias, model.down.bias]
            squares = torch.stack([p.grad.pow(2).sum() for p in cut]).sum()
            rest = torch.stack([p.grad.pow(2).sum() for p in whole]).sum()
            if right:
                dist.all_reduce(squares, group=model.tp)
                norm = (squares + rest).sqrt()
            else:
                squares = squares + rest
                dist.all_reduce(squares, group=model.tp)
                norm = squares.sqrt()
            factor = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
            for p in model.parameters():
                p.grad.mul_(factor)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    return Definition(
        name="accumulate-and-clip",
        mesh={"dp": 2, "tp": 2},
        build=Perceptron,
        parallelize=ParallelPerceptron,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=single,
        parallel_step=parallel,
        batch=pair((2, 4, 6), dp=1),
        mean_over={"loss": ("dp",)},
    )


# --- LoRA --------------------------------------------------------------------------------------------------


class LoRALinear(nn.Module):
    """A frozen weight and a trained product of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 2, alpha: float = 4.0) -> None:
        super().__init__()
        self.base = base
        self.base.weight.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.lora_a.T @ self.lora_b.T) * self.scaling


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = LoRALinear(nn.Linear(6, 8, bias=False))
        self.down = LoRALinear(nn.Linear(8, 6, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class ParallelAdapted(nn.Module):
    """``up`` is cut by columns, with it the rows of its B; ``down`` by rows, with it the columns of its A."""

    def __init__(self, model: Any, mesh: DeviceMesh, right: bool) -> None:
        super().__init__()
        self.group, self.right = mesh["tp"].get_group(), right
        self.up, self.down = model.up, model.down
        self.up.base.weight = own(self.up.base.weight, self.group, 0).requires_grad_(False)
        self.up.lora_b = own(self.up.lora_b, self.group, 0)
        self.down.base.weight = own(self.down.base.weight, self.group, 1).requires_grad_(False)
        self.down.lora_a = own(self.down.lora_a, self.group, 1)

    def forward(self, x: Tensor) -> Tensor:
        up, down, group = self.up, self.down, self.group
        low = x @ up.lora_a.T
        if self.right:
            low = _Enter.apply(low, group)
        h = F.silu(up.base(_Enter.apply(x, group)) + (low @ up.lora_b.T) * up.scaling)
        base = _Leave.apply(down.base(h), group)
        return base + (_Leave.apply(h @ down.lora_a.T, group) @ down.lora_b.T) * down.scaling


def lora_tp(right: bool = True) -> Definition:
    """Frozen weights and adapters, TP 2. Wrong: the gradient of the replicated A is not added over ranks."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        return regress(model, optimizer, batch)

    def trained(params: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in params if p.requires_grad], lr=1e-3)

    return Definition(
        name="lora-tp",
        mesh={"tp": 2},
        build=Adapted,
        parallelize=lambda m, mesh: ParallelAdapted(m, mesh, right),
        optimizer=trained,
        step=regress,
        parallel_step=step,
        batch=pair((4, 6)),
    )


# --- multi-head latent attention ---------------------------------------------------------------------------


class RMS(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class MLA(nn.Module):
    """DeepSeek-V2's: low-rank queries, keys and values; one rotary key for all heads."""

    def __init__(self, dim: int = 12, heads: int = 4, nope: int = 4, pe: int = 2, v: int = 3) -> None:
        super().__init__()
        self.nope, self.pe, self.v, self.rank = nope, pe, v, 5
        self.wq_a, self.q_norm = nn.Linear(dim, 6, bias=False), RMS(6)
        self.wq_b = nn.Linear(6, heads * (nope + pe), bias=False)
        self.wkv_a, self.kv_norm = nn.Linear(dim, self.rank + pe, bias=False), RMS(self.rank)
        self.wkv_b = nn.Linear(self.rank, heads * (nope + v), bias=False)
        self.wo = nn.Linear(heads * v, dim, bias=False)
        self.register_buffer("cos", torch.zeros(5, 1, pe // 2))
        self.register_buffer("sin", torch.zeros(5, 1, pe // 2))
        self.group: Any = None
        self.right = True

    def enter(self, x: Tensor) -> Tensor:
        return x if self.group is None else _Enter.apply(x, self.group)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q = self.wq_b(self.enter(self.q_norm(self.wq_a(x)))).view(b, s, -1, self.nope + self.pe)
        q_nope, q_pe = q.split([self.nope, self.pe], dim=-1)
        q = torch.cat([q_nope, rope(q_pe, self.cos, self.sin)], dim=-1)
        kv, k_pe = self.wkv_a(x).split([self.rank, self.pe], dim=-1)
        k_pe = rope(k_pe.unsqueeze(2), self.cos, self.sin)
        if self.right:
            k_pe = self.enter(k_pe)
        kv = self.wkv_b(self.enter(self.kv_norm(kv))).view(b, s, -1, self.nope + self.v)
        k_nope, v = kv.split([self.nope, self.v], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, -1, k_nope.shape[2], -1)], dim=-1)
        scores = torch.einsum("bshd,bthd->bsht", q, k) * (self.nope + self.pe) ** -0.5
        scores = scores + torch.full((s, s), float("-inf")).triu_(1).unsqueeze(1)
        y = torch.einsum("bsht,bthd->bshd", scores.softmax(dim=-1), v).flatten(2)
        y = self.wo(y)
        return y if self.group is None else _Leave.apply(y, self.group)


def mla_tp(right: bool = True) -> Definition:
    """Heads over TP 2. Wrong: the shared rotary key's gradient is not added over ranks."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group, model.right = mesh["tp"].get_group(), right
        model.wq_b.weight = own(model.wq_b.weight, model.group, 0)
        model.wkv_b.weight = own(model.wkv_b.weight, model.group, 0)
        model.wo.weight = own(model.wo.weight, model.group, 1)
        return model

    return Definition(
        name="mla-tp",
        mesh={"tp": 2},
        build=MLA,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=regress,
        batch=pair((2, 5, 12)),
    )


# --- experts -----------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Stacked weights; each token goes to its best expert, chosen by comparing with the largest weight."""

    def __init__(self, dim: int = 6, hidden: int = 5, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, count, bias=False)
        self.w1, self.w2 = (
            nn.Parameter(torch.zeros(count, dim, hidden)),
            nn.Parameter(torch.zeros(count, hidden, dim)),
        )
        self.group: Any = None

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        weights = weights * (weights >= weights.amax(-1, keepdim=True).detach())
        if self.group is not None:
            x, weights = _Enter.apply(x, self.group), _Enter.apply(weights, self.group)
            weights = weights.chunk(self.group.size(), -1)[self.group.rank()]
        out = torch.zeros_like(x)
        for e in range(self.w1.shape[0]):
            out = out + weights[:, e : e + 1] * (F.silu(x @ self.w1[e]) @ self.w2[e])
        return out if self.group is None else _Leave.apply(out, self.group)


def experts_masked(right: bool = True) -> Definition:
    """Experts over EP 2, data over DP 2. Wrong: the experts' gradients are added over dp and not averaged."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group, model.dp = mesh["ep"].get_group(), mesh["dp"].get_group()
        model.w1, model.w2 = own(model.w1, model.group, 0), own(model.w2, model.group, 0)
        return model

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        for name, p in model.named_parameters():
            dist.all_reduce(p.grad, group=model.dp)
            if right or not name.startswith("w"):
                p.grad /= model.dp.size()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="experts-masked",
        mesh={"dp": 2, "ep": 2},
        build=Experts,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.Adamax(params, lr=1e-3),
        step=regress,
        parallel_step=parallel,
        batch=pair((6, 6), dp=0),
        mean_over={"loss": ("dp",)},
    )
