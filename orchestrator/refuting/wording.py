"""Words for ops, lines and tensors, as a diagnosis prints them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Loc, Op, Program

from .standing import BUCKET, Standing

#: How a capture says who called a helper (:mod:`..capture.assemble`).
_CALLED = re.compile(r"(?P<helper>.*), called at (?P<file>.+):(?P<line>[0-9]+) in (?P<function>.+)\Z")


@dataclass(frozen=True)
class Line:
    """A line of the user's: that of an op, or that which called the helper that ran it."""

    file: str
    line: int
    function: str
    helper: str = ""

    def __str__(self) -> str:
        through = f" (through {self.helper})" if self.helper else ""
        return f"{self.file}:{self.line} in {self.function}{through}"


def op_json(op: Op, cls: str, at: Line | None) -> dict[str, object]:
    """An op and the user's line, as the document of ``--json`` has them."""
    return {
        "op": op.out,
        "name": op.name,
        "class": cls,
        "file": at.file if at else None,
        "line": at.line if at else None,
        "function": at.function if at else None,
    }


def line_of(plan: Plan, loc: Loc | None) -> Line | None:
    """The caller's own line, where the op is in a helper that several lines call."""
    if loc is None:
        return None
    called = _CALLED.match(loc.function)
    if called is None:
        return Line(plan.sources[loc.source], loc.line, loc.function)
    helper = f"{called['helper']} at {plan.sources[loc.source]}:{loc.line}"
    return Line(called["file"], int(called["line"]), called["function"], helper)


def op_words(plan: Plan, op: Op) -> str:
    """An op by name and result, a collective with its axes."""
    over = f" over {'/'.join(plan.groups[op.text('group')].axes)}" if op.name in COLLECTIVES else ""
    return f"`{op.name} {op.out}`{over}"


class Names:
    """Names of the specification's tensors: inputs, gradients of parameters, else ops."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        program = plan.specification
        self.ops = {op.out: op for op in program.ops}
        self._reach = _reach(program)
        self._fed = _fed(plan)

    def of(self, value: str) -> str:
        op = self.ops.get(value)
        if op is None:
            return f"`{value}`" if value != BUCKET else "tensors of the specification in one bucket"
        parameter = self._gradient(value)
        if parameter is not None and not any(self._gradient(v) == parameter for v in op.ins):
            return f"the specification's gradient of `{parameter}`"
        line = line_of(self._plan, op.loc)
        return f"the specification's `{op.name} {op.out}`" + (f" ({line.file}:{line.line})" if line else "")

    def _gradient(self, value: str) -> str | None:
        """The only parameter that a tensor of its shape, which rests on the batch, bears on."""
        program = self._plan.specification
        found = [n for n in self._reach.get(value, ()) if n in program.inputs and n.startswith("params.")]
        if len(found) != 1 or value not in self._fed or value not in self.ops:
            return None
        return found[0] if self.ops[value].type.shape == program.inputs[found[0]].shape else None


def multiple(names: Names, standing: Standing) -> str:
    """What a tensor is, in words: ``2 x the specification's ...``, perhaps as a sum over ranks."""
    times = "" if standing.coef == 1 else f"{_number(standing.coef)} x "
    partial = f", as a partial sum over {'/'.join(standing.axes)}" if standing.axes else ""
    divided = f", divided by {names.of(standing.per)}" if standing.per else ""
    return f"{times}{names.of(standing.spec)}{divided}{partial}"


def _number(value: Fraction) -> str:
    return str(value)


def _reach(program: Program) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for name, value in program.outputs.items():
        found[value] = found.get(value, frozenset()) | {name}
    for op in reversed(program.ops):
        mine = found.get(op.out, frozenset())
        for v in op.ins:
            found[v] = found.get(v, frozenset()) | mine
    return found


def _fed(plan: Plan) -> set[str]:
    """Tensors of the specification that rest on the batch; a learning rate, say, does not."""
    program = plan.specification
    found = {name for name in program.inputs if name.startswith("batch.")}
    for op in program.ops:
        if any(v in found for v in op.ins):
            found.add(op.out)
    return found
