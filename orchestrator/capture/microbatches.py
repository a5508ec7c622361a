"""A captured plan whose ranks loop over microbatches, with a time axis where that is possible."""

from __future__ import annotations

from dataclasses import replace

from certificates.plan.checking import check_plan
from certificates.plan.plan import Plan
from certificates.plan.program import Loc, Program

from .fold import NotAlike, fold_plan
from .messages import THROUGH
from .unfold import same
from .views import tilings

#: Provenance: what became of the microbatches.
NOTE = "microbatches"


def with_time_axis(plan: Plan) -> Plan:
    """The plan at every microbatch, if ranks have microbatches that the single device has not.

    Where they are not alike the plan stays as it was captured; its provenance says why.
    """
    wanted = set().union(*(_counts(cls.program) for cls in plan.classes)) - _counts(plan.specification)
    reasons = []
    for count in sorted(wanted, reverse=True):
        try:
            folded, places = fold_plan(plan, count)
        except NotAlike as error:
            reasons.append(f"{count} are not one program: {error}{_place(plan, error.loc)}")
            continue
        if not same(plan, folded, places):
            raise AssertionError("folding microbatches changed what the plan computes")
        note = {NOTE: f"{count}, one program at each"}
        check_plan(folded)
        kept = {key: value for key, value in plan.provenance.items() if key != THROUGH}
        return replace(folded, provenance={**kept, **note})
    return replace(plan, provenance={**plan.provenance, NOTE: reasons}) if reasons else plan


def _counts(program: Program) -> set[int]:
    """Numbers of slices that tile an entry of the batch."""
    return {len(places) for places in tilings(program)}


def _place(plan: Plan, loc: Loc | None) -> str:
    return "" if loc is None else f" ({plan.sources[loc.source]}:{loc.line} {loc.function})"
