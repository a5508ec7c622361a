"""torchtitan's own pipelines of DeepSeek V3: experts with their dispatch at every microbatch, FSDP2 and TP.

Needs ``torchtitan==0.3.0``; what a rank runs is in ``torchtitan_pipeline``, its layers are those of
``torchtitan_deepseek_v3``. The single device runs the plain model on the whole batch.
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
from torchtitan.models.deepseek_v3 import parallelize_deepseekv3
from torchtitan_deepseek_v3 import Alone, Balance, configuration, count_anew
from torchtitan_pipeline import Parts, clipped, forward_backward, labels_of, reported, stages

from orchestrator.capture import Batch, Definition


def definition(
    layers: int = 4,
    length: int = 8,
    microbatches: int = 2,
    rows: int = 1,
    pp: int = 2,
    replicas: int = 1,
    shards: int = 2,
    ep: int = 2,
    tp: int = 1,
    schedule: str = "1F1B",
    flavor: str = "debugmodel",
) -> Definition:
    axes = {"pp": pp, "dp_replicate": replicas, "efsdp": shards * tp // ep, "ep": ep // tp, "tp": tp}
    mesh = {axis: size for axis, size in axes.items() if size > 1}
    data = [axis for axis in mesh if axis not in ("pp", "tp")]
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=replicas,
        data_parallel_shard_degree=shards,
        tensor_parallel_degree=tp,
        expert_parallel_degree=ep,
        pipeline_parallel_degree=pp,
        pipeline_parallel_schedule=schedule,
        pipeline_parallel_microbatch_size=rows,
        spmd_backend="partial_dtensor",
    )
    training = TrainingConfig(seq_len=length, local_batch_size=microbatches * rows)
    config = configuration(flavor, layers, length, parallelism)
    loss_fn = CrossEntropyLoss.Config(global_vocab_size=config.vocab_size).build()

    def build() -> nn.Module:
        model = configuration(flavor, layers, length, parallelism).build()
        model.balance = Balance([model], Alone())
        return model

    def parallelize(model: nn.Module, _mesh: DeviceMesh) -> nn.Module:
        world = pp * replicas * shards * tp
        held = stages(model, parallelism, training, config, parallelize_deepseekv3, loss_fn, world)
        held.balance = Balance([held], held.dims)
        return held

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        count_anew(model)
        labels = labels_of(batch)
        loss, _ = loss_fn(model(batch["tokens"].flatten(0, 1)), labels, (labels != IGNORE_INDEX).sum())
        loss.backward()
        norm = dist_utils.clip_grad_norm_(list(model.parameters()), training.max_norm, foreach=True)
        model.balance.update()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach(), "grad_norm": norm}

    def stage_step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        assert isinstance(model, Parts)
        count_anew(model)
        losses, count = forward_backward(model, batch)
        norm = clipped(model, training, ep_enabled=model.dims.ep_enabled)
        model.balance.update()
        optimizer.step()
        optimizer.zero_grad()
        return {"grad_norm": norm} | reported(model, losses, count)

    entry = Batch(
        (microbatches, replicas * shards * rows, length),
        torch.int64,
        dict.fromkeys(data, 1),
        (0, config.vocab_size),
    )
    degrees = (("pp", pp), ("hsdp", replicas), ("fsdp", shards), ("ep", ep), ("tp", tp))
    sizes = "".join(f"-{axis}{size}" for axis, size in degrees if size > 1)
    return Definition(
        name=f"torchtitan-deepseek-v3-{flavor.lower()}-{layers}l-{schedule.lower()}{sizes}",
        mesh=mesh,
        build=build,
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
            "assumptions": "; ".join(
                (*torchtitan_shim.SHIMS, *torchtitan_shim.PIPELINE_SHIMS, torchtitan_shim.SCATTER_SHIM)
            ),
        },
    )
