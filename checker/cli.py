"""`tv-check`: reads a bundle, runs the kernel and the solvers, and says what was found."""

from __future__ import annotations

import itertools
import json
import sys
import time
from _thread import start_new_thread
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock
from typing import Any

import click

from . import kernel
from .endings import ending, prepare, version
from .errors import CheckerError, Malformed, Rejected, SolverMissing, Undecided, need
from .reading.bundle import read_bundle, read_file, read_plan_file
from .reading.plan import read_plan
from .reading.proof import read_manifest, read_proof
from .reading.strict import integer, members, read_json
from .refuting.witnesses import witnesses
from .report.details import details
from .report.render import NOT_COMPARED, SAME
from .report.verdict import final_line, report, shown
from .reporting import compare
from .run.tie import tied
from .solvers import Offline, independent, joined, obligations_digest, read_answers, replay, solvers

EVERY = 5.0
"""Seconds between two lines of progress."""


class Progress:
    """What the command does, on standard error every few seconds."""

    def __init__(self) -> None:
        self.phase, self.total = "reading", 0
        self._count, self._done = itertools.count(1), 0

    def tick(self) -> None:
        self._done = next(self._count)

    @contextmanager
    def shown(self, quiet: bool) -> Iterator[None]:
        over, talking, start = Event(), Lock(), time.monotonic()

        def beat() -> None:
            with suppress(MemoryError, OSError):
                while not over.wait(EVERY):
                    with talking:
                        if not over.is_set():
                            self._say(time.monotonic() - start)

        if not quiet:
            with suppress(RuntimeError):  # no thread; `Thread.start` waits for ever for one without memory
                start_new_thread(beat, ())
        try:
            yield
        finally:
            with talking:
                over.set()

    def _say(self, seconds: float) -> None:
        count = f", {self._done} of {self.total} answers" if self.total else ""
        click.echo(f"tv-check: {self.phase}{count}, {seconds:.0f} s", err=True)


@dataclass(frozen=True)
class Policy:
    """What the caller accepts. The default is strict."""

    confirmations: int = 2
    reductions: bool = True
    reports: bool = True
    safety: bool = False


def read_policy(path: Path) -> Policy:
    known = "confirmations shape_reduction reports safety"
    item = members(read_json(read_file(path, "policy"), "policy"), "policy", "", known)
    flags = [item.get(name, name != "safety") for name in known.split()[1:]]
    need(all(isinstance(f, bool) for f in flags), "policy: all but confirmations is true or false")
    return Policy(integer(item.get("confirmations", 2), "policy: confirmations", 1, 10), *flags)


UNNAMED = "a solver that is not named"


def read_offline(path: Path, files: Mapping[str, bytes]) -> Offline:
    """A file of answers, which must be about these obligations. All files that name no solver are of one."""
    found = read_answers(read_file(path, str(path)).decode("utf-8", "replace"), path.name)
    if found.obligations not in ("", obligations_digest(files)):
        raise Malformed(f"{path.name}: these answers are about the obligations of another bundle")
    return found._replace(solver=independent(found.solver) if found.solver else UNNAMED)


def itself() -> list[str]:
    """What a checker that is one file says of itself: it may have come with the bundle."""
    program = Path(__file__).parents[1]
    if not program.is_file():
        return []
    digest = sha256(program.read_bytes()).hexdigest()
    return [
        f"this checker: {program.name}, SHA-256 {digest}. If it came with the bundle, compare this with the "
        "release of TrainVerify, or get the checker from there: whoever made the bundle could have changed it"
    ]


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
    help="Answers of a solver that ran elsewhere, as the bundle's run.sh writes them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
@click.option("--jobs", default=2, type=click.IntRange(1, 256), help="Solver processes at a time.")
@click.option("--trusted-base", is_flag=True, help="List everything that the verdict rests on.")
@click.option(
    "--fingerprint",
    "records",
    type=click.Path(path_type=Path),
    help="Records of the launch, one per rank, that must be of this plan.",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="A sharded checkpoint that must have the states of this plan, laid out alike.",
)
@click.option(
    "--policy", "policy_path", type=click.Path(path_type=Path), help="What you accept (policy.json)."
)
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
@version
@ending("tv-check")
def main(
    bundle: Path,
    plan_path: Path | None,
    commands: tuple[str, ...],
    answer_files: tuple[Path, ...],
    as_json: bool,
    jobs: int,
    trusted_base: bool,
    policy_path: Path | None,
    records: Path | None,
    checkpoint: Path | None,
    quiet: bool,
) -> None:
    """Check a certificate BUNDLE without trusting whoever made it.

    Exit codes: 0 valid, every output PROVED; 1 refuted, unsafe, invalid, or of another run; 2 usage;
    3 unknown, incomplete or solvers disagree; 4 solver missing; 5 malformed input; 6 cannot go on (disk,
    memory); 130 interrupted; 143 terminated.
    """
    progress = Progress()
    try:
        with progress.shown(quiet):
            run = records, checkpoint
            code, lines, detail = check(
                bundle, plan_path, commands, answer_files, jobs, trusted_base, policy_path, run, progress
            )
    except Rejected as error:
        code, lines, detail = 1, [f"INVALID: {error}"], {"obligation": error.number}
    except (CheckerError, RecursionError) as error:
        code = error.code if isinstance(error, CheckerError) else 5
        kind = {1: "FOREIGN", 3: "UNKNOWN", 4: "SOLVER MISSING"}.get(code, "MALFORMED")
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
    run: tuple[Path | None, Path | None],
    progress: Progress,
) -> tuple[int, list[str], dict[str, Any]]:
    """Exit code, lines to print, members for `--json`."""
    prepare()
    policy = read_policy(policy_path) if policy_path else Policy()
    data = read_bundle(bundle)
    manifest = read_manifest(data)
    plan = read_plan(data["plan.json"])
    given = read_plan_file(plan_path) if plan_path else data["plan.json"]
    if given != data["plan.json"]:
        read_plan(given)  # which may be malformed
        raise Rejected(1, "the bundle's plan is not the plan you gave")
    notes = tied(plan, *run)
    proof = read_proof(data["proof.json"], data["plan.json"])
    progress.phase = "examining"
    examined = kernel.examine(manifest, plan, proof, data)
    if not policy.reductions and examined.algebra:
        raise Undecided("the policy does not accept shape reduction, on which algebra stages rest")
    replayed = witnesses(plan, data, examined.claimed)
    compared = policy.reports and compare(examined, proof, data, replayed)
    refuted = {output: shown(replay) for output, replay in replayed.items()}
    chosen = solvers(commands)
    offline = {p.name: read_offline(p, examined.files) for p in answer_files}
    sources = [(independent(name), name) for name in chosen] + [(f.solver, n) for n, f in offline.items()]
    there = list(dict.fromkeys(solver for solver, _ in sources))
    if examined.files and len(there) < policy.confirmations:
        raise SolverMissing(
            f"{policy.confirmations} solvers must confirm, there is {', '.join(there) or 'none'}"
        )
    told = [(f.solver, f.answers) for f in offline.values()]
    progress.phase, progress.total = "solving", len(chosen) * len(examined.files)
    replayed_answers = replay(examined.files, chosen, jobs, progress.tick)
    told += [(independent(name), given) for name, given in replayed_answers.items()]
    answers = joined([(solver, {}) for solver in there] + told)
    verified = kernel.conclude(examined, answers, policy.confirmations, refuted)
    code, last = final_line(verified, examined.safe)
    if policy.safety and examined.safe is None and code == 0:
        raise Undecided("the policy wants a schedule that is shown to be safe, and the plan has none")
    who = [f"trusted for the answers of {independent(name)}: {name}, which ran here" for name in chosen]
    who += [
        f"trusted for the answers of {f.solver}: whoever made {name}{f' (of {f.version})' * bool(f.version)}"
        for name, f in offline.items()
    ]
    who.append(f"bundle {manifest.members[manifest.root]}, the SHA-256 of {manifest.root}")
    note = SAME if compared else NOT_COMPARED
    lines = report(examined, verified, answers, proof, note, [*who, *itself()])
    detail = details(examined, verified, answers, proof, bool(refuted))
    detail |= {"policy": vars(policy), "bundle": manifest.members[manifest.root]}
    if base:
        lines = [f"trusted: {line}" for line in detail["trusted_base"]] + lines
    return code, [*lines, *notes, last], detail
