"""The first rank, traced once more in a process of its own: what one process decides is no program.

Ranks are traced in forks of the process that loaded the user's file. In a job each rank loads it, and the
order of a set of texts, a text's hash, and what is random while a file is loaded are others in each.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..children import command
from .errors import CaptureError, StateError
from .fitting import summarise
from .lowering import RankProgram
from .processes import quiet
from .refusals import guarded
from .steps import by_use, content, described
from .tracing import trace
from .userfile import load_definition

RANK = 0
_ALIKE = (
    "sorted(names) for the order of a set; random numbers with a seed, or as an entry of the batch; nothing "
    "that hash() of a text decides"
)


class Elsewhere:
    """A trace that runs beside this process."""

    def __init__(self, child: subprocess.Popen[bytes], out: Path) -> None:
        self._child, self._out = child, out

    def differs(self, here: RankProgram) -> CaptureError | None:
        """What another process does otherwise, or that nothing is known of it."""
        _, said = self._child.communicate()
        if self._child.returncode:
            last = said.decode("utf-8", "replace").strip().splitlines()[-1:]
            return CaptureError(
                f"it cannot be traced in a process of its own: {last[0] if last else 'it says nothing'}"
            ).at_rank(RANK)
        there: RankProgram = pickle.loads(self._out.read_bytes())
        if by_use(here) == by_use(there):
            return None
        pairs = itertools.zip_longest(here.drafts, there.drafts)
        one, other = next(
            ((a, b) for a, b in pairs if not a or not b or content(a) != content(b)), (None, None)
        )
        words = [described(draft) if draft else "nothing more" for draft in (one, other)]
        problem = StateError(
            f"one process runs {words[0]} where another one runs {words[1]}: in a job every rank is one",
            frame=one.frame if one else None,
            instead=_ALIKE,
        )
        return problem.at_rank(RANK)


@contextmanager
def elsewhere(file: Path, settings: Mapping[str, object]) -> Iterator[Elsewhere]:
    """Begin the trace; at the end it is ended, if nobody waited for it."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    with tempfile.TemporaryDirectory(prefix="tv-capture-") as folder:
        out = Path(folder) / "program"
        words = command(__name__, "main", str(file), json.dumps(dict(settings)), str(out))
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": seed}, start_new_session=True,
        )  # fmt: skip
        try:
            yield Elsewhere(child, out)
        finally:
            child.kill()
            child.wait()
            assert child.stderr is not None
            child.stderr.close()


def main() -> None:
    """Trace the rank, and write its program to a file."""
    file, settings, out = sys.argv[1:]
    try:
        with quiet(repeated=True), guarded():
            traced = summarise(trace(load_definition(Path(file), json.loads(settings)), RANK))
    except CaptureError as error:
        sys.exit(str(error).splitlines()[0])
    Path(out).write_bytes(pickle.dumps(traced.program))
