"""Digits of a position, as a reshape of the plan has them.

A fact about every k-th position of a tensor is used at a position by its digits. A stage has no quotients,
but the coordinates that a reshape regroups are such digits, and an index equation says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from certificates.plan.affine import ZERO, Affine, Range, divided
from certificates.proof.facts import Fact
from certificates.proof.stages import BoundIndex, LayoutPremise
from smtlib_emit.model import Model
from smtlib_emit.regroup import Part, linear

#: Symbols of a fact, from its left forms, their ranges and an index; ``None`` if no affine forms of it.
Resolve = Callable[[Sequence[Affine], Mapping[str, Range], tuple[Affine, ...]], dict[str, Affine] | None]


@dataclass(frozen=True)
class Splitting:
    """Part ``number`` of the reshape ``ref``: positions of one of its coordinates are regrouped in digits."""

    ref: str
    number: int
    part: Part


@dataclass
class Quotients:
    """Quotients of positions in one stage; ``fresh`` makes a symbol that starts with a letter, in a range."""

    model: Model
    fresh: Callable[[str, int, int], Affine]
    premises: list[LayoutPremise]
    _known: dict[tuple[Affine, int, int], Affine | None] = field(default_factory=dict)

    def symbols(self, fact: Fact, at: tuple[Affine, ...], resolve: Resolve) -> dict[str, Affine] | None:
        """The symbols of a fact about every k-th position, at an index; one of them is a quotient.

        The instance is about the positions of one remainder, whichever the position has: others have theirs.
        """
        for i, (form, target) in enumerate(zip(fact.lhs_index, at, strict=True)):
            if len(form.terms) != 1 or form.terms[0][1] < 2 or target.is_const:
                continue
            ((symbol, step),) = form.terms
            lo, hi = fact.ranges[symbol]
            forms = (*fact.lhs_index[:i], *fact.lhs_index[i + 1 :])
            if any(symbol in f.symbols for f in forms):
                continue
            rest = {s: r for s, r in fact.ranges.items() if s != symbol}
            values = resolve(forms, rest, (*at[:i], *at[i + 1 :]))
            quotient = self._of(target - (form.const // step + lo) * step, step, hi - lo) if values else None
            if values is not None and quotient is not None:
                return values | {symbol: quotient + lo}
        return None

    def _of(self, position: Affine, step: int, count: int) -> Affine | None:
        """``position // step`` where that is one of the first ``count``; ``None`` if no reshape has it."""
        key = position, step, count
        if key not in self._known:
            found = splitting(self.model, step, count)
            self._known[key] = None if found is None else self._introduced(found, position, step)
        return self._known[key]

    def _introduced(self, found: Splitting, position: Affine, step: int) -> Affine:
        """Symbols for the digits of a position, with their equation; all but the last one as a number."""
        part, ref = found.part, found.ref
        mesh = len(self.model.tensors.mesh_axes(ref))
        at = [Affine(lo) for lo, _ in self.model.tensors.ranges(ref)]
        for c, size in zip(part.at, part.at_sizes, strict=True):
            at[c] = position if size > 1 else ZERO
        shape = self.model.tensors.type(self.model.operands(ref)[0]).shape
        arg = [*(Affine(lo) for lo, _ in self.model.tensors.ranges(ref)[:mesh]), *(ZERO for _ in shape)]
        for c, size in zip(part.arg, part.arg_sizes, strict=True):
            arg[c] = self.fresh("q", 0, size) if size > 1 else ZERO
        self.premises.append(BoundIndex(ref, tuple(at), tuple(arg), found.number))
        whole = linear([arg[c] for c in part.arg], part.arg_sizes)
        return Affine.of(0, [(s, c // step) for s, c in whole.terms if c % step == 0])


def splitting(model: Model, step: int, count: int) -> Splitting | None:
    """The first reshape that regroups ``count * step`` positions, or more, so that the last digit, of those
    larger than 1, has ``step`` values. The specification's come first."""
    for ref, op in model.ops.items():
        if op.name != "reshape" or all(n % step or n < count * step for n in op.type.shape):
            continue
        for number, part in enumerate(model.parts(ref)):
            wide = [n for n in part.at_sizes if n > 1]
            digits = [n for n in part.arg_sizes if n > 1]
            if len(wide) == 1 and wide[0] >= count * step and len(digits) > 1 and digits[-1] == step:
                return Splitting(ref, number, part)
    return None


def located(
    position: Affine,
    digits: Sequence[Affine],
    sizes: Sequence[int],
    ranges: Mapping[str, Range],
    within: Mapping[str, Range],
) -> dict[str, Range]:
    """Where the last digits of a position lie, as far as they are affine forms of it: in which part of a
    buffer, say, whatever rank has it. ``within`` narrows the ranges of the position's own symbols."""
    found: dict[str, Range] = {}
    for digit, size in reversed(list(zip(digits, sizes, strict=True))):
        parts = divided(position, size, ranges)
        if parts is None:
            break
        position, rest = parts
        first, last = rest.interval(within)
        found |= {symbol: (first, last + 1) for symbol in digit.symbols}
    return found
