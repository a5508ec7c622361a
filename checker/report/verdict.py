"""The verdict in words. Nothing here decides anything: it is given what the kernel found."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from ..kernel import Examined, Verified
from ..language.functions import FUNCTIONS
from ..language.plan import Plan
from ..language.proof import AlgebraStage, Law, Proof
from ..refuting.witness import Replay
from ..rules.laws import LAWS
from ..rules.roles import states
from ..scheduling.safety import Safety
from .claims import claim
from .domains import Domains

FREE = re.compile(f"^\\(declare-fun ({'|'.join(FUNCTIONS)}) ".encode(), re.MULTILINE)
#: What a PROVED rests on; refuting is for witnesses, report for words.
PROVING = ("errors", "language", "reading", "rules", "kernel", "solvers", "endings", "cli", "starting")
FEW = 12
MANY = 200  # more lines than this are folded
CONDITIONS = (
    "every state leaves the step under the relation that it enters under, at every rank (checked)",
    "the initial state satisfies the input relation",
    "what is given anew is given to all ranks as the input relation says, at every step",
    "nothing changes what is declared constant",
    "random masks are declared inputs",
    "control path and shapes are the same in every step (a short last batch is another program)",
)
SAME_RUN = "ranks that communicate are then in the same run (no schedule is shown to be safe)"
TRANSPORT = (
    "each rank issues its events in the order of the schedule, and the ops of a segment in program order",
    "the transport keeps the order of messages between two ranks on a communicator, and that of collectives",
    "what is issued makes progress when the other ends are there, batches as a whole, communicators alone",
    "a value without a slot is in memory that nothing else writes while it may be read",
)
ORDER = "deadlock and schedules"
LEFT = "deadlock for other reasons than the order of events (a rank that stops, memory, the network)"
OUTSIDE = (
    "floating-point rounding (numbers are reals and unbounded integers)",
    "values of ops outside their domain (functions are total here; see the domains that are not shown)",
    "random-number streams",
    "data loading",
    ORDER,
    "that the captured graphs are what the framework runs",
    "README, scripts, schemas, table and checker of the bundle, which are not checked",
)


def rounded(number: Fraction) -> str:
    try:
        return f"{float(number):.9g}"
    except OverflowError:
        return "1e308 or more" if number > 0 else "-1e308 or less"


def shown(replay: Replay) -> str:
    """The two numbers of a replayed witness, and where they stand."""
    at = ", ".join(f"{s} = {v}" for s, v in sorted(replay.symbols.items()))
    return (
        f"the witness gives {side(replay.plan)} on the plan's side and {side(replay.spec)} on the "
        f"specification's{' at ' + at if at else ''}"
    )


def side(ends: tuple[Fraction, Fraction] | None) -> str:
    """A number, as far as it is known."""
    if ends is None:
        return "no real number"
    low, high = map(rounded, ends)
    return low if low == high else f"a number from {low} to {high}"


def confirmed_lines(examined: Examined, answers: dict[str, dict[str, str]]) -> list[str]:
    total = len(examined.files)
    lines = [
        f"{sum(a == 'unsat' for a in given.values())} of {total} obligations confirmed by {name}"
        for name, given in answers.items()
    ]
    return [*lines, normalised_line(examined)]


def normalised_line(examined: Examined) -> str:
    total, algebra = len(examined.files), len(examined.algebra)
    alone = total - len(examined.normalised)
    return (
        f"{len(examined.normalised)} of {algebra} obligations of algebra confirmed by the solver-free "
        f"normaliser too; {alone} of all {total} rest on the solvers alone"
    )


def solver_line(examined: Examined) -> str:
    """What the maker says of the obligations; `tv-check` asks solvers itself."""
    if examined.manifest.status == "unsat":
        return f"{len(examined.files)} obligations, each refuted by z3 and by cvc5, as the maker says"
    return f"{len(examined.files)} obligations, not solved yet: tv-check solves them, or takes answers"


def folded(lines: list[str]) -> list[str]:
    """Of many lines, those that differ in numbers only as one; a missing proof keeps its own."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        alone = len(lines) <= MANY or line.startswith(("  REFUTED", "  UNKNOWN"))
        kinds.setdefault(line if alone else re.sub("[0-9]+", "#", line), []).append(line)
    return [
        found[0] if len(found) == 1 else f"{kind} ({len(found)} such lines)" for kind, found in kinds.items()
    ]


def laws_used(proof: Proof) -> Counter[str]:
    """How often the records of a bundle use each law."""
    stages = [*proof.stages, *(s for lemma in proof.lemmas for s in lemma.stages)]
    cases = [c for s in stages if isinstance(s, AlgebraStage) for c in s.cases]
    return Counter(p.schema for c in cases for p in c.premises if isinstance(p, Law))


def laws_said(proof: Proof) -> str:
    laws = laws_used(proof)
    return ", ".join(f"{law} {laws[law]} times" for law in LAWS if laws[law]) or "none"


def schedule_line(examined: Examined) -> str:
    """The verdict on the order of events; empty for a plan of one run without messages."""
    found, plan = examined.safe, examined.plan
    if found is None:
        return "not claimed, the plan has no schedule" if plan.time or plan.messages else ""
    if not found.safe:
        return f"UNSAFE: {found.reason}"
    return (
        f"SAFE: {found.reason}: none waits for ever, messages meet as the plan says, every part of every run "
        "is done once, after what it reads, and no slot is written while it may be read"
    )


def safe(examined: Examined) -> bool:
    return examined.safe is not None and examined.safe.safe


def outside(examined: Examined) -> list[str]:
    """What no verdict speaks of."""
    return [LEFT if item == ORDER and safe(examined) else item for item in OUTSIDE]


def assumed(examined: Examined) -> list[str]:
    """What the claim assumes: equal runs meet, inputs in declared ranges, rows that no mask covers; of a
    schedule that is safe, what the transport does."""
    ranges = sorted(examined.plan.ranges.items())
    said = list(TRANSPORT) if safe(examined) else [SAME_RUN] if examined.plan.time else []
    return said + [f"{name} lies in [{lo}, {hi})" for name, (lo, hi) in ranges] + list(examined.assumptions)


def unclaimed(examined: Examined) -> list[str]:
    """Elements and outputs of the plan of which no relation speaks."""
    classes = examined.plan.classes.values()
    related = {r.plan for r in examined.plan.outputs}
    unrelated = sorted({n for c in classes for n in c.program.outputs} - related)
    return [*examined.padding, *(f"plan output {name} has no relation" for name in unrelated)]


def report(
    examined: Examined,
    verified: Verified,
    answers: dict[str, dict[str, str]],
    proof: Proof,
    note: str,
    sources: Sequence[str] = (),
) -> list[str]:
    """The verdict in words; `sources` say who is trusted for which answers."""
    plan = examined.plan
    mesh = "x".join(f"{a} {n}" for a, n in plan.mesh if a not in plan.time) or "one rank"
    lines = [f"plan {plan.name}, {mesh}, digest {plan.digest}", *runs(plan)]
    lines += folded(
        [
            f"  {o.verdict:8}{claim(plan, r)}{': ' + o.reason if o.reason else ''}"
            for o, r in zip(verified.outputs, plan.outputs, strict=True)
        ]
    )
    lines += [f"schedule: {line}" for line in [schedule_line(examined)] if line]
    lines += [*confirmed_lines(examined, answers), *sources]
    lines.append(f"{examined.cases} proof cases in {examined.steps} stages")
    lines.append(f"laws used: {laws_said(proof)}")
    lines += [f"assumption: {note}" for note in assumed(examined)]
    lines += folded([f"not claimed: {note}" for note in unclaimed(examined)])
    lines += folded([f"domain not shown: {line}" for line in Domains(plan).unshown()])
    lines += role_lines(plan)
    lines += [f"provenance: {line}" for line in provenance(plan)]
    lines += [*(f"outside the claim: {item}" for item in outside(examined)), note]
    if verified.invariant:
        lines += ["claim: ONE STEP only; the step is not shown to be an invariant of the run, because"]
        lines += [f"  {reason}" for reason in verified.invariant]
    else:
        lines.append("claim: the step is an INVARIANT of the run: outputs agree after any number of steps if")
        lines += [f"  {condition}" for condition in CONDITIONS]
    return lines


def runs(plan: Plan) -> list[str]:
    """What time axes mean."""
    return [
        f"every rank runs its program {n} times, once for each {a}" for a, n in plan.mesh if a in plan.time
    ]


def provenance(plan: Plan) -> list[str]:
    """What the plan says of its own origin, cut to one line each; not checked."""
    return [f"{key[:60]}: {json.dumps(value)[:200]}" for key, value in sorted(plan.provenance.items())]


def final_line(verified: Verified, schedule: Safety | None = None) -> tuple[int, str]:
    """The exit code and the last line; a schedule that is not safe is no success, whatever is proved."""
    kinds = [o.verdict for o in verified.outputs]
    if "REFUTED" in kinds:
        return 1, (
            f"REFUTED: {kinds.count('REFUTED')} of {len(kinds)} outputs provably differ from the "
            "single-device model"
        )
    if schedule is not None and not schedule.safe:
        return 1, (
            f"UNSAFE: {kinds.count('PROVED')} of {len(kinds)} outputs are proved, and the schedule is not "
            f"safe: {schedule.reason}"
        )
    if "UNKNOWN" in kinds or not kinds:
        return 3, f"UNKNOWN: {kinds.count('UNKNOWN')} of {len(kinds)} outputs are not proved; no success"
    return 0, (
        f"VALID: all {len(kinds)} outputs equal the single-device model's under the stated relations"
        + (", and the schedule is SAFE" if schedule is not None else "")
    )


def trusted_base(
    plan: Plan, proof: Proof, files: Iterable[bytes], chosen: list[str], refuted: bool
) -> list[str]:
    """Everything a verdict rests on: laws as the records use them, functions as the files have them."""
    stages = [*proof.stages, *(s for lemma in proof.lemmas for s in lemma.stages)]
    algebra = [s for s in stages if isinstance(s, AlgebraStage)]
    laws = laws_used(proof)
    free = Counter(found for text in files for found in set(FREE.findall(text)))
    programs = [p.program(s) for p in (plan, *plan.functions.values()) for s in ("s", *p.classes)]
    ops = sorted({op.name for p in programs for op in p.ops})
    unused = [law for law in LAWS if not laws[law]]
    lines = [
        f"the reduction theorem (DESIGN section 3), for {len(algebra)} algebra stages",
        *(f"law {law}, used {laws[law]} times: {LAWS[law].sentence}" for law in LAWS if laws[law]),
        *([f"laws that this bundle does not use: {', '.join(unused)}"] if unused else []),
        "functions without a meaning but these laws: "
        + (", ".join(f"{name.decode()} (in {n} files)" for name, n in sorted(free.items())) or "none"),
        f"op semantics: {', '.join(ops)}",
        "opaque kernels: none",
        f"solvers: {', '.join(chosen)}",
        "the Python interpreter and its standard library, click",
        f"of this checker: {', '.join(PROVING)}" + (", refuting (for the witness)" if refuted else ""),
    ]
    return [f"trusted: {line}" for line in lines + provenance(plan)]


def named(names: Sequence[str]) -> str:
    """How many there are, and which: of many, those that differ in numbers only as one."""
    kinds: dict[str, int] = {}
    for name in names:
        key = name if len(names) <= FEW else re.sub("[0-9]+", "#", name)
        kinds[key] = kinds.get(key, 0) + 1
    return f"{len(names)}: " + ", ".join(k if n == 1 else f"{k} ({n})" for k, n in kinds.items())


def role_lines(plan: Plan) -> list[str]:
    """The role of every input, as far as the claim goes and the plan declares."""
    found = [
        ("states that the claim covers", states(plan)),
        ("given anew at each step (declared, not proved)", plan.given),
        ("constant over all steps (declared, not proved)", plan.constants),
    ]
    return [f"{what}, {named(names)}" for what, names in found if names]
