"""`tv-check`: reads a bundle, runs the kernel and the solvers, and says what was found."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from . import kernel
from .errors import CheckerError, Rejected, SolverMissing, Undecided
from .reading.bundle import read_bundle, read_file, read_plan_file
from .reading.plan import Plan, Relation, read_plan
from .reading.proof import AlgebraStage, Fact, Law, Proof, read_manifest, read_proof
from .reading.strict import FUNCTIONS, integer, members, need, read_json
from .refuting.witness import replay as replay_witness
from .rules import roles
from .rules.calls import inline
from .rules.relations import relation_facts
from .solvers import read_answers, replay, solvers

FREE = re.compile(f"^\\(declare-fun ({'|'.join(FUNCTIONS)}) ".encode(), re.MULTILINE)
MANY = 200  # more lines than this are folded
CONDITIONS = (
    "every state leaves the step under the relation that it enters under, at every rank (checked)",
    "the initial state satisfies the input relation",
    "what is given anew is given to all ranks as the input relation says, at every step",
    "nothing changes what is declared constant",
    "random masks are declared inputs",
    "control path and shapes are the same in every step (a short last batch is another program)",
)
OUTSIDE = ("floating-point rounding (numbers are reals and unbounded integers)",
           "values of quotients, roots, powers and logarithms outside their domain (functions are total)",
           "random-number streams",
           "data loading", "deadlock and schedules", "that the captured graphs are what the framework runs",
           "run.sh and report.txt of the bundle, which are not checked")
LAWS = {"ring": "identities of commutative rings over `mul`, + and -, with rational coefficients",
        "lattice": "associativity, commutativity and idempotence of `max2` and of `min2`",
        "recip": "the reciprocal of a literal that is not zero",
        "root": "`sqrt(p) * sqrt(p) = p` for p that cannot be negative, in stages without sums"}


@dataclass(frozen=True)
class Policy:
    """What the caller accepts. The default is strict."""

    confirmations: int = 2
    reductions: bool = True


def read_policy(path: Path) -> Policy:
    item = members(read_json(read_file(path, "policy"), "policy"), "policy", "",
                   "confirmations shape_reduction")
    reductions = item.get("shape_reduction", True)
    need(isinstance(reductions, bool), "policy: shape_reduction is true or false")
    return Policy(integer(item.get("confirmations", 2), "policy: confirmations", 1, 10), reductions)


def witnesses(plan: Plan, data: dict[str, bytes], claimed: tuple[tuple[Fact, ...], ...]) -> dict[int, str]:
    """Replays the bundle's witness (obligation 18)."""
    if "witness.json" not in data:
        return {}
    witness = read_json(data["witness.json"], "witness")
    need(isinstance(witness, dict), "witness: an object is expected")
    output = integer(witness.get("output"), "witness: output", 0, len(claimed))
    piece = integer(witness.get("piece"), "witness: piece", 0, len(claimed[output]))
    flat = inline(plan)  # calls written out: an output then has another name
    fact = relation_facts(flat, flat.outputs[output], "outputs")[piece]
    found = replay_witness(flat, fact, witness)
    at = ", ".join(f"{s} = {v}" for s, v in sorted(found.symbols.items()))
    sides = [f"[{rounded(s[0])}, {rounded(s[1])}]" if s else "no real number"
             for s in (found.plan, found.spec)]
    return {output: f"the witness gives {sides[0]} on the plan's side and {sides[1]} on the specification's"
                    f"{' at ' + at if at else ''}"}


def rounded(number: Fraction) -> str:
    try:
        return f"{float(number):.9g}"
    except OverflowError:
        return "1e308 or more" if number > 0 else "-1e308 or less"


def confirmed_lines(examined: kernel.Examined, answers: dict[str, dict[str, str]]) -> list[str]:
    total = len(examined.files)
    lines = [f"{sum(a == 'unsat' for a in given.values())} of {total} obligations confirmed by {name}"
             for name, given in answers.items()]
    algebra = sum(b"QF_UFLRA" in text for text in examined.files.values())
    return [*lines,
            f"{len(examined.normalised)} of {total} obligations ({algebra} of them algebra) confirmed by the "
            "solver-free normaliser; the others rest on the solvers alone"]


def folded(lines: list[str]) -> list[str]:
    """Of many lines, those that differ in numbers only as one; a missing proof keeps its own."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        alone = len(lines) <= MANY or line.startswith(("  REFUTED", "  UNKNOWN"))
        kinds.setdefault(line if alone else re.sub("[0-9]+", "#", line), []).append(line)
    return [found[0] if len(found) == 1 else f"{kind} ({len(found)} such lines)"
            for kind, found in kinds.items()]


def claimed(relation: Relation) -> str:
    """What an output relation says besides its placement: coefficient, reduction and axes."""
    left, right = relation.plan, relation.spec
    if relation.reduce:
        word = {"add": "sum", "max": "maximum", "min": "minimum"}[relation.reduce[0]]
        left = f"{word} over {' '.join(relation.reduce[1])} of {left}"
    return f"{left} = {right if relation.coef == 1 else f'{relation.coef} * {right}'}"


def report(examined: kernel.Examined, verified: kernel.Verified,
           answers: dict[str, dict[str, str]]) -> list[str]:
    """The verdict in words."""
    plan = examined.plan
    mesh = "x".join(f"{a} {n}" for a, n in plan.mesh) or "one rank"
    lines = [f"plan {plan.name}, {mesh}, digest {plan.digest}"]
    lines += folded([f"  {o.verdict:8}{claimed(r)}{': ' + o.reason if o.reason else ''}"
                     for o, r in zip(verified.outputs, plan.outputs, strict=True)])
    lines += confirmed_lines(examined, answers)
    lines.append(f"{examined.cases} proof cases in {examined.steps} stages")
    lines += [f"assumption: {name} lies in [{lo}, {hi})" for name, (lo, hi) in sorted(plan.ranges.items())]
    lines += [f"assumption: {note}" for note in examined.assumptions]
    lines += folded([f"not claimed: {note}" for note in examined.padding])
    unrelated = sorted({n for c in plan.classes.values() for n in c.program.outputs}
                       - {r.plan for r in plan.outputs})
    lines += [f"not claimed: plan output {name} has no relation" for name in unrelated]
    lines += roles.lines(plan)
    lines += [f"provenance: {line}" for line in provenance(plan)]
    lines += [f"outside the claim: {item}" for item in OUTSIDE]
    if verified.invariant:
        lines += ["claim: ONE STEP only; the step is not shown to be an invariant of the run, because"]
        lines += [f"  {reason}" for reason in verified.invariant]
    else:
        lines.append("claim: the step is an INVARIANT of the run: outputs agree after any number of steps if")
        lines += [f"  {condition}" for condition in CONDITIONS]
    return lines


def provenance(plan: Plan) -> list[str]:
    """What the plan says of its own origin, cut to one line each; not checked."""
    return [f"{key[:60]}: {json.dumps(value)[:200]}" for key, value in sorted(plan.provenance.items())]


def final_line(verified: kernel.Verified) -> tuple[int, str]:
    kinds = [o.verdict for o in verified.outputs]
    if "REFUTED" in kinds:
        return 1, (f"REFUTED: {kinds.count('REFUTED')} of {len(kinds)} outputs provably differ from the "
                   "single-device model")
    if "UNKNOWN" in kinds or not kinds:
        return 3, f"UNKNOWN: {kinds.count('UNKNOWN')} of {len(kinds)} outputs are not proved; no success"
    return 0, f"VALID: all {len(kinds)} outputs equal the single-device model's under the stated relations"


def trusted_base(plan: Plan, proof: Proof, files: Iterable[bytes], chosen: list[str]) -> list[str]:
    """Everything a verdict rests on: laws as the records use them, functions as the files have them."""
    stages = [*proof.stages, *(s for lemma in proof.lemmas for s in lemma.stages)]
    algebra = [s for s in stages if isinstance(s, AlgebraStage)]
    laws = Counter(p.schema for s in algebra for c in s.cases for p in c.premises if isinstance(p, Law))
    free = Counter(found for text in files for found in set(FREE.findall(text)))
    programs = [p.program(s) for p in (plan, *plan.functions.values()) for s in ("s", *p.classes)]
    ops = sorted({op.name for p in programs for op in p.ops})
    unused = [law for law in LAWS if not laws[law]]
    lines = [f"the reduction theorem (DESIGN section 3), for {len(algebra)} algebra stages",
             *(f"law {law}, used {laws[law]} times: {text}" for law, text in LAWS.items() if laws[law]),
             *([f"laws that this bundle does not use: {', '.join(unused)}"] if unused else []),
             "functions without a meaning but these laws: "
             + (", ".join(f"{name.decode()} (in {n} files)" for name, n in sorted(free.items())) or "none"),
             f"op semantics: {', '.join(ops)}", "opaque kernels: none",
             f"solvers: {', '.join(chosen)}",
             "the Python interpreter and its standard library, click, this checker"]
    return [f"trusted: {line}" for line in lines + provenance(plan)]


@click.command(name="tv-check")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--plan", "plan_path", type=click.Path(path_type=Path),
              help="Your own copy of the plan; digests must agree.")
@click.option("--solver", "commands", multiple=True, metavar="'CMD {file}'",
              help="One more solver, run once per file.")
@click.option("--answers", "answer_files", multiple=True, type=click.Path(path_type=Path),
              help="Offline results, lines 'NNNN answer'; each file counts as one solver.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
@click.option("--jobs", default=2, type=click.IntRange(1, 256), help="Solver processes at a time.")
@click.option("--trusted-base", is_flag=True, help="List everything that the verdict rests on.")
@click.option("--policy", "policy_path", type=click.Path(path_type=Path),
              help="What you accept (policy.json).")
def main(bundle: Path, plan_path: Path | None, commands: tuple[str, ...], answer_files: tuple[Path, ...],
         as_json: bool, jobs: int, trusted_base: bool, policy_path: Path | None) -> None:
    """Check a certificate BUNDLE without trusting whoever made it.

    Exit codes: 0 valid, every output PROVED; 1 refuted or invalid; 2 usage; 3 unknown, incomplete or solvers
    disagree; 4 solver missing; 5 malformed input.
    """
    try:
        code, lines, detail = check(bundle, plan_path, commands, answer_files, jobs, trusted_base,
                                    policy_path)
    except Rejected as error:
        code, lines, detail = 1, [f"INVALID: {error}"], {"obligation": error.number}
    except (CheckerError, RecursionError) as error:
        code = error.code if isinstance(error, CheckerError) else 5
        kind = {3: "UNKNOWN", 4: "SOLVER MISSING"}.get(code, "MALFORMED")
        lines, detail = [f"{kind}: {str(error) or 'nested too deeply'}"], {}
    lines = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
    if as_json:
        click.echo(json.dumps({"exit_code": code, "verdict": lines[-1], "lines": lines, **detail},
                              sort_keys=True))
    else:
        click.echo("\n".join(lines))
    sys.exit(code)


def check(bundle: Path, plan_path: Path | None, commands: tuple[str, ...], answer_files: tuple[Path, ...],
          jobs: int, base: bool, policy_path: Path | None) -> tuple[int, list[str], dict[str, Any]]:
    """Exit code, lines to print, members for `--json`."""
    gc.set_threshold(100_000, 20, 100)  # nearly all that is made lives to the end
    policy = read_policy(policy_path) if policy_path else Policy()
    data = read_bundle(bundle)
    manifest = read_manifest(data["manifest.json"])
    plan = read_plan(data["plan.json"])
    given = read_plan_file(plan_path) if plan_path else data["plan.json"]
    if given != data["plan.json"]:
        read_plan(given)  # which may be malformed
        raise Rejected(1, "the bundle's plan is not the plan you gave")
    proof = read_proof(data["proof.json"])
    examined = kernel.examine(manifest, plan, proof, data)
    if not policy.reductions and any(b"QF_UFLRA" in t for t in examined.files.values()):
        raise Undecided("the policy does not accept shape reduction, on which algebra stages rest")
    refuted = witnesses(plan, data, examined.claimed)
    chosen = solvers(commands)
    answers = {f"the answers in {p.name}": read_answers(read_file(p, str(p)).decode("utf-8", "replace"),
                                                        p.name)
               for p in answer_files}
    if len(chosen) + len(answers) < policy.confirmations:
        there = ", ".join([*chosen, *answers]) or "none"
        raise SolverMissing(f"{policy.confirmations} solvers must confirm, there is {there}")
    answers |= replay(examined.files, chosen, jobs)
    verified = kernel.conclude(examined, answers, policy.confirmations, refuted)
    code, last = final_line(verified)
    lines = report(examined, verified, answers)
    if base:
        lines = trusted_base(plan, proof, examined.files.values(), list(answers)) + lines
    outputs = [vars(o) for o in verified.outputs]
    return code, [*lines, last], {"outputs": outputs, "digest": plan.digest,
                                  "invariant": not verified.invariant, "states": roles.states(plan),
                                  "given": list(plan.given), "constants": list(plan.constants)}
