"""Source files of a plan: which lines made its ops, by the names that a reader knows."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path

from certificates.plan.program import Loc

from .builder import Draft, Frame
from .lowering import RankProgram

#: Characters of a function's name in a plan.
_FUNCTION = 200


class Sources:
    """Source files by index; names are relative to the user's file, or to where packages are installed.

    A line that several lines of other files call, as in a helper for collectives, says which called it.
    """

    def __init__(self, root: Path, programs: Iterable[RankProgram] = ()) -> None:
        called: dict[Frame | None, set[Frame | None]] = {}
        for draft in (d for p in programs for d in p.drafts):
            called.setdefault(draft.frame, set()).add(draft.caller)
        self._helpers = {frame for frame, callers in called.items() if len(callers) > 1}
        self._roots = (root.resolve(), Path(sysconfig.get_path("purelib")).resolve())
        self._index: dict[str, int] = {}
        self._paths: list[str] = []
        self._shown: dict[str, str] = {}

    def frame(self, loc: Loc | None) -> Frame | None:
        """The line as it was recorded, with the path of its file."""
        return None if loc is None else (self._paths[loc.source], loc.line, loc.function)

    def loc(self, draft: Draft) -> Loc | None:
        frame, caller = draft.frame, draft.caller
        if frame is None:
            return None
        function = frame[2]
        if frame in self._helpers and caller is not None:
            function = f"{function}, called at {self._name(caller)}:{caller[1]} in {caller[2]}"[:_FUNCTION]
        name = self._name(frame)
        self._paths += [frame[0]] if name not in self._index else []
        return Loc(self._index.setdefault(name, len(self._index)), frame[1], function)

    def _name(self, frame: Frame) -> str:
        if frame[0] not in self._shown:  # the file system is asked once for a file, not for each op
            path = Path(frame[0]).resolve()
            root = next((r for r in self._roots if path.is_relative_to(r)), path.parent)
            self._shown[frame[0]] = str(path.relative_to(root))
        return self._shown[frame[0]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._index)
