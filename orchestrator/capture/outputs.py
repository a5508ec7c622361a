"""What the steps of the single device and of the ranks leave: the same names, or a refusal by line."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from .builder import Frame
from .errors import CaptureError, DefinitionError, LayoutError
from .lowering import RankProgram

_STATES = ("params", "buffers", "opt")


def differences(
    single: RankProgram, classes: Sequence[tuple[str, RankProgram]], own: Container[str]
) -> list[CaptureError]:
    """All outputs that only one side has, each with the line of the op that wrote it.

    ``classes`` are names of classes with their programs. ``own`` are tensors that ranks may have for
    themselves (buckets). A class without an output that the single device has lacks a state if it reads
    one of that name; that a value which the step returns is missing is told where values are related.
    """
    found: list[CaptureError] = []
    for name, program in classes:
        found += _surplus(single, program, own)
        found += _missing(single, name, program)
    return found


def _surplus(single: RankProgram, program: RankProgram, own: Container[str]) -> Iterator[CaptureError]:
    for name in sorted(set(program.outputs) - set(single.outputs)):
        if name in own:
            continue
        kind, frame = name.partition(".")[0], _written(program, name)
        if kind == "grads":
            yield LayoutError(
                "ranks leave a gradient that the next step adds to; the single-device step leaves none",
                tensor=name,
                frame=frame,
                instead="optimizer.zero_grad() in the step of the ranks too",
            )
        elif kind in _STATES:
            yield LayoutError(
                "ranks change a state that the single-device step does not have", tensor=name, frame=frame
            )
        else:
            yield DefinitionError(
                "ranks return an output that the single-device step does not have",
                tensor=name,
                frame=frame,
                instead="the same names from step and parallel_step",
            )


def _missing(single: RankProgram, cls: str, program: RankProgram) -> Iterable[CaptureError]:
    for name in sorted(set(single.outputs) - set(program.outputs)):
        if name in program.inputs:
            yield LayoutError(
                f"the single-device step changes a state that class {cls} does not",
                tensor=name,
                frame=_written(single, name),
            )


def _written(program: RankProgram, name: str) -> Frame | None:
    """The user's line of the op that made an output; an output that is an input has none."""
    value = program.outputs[name]
    return next((draft.frame for draft in program.drafts if draft.out == value), None)
