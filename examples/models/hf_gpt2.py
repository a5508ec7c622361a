"""GPT-2 of Hugging Face's transformers, and its vision transformer, under DistributedDataParallel or FSDP2.

``pip install transformers`` (tried with 5.23.0). ``--set family=vit`` is the vision transformer, whose
patches are a convolution; ``--set sharded=1`` is FSDP2. Dropout is off, attention is the library's choice.
Weights are not initialised: a capture has no values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers.initialization import no_init_weights

from orchestrator.capture import Batch, Definition

GPT2 = transformers.GPT2Config(
    bos_token_id=0,
    use_cache=False,
    eos_token_id=0,
    n_embd=32,
    n_layer=2,
    n_head=4,
    vocab_size=64,
    n_positions=16,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    resid_pdrop=0.0,
)
VIT = transformers.ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    image_size=8,
    patch_size=4,
    num_labels=10,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """FSDP2, each block by itself."""
    blocks = model.transformer.h if hasattr(model, "transformer") else model.vit.layers
    for block in blocks:
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def definition(family: str = "gpt2", ranks: int = 2, rows: int = 4, sharded: int = 0) -> Definition:
    if family == "gpt2":
        tokens = Batch((rows, 8), torch.int64, shard={"dp": 0}, bounds=(0, GPT2.vocab_size))
        batch = {"input_ids": tokens, "labels": tokens}
    else:
        batch = {
            "pixel_values": Batch((rows, 3, 8, 8), torch.float32, shard={"dp": 0}),
            "labels": Batch((rows,), torch.int64, shard={"dp": 0}, bounds=(0, VIT.num_labels)),
        }

    def build() -> nn.Module:
        with no_init_weights():
            if family == "gpt2":
                return transformers.GPT2LMHeadModel(GPT2)
            return transformers.ViTForImageClassification(VIT)

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return (
            shard(model, mesh)
            if sharded
            else DistributedDataParallel(model, process_group=mesh.get_group("dp"))
        )

    return Definition(
        name=f"hf-{family}-{'fsdp' if sharded else 'ddp'}{ranks}",
        mesh={"dp": ranks},
        build=build,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4),
        step=step,
        batch=batch,
        mean_over={"loss": ("dp",)},
    )
