"""A captured plan whose programs have packed rows, read as the plain ops that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from certificates.errors import FormatError
from certificates.plan.plan import Group, Mesh, Plan
from certificates.plan.program import Program
from certificates.plan.rows import has_rows, lowered

from .errors import LoweringError
from .sources import Sources

#: What to write where rows meet something that rests on no order, or on another.
_ALIKE = (
    "what is combined with packed rows packed by the same order: scores.view(-1)[order]; rows put back "
    "(out[order] = rows, or index_add_) before they are added up, sliced or returned"
)


def read_as_plain(plan: Plan, sources: Sources) -> Plan:
    """The plan with its packed programs lowered; the plan itself if it has none.

    What rests on the order of rows other than by an op that names it is a :class:`LoweringError` at its line.
    """
    programs = plan.specification, *(c.program for c in plan.classes)
    if not any(has_rows(p.ops) for p in programs):
        return plan
    single, *others = (
        _plain(p, plan.groups, plan.mesh if i else None, sources) for i, p in enumerate(programs)
    )
    classes = tuple(replace(c, program=p) for c, p in zip(plan.classes, others, strict=True))
    return replace(plan, specification=single, classes=classes)


def _plain(program: Program, groups: Mapping[str, Group], mesh: Mesh | None, sources: Sources) -> Program:
    try:
        return lowered(program, groups, mesh)
    except FormatError as error:
        named = re.search(r"%\d+", str(error))
        op = next((op for op in program.ops if named is not None and op.out == named[0]), None)
        problem = LoweringError(f"packed rows: {error}", op=op.name if op else None, instead=_ALIKE)
        raise problem.at(sources.frame(op.loc) if op is not None and op.loc is not None else None) from error
