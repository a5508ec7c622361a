"""Bugs of training code that happened, as small pairs of plans: as reported, and as repaired.

An entry is a function of ``right``. The line on which the two differ ends in ``# <-``: it is the line that
the public fix changes, and was marked before any tool looked at the plan. :func:`lines` adds what a plan can
show where nothing is on that line, in the manner of tests/breakages/lines.py; its rule is younger than the
first diagnoses of these plans.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program

from . import bugs_of_counts, bugs_of_gradients, bugs_of_layouts, bugs_of_norms
from .kit import Twins

MARK = "# <-"
_PLAIN = ("constant", "broadcast_in_dim")


@dataclass(frozen=True)
class Bug:
    """``source`` is a public report; ``line`` what its fix changes, in the module of the entry."""

    name: str
    source: str
    twins: Twins
    module: str
    line: int

    def plan(self, right: bool) -> Plan:
        return self.twins(right)


def _bugs(module: ModuleType) -> Mapping[str, Bug]:
    found = {}
    for name, twins in vars(module).items():
        if not inspect.isfunction(twins) or name.startswith("_") or twins.__module__ != module.__name__:
            continue
        lines, first = inspect.getsourcelines(twins)
        (marked,) = [first + i for i, line in enumerate(lines) if line.rstrip().endswith(MARK)]
        source = inspect.cleandoc(twins.__doc__ or "").partition(":")[0]
        found[name] = Bug(name, source, twins, module.__name__.rpartition(".")[2] + ".py", marked)
    return found


BUGS: dict[str, Bug] = {
    name: bug
    for module in (bugs_of_counts, bugs_of_norms, bugs_of_gradients, bugs_of_layouts)
    for name, bug in _bugs(module).items()
}


def lines(bug: Bug) -> frozenset[int]:
    """The lines that count as the bug's own: the marked one, if it makes an op of the wrong plan.

    A line that only chooses makes none: then those of the first ops that the repaired plan does not compute.
    Where something is left out, also those of the op after which it is missing and of the one that reads it.
    """
    wrong, right = (bug.plan(side).classes[0].program for side in (False, True))
    here, there = _expressions(wrong), _expressions(right)
    found = {bug.line} & {op.loc.line for op in wrong.ops if op.loc is not None}
    if not found or len(wrong.ops) < len(right.ops):
        made = {here[op.out]: op for op in wrong.ops}
        missing = [there[v] for op in _first(right, there, here) for v in op.ins]
        after = [made[e] for e in missing if e in made and made[e].name not in _PLAIN]
        found |= {op.loc.line for op in (*_first(wrong, here, there), *after) if op.loc is not None}
    return frozenset(found)


def _expressions(program: Program) -> dict[str, object]:
    """What each value is computed from, however its results are numbered."""
    found: dict[str, object] = {name: name for name in program.inputs}
    for op in program.ops:
        attrs = sorted((k, str(v)) for k, v in op.attrs.items() if k != "seq")
        found[op.out] = (op.name, str(op.type), *map(str, attrs), *(found[v] for v in op.ins))
    return found


def _first(program: Program, here: Mapping[str, object], there: Mapping[str, object]) -> list[Op]:
    """Ops that the other program does not compute, although it has their operands; literals aside."""
    known = set(there.values())
    for op in program.ops:
        if op.name in _PLAIN and all(here[v] in known for v in op.ins):
            known.add(here[op.out])
    return [op for op in program.ops if here[op.out] not in known and all(here[v] in known for v in op.ins)]
