"""Sums of sums over ranks: a reduced tensor whose members are all-reduced themselves, over other axes."""

from __future__ import annotations

from collections.abc import Sequence

from certificates.affine import Affine
from certificates.facts import Fact, Reduced, Ref, split_ref

from .knowledge import Knowledge
from .matching import AlgebraRecipe, Instance, Use


class Nested:
    """Relates ``add over A of all_reduce over B of x`` through ``add over A and B of x``."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model

    def relate(self, ref: Reduced) -> list[int]:
        """Facts about a reduced tensor with all-reduced members; empty if it is none or nothing is known."""
        ops = [self.model.op(m) for m in ref.of]
        if ref.kind != "add" or any(o is None or o.name != "all_reduce" or o.text("kind") != "add" for o in ops):
            return []
        inner = [self.model.reduced(m, "add") for m in ref.of]
        axes = inner[0].axes
        if any(i.axes != axes for i in inner) or set(axes) & set(ref.axes):
            return []
        order = tuple(a for a in self.model.plan.mesh.axes if a in (*axes, *ref.axes))
        family = {split_ref(m)[0]: m for i in inner for m in i.of}
        wide = self.model.reduced_of(next(iter(family)), family, order, "add")
        return [self._fact(ref, inner, wide, number) for number in self.k.facts_for(wide)]

    def _fact(self, ref: Reduced, inner: Sequence[Reduced], wide: Reduced, number: int) -> int:
        known = self.k.facts[number]
        mesh = list(self.model.plan.mesh.axes)
        axes = inner[0].axes
        here = {a: self.model.tensors.ranges(ref)[self.model.tensors.mesh_axes(ref).index(a)] for a in axes}
        free = [a for a in mesh if a not in ref.axes]
        body = list(known.lhs_index)[len(mesh) - len(wide.axes) :]
        outer = dict(
            zip(self.model.tensors.mesh_axes(wide), known.lhs_index[: len(mesh) - len(wide.axes)], strict=True)
        )
        left = tuple(outer.get(a, Affine.symbol(a)) for a in free) + tuple(body)
        head = tuple((a, *here[a]) for a in axes)
        symbols = tuple(
            sorted((*head, *known.symbols), key=lambda s: mesh.index(s[0]) if s[0] in mesh else len(mesh))
        )
        fact = Fact(ref, known.rhs, symbols, left, known.rhs_index, known.coef)

        def place(tensor: Ref, own: dict[str, Affine]) -> Use:
            at = [own.get(a, outer.get(a, Affine.symbol(a))) for a in self.model.tensors.mesh_axes(tensor)]
            return Use(tensor, (*at, *body))

        uses = [Use(ref, left), Use(known.rhs, known.rhs_index), place(wide, {})]
        ranges = dict(fact.ranges)
        for member, red in zip(ref.of, inner, strict=True):
            owner = split_ref(member)[0]
            box = self.model.plan.by_class[owner].box
            ranges |= {f"{owner}.{a}": box[a] for a in wide.axes}
            reduced = {a: Affine.symbol(f"{owner}.{a}") for a in ref.axes}
            uses += [place(member, reduced), place(red, reduced)]
        for member in wide.of:
            owner = split_ref(member)[0]
            box = self.model.plan.by_class[owner].box
            ranges |= {f"{owner}.{a}": box[a] for a in wide.axes}
            uses.append(place(member, {a: Affine.symbol(f"{owner}.{a}") for a in wide.axes}))
        expand = frozenset((ref, wide, *inner, *ref.of))
        values = tuple(Affine.symbol(s) for s, _, _ in known.symbols)
        goal = {s: Affine.symbol(s) for s, _, _ in fact.symbols}
        recipe = AlgebraRecipe(expand, (Instance(number, values, "rhs"),), tuple(uses), ranges, goal)
        return self.k.add(fact, recipe)
