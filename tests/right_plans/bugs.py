"""Bugs of training code that happened, as small pairs of plans: as reported, and as repaired.

An entry is a function of ``right``. The line on which the two differ ends in ``# <-``: it is the line that
the public fix changes, and was marked before any tool looked at the plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from certificates.plan.plan import Plan

from . import bugs_of_counts, bugs_of_gradients, bugs_of_layouts, bugs_of_norms
from .kit import Twins

MARK = "# <-"


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
