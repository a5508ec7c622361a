"""Call sites: one call of a function as it stands in the specification and in every rank class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .calls import Call, Site, calls
from .plan import Plan
from .program import Program


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
