"""A learning rate that one side alone reads, of its optimizer, is the number that this was made with.

Ranks that step by hand write the number down, and so may a single device whose ranks use an optimizer. There
is nothing that a schedule could change on both, so the plan speaks of this number, and says that it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .builder import Draft, exact
from .lowering import RankProgram

_RATE = "hyper."
#: What is assumed of a plan with such a rate.
BOUND = "{} is {}: {} it, so nothing is said of other learning rates"
_BY = {True: "no rank reads", False: "the single device does not read"}


def bound_rates(
    single: RankProgram, classes: Sequence[RankProgram], rates: Sequence[Mapping[str, float]]
) -> tuple[list[RankProgram], tuple[str, ...]]:
    """The programs with such rates as constants, and what is assumed of each.

    ``rates`` are the numbers that optimizers were made with, by name of the input, of the single device and
    of each traced rank. One without a number, or with several, stays an input.
    """
    here, there = _read(single), set().union(*map(_read, classes))
    made = {name: {each[name] for each in rates if name in each} for name in here ^ there}
    bound = {name: min(n) for name, n in made.items() if len(n) == 1 and not math.isnan(min(n))}
    told = [BOUND.format(name, f"{bound[name]:g}", _BY[name in here]) for name in sorted(bound)]
    return [_with(program, bound) for program in (single, *classes)], tuple(told)


def _read(program: RankProgram) -> set[str]:
    """The rates that an op takes, or that a step gives back."""
    used = {*program.outputs.values(), *(v for draft in program.drafts for v in draft.ins)}
    return {name for name in used.intersection(program.inputs) if name.startswith(_RATE)}


def _with(program: RankProgram, bound: Mapping[str, float]) -> RankProgram:
    """The program with constants of the names of the inputs."""
    drafts = [
        Draft(name, "constant", (), type_, (("value", exact(bound[name])),), None)
        for name, type_ in program.inputs.items()
        if name in bound
    ]
    if not drafts:
        return program
    inputs = {n: t for n, t in program.inputs.items() if n not in bound}
    return replace(program, inputs=inputs, drafts=(*drafts, *program.drafts))
