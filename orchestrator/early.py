"""Reports that are written while the obligations of their bundle are confirmed.

The checker that writes them asks no solver, and no solver reads a report, so both can be done at a time. What
was begun early counts only if the bundle came out as expected.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from certificates.bundle.bundle import Bundle, put
from certificates.plan.plan import Plan

from .children import reporting, unaccepted, write_reports
from .errors import Unaccepted


class Early:
    """The reports of one bundle, begun before it is known that its obligations hold."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._expected: Bundle | None = None
        self._end: Callable[[], dict[str, bytes]] = dict

    def begin(self, bundle: Bundle) -> None:
        """Let the checker report on ``bundle``, as it will be if solvers refute all of its obligations."""
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tv-early-")))
        put(bundle.files(), folder)
        self._end = self._stack.enter_context(reporting(folder))
        self._expected = bundle

    def reports(self, bundle: Bundle, folder: Path) -> dict[str, bytes]:
        """The reports of ``bundle``, which lies in ``folder`` without any.

        Raises :class:`Unaccepted` if they say that it does not hold, of one that claims anything.
        """
        said = self._end() if bundle == self._expected else write_reports(folder)
        claims = any(v.verdict != "UNKNOWN" for v in bundle.verdicts)
        if claims and (why := unaccepted(said["report.txt"])):
            raise Unaccepted(f"{why}{_line(bundle.plan, why)}{_instead(why)}")
        return said


_ADVICE = {
    "an infinite literal reaches": "a finite number for the mask, as torch.finfo(x.dtype).min; minus "
    "infinity may go into a softmax, and no further",
}
#: How the checker names an op that it refuses.
_OP = re.compile(r"\b(?:specification|class (?P<cls>[^\s,;]+)), op (?P<value>%\d+)")


def _line(plan: Plan, why: str) -> str:
    """The user's line of the op that is named, if one is."""
    found = _OP.search(why)
    if found is None:
        return ""
    cls = found["cls"]
    program = plan.by_class[cls].program if cls in plan.by_class else None if cls else plan.specification
    ops = program.ops if program is not None else ()
    loc = next((op.loc for op in ops if op.out == found["value"]), None)
    return f"; that is {plan.sources[loc.source]}:{loc.line} in {loc.function}" if loc else ""


def _instead(why: str) -> str:
    """What to write in place of what no certificate speaks of."""
    advice = next((said for text, said in _ADVICE.items() if text in why), None)
    return "" if advice is None else f"; write instead: {advice}"


@contextmanager
def early() -> Iterator[Early]:
    """A checker that was begun for nothing is ended."""
    with ExitStack() as stack:
        yield Early(stack)
