"""A plain Llama-style decoder and its training step, single-device and parallel.

The model is written as one would write it for one device: grouped-query attention with rotary
position embedding (real-valued rotate-half form), a causal mask, RMSNorm, SwiGLU, token embedding
and cross-entropy.  :func:`parallelize` adds tensor and sequence parallelism over the mesh axis
``tp`` and FSDP2 over ``dp``; nothing in the model knows about it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from orchestrator.capture import Batch, Definition


@dataclass(frozen=True)
class Config:
    """Sizes of a decoder; the defaults are those of Llama 3 8B with two layers."""

    dim: int = 4096
    ffn_dim: int = 14336
    layers: int = 2
    heads: int = 32
    kv_heads: int = 8
    vocab: int = 128256
    norm_eps: float = 1e-5
    rope_theta: float = 500000.0

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).type_as(x) * self.weight


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [batch, sequence, heads, head_dim] by tables [sequence, head_dim]."""
    cos, sin = cos[:, None, :], sin[:, None, :]
    return (x.float() * cos + rotate_half(x.float()) * sin).type_as(x)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.repeats = config.heads // config.kv_heads
        self.wq = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        # -1: under tensor parallelism a rank holds its own heads only.
        q = self.wq(x).view(batch, length, -1, self.head_dim)
        k = self.wk(x).view(batch, length, -1, self.head_dim)
        v = self.wv(x).view(batch, length, -1, self.head_dim)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        k, v = self.repeat(k), self.repeat(v)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))

    def repeat(self, x: Tensor) -> Tensor:
        """Share each key or value head among its group of query heads."""
        batch, length, heads, width = x.shape
        shared = x[:, :, :, None, :].expand(batch, length, heads, self.repeats, width)
        return shared.reshape(batch, length, heads * self.repeats, width)


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.w2 = nn.Linear(config.ffn_dim, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)
        frequency = config.rope_theta ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
        angle = torch.outer(torch.arange(length), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


MIXED_PRECISION = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def parallelize(
    model: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy = MIXED_PRECISION
) -> nn.Module:
    """Tensor and sequence parallelism over ``tp``, then FSDP2 in mixed precision over ``dp``."""
    assert isinstance(model, Llama)
    tp, dp = mesh["tp"], mesh[tuple(a for a in mesh.mesh_dim_names or () if a != "tp")]
    parallelize_module(
        model,
        tp,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    for layer in model.layers:
        parallelize_module(
            layer,
            tp,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None, None),
                    desired_input_layouts=(Replicate(), None, None),
                ),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                # DTensors inside: a plain tensor would forget that the two shards may differ in size.
                "feed_forward.w1": ColwiseParallel(use_local_output=False),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward.w3": ColwiseParallel(use_local_output=False),
            },
        )
    for layer in model.layers:
        fully_shard(layer, mesh=dp, mp_policy=policy)
    fully_shard(model, mesh=dp, mp_policy=policy)
    return model


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor], *, sharded_loss: bool
) -> dict[str, Tensor]:
    """Forward, backward and optimizer; the loss is the mean over the tokens of ``batch``."""
    with loss_parallel() if sharded_loss else contextlib.nullcontext():
        logits = model(batch["tokens"])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


@dataclass(frozen=True)
class Training:
    """What a step does besides one backward pass and AdamW, in the manner of torchtitan's trainer.

    Each of ``microbatches`` losses is a sum over the valid tokens, divided by the number of valid tokens of
    all; without ``padding`` all are valid. ``whole``: the specification has one batch of all microbatches.
    """

    microbatches: int = 1
    max_norm: float = 1.0
    weight_decay: float = 0.1
    padding: bool = True
    whole: bool = False


IGNORED = -100


def prepare(model: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy = MIXED_PRECISION) -> nn.Module:
    """:func:`parallelize`, gradients summed instead of averaged; the model knows its data-parallel mesh."""
    model = parallelize(model, mesh, policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
    data = mesh[tuple(a for a in mesh.mesh_dim_names or () if a != "tp")]
    model.data_mesh = data if data.ndim == 1 else data._flatten("data")
    return model


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """``torch.nn.utils.clip_grad_norm_``, the norm reduced over the mesh first, as torchtitan does."""
    parameters = list(parameters)
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def full_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Mapping[str, Tensor],
    *,
    max_norm: float,
    whole: bool = False,
) -> dict[str, Tensor]:
    """Batch tensors are [microbatch, sequence, position]; results are the loss and the gradient's norm."""
    data: DeviceMesh | None = getattr(model, "data_mesh", None)
    optimizer.zero_grad()
    labels = batch["labels"]
    labels = torch.where(batch["valid"], labels, IGNORED) if "valid" in batch else labels
    count = (labels != IGNORED).sum()
    if data is not None:
        count = all_reduce(count, "sum", data)
    pairs = list(zip(batch["tokens"], labels, strict=True))
    if whole:
        pairs = [(batch["tokens"].flatten(0, 1), labels.flatten(0, 1))]
    losses = []
    for tokens, targets in pairs:
        with contextlib.nullcontext() if data is None else loss_parallel():
            logits = model(tokens).flatten(0, 1).float()
            loss = F.cross_entropy(logits, targets.flatten(), reduction="sum", ignore_index=IGNORED) / count
            loss.backward()
        loss = loss.detach()
        losses.append(loss.to_local() if isinstance(loss, DTensor) else loss)
    norm = clip_gradients(model.parameters(), max_norm)
    optimizer.step()
    total = torch.stack(losses).sum()
    return {"loss": total if data is None else all_reduce(total, "sum", data), "grad_norm": norm}


def full_definition(
    name: str, config: Config, mesh: Mapping[str, int], batch: int, length: int, training: Training
) -> Definition:
    """As :func:`definition`, with the step of ``training`` on microbatches of ``batch`` sequences each."""
    shard = {axis: 1 for axis in mesh if axis != "tp"}
    shape = (training.microbatches, batch, length)
    rows = Batch(shape=shape, dtype=torch.int64, shard=shard, bounds=(0, config.vocab))
    tensors = {"tokens": rows, "labels": rows}
    if training.padding:
        tensors["valid"] = Batch(shape=shape, dtype=torch.bool, shard=shard)
    step = functools.partial(full_step, max_norm=training.max_norm)
    return Definition(
        name=name,
        mesh=mesh,
        build=lambda: Llama(config, length),
        parallelize=prepare,
        optimizer=lambda params: torch.optim.AdamW(
            params, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=training.weight_decay
        ),
        step=functools.partial(step, whole=training.whole),
        parallel_step=step,
        batch=tensors,
    )


def definition(name: str, config: Config, mesh: Mapping[str, int], batch: int, length: int) -> Definition:
    """The training step of ``config`` on ``mesh`` with a global batch of ``batch`` sequences."""
    data = tuple(axis for axis in mesh if axis != "tp")
    shard = dict.fromkeys(data, 0)
    rows = Batch(shape=(batch, length), dtype=torch.int64, shard=shard, bounds=(0, config.vocab))
    return Definition(
        name=name,
        mesh=mesh,
        build=lambda: Llama(config, length),
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), eps=1e-8),
        step=lambda model, optimizer, batch: train_step(model, optimizer, batch, sharded_loss=False),
        parallel_step=lambda model, optimizer, batch: train_step(model, optimizer, batch, sharded_loss=True),
        batch={"tokens": rows, "labels": rows},
        mean_over={"loss": data},
    )
