"""Sums of sums over ranks: a reduced tensor whose members are themselves sums over other axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.proof.facts import Reduced, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Cut, Digits, Unfollowable, explore
from .carried import moved_from
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading, Unrelated
from .movement import step
from .recipes import AlgebraRecipe, Use, tied
from .solving_facts import make_fact, solve

Forms = tuple[Affine, ...]


@dataclass(frozen=True)
class Layer:
    """One member, at ``at``, is the reduced tensor ``inner`` at ``source``."""

    member: str
    at: Forms
    inner: Reduced
    source: Forms


class Nested:
    """Relates ``add over A of (all_reduce or reduce_scatter over B of x)`` through ``add over A and B of x``.

    A *bridge* fact, proved once for whole tensors, says that both are equal; the rest is data movement.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        self.mesh = list(self.model.plan.mesh.axes)

    def relate(self, ref: Reduced) -> list[int]:
        """Facts about a reduced tensor with reduced members; empty if it is none or nothing is known."""
        ops = [self.model.op(m) for m in ref.of]
        if ref.kind != "add" or any(
            o is None or o.name not in ("all_reduce", "reduce_scatter") or o.text("kind") != "add"
            for o in ops
        ):
            return []
        whole = self.k.full_index(ref)
        index = [whole.at[s] for s in whole.ranges]
        ranks = self._ranks(ref, ref.axes)
        try:
            layers = [self._layer(ref, m, index, dict(whole.ranges) | ranks) for m in ref.of]
            wide, kept = self._wide(ref, layers)

            def compute(cell: Cell) -> Reading | None:
                try:
                    return self.k.read(wide, [f.substitute(cell.at) for f in kept], cell.ranges)
                except Unrelated:
                    return None

            found = [(cell, reading) for cell, reading in explore(whole, compute) if reading is not None]
            if not found:
                return []
            bridge = LayoutRecipe(parts=(self._bridge(ref, whole, wide, kept, layers),))
        except (Unrelated, Unfollowable, NoDefinition, Cut, Digits):
            return []
        return [
            self.k.add(
                make_fact(
                    self.model,
                    cell,
                    ref,
                    [cell.at[s] for s in whole.ranges],
                    reading.target,
                    reading.at,
                    reading.coef,
                ),
                bridge,
            )
            for cell, reading in found
        ]

    def _ranks(self, ref: Reduced, axes: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Rank symbols of the members along ``axes``, with the box of the member's class."""
        owners = [split_ref(m)[0] for m in ref.of]
        return {f"{o}.{a}": self.model.plan.by_class[o].box[a] for o in owners for a in axes}

    def _layer(
        self, ref: Reduced, member: str, index: Sequence[Affine], ranges: dict[str, tuple[int, int]]
    ) -> Layer:
        at = self._inserted(index, member, ref.axes)
        _, inner, source = step(self.model, member, at, ranges)
        if not isinstance(inner, Reduced) or set(inner.axes) & set(ref.axes):
            raise Unfollowable(f"{ref}: {member} is reduced over the same axes")
        return Layer(member, at, inner, tuple(source))

    def _inserted(self, index: Sequence[Affine], member: str, axes: Sequence[str]) -> Forms:
        """The full index of a member: rank symbols of its own class along ``axes``."""
        out = list(index)
        for a in sorted(axes, key=self.mesh.index):
            out.insert(self.mesh.index(a), Affine.symbol(f"{split_ref(member)[0]}.{a}"))
        return tuple(out)

    def _wide(self, ref: Reduced, layers: Sequence[Layer]) -> tuple[Reduced, Forms]:
        """The sum over all axes at once, and where the members read it."""
        axes = layers[0].inner.axes
        kept = set()
        for layer in layers:
            own = {f"{split_ref(layer.member)[0]}.{a}" for a in ref.axes}
            outer = self.model.tensors.mesh_axes(layer.inner)
            rest = [f for i, f in enumerate(layer.source) if i >= len(outer) or outer[i] not in ref.axes]
            if layer.inner.axes != axes or any(s in own for f in rest for s in f.symbols):
                raise Unfollowable(f"{ref}: members are reduced differently")
            kept.add(tuple(rest))
        if len(kept) != 1:
            raise Unfollowable(f"{ref}: members move differently")
        family = {split_ref(m)[0]: m for layer in layers for m in layer.inner.of}
        order = tuple(a for a in self.mesh if a in (*axes, *ref.axes))
        return self.model.reduced_of(next(iter(family)), family, order, "add"), kept.pop()

    def _bridge(self, ref: Reduced, whole: Cell, wide: Reduced, kept: Forms, layers: Sequence[Layer]) -> int:
        left = tuple(whole.at[s] for s in whole.ranges)
        fact = make_fact(self.model, whole, ref, left, wide, kept, Fraction(1))
        uses = [Use(ref, left), Use(wide, kept)]
        uses += [Use(m, self._inserted(kept, m, wide.axes)) for m in wide.of]
        instances = []
        expand: set[Reduced | str] = {ref, wide}
        ranges = dict(whole.ranges) | self._ranks(wide, wide.axes)
        for layer in layers:
            uses += [Use(layer.member, layer.at), Use(layer.inner, layer.source)]
            expand.add(layer.inner)
            if self.model.ops[layer.member].name == "all_reduce":
                expand.add(layer.member)
                continue
            cell = Cell(ranges, {})
            link = make_fact(self.model, cell, layer.member, layer.at, layer.inner, layer.source, Fraction(1))
            instances.append(tied(self.k, link, layer.at, ranges))
        goal = solve(fact.lhs_index, fact.ranges, left, ranges)
        if goal is None:
            raise Unfollowable(f"{ref}: goal does not cover its own cell")
        recipe = AlgebraRecipe(frozenset(expand), tuple(instances), tuple(uses), ranges, goal)
        return self.k.add(fact, recipe, relates=False)


def shares(known: Knowledge, refs: Sequence[str]) -> Iterator[Reduced]:
    """Sums over ranks whose members are these tensors, sums over some axes each, of what is known to be
    summed over more: a gradient that is summed over microbatches is a share of its sum over replicas too.
    """
    summed: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    # What is cast, or moved, behind the sum over some axes is a share as the sum itself is.
    for ref in dict.fromkeys(r for given in refs for r in (moved_from(known, given), given)):
        inner = moved_from(known, ref)
        op = known.model.op(inner)
        if op is not None and op.name == "all_reduce" and op.text("kind") == "add":
            axes = known.model.plan.groups[op.text("group")].axes
            operand = moved_from(known, known.model.operands(inner)[0])
            summed.setdefault((operand, axes), []).append(ref)
    for operand, axes in summed:
        for wide in known.partials.get(operand, ()):
            rest = tuple(a for a in wide.axes if a not in axes)
            members = [summed.get((m, axes), []) for m in wide.of]
            inside = len(rest) + len(axes) == len(wide.axes)
            if wide.kind == "add" and rest and inside and wide.of[0] == operand:
                yield from (Reduced("add", rest, of) for of in zip(*members, strict=False))
