"""torchtitan's own pipelines of Llama 3: its split by module names, stages, schedule and FSDP2.

Needs ``torchtitan==0.3.0``; what a rank runs is in ``torchtitan_pipeline``. The single device runs the plain
model on the whole batch.
The batch has a dimension for microbatches of ``rows`` rows, as a rank's loader gives one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
import torchtitan_shim
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed import utils as dist_utils
from torchtitan.models import llama3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import Llama3Model, llama3_configs, parallelize_llama
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan_pipeline import Parts, clipped, forward_backward, labels_of, reported, stages

from orchestrator.capture import Batch, Definition


def tiny(attn_backend: str) -> Llama3Model.Config:
    """torchtitan's layers at a width at which ``--run`` starts processes, as its registry writes them."""
    dim, heads, vocab = 16, 4, 32
    rope = llama3.ComplexRoPE.Config(dim=dim // heads, max_seq_len=131072, theta=500000, scaling="llama")
    return Llama3Model.Config(
        dim=dim,
        vocab_size=vocab,
        tok_embeddings=llama3.Embedding.Config(
            num_embeddings=vocab, embedding_dim=dim, param_init=llama3._EMBEDDING_INIT
        ),
        norm=llama3.RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),
        lm_head=llama3.Linear.Config(
            in_features=dim, out_features=vocab, param_init=llama3._output_linear_init(dim)
        ),
        layers=llama3._build_llama3_layers(
            fuse_qkv=True,
            n_layers=8,
            dim=dim,
            n_heads=heads,
            hidden_dim=24,
            rope=rope,
            attn_backend=attn_backend,
        ),
    )


FLAVORS = llama3_configs | {"tiny": tiny}


def definition(
    layers: int = 4,
    length: int = 32,
    microbatches: int = 2,
    rows: int = 1,
    pp: int = 2,
    replicas: int = 1,
    shards: int = 1,
    tp: int = 1,
    schedule: str = "1F1B",
    flavor: str = "debugmodel",
) -> Definition:
    sizes = {"pp": pp, "dp_replicate": replicas, "fsdp": shards, "tp": tp}
    mesh = {axis: size for axis, size in sizes.items() if size > 1}
    data = [axis for axis in ("dp_replicate", "fsdp") if axis in mesh]
    vocab = FLAVORS[flavor](attn_backend="flex").vocab_size
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=replicas,
        data_parallel_shard_degree=shards,
        tensor_parallel_degree=tp,
        pipeline_parallel_degree=pp,
        pipeline_parallel_schedule=schedule,
        pipeline_parallel_microbatch_size=rows,
        spmd_backend="partial_dtensor",
    )
    training = TrainingConfig(seq_len=length, local_batch_size=microbatches * rows)
    loss_fn = CrossEntropyLoss.Config(global_vocab_size=vocab).build()

    def config() -> Llama3Model.Config:
        """The configuration of the registry, with torchtitan's SDPA module in place of flex attention."""
        config = FLAVORS[flavor](attn_backend="flex")
        config.layers = config.layers[:layers]
        for layer in config.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
            layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=length)
        set_llama3_sharding_config(config, enable_sp=parallelism.enable_sequence_parallel)
        return config

    def parallelize(model: nn.Module, _mesh: DeviceMesh) -> nn.Module:
        world = pp * replicas * shards * tp
        return stages(model, parallelism, training, config(), parallelize_llama, loss_fn, world)

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        labels = labels_of(batch)
        loss, _ = loss_fn(model(batch["tokens"].flatten(0, 1)), labels, (labels != IGNORE_INDEX).sum())
        loss.backward()
        norm = dist_utils.clip_grad_norm_(list(model.parameters()), training.max_norm, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach(), "grad_norm": norm}

    def stage_step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        assert isinstance(model, Parts)
        losses, count = forward_backward(model, batch)
        norm = clipped(model, training)
        optimizer.step()
        optimizer.zero_grad()
        return {"grad_norm": norm} | reported(model, losses, count)

    entry = Batch(
        (microbatches, replicas * shards * rows, length),
        torch.int64,
        dict.fromkeys(data, 1),
        (0, vocab),
    )
    parts = "".join(f"-{axis}{size}" for axis, size in mesh.items())
    return Definition(
        name=f"torchtitan-llama3-{flavor.lower()}-{layers}l-{schedule.lower()}{parts}",
        mesh=mesh,
        build=lambda: config().build(),
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(
            params, lr=8e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
        ),
        step=step,
        parallel_step=stage_step,
        batch={
            "tokens": entry,
            "labels": entry,
            "valid": dataclasses.replace(entry, dtype=torch.bool, bounds=None),
        },
        provenance={
            "torchtitan": "0.3.0",
            "assumptions": "; ".join((*torchtitan_shim.SHIMS, *torchtitan_shim.PIPELINE_SHIMS)),
        },
    )
