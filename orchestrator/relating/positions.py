"""Integers that are positions: what is counted along a dimension, and sums of that with numbers of ranks.

Rows of a causal mask, labels that a rank makes itself (``arange(n) + rank * n``) and offsets of shards have
no input behind them: such a tensor is an affine form of its own index and the rank. It equals the
specification's positions at that index, by a layout stage like all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Unfollowable, explore
from .joining import join
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading, Unrelated
from .solving_facts import make_fact

ARITHMETIC = frozenset(("add", "subtract", "multiply"))


class Positions:
    """Relates tensors of positions to the specification's iotas."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        #: The specification's first iota of each sort and size.
        self._first: dict[tuple[str, int], str] = {}

    def declare(self) -> None:
        """Positions along a dimension of one size are one vector: the specification's first such iota."""
        for ref, op in self.model.ops.items():
            if op.name != "iota":
                continue
            key = (op.type.sort, op.type.shape[op.integer("dim")])
            if ref.startswith("s:"):
                self._first.setdefault(key, ref)
            if self._first.get(key) != ref or len(op.type.shape) > 1:
                self._state(ref)

    def relate(self, ref: str) -> bool:
        """Relate sums and multiples of positions and rank numbers; whether they are all inside an iota."""
        op = self.model.op(ref)
        if op is None or op.name not in ARITHMETIC or op.type.sort != "Int" or self.k.moves(ref):
            return False
        return self._state(ref)

    def bounds(self, reading: Reading, ranges: Mapping[str, Range]) -> tuple[Fraction, Fraction] | None:
        """The least and the greatest value of an element that was read, if it is a position."""
        op = self.model.op(reading.target)
        if op is None or op.name != "iota":
            return None
        form = reading.at[len(self.model.tensors.mesh_axes(reading.target)) + op.integer("dim")]
        low, high = sorted(reading.coef * value for value in form.interval(ranges))
        return low, high

    def _state(self, ref: str) -> bool:
        whole = self.k.full_index(ref)
        opened: set[Ref] = {ref}
        try:
            found = explore(whole, lambda c: self._form(ref, tuple(c.at.values()), c.ranges, opened))
            spans = [form.interval(cell.ranges) for cell, form in found]
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        target = self._around(ref, min(s[0] for s in spans), max(s[1] for s in spans))
        if target is None:
            return False
        other = self.model.ops[target]
        dims = range(len(other.type.shape))
        facts = [
            make_fact(
                self.model, cell, ref, tuple(cell.at.values()), target,
                [form if d == other.integer("dim") else Affine() for d in dims], Fraction(1),
            )
            for cell, form in found
        ]  # fmt: skip
        for fact in join(self.model, facts):
            self.k.add(fact, LayoutRecipe(frozenset((*opened, target))))
        return True

    def _around(self, ref: str, low: int, high: int) -> str | None:
        """The shortest of the specification's iotas that has all these positions."""
        sort = self.model.tensors.type(ref).sort
        sizes = sorted(n for s, n in self._first if s == sort and n > high)
        return self._first[sort, sizes[0]] if sizes and low >= 0 else None

    def _form(self, ref: str, at: Sequence[Affine], ranges: Mapping[str, Range], opened: set[Ref]) -> Affine:
        """An element as an affine form of its index; raises :class:`Unrelated` if it is none."""
        op, value = self.model.op(ref), self.model.literal(ref)
        mesh = self.model.tensors.mesh_axes(ref)
        if isinstance(value, Affine):
            return value.substitute(dict(zip(mesh, at, strict=False)))
        if isinstance(value, Fraction) and value.denominator == 1:
            return Affine(int(value))
        if op is None or op.type.sort != "Int":
            raise Unrelated(ref)
        if op.name == "iota":
            return at[len(mesh) + op.integer("dim")]
        if self.k.moves(ref):
            _, source, there = self.k.source(ref, list(at), ranges)
            if source == ref or not isinstance(source, str):
                raise Unrelated(ref)
            return self._form(source, there, ranges, opened)
        if op.name not in ARITHMETIC:
            raise Unrelated(ref)
        opened.add(ref)
        left, right = (self._form(v, at, ranges, opened) for v in self.model.operands(ref))
        if op.name == "add":
            return left + right
        if op.name == "subtract":
            return left - right
        if left.is_const:
            left, right = right, left
        if not right.is_const:
            raise Unrelated(ref)
        return left.scale(right.const)
