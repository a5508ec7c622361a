"""torchtitan's own Llama 3 405B and parallelisation code: tensor and sequence parallel, then FSDP2 or HSDP.

Needs ``torchtitan==0.3.0``. Model, sharding plan, FSDP wrapping, loss and gradient clipping are torchtitan's;
the step below is its trainer's, without data loading and logging. ``torchtitan_shim`` is listed in the plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
import torchtitan_shim
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import llama3_configs, parallelize_llama
from torchtitan.models.llama3.sharding import set_llama3_sharding_config

from orchestrator.capture import Batch, Definition


def definition(
    layers: int = 126,
    length: int = 8192,
    shards: int = 64,
    tp: int = 8,
    replicas: int = 1,
    flavor: str = "405B",
) -> Definition:
    mesh = ({"dp_replicate": replicas} if replicas > 1 else {}) | {"fsdp": shards, "tp": tp}
    data = [axis for axis in mesh if axis != "tp"]
    ranks = replicas * shards * tp
    vocab = llama3_configs[flavor](attn_backend="flex").vocab_size
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=replicas,
        data_parallel_shard_degree=shards,
        tensor_parallel_degree=tp,
        spmd_backend="partial_dtensor",
    )
    training = TrainingConfig(seq_len=length, local_batch_size=1)

    def build() -> nn.Module:
        """The configuration of the registry, with torchtitan's SDPA module in place of flex attention."""
        config = llama3_configs[flavor](attn_backend="flex")
        config.layers = config.layers[:layers]
        for layer in config.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
            layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=length)
        set_llama3_sharding_config(config, enable_sp=parallelism.enable_sequence_parallel)
        return config.build()

    def parallelize(model: nn.Module, _mesh: DeviceMesh) -> nn.Module:
        dims = ParallelDims.from_config(parallelism, ranks)
        dist_utils.set_spmd_backend(parallelism.spmd_backend)
        dims.build_mesh()
        model = parallelize_llama(
            model,
            parallel_dims=dims,
            training=training,
            parallelism=parallelism,
            compile_config=CompileConfig(),
            ac_config=None,
            dump_folder="",
        )
        model.parallel_dims = dims
        return model

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        dims: ParallelDims | None = getattr(model, "parallel_dims", None)
        labels = torch.where(batch["valid"], batch["labels"], IGNORE_INDEX)
        count = (labels != IGNORE_INDEX).sum()
        if dims is not None:
            count = dist_utils.dist_sum_tensor(count, dims.get_mesh("batch"))
        loss, _ = CrossEntropyLoss.Config(global_vocab_size=vocab).build()(
            model(batch["tokens"]), labels, count
        )
        loss.backward()
        norm = dist_utils.clip_grad_norm_(list(model.parameters()), training.max_norm, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        if dims is not None:
            loss = dist_utils.dist_sum_tensor(loss.detach(), dims.get_mesh("loss"))
        return {"loss": loss.detach(), "grad_norm": norm}

    rows = Batch((shards * replicas, length), torch.int64, dict.fromkeys(data, 0), (0, vocab))
    depth = "" if layers == 126 else f"-{layers}l"
    hsdp = f"-hsdp{replicas}" if replicas > 1 else ""
    return Definition(
        name=f"torchtitan-llama3-{flavor.lower()}{depth}{hsdp}-tp{tp}-fsdp{shards}",
        mesh=mesh,
        build=build,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(
            params, lr=8e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
        ),
        step=step,
        batch={
            "tokens": rows,
            "labels": rows,
            "valid": dataclasses.replace(rows, dtype=torch.bool, bounds=None),
        },
        provenance={"torchtitan": "0.3.0", "assumptions": "; ".join(torchtitan_shim.SHIMS)},
    )
