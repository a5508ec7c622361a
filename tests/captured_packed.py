"""What may be done otherwise than in ``examples/models/moe_packed.py``: right ways, and wrong ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from orchestrator.capture import Definition
from tests.orchestrator.capture.conftest import load_example

Methods = dict[str, Callable[..., Any]]


def _exchange(rows: Tensor, went: Any, came: Any, group: Any) -> Tensor:
    found: Tensor = sys.modules["moe_packed"].Exchange.apply(rows, went, came, group)
    return found


def _own(self: Any, rows: Tensor, counts: Tensor) -> Tensor:
    """The grouped products of the example, on rows that are grouped by the rank's experts."""
    found: Tensor = sys.modules["moe_packed"].Experts.experts(self, rows, counts)
    return found


def _counted(self: Any, ids: Tensor) -> Tensor:
    return torch.bincount(ids.reshape(-1), minlength=self.router.out_features)


# --- on one device, and before rows are sent ---------------------------------------------------------------


def _forward(
    order: Callable[[Tensor], Tensor] = lambda keys: torch.argsort(keys, stable=True),
    counts: Callable[[Any, Tensor], Tensor] = _counted,
    taken: Callable[[Tensor, Tensor, int], Tensor] = lambda x, order, k: x[order // k],
    weighted: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda rows, s, order: (
        rows * s.view(-1)[order].unsqueeze(-1)
    ),
    back: Callable[[Tensor, Tensor, Tensor, int], Tensor] = lambda rows, order, x, k: torch.zeros_like(
        x
    ).index_add(0, order // k, rows),
) -> Methods:
    def forward(self: Any, x: Tensor) -> Tensor:
        scores, ids = self.route(x)
        lie = order(ids.view(-1))
        rows = self.experts(taken(x, lie, self.chosen), counts(self, ids))
        return x + back(weighted(rows, scores, lie), lie, x, self.chosen)

    return {"forward": forward}


def _mapped(self: Any, ids: Tensor) -> Tensor:
    chosen = torch.zeros(len(ids), self.router.out_features, dtype=torch.bool)
    return chosen.scatter(1, ids, True).sum(0)


def _written(rows: Tensor, order: Tensor, x: Tensor, k: int) -> Tensor:
    out = torch.empty_like(rows)
    out[order] = rows
    return out.view(len(x), k, -1).sum(1)


def _inverse_written(rows: Tensor, order: Tensor, x: Tensor, k: int) -> Tensor:
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return rows[place].view(len(x), k, -1).sum(1)


def _scattered(rows: Tensor, order: Tensor, x: Tensor, k: int) -> Tensor:
    index = (order // k).reshape(-1, 1).expand(-1, x.shape[1])
    return torch.zeros_like(x).scatter_add(0, index, rows)


def _by_choice(self: Any, x: Tensor) -> Tensor:
    """Slots are all first choices, then all second ones."""
    scores, ids = self.route(x)
    order = torch.argsort(ids.t().reshape(-1), stable=True)
    rows = self.experts(x[order % len(x)], _counted(self, ids))
    rows = rows * scores.t().reshape(-1)[order].unsqueeze(-1)
    return x + torch.zeros_like(x).index_add(0, order % len(x), rows)


def _scores_first(self: Any, x: Tensor) -> Tensor:
    """Another layer: rows are weighted before their experts, on the single device as well."""
    scores, ids = self.route(x)
    order = torch.argsort(ids.view(-1), stable=True)
    rows = x[order // self.chosen] * scores.view(-1)[order].unsqueeze(-1)
    return x + torch.zeros_like(x).index_add(0, order // self.chosen, self.experts(rows, _counted(self, ids)))


#: On ranks alone.
RIGHT: dict[str, Methods] = {
    "an order by argsort that is not stable": _forward(order=torch.argsort),
    "an order by sort": _forward(order=lambda keys: keys.sort(stable=True).indices),
    "counts by one-hot rows": _forward(
        counts=lambda m, ids: F.one_hot(ids.view(-1), m.router.out_features).sum(0)
    ),
    "counts by a map of choices": _forward(counts=_mapped),
    "counts by a histogram": _forward(
        counts=lambda m, ids: torch.histc(
            ids.view(-1).float(), m.router.out_features, 0, m.router.out_features
        ).long()
    ),
    "counts of sorted keys by a histogram": _forward(
        counts=lambda m, ids: torch.histc(
            ids.view(-1).sort(stable=True)[0].float(), m.router.out_features, 0, m.router.out_features - 1
        ).long()
    ),
    "rows selected": _forward(taken=lambda x, order, k: x.index_select(0, order // k)),
    "rows repeated, then ordered": _forward(taken=lambda x, order, k: x.repeat_interleave(k, 0)[order]),
    "rows gathered": _forward(
        taken=lambda x, order, k: x.gather(0, (order // k).view(-1, 1).expand(-1, x.shape[1]))
    ),
    "tokens by division with rounding": _forward(
        taken=lambda x, order, k: x[torch.div(order, k, rounding_mode="floor")]
    ),
    "results written at the order": _forward(back=_written),
    "results read at the inverse order": _forward(
        back=lambda rows, order, x, k: rows[order.argsort()].view(len(x), k, -1).sum(1)
    ),
    "the inverse order by a write": _forward(back=_inverse_written),
    "results added by scatter": _forward(back=_scattered),
    "slots by choice": {"forward": _by_choice},
}
#: The same on both sides.
RIGHT_ON_BOTH: dict[str, Methods] = {
    "slots by choice": {"forward": _by_choice},
    "scores before the experts": {"forward": _scores_first},
}

# --- between ranks -----------------------------------------------------------------------------------------


def _sent(
    counts: Callable[[Any, Tensor], Tensor] = lambda m, mine: _arrived(m, mine),
    splits: Callable[[Any, Tensor, Tensor], tuple[Any, Any]] | None = None,
    grouped: bool = True,
    own: Callable[[Tensor, Tensor], Tensor] = lambda by_rank, mine: by_rank.sum(0),
    put_back: bool = True,
    returned: Callable[[Any, Any], tuple[Any, Any]] = lambda went, came: (came, went),
    exchange: Callable[..., Tensor] = _exchange,
    around: Callable[[Any, Tensor, Tensor], Tensor] = _own,
) -> Methods:
    def experts(self: Any, rows: Tensor, mine: Tensor) -> Tensor:
        size = self.ep.size()
        by_rank = counts(self, mine).view(size, -1)
        went, came = mine.view(size, -1).sum(1).tolist(), by_rank.sum(1).tolist()
        if splits is not None:
            went, came = splits(self, mine, by_rank)
        rows = exchange(rows, went, came, self.ep)
        place = self.by_expert(by_rank, rows.shape[0])
        rows = around(self, rows[place] if grouped else rows, own(by_rank, mine))
        if put_back:
            rows = torch.empty_like(rows).index_put((place,), rows)
        return exchange(rows, *returned(went, came), self.ep)

    return {"experts": experts}


def _arrived(self: Any, mine: Tensor) -> Tensor:
    arriving = torch.empty_like(mine)
    dist.all_to_all_single(arriving, mine, group=self.ep)
    return arriving


def _ungrouped_by_scatter(self: Any, rows: Tensor, mine: Tensor) -> Tensor:
    size = self.ep.size()
    by_rank = _arrived(self, mine).view(size, -1)
    went, came = mine.view(size, -1).sum(1).tolist(), by_rank.sum(1).tolist()
    rows = _exchange(rows, went, came, self.ep)
    place = self.by_expert(by_rank, rows.shape[0])
    rows = _own(self, rows.index_select(0, place), by_rank.sum(0))
    wide = place.reshape(-1, 1).expand(-1, rows.shape[1])
    return _exchange(torch.zeros_like(rows).scatter(0, wide, rows), came, went, self.ep)


def _functional(rows: Tensor, went: Any, came: Any, group: Any) -> Tensor:
    found: Tensor = all_to_all_single_autograd(rows.contiguous(), came, went, group)
    return found


def _recomputed(self: Any, rows: Tensor, counts: Tensor) -> Tensor:
    found: Tensor = checkpoint(lambda r: _own(self, r, counts), rows, use_reentrant=False)
    return found


def _by_argsort(self: Any, counts: Tensor, total: Any) -> Tensor:
    """The place of each row, from the expert of each."""
    experts = torch.arange(counts.shape[1]).repeat(counts.shape[0])
    return torch.argsort(torch.repeat_interleave(experts, counts.view(-1), output_size=total), stable=True)


SENT_RIGHT: dict[str, Methods] = {
    "functional collectives": _sent(exchange=_functional),
    "experts computed again": _sent(around=_recomputed),
    "rows grouped by a sort of their experts": {"by_expert": _by_argsort},
    "rows put back by scatter": {"experts": _ungrouped_by_scatter},
}

# --- wrong ways --------------------------------------------------------------------------------------------


def _two_sorts(self: Any, x: Tensor) -> Tensor:
    """Rows in the order of one sort, scores in that of another, neither of which says how ties go."""
    scores, ids = self.route(x)
    order, other = torch.argsort(ids.view(-1)), torch.argsort(ids.view(-1).clone())
    rows = self.experts(x[order // self.chosen], _counted(self, ids))
    rows = rows * scores.view(-1)[other].unsqueeze(-1)
    return x + torch.zeros_like(x).index_add(0, order // self.chosen, rows)


def _ties_reversed(self: Any, x: Tensor) -> Tensor:
    """Scores in the order of a sort that ascends as well, but has the last of equal keys first."""
    scores, ids = self.route(x)
    order = torch.argsort(ids.view(-1), stable=True)
    other = torch.argsort(ids.view(-1), stable=True, descending=True).flip(0)
    rows = self.experts(x[order // self.chosen], _counted(self, ids))
    rows = rows * scores.view(-1)[other].unsqueeze(-1)
    return x + torch.zeros_like(x).index_add(0, order // self.chosen, rows)


def _neighbour(self: Any, model: Any, mesh: DeviceMesh) -> None:
    nn.Module.__init__(self)
    self.dp, self.ep = mesh["dp"].get_group(), mesh["ep"].get_group()
    self.router, self.chosen = model.router, model.chosen
    for name, parameter in model.named_parameters(recurse=False):
        place = (mesh.get_local_rank("ep") + 1) % self.ep.size()
        part = parameter.detach().chunk(self.ep.size(), 0)[place]
        self.register_parameter(name, nn.Parameter(part.clone()))


def _late(beyond: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Counts that are wrong where the first three tokens choose alike, as no draw has it."""

    def counts(m: Any, ids: Tensor) -> Tensor:
        alike = (ids == torch.arange(len(ids))[:, None]).long()[:3, 0].sum(0, keepdim=True)
        late = beyond(alike)
        return _counted(m, ids) + torch.cat([late, -late, *(late * 0 for _ in range(2))])

    return counts


_UNSEEN = "a grouped product of rows that no sort of the keys has packed"
#: What is refused, with words of the message.
REFUSED: dict[str, tuple[Methods, str]] = {
    "a sort beyond what was drawn": (
        _forward(counts=_late(lambda s: torch.cat([s, s * 0 + 2]).sort(stable=True)[0][1:] - 2)),
        _UNSEEN,
    ),
    "a histogram that leaves out what was not drawn": (
        _forward(counts=_late(lambda s: 1 - torch.histc(s.float(), 3, 0, 2).sum().long().reshape(1))),
        _UNSEEN,
    ),
    "counts that go on beyond what was drawn": (
        _forward(counts=_late(lambda s: 1 - torch.bincount(s, minlength=3)[:3].sum().reshape(1))),
        _UNSEEN,
    ),
    "no un-permutation": (
        _forward(back=lambda rows, order, x, k: rows.view(len(x), k, -1).sum(1)),
        "does not act on each row by itself",
    ),
    "scores in slot order": (
        _forward(weighted=lambda rows, s, order: rows * s.view(-1, 1)),
        "does not act on each row by itself",
    ),
    "a second sort with another tie order": ({"forward": _two_sorts}, "two sorts"),
    "ties reversed for the scores": ({"forward": _ties_reversed}, "no known order of rows|two orders"),
    "an order that descends": (
        _forward(order=lambda keys: torch.argsort(keys, stable=True, descending=True)),
        "rows that no sort of the keys has packed",
    ),
    "rows of the next token": (
        _forward(taken=lambda x, order, k: x[(order // k + 1) % len(x)]),
        "rows that no sort of the keys has packed",
    ),
    "results added to the next token": (
        _forward(
            back=lambda rows, order, x, k: torch.zeros_like(x).index_add(0, (order + 1) // k % len(x), rows)
        ),
        "no lowering for floor_divide",
    ),
    "counts of one choice only": (
        _forward(counts=lambda m, ids: torch.bincount(ids[:, 0].reshape(-1), minlength=4) * 2),
        "are not the rows of each key",
    ),
    "counts that are rounded up": (
        _forward(counts=lambda m, ids: (_counted(m, ids) + 1) // 2 * 2),
        "grouped product|rounding",
    ),
    "counts of the next expert": (
        _forward(counts=lambda m, ids: _counted(m, ids).roll(1)),
        "grouped product|are not the rows of each key",
    ),
    "inverse of the inverse": (
        _forward(back=lambda rows, order, x, k: rows[order].view(len(x), k, -1).sum(1)),
        "no known order of rows",
    ),
    "rows added up": (
        _forward(weighted=lambda rows, s, order: s.view(-1)[order].unsqueeze(-1) * (rows + rows.sum(0))),
        "does not act on each row by itself",
    ),
}
#: The same between ranks.
SENT_REFUSED: dict[str, tuple[Methods, str]] = {
    "counts of the local rank only": (_sent(counts=lambda m, mine: mine.clone()), "splits that are not"),
    "products by local counts": (
        _sent(own=lambda by_rank, mine: mine.view(by_rank.shape[0], -1)[0]),
        "are not the rows of each key",
    ),
    "splits the other way round": (
        _sent(splits=lambda m, mine, by_rank: _splits(m, by_rank, mine)),
        "splits that are not|as many rows as",
    ),
    "splits of the neighbour": (
        _sent(
            splits=lambda m, mine, by_rank: (_splits(m, mine, by_rank)[0][::-1], _splits(m, mine, by_rank)[1])
        ),
        "splits that are not",
    ),
    "not grouped by expert": (_sent(grouped=False), "not packed by a sort|needs an order|no known order"),
    "not put back before the way back": (_sent(put_back=False), "splits that are not"),
    "the way back by the splits of the way there": (
        _sent(returned=lambda went, came: (went, came)),
        "splits that are not|as many rows as",
    ),
    "counts by expert, then by rank": (
        _sent(counts=lambda m, mine: _arrived(m, mine.view(2, -1).t().reshape(-1))),
        "as many rows as|splits that are not",
    ),
    "a rank's segment skipped when empty": (
        _sent(around=lambda m, rows, counts: _own(m, rows, counts) if rows.shape[0] else rows),
        "decides what runs next",
    ),
    "grouped by rank": (
        {"by_expert": lambda self, counts, total: torch.arange(total)},
        "no known order|grouped product",
    ),
    "grouped by expert from the last": (
        {"by_expert": lambda self, counts, total: _by_argsort(self, counts, total).flip(0)},
        "no known order",
    ),
    "divided by a number of rows": (
        _sent(around=lambda m, rows, counts: _own(m, rows, counts) / rows.shape[0]),
        "a number of rows",
    ),
    "how many rows there are, as a sum of ones": (
        _sent(around=lambda m, rows, counts: _own(m, rows, counts) / rows.new_ones(rows.shape[0]).sum()),
        "what is made of all rows",
    ),
    "as many rows of a weight": (
        _sent(
            around=lambda m, rows, counts: (
                _own(m, rows, counts) * m.gate.flatten(0, 1).narrow(0, 0, rows.shape[0]).sum()
            )
        ),
        "rows whose number a routing decides, in memory that is not of these rows",
    ),
    "rows of the first expert by themselves": (
        _sent(around=lambda m, rows, counts: _first_only(m, rows, counts)),
        "as many rows as a routing decides",
    ),
}
#: What is captured and refuted, with an output that shows it.
SENT_REFUTED: dict[str, tuple[Methods, str]] = {
    "weights of the neighbour's experts": ({"__init__": _neighbour}, "loss"),
}


def _splits(self: Any, mine: Tensor, by_rank: Tensor) -> tuple[Any, Any]:
    size = self.ep.size()
    return mine.view(size, -1).sum(1).tolist(), by_rank.view(size, -1).sum(1).tolist()


def _first_only(self: Any, rows: Tensor, counts: Tensor) -> Tensor:
    first, rest = rows.split(counts.tolist())
    return _own(self, torch.cat([first * 2, rest]), counts)


def definition(methods: Methods | None = None, single: Methods | None = None, **sizes: int) -> Definition:
    """The example; the ranks' model has ``methods`` of its own, and the single device's ``single``."""
    load_example("moe_packed.py")
    example = sys.modules["moe_packed"]

    def parallel(model: Any, mesh: DeviceMesh) -> nn.Module:
        made: nn.Module = type("Ranks", (example.ParallelExperts,), dict(methods or {}))(model, mesh)
        return made

    found: Definition = example.definition(**sizes, parallel=parallel)
    if single:
        build = found.build

        def alone() -> nn.Module:
            made = build()
            made.__class__ = type("Single", (example.Experts,), dict(single))
            return made

        found = replace(found, build=alone)
    return found
