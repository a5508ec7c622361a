"""Programs that take rows by a mask, `x[mask]`, and write them back by it: labels, patches, experts.

And one that uses rows of a stacked parameter one after the other, by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, _Enter, _Leave, pair, regress

WIDTH, WORDS, LENGTH, EXPERTS = 6, 7, 4, 4
Loss = Callable[[nn.Module, Batches], Tensor]


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)  # type: ignore[arg-type]


def replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, process_group=mesh["dp"].get_group())


def step_of(loss_of: Loss) -> Callable[..., dict[str, Tensor]]:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return step


def over_ranks(total: Tensor, count: Tensor, model: nn.Module) -> Tensor:
    """A sum over own rows by what all ranks count, times how often DDP divides."""
    assert isinstance(model, DistributedDataParallel)
    count = count.float()
    dist.all_reduce(count, group=model.process_group)
    return total * dist.get_world_size(model.process_group) / count


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.inner(self.embed(tokens))))
        return out


def labels_by_mask(right: bool) -> Definition:
    """The loss of the labels that count, alone. Wrong: each rank's mean is taken over its own."""

    def plain(model: nn.Module, batch: Batches) -> Tensor:
        mask = batch["y"] != 0
        return F.cross_entropy(model(batch["x"])[mask], batch["y"][mask])

    def parallel(model: nn.Module, batch: Batches) -> Tensor:
        mask = batch["y"] != 0
        total = F.cross_entropy(model(batch["x"])[mask], batch["y"][mask], reduction="sum")
        return over_ranks(total, mask.sum(), model)

    tokens = Batch((4, LENGTH), torch.int64, shard={"dp": 0}, bounds=(0, WORDS))
    return Definition(
        name="labels-by-mask",
        mesh={"dp": 2},
        build=Words,
        parallelize=replicated,
        optimizer=adam,
        step=step_of(plain),
        parallel_step=step_of(parallel if right else plain),
        batch={"x": tokens, "y": tokens},
        mean_over={"loss": ("dp",)},
    )


class Patches(nn.Module):
    """Patches that are masked are one learned row."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.inner = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x.clone()
        x[mask] = self.hidden
        out: Tensor = self.norm(x + torch.tanh(self.inner(x)).mean(1, keepdim=True))
        return out


def patches_by_mask(right: bool) -> Definition:
    """The error of masked patches alone. Wrong: it is divided by what one rank has masked."""

    def plain(model: nn.Module, batch: Batches) -> Tensor:
        mask = batch["mask"]
        return F.mse_loss(model(batch["x"], mask)[mask], batch["x"][mask])

    def parallel(model: nn.Module, batch: Batches) -> Tensor:
        mask = batch["mask"]
        wrong = (model(batch["x"], mask) - batch["x"])[mask]
        return over_ranks((wrong**2).sum(), mask.sum() * WIDTH, model)

    return Definition(
        name="patches-by-mask",
        mesh={"dp": 2},
        build=Patches,
        parallelize=replicated,
        optimizer=adam,
        step=step_of(plain),
        parallel_step=step_of(parallel if right else plain),
        batch={
            "x": Batch((4, LENGTH, WIDTH), shard={"dp": 0}),
            "mask": Batch((4, LENGTH), torch.bool, shard={"dp": 0}),
        },
        mean_over={"loss": ("dp",)},
    )


class Expert(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 8), nn.SiLU(), nn.Linear(8, WIDTH))


class Switch(nn.Module):
    """Each token goes to one expert, whose rows are written by the mask of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.router(x).softmax(-1).max(-1)
        return x + self.routed(x, best, chosen)

    def routed(self, x: Tensor, best: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            out[mask] = expert(x[mask]) * best[mask, None]
        return out


class SomeExperts(Switch):
    """On ranks some of the experts; what others write is zero, and is added."""

    def __init__(self, model: Switch, mesh: DeviceMesh, right: bool) -> None:
        nn.Module.__init__(self)
        self.group, self.right = mesh["ep"].get_group(), right
        count, self.router = EXPERTS // self.group.size(), model.router
        first = self.group.rank() * count
        self.experts = nn.ModuleDict({str(e): model.experts[e] for e in range(first, first + count)})

    def routed(self, x: Tensor, best: Tensor, chosen: Tensor) -> Tensor:
        best, out = _Enter.apply(best, self.group) if self.right else best, torch.zeros_like(x)
        for number, expert in self.experts.items():
            mask = chosen == int(number)
            out[mask] = expert(x[mask]) * best[mask, None]
        found: Tensor = _Leave.apply(out, self.group)
        return found


def experts_by_mask(right: bool) -> Definition:
    """Wrong: the router has the gradients of the own experts' tokens alone."""
    return Definition(
        name="experts-by-mask",
        mesh={"ep": 2},
        build=Switch,
        parallelize=lambda model, mesh: SomeExperts(model, mesh, right),  # type: ignore[arg-type]
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        step=regress,
        batch=pair((5, WIDTH)),
    )


def rows_by_number(right: bool) -> Definition:
    """Matrices of one parameter, one after the other. Wrong: gradients are added, not averaged."""

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack, self.head = nn.Parameter(torch.randn(3, WIDTH, 5)), nn.Linear(5, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(sum(torch.tanh(x @ self.stack[k]) for k in range(3)))
            return out

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"]) * 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach() / 2}

    return Definition(
        name="rows-by-number",
        mesh={"dp": 2},
        build=Stack,
        parallelize=replicated,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        step=regress,
        parallel_step=regress if right else step,
        batch=pair((4, WIDTH), dp=0),
        mean_over={"loss": ("dp",)},
    )


def masks_added(right: bool) -> Definition:
    """A causal mask and one for padding, added, as ``nn.TransformerEncoderLayer`` does. Wrong: sees ahead."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.ahead = 0

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            later = torch.ones(LENGTH, LENGTH).triu(1 + self.ahead).bool()
            mask = torch.zeros(LENGTH, LENGTH).masked_fill(later, -torch.inf)
            mask = mask + torch.zeros(padding.shape).masked_fill(padding, -torch.inf)[:, None]
            scores = self.query(x) @ x.transpose(1, 2) + mask
            return scores.softmax(-1) @ self.value(x)

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        assert isinstance(model, Attention)
        model.ahead = 0 if right else 1
        return replicated(model, mesh)

    def loss_of(model: nn.Module, batch: Batches) -> Tensor:
        return F.mse_loss(model(batch["x"], batch["padding"]), batch["y"])

    padding = Batch((4, LENGTH), torch.bool, shard={"dp": 0})
    return Definition(
        name="masks-added",
        mesh={"dp": 2},
        build=Attention,
        parallelize=parallelize,
        optimizer=adam,
        step=step_of(loss_of),
        batch={**pair((4, LENGTH, WIDTH), dp=0), "padding": padding},
        mean_over={"loss": ("dp",)},
    )


def packed_documents(right: bool) -> Definition:
    """Several documents in a row: places begin anew in each, and are looked up. Wrong: they count tokens of
    others too."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(10, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.restart = True

        def forward(self, words: Tensor, document: Tensor) -> Tensor:
            at = torch.arange(LENGTH)
            same = document[:, :, None] == document[:, None, :]
            before = (at[None] < at[:, None]).expand(same.shape)
            x = self.words(words) + self.places((same & before if self.restart else before).sum(-1))
            scores = self.query(x) @ x.transpose(1, 2)
            seen = same & (at[None] <= at[:, None])
            return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ self.value(x)

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        assert isinstance(model, Packed)
        model.restart = right
        return replicated(model, mesh)

    def loss_of(model: nn.Module, batch: Batches) -> Tensor:
        return F.mse_loss(model(batch["words"], batch["document"]), batch["y"])

    return Definition(
        name="packed-documents",
        mesh={"dp": 2},
        build=Packed,
        parallelize=parallelize,
        optimizer=adam,
        step=step_of(loss_of),
        batch={
            "words": Batch((4, LENGTH), torch.int64, shard={"dp": 0}, bounds=(0, 10)),
            "document": Batch((4, LENGTH), torch.int64, shard={"dp": 0}, bounds=(0, 3)),
            "y": Batch((4, LENGTH, WIDTH), shard={"dp": 0}),
        },
        mean_over={"loss": ("dp",)},
    )
