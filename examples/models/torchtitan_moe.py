"""torchtitan's own layer of experts with its all-to-all dispatcher: 0.3.0, on replicas and expert ranks.

The modules, dispatchers, router and the update of the bias that balances experts are torchtitan's (the latter
as its optimizer's hook writes it); how experts lie on ranks and how gradients are summed is written here. The
shim of ``deterministic_scatter_add`` is what it stands for: ``scatter_add``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchtitan_shim
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

torchtitan_shim.install()

from torchtitan.distributed.utils import set_spmd_backend  # noqa: E402
from torchtitan.models.common import token_dispatcher  # noqa: E402
from torchtitan.models.common.linear import Linear  # noqa: E402
from torchtitan.models.common.moe import (  # noqa: E402
    GroupedExperts,
    MoE,
    RoutedExperts,
    TokenChoiceTopKRouter,
)

SHIM = "torchtitan: scatter_add stands for torchtitan::deterministic_scatter_add"


def _layer(dispatcher: Any, width: int, hidden: int, experts: int, chosen: int) -> Any:
    gate = Linear.Config(in_features=width, out_features=experts, bias=False)
    router = TokenChoiceTopKRouter.Config(num_experts=experts, gate=gate, top_k=chosen, route_norm=True)
    inner = GroupedExperts.Config(dim=width, hidden_dim=hidden, num_experts=experts)
    made = dispatcher.Config(num_experts=experts, top_k=chosen)
    routed = RoutedExperts.Config(inner_experts=inner, token_dispatcher=made)
    layer = MoE.Config(num_experts=experts, routed_experts=routed, router=router).build()
    layer._init_self_buffers()
    return layer


def balanced(moe: Any) -> None:
    """The end of torchtitan's ``register_moe_load_balancing_hook``."""
    with torch.no_grad():
        tokens = moe.tokens_per_expert_E.float()
        delta = moe.load_balance_coeff * torch.sign(tokens.mean() - tokens)
        moe.expert_bias_E.add_(delta - delta.mean())
        moe.tokens_per_expert_E.zero_()


def train_step(
    model: Any, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    model.tokens_per_expert_E.zero_()  # as the last step has left it, and as no claim about one step knows
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    groups = getattr(model, "groups", {})
    for name, parameter in model.named_parameters() if groups else ():
        dist.all_reduce(parameter.grad, group=groups["dp"])
        if name.startswith("router"):  # experts have the gradients of the tokens of all ranks of ep
            dist.all_reduce(parameter.grad, group=groups["ep"])
        parameter.grad /= groups["dp"].size() * groups["ep"].size()
    for group in groups.values():
        dist.all_reduce(model.tokens_per_expert_E, group=group)
    balanced(model)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def definition(
    width: int = 16,
    hidden: int = 24,
    experts: int = 4,
    chosen: int = 2,
    length: int = 6,
    dp: int = 2,
    ep: int = 2,
) -> Definition:
    set_spmd_backend("default")
    token_dispatcher.deterministic_scatter_add = lambda out, index, src: out.scatter_add(0, index, src)
    sizes = width, hidden, experts, chosen

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        place = mesh.get_local_rank("ep")
        made = _layer(token_dispatcher.AllToAllTokenDispatcher, *sizes)
        made.routed_experts.token_dispatcher.wire_meshes(ep_mesh=mesh["ep"])
        made.router = model.router
        made.expert_bias_E, made.tokens_per_expert_E = model.expert_bias_E, model.tokens_per_expert_E
        for name, parameter in model.routed_experts.inner_experts.named_parameters():
            part = nn.Parameter(parameter.detach().chunk(ep, 0)[place].clone())
            setattr(made.routed_experts.inner_experts, name, part)
        made.groups = {axis: mesh[axis].get_group() for axis in ("dp", "ep")}
        return made  # type: ignore[no-any-return]

    batch = Batch(shape=(2 * dp * ep, length, width), shard={"dp": 0, "ep": 0})
    return Definition(
        name="torchtitan-moe",
        mesh={"dp": dp, "ep": ep},
        build=lambda: _layer(token_dispatcher.LocalTokenDispatcher, *sizes),
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train_step,
        batch={"x": batch, "y": batch},
        mean_over={"loss": ("dp", "ep")},
        provenance={"shim": SHIM},
    )
