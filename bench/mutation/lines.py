"""Which lines of a package a test executes, in its process and in those that it forks."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .sites import Mutant, Target


@dataclass(frozen=True)
class Test:
    """What one run of a test showed: how many seconds it takes and the lines that it executes, by file."""

    name: str
    seconds: float
    lines: dict[str, list[int]]

    def executes(self, mutant: Mutant) -> bool:
        if not mutant.inside:
            return mutant.file in self.lines
        return any(mutant.first <= line <= mutant.last for line in self.lines.get(mutant.file, ()))


class Lines:
    """The lines of a package that are executed while it is switched on.

    A function that shows no new line for many calls is watched no longer, which can only hide that a test
    executes a line. Forked processes inherit the watch and write what is new to a file.
    """

    def __init__(self, target: Target) -> None:
        self.package, self.patience = target.package, target.calls
        self.seen: dict[str, set[int]] = {}
        self.dull: dict[CodeType, int] = {}
        self.prefix = str(target.package) + os.sep

    def start(self) -> None:
        self.seen.clear()
        self.dull.clear()
        self.owner, self.file = os.getpid(), tempfile.TemporaryFile("a+")  # noqa: SIM115
        threading.settrace(self._called)
        sys.settrace(self._called)

    def stop(self) -> dict[str, list[int]]:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self.file.seek(0)
        for name, _, line in (said.rpartition(":") for said in self.file):
            self.seen.setdefault(name, set()).add(int(line))
        self.file.close()
        return {
            Path(name).relative_to(self.package).as_posix(): sorted(lines)
            for name, lines in self.seen.items()
        }

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self.prefix) or self.dull.get(code, 0) > self.patience:
            return None
        self.dull[code] = self.dull.get(code, 0) + 1
        lines = self.seen.setdefault(code.co_filename, set())

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_lineno not in lines:
                lines.add(frame.f_lineno)
                self.dull[code] = 0
                if os.getpid() != self.owner:
                    os.write(self.file.fileno(), f"{code.co_filename}:{frame.f_lineno}\n".encode())
            return local

        return local
