"""Tensor and sequence parallelism written by hand, in the manner of Megatron: parts 4, 10 and 11.

A layer of multi-query attention and one of SwiGLU, each behind an RMSNorm. Between the layers a rank of
``tp`` holds its piece of the sequence, inside them its heads and hidden units. What the ranks of ``tp`` hold
alike (norms, the bias, the one key and value head) gets a part of its gradient on each: :func:`finalize` adds
them up, then averages over ``dp``. With ``fsdp`` weights are also sharded over ``dp``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .kit import (
    Batches,
    RMSNorm,
    _Pair,
    adamw,
    gather,
    gathered,
    join,
    own,
    part,
    scatter,
    scattered,
    shard,
)

WIDTH, MAX_NORM = 2, 0.5
MESH = {"dp": 2, "tp": 2}


class Attention(nn.Module):
    """Query heads share one key and value head."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm = RMSNorm(dim)
        self.query = nn.Linear(dim, heads * WIDTH, bias=False)
        self.shared = nn.Linear(dim, 2 * WIDTH, bias=False)
        self.out = nn.Linear(heads * WIDTH, dim, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.query(x).view(batch, length, -1, WIDTH).transpose(1, 2)
        k, v = self.shared(x)[:, None].expand(batch, q.shape[1], length, 2 * WIDTH).chunk(2, dim=-1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.heads(self.norm(x))


class SwiGLU(nn.Module):
    """``gate_up`` holds the gate's rows, then the other's."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = RMSNorm(dim)
        self.gate_up = nn.Parameter(torch.zeros(2, hidden, dim))
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(self.norm(x), self.gate_up.flatten(0, 1)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def build(dim: int, hidden: int, heads: int) -> nn.Module:
    layers: dict[str, nn.Module] = {"attention": Attention(dim, heads)} if heads else {}
    model = nn.Sequential()
    for name, layer in {**layers, "mlp": SwiGLU(dim, hidden)}.items():
        model.add_module(name, layer)
    return model


class Parallel(nn.Module):
    def __init__(self, model: nn.Module, mesh: DeviceMesh, mistake: str, fsdp: bool, together: bool) -> None:
        super().__init__()
        self.mistake, self.fsdp, self.together = mistake, fsdp, together
        self.tp, self.dp = mesh["tp"].get_group(), mesh["dp"].get_group()
        for name, layer in model.named_children():
            self.add_module(name, layer)
        for name, dims in layouts(model, fsdp).items():
            owner, _, last = name.rpartition(".")
            for axis, dim in dims.items():
                shard(self.get_submodule(owner), last, dim, self.tp if axis == "tp" else self.dp)

    def weight(self, parameter: Tensor, dim: int) -> Tensor:
        """All of a weight's shards over ``dp``; its gradient is averaged and scattered."""
        if not self.fsdp:
            return parameter

        def back(grad: Tensor) -> Tensor:
            return scattered(grad, self.dp, dim) / self.dp.size()

        return _Pair.apply(parameter, lambda x: gathered(x, self.dp, dim), back)

    def enter(self, x: Tensor) -> Tensor:
        """From a piece of the sequence to all of it."""
        if self.mistake == "gradient of a column-parallel input not reduced":
            return join(x, self.tp, 1)
        if self.mistake == "sequence gathered along the batch":
            return gather(x, self.tp, 0).reshape(x.shape[0], -1, x.shape[2])
        return gather(x, self.tp, 1)

    def leave(self, x: Tensor) -> Tensor:
        """The sum of all ranks' products, of which a rank keeps its piece of the sequence."""
        if self.mistake == "partial products not reduced":
            return own(x, self.tp, 1)
        return scatter(x, self.tp, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = own(x, self.tp, 1)
        if hasattr(self, "attention"):
            layer = self.attention
            x = x + self.leave(layer.heads(self.enter(layer.norm(x))))
        layer = self.mlp
        h = self.enter(layer.norm(x))
        both = F.linear(h, self.weight(layer.gate_up, 2).flatten(0, 1))
        if self.mistake == "gate and up taken for interleaved":
            gate, up = both.unflatten(-1, (-1, 2)).unbind(-1)
        else:
            gate, up = both.chunk(2, dim=-1)
        inner, weight = F.silu(gate) * up, self.weight(layer.down.weight, 0)
        if self.mistake == "bias added on every rank before the sum":
            x = x + self.leave(F.linear(inner, weight, layer.down.bias))
        else:
            x = x + self.leave(F.linear(inner, weight)) + layer.down.bias
        return join(x, self.tp, 1)


def layouts(model: nn.Module, fsdp: bool) -> dict[str, dict[str, int]]:
    """Where parameters are cut, tensor-parallel first."""
    known = {
        "attention.query.weight": {"tp": 0},
        "attention.out.weight": {"tp": 1},
        "mlp.gate_up": {"tp": 1} | ({"dp": 2} if fsdp else {}),
        "mlp.down.weight": {"tp": 1} | ({"dp": 0} if fsdp else {}),
    }
    return {name: known.get(name, {}) for name, _ in model.named_parameters()}


def whole_on_each(name: str) -> bool:
    """Parameters that all ranks of ``tp`` hold alike."""
    return "norm" in name or name.endswith(("bias", "shared.weight"))


def finalize(model: Parallel, mistake: str) -> None:
    """Sum over ``tp`` what the ranks share, average over ``dp``."""
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None
        shared, norm = whole_on_each(name), "norm" in name
        left_out = {
            "norm gradients not reduced over tp": norm,
            "shared head's gradient not reduced over tp": "shared" in name,
            "bias gradient not reduced over tp": "bias" in name,
            "norm gradients reduced over dp instead of tp": norm,
        }
        if (shared and not left_out.get(mistake)) or mistake == "sharded gradients reduced over tp":
            dist.all_reduce(grad, group=model.tp)
        if mistake == "norm gradients averaged over tp" and norm:
            grad /= model.tp.size()
        if mistake == "norm gradients reduced over tp twice" and norm:
            dist.all_reduce(grad, group=model.tp)
        if mistake == "norm gradients reduced over dp instead of tp" and norm:
            dist.all_reduce(grad, group=model.dp)
        if not model.fsdp or shared:
            if not (mistake == "bias left out of the average over dp" and "bias" in name):
                dist.all_reduce(grad, group=model.dp)
            size = model.dp.size() * (model.tp.size() if mistake == "divided by all ranks" else 1)
            grad /= size**2 if mistake == "divided twice" else size


def squares(model: Parallel, mistake: str) -> Tensor:
    """The squared norm of the whole gradient, reduced parameter by parameter or in one sum."""
    total, cut = torch.zeros(()), torch.zeros(())

    def reduce_squares(square: Tensor) -> None:
        if mistake != "norm without the axis tp":
            dist.all_reduce(square, group=model.tp)
        if mistake != "norm without the axis dp":
            dist.all_reduce(square, group=model.dp)

    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        square = parameter.grad.pow(2).sum()
        if mistake == "norms added, not their squares":
            square = square.sqrt()
        if whole_on_each(name) and mistake != "replicated parameters counted once per rank":
            total = total + square
        elif model.together:
            cut = cut + square
        else:
            reduce_squares(square)
            total = total + square
    if model.together:
        reduce_squares(cut)
        total = total + cut
    return total


def clip(model: Parallel, norm: Tensor, mistake: str) -> None:
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        first_only = mistake == "replicated parameters clipped on the first rank only"
        if first_only and whole_on_each(name) and model.tp.rank() > 0:
            continue
        scale = MAX_NORM / (norm + 1e-6)
        parameter.grad *= scale if mistake == "scaled up when the norm is small" else scale.clamp(max=1.0)


def single_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, *, clipped: bool
) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    norm = {"grad_norm": nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)} if clipped else {}
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss, **norm}


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, *, clipped: bool, mistake: str
) -> dict[str, Tensor]:
    assert isinstance(model, Parallel)
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    norm: Mapping[str, Tensor] = {}
    with torch.no_grad():
        if mistake == "clipped before gradients are reduced":
            norm = {"grad_norm": squares(model, mistake).sqrt()}
            clip(model, norm["grad_norm"], mistake)
        finalize(model, mistake)
        if clipped and not norm:
            norm = {"grad_norm": squares(model, mistake).sqrt()}
            clip(model, norm["grad_norm"], mistake)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss, **norm}


def define(
    mistake: str,
    *,
    heads: int = 0,
    clipped: bool = False,
    fsdp: bool = False,
    together: bool = False,
) -> Definition:
    dim, hidden, length = 4, 6, 4
    batch = Batch(shape=(4, length, dim), shard={"dp": 0})
    return Definition(
        name="breakages-megatron",
        mesh=MESH,
        build=lambda: build(dim, hidden, heads),
        parallelize=lambda model, mesh: Parallel(model, mesh, mistake, fsdp, together),
        optimizer=adamw,
        step=functools.partial(single_step, clipped=clipped),
        parallel_step=functools.partial(step, clipped=clipped, mistake=mistake),
        batch={"x": batch, "y": batch},
        layouts=layouts(build(dim, hidden, heads), fsdp),
        mean_over={"loss": ("dp",)},
    )


TENSOR = part(
    "tensor and sequence parallel",
    {
        "attention and SwiGLU": (
            functools.partial(define, heads=4),
            {
                "bias added on every rank before the sum": "loss",
                "partial products not reduced": "loss",
                "gate and up taken for interleaved": "loss",
                "sequence gathered along the batch": "loss",
                "gradient of a column-parallel input not reduced": "params.attention.norm.weight",
                "shared head's gradient not reduced over tp": "params.attention.shared.weight",
                "norm gradients not reduced over tp": "params.attention.norm.weight",
            },
        ),
        "one query head on each rank": (functools.partial(define, heads=2), {}),
    },
)
FINAL = part(
    "gradient finalisation",
    {
        "SwiGLU": (
            define,
            {
                "bias gradient not reduced over tp": "params.mlp.down.bias",
                "norm gradients averaged over tp": "params.mlp.norm.weight",
                "norm gradients reduced over tp twice": "params.mlp.norm.weight",
                "norm gradients reduced over dp instead of tp": "params.mlp.norm.weight",
                "sharded gradients reduced over tp": "params.mlp.gate_up",
                "divided by all ranks": "params.mlp.*",
                "divided twice": "params.mlp.*",
                "bias left out of the average over dp": "params.mlp.down.bias",
            },
        )
    },
)
CLIP = part(
    "clipping by the global norm",
    {
        "SwiGLU, sharded over dp too": (
            functools.partial(define, clipped=True, fsdp=True),
            {
                "norm without the axis tp": "grad_norm",
                "norm without the axis dp": "grad_norm",
                "replicated parameters counted once per rank": "grad_norm",
                "norms added, not their squares": "grad_norm",
                "clipped before gradients are reduced": "grad_norm",
                "scaled up when the norm is small": "params.mlp.*",
                "replicated parameters clipped on the first rank only": "params.mlp.norm.weight",
            },
        ),
        "one reduction for all squares": (
            functools.partial(define, clipped=True, fsdp=True, together=True),
            {},
        ),
    },
    {
        "replicated parameters clipped on the first rank only": (
            "the ranks of tp run two programs, whose shards of a flattened dimension do not lie side by side"
        ),
    },
)
