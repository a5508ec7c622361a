"""Functions are related and proved once, for operands that stand in given relations; calls use what follows.

A *lemma* is a function together with the facts about its operands that were known at some call. At every call
where the same facts are known, the lemma's facts about the results hold too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from certificates.calls import Call, Site, calls
from certificates.facts import Fact, Reduced, Ref, split_ref
from certificates.ir import Program
from certificates.plan import Plan

from .knowledge import Knowledge

if TYPE_CHECKING:
    from .engine import Engine

Renaming = Mapping[str, tuple[str, ...]]


@dataclass(eq=False)
class Lemma:
    """A function's own engine; ``assumed`` gives the numbers of the facts that it starts from."""

    function: str
    engine: Engine
    assumed: dict[Fact, int]
    conclusions: list[int] = field(default_factory=list)
    _rests: dict[int, frozenset[int]] = field(default_factory=dict)

    def rests(self, number: int) -> frozenset[int]:
        """The assumed facts that a proved fact rests on."""
        if number not in self._rests:
            self._rests[number] = (
                frozenset((number,))
                if number not in self.engine.built
                else frozenset[int]().union(*(self.rests(n) for n in self.engine.uses(number)))
            )
        return self._rests[number]


@dataclass(frozen=True, eq=False)
class Binding:
    """A lemma at one call: which fact of the caller each assumed fact is there."""

    lemma: Lemma
    instance: int
    assumed: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class FromCall:
    """The way to prove a fact about results of a call: a conclusion of a lemma."""

    binding: Binding
    conclusion: int


@dataclass(frozen=True)
class CallSite:
    """One call, in the specification and in every rank class."""

    function: str
    instance: int
    calls: Mapping[str, Call]

    def operands(self, bodies: Mapping[str, Program]) -> dict[str, tuple[str, ...]]:
        """Inputs of the bodies for each operand."""
        out: dict[str, tuple[str, ...]] = {}
        for owner, call in self.calls.items():
            for value, name in zip(call.ins, bodies[owner].inputs, strict=True):
                ref = f"{owner}:{value}"
                out[ref] = (*out.get(ref, ()), f"{owner}:{name}")
        return out

    def visible(self, bodies: Mapping[str, Program]) -> dict[str, tuple[str, ...]]:
        """The caller's values for each input and output value of the bodies."""
        out: dict[str, tuple[str, ...]] = {}
        for owner, call in self.calls.items():
            for name, value in zip(bodies[owner].inputs, call.ins, strict=True):
                out[f"{owner}:{name}"] = (f"{owner}:{value}",)
            for inner, value in zip(bodies[owner].outputs.values(), call.results, strict=True):
                out.setdefault(f"{owner}:{inner}", (f"{owner}:{value}",))
        return out


def sites(plan: Plan) -> dict[Site, CallSite]:
    """All calls of a plan."""
    found: dict[Site, dict[str, Call]] = {}
    programs = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
    for owner, program in programs.items():
        for call in calls(program):
            found.setdefault(call.site, {})[owner] = call
    return {site: CallSite(*site, each) for site, each in found.items()}


def bodies(plan: Plan, function: str) -> dict[str, Program]:
    """A function's body for each program, the specification's under ``s``."""
    return {"s": plan.functions[function].specification, **plan.functions[function].classes}


def renamed(fact: Fact, names: Renaming) -> Iterator[Fact]:
    """A fact about other tensors, once for every choice of names; none if a tensor has no name."""
    for lhs in _renamed(fact.lhs, names):
        for rhs in _renamed(fact.rhs, names):
            yield replace(fact, lhs=lhs, rhs=rhs, by=None)


def _renamed(ref: Ref, names: Renaming) -> Iterable[Ref]:
    if isinstance(ref, str):
        return (ref,) if ref.startswith("#") else names.get(ref, ())
    members = [names.get(m, ()) for m in ref.of]
    if not all(members):
        return ()
    return (Reduced(ref.kind, ref.axes, tuple(m[0] for m in members)),)


def facts_about(knowledge: Knowledge, refs: Iterable[str]) -> Iterator[int]:
    """Numbers of the known facts whose left side is one of the tensors, or a reduction of some of them."""
    known = dict.fromkeys(refs)
    for ref in known:
        owner, _ = split_ref(ref)
        if owner != "s" or ref in knowledge.by_lhs:
            yield from knowledge.facts_for(ref)
        for reduced in knowledge.partials.get(ref, ()):
            if reduced.of[0] == ref and all(m in known for m in reduced.of):
                yield from knowledge.facts_for(reduced)


def available(knowledge: Knowledge, site: CallSite, of: Mapping[str, Program]) -> dict[Fact, int]:
    """What is known of the operands of a call, as facts about the function's inputs."""
    operands = site.operands(of)
    found: dict[Fact, int] = {}
    for number in facts_about(knowledge, operands):
        for fact in renamed(knowledge.facts[number], operands):
            found.setdefault(fact, number)
    return found
