"""``report.txt``: a bundle's verdict, claim, conditions and origin in words; ``tv-check`` decides."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from certificates.bundle.bundle import OutputVerdict, Status, summary

from ..plan.plan import Plan, Relation, states
from ..words import clean, count, folded
from .claims import claim, open_elements
from .domains import unshown

CONDITIONS = (
    "the initial state satisfies the input relation",
    "what is given anew reaches the ranks as the input relation says, at every step",
    "nothing changes what is declared constant",
    "random masks are declared inputs",
    "control path and shapes are the same in every step (a short last batch is another program)",
)
OUTSIDE = (
    "floating-point rounding: numbers are reals and unbounded integers",
    "values of roots, logarithms and quotients outside their domain: functions are total",
    "random-number streams and data loading",
    "deadlock and schedules",
    "that the captured graphs are what the framework runs",
)


def report(
    plan: Plan, digest: str, verdicts: Sequence[OutputVerdict], status: Status, files: int, proof: bytes
) -> str:
    """The whole text, ASCII, with a newline at its end; ``digest`` is the plan's."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.axes.items()) or "one rank"
    solved = {
        "unsat": "each refuted by z3 and by cvc5",
        "unknown": "not solved yet: run.sh runs a solver over them, tv-check --answers takes its output",
    }[status]
    lines = [
        summary(verdicts),
        "",
        f"plan {plan.name}: {mesh}, {count(plan.mesh.ranks, 'rank')} in "
        f"{len(plan.classes)} rank class{'es' if len(plan.classes) > 1 else ''}",
        f"digest {digest}",
        f"{count(files, 'obligation')}, {solved}",
        "",
        "Outputs",
        *folded([_verdict(plan, v, i) for i, v in enumerate(verdicts)]),
        *folded([f"  not claimed: {words}" for words in open_elements(plan)]),
        "",
        "Claim",
        "  For every real-valued input that satisfies the input relation, every output called PROVED stands",
        "  in its output relation to the specification's output. tv-check decides if this bundle shows it.",
        *_invariant(plan, verdicts),
        "",
        *_roles(plan),
        "Assumptions",
        *(f"  {name} lies in [{lo}, {hi})" for name, (lo, hi) in sorted(plan.ranges.items())),
        *(f"  {condition}" for condition in CONDITIONS),
        "",
        "Laws used",
        *([f"  {law} {count(n, 'time')}" for law, n in sorted(laws_used(proof).items())] or ["  none"]),
        "",
        *_domains(plan),
        "Outside the claim",
        *(f"  {item}" for item in OUTSIDE),
        "",
        "Origin (as the plan says; not checked)",
        *_origin(plan),
    ]
    return "".join(clean(line) + "\n" for line in lines)


def laws_used(proof: bytes) -> Counter[str]:
    """How often the records of a ``proof.json`` use each law.

    Canonical JSON writes a schema in one way, and in a text quotes have backslashes.
    """
    return Counter(found.decode() for found in re.findall(rb'"schema":"([a-z]+)"', proof))


def _domains(plan: Plan) -> list[str]:
    found = folded([f"  {line}" for line in unshown(plan)])
    return ["Not shown to stay in its domain, where the claim says nothing", *found, ""] if found else []


def _verdict(plan: Plan, verdict: OutputVerdict, number: int) -> str:
    """A verdict with its claim in full; verdicts stand in the order of the output relations."""
    reason = f": {verdict.reason}" if verdict.reason else ""
    return f"  {verdict.verdict:8} {claim(plan, plan.outputs[number])}{reason}"


def _invariant(plan: Plan, verdicts: Sequence[OutputVerdict]) -> list[str]:
    """Is the step an inductive invariant of the run, as far as states and their relations go?"""
    broken = [f"{v.plan} is {v.verdict}" for v in verdicts if v.verdict != "PROVED"]
    entering, leaving = _by_tensor(plan.inputs), _by_tensor(plan.outputs)
    for r in plan.inputs:
        kinds = {name: _kind(plan, name) for name in (r.spec, r.plan)}
        if len(set(kinds.values())) > 1:
            broken.append(f"{r.spec} is {kinds[r.spec]}, {r.plan}, to which it is tied, is {kinds[r.plan]}")
    for state in states(plan):
        if not _leaves(plan, state):
            broken.append(f"{state} is read but leaves no value; it is neither declared given nor constant")
        elif entering[state] != leaving.get(state) and _stated(entering[state]) != _stated(
            leaving.get(state, [])
        ):
            broken.append(f"state {state} leaves the step under another relation than it enters")
        if state in plan.ranges:
            broken.append(f"the declared range of the state {state} is not re-established")
    if broken:
        return ["  One step only, not shown to be an invariant of the run:", *(f"    {b}" for b in broken)]
    return ["  The step is an invariant: under the assumptions the claim holds after any number of steps."]


def _kind(plan: Plan, name: str) -> str:
    return "given anew" if name in plan.given else "constant" if name in plan.constants else "a state"


def _leaves(plan: Plan, state: str) -> bool:
    """Has every program that a relation ties the state in a value of it at the end?"""
    if any(r.spec == state for r in plan.inputs) and state not in plan.specification.outputs:
        return False
    classes = {p.cls for r in plan.inputs if r.plan == state for p in r.pieces}
    return all(state in plan.by_class[c].program.outputs for c in classes)


def _by_tensor(relations: Sequence[Relation]) -> dict[str, list[Relation]]:
    """The relations of each tensor, of the specification or the plan."""
    found: dict[str, list[Relation]] = {}
    for r in relations:
        for name in dict.fromkeys((r.spec, r.plan)):
            found.setdefault(name, []).append(r)
    return found


def _stated(relations: Sequence[Relation]) -> set[object]:
    """What relations of one tensor say, in whatever order and grouping."""
    return {(r.spec, r.plan, r.coef, r.reduce, p) for r in relations for p in r.pieces}


def _roles(plan: Plan) -> list[str]:
    """Which inputs the claim of an invariant covers, and what the plan declares of the others."""
    kinds = (
        ("State, covered by the claim", list(states(plan))),
        ("Given anew at each step (declared)", plan.given),
        ("Constant over all steps (declared)", plan.constants),
    )
    return [
        line for what, names in kinds if names
        for line in (what, *folded([f"  {name}" for name in names], 12), "")
    ]  # fmt: skip


def _origin(plan: Plan) -> list[str]:
    """Traced and untraced ranks first, then the rest of the provenance."""
    rest = dict(plan.provenance)
    traced, untraced = rest.pop("traced_ranks", None), rest.pop("interpolated_ranks", None)
    lines = []
    if isinstance(traced, list):
        lines.append(f"  traced ranks: {', '.join(map(str, traced))} ({len(traced)} of {plan.mesh.ranks})")
    if untraced is not None:
        lines.append(f"  ranks not traced, interpolated from those of their class: {untraced}")
    for key, value in sorted(rest.items()):
        values = value if isinstance(value, list) else [value]
        lines += [f"  {key}: {v}" for v in values]
    return lines or ["  nothing is said"]
