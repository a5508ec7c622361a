"""Random choices among the tensors of a program that is being written: real ones, so shapes are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

CONSTANTS = ("2", "-1", "0.5", "3", "0.1", "1e-3", "0", "1", "-0.25", "1.5")


class Nothing(Exception):
    """No tensor of the wanted kind exists."""


class Draw:
    """Choices for one statement: names of tensors by kind, dimensions, constants."""

    def __init__(self, rng: random.Random, space: dict[str, Any]) -> None:
        self.rng, self.space = rng, space

    def tensor(self, accept: Callable[[torch.Tensor], bool]) -> str:
        found = [n for n, t in self.space.items() if isinstance(t, torch.Tensor) and accept(t)]
        if not found:
            raise Nothing
        # Later tensors more often: programs become deep.
        return self.rng.choice(found[-4:] if self.rng.random() < 0.4 else found)

    def f(self, least: int = 0, most: int = 4) -> str:
        return self.tensor(lambda t: t.is_floating_point() and least <= t.dim() <= most)

    def i(self, least: int = 0, most: int = 4) -> str:
        return self.tensor(lambda t: t.dtype in (torch.int64, torch.int32) and least <= t.dim() <= most)

    def b(self, least: int = 0) -> str:
        return self.tensor(lambda t: t.dtype == torch.bool and t.dim() >= least)

    def any(self, least: int = 0) -> str:
        return self.tensor(lambda t: t.dim() >= least)

    def like(self, name: str) -> str:
        """A float that broadcasts with ``name``, not always to its shape."""
        shape = self.shape(name)

        def fits(t: torch.Tensor) -> bool:
            try:
                torch.broadcast_shapes(t.shape, shape)
            except RuntimeError:
                return False
            return t.is_floating_point()

        return self.tensor(fits)

    def into(self, name: str) -> str:
        """A float that can be written into ``name``."""
        shape = self.shape(name)

        def fits(t: torch.Tensor) -> bool:
            try:
                return t.is_floating_point() and torch.broadcast_shapes(t.shape, shape) == shape
            except RuntimeError:
                return False

        return self.tensor(fits)

    def mask(self, name: str) -> str:
        shape = self.shape(name)

        def fits(t: torch.Tensor) -> bool:
            try:
                return t.dtype == torch.bool and torch.broadcast_shapes(t.shape, shape) == shape
            except RuntimeError:
                return False

        return self.tensor(fits)

    def shape(self, name: str) -> torch.Size:
        tensor: torch.Tensor = self.space[name]
        return tensor.shape

    def dim(self, name: str) -> int:
        rank = len(self.shape(name))
        if not rank:
            raise Nothing
        at = self.rng.randrange(rank)
        return at - rank if self.rng.random() < 0.5 else at

    def dims(self, name: str) -> str:
        rank = len(self.shape(name))
        if not rank:
            raise Nothing
        chosen = self.rng.sample(range(rank), self.rng.randint(1, rank))
        return str(tuple(a - rank if self.rng.random() < 0.5 else a for a in chosen))

    def index(self, name: str, dim: int) -> int:
        size = self.shape(name)[dim]
        return self.rng.randrange(-size, size) if size else 0

    def k(self) -> str:
        return self.rng.choice(CONSTANTS)

    def keep(self) -> str:
        return self.rng.choice(("", ", keepdim=True"))

    def one(self, options: Sequence[str]) -> str:
        return self.rng.choice(options)

    def slices(self, name: str) -> str:
        """An index of slices, numbers, ``None`` and ``...``."""
        parts: list[str] = []
        shape = self.shape(name)
        used = self.rng.randint(1, len(shape)) if shape else 0
        for size in shape[:used]:
            kind = self.rng.random()
            if kind < 0.25 and size:
                parts.append(str(self.rng.randrange(-size, size)))
            elif kind < 0.6 and size > 1:
                low = self.rng.randrange(0, size - 1)
                high = self.rng.randint(low + 1, size)
                parts.append(f"{low}:{high if self.rng.random() < 0.7 else high - size or ''}")
            elif kind < 0.8 and size > 1:
                parts.append(self.rng.choice(("::2", "1::2", ":-1", "-2:")))
            else:
                parts.append(":")
        if self.rng.random() < 0.15:
            parts.insert(self.rng.randint(0, len(parts)), "None")
        if self.rng.random() < 0.15 or not parts:
            parts.append("...")
        return ", ".join(parts)

    def regrouped(self, name: str) -> str:
        """A shape with as many elements."""
        total = max(1, self.space[name].numel())
        parts: list[int] = []
        while total > 1 and len(parts) < 3:
            size = self.rng.choice([n for n in range(1, total + 1) if total % n == 0])
            parts.append(size)
            total //= size
        if total > 1 or not parts:
            parts.append(total)
        if self.rng.random() < 0.3:
            parts[self.rng.randrange(len(parts))] = -1
        return str(tuple(parts))

    def order(self, name: str) -> str:
        rank = len(self.shape(name))
        return str(tuple(self.rng.sample(range(rank), rank)))
