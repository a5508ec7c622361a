"""Part 2: FSDP2 and HSDP by PyTorch, with uneven shards; and uneven shards gathered by hand."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from orchestrator.capture import Batch, Definition

from .kit import Batches, _Pair, adamw, mse_step, part

HYBRID = {"rep": 2, "dp": 2}


def build(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, hidden), nn.SiLU(), nn.Linear(hidden, 6))


# --- PyTorch's ----------------------------------------------------------------------------------------------


def hybrid(model: nn.Module, mesh: DeviceMesh, mistake: str) -> nn.Module:
    over = mesh["dp"] if mistake == "replicas not reduced" else mesh["rep", "dp"]
    ignored = {model.get_submodule("2").bias} if mistake == "bias left out of the sharded group" else None
    model = fully_shard(model, mesh=over, ignored_params=ignored)
    assert isinstance(model, FSDPModule)
    factors = {"divided by the shards only": 2.0, "gradient not divided": 1.0}
    if mistake in factors:
        model.set_gradient_divide_factor(factors[mistake])
    model.replicas = mesh["rep"].get_group()
    return model


def hybrid_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, mistake: str
) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    objective = loss
    if mistake == "gradient divided twice":
        objective = loss / 4
    if mistake == "loss summed over local rows":
        objective = loss * batch["x"].shape[0]
    objective.backward()
    if mistake == "gradient reduced over the replicas again":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad.to_local(), group=model.replicas)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def define_hybrid(mistake: str, hidden: int = 7) -> Definition:
    batch = Batch(shape=(8, 6), shard={"rep": 0, "dp": 0})
    return Definition(
        name="breakages-hsdp",
        mesh=HYBRID,
        build=lambda: build(hidden),
        parallelize=functools.partial(hybrid, mistake=mistake),
        optimizer=adamw,
        step=mse_step,
        parallel_step=functools.partial(hybrid_step, mistake=mistake),
        batch={"x": batch, "y": batch},
        layouts={"2.bias": {}},
        mean_over={"loss": ("rep", "dp")},
    )


# --- by hand ------------------------------------------------------------------------------------------------


class Shards(nn.Module):
    """Rows of every parameter over ``dp``: each rank has the rounded-up share, the last ones what is left."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        self.group, self.mistake = mesh["dp"].get_group(), mistake
        self.rows: dict[str, int] = {}
        for name, whole in list(model.named_parameters()):
            layer, _, last = name.partition(".")
            if layer not in dict(self.named_children()):
                self.add_module(layer, nn.Module())
            self.rows[name] = whole.shape[0]
            mine = whole.detach().chunk(self.group.size(), 0)[self.group.rank()]
            setattr(self.get_submodule(layer), last, nn.Parameter(mine.clone()))

    def whole(self, name: str) -> Tensor:
        """A parameter from all shards, padded to equal pieces on the way; its gradient goes the other way."""
        size, rank, rows = self.group.size(), self.group.rank(), self.rows[name]
        piece, mistake = -(-rows // size), self.mistake

        def there(mine: Tensor) -> Tensor:
            missing = piece - mine.shape[0]
            pads = [0, 0] * (mine.dim() - 1)
            front = mistake == "padding put before the rows of a short shard"
            padded = F.pad(mine.detach(), [*pads, missing, 0] if front else [*pads, 0, missing])
            flat = padded.new_empty(piece * size, *mine.shape[1:])
            dist.all_gather_into_tensor(flat, padded, group=self.group)
            if mistake == "padding stripped at the front":
                return flat[piece * size - rows :]
            return flat[:rows]

        def back(grad: Tensor) -> Tensor:
            pads = [0, 0] * (grad.dim() - 1)
            padded = F.pad(grad, [*pads, 0, piece * size - rows])
            if mistake == "gradient padded at the front":
                padded = F.pad(grad, [*pads, piece * size - rows, 0])
            mine = padded.new_empty(piece, *grad.shape[1:])
            dist.reduce_scatter_tensor(mine, padded.contiguous(), group=self.group)
            if mistake == "gradient taken from the next rank's rows":
                moved = torch.cat([padded[piece:], padded[:piece]])
                dist.reduce_scatter_tensor(mine, moved, group=self.group)
            if mistake == "reduce-scatter replaced by the own rows":
                mine = padded[rank * piece : (rank + 1) * piece] * size
            held = min(piece, rows - rank * piece)
            return mine[:held] / size

        layer, _, last = name.partition(".")
        return _Pair.apply(getattr(self.get_submodule(layer), last), there, back)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(F.linear(x, self.whole("0.weight"), self.whole("0.bias")))
        return F.linear(h, self.whole("2.weight"), self.whole("2.bias"))


def define_uneven(mistake: str) -> Definition:
    batch = Batch(shape=(6, 8), shard={"dp": 0})
    return Definition(
        name="breakages-uneven-shards",
        mesh={"dp": 3},
        build=lambda: nn.Sequential(nn.Linear(8, 7), nn.SiLU(), nn.Linear(7, 8)),
        parallelize=functools.partial(Shards, mistake=mistake),
        optimizer=adamw,
        step=mse_step,
        batch={"x": batch, "y": batch},
        layouts={name: {"dp": 0} for name in ("0.weight", "0.bias", "2.weight", "2.bias")},
        mean_over={"loss": ("dp",)},
    )


PART = part(
    "FSDP2 and HSDP: shards, even and uneven",
    {
        "HSDP by PyTorch, rep 2 x dp 2": (
            define_hybrid,
            {
                "gradient divided twice": "params.0.weight",
                "gradient not divided": "params.0.weight",
                "divided by the shards only": "params.0.weight",
                "replicas not reduced": "params.0.weight",
                "gradient reduced over the replicas again": "params.0.weight",
                "loss summed over local rows": "params.0.weight",
                "bias left out of the sharded group": "params.2.bias",
            },
        ),
        "uneven shards by hand, dp 3": (
            define_uneven,
            {
                "padding put before the rows of a short shard": "loss",
                "padding stripped at the front": "loss",
                "gradient padded at the front": "params.0.weight",
                "gradient taken from the next rank's rows": "params.0.weight",
                "reduce-scatter replaced by the own rows": "params.0.weight",
            },
        ),
    },
)
