"""The widths of index classes: how many representatives an algebra stage needs (obligation 9).

Counts variables in the symbolic expression of a goal after substitution (docs/certificate.md, Widths).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ..errors import Rejected, Undecided
from ..language.proof import Element
from .algebra import Algebra, Key
from .normalise import Node

Counts = Mapping[str, int]
Measure = tuple[frozenset[str], Counts, Counts]
"""Variables that occur free; per class the most summed variables in one product, and the most bound
inside."""
MAX_STEPS = 200_000


def check_widths(stage: Algebra, where: str) -> None:
    """Every class has min(n, w) representatives, w by the definitions of each case."""
    free = [c for classes in stage.stage.goal_at for c in classes]
    known: dict[frozenset[Any], Counts] = {}
    for number, case in enumerate(stage.cases):
        index = frozenset(case.sources.items())
        if index not in known:
            stage.where = f"{where}, case {number}"
            known[index] = Width(stage, case.sources).result(stage.goal_sides(lambda k: f"g{k}"), free)
        for cls, (n, m) in stage.stage.classes.items():
            if m < min(n, w := known[index][cls]):
                raise Rejected(
                    9, f"class {cls} of size {n} has {m} representatives, {w} are needed", stage.where
                )


class Width:
    """The measure of every definition (which finds circles), and of the goal."""

    def __init__(self, stage: Algebra, sources: Mapping[Key, Any]) -> None:
        self.stage, self.sources = stage, sources
        self.known: dict[Node, Measure | None] = {}
        self.applications: dict[str, list[tuple[Counts, Counts]]] = {}
        for ref, pieces in sources:
            coords = (
                (p, *(f"{c}.g{j}_{i}" for i, c in enumerate(tree[p][1])))
                for j, (tree, p) in enumerate(zip(stage.tree(ref), pieces, strict=True))
            )
            self.measure(Element(ref, tuple(coords)))
        self.applications.clear()
        self.known.clear()

    def result(self, sides: Sequence[Node], free: Sequence[str]) -> Counts:
        """w = max(F + B, F + s_x + s_y + max(b_x, b_y)) per class, x and y applications of one function."""
        products, width = _merge([self.measure(side) for side in sides])[1], {}
        for cls in self.stage.stage.classes:
            needed = products.get(cls, 0)
            for pairs in self.applications.values():
                most = max(s.get(cls, 0) for s, _ in pairs)
                needed = max(needed, most + max(s.get(cls, 0) + b.get(cls, 0) for s, b in pairs))
            width[cls] = max(1, free.count(cls) + needed)
        return width

    def measure(self, node: Node) -> Measure:
        """Products pass through maxima and minima, which may collapse to an argument (ADR 0010)."""
        if len(self.known) > MAX_STEPS:
            raise Undecided(f"{self.stage.where}: the expression is too large")
        if node not in self.known:
            self.known[node] = None
            self.known[node] = self._element(node) if isinstance(node, Element) else self._measure(*node)
        found = self.known[node]
        if found is None:
            raise Rejected(4, "the definitions are circular", self.stage.where)
        return found

    def _element(self, e: Element) -> Measure:
        key = (e.ref, e.pieces())
        if key not in self.sources:
            return frozenset(v for c in e.coords for v in c[1:]), {}, {}
        if self.sources[key] is None:
            return self.measure(self.stage.define(e, self.stage.variables))
        return self.measure(self.stage.leaf(self.stage.other_side(e, *self.sources[key])))

    def _measure(self, head: str, *rest: Any) -> Measure:
        if head in ("sum", "fold"):
            parts = []
            for binders, node in rest[1:]:
                free, products, inside = self.measure(node)
                own = _count(binders)
                parts.append(
                    (
                        free - set(binders),
                        _add(products, own) if head == "sum" else products,
                        _add(inside, own),
                    )
                )
        else:
            parts = [self.measure(n) for n in rest if not isinstance(n, Fraction)]
        free, products, inside = _merge(parts)
        if head == "mul":
            return free, _add(parts[0][1], parts[1][1]), _add(parts[0][2], parts[1][2])
        if head in ("sum", "+", "-", "neg", "*", "lit"):
            return free, products, inside
        function = rest[0] if head == "fold" else head
        bound = _count([v for v in free if v.partition(".")[2][0] != "g"])
        self.applications.setdefault(function, []).append((_add(bound, inside), products))
        return free, products if function in ("max2", "min2") else {}, inside


def _merge(parts: Sequence[Measure]) -> Measure:
    free = frozenset[str]().union(*(p[0] for p in parts))
    return free, _most([p[1] for p in parts]), _most([p[2] for p in parts])


def _most(counts: Sequence[Counts]) -> Counts:
    return {c: max(k.get(c, 0) for k in counts) for one in counts for c in one}


def _count(variables: Sequence[str]) -> Counts:
    names = [v.partition(".")[0] for v in variables]
    return {c: names.count(c) for c in names}


def _add(a: Counts, b: Counts) -> Counts:
    return {c: a.get(c, 0) + b.get(c, 0) for c in (*a, *b)}
