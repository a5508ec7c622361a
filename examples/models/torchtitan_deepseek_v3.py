"""torchtitan's own DeepSeek V3: latent attention, dense layers and layers of experts; EP, FSDP2 and TP.

Needs ``torchtitan==0.3.0``. Model, sharding plan, all-to-all dispatcher, FSDP wrapping with a mesh of its own
for experts, loss, gradient clipping and the update of the bias that balances experts are torchtitan's; the
step below is its trainer's, without data loading and logging. ``torchtitan_shim`` is listed in the plan.

Ranks are ``replicas`` x ``shards`` x ``tp``, of which ``ep`` consecutive ones share the experts. So the mesh
has an axis for replicas (hybrid sharding), one for the shards of experts, one for the part of ``ep`` that
shards the rest, and ``tp``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchtitan_shim
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss
from torchtitan.components.optimizer import register_moe_load_balancing_hook
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.models.common import token_dispatcher
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.deepseek_v3 import deepseekv3_configs, parallelize_deepseekv3
from torchtitan.models.deepseek_v3.sharding import set_deepseek_v3_sharding_config

from orchestrator.capture import Batch, Definition


class Alone:
    """What the update of the bias asks of the parallelism: the single device has none."""

    ep_enabled = False
    tp = 1

    def get_optional_mesh(self, _dims: str) -> None:
        return None


class Balance:
    """Stands for torchtitan's container of optimizers, whose hook before a step updates the bias; there is
    none where no layer has experts."""

    def __init__(self, parts: list[nn.Module], dims: ParallelDims | Alone) -> None:
        self.update: Callable[..., None] = lambda: None
        register_moe_load_balancing_hook(self, parts, dims)

    def register_step_pre_hook(self, hook: Callable[..., None]) -> None:
        self.update = hook


def configuration(flavor: str, layers: int, length: int, parallelism: ParallelismConfig) -> Any:
    """The configuration of the registry, with torchtitan's SDPA module in place of flex attention."""
    token_dispatcher.deterministic_scatter_add = lambda out, index, src: out.scatter_add(0, index, src)
    config = deepseekv3_configs[flavor](attn_backend="flex", moe_comm_backend="standard")
    config.layers = config.layers[:layers]
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
        layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=length)
    set_deepseek_v3_sharding_config(
        config,
        enable_sp=parallelism.enable_sequence_parallel,
        enable_ep=parallelism.expert_parallel_degree > 1,
    )
    return config


def count_anew(model: nn.Module) -> None:
    """Tokens of each expert as the last step has left them, and as no claim about one step knows."""
    for layer in model.layers.values():
        if layer.moe_enabled:
            layer.moe.tokens_per_expert_E.zero_()


def definition(
    layers: int = 2,
    length: int = 8,
    rows: int = 1,
    shards: int = 4,
    ep: int = 2,
    tp: int = 1,
    flavor: str = "debugmodel",
    replicas: int = 1,
) -> Definition:
    axes = {"dp_replicate": replicas, "efsdp": shards * tp // ep, "ep": ep // tp, "tp": tp}
    mesh = {axis: size for axis, size in axes.items() if size > 1}
    data = [axis for axis in mesh if axis != "tp"]
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=replicas,
        data_parallel_shard_degree=shards,
        tensor_parallel_degree=tp,
        expert_parallel_degree=ep,
        spmd_backend="partial_dtensor",
    )
    training = TrainingConfig(seq_len=length, local_batch_size=rows)

    def config() -> Any:
        return configuration(flavor, layers, length, parallelism)

    vocab = config().vocab_size
    dist_utils.set_spmd_backend(parallelism.spmd_backend)

    def build() -> nn.Module:
        model = config().build()
        model.balance = Balance([model], Alone())
        return model

    def parallelize(model: nn.Module, _mesh: DeviceMesh) -> nn.Module:
        dims = ParallelDims.from_config(parallelism, replicas * shards * tp)
        dims.build_mesh()
        model = parallelize_deepseekv3(
            model,
            parallel_dims=dims,
            training=training,
            parallelism=parallelism,
            compile_config=CompileConfig(),
            ac_config=None,
            dump_folder="",
        )
        model.parallel_dims, model.balance = dims, Balance([model], dims)
        return model

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        dims: ParallelDims | None = getattr(model, "parallel_dims", None)
        count_anew(model)
        labels = torch.where(batch["valid"], batch["labels"], IGNORE_INDEX)
        count = (labels != IGNORE_INDEX).sum()
        if dims is not None:
            count = dist_utils.dist_sum_tensor(count, dims.get_mesh("batch"))
        loss, _ = CrossEntropyLoss.Config(global_vocab_size=vocab).build()(
            model(batch["tokens"]), labels, count
        )
        loss.backward()
        norm = dist_utils.clip_grad_norm_(
            list(model.parameters()),
            training.max_norm,
            foreach=True,
            ep_enabled=dims is not None and dims.ep_enabled,
        )
        model.balance.update()
        optimizer.step()
        optimizer.zero_grad()
        if dims is not None:
            loss = dist_utils.dist_sum_tensor(loss.detach(), dims.get_mesh("loss"))
        return {"loss": loss.detach(), "grad_norm": norm}

    entry = Batch((rows * replicas * shards, length), torch.int64, dict.fromkeys(data, 0), (0, vocab))
    degrees = (("hsdp", replicas), ("fsdp", shards), ("ep", ep), ("tp", tp))
    sizes = "".join(f"-{axis}{size}" for axis, size in degrees if size > 1)
    return Definition(
        name=f"torchtitan-deepseek-v3-{flavor.lower()}-{layers}l{sizes}",
        mesh=mesh,
        build=build,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(
            params, lr=8e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
        ),
        step=step,
        batch={
            "tokens": entry,
            "labels": entry,
            "valid": dataclasses.replace(entry, dtype=torch.bool, bounds=None),
        },
        provenance={
            "torchtitan": "0.3.0",
            "assumptions": "; ".join((*torchtitan_shim.SHIMS, torchtitan_shim.SCATTER_SHIM)),
        },
    )
