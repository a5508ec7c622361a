"""A layer of experts with real dispatch: rows sorted by expert, grouped products, and the way back.

A router with softmax scores picks ``chosen`` experts for each token by ``topk``; their scores are normalised.
Each token has a row for each of its experts; rows are sorted by expert, go through the weights of theirs,
are multiplied with their scores, and added up by token. How many rows an expert has depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition


class Experts(nn.Module):
    """Router and gated experts, of which each token has ``chosen``."""

    def __init__(self, width: int, hidden: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, width, hidden))
        self.up = nn.Parameter(torch.randn(experts, width, hidden))
        self.down = nn.Parameter(torch.randn(experts, hidden, width))
        self.chosen = chosen

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[tokens, chosen]: normalised scores and the experts that they are of."""
        scores = F.softmax(self.router(x), dim=-1)
        best, ids = torch.topk(scores, self.chosen, dim=-1)
        return best / best.sum(-1, keepdim=True), ids

    def experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Each row through its expert; rows of an expert follow one another, ``counts`` of them."""
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        rows = rows.bfloat16()
        gate = torch._grouped_mm(rows, self.gate.bfloat16(), offs=ends)
        up = torch._grouped_mm(rows, self.up.bfloat16(), offs=ends)
        return torch._grouped_mm(F.silu(gate) * up, self.down.bfloat16(), offs=ends).float()

    def forward(self, x: Tensor) -> Tensor:
        scores, ids = self.route(x)
        order = torch.argsort(ids.view(-1), stable=True)
        counts = F.one_hot(ids.view(-1), self.gate.shape[0]).sum(0)
        rows = self.experts(x[order // self.chosen], counts)
        rows = rows * scores.view(-1)[order].unsqueeze(-1)
        return x + torch.zeros_like(x).index_add(0, order // self.chosen, rows)


class Replica(Experts):
    """The whole layer on a rank's own tokens."""

    def __init__(self, model: Experts, mesh: DeviceMesh) -> None:
        nn.Module.__init__(self)
        self.dp, self.chosen = mesh["dp"].get_group(), model.chosen
        for name, parameter in model.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.router = model.router


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    if isinstance(model, Replica):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=model.dp)
            parameter.grad /= model.dp.size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def definition(
    width: int = 16,
    hidden: int = 24,
    experts: int = 4,
    chosen: int = 2,
    tokens: int = 12,
    dp: int = 2,
    parallel: Callable[[Experts, DeviceMesh], nn.Module] = Replica,
) -> Definition:
    batch = Batch(shape=(tokens, width), shard={"dp": 0})
    return Definition(
        name="moe-packed",
        mesh={"dp": dp},
        build=lambda: Experts(width, hidden, experts, chosen),
        parallelize=parallel,
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-3),
        step=train_step,
        batch={"x": batch, "y": batch},
        mean_over={"loss": ("dp",)},
    )
