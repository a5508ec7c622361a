"""What a step counts: where each text ends, and what was seen since the last step."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import Batches

WORDS, LENGTH, WIDTH, CLASSES = 6, 4, 3, 2


class _Counting(nn.Module):
    """A model with the group of ranks that share a batch, if there is one."""

    group: dist.ProcessGroup | None = None
    right = True

    def over_ranks(self) -> None:
        """Averages of gradients."""
        for p in self.parameters():
            if self.group is not None and p.grad is not None:
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= self.group.size()


def _sharing(right: bool) -> object:
    def parallelize(model: _Counting, mesh: DeviceMesh) -> nn.Module:
        model.group, model.right = mesh["dp"].get_group(), right
        return model

    return parallelize


class _Classifier(_Counting):
    """Classifies a text by the state of its last word, as GPT2ForSequenceClassification does."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = torch.tanh(self.words(ids))
        last = mask.long().sum(1) - 1 if self.right else mask.long().sum(1) - 2
        return self.head(states[torch.arange(len(ids)), last.clamp(min=0)])  # type: ignore[no-any-return]


def last_words(right: bool = True) -> Definition:
    """Reward models and classifiers of texts. Wrong: ranks take the word before the last one."""

    def train(model: _Classifier, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["ids"], batch["mask"]), batch["class"])
        loss.backward()
        model.over_ranks()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="last-words",
        mesh={"dp": 2},
        build=_Classifier,
        parallelize=_sharing(right),  # type: ignore[arg-type]
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-1),
        step=train,  # type: ignore[arg-type]
        batch={
            "ids": Batch((4, LENGTH), torch.int64, {"dp": 0}, (0, WORDS)),
            "mask": Batch((4, LENGTH), torch.bool, {"dp": 0}),
            "class": Batch((4,), torch.int64, {"dp": 0}, (0, CLASSES)),
        },
        mean_over={"loss": ("dp",)},
    )


class _Router(_Counting):
    """Two experts for all, and a bias for the one that was chosen less, without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)
        self.register_buffer("bias", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).sigmoid()
        first, second = (scores + self.bias).detach().unbind(1)
        chosen = torch.stack((first >= second, first < second), 1).to(x.dtype)
        self.seen += chosen.sum(0)
        return (scores * chosen * self.experts(x)).sum(1)

    @torch.no_grad()
    def balance(self) -> None:
        """Moves the bias, and counts from zero again."""
        if self.group is not None and self.right:
            dist.all_reduce(self.seen, group=self.group)
        self.bias += 1e-3 * torch.sign(self.seen.mean() - self.seen)
        self.seen.zero_()


def counts_from_zero(right: bool = True) -> Definition:
    """Counters and gradients that each step leaves at zero, in place. Wrong: ranks count their own rows."""

    def train(model: _Router, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        model.over_ranks()
        optimizer.step()
        model.balance()
        optimizer.zero_grad(set_to_none=False)
        return {"loss": loss.detach()}

    return Definition(
        name="counts-from-zero",
        mesh={"dp": 2},
        build=_Router,
        parallelize=_sharing(right),  # type: ignore[arg-type]
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-1),
        step=train,  # type: ignore[arg-type]
        batch={"x": Batch((4, WIDTH), shard={"dp": 0}), "y": Batch((4,), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )
