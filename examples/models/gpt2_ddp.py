"""GPT-2 under PyTorch's own DistributedDataParallel: learned positions, LayerNorm, tanh GELU, tied head.

``--set micro=2`` accumulates under ``no_sync``, ``--set frozen=1`` freezes the first block and the positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition


@dataclass(frozen=True)
class Config:
    """Sizes of a GPT-2; the defaults are those of the smallest one but for its depth."""

    vocab: int = 50304
    context: int = 1024
    layers: int = 2
    heads: int = 12
    dim: int = 768


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.out = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, dim = x.shape
        parts = self.qkv(x).split(dim, dim=2)
        q, k, v = (p.view(rows, length, self.heads, dim // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined: Tensor = self.out(y.transpose(1, 2).reshape(rows, length, dim))
        return joined


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.dim), nn.LayerNorm(config.dim)
        self.attention = Attention(config)
        self.up, self.down = nn.Linear(config.dim, 4 * config.dim), nn.Linear(4 * config.dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return y


class GPT2(nn.Module):
    """The head is the embedding of tokens, used a second time."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.dim)
        self.positions = nn.Embedding(config.context, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor], micro: int = 1
) -> dict[str, Tensor]:
    """Gradients are summed over the ranks in the last of ``micro`` backward passes only."""
    losses = []
    for i in range(micro):
        tokens, labels = batch["tokens"][i], batch["labels"][i]
        quiet = i < micro - 1 and isinstance(model, DistributedDataParallel)
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = model(tokens, labels) / micro
            loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": torch.stack(losses).sum()}


def definition(
    ranks: int = 4,
    rows: int = 8,
    length: int = 1024,
    layers: int = 2,
    heads: int = 12,
    dim: int = 768,
    vocab: int = 50304,
    micro: int = 1,
    frozen: int = 0,
) -> Definition:
    """One step of AdamW on ``micro`` times ``rows`` sequences over ``ranks`` data-parallel ranks."""
    config = Config(vocab, length, layers, heads, dim)

    def build() -> GPT2:
        model = GPT2(config)
        for block in list(model.blocks)[:frozen]:
            block.requires_grad_(False)
        if frozen:
            model.positions.requires_grad_(False)
        return model

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"))

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return train_step(model, optimizer, batch, micro)

    with torch.device("meta"):
        names = [name for name, _ in GPT2(config).named_parameters()]
    return Definition(
        name=f"gpt2-{layers}l-ddp{ranks}",
        mesh={"dp": ranks},
        build=build,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4, weight_decay=0.1),
        step=step,
        batch={
            "tokens": Batch((micro, rows, length), torch.int64, shard={"dp": 1}, bounds=(0, vocab)),
            "labels": Batch((micro, rows, length), torch.int64, shard={"dp": 1}, bounds=(0, vocab)),
        },
        layouts={name: {} for name in names},
        mean_over={"loss": ("dp",)},
    )
