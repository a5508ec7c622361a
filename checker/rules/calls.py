"""Functions and calls: what a lemma about a function says at a call, and a plan with its calls written out.

The bodies of a function are a plan of their own. A stage about them speaks of any values of their inputs
that fulfil the lemma's assumptions, so of the operands of every call; its tensors are then that instance's.
Those of a function at a slice have no coordinates along it: a fact gets these at the call, where their range
is the slice of the classes that call. So no fact of a lemma may have symbols of these names.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import Rejected
from ..language.affine import Affine
from ..language.plan import Plan, Site
from ..language.proof import Fact, Index, Reduced, Ref, Tensor
from .model import LITERALS


class Call:
    """One call, in the specification and in the classes: names outside for what can be seen inside, and the
    `slice` that these classes are."""

    def __init__(self, plan: Plan, site: Site) -> None:
        body, callers = plan.functions[site[0]], plan.callers(site)
        self.names: dict[Tensor, Tensor] = {}
        self.axes, self.order = tuple(a for a, _ in plan.mesh), {c: i for i, c in enumerate(plan.classes)}
        self.slice = {a: plan.box(callers[0])[a] for a in body.along}
        for space in ("s", *callers):
            role, (operands, results) = plan.role(site[0], space), plan.program(space).calls[site]
            inside = body.program(role)
            for name, value in zip(inside.inputs, operands, strict=True):
                self.names[Tensor(role, name)] = Tensor(space, value)
            for name, value in zip(inside.outputs.values(), results, strict=True):
                self.names.setdefault(Tensor(role, name), Tensor(space, value))

    def fact(self, fact: Fact) -> Fact:
        """A fact about inputs and outputs of the function, at this call."""
        symbols, sides = fact.symbols, (fact.lhs, fact.rhs)
        if self.slice and not all(isinstance(r, Tensor) and r.space in ("s", *LITERALS) for r in sides):
            found = {s: (low, high) for s, low, high in symbols} | self.slice
            order = [*(a for a in self.axes if a in found), *(s for s in found if s not in self.axes)]
            symbols = tuple((s, *found[s]) for s in order)
        return Fact(
            self._ref(fact.lhs),
            self._ref(fact.rhs),
            fact.coef,
            symbols,
            self._index(fact.lhs, fact.lhs_index),
            self._index(fact.rhs, fact.rhs_index),
        )

    def _ref(self, ref: Ref) -> Ref:
        if isinstance(ref, Reduced):
            of = sorted((self.names[t] for t in ref.of), key=lambda t: self.order[t.space])
            return replace(ref, of=tuple(of))
        return self.names.get(ref, ref)  # a literal stays

    def _index(self, ref: Ref, index: Index) -> Index:
        """With the coordinates along the slice, among those of the mesh, which lead."""
        if not self.slice or (isinstance(ref, Tensor) and ref.space in ("s", *LITERALS)):
            return index
        kept = [a for a in self.axes if not (isinstance(ref, Reduced) and a in ref.axes)]
        rest = iter(index)
        return (*(Affine.symbol(a) if a in self.slice else next(rest) for a in kept), *rest)


def tensors(fact: Fact) -> list[Tensor]:
    """The tensors of a fact, literals left out."""
    both = [t for ref in (fact.lhs, fact.rhs) for t in (ref.of if isinstance(ref, Reduced) else (ref,))]
    return [t for t in both if t.space[:1] != "#"]


def check_symbols(body: Plan, fact: Fact, where: str) -> None:
    """Obligation 11: what a call puts in stands for nothing else."""
    taken = [s for s, _, _ in fact.symbols if s in body.along]
    if taken:
        raise Rejected(11, f"a fact about a function along {taken[0]} has a symbol of that name", where)


def seen(body: Plan, outputs: bool) -> set[Tensor]:
    """Inputs of a function, with its output values or without."""
    programs = [(s, body.program(s)) for s in ("s", *body.classes)]
    return {Tensor(s, v) for s, p in programs for v in (*p.inputs, *(p.outputs.values() if outputs else ()))}
