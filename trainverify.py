"""TrainVerify from Python: does a distributed training plan compute what the single-device model says?

    import trainverify as tv

    verdict = tv.verify("plan.json.gz")
    assert verdict, verdict.report

:func:`capture` makes a plan from a PyTorch training step, :class:`ProgramBuilder` and :func:`build_plan`
from hand-written programs, :func:`load` from a file. :func:`verify` answers; :func:`emit` and :func:`check`
are its two halves: the first writes a certificate, the second decides about one without trusting the first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.bundle.bundle import OutputVerdict
from certificates.plan.placements import Partial, Replicate, Shard
from certificates.plan.plan import Plan
from certificates.plan.reading import load
from certificates.plan.writing import dump
from orchestrator.children import Checked, run_checker
from orchestrator.emission import Emission
from orchestrator.emit import emit as emission

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from orchestrator.capture import Definition
    from orchestrator.capture.fingerprint import Fingerprint

__all__ = [
    "Emission", "Kind", "OutputVerdict", "Partial", "Plan", "ProgramBuilder", "Replicate", "Shard", "Verdict",
    "build_plan", "capture", "check", "dump", "emit", "fingerprint", "load", "verify",
]  # fmt: skip


class Kind(Enum):
    """The three verdicts. UNKNOWN is never success."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Verdict:
    """What the checker found. True in a condition only if every output is proved.

    ``bundle`` is the certificate, if it was kept; ``report`` is the checker's text, the verdict last.
    """

    kind: Kind
    outputs: tuple[OutputVerdict, ...]
    report: str
    exit_code: int
    bundle: Path | None

    def __bool__(self) -> bool:
        return self.kind is Kind.PROVED


def capture(
    definition: Definition, *, jobs: int | None = None, report: Callable[[str], None] | None = None
) -> Plan:
    """The plan of a PyTorch training step (``docs/capture.md``; needs the extra ``trainverify[torch]``)."""
    from orchestrator.capture import capture as traced

    return traced(definition, jobs=jobs, report=report)


def fingerprint(
    definition: Definition, plan: Plan | Path | str, group: ProcessGroup | None = None
) -> Fingerprint:
    """Compare a real job with a certified plan; every rank calls it once, before training and before CUDA.

    Each rank traces itself under fake tensors; one small all-gather later all know whether all agree. A
    difference
    raises on every rank and names the rank and the op (needs the extra ``trainverify[torch]``).
    """
    from orchestrator.capture.fingerprint import fingerprint as traced

    return traced(definition, plan, group)


def emit(
    plan: Plan | Path | str,
    out: Path | str,
    *,
    solve: bool = True,
    jobs: int | None = None,
    witness_seconds: float = 30.0,
    answers: Path | str | None = None,
    core_solver: str | None = None,
    about: Mapping[str, str] | None = None,
    force: bool = False,
) -> Emission:
    """Write the certificate of a plan to the folder ``out``; whether it holds, :func:`check` says.

    Without ``solve`` no solver is asked. ``answers`` is a file that keeps solver answers for the next
    emission, ``core_solver`` the command of a solver that chooses premises, ``about`` what is said of the
    run. Only with ``force`` the certificate of another plan is replaced; what is no certificate never is.
    """
    problem = plan if isinstance(plan, Plan) else load(plan)
    return emission(
        problem, out, solve=solve, jobs=jobs, witness_seconds=witness_seconds, answers=answers,
        core_solver=core_solver, about=about, force=force,
    )  # fmt: skip


def verify(
    plan: Plan | Path | str,
    *,
    jobs: int | None = None,
    out: Path | str | None = None,
    witness_seconds: float = 30.0,
    force: bool = False,
) -> Verdict:
    """Prove or refute a plan: write a certificate (to ``out``, or to a scratch folder) and check it."""
    with ExitStack() as stack:
        folder = Path(out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tv-")), "bundle"))
        emit(plan, folder, jobs=jobs, witness_seconds=witness_seconds, force=force)
        verdict = check(folder, jobs=jobs)
    return verdict if out else replace(verdict, bundle=None)


def check(bundle: Path | str, *, jobs: int | None = None) -> Verdict:
    """The independent checker's verdict about a certificate; it runs as a process of its own."""
    checked = run_checker(Path(bundle), *(["--jobs", str(jobs)] if jobs else []))
    return Verdict(_kind(checked), checked.outputs, "\n".join(checked.lines), checked.exit_code, Path(bundle))


def _kind(checked: Checked) -> Kind:
    """A bundle that is invalid (also exit code 1) says nothing about the plan."""
    if checked.exit_code == 0:
        return Kind.PROVED
    refuted = checked.exit_code == 1 and any(o.verdict == "REFUTED" for o in checked.outputs)
    return Kind.REFUTED if refuted else Kind.UNKNOWN
