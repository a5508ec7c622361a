"""A captured plan whose ranks loop over microbatches, with a time axis where that is possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from certificates.errors import FormatError
from certificates.plan.checking import check_plan
from certificates.plan.plan import Plan
from certificates.plan.program import Loc, Program
from certificates.plan.timing import has_messages

from ..outlining.packing import read_again, unread
from .fold import Folded, NotAlike, fold_plan
from .messages import THROUGH
from .recorded import Trace, scheduled
from .unfold import same
from .views import tilings

#: Provenance: what became of the microbatches.
NOTE = "microbatches"


def with_time_axis(plan: Plan, seen: Mapping[str, Program] | None = None) -> Plan:
    """The plan at every microbatch, if ranks have microbatches that the single device has not.

    ``seen`` are the programs of the classes with the places where they wait: the order in which a pipeline's
    ranks were seen to run and send is its schedule. Where microbatches are not alike the plan stays as it was
    captured; its provenance says why. Packed rows are folded as they are written: each microbatch has orders
    of its own.
    """
    wanted = set().union(*(_counts(cls.program) for cls in plan.classes)) - _counts(plan.specification)
    as_written, reasons = unread(plan), []
    for count in sorted(wanted, reverse=True):
        try:
            folded, places, made = fold_plan(as_written, count, seen)
        except NotAlike as error:
            reasons.append(f"{count} are not one program: {error}{_place(plan, error.loc)}")
            continue
        if not same(as_written, folded, places):
            raise AssertionError("folding microbatches changed what the plan computes")
        note = {NOTE: f"{count}, one program at each"}
        kept = {key: value for key, value in plan.provenance.items() if key != THROUGH}
        folded = replace(folded, provenance={**kept, **note})
        plain = read_again(folded)
        check_plan(plain)
        return _with_schedule(folded, plain, made) if seen is not None and has_messages(plain) else plain
    return replace(plan, provenance={**plan.provenance, NOTE: reasons}) if reasons else plan


def _with_schedule(written: Plan, plain: Plan, made: Mapping[str, Folded]) -> Plan:
    """The plan with the order in which its ranks were seen to run, where the format has a place for it."""
    traces = {name: Trace(f.traced, f.places, f.seqs) for name, f in made.items()}
    try:
        return scheduled(written, traces)
    except FormatError as error:
        return replace(plain, provenance={**plain.provenance, "schedule": f"not claimed: {error}"})


def _counts(program: Program) -> set[int]:
    """Numbers of slices that tile an entry of the batch."""
    return {len(places) for places in tilings(program)}


def _place(plan: Plan, loc: Loc | None) -> str:
    return "" if loc is None else f" ({plan.sources[loc.source]}:{loc.line} {loc.function})"
