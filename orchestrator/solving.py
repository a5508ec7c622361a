"""Unsat cores: which premises an obligation needs, found and minimised in this process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import cvc5
import z3

Answer = Literal["unsat", "sat", "unknown"]
#: Deterministic limits: solver steps, not seconds, decide what is given up.
Z3_RLIMIT = 60_000_000
CVC5_RLIMIT = 4_000_000


@dataclass
class Cores:
    """Cores by obligation text; finished ones are appended to a journal, so that a killed run loses none."""

    journal: Path | None = None
    _known: dict[str, tuple[int, ...] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.journal is None or not self.journal.exists():
            return
        for line in self.journal.read_text("ascii").splitlines():
            try:
                key, core = json.loads(line)
            except ValueError:
                continue  # the line that a kill cut short
            self._known[key] = None if core is None else tuple(core)

    def core(self, text: str) -> tuple[int, ...] | None:
        """Positions of the premises that refute the goal (minimised), or ``None`` if that was not shown."""
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._known:
            found = minimal_core(text)
            self._known[key] = found
            if self.journal is not None:
                with self.journal.open("a", encoding="ascii") as out:
                    out.write(json.dumps([key, None if found is None else list(found)]) + "\n")
        return self._known[key]


def minimal_core(text: str) -> tuple[int, ...] | None:
    """z3's minimised core of a file whose last assertion is the negated goal."""
    assertions = list(z3.parse_smt2_string(text))
    solver = z3.Solver()
    solver.set("rlimit", Z3_RLIMIT)
    solver.set("core.minimize", True)
    goal = assertions.pop()
    solver.add(goal)
    markers = [z3.Bool(f"premise!{i}") for i in range(len(assertions))]
    for marker, assertion in zip(markers, assertions, strict=True):
        solver.add(z3.Implies(marker, assertion))
    if solver.check(*markers) != z3.unsat:
        return None
    position = {m.get_id(): i for i, m in enumerate(markers)}
    core = sorted(position[m.get_id()] for m in solver.unsat_core())
    return tuple(_delete(markers, solver, core))


def _delete(markers: Sequence[z3.BoolRef], solver: z3.Solver, core: list[int]) -> list[int]:
    """Deletion pass: z3's own minimisation is not always minimal across theories."""
    kept = list(core)
    for i in core:
        if len(kept) > 60:
            break
        rest = [k for k in kept if k != i]
        if solver.check(*(markers[k] for k in rest)) == z3.unsat:
            kept = rest
    return kept


def confirm_z3(text: str) -> Answer:
    """z3's answer for a finished file."""
    solver = z3.Solver()
    solver.set("rlimit", Z3_RLIMIT)
    solver.from_string(text)
    answer = solver.check()
    return "unsat" if answer == z3.unsat else "sat" if answer == z3.sat else "unknown"


def confirm_cvc5(text: str) -> Answer:
    """cvc5's answer for a finished file, parsed strictly."""
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
