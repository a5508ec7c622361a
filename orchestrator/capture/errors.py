"""The exceptions of the capture front end: one tree; an error names rule, tensor, op, rank and user's line.

One error may carry others (:func:`gathered`), so that a refusal names all that is wrong at once.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

#: file, line, function of the user's Python.
Frame = tuple[str, int, str]
#: So many names, ranks or lines of one problem are listed.
_SHOWN = 12


class CaptureError(Exception):
    """The step cannot be captured. ``rule`` is a short stable name; the other fields say where.

    ``frame`` is the line of the user's code, ``instead`` what to write there. ``rank`` is the traced rank,
    ``single`` says that it was the single device.
    """

    rule = "capture"
    single = False
    others: tuple[CaptureError, ...] = ()

    def __init__(
        self,
        message: str,
        *,
        tensor: str | None = None,
        op: str | None = None,
        rank: int | None = None,
        frame: Frame | None = None,
        instead: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.tensor, self.op, self.rank = message, tensor, op, rank
        self.frame, self.instead = frame, instead

    def at_rank(self, rank: int) -> CaptureError:
        """The same error, known to come from the trace of ``rank``."""
        for error in self.problems():
            error.rank = rank if error.rank is None else error.rank
        return self

    def at_single(self) -> CaptureError:
        """The same error, known to come from the trace of the single device."""
        for error in self.problems():
            error.single = True
        return self

    def at(self, frame: Frame | None) -> CaptureError:
        """The same error, at this line of the user's where none is known yet."""
        for error in self.problems():
            error.frame = error.frame or frame
        return self

    def problems(self) -> Iterator[CaptureError]:
        """This error and those that came with it."""
        yield self
        yield from self.others

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross from the process of a rank to the one that captures."""
        return _restore, (type(self), dict(self.__dict__))

    def __str__(self) -> str:
        return "\n".join(_blocks(list(self.problems())))


def _restore(kind: type[CaptureError], fields: dict[str, object]) -> CaptureError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    return error


def gathered(errors: Iterable[CaptureError]) -> CaptureError:
    """All problems of ``errors`` (at least one) as one error, by file and line; its type is the first's."""
    found = sorted((p for e in errors for p in e.problems()), key=_place)
    for error in found:
        error.others = ()
    found[0].others = tuple(found[1:])
    return found[0]


def _place(error: CaptureError) -> tuple[bool, str, int]:
    """Problems with a line come first, in the order of the file."""
    file, line, _ = error.frame or ("", 0, "")
    return error.frame is None, file, line


def _blocks(problems: Sequence[CaptureError]) -> Iterator[str]:
    """One block per problem; those that say the same of other lines, tensors or ranks are folded into one."""
    kinds: dict[tuple[object, ...], list[CaptureError]] = {}
    for error in problems:
        kinds.setdefault((error.rule, error.message, error.op, error.instead), []).append(error)
    for same in kinds.values():
        yield _block(same)


def _block(same: Sequence[CaptureError]) -> str:
    first = same[0]
    tensors = dict.fromkeys(e.tensor for e in same if e.tensor)
    ranks = sorted({e.rank for e in same if e.rank is not None})
    where = [
        *([f"{_plural('tensor', len(tensors))} {_some(tensors)}"] if tensors else []),
        *([f"op {first.op}"] if first.op is not None else []),
        *(["single device"] if any(e.single for e in same) else []),
        *([f"{_plural('rank', len(ranks))} {_some(map(str, ranks))}"] if ranks else []),
    ]
    lines = [f"{first.rule}: {first.message}" + (f" ({', '.join(where)})" if where else "")]
    frames = sorted({e.frame for e in same if e.frame is not None})
    if frames:
        lines.append(f"  {shown(frames[0])}")
    if len(frames) > 1:
        lines.append(f"  and {len(frames) - 1} more at {_listed(frames[0], frames[1:])}")
    if first.instead:
        lines.append(f"  write instead: {first.instead}")
    return "\n".join(lines)


def _some(names: Iterable[str]) -> str:
    """The first of a list, and how many more there are."""
    listed = list(names)
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _listed(first: Frame, more: Sequence[Frame]) -> str:
    """``lines 4, 7, other.py:3``: a line of the first's file is its number only."""
    names = [str(f[1]) if f[0] == first[0] else f"{_name(f)}:{f[1]}" for f in more]
    return f"{_plural('line', len(more))} {_some(names)}"


def _name(frame: Frame) -> str:
    """The file as a user names it: from the folder they are in, if it lies there."""
    path, here = Path(frame[0]), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def shown(frame: Frame) -> str:
    """``file:line in function: code``."""
    code = linecache.getline(frame[0], frame[1]).strip()
    inside = "" if frame[2] in ("", "<module>") else f" in {frame[2]}"
    return f"{_name(frame)}:{frame[1]}{inside}" + (f": {code}" if code else "")


class DefinitionError(CaptureError):
    """The user's file does not follow the protocol of ``docs/capture.md``."""

    rule = "definition"


class UnsupportedOpError(CaptureError):
    """An op that reaches an output has no lowering; ``ops`` lists those of all problems."""

    rule = "unsupported-op"

    def __init__(self, op: str, *, frame: Frame | None = None, instead: str | None = None) -> None:
        super().__init__(f"no lowering for {spoken(op)}", op=op, frame=frame, instead=instead)

    @property
    def ops(self) -> tuple[str, ...]:
        missing = (p.op for p in self.problems() if isinstance(p, UnsupportedOpError))
        return tuple(sorted({op for op in missing if op is not None}))


def spoken(op: str) -> str:
    """The name under which a user knows an op: ``aten.cumsum.default`` is ``cumsum``."""
    parts = op.removeprefix("complex.").split(".")
    return (parts[1] if len(parts) > 1 else op) + (" of complex numbers" if op.startswith("complex.") else "")


class LoweringError(CaptureError):
    """An op has a lowering, but not for these arguments."""

    rule = "lowering"


class ClosureError(CaptureError):
    """An output depends on a value that is no parameter, buffer, batch input, optimizer state or literal."""

    rule = "closure"


class StateError(CaptureError):
    """Something that survives a step is no state, or two consecutive steps are not one program."""

    rule = "state"


class HandledError(StateError):
    """An exception that a trace cannot raise, and that somebody would handle."""


class AliasingError(CaptureError):
    """A view or a partial write that has no expression over the storage's contents."""

    rule = "aliasing"


class GroupError(CaptureError):
    """A process group that is not a fibre of mesh axes."""

    rule = "group"


class WaitError(CaptureError):
    """A buffer of an asynchronous collective is used before the program waited for it."""

    rule = "wait"


class FitError(CaptureError):
    """Ranks of one class differ in a scalar that no affine form of the mesh coordinates describes.

    ``scalar`` is its number in the program.
    """

    rule = "fit"

    def __init__(self, message: str, scalar: int) -> None:
        super().__init__(
            message,
            instead="slices and sizes that are linear in the coordinates, or --most to trace more ranks",
        )
        self.scalar = scalar


class LayoutError(CaptureError):
    """The layout of a state tensor is missing or contradicts what a rank holds."""

    rule = "layout"


class StepError(CaptureError):
    """The user's code raises an exception while it is traced; ``traceback`` is Python's own text of it."""

    rule = "step"

    def __init__(self, message: str, *, traceback: str, frame: Frame | None, instead: str | None) -> None:
        super().__init__(message, frame=frame, instead=instead)
        self.traceback = traceback


class FingerprintError(CaptureError):
    """A job is not the one that a plan describes."""

    rule = "fingerprint"


class RunError(CaptureError):
    """The user's step cannot be run for real and compared with its plan."""

    rule = "run"


class DisagreementError(CaptureError):
    """The user's step, run for real, does not compute what its plan says."""

    rule = "disagreement"
