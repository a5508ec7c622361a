"""Whole definitions: captured, run by gloo processes that stay alive, every number compared."""

from __future__ import annotations

import gc
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from certificates.plan.functions import inline
from orchestrator.capture import capture
from orchestrator.capture import definition as protocol
from orchestrator.capture.errors import CaptureError, DefinitionError, DisagreementError, RunError
from orchestrator.capture.processes import quiet
from orchestrator.capture.running import compare
from orchestrator.capture.tracing import trace
from orchestrator.capture.userfile import load_definition
from orchestrator.capture.workers import Workers

from . import definitions
from .definitions import Definition, smaller
from .functions import Outcome

STEPS = 3
#: Seeds whose single device is traced before processes are forked.
WARMING = range(100, 116)


def _load(path: object) -> protocol.Definition:
    return load_definition(Path(str(path)))


class Pool:
    """Workers by number of ranks; those that a program left in a mess are replaced."""

    def __init__(self) -> None:
        self._workers: dict[int, Workers] = {}
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Pool:
        """Every rank is traced in a child of this process: what it has loaded and cached, they all have."""
        for seed in WARMING:
            with suppress(CaptureError), quiet(repeated=True):
                trace(self._loaded(definitions.write(seed)), None)
        gc.freeze()  # children that collect garbage copy less
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for workers in self._workers.values():
            workers.__exit__(None, None, None)
        self._folder.cleanup()

    def check(self, definition: Definition) -> Outcome:
        """Capture, run, compare. A plan without a run to compare with is ``invalid``."""
        path = self._path(definition)
        try:
            loaded = self._loaded(definition)
            plan = inline(capture(loaded, jobs=2, root=path.parent))
        except DefinitionError as error:
            return Outcome("invalid", str(error), rules=("definition",))
        except CaptureError as error:
            return Outcome("refused", str(error), refused=1, rules=(_rule(error),))
        ranks = plan.mesh.ranks
        if ranks not in self._workers:
            self._workers[ranks] = Workers(ranks, _load).__enter__()
        try:
            found = compare(plan, self._workers[ranks], path, steps=STEPS, seed=definition.seed)
        except (RunError, DisagreementError) as error:
            self._workers.pop(ranks).__exit__(None, None, None)
            kind = "differs" if isinstance(error, DisagreementError) else "invalid"
            return Outcome(kind, str(error), 1, rules=("run",) if kind == "invalid" else ())
        if found.precision != "float64":
            return Outcome("differs", f"largest difference {found.largest}", found.numbers)
        return Outcome("agrees", "", found.numbers)

    def _path(self, definition: Definition) -> Path:
        return Path(self._folder.name) / f"fuzz_{definition.seed}.py"

    def _loaded(self, definition: Definition) -> protocol.Definition:
        self._path(definition).write_text(definition.source(), encoding="utf-8")
        return _load(self._path(definition))

    def shrunk(self, definition: Definition) -> Definition:
        changed = True
        while changed:
            changed = False
            for candidate in smaller(definition):
                if self.check(candidate).kind == "differs":
                    definition, changed = candidate, True
                    break
        return definition


def _rule(error: CaptureError) -> str:
    failed = re.findall(r"(\w+(?:\.\w+)*(?:Error|Exception)[^\n]{0,80})", error.message)
    return " ".join([error.rule, error.op or "", error.message.split("\n")[0][:60], *failed[-1:]])
