"""Unsat cores: which premises an obligation needs, found and minimised in this process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import cvc5
import z3

from ..room import for_solver
from .chains import chain
from .journal import Journal, key
from .premises import premises

Answer = Literal["unsat", "sat", "unknown"]
#: Deterministic limits: solver steps, not seconds, decide what is given up.
Z3_RLIMIT = 60_000_000
CVC5_RLIMIT = 4_000_000
#: Steps of a check after which a core is minimised within a limit: what that costs, in such checks.
HARD, CHECKS = 500_000, 4
#: Steps that a check may take in which a premise is left out: without bounds z3 may search for ever.
LEFT_OUT = 200_000
#: What the solvers say of themselves.
SOLVERS = {"z3": z3.get_version_string(), "cvc5": cvc5.__version__}
#: Everything but the text that an answer depends on.
VERSIONS = f"z3 {SOLVERS['z3']} {Z3_RLIMIT}, cvc5 {SOLVERS['cvc5']} {CVC5_RLIMIT}"


@dataclass
class Cores:
    """Minimised cores by obligation text. What the journal holds is a guess: files are solved again."""

    journal: Journal = field(default_factory=Journal)

    def core(self, text: str) -> tuple[int, ...] | None:
        """Positions of the premises that refute the goal (minimised), or ``None`` if that was not shown."""
        known = chain(text)
        if known is not None:
            return known
        name = key("core", SOLVERS["z3"], text)
        if name not in self.journal:
            self.journal.put(name, minimal_core(text))
        found = self.journal.get(name)
        if not isinstance(found, list | tuple):
            return None
        return tuple(i for i in found if isinstance(i, int) and 0 <= i < premises(text))


def _limited(solver: z3.Solver) -> z3.Solver:
    """A solver that gives up after so many steps, and to which Ctrl-C is no reason to answer ``unknown``."""
    solver.set("rlimit", Z3_RLIMIT)
    solver.set("ctrl_c", False)
    return solver


def minimal_core(text: str) -> tuple[int, ...] | None:
    """A minimised core of a file whose last assertion is the negated goal.

    It depends on the text alone: what z3 did before in the same context could change its choice.
    """
    for_solver()
    context = z3.Context()
    assertions = list(z3.parse_smt2_string(text, ctx=context))
    solver = _limited(z3.Solver(ctx=context))
    goal = assertions.pop()
    solver.add(goal)
    markers = [z3.Bool(f"premise!{i}", context) for i in range(len(assertions))]
    for marker, assertion in zip(markers, assertions, strict=True):
        solver.add(z3.Implies(marker, assertion))
    if solver.check(*markers) != z3.unsat:
        return None
    position = {m.get_id(): i for i, m in enumerate(markers)}
    first = _steps(solver)
    core = sorted(position[m.get_id()] for m in solver.unsat_core())  # z3's own minimisation knows no limit
    return tuple(_delete(markers, solver, core, first))


def _steps(solver: z3.Solver) -> int:
    """Solver steps so far: a count, not a time."""
    return int(solver.statistics().get_key_value("rlimit count"))


def _delete(markers: Sequence[z3.BoolRef], solver: z3.Solver, core: Sequence[int], first: int) -> list[int]:
    """What is left of a core after each premise was left out once, if the others refute the goal as well.

    If a check of all premises took many steps, ``first``, all deletions together take as many as some such.
    """
    kept, most = list(core), max(2 * first, LEFT_OUT)
    end = _steps(solver) + CHECKS * first if first > HARD else math.inf
    for i in core:
        left = end - _steps(solver)
        if left <= 0:
            break
        rest = [k for k in kept if k != i]
        solver.set("rlimit", int(min(most, left)))
        if solver.check(*(markers[k] for k in rest)) == z3.unsat:
            kept = rest
    return kept


def confirm_z3(text: str) -> Answer:
    """z3's answer for a finished file, whatever other files it was asked of before."""
    for_solver()
    solver = _limited(z3.Solver(ctx=z3.Context()))
    solver.from_string(text)
    answer = solver.check()
    return "unsat" if answer == z3.unsat else "sat" if answer == z3.sat else "unknown"


def confirm_cvc5(text: str) -> Answer:
    """cvc5's answer for a finished file, parsed strictly."""
    for_solver()
    manager = cvc5.TermManager()
    solver = cvc5.Solver(manager)
    solver.setOption("strict-parsing", "true")
    solver.setOption("rlimit", str(CVC5_RLIMIT))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "obligation.smt2")
    symbols = parser.getSymbolManager()
    answer = "unknown"
    while True:
        command = parser.nextCommand()
        if command.isNull():
            break
        said = str(command.invoke(solver, symbols)).strip()
        if said in ("sat", "unsat", "unknown"):
            answer = said
    return "unsat" if answer == "unsat" else "sat" if answer == "sat" else "unknown"
