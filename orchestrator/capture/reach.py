"""What the values of a microbatch are made of in it: numbers of ops, as the bits of one number.

There are as many sums of microbatches as gradients, and each asks for all that its summands are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from certificates.plan.program import Program


class Reach:
    """Found in one pass over the ops, when first asked: ``home`` and ``names`` are looked at then."""

    def __init__(self, program: Program, home: Mapping[str, int | None], names: Mapping[str, int]) -> None:
        self._program, self._home, self._names = program, home, names
        self._found: dict[str, int] = {}

    def of(self, values: Iterable[str], home: int) -> int:
        """All that values of this microbatch are made of in it, themselves among them."""
        if not self._found:
            self._fill()
        bits = 0
        for value in values:
            bits |= self._found[value] if self._home[value] == home else 0
        return bits

    def forget(self) -> None:
        """A value has another microbatch, or none, from now on."""
        self._found.clear()

    def _fill(self) -> None:
        for op in self._program.ops:
            own = self._home[op.out]
            if own is not None and op.out in self._names:
                bits = 1 << self._names[op.out]
                for value in op.ins:
                    bits |= self._found.get(value, 0) if self._home[value] == own else 0
                self._found[op.out] = bits
