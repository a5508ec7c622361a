"""What torchtitan's own pipelines have in common: stages by its split, and its trainer's step on a rank.

Needs ``torchtitan==0.3.0``. Everything is torchtitan's but the step, which is its trainer's
(``pp_forward_backward_step`` and ``train_step``) without data loading and logging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchtitan_shim
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.pipeline_parallel import pipeline_llm


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


def labels_of(batch: Mapping[str, Tensor]) -> Tensor:
    """[microbatches x rows, length]: labels, and which of them do not count."""
    return torch.where(batch["valid"], batch["labels"], IGNORE_INDEX).flatten(0, 1)


def stages(
    model: nn.Module,
    parallelism: ParallelismConfig,
    training: TrainingConfig,
    config: Any,
    parallelize: Callable[..., nn.Module],
    loss_fn: Any,
    world: int,
) -> Parts:
    """The stages of this rank, and the schedule that runs them."""
    dims = ParallelDims.from_config(parallelism, world)
    dist_utils.set_spmd_backend(parallelism.spmd_backend)
    dims.build_mesh()
    rows, tp = parallelism.pipeline_parallel_microbatch_size, parallelism.tensor_parallel_degree
    tokens = torch.zeros(rows, training.seq_len, dtype=torch.int64)
    hidden, logits = (
        torch.zeros(rows, training.seq_len, n, dtype=torch.bfloat16, requires_grad=True)
        for n in (config.dim, config.vocab_size)
    )
    if tp > 1:  # sequence parallel between layers, logits by columns
        hidden, logits = (
            DTensor.from_local(
                x.chunk(tp, dim)[0].detach().clone(), dims.get_mesh("tp"), [Shard(dim)]
            ).requires_grad_()
            for x, dim in ((hidden, 1), (logits, 2))
        )
    with torchtitan_shim.shapes_of_stages(tokens, hidden, logits):
        schedule, parts, first, last = pipeline_llm(
            model,
            parallel_dims=dims,
            training=training,
            parallelism=parallelism,
            compile_config=CompileConfig(),
            ac_config=None,
            dump_folder="",
            device=torch.device("cpu"),
            model_config=config,
            parallelize_fn=parallelize,
            loss_fn=loss_fn,
        )
    held = Parts(parts)
    held.schedule, held.first, held.last, held.dims = schedule, first, last, dims
    return held


def forward_backward(model: Parts, batch: Mapping[str, Tensor]) -> tuple[list[Tensor], Tensor]:
    """Losses of the microbatches on the last stage, and the number of tokens that count."""
    labels = labels_of(batch)
    count = (labels != IGNORE_INDEX).sum()
    if model.dims.dp_enabled:
        count = dist_utils.dist_sum_tensor(count, model.dims.get_mesh("batch"))
    losses: list[Tensor] = []
    model.schedule.step(
        *((batch["tokens"].flatten(0, 1),) if model.first else ()),
        target=labels if model.last else None,
        losses=losses if model.last else None,
        loss_kwargs={"global_valid_tokens": count},
        return_outputs=False,
    )
    return losses, count


def clipped(model: Parts, training: TrainingConfig, **settings: Any) -> Tensor:
    """The norm of all gradients, which are scaled down to the largest that is allowed."""
    return dist_utils.clip_grad_norm_(
        list(model.parameters()),
        training.max_norm,
        foreach=True,
        pp_mesh=model.dims.get_optional_mesh("pp"),
        **settings,
    )


def reported(model: Parts, losses: list[Tensor], count: Tensor) -> dict[str, Tensor]:
    """The loss as the trainer sums it: all ranks take part, the last stages have it."""
    loss = (
        torch.sum(torch.stack(losses)).detach() if losses else count.new_full((1,), -1.0, dtype=torch.float32)
    )
    if model.dims.dp_cp_enabled:
        loss = dist_utils.dist_sum_tensor(loss, model.dims.get_mesh("loss"))
    return {"loss": loss} if losses else {}
