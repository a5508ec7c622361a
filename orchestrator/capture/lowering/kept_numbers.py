"""Numbers that are kept for long, in as few bytes as they need: keys of experts need one, and not eight.

A step of many layers keeps the orders of all its rows, on each draw, until its backward pass reads them.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

#: One tensor for each drawn routing.
Numbers = tuple[torch.Tensor, ...]
#: Tensors of fewer elements stay as they are.
SMALL = 1 << 12
_NARROW = (torch.uint8, torch.int16, torch.int32)


class KeptNumbers:
    """Numbers by the names of values; they come out as they were put in."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[torch.Tensor, torch.dtype], ...]] = {}
        #: What all of them take.
        self.bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, name: str) -> Numbers:
        return tuple(x.to(dtype) for x, dtype in self._kept[name])

    def __setitem__(self, name: str, numbers: Numbers) -> None:
        before = _bytes(self._kept.get(name, ()))
        self._kept[name] = tuple((narrowed(x), x.dtype) for x in numbers)
        self.bytes += _bytes(self._kept[name]) - before

    def only(self, names: Collection[str]) -> None:
        """Let go of all others."""
        self._kept = {name: kept for name, kept in self._kept.items() if name in names}
        self.bytes = sum(map(_bytes, self._kept.values()))


def narrowed(x: torch.Tensor) -> torch.Tensor:
    """The same integers in the narrowest type that holds all of them."""
    if x.dtype != torch.int64 or x.numel() < SMALL:
        return x
    low, high = (int(end) for end in torch.aminmax(x))
    for dtype in _NARROW:
        info = torch.iinfo(dtype)
        if info.min <= low and high <= info.max:
            return x.to(dtype)
    return x


def _bytes(kept: tuple[tuple[torch.Tensor, torch.dtype], ...]) -> int:
    return sum(x.numel() * x.element_size() for x, _ in kept)
