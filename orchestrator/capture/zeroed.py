"""Gradients and counters that every step leaves at zero, and so finds at zero.

``zero_grad(set_to_none=False)`` at the end of a step makes the gradient an input that is added to. No
checkpoint holds gradients: before the first step there are none, or zeros, and each step leaves zeros. So
does a step with what it has counted (tokens of each expert), in a buffer that ``build`` makes of zeros. As
arbitrary numbers they would count once for each rank where shares of ranks are summed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from .builder import Draft
from .lowering import RankProgram

#: What is assumed of a plan whose steps find such a gradient.
LEFT = "{} is zero before the first step, and each step leaves it at zero"


def begun_at_zero(
    single: RankProgram, classes: Sequence[RankProgram], zeros: Collection[str] = ()
) -> tuple[list[RankProgram], tuple[str, ...]]:
    """The programs without the inputs that all of them which have one leave at zero, and their names.

    They are gradients, or among ``zeros``: buffers that are zero on the single device before the first step,
    and on each rank as on the single device. What only one side has, as the other one has none instead of
    zeros, is no output either.
    """
    programs = [single, *classes]
    left = [_left(p) for p in programs]
    names = sorted({n for p in programs for n in p.inputs if n.startswith("grads.") or n in zeros})
    zero = tuple(
        n for n in names if all(n in at for p, at in zip(programs, left, strict=True) if n in p.inputs)
    )
    here, there = {*single.outputs}, {n for p in classes for n in p.outputs}
    alone = (here ^ there).intersection(zero)
    found = [
        _without(p, {n: at[n] for n in zero if n in at}, alone) for p, at in zip(programs, left, strict=True)
    ]
    return found, zero


def _left(program: RankProgram) -> dict[str, Draft]:
    """The constant zero that a program leaves, by the name of the state that it finds there."""
    made = {d.out: d for d in program.drafts if d.name == "constant" and str(d.attr("value")) == "0"}
    ends = ((name, made[value]) for name, value in program.outputs.items() if value in made)
    return {name: draft for name, draft in ends if program.inputs.get(name) == draft.type}


def _without(program: RankProgram, zeros: Mapping[str, Draft], dropped: Collection[str]) -> RankProgram:
    first = {draft.out: draft for draft in zeros.values()}
    stands = {n: draft.out for n, draft in zeros.items()}
    rest = (d for d in program.drafts if d.out not in first)
    drafts = (replace(d, ins=tuple(stands.get(v, v) for v in d.ins)) for d in rest)
    return replace(
        program,
        inputs={n: t for n, t in program.inputs.items() if n not in stands},
        drafts=(*first.values(), *drafts),
        outputs={n: stands.get(v, v) for n, v in program.outputs.items() if n not in dropped},
    )
