"""What stands elsewhere than it did: tokens shifted by one, and windows of a picture that was rolled."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import own, pair, regress
from .many_habits import Enter
from .whole_batches import Total

WORDS, LENGTH, WIDTH, HEADS, SIDE, WINDOW, SHIFT = 6, 3, 4, 2, 4, 2, 1


class _Heads(nn.Module):
    """Attention by heads, on a rank those of its own."""

    group: dist.ProcessGroup | None = None

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.group is None else Enter.apply(x, self.group)
        q, k, v = (f(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2)
        if self.causal:
            scores = scores + (1 - torch.ones(LENGTH, LENGTH).tril()) * -1e4
        y = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return y if self.group is None else Total.apply(y, self.group, False)  # type: ignore[no-any-return]

    def shard(self, group: dist.ProcessGroup) -> None:
        self.group = group
        for linear in (self.q, self.k, self.v):
            linear.weight = own(linear.weight, group, 0)
        self.o.weight = own(self.o.weight, group, 1)


class _Decoder(nn.Module):
    """Reads a first token that is always the same, then the labels: as T5 and BART do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.heads, self.right = nn.Embedding(WORDS, WIDTH), _Heads(causal=True), True

    def forward(self, labels: Tensor) -> Tensor:
        started = F.pad(labels[:, :-1], (1, 0), value=0 if self.right else 1)
        return self.heads(self.words(started)) @ self.words.weight.t()


def shifted_labels(right: bool = True) -> Definition:
    """The first token of each sequence is one row of the table, for all of the batch. Wrong: another row."""

    def parallelize(model: _Decoder, mesh: DeviceMesh) -> nn.Module:
        model.heads.shard(mesh["tp"].get_group())
        model.right = right
        return model

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["labels"]).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="shifted-labels",
        mesh={"tp": 2},
        build=_Decoder,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        step=train,
        batch={"labels": Batch((2, LENGTH), torch.int64, bounds=(0, WORDS))},
    )


class _Rolled(nn.Module):
    """Attention in the windows of a picture that is rolled, and rolled back: Swin's shifted windows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads, self.back = nn.LayerNorm(WIDTH), _Heads(causal=False), SHIFT

    def forward(self, x: Tensor) -> Tensor:
        n, count = WINDOW, SIDE // WINDOW
        y = torch.roll(self.norm(x), (-SHIFT, -SHIFT), (1, 2))
        windows = y.view(-1, count, n, count, n, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, WIDTH)
        z = self.heads(windows).view(-1, count, count, n, n, WIDTH).permute(0, 1, 3, 2, 4, 5)
        return x + torch.roll(z.reshape(-1, SIDE, SIDE, WIDTH), (self.back, self.back), (1, 2))


def rolled_windows(right: bool = True) -> Definition:
    """Wrong: rolled back too far."""

    def parallelize(model: _Rolled, mesh: DeviceMesh) -> nn.Module:
        model.heads.shard(mesh["tp"].get_group())
        model.back = SHIFT if right else SHIFT + 1
        return model

    return Definition(
        name="rolled-windows",
        mesh={"tp": 2},
        build=_Rolled,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        step=regress,
        batch=pair((2, SIDE, SIDE, WIDTH)),
    )
