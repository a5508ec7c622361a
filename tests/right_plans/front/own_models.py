"""Small models as people write them for themselves, data and tensor parallel by PyTorch's own means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition

Batches = Mapping[str, Tensor]
VOCABULARY = 16


def tokens(rows: int = 4, length: int = 6, axis: str = "dp") -> dict[str, Batch]:
    """Tokens and the next ones."""
    shard = {axis: 0} if axis else {}
    return {
        n: Batch((rows, length), torch.int64, shard=shard, bounds=(0, VOCABULARY))
        for n in ("tokens", "targets")
    }


# --- minGPT: learned positions, fused qkv, tied head, DDP, clipping, groups of parameters ------------------


class CausalSelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = CausalSelfAttention(dim, heads, length)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MiniGPT(nn.Module):
    def __init__(self, dim: int = 8, heads: int = 2, length: int = 6, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, dim), nn.Embedding(length, dim)
        self.h = nn.ModuleList(Block(dim, heads, length) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def minigpt_ddp(right: bool = True) -> Definition:
    """Weights decay and biases do not; the norm is clipped after DDP averaged. Wrong: clipped before."""

    def configure(params: Any) -> torch.optim.Optimizer:
        params = list(params)
        decay = [p for p in params if p.dim() >= 2]
        rest = [p for p in params if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))

    def single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = model(batch["tokens"], batch["targets"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"loss": loss.detach()}

    def unsynchronised(model: Any, optimizer: Any, batch: Batches) -> dict[str, Tensor]:
        with model.no_sync():
            loss = model(batch["tokens"], batch["targets"])
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"loss": loss.detach()}

    return Definition(
        name="minigpt-ddp2",
        mesh={"dp": 2},
        build=MiniGPT,
        parallelize=lambda m, mesh: DistributedDataParallel(m),
        optimizer=configure,
        step=single,
        parallel_step=single if right else unsynchronised,
        batch=tokens(),
        mean_over={"loss": ("dp",)},
    )


# --- a Llama-like model, TP and sequence parallel by DTensor, FSDP2 ----------------------------------------


class Norm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class Grouped(nn.Module):
    """Grouped queries, rotary positions of neighbouring pairs."""

    def __init__(self, dim: int = 16, heads: int = 4, kv: int = 2) -> None:
        super().__init__()
        self.head = dim // heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, kv * self.head, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, -1, self.head).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(b, s, -1))


class Gated(nn.Module):
    def __init__(self, dim: int = 16, hidden: int = 24) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Grouped(), Gated()
        self.attention_norm, self.ffn_norm = Norm(16), Norm(16)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), cos, sin)
        return h + self.feed_forward(self.ffn_norm(h))


class Decoder(nn.Module):
    def __init__(self, layers: int = 1, length: int = 6) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.output = Norm(16), nn.Linear(16, VOCABULARY, bias=False)
        angles = torch.outer(torch.arange(length), 1.0 / (10000 ** (torch.arange(0, 4, 2) / 4)))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return self.output(self.norm(h))


def next_token(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["targets"].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def llama_sp_fsdp(right: bool = True) -> Definition:
    """TP 2 with sequence parallelism, FSDP2 over 2. Wrong: the loss is halved before its backward pass."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        tp = mesh["tp"]
        parallelize_module(
            model,
            tp,
            {
                "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "norm": SequenceParallel(),
                "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            },
        )
        for layer in model.layers:
            parallelize_module(
                layer,
                tp,
                {
                    "attention_norm": SequenceParallel(),
                    "attention": PrepareModuleInput(
                        input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
                    ),
                    "attention.wq": ColwiseParallel(),
                    "attention.wk": ColwiseParallel(),
                    "attention.wv": ColwiseParallel(),
                    "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                    "ffn_norm": SequenceParallel(),
                    "feed_forward": PrepareModuleInput(
                        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                    ),
                    "feed_forward.w1": ColwiseParallel(),
                    "feed_forward.w3": ColwiseParallel(),
                    "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
                },
            )
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        return model

    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["targets"].flatten())
        (loss if right else loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="llama-sp-fsdp",
        mesh={"dp": 2, "tp": 2},
        build=Decoder,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4),
        step=next_token,
        parallel_step=parallel,
        batch=tokens(),
        mean_over={"loss": ("dp",)},
    )


# --- convolutions, GroupNorm, DDP, RMSprop -----------------------------------------------------------------


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 4)
        self.down = nn.Conv2d(4, 6, 2, stride=2)
        self.norm2 = nn.GroupNorm(3, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.stem(x)))
        x = F.relu(self.norm2(self.down(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def convnet_ddp(right: bool = True) -> Definition:
    """Wrong: gradients are added and not averaged."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def hook(group: Any, bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda f: f.value()[0])

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        model = DistributedDataParallel(model)
        if not right:
            model.register_comm_hook(mesh["dp"].get_group(), hook)
        return model

    return Definition(
        name="convnet-ddp",
        mesh={"dp": 2},
        build=ConvNet,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.RMSprop(params, lr=1e-2, momentum=0.9),
        step=step,
        batch={
            "x": Batch((4, 3, 4, 4), shard={"dp": 0}),
            "y": Batch((4,), torch.int64, shard={"dp": 0}, bounds=(0, 5)),
        },
        mean_over={"loss": ("dp",)},
    )
