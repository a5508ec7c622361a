"""Mixtral of Hugging Face; on ranks its experts are spread, and rows of tokens are sent to them.

``pip install transformers`` (tried with 5.23.0). Router, attention, loss and, on the single device, experts
are the library's (``experts_implementation``: ``grouped_mm``, its own choice, sorts rows). Ranks of ``ep``
have some experts each, under the library's names; tokens are spread over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from moe_packed import Exchange, ParallelExperts
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from orchestrator.capture import Batch, Definition


class SentExperts(nn.Module):
    """The experts of a rank: rows are sorted, sent to the ranks of their experts, and back."""

    def __init__(self, whole: MixtralExperts, mesh: DeviceMesh) -> None:
        super().__init__()
        self.ep, self.count = mesh["ep"].get_group(), whole.num_experts
        for name, parameter in whole.named_parameters():
            part = parameter.detach().chunk(self.ep.size(), 0)[mesh.get_local_rank("ep")]
            self.register_parameter(name, nn.Parameter(part.clone()))

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        order = torch.argsort(ids.view(-1), stable=True)
        counts = torch.bincount(ids.view(-1), minlength=self.count)
        token = order // ids.shape[1]
        rows = self.sent(x[token], counts) * weights.view(-1)[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, token, rows.to(x.dtype))

    def sent(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Each row through its expert, which a rank of ``ep`` has."""
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.ep)
        by_rank = arriving.view(self.ep.size(), -1)
        went, came = counts.view(self.ep.size(), -1).sum(1).tolist(), by_rank.sum(1).tolist()
        place = ParallelExperts.by_expert(self, by_rank, sum(came))
        rows = self.own(Exchange.apply(rows, went, came, self.ep)[place], by_rank.sum(0).cumsum(0))
        back = torch.empty_like(rows).index_put((place,), rows)
        return Exchange.apply(back, came, went, self.ep)

    def own(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows that lie by expert, through the rank's experts."""
        ends = ends.to(torch.int32)
        both = F.grouped_mm(rows, self.gate_up_proj.transpose(1, 2), offs=ends)
        gate, up = both.chunk(2, -1)
        return F.grouped_mm(F.silu(gate) * up, self.down_proj.transpose(1, 2), offs=ends)


def parallelize(
    model: nn.Module, mesh: DeviceMesh, spread: Callable[..., nn.Module] = SentExperts
) -> nn.Module:
    for layer in model.model.layers:
        layer.mlp.experts = spread(layer.mlp.experts, mesh)
    model.mesh = mesh
    return model


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = model(input_ids=batch["tokens"], labels=batch["tokens"], use_cache=False).loss
    loss.backward()
    mesh = getattr(model, "mesh", None)
    if mesh is not None:
        for name, parameter in model.named_parameters():
            dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())
            if ".experts." not in name:  # experts have the gradients of the tokens of all ranks of ep
                dist.all_reduce(parameter.grad, group=mesh["ep"].get_group())
            parameter.grad /= mesh.size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def definition(
    layers: int = 1,
    dp: int = 1,
    ep: int = 2,
    rows: int = 4,
    length: int = 8,
    experts: int = 4,
    implementation: str = "grouped_mm",
    spread: Callable[..., nn.Module] = SentExperts,
) -> Definition:
    config = transformers.MixtralConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=experts,
        num_experts_per_tok=2,
        vocab_size=64,
        max_position_embeddings=32,
        sliding_window=None,
        experts_implementation=implementation,
    )
    return Definition(
        name=f"hf-mixtral-{layers}l-ep{ep}-dp{dp}",
        mesh={"dp": dp, "ep": ep},
        # in the type that grouped products need
        build=lambda: transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16),
        parallelize=lambda model, mesh: parallelize(model, mesh, spread),
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4),
        step=train_step,
        batch={"tokens": Batch((rows, length), torch.int64, shard={"dp": 0, "ep": 0}, bounds=(0, 64))},
        mean_over={"loss": ("dp", "ep")},
    )
