"""More small models: other optimizers, context parallelism, distillation, sharded parameters, recurrence."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, pair, regress
from .sequences import averaged

# --- optimizers under DDP ----------------------------------------------------------------------------------


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(), nn.Linear(6, 4), nn.Softplus(), nn.Linear(4, 3))


def adagrad_ddp(right: bool = True) -> Definition:
    """Wrong: the ranks' loss is a sum over rows."""

    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"], reduction="mean" if right else "sum")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="adagrad-ddp",
        mesh={"dp": 2},
        build=mlp,
        parallelize=lambda m, mesh: DistributedDataParallel(m),
        optimizer=lambda params: torch.optim.Adagrad(params, lr=0.01, lr_decay=0.1, weight_decay=0.01),
        step=regress,
        parallel_step=parallel,
        batch=pair((4, 5), (4, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal by Newton and Schulz; vectors get plain momentum."""

    def __init__(self, params: Any, lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buffer = state["momentum_buffer"]
                buffer.mul_(group["momentum"]).add_(p.grad)
                update = p.grad.add(buffer, alpha=group["momentum"])
                if p.dim() == 2:
                    update = self.orthogonal(update) * max(1, p.size(0) / p.size(1)) ** 0.5
                p.add_(update, alpha=-group["lr"])

    @staticmethod
    def orthogonal(g: Tensor, steps: int = 2) -> Tensor:
        a, b, c = 3.4445, -4.7750, 2.0315
        x = g.T if g.size(0) > g.size(1) else g
        x = x / (x.norm() + 1e-7)
        for _ in range(steps):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if g.size(0) > g.size(1) else x


def muon_by_hand(right: bool = True) -> Definition:
    """Gradients are averaged by hand, one by one. Wrong: those of matrices are not divided."""

    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            if right or p.dim() == 1:
                p.grad.div_(dist.get_world_size())
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="muon-by-hand",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
        parallelize=lambda m, mesh: m,
        optimizer=Muon,
        step=regress,
        parallel_step=parallel,
        batch=pair((4, 5), (4, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- context parallelism -----------------------------------------------------------------------------------


class _GatherSequence(torch.autograd.Function):
    """All ranks' keys or values; the gradient of each rank's own part is added over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, x = group, x.contiguous()
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x, group=group)
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        parts = [t.contiguous() for t in grad.chunk(ctx.group.size(), dim=2)]
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=ctx.group)
        return own, None


class Context(nn.Module):
    """Causal attention of rotary heads over a sequence that may be a part of a longer one."""

    def __init__(self, dim: int = 8, heads: int = 2, length: int = 6, shifted: bool = True) -> None:
        super().__init__()
        self.heads, self.length, self.shifted = heads, length, shifted
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        angles = torch.outer(torch.arange(length), 1.0 / (100 ** (torch.arange(0, 4, 2) / 4)))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))
        self.group: Any = None

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        first = 0 if self.group is None else self.group.rank() * s
        cos, sin = (t[first : first + s] if self.shifted else t[:s] for t in (self.cos, self.sin))
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        if self.group is not None:
            k, v = _GatherSequence.apply(k, self.group), _GatherSequence.apply(v, self.group)
        rows = torch.arange(s)[:, None] + first
        scores = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.arange(k.shape[2])[None, :] > rows, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, d))


def context_parallel(right: bool = True) -> Definition:
    """Queries in pieces, keys and values gathered. Wrong: every rank rotates as if it were the first."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group, model.shifted = mesh["cp"].get_group(), right
        return model

    return Definition(
        name="context-parallel",
        mesh={"cp": 2},
        build=Context,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
        step=regress,
        parallel_step=averaged,
        batch=pair((2, 6, 8), cp=1),
        mean_over={"loss": ("cp",)},
    )


# --- distillation with a moving average --------------------------------------------------------------------


class Distilled(nn.Module):
    """A student, and a teacher that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = (nn.Sequential(nn.Linear(5, 6), nn.ELU(), nn.Linear(6, 4)) for _ in "st")
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.student(x)
        with torch.no_grad():
            target = F.softmax(self.teacher(x) / 2.0, dim=-1)
        soft = F.kl_div(F.log_softmax(logits / 2.0, dim=-1), target, reduction="batchmean") * 4.0
        return 0.5 * soft + 0.5 * F.cross_entropy(logits, y)


def distilled_ema(right: bool = True) -> Definition:
    """DDP, and the teacher moves after the optimizer. Wrong: it is moved by each rank's own share."""

    def train(
        model: Any, optimizer: torch.optim.Optimizer, batch: Batches, decay: float = 0.99
    ) -> dict[str, Tensor]:
        loss = model(batch["x"], batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        net = getattr(model, "module", model)
        with torch.no_grad():
            for t, s in zip(net.teacher.parameters(), net.student.parameters(), strict=True):
                t.lerp_(s, 1 - decay)
        return {"loss": loss.detach()}

    return Definition(
        name="distilled-ema",
        mesh={"dp": 2},
        build=Distilled,
        parallelize=lambda m, mesh: DistributedDataParallel(m),
        optimizer=lambda params: torch.optim.NAdam([p for p in params if p.requires_grad], lr=1e-3),
        step=train,
        parallel_step=train if right else functools.partial(train, decay=0.98),
        batch={
            "x": Batch((4, 5), shard={"dp": 0}),
            "y": Batch((4,), torch.int64, shard={"dp": 0}, bounds=(0, 4)),
        },
        mean_over={"loss": ("dp",)},
    )


# --- a vision transformer, TP by DTensor -------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.head = dim // heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (w(h).unflatten(-1, (-1, self.head)).transpose(1, 2) for w in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.o(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vision(nn.Module):
    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 2, stride=2)
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, dim)), nn.Parameter(torch.zeros(1, 5, dim))
        self.blocks = nn.ModuleList([Encoder(dim)])
        self.norm, self.classes = nn.LayerNorm(dim), nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h], dim=1) + self.place
        for block in self.blocks:
            h = block(h)
        return self.classes(self.norm(h)[:, 0])


def vision_tp(right: bool = True) -> Definition:
    """TP 2 by DTensor. Wrong: the second bias of the MLP is added by both ranks."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        column, row = ColwiseParallel, RowwiseParallel
        for block in model.blocks:
            plan = {"q": column(), "k": column(), "v": column(), "o": row(), "fc1": column(), "fc2": row()}
            parallelize_module(block, mesh["tp"], plan)
            if not right:
                block.fc2.register_forward_hook(lambda m, args, out: out + m.bias.to_local())
        return model

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="vision-tp",
        mesh={"tp": 2},
        build=Vision,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        batch={"x": Batch((2, 3, 4, 4)), "y": Batch((2,), torch.int64, bounds=(0, 4))},
    )


# --- parameters in shards, by hand -------------------------------------------------------------------------


class _Whole(torch.autograd.Function):
    """ZeRO-3: the shards of a parameter are gathered; its gradient is averaged and scattered."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, group: Any) -> Tensor:
        ctx.group = group
        whole = torch.empty(shard.shape[0] * group.size(), *shard.shape[1:])
        dist.all_gather_into_tensor(whole, shard.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        own = torch.empty(grad.shape[0] // ctx.group.size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(own, grad.contiguous(), op=dist.ReduceOp.AVG, group=ctx.group)
        return own, None


class Sharded(nn.Module):
    def __init__(self, model: Any, mesh: DeviceMesh, right: bool) -> None:
        super().__init__()
        self.group, self.right = mesh["dp"].get_group(), right
        self.fc1, self.fc2 = model.fc1, model.fc2
        for layer in (self.fc1, self.fc2):
            for name in ("weight", "bias"):
                piece = getattr(layer, name).detach().chunk(self.group.size())[self.group.rank()]
                setattr(layer, name, nn.Parameter(piece.clone()))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate((self.fc1, self.fc2)):
            w, b = (_Whole.apply(p, self.group) for p in (layer.weight, layer.bias))
            x = F.linear(x, w, b)
            x = F.mish(x) if i == 0 else x
        return x


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.mish(self.fc1(x)))


def zero3_by_hand(right: bool = True) -> Definition:
    """Norms of shards are added for clipping. Wrong: each rank clips by the norm of its own shards."""

    def single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.huber_loss(model(batch["x"]), batch["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.huber_loss(model(batch["x"]), batch["y"])
        loss.backward()
        with torch.no_grad():
            total = sum(p.grad.square().sum() for p in model.parameters())
            if right:
                dist.all_reduce(total, group=model.group)
            factor = (0.5 / (total.sqrt() + 1e-6)).clamp(max=1.0)
            for p in model.parameters():
                p.grad.mul_(factor)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="zero3-by-hand",
        mesh={"dp": 2},
        build=Two,
        parallelize=lambda m, mesh: Sharded(m, mesh, right),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=single,
        parallel_step=parallel,
        batch=pair((4, 5), (4, 4), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- masked language model ---------------------------------------------------------------------------------


class Masked(nn.Module):
    """Attention over valid tokens only; labels of 0 do not count."""

    def __init__(self, dim: int = 8, heads: int = 2, vocabulary: int = 10) -> None:
        super().__init__()
        self.heads = heads
        self.embed, self.place = nn.Embedding(vocabulary, dim, padding_idx=0), nn.Embedding(5, dim)
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        b, s = tokens.shape
        x = self.norm(self.embed(tokens) + self.place(torch.arange(s)))
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        keep = (tokens != 0)[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


def masked_tokens(right: bool = True) -> Definition:
    """The mean over all ranks' valid tokens. Wrong: each rank takes the mean over its own."""

    def single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        logits, labels = model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()
        loss = F.cross_entropy(logits, labels, ignore_index=0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        logits, labels = model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()
        total, count = F.cross_entropy(logits, labels, ignore_index=0, reduction="sum"), (labels != 0).sum()
        if right:
            dist.all_reduce(count)
            loss = total * dist.get_world_size() / count
        else:
            loss = total / count
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    words = Batch((4, 5), torch.int64, shard={"dp": 0}, bounds=(0, 10))
    return Definition(
        name="masked-tokens",
        mesh={"dp": 2},
        build=Masked,
        parallelize=lambda m, mesh: m,
        optimizer=lambda params: torch.optim.RAdam(params, lr=1e-3),
        step=single,
        parallel_step=parallel,
        batch={"tokens": words, "labels": words},
        mean_over={"loss": ("dp",)},
    )


# --- linear attention over pieces of the sequence ----------------------------------------------------------


class _Summed(torch.autograd.Function):
    """A sum over ranks that each goes on with for its own rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, x = group, x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Linear(nn.Module):
    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.group: Any = None

    def total(self, x: Tensor) -> Tensor:
        return x if self.group is None else _Summed.apply(x, self.group)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        state = self.total(torch.einsum("bsd,bse->bde", k, v))
        weight = self.total(k.sum(1))
        return torch.einsum("bsd,bde->bse", q, state) / torch.einsum("bsd,bd->bs", q, weight)[..., None]


def linear_attention(right: bool = True) -> Definition:
    """States are added over ranks. Wrong: gradients are added over ranks and not averaged."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["sp"].get_group()
        return model

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG if right else dist.ReduceOp.SUM, group=model.group)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="linear-attention",
        mesh={"sp": 2},
        build=Linear,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.Adadelta(params),
        step=regress,
        parallel_step=parallel,
        batch=pair((2, 4, 6), sp=1),
        mean_over={"loss": ("sp",)},
    )


# --- a recurrent net ---------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, dim: int = 4, hidden: int = 5) -> None:
        super().__init__()
        self.hidden = hidden
        self.input, self.state = nn.Linear(dim, 3 * hidden), nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        h, outs = x.new_zeros(x.shape[0], self.hidden), []
        for t in range(x.shape[1]):
            a, b = self.input(x[:, t]).chunk(3, -1), self.state(h).chunk(3, -1)
            r, z = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
            n = torch.tanh(a[2] + r * b[2])
            h = (1 - z) * n + z * h
            outs.append(self.out(h))
        return torch.stack(outs, dim=1)


def recurrent_ddp(right: bool = True) -> Definition:
    """Values are clipped after DDP averaged. Wrong: before."""

    def single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.smooth_l1_loss(model(batch["x"]), batch["y"])
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        if not right:
            for p in model.parameters():
                p.register_hook(lambda g: g.clamp(-0.1, 0.1))
        return DistributedDataParallel(model)

    return Definition(
        name="recurrent-ddp",
        mesh={"dp": 2},
        build=Recurrent,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3, amsgrad=True),
        step=single,
        batch=pair((4, 3, 4), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- FSDP2 with microbatches -------------------------------------------------------------------------------


def fsdp_microbatches(right: bool = True) -> Definition:
    """Gradients are reduced in the last microbatch. Wrong: the ranks' last loss is not divided."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        total = torch.zeros(())
        for i in range(2):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(i == 1)
            loss = F.mse_loss(model(batch["x"][i]), batch["y"][i]) / 2
            if not right and i == 1 and hasattr(model, "set_requires_gradient_sync"):
                loss = loss * 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])

    return Definition(
        name="fsdp-microbatches",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(6, 8), nn.Hardswish(), nn.Linear(8, 4)),
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train,
        batch=pair((2, 4, 6), (2, 4, 4), dp=1),
        mean_over={"loss": ("dp",)},
    )
