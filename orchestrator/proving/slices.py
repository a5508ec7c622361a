"""Facts at a slice of the mesh: as the caller of a function states them, and as its bodies do.

The bodies of a function at a slice have no coordinates along it (``certificates.plan.slices``). A fact of the
caller serves a lemma only if it speaks of these as coordinates of its tensors and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Fact, Reduced, Ref, split_ref


class Slice:
    """One call: the caller's ``axes`` in mesh order, where along some of them its classes ``lie``, and the
    names of classes and roles in the order of the plan and of the function."""

    def __init__(self, axes: Iterable[str], lie: Mapping[str, Range], order: Iterable[str]) -> None:
        self.axes, self.lie = tuple(axes), lie
        self._order = {name: i for i, name in enumerate(order)}

    def inside(self, fact: Fact) -> Fact | None:
        """A fact about the function's inputs, without the slice; ``None`` if it uses it otherwise."""
        if not self.lie:
            return fact
        bare = replace(
            fact,
            lhs=self._sorted(fact.lhs),
            rhs=self._sorted(fact.rhs),
            symbols=tuple(s for s in fact.symbols if s[0] not in self.lie),
            lhs_index=self._without(fact.lhs, fact.lhs_index),
            rhs_index=self._without(fact.rhs, fact.rhs_index),
        )
        same = self.outside(bare) == replace(fact, lhs=self._sorted(fact.lhs), rhs=self._sorted(fact.rhs))
        free = all(s not in self.lie for f in (*bare.lhs_index, *bare.rhs_index) for s in f.symbols)
        return bare if same and free else None

    def outside(self, fact: Fact) -> Fact:
        """A fact about the function's inputs and outputs, at the call."""
        if not self.lie:
            return fact
        symbols = fact.symbols
        if _placed(fact.lhs) or _placed(fact.rhs):
            found = {name: (lo, hi) for name, lo, hi in symbols} | dict(self.lie)
            order = [*(a for a in self.axes if a in found), *(s for s in found if s not in self.axes)]
            symbols = tuple((name, *found[name]) for name in order)
        return replace(
            fact,
            lhs=self._sorted(fact.lhs),
            rhs=self._sorted(fact.rhs),
            symbols=symbols,
            lhs_index=self._with(fact.lhs, fact.lhs_index),
            rhs_index=self._with(fact.rhs, fact.rhs_index),
        )

    def _with(self, ref: Ref, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        if not _placed(ref):
            return index
        rest = iter(index)
        mesh = [Affine.symbol(a) if a in self.lie else next(rest) for a in self._kept(ref)]
        return (*mesh, *rest)

    def _without(self, ref: Ref, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        if not _placed(ref):
            return index
        kept = self._kept(ref)
        return tuple(f for i, f in enumerate(index) if i >= len(kept) or kept[i] not in self.lie)

    def _kept(self, ref: Ref) -> list[str]:
        return [a for a in self.axes if not (isinstance(ref, Reduced) and a in ref.axes)]

    def _sorted(self, ref: Ref) -> Ref:
        if not isinstance(ref, Reduced):
            return ref
        return replace(ref, of=tuple(sorted(ref.of, key=lambda m: self._order[split_ref(m)[0]])))


def _placed(ref: Ref) -> bool:
    """Has a tensor mesh coordinates?"""
    return isinstance(ref, Reduced) or not ref.startswith(("s:", "#"))
