"""What ranks may do otherwise than ``examples/models/moe_handwritten.py``: right ways, and wrong ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Definition
from tests.orchestrator.capture.conftest import load_example

SMALL = {"width": 6, "hidden": 8, "experts": 4, "chosen": 2, "tokens": 6, "dp": 2, "ep": 2, "tp": 2}
Way = Callable[[Any], dict[str, Callable[..., Any]]]


def _best(self: Any, x: Tensor, k: int, largest: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    scores = F.softmax(self.router(x), dim=-1)
    best, ids = torch.topk(scores, k, dim=-1, largest=largest)
    return scores, best, ids


def _shared(best: Tensor) -> Tensor:
    return best / best.sum(-1, keepdim=True)


def _scattered(scores: Tensor, ids: Tensor, best: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter(1, ids, best)


# --- right ways ------------------------------------------------------------------------------------------


def compared(self: Any, x: Tensor) -> Tensor:
    """Gates as a sum over choices of a mask of the expert, in place of a scatter."""
    scores, best, ids = _best(self, x, self.chosen)
    experts = torch.arange(scores.shape[1])
    return ((ids[..., None] == experts) * _shared(best)[..., None]).sum(1)


def one_hot(self: Any, x: Tensor) -> Tensor:
    scores, best, ids = _best(self, x, self.chosen)
    hot = F.one_hot(ids, scores.shape[1]).to(scores.dtype)
    return torch.einsum("tk,tke->te", _shared(best), hot)


def gathered(self: Any, x: Tensor) -> Tensor:
    """Scores looked up at the ids, as routers do that choose by another number."""
    scores, _, ids = _best(self, x, self.chosen)
    return _scattered(scores, ids, _shared(scores.gather(1, ids)))


def added(self: Any, x: Tensor) -> Tensor:
    scores, best, ids = _best(self, x, self.chosen)
    return torch.zeros_like(scores).scatter_add(1, ids, _shared(best))


def looped(self: Any, x: Tensor, gates: Tensor) -> Tensor:
    """One expert after the other."""
    out = torch.zeros_like(x)
    for i in range(gates.shape[1]):
        inner = F.silu(x @ self.gate[i]) * (x @ self.up[i])
        out = out + gates[:, i : i + 1] * (inner @ self.down[i])
    return out


RIGHT: dict[str, dict[str, Callable[..., Any]]] = {
    "gates by comparing ids": {"gates": compared},
    "gates by one-hot rows": {"gates": one_hot},
    "scores looked up at ids": {"gates": gathered},
    "gates added": {"gates": added},
    "experts in a loop": {"experts": looped},
}

# --- wrong ways ------------------------------------------------------------------------------------------


def one_more(self: Any, x: Tensor) -> Tensor:
    scores, best, ids = _best(self, x, self.chosen + 1)
    return _scattered(scores, ids, _shared(best))


def raw(self: Any, x: Tensor) -> Tensor:
    scores, best, ids = _best(self, x, self.chosen)
    return _scattered(scores, ids, best)


def of_all(self: Any, x: Tensor) -> Tensor:
    scores, best, ids = _best(self, x, self.chosen)
    return _scattered(scores, ids, best / scores.sum(-1, keepdim=True))


def smallest(self: Any, x: Tensor) -> Tensor:
    scores, best, ids = _best(self, x, self.chosen, largest=False)
    return _scattered(scores, ids, _shared(best))


def crossed(self: Any, x: Tensor) -> Tensor:
    scores, best, ids = _best(self, x, self.chosen)
    return _scattered(scores, ids, _shared(best).flip(-1))


def not_differentiated(self: Any, x: Tensor) -> Tensor:
    scores, best, ids = _best(self, x, self.chosen)
    return _scattered(scores, ids, best / best.sum(-1, keepdim=True).detach())


def first(self: Any, gates: Tensor) -> Tensor:
    return gates[:, : gates.shape[1] // self.ep.size()]


def neighbour(self: Any, gates: Tensor) -> Tensor:
    count, place = gates.shape[1] // self.ep.size(), (self.place + 1) % self.ep.size()
    return gates[:, place * count : (place + 1) * count]


def _forward(gates: bool, groups: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    def forward(self: Any, x: Tensor) -> Tensor:
        found = self.gates(x)
        out = self.experts(self.entered(x), self.own(self.entered(found) if gates else found))
        return x + sys.modules["moe_handwritten"].Leave.apply(out, *groups(self))

    return forward


#: Overridden methods, and an output that shows it.
WRONG: dict[str, tuple[dict[str, Callable[..., Any]], str]] = {
    "another number of experts": ({"gates": one_more}, "loss"),
    "scores not normalised": ({"gates": raw}, "loss"),
    "scores normalised over all experts": ({"gates": of_all}, "loss"),
    "the smallest scores": ({"gates": smallest}, "loss"),
    "scores of another choice": ({"gates": crossed}, "loss"),
    "gradient of the normalisation left out": ({"gates": not_differentiated}, "params.router.weight"),
    "gates of the first experts on every rank": ({"own": first}, "loss"),
    "gates of the neighbour's experts": ({"own": neighbour}, "loss"),
    "router gradient not summed": (
        {"forward": _forward(False, lambda m: (m.ep, m.tp))},
        "params.router.weight",
    ),
    "experts not summed over ep": ({"forward": _forward(True, lambda m: (m.tp,))}, "loss"),
    "hidden units not summed over tp": ({"forward": _forward(True, lambda m: (m.ep,))}, "loss"),
}


def definition(methods: dict[str, Callable[..., Any]] | None = None, **sizes: int) -> Definition:
    """The example at small sizes; the ranks' model has ``methods`` of its own."""
    load_example("moe_handwritten.py", **SMALL)
    example = sys.modules["moe_handwritten"]

    def parallel(model: Any, mesh: DeviceMesh) -> nn.Module:
        made: nn.Module = type("Ranks", (example.ParallelExperts,), dict(methods or {}))(model, mesh)
        return made

    found: Definition = example.definition(**SMALL | sizes, parallel=parallel)
    return found
