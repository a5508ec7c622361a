"""Between which whole numbers the elements of a tensor lie, at each place, whatever the inputs are.

By interval arithmetic on true sizes, from positions, literals and declared ranges. A dimension along which
all is alike has size 1 here: a mask over the vocabulary costs a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final

import torch
from torch import Tensor

from certificates.plan.affine import Affine
from certificates.plan.program import Attr
from smtlib_emit.regroup import reshape_parts

from ..builder import Builder, Draft, Value

#: More elements are not looked at one by one, only what they have in common.
MOST: Final = 1 << 22
#: Nothing is said of numbers beyond; an end there is ENDLESS. A product of two such ends is no overflow.
FAR: Final = 1 << 28
ENDLESS: Final = 1 << 30
MAX_DEEP: Final = 200


@dataclass(frozen=True)
class Ends:
    """The least and the greatest of each element, both included; of masks 0 and 1."""

    low: Tensor
    high: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.low.shape)

    def each(self, change: Callable[[Tensor], Tensor]) -> Ends:
        return Ends(change(self.low), change(self.high))

    def near(self) -> Ends:
        low, high = self.low.clamp(-FAR, FAR), self.high.clamp(-FAR, FAR)
        return Ends(torch.where(low == -FAR, -ENDLESS, low), torch.where(high == FAR, ENDLESS, high))

    def hull(self) -> Ends:
        """What all elements have in common, if there are any."""
        ones = (1,) * self.low.dim()
        return Ends(self.low.min().reshape(ones), self.high.max().reshape(ones))

    def wide(self, sizes: Sequence[int]) -> Ends:
        return self.each(lambda t: t.expand(tuple(sizes)))


def never_picked(b: Builder, mask: Value, index: Value) -> bool:
    """Is no element of ``mask`` true that ``index``, of the same leading dimensions, picks from its last one?

    An index outside has no element. Ranges of inputs that this rests on are relied on then.
    """
    found = Enclosing(b)
    masks, picks = found.of(mask.name), found.of(index.name)
    lead, last = len(mask.shape) - 1, mask.shape[-1]
    sizes = torch.broadcast_shapes(masks.sizes[:lead], picks.sizes[:lead])
    if prod(sizes) * last > MOST or not mask.type.size or not picks.low.numel():
        return False
    before = masks.high.expand(*masks.sizes[:lead], last).cumsum(-1)
    before = torch.cat([torch.zeros_like(before[..., :1]), before], -1).expand(*sizes, last + 1)
    inside = picks.wide((*sizes, picks.sizes[-1])).each(lambda t: t.clamp(-1, last))
    first, end = inside.low.clamp(0, last), (inside.high + 1).clamp(0, last)
    if bool((before.gather(-1, end) > before.gather(-1, torch.minimum(first, end))).any()):
        return False
    b.relied |= found.inputs
    return True


class Enclosing:
    """The ends of all values that were asked for; ``inputs`` are those of which a range was read."""

    def __init__(self, b: Builder) -> None:
        self.b, self.inputs = b, set[str]()
        self._known: dict[str, Ends] = {}
        self._deep = 0

    def of(self, name: str) -> Ends:
        if name not in self._known:
            self._deep += 1
            self._known[name] = self._ends(name)
            self._deep -= 1
        return self._known[name]

    def _ends(self, name: str) -> Ends:
        draft = self.b.drafts.get(name)
        type_ = self.b.inputs[name] if draft is None else draft.type
        nothing = _every(len(type_.shape), *((0, 1) if type_.sort == "Bool" else (-ENDLESS, ENDLESS)))
        if draft is None:
            if name not in self.b.bounds:
                return nothing
            self.inputs.add(name)
            low, end = self.b.bounds[name]
            return _every(len(type_.shape), low, end - 1).near()
        if self._deep > MAX_DEEP or not type_.size:
            return nothing
        found = self._made(draft)
        return nothing if found is None else found.near()

    def _made(self, draft: Draft) -> Ends | None:
        rank = len(draft.type.shape)
        match draft.name:
            case "constant":
                ends = _literal(draft.attr("value"))
                return None if ends is None else _every(rank, *ends)
            case "iota":
                dim = _number(draft, "dim")
                if draft.type.shape[dim] > MOST:
                    return _every(rank, 0, draft.type.shape[dim] - 1)
                count = torch.arange(draft.type.shape[dim])
                count = count.reshape([-1 if d == dim else 1 for d in range(rank)])
                return Ends(count, count)
            case "broadcast_in_dim" | "reshape" | "transpose" | "slice" | "concatenate":
                return self._moved(draft)
            case "convert":
                x = self.of(draft.ins[0])
                if draft.type.sort == "Bool":  # 0 is false, and all else is true
                    return _compared("NE", x, _every(rank, 0, 0))
                return x
            case "compare":
                return _compared(str(draft.attr("direction")), *self._together(draft.ins))
            case "select":
                mask, one, other = self._together(draft.ins)
                yes, no = mask.low > 0, mask.high < 1
                low, high = torch.minimum(one.low, other.low), torch.maximum(one.high, other.high)
                return Ends(
                    torch.where(yes, one.low, torch.where(no, other.low, low)),
                    torch.where(yes, one.high, torch.where(no, other.high, high)),
                )
            case name if name in _ELEMENTWISE:
                return _ELEMENTWISE[name](*self._together(draft.ins))
        return None

    def _together(self, names: Sequence[str]) -> list[Ends]:
        """Ends of operands of one shape; what they have in common where together they are too many."""
        found = [self.of(v) for v in names]
        sizes = torch.broadcast_shapes(*(e.sizes for e in found))
        return [e.hull() for e in found] if prod(sizes) > MOST else [e.wide(sizes) for e in found]

    def _moved(self, draft: Draft) -> Ends | None:
        parts = [self.of(v) for v in draft.ins]
        x, shape = parts[0], draft.type.shape
        match draft.name:
            case "broadcast_in_dim":
                dims = _numbers(draft, "dims")
                sizes = [x.sizes[dims.index(d)] if d in dims else 1 for d in range(len(shape))]
                return x.each(lambda t: t.reshape(sizes))
            case "transpose":
                return x.each(lambda t: t.permute(_numbers(draft, "perm")))
            case "slice":
                places = [
                    slice(None) if n == 1 else slice(start, start + (count - 1) * step + 1, step)
                    for n, start, count, step in zip(
                        x.sizes, _starts(draft), shape, _numbers(draft, "stride"), strict=True
                    )
                ]
                return x.each(lambda t: t[tuple(places)])
            case "reshape":
                return self._reshaped(draft, x)
        dim = _number(draft, "dim")
        lengths = [self._shape(v)[dim] for v in draft.ins]
        beside = [[1 if d == dim else n for d, n in enumerate(e.sizes)] for e in parts]
        sizes = torch.broadcast_shapes(*beside)
        if prod(sizes) * shape[dim] > MOST:
            return None
        wide = [
            e.wide([n if d == dim else m for d, m in enumerate(sizes)])
            for e, n in zip(parts, lengths, strict=True)
        ]
        return Ends(torch.cat([e.low for e in wide], dim), torch.cat([e.high for e in wide], dim))

    def _shape(self, name: str) -> tuple[int, ...]:
        draft = self.b.drafts.get(name)
        return (self.b.inputs[name] if draft is None else draft.type).shape

    def _reshaped(self, draft: Draft, x: Ends) -> Ends:
        """Only the dimensions of a part along which not all is alike are written out."""
        shape = self._shape(draft.ins[0])
        wide, sizes = list(x.sizes), [1] * len(draft.type.shape)
        for part in reshape_parts(shape, draft.type.shape):
            if any(x.sizes[d] > 1 for d in part.arg):
                for d in part.arg:
                    wide[d] = shape[d]
                for d, n in zip(part.at, part.at_sizes, strict=True):
                    sizes[d] = n
        if prod(wide) > MOST:
            return x.hull().each(lambda t: t.reshape((1,) * len(sizes)))
        return x.wide(wide).each(lambda t: t.reshape(sizes))


def _every(rank: int, *ends: int) -> Ends:
    """The same least and greatest everywhere; numbers beyond a tensor's own are far all the same."""
    low, high = (max(-ENDLESS, min(ENDLESS, n)) for n in ends)
    return Ends(torch.full((1,) * rank, low), torch.full((1,) * rank, high))


def _literal(value: Attr) -> tuple[int, int] | None:
    """Whole numbers on both sides of a literal; ``None`` for an infinity, and for what differs by rank."""
    if isinstance(value, Affine):
        number = Fraction(value.const) if value.is_const else None
    else:
        words = {"true": Fraction(1), "false": Fraction(0), "inf": None, "-inf": None}
        number = words[str(value)] if str(value) in words else Fraction(str(value))
    return None if number is None else (math.floor(number), math.ceil(number))


def _compared(direction: str, x: Ends, y: Ends) -> Ends:
    match direction:
        case "EQ" | "NE":
            apart = (x.high < y.low) | (y.high < x.low)
            one = (x.low == x.high) & (y.low == y.high) & (x.low == y.low)
            sure, ever = (one, ~apart) if direction == "EQ" else (apart, ~one)
        case "LT" | "GE":
            sure, ever = x.high < y.low, x.low < y.high
            sure, ever = (sure, ever) if direction == "LT" else (~ever, ~sure)
        case _:
            sure, ever = x.low > y.high, x.high > y.low
            sure, ever = (sure, ever) if direction == "GT" else (~ever, ~sure)
    return Ends(sure.long(), ever.long())


def _product(x: Ends, y: Ends) -> Ends:
    corners = torch.stack([x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high])
    return Ends(corners.amin(0), corners.amax(0))


_ELEMENTWISE: dict[str, Callable[..., Ends]] = {
    "not": lambda x: Ends(1 - x.high, 1 - x.low),
    "negate": lambda x: Ends(-x.high, -x.low),
    "add": lambda x, y: Ends(x.low + y.low, x.high + y.high),
    "subtract": lambda x, y: Ends(x.low - y.high, x.high - y.low),
    "multiply": _product,
    **dict.fromkeys(
        ("and", "minimum"),
        lambda x, y: Ends(torch.minimum(x.low, y.low), torch.minimum(x.high, y.high)),
    ),
    **dict.fromkeys(
        ("or", "maximum"),
        lambda x, y: Ends(torch.maximum(x.low, y.low), torch.maximum(x.high, y.high)),
    ),
}  # fmt: skip


def _number(draft: Draft, key: str) -> int:
    value = draft.attr(key)
    assert isinstance(value, int)
    return value


def _numbers(draft: Draft, key: str) -> list[int]:
    value = draft.attr(key)
    assert isinstance(value, tuple)
    return [int(str(n)) for n in value]


def _starts(draft: Draft) -> list[int]:
    value = draft.attr("start")
    assert isinstance(value, tuple)
    return [form.const for form in value if isinstance(form, Affine)]
