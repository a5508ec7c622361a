"""A segmentation with a decoder that enlarges its features, and a loss whose sums are over all pixels."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from orchestrator.capture import Definition

from .by_hand import Batches, pair


class _Net(nn.Module):
    group: dist.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(1, 3, 3, padding=1)
        self.coarse = nn.Conv2d(3, 3, 3, stride=2, padding=1)
        self.head, self.aside = nn.Conv2d(6, 1, 1), nn.Conv2d(3, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = F.leaky_relu(self.fine(x), 0.1)
        coarse = F.elu(self.coarse(fine))
        wide = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        aside = F.interpolate(self.aside(coarse), size=x.shape[2:], mode="bilinear", align_corners=True)
        return self.head(torch.cat([fine, wide], 1)), aside


def segmented(right: bool = True) -> Definition:
    """Dice's coefficient over the pixels of the whole batch; wrong: over a rank's."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        def over_all(x: Tensor) -> Tensor:
            return x if model.group is None or not right else all_reduce(x, group=model.group)

        y = batch["y"]
        out, aside = model(batch["x"])
        p = out.sigmoid()
        both, either = over_all((p * y).sum()), over_all(p.sum()) + over_all(y.sum())
        focal = (1 - (p * y + (1 - p) * (1 - y))) ** 2
        pixels = (focal * F.binary_cross_entropy_with_logits(out, y, reduction="none")).mean()
        loss = 1 - (2 * both + 1) / (either + 1) + pixels + F.binary_cross_entropy_with_logits(aside, y)
        loss.backward()
        if model.group is not None:
            for p in model.parameters():
                dist.all_reduce(p.grad, group=model.group)
                p.grad.div_(model.group.size())
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: Any) -> nn.Module:
        model.group = mesh["dp"].get_group()
        return model  # type: ignore[no-any-return]

    return Definition(
        name="segmented",
        mesh={"dp": 2},
        build=_Net,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        step=step,
        batch=pair((4, 1, 4, 4), (4, 1, 4, 4), dp=0),
        mean_over={"loss": ("dp",)},
    )
