"""`tv-check`: reads a bundle, runs the kernel and the solvers, and says what was found."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from . import kernel
from .errors import CheckerError, Rejected, SolverMissing, Undecided, need
from .reading.bundle import read_bundle, read_file, read_plan_file
from .reading.plan import read_plan
from .reading.proof import read_manifest, read_proof
from .reading.strict import integer, members, read_json
from .refuting.witnesses import witnesses
from .report.render import NOT_COMPARED, SAME
from .report.verdict import final_line, report, shown
from .report.verdict import trusted_base as trusted
from .reporting import compare
from .rules.roles import states
from .solvers import read_answers, replay, solvers


@dataclass(frozen=True)
class Policy:
    """What the caller accepts. The default is strict."""

    confirmations: int = 2
    reductions: bool = True
    reports: bool = True


def read_policy(path: Path) -> Policy:
    known = "confirmations shape_reduction reports"
    item = members(read_json(read_file(path, "policy"), "policy"), "policy", "", known)
    flags = [item.get(name, True) for name in known.split()[1:]]
    need(all(isinstance(f, bool) for f in flags), "policy: shape_reduction and reports are true or false")
    return Policy(integer(item.get("confirmations", 2), "policy: confirmations", 1, 10), *flags)


@click.command(name="tv-check")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    help="Your own copy of the plan; digests must agree.",
)
@click.option(
    "--solver", "commands", multiple=True, metavar="'CMD {file}'", help="One more solver, run once per file."
)
@click.option(
    "--answers",
    "answer_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Offline results, lines 'NNNN answer'; each file counts as one solver.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
@click.option("--jobs", default=2, type=click.IntRange(1, 256), help="Solver processes at a time.")
@click.option("--trusted-base", is_flag=True, help="List everything that the verdict rests on.")
@click.option(
    "--policy", "policy_path", type=click.Path(path_type=Path), help="What you accept (policy.json)."
)
def main(
    bundle: Path,
    plan_path: Path | None,
    commands: tuple[str, ...],
    answer_files: tuple[Path, ...],
    as_json: bool,
    jobs: int,
    trusted_base: bool,
    policy_path: Path | None,
) -> None:
    """Check a certificate BUNDLE without trusting whoever made it.

    Exit codes: 0 valid, every output PROVED; 1 refuted or invalid; 2 usage; 3 unknown, incomplete or solvers
    disagree; 4 solver missing; 5 malformed input.
    """
    try:
        code, lines, detail = check(
            bundle, plan_path, commands, answer_files, jobs, trusted_base, policy_path
        )
    except Rejected as error:
        code, lines, detail = 1, [f"INVALID: {error}"], {"obligation": error.number}
    except (CheckerError, RecursionError) as error:
        code = error.code if isinstance(error, CheckerError) else 5
        kind = {3: "UNKNOWN", 4: "SOLVER MISSING"}.get(code, "MALFORMED")
        lines, detail = [f"{kind}: {str(error) or 'nested too deeply'}"], {}
    lines = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
    if as_json:
        click.echo(
            json.dumps({"exit_code": code, "verdict": lines[-1], "lines": lines, **detail}, sort_keys=True)
        )
    else:
        click.echo("\n".join(lines))
    sys.exit(code)


def check(
    bundle: Path,
    plan_path: Path | None,
    commands: tuple[str, ...],
    answer_files: tuple[Path, ...],
    jobs: int,
    base: bool,
    policy_path: Path | None,
) -> tuple[int, list[str], dict[str, Any]]:
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
    if not policy.reductions and examined.algebra:
        raise Undecided("the policy does not accept shape reduction, on which algebra stages rest")
    replayed = witnesses(plan, data, examined.claimed)
    compared = policy.reports and compare(examined, proof, data, replayed)
    refuted = {output: shown(replay) for output, replay in replayed.items()}
    chosen = solvers(commands)
    answers = {
        f"the answers in {p.name}": read_answers(read_file(p, str(p)).decode("utf-8", "replace"), p.name)
        for p in answer_files
    }
    if len(chosen) + len(answers) < policy.confirmations:
        there = ", ".join([*chosen, *answers]) or "none"
        raise SolverMissing(f"{policy.confirmations} solvers must confirm, there is {there}")
    answers |= replay(examined.files, chosen, jobs)
    verified = kernel.conclude(examined, answers, policy.confirmations, refuted)
    code, last = final_line(verified)
    lines = report(examined, verified, answers, proof, SAME if compared else NOT_COMPARED)
    if base:
        lines = trusted(plan, proof, examined.files.values(), list(answers), bool(refuted)) + lines
    outputs = [vars(o) for o in verified.outputs]
    return (
        code,
        [*lines, last],
        {
            "outputs": outputs,
            "digest": plan.digest,
            "invariant": not verified.invariant,
            "states": states(plan),
            "given": list(plan.given),
            "constants": list(plan.constants),
        },
    )
