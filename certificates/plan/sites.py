"""Call sites: one call of a function as it stands in the specification and in every rank class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .affine import Range
from .calls import Call, Site, calls
from .plan import Plan
from .program import Program
from .slices import slice_of


@dataclass(frozen=True)
class CallSite:
    """One call, in the specification and in the rank classes that call; ``roles`` says whose bodies these
    run, ``slice`` where they lie along the function's axes."""

    function: str
    instance: int
    calls: Mapping[str, Call]
    roles: Mapping[str, str]
    slice: Mapping[str, Range]

    def operands(self, bodies: Mapping[str, Program]) -> dict[str, tuple[str, ...]]:
        """Inputs of the bodies for each operand."""
        out: dict[str, tuple[str, ...]] = {}
        for owner, call in self.calls.items():
            role = self.roles[owner]
            for value, name in zip(call.ins, bodies[role].inputs, strict=True):
                ref = f"{owner}:{value}"
                out[ref] = (*out.get(ref, ()), f"{role}:{name}")
        return out

    def visible(self, bodies: Mapping[str, Program]) -> dict[str, tuple[str, ...]]:
        """The caller's values for each input and output value of the bodies."""
        out: dict[str, tuple[str, ...]] = {}
        for owner, call in self.calls.items():
            role = self.roles[owner]
            for name, value in zip(bodies[role].inputs, call.ins, strict=True):
                out[f"{role}:{name}"] = (f"{owner}:{value}",)
            for inner, value in zip(bodies[role].outputs.values(), call.results, strict=True):
                out.setdefault(f"{role}:{inner}", (f"{owner}:{value}",))
        return out


def sites(plan: Plan) -> dict[Site, CallSite]:
    """All calls of a plan."""
    found: dict[Site, dict[str, Call]] = {}
    programs = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
    for owner, program in programs.items():
        for call in calls(program):
            found.setdefault(call.site, {})[owner] = call
    return {site: _site(plan, site, each) for site, each in found.items()}


def _site(plan: Plan, site: Site, each: Mapping[str, Call]) -> CallSite:
    owners = [owner for owner in each if owner != "s"]
    roles = {owner: str(plan.role(site[0], owner)) for owner in owners}
    return CallSite(*site, each, {"s": "s"} | roles, slice_of(plan, site[0], owners[0]) if owners else {})


def bodies(plan: Plan, function: str) -> dict[str, Program]:
    """A function's body for each program or role, the specification's under ``s``."""
    return {"s": plan.functions[function].specification, **plan.functions[function].classes}
