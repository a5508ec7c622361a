"""A layer of experts with real dispatch: rows sorted by expert, grouped products, and the way back.

A router with softmax scores picks ``chosen`` experts for each token by ``topk``; their scores are normalised.
Each token has a row for each of its experts; rows are sorted by expert, go through the weights of theirs,
are multiplied with their scores, and added up by token. How many rows an expert has depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
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
        counts = torch.bincount(ids.view(-1), minlength=self.router.out_features)
        rows = self.experts(x[order // self.chosen], counts)
        rows = rows * scores.view(-1)[order].unsqueeze(-1)
        return x + torch.zeros_like(x).index_add(0, order // self.chosen, rows)


class Exchange(torch.autograd.Function):
    """Rows to the ranks of a group and from them, by counts that each rank knows; the gradient goes back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, went: list[int], came: list[int], group: ProcessGroup) -> Tensor:
        ctx.went, ctx.came, ctx.group = went, came, group
        out = rows.new_empty(sum(came), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), came, went, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return Exchange.apply(grad, ctx.came, ctx.went, ctx.group), None, None, None


class ParallelExperts(Experts):
    """A rank's own tokens, and the experts of its place in ``ep``: rows go where their experts are."""

    def __init__(self, model: Experts, mesh: DeviceMesh) -> None:
        nn.Module.__init__(self)
        self.dp, self.ep = mesh["dp"].get_group(), mesh["ep"].get_group()
        self.router, self.chosen = model.router, model.chosen
        for name, parameter in model.named_parameters(recurse=False):
            part = parameter.detach().chunk(self.ep.size(), 0)[mesh.get_local_rank("ep")]
            self.register_parameter(name, nn.Parameter(part.clone()))

    def experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        if self.ep.size() == 1:
            return super().experts(rows, counts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.ep)
        by_rank = arriving.view(self.ep.size(), -1)
        went, came = counts.view(self.ep.size(), -1).sum(1).tolist(), by_rank.sum(1).tolist()
        place = self.by_expert(by_rank, sum(came))
        rows = Exchange.apply(rows, went, came, self.ep)[place]
        rows = super().experts(rows, by_rank.sum(0))
        back = torch.empty_like(rows).index_put((place,), rows)
        return Exchange.apply(back, came, went, self.ep)

    def by_expert(self, counts: Tensor, total: int) -> Tensor:
        """The numbers of rows that came rank by rank, from each sorted by expert, in the order of experts."""
        starts = (counts.view(-1).cumsum(0) - counts.view(-1)).view_as(counts)
        sizes, starts = counts.t().reshape(-1), starts.t().reshape(-1)
        piece = torch.repeat_interleave(torch.arange(len(sizes)), sizes, output_size=total)
        ends = sizes.cumsum(0)
        return starts[piece] + torch.arange(total) - (ends - sizes)[piece]


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    if isinstance(model, ParallelExperts):
        for name, parameter in model.named_parameters():
            dist.all_reduce(parameter.grad, group=model.dp)
            if name.startswith("router"):  # experts have the gradients of the tokens of all ranks of ep
                dist.all_reduce(parameter.grad, group=model.ep)
            parameter.grad /= model.dp.size() * model.ep.size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def definition(
    width: int = 16,
    hidden: int = 24,
    experts: int = 4,
    chosen: int = 2,
    tokens: int = 24,
    dp: int = 2,
    ep: int = 2,
    parallel: Callable[[Experts, DeviceMesh], nn.Module] = ParallelExperts,
) -> Definition:
    batch = Batch(shape=(tokens, width), shard={"dp": 0, "ep": 0})
    return Definition(
        name="moe-packed",
        mesh={"dp": dp, "ep": ep},
        build=lambda: Experts(width, hidden, experts, chosen),
        parallelize=parallel,
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-3),
        step=train_step,
        batch={"x": batch, "y": batch},
        mean_over={"loss": ("dp", "ep")},
    )
