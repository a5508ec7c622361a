"""What the steps of the single device and of the ranks leave: the same names, or a refusal by line."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from .builder import Frame
from .errors import CaptureError, DefinitionError, LayoutError
from .lowering import RankProgram

_STATES = ("params", "buffers", "opt")


def kept(single: RankProgram, classes: Sequence[RankProgram]) -> list[RankProgram]:
    """The single device and the classes, with the buffers that some of them write as outputs of them all.

    ``DistributedDataParallel`` broadcasts every buffer. A program that leaves a buffer alone has it
    afterwards as before, so it is an output like any other: the input of its name.
    """
    programs = [single, *classes]
    written = {n: None for p in programs for n in p.outputs if n.startswith("buffers.")}
    shared = [n for n in written if n in single.inputs]
    return [
        replace(p, outputs={**p.outputs, **{n: n for n in shared if n in p.inputs and n not in p.outputs}})
        for p in programs
    ]


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
