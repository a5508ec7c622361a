"""Llama, Qwen and other decoders of Hugging Face, tensor parallel by their own ``tp_plan``.

``pip install transformers`` (tried with 5.23.0). Rotary embedding, mask, attention, loss are the library's.
The plan of the library names a style for each layer; :func:`parallelize` hands the same words to PyTorch's
``parallelize_module``, and adds gradients of norms of heads over ranks, as the library does: each has its
own heads. ``--set family=qwen3`` chooses another decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from orchestrator.capture import Batch, Definition

STYLES = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
}


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The library's ``base_model_tp_plan`` over ``tp``, FSDP2 over ``dp``."""
    config: Any = model.config
    styles = config.base_model_tp_plan
    replicated = [name for name, style in styles.items() if style == "replicated_with_grad_allreduce"]
    plan = {f"model.{name}": STYLES[style]() for name, style in styles.items() if name not in replicated}
    parallelize_module(model, mesh["tp"], plan)
    for name, module in model.named_modules():
        if any(fnmatch(name, f"model.{pattern}") for pattern in replicated):
            for param in module.parameters(recurse=False):
                param.register_post_accumulate_grad_hook(
                    lambda p: dist.all_reduce(p.grad, group=mesh["tp"].get_group())
                )
    if mesh["dp"].size() > 1:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = model(input_ids=batch["tokens"], labels=batch["tokens"], use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def definition(
    family: str = "llama", layers: int = 2, dp: int = 1, tp: int = 2, rows: int = 4, length: int = 8
) -> Definition:
    kind, build = FAMILIES[family]
    config = kind(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
        head_dim=8,
    )
    return Definition(
        name=f"hf-{family}-{layers}l-tp{tp}-fsdp{dp}",
        mesh={"dp": dp, "tp": tp},
        build=lambda: build(config),
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4),
        step=step,
        batch={"tokens": Batch((rows, length), torch.int64, shard={"dp": 0}, bounds=(0, 64))},
        mean_over={"loss": ("dp",)},
    )
