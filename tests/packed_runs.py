"""Plans with packed rows as they run: buffers of as many rows as there are, sorted, cut and sent by counts.

An oracle of its own: it knows the ops as files have them, and nothing of what they are lowered to. Equal keys
are put in an order drawn at random, on each rank and in each sort anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from certificates.plan.ops import COLLECTIVES, PACKED
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.plan.types import TensorType
from orchestrator.evaluating.interpreter import apply, collective

Array = np.ndarray


@dataclass
class Order:
    """The keys of the rows as they lie; ``moved``: from where in the order before; the ``first`` of the rank.
    Of rows that were sent: how many came from which member of the group, and went to which."""

    keys: Array
    moved: Array
    first: int = 0
    per: int = 0
    came: Sequence[int] = ()
    went: Sequence[int] = ()


class Run:
    """All ranks of a plan whose ranks run one program, in step, at all times."""

    def __init__(self, plan: Plan, inputs: Sequence[Mapping[str, Array]], rng: np.random.Generator) -> None:
        (cls,) = plan.classes
        self.plan, self.rng, self.program = plan, rng, cls.program
        self.places = [plan.mesh.coordinates(r) for r in range(plan.mesh.points)]
        self.values: list[dict[str, Array]] = [dict(i) for i in inputs]
        self.orders: list[dict[str, Order]] = [{} for _ in inputs]
        self.packed: set[str] = set()
        self.group: dict[str, str] = {}

    def outputs(self) -> list[dict[str, Array]]:
        for op in self.program.written:
            if op.name in ("ship_rows", "ship", "ship_back"):
                self._meet(op)
            elif op.name in PACKED:
                for rank in range(len(self.values)):
                    self._own(op, rank)
            elif op.name in COLLECTIVES:
                for members in self.plan.groups[op.text("group")].lists(self.plan.mesh):
                    results = collective(op, [self.values[r][op.ins[0]] for r in members])
                    for r, result in zip(members, results, strict=True):
                        self.values[r][op.out] = result
            else:
                for rank in range(len(self.values)):
                    self._plain(op, rank)
            if op.name in ("pack", "ship", "regroup", "ungroup", "ship_back", "ragged_dot") or (
                op.name not in PACKED and self.packed & set(op.ins)
            ):
                self.packed.add(op.out)
        return [{n: v[name] for n, name in self.program.outputs.items()} for v in self.values]

    def _plain(self, op: Op, rank: int) -> None:
        """On rows: for as many as there are; of what is alike in all rows the first."""
        values = self.values[rank]
        ins = [values[v] for v in op.ins]
        rows = [x.shape[0] for v, x in zip(op.ins, ins, strict=True) if v in self.packed]
        if rows:
            count = rows[0]
            op = replace(op, type=TensorType(op.type.dtype, (count, *op.type.shape[1:])))
            if op.name != "dot_general":
                ins = [
                    x if v in self.packed else np.broadcast_to(x[:1], (count, *x.shape[1:]))
                    for v, x in zip(op.ins, ins, strict=True)
                ]
        values[op.out] = apply(op, ins, self.places[rank])

    def _sorted(self, keys: Array) -> Array:
        """Stable after a shuffle: equal keys in any order."""
        shuffled = self.rng.permutation(len(keys))
        return shuffled[np.argsort(keys[shuffled], kind="stable")]

    def _own(self, op: Op, rank: int) -> None:
        values, orders = self.values[rank], self.orders[rank]
        x = values.get(op.ins[0], np.zeros(0))
        if op.name == "sort_rows":
            moved = self._sorted(x)
            orders[op.out] = Order(x[moved], moved, 0, op.integer("count"))
            return
        if op.name == "regroup_rows":
            before = orders[op.ins[0]]
            moved = self._sorted(before.keys)
            orders[op.out] = replace(before, keys=before.keys[moved], moved=moved)
            return
        order = orders[op.ins[-1]]
        if op.name in ("pack", "regroup"):
            values[op.out] = x[order.moved]
        elif op.name in ("unpack", "ungroup"):
            values[op.out] = np.empty_like(x)
            values[op.out][order.moved] = x
        else:
            values[op.out] = self._ragged(op, x, values[op.ins[1]], order)

    @staticmethod
    def _ragged(op: Op, x: Array, y: Array, order: Order) -> Array:
        """Segment by segment, whose ends are the running sums of the counts of the keys."""
        ends = np.cumsum([(order.keys == order.first + i).sum() for i in range(order.per)])
        assert ends[-1] == len(x)
        parts = np.split(x, ends[:-1])
        if op.name == "ragged_dot":
            sides = [w if op.integer("contract") == 1 else w.T for w in y]
            return np.concatenate([part @ w for part, w in zip(parts, sides, strict=True)])
        return np.stack([p.T @ q for p, q in zip(parts, np.split(y, ends[:-1]), strict=True)])

    def _meet(self, op: Op) -> None:
        if op.name == "ship_rows":
            self.group[op.out] = op.text("group")
        for members in self._members(op.out if op.name == "ship_rows" else op.ins[1]):
            if op.name == "ship_rows":
                self._counts(op, members)
                continue
            orders = [self.orders[r][op.ins[1]] for r in members]
            cuts = [o.went if op.name == "ship" else o.came for o in orders]
            parts = [
                np.split(self.values[r][op.ins[0]], np.cumsum(c)[:-1])
                for r, c in zip(members, cuts, strict=True)
            ]
            for place, r in enumerate(members):
                self.values[r][op.out] = np.concatenate([p[place] for p in parts])

    def _members(self, order: str) -> Sequence[Sequence[int]]:
        return self.plan.groups[self.group[order]].lists(self.plan.mesh)

    def _counts(self, op: Op, members: Sequence[int]) -> None:
        before = [self.orders[r][op.ins[0]] for r in members]
        per = before[0].per // len(members)
        went = [[int((o.keys // per == j).sum()) for j in range(len(members))] for o in before]
        for place, r in enumerate(members):
            keys = np.concatenate([o.keys[o.keys // per == place] for o in before])
            came = [w[place] for w in went]
            self.orders[r][op.out] = Order(keys, np.arange(len(keys)), place * per, per, came, went[place])
