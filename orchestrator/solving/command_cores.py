"""Unsat cores from any SMT-LIB solver: a command that takes a file as its last word and prints its answers.

What it says is a guess like any other: z3 and cvc5 confirm the files that keep a core only.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field

from certificates.endings import scratch

from ..errors import NoAnswer, SolverMissing, Unproved
from .journal import Journal, key
from .sexpressions import NotSexp, named, read

#: Wall-clock limit of one question, which ends the whole run: a core that depended on the clock would make
#: another bundle on another day. Limits of its own are options of the command.
SECONDS = 60.0
_BEFORE = "(set-option :print-success false)\n(set-option :produce-unsat-cores true)\n"
_CHECK = "(check-sat)\n"


@dataclass(frozen=True)
class CommandCores:
    """Cores by obligation text, asked of a child process per question.

    Only cores are kept in the journal: the next run of a program may find what this one did not in time.
    """

    words: tuple[str, ...]
    journal: Journal = field(default_factory=Journal)
    seconds: float = SECONDS

    @classmethod
    def of(cls, command: str, journal: Journal) -> CommandCores:
        """The solver of a command line. Raises :class:`SolverMissing` if there is no such program."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise SolverMissing(f"the command {command!r} cannot be read: {error}") from error
        if not words or shutil.which(words[0]) is None:
            raise SolverMissing(f"no program {words[0] if words else command!r} to ask for unsat cores")
        return cls(tuple(words), journal)

    def core(self, text: str) -> tuple[int, ...] | None:
        """Positions of premises that refute the goal, or ``None`` if the solver does not say ``unsat``.

        Raises :class:`Unproved` for everything that is no answer, :class:`NoAnswer` if none comes in time.
        """
        name = key("core of a command", shlex.join(self.words), text)
        names = named(text)
        kept = self.journal.get(name)
        if isinstance(kept, list | tuple):
            return tuple(i for i in kept if isinstance(i, int) and 0 <= i < len(names) - 1)
        core = self._smallest(text, names)
        if core is not None:
            self.journal.put(name, core)
        return core

    def _smallest(self, text: str, names: list[str]) -> tuple[int, ...] | None:
        """A core of the core, until it stays: solvers do not minimise what they print."""
        wanted = set(names)
        while True:
            found = self._asked(_only(text, names, wanted), wanted)
            if found is None:
                # A core that is not refuted again is still one: the solver said so before.
                return None if len(wanted) == len(names) else _positions(names, wanted)
            smaller = found | {names[-1]}
            if len(smaller) == len(wanted):
                return _positions(names, wanted)
            wanted = smaller

    def _asked(self, text: str, names: Collection[str]) -> set[str] | None:
        """The names that the solver prints after ``unsat``; ``None`` after ``sat`` and ``unknown``."""
        said, complained = self._run(_BEFORE + text.replace(_CHECK, f"{_CHECK}(get-unsat-core)\n"))
        try:
            answer = read(said)
        except NotSexp:
            answer = []
        match answer:
            case ["sat" | "unknown", *_]:
                return None
            case ["unsat", [*core]]:
                found = {name for name in core if isinstance(name, str)}
                if len(found) == len(core) and found <= set(names):
                    return found
        shown = " ".join(f"{said} {complained}".split())[:200] or "nothing"
        raise Unproved(f"{shlex.join(self.words)} printed no answer with a core of named premises: {shown}")

    def _run(self, text: str) -> tuple[str, str]:
        """What the solver prints about a file, and its complaints. Its children are killed with it."""
        with scratch("tv-core-") as folder:
            file = folder / "obligation.smt2"
            file.write_text(text, encoding="ascii")
            child = subprocess.Popen(
                [*self.words, str(file)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            try:
                return child.communicate(timeout=self.seconds)
            except subprocess.TimeoutExpired:
                raise NoAnswer(
                    f"{shlex.join(self.words)} has no answer within {self.seconds:g} seconds; "
                    "give the command a limit of its own, in steps rather than seconds"
                ) from None
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.communicate()


def _only(text: str, names: list[str], wanted: Collection[str]) -> str:
    """The file with these assertions; each stands on a line of its own."""
    rest = iter(names)
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("(assert ") or next(rest) in wanted)


def _positions(names: list[str], wanted: Collection[str]) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(names[:-1]) if name in wanted)
