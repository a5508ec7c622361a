"""Part 17: Mixtral of transformers, its rows sent to the ranks of their experts, and mistakes in that.

Right plans: the example on two replicas; with gradients clipped by a norm in which each expert counts once;
with the loss that balances experts over the tokens of all ranks.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.nn import functional as differentiable

from orchestrator.capture import Definition
from tests.orchestrator.capture.conftest import load_example

from .kit import Batches, part, reduce

Methods = dict[str, Callable[..., Any]]
AXES = ("dp", "ep")


def _example() -> Any:
    load_example("hf_mixtral.py")
    return sys.modules["hf_mixtral"]


# --- a rank's experts --------------------------------------------------------------------------------------


def _forward(
    weighted: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda rows, w, order: (
        rows * w.view(-1)[order].unsqueeze(-1)
    ),
    back: Callable[[Tensor, Tensor, Tensor, int], Tensor] = lambda rows, order, x, k: torch.zeros_like(
        x
    ).index_add(0, order // k, rows),
) -> Methods:
    def forward(self: Any, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        order, k = torch.argsort(ids.view(-1), stable=True), ids.shape[1]
        rows = self.sent(x[order // k], torch.bincount(ids.view(-1), minlength=self.count))
        return back(weighted(rows, weights, order).to(x.dtype), order, x, k)

    return {"forward": forward}


def _sent(
    counts: Callable[[Any, Tensor], Tensor] | None = None,
    place: Callable[[Any, Tensor, Any], Tensor] | None = None,
    around: Callable[[Any, Tensor, Tensor], Tensor] = lambda m, rows, ends: m.own(rows, ends),
) -> Methods:
    def sent(self: Any, rows: Tensor, mine: Tensor) -> Tensor:
        module = sys.modules["hf_mixtral"]
        arriving = torch.empty_like(mine)
        dist.all_to_all_single(arriving, mine, group=self.ep)
        by_rank = (arriving if counts is None else counts(self, mine)).view(self.ep.size(), -1)
        went, came = mine.view(self.ep.size(), -1).sum(1).tolist(), by_rank.sum(1).tolist()
        grouped = place or module.ParallelExperts.by_expert
        order = grouped(self, by_rank, sum(came))
        rows = module.Exchange.apply(rows, went, came, self.ep)[order]
        rows = around(self, rows, by_rank.sum(0).cumsum(0))
        back = torch.empty_like(rows).index_put((order,), rows)
        found: Tensor = module.Exchange.apply(back, came, went, self.ep)
        return found

    return {"sent": sent}


def _neighbour(self: Any, whole: Any, mesh: DeviceMesh) -> None:
    nn.Module.__init__(self)
    self.ep, self.count = mesh["ep"].get_group(), whole.num_experts
    for name, parameter in whole.named_parameters():
        place = (mesh.get_local_rank("ep") + 1) % self.ep.size()
        part = parameter.detach().chunk(self.ep.size(), 0)[place]
        self.register_parameter(name, nn.Parameter(part.clone()))


def _exchanged(self: Any, rows: Tensor, ends: Tensor) -> Tensor:
    ends = ends.to(torch.int32)
    up, gate = F.grouped_mm(rows, self.gate_up_proj.transpose(1, 2), offs=ends).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * up, self.down_proj.transpose(1, 2), offs=ends)


#: Methods of a rank's experts, and an output that is REFUTED.
EXPERTS: dict[str, tuple[Methods, str]] = {
    "weights of the neighbour's experts": ({"__init__": _neighbour}, "loss"),
    "gate and up exchanged": ({"own": _exchanged}, "loss"),
    "no gradient through the scores": (
        _forward(weighted=lambda rows, w, order: rows * (w.detach() + 0 * w).view(-1)[order].unsqueeze(-1)),
        "params.model.*",
    ),
}
#: Methods of a rank's experts, and words by which the capture refuses them.
REFUSED: dict[str, tuple[Methods, str]] = {
    "no un-permutation": (
        _forward(back=lambda rows, order, x, k: rows.view(len(x), k, x.shape[1]).sum(1)),
        "does not act on each row by itself",
    ),
    "scores in slot order": (
        _forward(weighted=lambda rows, w, order: rows * w.view(-1, 1)),
        "does not act on each row by itself",
    ),
    "counts of the local rank only": (
        _sent(counts=lambda m, mine: mine.clone()),
        "groups are not the rows of each key",
    ),
    "not grouped by expert": (
        _sent(place=lambda m, by_rank, total: torch.arange(total)),
        "no known order|grouped product",
    ),
    "a segment skipped when empty": (
        _sent(around=lambda m, rows, ends: m.own(rows, ends) if rows.shape[0] else rows),
        "decides what runs next",
    ),
}

# --- gradients and losses ----------------------------------------------------------------------------------


def _summed(grad: Tensor, mesh: DeviceMesh, axes: tuple[str, ...]) -> None:
    for axis in axes:
        dist.all_reduce(grad, group=mesh[axis].get_group())


def _gradients(model: Any, mesh: DeviceMesh, mistake: str) -> None:
    """Experts have the gradients of the tokens of all ranks of ``ep``, all others only their own rank's."""
    for name, parameter in model.named_parameters():
        axes, count = AXES, mesh.size()
        if ".experts." in name:
            axes = AXES[:1]
            if mistake == "expert gradient summed over ep":
                axes = AXES
            elif mistake == "expert gradient not divided":
                count = 1
        elif "mlp.gate" in name and mistake == "router gradient not summed over ep":
            axes = AXES[:1]
        _summed(parameter.grad, mesh, axes)
        parameter.grad /= count


def _balance(model: Any, out: Any, mesh: DeviceMesh, mistake: str) -> Tensor:
    """The library's balancing loss, of the tokens of all ranks: a product of two means over them."""
    logits = torch.cat(out.router_logits)
    shares = F.softmax(logits, -1)
    ids = torch.topk(shares, model.num_experts_per_tok, dim=-1).indices
    chosen = F.one_hot(ids, model.num_experts).sum((0, 1)).to(torch.float32)
    likely, rows = shares.float().sum(0), len(logits)
    for axis in () if mistake == "balancing loss of each rank's own tokens" else AXES:
        group = mesh[axis].get_group()
        dist.all_reduce(chosen, group=group)
        if mistake == "balancing loss without the factor of its ranks":
            likely = reduce(likely, group)
        else:  # its gradient is summed as well, and divided with all others
            likely = differentiable.all_reduce(likely, group=group)
        rows *= group.size()
    return model.router_aux_loss_coef * model.num_experts * (chosen / rows * (likely / rows)).sum()


def _clip(model: Any, mesh: DeviceMesh | None, mistake: str) -> Tensor:
    """PyTorch's clipping, with a norm over the experts of all ranks."""
    if mesh is None:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    squares = {n: p.grad.float().square().sum() for n, p in model.named_parameters()}
    experts = torch.stack([s for n, s in squares.items() if ".experts." in n]).sum()
    others = torch.stack([s for n, s in squares.items() if ".experts." not in n]).sum()
    if mistake == "every parameter counted once per rank of ep":
        dist.all_reduce(others, group=mesh["ep"].get_group())
    if mistake != "norm of the own experts only":
        dist.all_reduce(experts, group=mesh["ep"].get_group())
    norm = (experts + others).sqrt()
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    return norm


def _step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: Batches,
    *,
    balanced: bool = False,
    clipped: bool = False,
    mistake: str = "",
) -> dict[str, Tensor]:
    mesh, tokens = getattr(model, "mesh", None), batch["tokens"]
    out = model(input_ids=tokens, labels=tokens, use_cache=False, output_router_logits=balanced)
    loss = out.loss
    if balanced and mesh is not None:
        loss = loss - model.router_aux_loss_coef * out.aux_loss + _balance(model, out, mesh, mistake)
    loss.backward()
    if mesh is not None:
        _gradients(model, mesh, mistake)
    found = {"loss": loss.detach()}
    if clipped:
        found["grad_norm"] = _clip(model, mesh, mistake)
    optimizer.step()
    optimizer.zero_grad()
    return found


_EXPERT, _ROUTER = "params.model.layers.0.mlp.experts.*", "params.model.layers.0.mlp.gate.weight"
#: What is captured on two replicas, as right plans are that are proved; all else on one, which is quicker.
REPLICATED = (
    "weights of the neighbour's experts",
    "router gradient not summed over ep",
    "expert gradient not divided",
)
#: Mistakes in a step, by the right plan that they break, each with an output that is REFUTED.
STEPS: dict[str, dict[str, str]] = {
    "rows sent to experts": {
        "router gradient not summed over ep": _ROUTER,
        "expert gradient summed over ep": _EXPERT,
        "expert gradient not divided": _EXPERT,
    },
    "loss that balances experts": {
        "balancing loss of each rank's own tokens": "*",
        "balancing loss without the factor of its ranks": "params.*",
    },
    "clipping with experts": {
        "norm of the own experts only": "grad_norm",
        "every parameter counted once per rank of ep": "grad_norm",
    },
}


def _define(mistake: str, *, plan: str) -> Definition:
    example = _example()
    options = {"balanced": plan == "loss that balances experts", "clipped": plan == "clipping with experts"}
    methods = (EXPERTS | REFUSED)[mistake][0] if mistake in EXPERTS | REFUSED else {}
    kind = type("Spread", (example.SentExperts,), dict(methods))
    return replace(
        example.definition(dp=2 if not mistake or mistake in REPLICATED else 1, spread=kind),
        step=functools.partial(_step, **options),
        parallel_step=functools.partial(_step, **options, mistake=mistake),
    )


def _wrong(plan: str) -> Mapping[str, str]:
    inside = {m: shown for m, (_, shown) in EXPERTS.items()} if plan == "rows sent to experts" else {}
    return {**inside, **STEPS[plan]}


PART = part(
    "Mixtral of transformers, rows sent to experts",
    {plan: (functools.partial(_define, plan=plan), _wrong(plan)) for plan in STEPS},
)


def refused(mistake: str) -> Definition:
    return _define(mistake, plan="rows sent to experts")
