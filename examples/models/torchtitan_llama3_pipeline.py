"""torchtitan's own pipelines of Llama 3: its split by module names, stages, schedule and FSDP2.

Needs ``torchtitan==0.3.0``. Everything is torchtitan's but the step, which is its trainer's
(``pp_forward_backward_step`` and ``train_step``) without data loading and logging. The single device runs the
plain model on the whole batch.
The batch has a dimension for microbatches of ``rows`` rows, as a rank's loader gives one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torchtitan_shim
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models import llama3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import Llama3Model, llama3_configs, parallelize_llama
from torchtitan.models.llama3.sharding import set_llama3_sharding_config

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


class Parts(nn.Module):
    """What a rank holds, under the names of the single device, and the schedule that runs it."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: layer for part in parts for name, layer in part.layers.items()})
        for name in ("tok_embeddings", "norm", "lm_head"):
            held = [getattr(part, name) for part in parts if getattr(part, name) is not None]
            if held:
                setattr(self, name, held[0])

    schedule: Any
    first: bool
    last: bool
    dims: ParallelDims


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
        dims = ParallelDims.from_config(parallelism, pp * replicas * shards * tp)
        dist_utils.set_spmd_backend(parallelism.spmd_backend)
        dims.build_mesh()
        tokens = torch.zeros(rows, length, dtype=torch.int64)
        hidden, logits = (
            torch.zeros(rows, length, n, dtype=torch.bfloat16, requires_grad=True)
            for n in (config().dim, vocab)
        )
        if tp > 1:  # sequence parallel between layers, logits by columns
            hidden, logits = (
                DTensor.from_local(
                    x.chunk(tp, dim)[0].detach().clone(), dims.get_mesh("tp"), [Shard(dim)]
                ).requires_grad_()
                for x, dim in ((hidden, 1), (logits, 2))
            )
        with torchtitan_shim.shapes_of_stages(tokens, hidden, logits):
            pp_schedule, parts, first, last = pipeline_llm(
                model,
                parallel_dims=dims,
                training=training,
                parallelism=parallelism,
                compile_config=CompileConfig(),
                ac_config=None,
                dump_folder="",
                device=torch.device("cpu"),
                model_config=config(),
                parallelize_fn=parallelize_llama,
                loss_fn=loss_fn,
            )
        held = Parts(parts)
        held.schedule, held.first, held.last, held.dims = pp_schedule, first, last, dims
        return held

    def labels_of(batch: Mapping[str, Tensor]) -> Tensor:
        return torch.where(batch["valid"], batch["labels"], IGNORE_INDEX).flatten(0, 1)

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
        dims = model.dims
        labels = labels_of(batch)
        count = (labels != IGNORE_INDEX).sum()
        if dims.dp_enabled:
            count = dist_utils.dist_sum_tensor(count, dims.get_mesh("batch"))
        losses: list[Tensor] = []
        model.schedule.step(
            *((batch["tokens"].flatten(0, 1),) if model.first else ()),
            target=labels if model.last else None,
            losses=losses if model.last else None,
            loss_kwargs={"global_valid_tokens": count},
            return_outputs=False,
        )
        norm = dist_utils.clip_grad_norm_(
            list(model.parameters()),
            training.max_norm,
            foreach=True,
            pp_mesh=dims.get_optional_mesh("pp"),
        )
        optimizer.step()
        optimizer.zero_grad()
        loss = (
            torch.sum(torch.stack(losses)).detach()
            if losses
            else count.new_full((1,), -1.0, dtype=torch.float32)
        )
        if dims.dp_cp_enabled:
            loss = dist_utils.dist_sum_tensor(loss, dims.get_mesh("loss"))
        return {"grad_norm": norm} | ({"loss": loss} if losses else {})

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
