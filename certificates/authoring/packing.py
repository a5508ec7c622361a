"""Packed rows in programs written by hand: an order, and the ops that take it (``docs/format.md``).

::

    order = Rows.sorted(b, keys, 8)               # 8 keys, one per slot; rows in the order of their keys
    sent = order.shipped("ep")                    # every row to the rank that owns its key
    grouped = sent.regrouped()                    # there, rows grouped by key again
    p = grouped.regroup(sent.ship(order.pack(x)))
    h = grouped.dot(p, w)                         # row s times w[key of s]
    y = order.unpack(sent.ship_back(grouped.ungroup(h)))
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FormatError
from ..plan.program import Attr
from ..plan.types import TensorType
from .build import ProgramBuilder, Value


@dataclass(frozen=True)
class Rows:
    """An order of rows: ``value`` has its keys by slot, of which there are ``count``, ``per`` on a rank."""

    b: ProgramBuilder
    value: Value
    count: int
    per: int
    base: Rows | None = None
    group: str = ""

    @staticmethod
    def sorted(b: ProgramBuilder, keys: Value, count: int) -> Rows:
        """Of integer ``keys`` : [slots] in [0, count); another call makes another order."""
        return Rows(b, b.op("sort_rows", (keys,), keys.type, {"count": count}), count, count)

    def shipped(self, group: str) -> Rows:
        """Rows at the owners of their keys: each rank of the group has ``count`` / size keys, in order."""
        size = self.b.group_size(group)
        type_ = TensorType(self.value.type.dtype, (self.value.shape[0] * size,))
        attrs: dict[str, Attr] = {"group": group, "seq": self.b.rendezvous()}
        return Rows(
            self.b, self.b.op("ship_rows", (self.value,), type_, attrs), self.count, self.count // size, self,
            group,
        )  # fmt: skip

    def regrouped(self) -> Rows:
        """Rows that were shipped, grouped by key."""
        value = self.b.op("regroup_rows", (self.value,), self.value.type)
        return Rows(self.b, value, self.count, self.per, self, self.group)

    def _move(self, name: str, x: Value, slots: int) -> Value:
        type_ = TensorType(x.type.dtype, (slots, *x.shape[1:]))
        attrs = {"seq": self.b.rendezvous()} if name in ("ship", "ship_back") else {}
        return self.b.op(name, (x, self.value), type_, attrs)

    def pack(self, x: Value) -> Value:
        """From a row per slot to rows in this order."""
        return self._move("pack", x, self.value.shape[0])

    def unpack(self, x: Value) -> Value:
        """From rows in this order to a row per slot."""
        return self._move("unpack", x, self.value.shape[0])

    def ship(self, x: Value) -> Value:
        """Rows in the order before to the owners of their keys."""
        return self._move("ship", x, self.value.shape[0])

    def ship_back(self, x: Value) -> Value:
        """Rows in this order back to where they came from."""
        return self._move("ship_back", x, self._before().value.shape[0])

    def regroup(self, x: Value) -> Value:
        return self._move("regroup", x, self.value.shape[0])

    def ungroup(self, x: Value) -> Value:
        """From rows grouped by key to the order in which they arrived."""
        return self._move("ungroup", x, self.value.shape[0])

    def dot(self, x: Value, weights: Value, contract: int = 1) -> Value:
        """Each row with the weights : [keys of the rank, ., .] of its key, over dimension ``contract``."""
        if len(weights.shape) != 3 or contract not in (1, 2):
            raise FormatError(f"{weights.type} are not weights by key, or have no dimension {contract}")
        type_ = TensorType(x.type.dtype, (self.value.shape[0], weights.shape[3 - contract]))
        return self.b.op("ragged_dot", (x, weights, self.value), type_, {"contract": contract})

    def outer(self, x: Value, y: Value) -> Value:
        """By key the sum of the products of its rows : [keys of the rank, width of x, width of y]."""
        type_ = TensorType(x.type.dtype, (self.per, x.shape[-1], y.shape[-1]))
        return self.b.op("ragged_outer", (x, y, self.value), type_)

    def _before(self) -> Rows:
        if self.base is None:
            raise FormatError(f"{self.value.name} goes on from no order")
        return self.base
