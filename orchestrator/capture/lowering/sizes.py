"""Sizes that a routing decides, as numbers of slots: a tensor of rows has a slot for each that there may be.

What each element is that the step has read is known on the drawn routings (:mod:`.routing`). A size that is
the number of rows of a known order in all of them is that of its slots; one that is the same in all is
itself. All other sizes, such as the rows of one expert, are refused where a tensor has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..amounts import Amount
from ..builder import MEETING, Value
from ..errors import LoweringError
from ..geometry import Geometry
from ..recorder import Node, TensorRef
from .exclusive import Written
from .kept_numbers import Numbers
from .row_orders import RowOrders
from .sameness import same

#: Ops with sizes among their arguments, which say no more than the result does.
_OF_SHAPES = frozenset(
    (
        *("aten.new_empty", "aten.new_zeros", "aten.zeros", "aten.empty", "aten.view", "aten.expand"),
        *("aten.reshape", "aten._unsafe_view", "aten.new_ones", "aten.ones"),
        *("aten.slice_backward", "aten.select_backward"),
    )
)
_UNKNOWN = (
    "a tensor of as many rows as a routing decides, which are not all rows of a known order: those of one "
    "expert, padded ones, or of ranks whose counts were not exchanged"
)
_ROW_BY_ROW = (
    "the rows as a whole, from the op that made them: no slice or as_strided of them, and none of as many "
    "rows of another tensor"
)
_INSTEAD = (
    "counts of all experts exchanged by all_to_all_single, sizes that are sums of counts.tolist(); "
    "torch._grouped_mm for all experts at once"
)
_CLONE = "mask = mask.clone() before it is written, or another name for what is made of it"


@dataclass
class Sizes:
    """What amounts of a trace are: by number what was read, on each draw."""

    rows: RowOrders
    #: Was a storage there before the node that is resolved?
    knows: Callable[[int], bool] = lambda _storage: False
    _read: dict[int, Numbers] = field(default_factory=dict)
    #: Tensors of the node that was resolved last of which a draw says how many rows there are.
    varying: dict[TensorRef, list[int]] = field(default_factory=dict)
    #: Masks by the number of the amount of their true elements.
    masks: dict[int, Value] = field(default_factory=dict)
    #: By the same number, what is known of values: along which dimension they have such rows.
    rows_of: dict[int, dict[str, int | None]] = field(default_factory=dict)
    #: What was written by masks that exclude one another.
    written: Written = field(default_factory=Written)
    #: Of the node that was resolved last, the tensors with a row for each of these: along which dimension,
    #: and the number of the amount.
    picked: dict[TensorRef, tuple[int, int]] = field(default_factory=dict)
    #: By storage with such rows: how many there are on draws, or of which mask, and how far apart they lie.
    _lying: dict[int, tuple[object, int]] = field(default_factory=dict)

    def read(self, number: Amount, value: Numbers) -> None:
        """The step has read an element."""
        (term,) = number.terms
        self._read[term[0]] = value

    def drawn(self, amounts: Sequence[Amount | int]) -> Numbers | None:
        """Several amounts as one tensor for each draw; ``None`` if one of them is not known."""
        lines = [self._on_draws(a) for a in amounts]
        known = [line for line in lines if line is not None]
        if len(known) < len(lines) or not known:
            return None
        return tuple(torch.tensor(draw) for draw in zip(*known, strict=True))

    def _on_draws(self, amount: Amount | int) -> list[int] | None:
        if isinstance(amount, int):
            return [amount] * len(self.rows.routing.draws)
        if any(number not in self._read for number, _ in amount.terms):
            return None
        terms, draws = [(self._read[n], factor) for n, factor in amount.terms], self.rows.routing.draws
        return [amount.const + sum(int(n[i]) * f for n, f in terms) for i in range(len(draws))]

    def slots(self, amount: Amount | int) -> int:
        """The size that a plan has."""
        found = self._on_draws(amount)
        if isinstance(amount, int):
            return amount
        if (number := self._mask_of(amount)) is not None:
            return self.masks[number].type.size
        if found is not None and len(set(found)) == 1 and found[0] > 0:
            return found[0]
        for order in self.rows.orders:
            if found is not None and found == [len(k) for k in order.keys]:
                return order.rows
        raise LoweringError(_UNKNOWN, instead=_INSTEAD)

    def resolved(self, node: Node, read: Callable[[TensorRef], Value]) -> Node:
        """The node with sizes of slots; a size that is no such is an error."""
        self.varying, self.picked = {}, {}
        if not node.sized:
            return node
        base = node.op.rsplit(".", 1)[0]
        listed = base in _OF_SHAPES
        args = tuple(self._in(a, listed and isinstance(a, list | tuple)) for a in node.args)
        kwargs = {k: self._in(v, False) for k, v in node.kwargs.items()}
        if node.op == "aten.nonzero.default":
            if self.picked or self.varying:
                raise LoweringError("places of true elements among rows of which a routing decides how many")
            (number, _), *_ = node.outs.geometry.size[0].terms
            mask = self.rows.b.convert(read(args[0]), "i1")
            if not same(self.rows.b, self.masks.setdefault(number, mask), mask):
                raise LoweringError("rows that a mask picks, which was written meanwhile", instead=_CLONE)
        outs, writes = self._in(node.outs, False), tuple(self._in(w, False) for w in node.writes)
        return replace(node, args=args, kwargs=kwargs, outs=outs, writes=writes)

    def reference(self, ref: TensorRef) -> TensorRef:
        """A tensor with sizes of slots."""
        g = ref.geometry
        size, stride = tuple(map(self.slots, g.size)), tuple(map(self._step, g.stride))
        made = replace(ref, geometry=Geometry.of(size, stride, self._offset(g)))
        for dim, found in enumerate(map(self._on_draws, g.size)):
            if found is not None and len(set(found)) > 1:
                self._lie(ref, dim, tuple(found))
                self.varying[made] = found
        rows = [(dim, n) for dim, size in enumerate(g.size) if (n := self._mask_of(size)) is not None]
        if len(rows) > 1:
            raise LoweringError("rows that a mask picks, along two dimensions of a tensor")
        if rows:
            self._lie(ref, *rows[0])
            self.picked[made] = rows[0]
        return made

    def check(self, ref: TensorRef) -> None:
        """An error for a part of such rows: a slot is not the row that PyTorch has there."""
        if ref.storage in self._lying and ref not in self.picked and ref not in self.varying:
            raise LoweringError("some of the rows whose number a routing decides", instead=_ROW_BY_ROW)

    def _lie(self, ref: TensorRef, dim: int, number: object) -> None:
        """The rows of a tensor are those of its storage, each where it was, or all are one and the same."""
        g: Any = ref.geometry  # in numbers that may be amounts
        step, known = g.stride[dim], self._lying.get(ref.storage)
        if step == 0 and known is None:
            return
        others = [(n, s) for d, (n, s) in enumerate(zip(g.size, g.stride, strict=True)) if d != dim]
        inside = [(n - 1) * s for n, s in others if isinstance(n, int) and isinstance(s, int)]
        beyond = [f for _, s in others if isinstance(s, Amount) for _, f in s.terms]
        if (
            not isinstance(step, int)
            or not isinstance(g.offset, int)
            or g.offset + sum(inside) >= step
            or any(f % step for f in beyond)
            or (known is None and self.knows(ref.storage))
            or self._lying.setdefault(ref.storage, (number, step)) != (number, step)
        ):
            raise LoweringError(
                "rows whose number a routing decides, in memory that is not of these rows",
                instead=_ROW_BY_ROW,
            )

    def _step(self, stride: Amount | int) -> int:
        """Rows along the last dimension lie as far apart as there are slots, or a multiple of it."""
        if isinstance(stride, Amount) and len(stride.terms) == 1 and not stride.const:
            number, factor = stride.terms[0]
            return factor * self.slots(Amount(0, ((number, 1),)))
        return self.slots(stride)

    def _mask_of(self, amount: Amount | int) -> int | None:
        """The number of the amount, if it is that of the true elements of a mask."""
        if isinstance(amount, int) or amount.const or len(amount.terms) != 1:
            return None
        number, factor = amount.terms[0]
        return number if factor == 1 and number in self.masks else None

    def loose(self, read: Callable[[TensorRef], Value | None]) -> bool:
        """Has an op rows, as many as a routing decides, that are packed in no order: constants or integers?

        What they are in slots says nothing of what an op makes of all of them. Other tensors of as many rows
        are an error: no slot has a row of theirs. ``read`` gives ``None`` for what the op does not read.
        """
        found = False
        for ref, drawn in self.varying.items():
            value = read(ref)
            order = None if value is None else self.rows.of(value)
            if value is None:
                continue
            if order is None:
                found = True
                if not self._alike(value):
                    raise LoweringError(_UNKNOWN, instead=_INSTEAD)
            elif drawn != [len(k) for k in order.keys]:
                raise LoweringError(_UNKNOWN, instead=_INSTEAD)
        return found

    def _alike(self, value: Value) -> bool:
        """Is it a number known on draws, refused anyway, or made of constants alone?"""
        b, waiting, seen = self.rows.b, [value.name], set[str]()
        if b.tainted(value) or self.rows.routing.rests(value):
            return True
        while waiting:
            name = waiting.pop()
            draft = b.drafts.get(name)
            if draft is None or draft.name == "iota" or draft.name in MEETING:
                return False
            waiting += [v for v in draft.ins if v not in seen]
            seen.update(draft.ins)
        return True

    def _offset(self, geometry: Geometry) -> int:
        if isinstance(geometry.offset, Amount):
            raise LoweringError(_UNKNOWN, instead=_INSTEAD)
        return geometry.offset

    def _in(self, tree: Any, listed: bool) -> Any:
        if isinstance(tree, TensorRef):
            return self.reference(tree)
        if isinstance(tree, list | tuple):
            return type(tree)([self._in(item, listed) for item in tree])
        return self.slots(tree) if listed and isinstance(tree, Amount) else tree


def has_amount(tree: Any) -> bool:
    """Is a number among arguments that a routing decides?"""
    if isinstance(tree, dict):
        return any(map(has_amount, tree.values()))
    return any(map(has_amount, tree)) if isinstance(tree, list | tuple) else isinstance(tree, Amount)
