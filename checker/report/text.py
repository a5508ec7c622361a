"""`report.txt`: what the bundle claims, in plain lines."""

from __future__ import annotations

from collections.abc import Iterable

from .about import about_lines
from .claims import claim
from .domains import Domains
from .findings import Findings
from .verdict import (
    CONDITIONS,
    assumed,
    folded,
    laws_said,
    normalised_line,
    outside,
    provenance,
    role_lines,
    runs,
    schedule_line,
    solver_line,
    unclaimed,
)

HOLDS = "the step is an INVARIANT of the run: outputs agree after any number of steps if"
ONCE = "ONE STEP only; the step is not shown to be an invariant of the run, because"
CLAIM = (
    "For every real-valued input that satisfies the input relation, every output called PROVED stands in its",
    "output relation to the specification's output. tv-check decides if this bundle shows it.",
)


def text(found: Findings) -> str:
    """The whole file, printable ASCII with a newline at its end."""
    examined, plan = found.examined, found.plan
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh if axis not in plan.time) or "one rank"
    classes = f"{len(plan.classes)} rank class{'es' if len(plan.classes) > 1 else ''}"
    outputs = zip(found.outputs, plan.outputs, strict=True)
    sections: list[tuple[str, Iterable[str]]] = [
        (
            f"{found.word}: {found.sentence}",
            [
                f"plan {plan.name}: {mesh}, ranks: {found.ranks} in {classes}",
                *runs(plan),
                f"digest {plan.digest}",
                solver_line(examined),
                normalised_line(examined),
                f"{examined.cases} proof cases in {examined.steps} stages",
            ],
        ),
        ("Outputs", folded([f"{o.verdict:8} {claim(plan, r)}{why(o.reason)}" for o, r in outputs])),
        ("Claim", CLAIM),
        ("Schedule", [line for line in [schedule_line(examined)] if line]),
        ("Over many steps", [ONCE, *found.invariant] if found.invariant else [HOLDS, *CONDITIONS]),
        ("Roles of the inputs", role_lines(plan)),
        ("Assumptions", assumed(examined)),
        ("Not claimed", folded(unclaimed(examined))),
        ("Not shown to stay in its domain, where the claim says nothing", folded(Domains(plan).unshown())),
        ("Laws used", [laws_said(found.proof)]),
        ("Outside the claim", outside(examined)),
        ("Diagnosis by the maker, not checked", diagnoses(found)),
        ("Said by the maker, not checked", about_lines(found.about)),
        ("Origin as the plan says, not checked", provenance(plan)),
    ]
    lines: list[str] = []
    for title, body in sections:
        said = [f"  {line}" for line in body]
        lines += [*([""] if lines else []), title, *said] if said else []
    return "".join(plain(line) + "\n" for line in lines)


def why(reason: str) -> str:
    return f": {reason}" if reason else ""


def diagnoses(found: Findings) -> list[str]:
    """What the maker says of outputs that differ; the replayed numbers stand in it too."""
    verdicts = found.examined.manifest.verdicts
    return [f"{verdicts[i][1]}: {verdicts[i][3]}" for i in sorted(found.refuted) if verdicts[i][3]]


def plain(line: str) -> str:
    """Printable ASCII, whatever a bundle contains."""
    ascii_only = line.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(c if c.isprintable() else "?" for c in ascii_only)
