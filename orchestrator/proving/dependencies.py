"""Facts, files and symbols that a stage names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from certificates.plan.affine import Affine
from certificates.proof.stages import (
    BoundIndex,
    BoundSymbol,
    BoundValue,
    Def,
    ElemHyp,
    EvidentRange,
    Hyp,
    InputRange,
    LayoutPremise,
    LayoutStage,
    Stage,
)


def files_of(stage: Stage) -> tuple[str, ...]:
    """Names of a stage's files, in order of use."""
    return (stage.file,) if isinstance(stage, LayoutStage) else tuple(c.file for c in stage.cases)


def dependencies(stage: Stage) -> list[int]:
    """Facts that a stage uses, in order of use."""
    used: dict[int, None] = {}
    if isinstance(stage, LayoutStage):
        for p in stage.premises:
            if isinstance(p, Hyp):
                used.update(dict.fromkeys(p.facts))
    else:
        for case in stage.cases:
            for q in case.premises:
                if isinstance(q, ElemHyp):
                    used[q.fact] = None
    return list(used)


def renumber(stage: Stage, number_of: Callable[[int], int]) -> Stage:
    """The stage with new fact numbers."""
    if isinstance(stage, LayoutStage):
        premises = tuple(
            replace(p, facts=tuple(map(number_of, p.facts))) if isinstance(p, Hyp) else p
            for p in stage.premises
        )
        return replace(stage, goal=number_of(stage.goal), premises=premises)
    cases = tuple(
        replace(
            c,
            premises=tuple(
                replace(p, fact=number_of(p.fact)) if isinstance(p, ElemHyp) else p for p in c.premises
            ),
        )
        for c in stage.cases
    )
    return replace(stage, goal=number_of(stage.goal), cases=cases)


def trim(stage: LayoutStage) -> LayoutStage:
    """Drop fresh symbols that no premise mentions."""
    used = {s for p in stage.premises for s in _symbols(p)}
    return replace(stage, symbols=tuple(s for s in stage.symbols if s[0] in used))


def _symbols(p: LayoutPremise) -> Iterator[str]:
    forms: list[Affine] = []
    match p:
        case BoundSymbol():
            yield p.sym
        case BoundIndex():
            forms = [*p.at, *p.arg]
        case BoundValue():
            yield p.value
            forms = list(p.at)
        case Def():
            forms = [*p.at, *(p.arg or ())]
        case Hyp() | InputRange() | EvidentRange():
            forms = list(p.at)
    for f in forms:
        yield from f.symbols
