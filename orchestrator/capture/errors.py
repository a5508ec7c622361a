"""The exceptions of the capture front end: one tree, each error naming rule, tensor, op and rank."""

from __future__ import annotations

from collections.abc import Sequence


class CaptureError(Exception):
    """The step cannot be captured. ``rule`` is a short stable name; the other fields say where."""

    rule = "capture"

    def __init__(
        self, message: str, *, tensor: str | None = None, op: str | None = None, rank: int | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.tensor, self.op, self.rank = message, tensor, op, rank

    def at_rank(self, rank: int) -> CaptureError:
        """The same error, known to come from the trace of ``rank``."""
        self.rank = rank if self.rank is None else self.rank
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross from the process of a rank to the one that captures."""
        return _restore, (type(self), dict(self.__dict__))

    def __str__(self) -> str:
        where = [
            f"{what} {value}"
            for what, value in (("tensor", self.tensor), ("op", self.op), ("rank", self.rank))
            if value is not None
        ]
        return f"{self.rule}: {self.message}" + (f" ({', '.join(where)})" if where else "")


def _restore(kind: type[CaptureError], fields: dict[str, object]) -> CaptureError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    return error


class DefinitionError(CaptureError):
    """The user's file does not follow the protocol of ``docs/capture.md``."""

    rule = "definition"


class UnsupportedOpError(CaptureError):
    """Ops that reach an output have no lowering; ``ops`` lists all of them."""

    rule = "unsupported-op"

    def __init__(self, ops: Sequence[str], rank: int | None = None) -> None:
        self.ops = tuple(sorted(set(ops)))
        super().__init__(f"no lowering for {', '.join(self.ops)}", rank=rank)


class LoweringError(CaptureError):
    """An op has a lowering, but not for these arguments."""

    rule = "lowering"


class ClosureError(CaptureError):
    """An output depends on a value that is no parameter, buffer, batch input, optimizer state or literal."""

    rule = "closure"


class AliasingError(CaptureError):
    """A view or a partial write that has no expression over the storage's contents."""

    rule = "aliasing"


class GroupError(CaptureError):
    """A process group that is not a fibre of mesh axes."""

    rule = "group"


class FitError(CaptureError):
    """Ranks of one class differ in a scalar that no affine form of the mesh coordinates describes."""

    rule = "fit"


class ClassError(CaptureError):
    """The ranks that run one program do not form boxes of mesh coordinates."""

    rule = "classes"


class LayoutError(CaptureError):
    """The layout of a state tensor is missing or contradicts what a rank holds."""

    rule = "layout"


class FingerprintError(CaptureError):
    """A job is not the one that a plan describes."""

    rule = "fingerprint"
