"""Functions and calls: what a lemma about a function says at a call, and a plan with its calls written out.

The bodies of a function are a plan of their own. A stage about them speaks of any values of their inputs
that fulfil the lemma's assumptions, so of the operands of every call; its tensors are then that instance's.
"""

from __future__ import annotations

from dataclasses import replace

from ..language.plan import Plan, Site
from ..language.proof import Fact, Reduced, Ref, Tensor


class Call:
    """One call, in the specification and in every class: names outside for what can be seen inside."""

    def __init__(self, plan: Plan, site: Site) -> None:
        body = plan.functions[site[0]]
        self.names: dict[Tensor, Tensor] = {}
        for space in ("s", *plan.classes):
            inside, (operands, results) = body.program(space), plan.program(space).calls[site]
            for name, value in zip(inside.inputs, operands, strict=True):
                self.names[Tensor(space, name)] = Tensor(space, value)
            for name, value in zip(inside.outputs.values(), results, strict=True):
                self.names.setdefault(Tensor(space, name), Tensor(space, value))

    def fact(self, fact: Fact) -> Fact:
        """A fact about inputs and outputs of the function, at this call."""
        return Fact(
            self._ref(fact.lhs), self._ref(fact.rhs), fact.coef, fact.symbols, fact.lhs_index, fact.rhs_index
        )

    def _ref(self, ref: Ref) -> Ref:
        if isinstance(ref, Reduced):
            return replace(ref, of=tuple(self.names[t] for t in ref.of))
        return self.names.get(ref, ref)  # a literal stays


def tensors(fact: Fact) -> list[Tensor]:
    """The tensors of a fact, literals left out."""
    both = [t for ref in (fact.lhs, fact.rhs) for t in (ref.of if isinstance(ref, Reduced) else (ref,))]
    return [t for t in both if t.space[:1] != "#"]


def seen(body: Plan, outputs: bool) -> set[Tensor]:
    """Inputs of a function, with its output values or without."""
    programs = [(s, body.program(s)) for s in ("s", *body.classes)]
    return {Tensor(s, v) for s, p in programs for v in (*p.inputs, *(p.outputs.values() if outputs else ()))}
