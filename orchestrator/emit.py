"""From a plan to a bundle on disk: relate, prove, confirm, look for a witness against what is left, write.

Fails closed: an output is called PROVED only if every claimed fact has a stage and z3 and cvc5 both refuted
every file that these stages rest on.
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from certificates.bundle.about import checked_about
from certificates.bundle.bundle import (
    CHECKER,
    Bundle,
    NotABundle,
    OutputVerdict,
    Status,
    Word,
    certified,
    check_replaceable,
    write,
)
from certificates.canonical import digest
from certificates.errors import FormatError
from certificates.plan.calls import Site
from certificates.plan.checking import check_plan
from certificates.plan.functions import inline
from certificates.plan.plan import Plan
from certificates.plan.writing import dumps
from certificates.proof.when import with_when
from certificates.words import clean

from .children import schedule_said
from .early import early
from .emission import Emission
from .errors import NoAnswer, SolverMissing, Unproved
from .ghosts.adding import Added, with_ghosts
from .progress import Progress
from .proving.assembly import Assembled, Obligation
from .proving.engine import Engine, Judge, Plausibility, anything
from .proving.lemmas import Lemma, Prover
from .proving.reuse import Kept
from .relating.hints import Hints, Missing
from .room import for_numpy, is_memory
from .scheduling import when
from .solving.confirming import Confirming
from .solving.journal import Journal
from .solving.premises import AllPremises, CoreFinder
from .standalone import licence, standalone

if TYPE_CHECKING:
    from .refuting.diagnose import Prove
    from .refuting.witnessing import Refutation

_REASON = 900
#: Of a plan, related and proved on a slow machine: what is tried may not depend on the clock.
_OPS_PER_SECOND = 250
#: Python's frames for a sum of a thousand summands, each added to those before it.
FRAMES = 30_000
UNSOLVED = "all of its obligations are written, none is solved (--no-solve)"


@contextmanager
def _many_frames() -> Iterator[None]:
    """Sums are gone into as deeply as they are nested; Python's own calls are not on C's stack."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@_many_frames()
def emit(
    plan: Plan,
    out: Path | str,
    *,
    solve: bool = True,
    jobs: int | None = None,
    witness_seconds: float = 30.0,
    progress: Progress | None = None,
    answers: Path | str | None = None,
    core_solver: str | None = None,
    force: bool = False,
    about: Mapping[str, str] | None = None,
) -> Emission:
    """Write the bundle of ``plan`` to the folder ``out``, or to an archive ``X.tar``.

    Raises ``NotABundle`` if something else is there, which no option gives up, or, without ``force``, the
    bundle of another plan; :class:`ForeignFile` if a file to keep answers in is not one of ours;
    :class:`SolverMissing`; :class:`NoAnswer`.

    ``answers`` is a file of solver answers that is used and added to: after an edit of the plan, solvers are
    asked only for what changed. The bundle is the same without it. ``core_solver`` is the command of another
    SMT-LIB solver that chooses the premises of each obligation; z3 and cvc5 confirm these all the same.
    ``about`` is what is said of the run (``certificates.bundle.about``); it stands apart from what is proved.
    ``witness_seconds`` are counted in steps: a slower machine takes longer, and writes the same bundle.
    """
    out = Path(os.path.abspath(out))
    canonical = digest(dumps(plan))
    _check_out(out, canonical, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = Path(answers) if answers is not None else None
    journal = Journal((kept or out.with_name(f"{out.name}.journal")) if solve else None)
    resumed = len(journal)
    solving = _solving(journal, jobs, core_solver) if solve else _Solving(AllPremises())
    judge = anything if solve else _on_samples
    store = Kept(journal, plan, solving.versions) if solve and kept is not None else None
    run = _Run(plan, solving, judge, progress or Progress(), store)

    timed = cache(partial(when, plan))

    def bundled(proof: Assembled, refutation: Refutation | None) -> Bundle:
        happens = timed()
        return Bundle(
            plan,
            proof.document if happens is None else with_when(proof.document, happens),
            {o.file: o.text for o in proof.obligations},
            tuple(run.verdict(i, refutation) for i in range(len(plan.outputs))),
            solving.status,
            refutation.witness if refutation else None,
            checked_about(about) if about else None,
            solvers=solving.solvers,
            companions={CHECKER: standalone(), "LICENSE": licence()},
        )

    with early() as ahead, solving.confirming or nullcontext():
        begin = (lambda proof: ahead.begin(bundled(proof, None))) if solving.jobs > 1 else None
        proof = run.again() or run.anew(begin)
        refutation = run.refute(witness_seconds)
        missing = run.missing(refutation, witness_seconds)
        bundle = bundled(proof, refutation)
        with run.progress.phase("write"):
            _check_out(out, canonical, force)  # another emission may have been here
            said = dict[str, bytes]()

            def reports(folder: Path) -> dict[str, bytes]:
                said.update(ahead.reports(bundle, folder))
                return said

            write(bundle, out, reports)
    asked = len(journal) - resumed
    if kept is None:
        journal.delete()
    return Emission(
        out, bundle.verdicts, solve, len(plan.outputs) - len(run.why), *proof.size, len(proof.obligations),
        canonical, resumed, asked, run.progress.seconds, _peak_mib(),
        refutation.cause.to_json(plan) if refutation and refutation.cause else None, missing,
        schedule_said(said["report.txt"]) if plan.schedule else "",
    )  # fmt: skip


def _check_out(out: Path, plan: str, force: bool) -> None:
    """Raise ``NotABundle`` if the bundle of this plan may not be written there."""
    check_replaceable(out)
    if not force and certified(out) not in (None, plan):
        raise NotABundle(f"{out} is the bundle of another plan: another --out, or --force to replace it")


def provable(plan: Plan) -> bool:
    """Whether a proof of every output is found; nothing is confirmed or written."""
    try:
        return _provable(plan, range(len(plan.outputs)), _solving(Journal(), 1).cores)
    except SolverMissing:
        return False


# What evaluates plans in numbers is loaded where it is needed: a proof needs none of it.


def _on_samples(plan: Plan) -> Plausibility:
    """Whether a fact holds on some inputs, as far as floating point shows."""
    for_numpy()
    from .refuting.plausible import Plausible

    return Plausible(plan)


def _witness(plan: Plan, facts: Sequence[tuple[int, int]], seconds: float, prove: Prove) -> Refutation | None:
    """Inputs on which one of these facts about outputs fails."""
    for_numpy()
    from .refuting.witnessing import refute

    return refute(inline(plan), facts, seconds, prove)


def _provable(plan: Plan, outputs: Sequence[int], cores: CoreFinder) -> bool:
    """Whether a proof of these outputs is found; nothing is confirmed or written."""
    try:
        check_plan(plan)
    except FormatError:
        return False

    def found(ghosts: Added | None = None, in_digits: bool = False) -> bool:
        engine = Engine(plan, cores, ghosts=ghosts, in_digits=in_digits)
        if _attempt(engine.relate):
            return False
        claims = engine.claims()
        if not any(_attempt(partial(engine.prove, n)) for i in outputs for n in claims[i]):
            return True
        return engine.passed_over and found(ghosts, True)

    return found() or ((ghosts := _ghosts(plan)) is not None and found(ghosts))


@dataclass(frozen=True)
class _Solving:
    """How obligations are solved: not at all without a journal."""

    cores: CoreFinder
    journal: Journal | None = None
    confirming: Confirming | None = None
    versions: str = ""
    jobs: int = 1
    solvers: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return "unknown" if self.journal is None else "unsat"

    def refused(self, obligations: Sequence[Obligation], progress: Progress) -> dict[str, str]:
        """What the solvers say of the files that they do not both refute."""
        if self.confirming is None:
            return {}
        texts = [o.text for o in obligations]
        with progress.phase("confirm"):
            answers = self.confirming.answers(texts, progress.step)
        return {o.file: str(a) for o, a in zip(obligations, answers, strict=True) if not a.unsat}


def _solving(journal: Journal, jobs: int | None, core_solver: str | None = None) -> _Solving:
    """Solvers are loaded here only: without solving none needs to be there."""
    try:
        from .solving.cores import SOLVERS, VERSIONS, Cores
    except Exception as error:  # z3 raises one of its own where its library cannot be loaded
        raise SolverMissing(f"{error}; --no-solve writes the obligations without solvers") from error
    jobs = jobs or os.cpu_count() or 1
    if core_solver is None:
        return _Solving(Cores(journal), journal, Confirming(journal, VERSIONS, jobs), VERSIONS, jobs, SOLVERS)
    from .solving.command_cores import CommandCores

    cores, versions = CommandCores.of(core_solver, journal), f"{VERSIONS}, {core_solver}"
    return _Solving(cores, journal, Confirming(journal, versions, jobs), versions, jobs, SOLVERS)


@dataclass
class _Run:
    """The state of one emission; ``why`` says of an output relation why it is not proved, ``lacks`` at which
    op a stage is missing."""

    plan: Plan
    solving: _Solving
    judge: Judge
    progress: Progress
    kept: Kept | None
    why: dict[int, str] = field(default_factory=dict)
    lacks: dict[int, Missing] = field(default_factory=dict)
    claims: list[list[int]] = field(default_factory=list)
    engine: Engine = field(init=False)
    #: Was all related in the way that is tried first?
    plainly: bool = True

    def again(self) -> Assembled | None:
        """The proof of all outputs as it was made before, if nothing that it depends on is different."""
        if self.kept is None:
            return None
        with self.progress.phase("relate"):
            found = self.kept.again(self.solving.cores, self.solving.status)
        if found is None or self.solving.refused(found[0].obligations, self.progress):
            return None
        self.kept.keep(found[0].main, found[1])
        return found[0]

    def anew(self, begin: Callable[[Assembled], None] | None = None) -> Assembled:
        """The proof of all outputs that stand; outputs with a file that one solver does not refute fall.
        ``begin`` is told of a proof of all outputs before solvers are asked."""
        self._relate_and_prove()
        if self.why and self.engine.passed_over:
            self._relate_anew(in_digits=True)
        ghosts = _ghosts(self.plan) if self.why else None
        if ghosts is not None:
            self._relate_anew(ghosts)
        while True:
            wanted = [f for i, facts in enumerate(self.claims) if i not in self.why for f in facts]
            with self.progress.phase("assemble"):
                proof = self.engine.proof(wanted, self.solving.status)
            if begin is not None and not self.why:
                begin(proof)
            bad = self.solving.refused(proof.obligations, self.progress)
            if not bad:
                break
            broken = self.engine.fallen(bad)
            for i, facts in enumerate(self.claims):
                fallen = [broken[f] for f in facts if f in broken]
                if i not in self.why and fallen:
                    self.why[i] = fallen[0]
        if self.kept and not self.why and self.plainly:
            self.kept.keep(proof.main, self.engine.lemmas)
        return proof

    def _relate_anew(self, ghosts: Added | None = None, *, in_digits: bool = False) -> None:
        """In another way, if more is proved so."""
        before = self.engine, self.claims, self.why, self.lacks, self.plainly
        self.why, self.lacks = {}, {}
        self._relate_and_prove(ghosts, in_digits)
        if len(self.why) >= len(before[2]):
            self.engine, self.claims, self.why, self.lacks, self.plainly = before

    def _relate_and_prove(self, ghosts: Added | None = None, in_digits: bool = False) -> None:
        """With ``ghosts`` or ``in_digits``, nothing is kept for a later emission: what depends on them is not
        told apart."""
        self.plainly = not (ghosts or in_digits)
        known = self.kept.lemma if self.kept and self.plainly else lambda _function, _assumed: None
        confirming = self.solving.confirming
        ahead = confirming.ahead if confirming is not None else None
        self.engine = Engine(
            *(self.plan, self.solving.cores, self.judge),
            kept=known, ahead=ahead, ghosts=ghosts, in_digits=in_digits,
        )  # fmt: skip
        with self.progress.phase("relate"):
            trouble = _attempt(self.engine.relate)
        self.claims = self.engine.claims()
        hints = hints_of(self.engine)
        with self.progress.phase("prove"):
            for i, facts in enumerate(self.claims):
                reason = trouble or next(filter(None, (_attempt(self._prover(f)) for f in facts)), "")
                if reason:
                    self.why[i] = reason
                    missing = None if trouble else hints.missing(self.plan.outputs[i])
                    self.lacks |= {} if missing is None else {i: missing}
                self.progress.step(i + 1, len(self.claims))

    def _prover(self, number: int) -> Callable[[], None]:
        def prove() -> None:
            self.engine.believe(number)
            self.engine.prove(number)

        return prove

    def refute(self, seconds: float) -> Refutation | None:
        """A witness against one of the outputs without a proof."""
        facts = [(i, k) for i in self.why for k in range(len(self.claims[i]))]
        if not facts or seconds <= 0:
            return None

        def prove(plan: Plan, outputs: Sequence[int]) -> bool:
            """An edited plan is proved if that should take no longer than the search for a witness may."""
            ops = len(plan.specification.ops) + sum(len(c.program.ops) for c in plan.classes)
            if self.solving.journal is None or ops > seconds * _OPS_PER_SECOND:
                return False
            return _provable(plan, outputs, self.solving.cores)

        with self.progress.phase("witness"):
            return _witness(self.plan, facts, seconds, prove)

    def missing(self, refutation: Refutation | None, seconds: float) -> tuple[Mapping[str, object], ...]:
        """The stages that outputs without a verdict lack; the reasons of these say so, in full where one is
        named first."""
        lacks = {i: m for i, m in self.lacks.items() if i in self.why and not _told(refutation, i)}
        if not lacks:
            return ()
        for_numpy()
        from .refuting.missing import grouped

        found = grouped(self.plan, lacks, None if refutation else seconds)
        for said in found:
            first, *others = said.outputs
            self.why[first] = f"{said}; {self.why[first]}"
            for i in others:
                self.why[i] = f"the stage is missing that is told at {self.plan.outputs[first].plan}"
        return tuple(said.to_json(self.plan) for said in found)

    def verdict(self, number: int, refutation: Refutation | None) -> OutputVerdict:
        word: Word = "UNKNOWN"
        if refutation is not None and refutation.output == number:
            word, reason = "REFUTED", refutation.reason
        elif number in self.why and refutation and _told(refutation, number):
            shown = self.plan.outputs[refutation.output].plan
            reason = f"differs on sampled inputs too, from the cause that is told at {shown}"
        elif number in self.why:
            reason = self.why[number]
        elif self.solving.journal is not None:
            word, reason = "PROVED", ""
        else:
            reason = UNSOLVED
        relation = self.plan.outputs[number]
        return OutputVerdict(relation.spec, relation.plan, word, clean(reason)[:_REASON])


def _told(refutation: Refutation | None, output: int) -> bool:
    """Is the output refuted, or one that follows from the cause?"""
    if refutation is None:
        return False
    return output == refutation.output or bool(refutation.cause and output in refutation.cause.outputs)


def hints_of(engine: Prover) -> Hints:
    """What can be said of outputs without a proof."""

    @cache
    def of(lemma: Lemma) -> Hints:
        return hints_of(lemma.engine())

    def inside(site: Site) -> Hints | None:
        return of(engine.called[site]) if site in engine.called else None

    return Hints(engine.plan, engine.knowledge, inside)


def _attempt(task: Callable[[], None]) -> str:
    """Why a task failed, or nothing. Whatever goes wrong inside, it follows that nothing is proved."""
    try:
        task()
    except Unproved as error:
        return str(error) or "no proof was found"
    except NoAnswer:
        raise
    except RecursionError:
        return "the proof is nested too deeply"
    except Exception as error:
        if is_memory(error):
            raise MemoryError from error
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"internal error {type(error).__name__} in {Path(at.filename).name}:{at.lineno}: {error}"
    return ""


def _ghosts(plan: Plan) -> Added | None:
    """The plan with tensors that only a proof has; ``None`` where nothing could be gained by that."""
    found: list[Added | None] = []
    _attempt(lambda: found.append(with_ghosts(plan)))
    return found[0] if found else None


def _peak_mib() -> float:
    """Largest resident set so far, of this process or of one of its children."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    sets = [resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return max(sets) * unit / (1 << 20)
