"""Partial ops of which nothing shows that they stay in their domain, in the words of ``tv-check``.

A claim says nothing of values outside: functions are total here. What shows a domain is a literal, a
declared range, or a sign that follows from the way a tensor is computed. Passes over the programs raise signs
until nothing changes. The checker has code of its own for the same words, which asks from the op backwards;
``tests/checker/report/test_domains.py`` compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.functions import body_plan
from certificates.plan.ops import CALL, COLLECTIVES, MESSAGES, OPS
from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program
from certificates.plan.sites import bodies, sites

Place = tuple[str, str, str]
"""Function ("" is none), program ("s" or a class), value."""
ANY, NOT_NEGATIVE, POSITIVE = 0, 1, 2
#: Ops whose result has a sign that all operands have, ``select`` aside, whose first is a truth value.
_OF_ALL = frozenset(
    (
        *(
            "multiply",
            "minimum",
            "reduce",
            "dot_general",
            "sqrt",
            "power",
            "convert",
            *COLLECTIVES,
            *MESSAGES,
        ),
        *("broadcast_in_dim", "reshape", "transpose", "slice", "pad", "concatenate"),
    )
)


def unshown(plan: Plan) -> list[str]:
    """A line for each op and domain: how often on which side, and where it stands first."""
    look = _Signs(plan)
    counts = Counter[tuple[str, str, bool]]()
    first: dict[tuple[str, str], str] = {}
    for function, owner, op in look.ops():
        domain = OPS[op.name].defined if op.name != CALL else ""
        if domain and not _shown(look, function, owner, op):
            counts[op.name, domain, owner == "s"] += 1
            where = f" {plan.sources[op.loc.source]}:{op.loc.line}" if op.loc else ""
            inside = f"function {function}, " if function else ""
            first.setdefault((op.name, domain), f"{inside}{owner}:{op.out}{where}")
    return [
        f"{name} where {domain} ({counts[name, domain, True]} in the specification, "
        f"{counts[name, domain, False]} in the plan), first {place}"
        for (name, domain), place in first.items()
    ]


def _shown(look: _Signs, function: str, owner: str, op: Op) -> bool:
    """Whether a literal, a declared range or a sign keeps the operands in the op's domain."""
    plan, (x, *_) = look.plan, op.ins
    last = look.literal(function, owner, op.ins[-1])
    if op.name == "gather":
        given = {r.spec for r in plan.inputs if op.ins[1] == (r.spec if owner == "s" else r.plan)}
        bounds = [plan.ranges.get(name, (-1, 0)) for name in given if not function]
        size = look.programs[function][owner].type_of(x).shape[op.integer("axis")]
        return bool(bounds) and all(low >= 0 and high <= size for low, high in bounds)
    if op.name == "divide":
        return last != 0 if last is not None else look.signs[function, owner, op.ins[1]] == POSITIVE
    if op.name == "power" and last is not None and last.denominator == 1 and last >= 0:
        return True
    return look.signs[function, owner, x] >= (NOT_NEGATIVE if op.name == "sqrt" else POSITIVE)


class _Signs:
    """What is known of the sign of every value of the programs, functions included."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parts = {"": plan} | {f: body_plan(plan, f) for f in plan.functions}
        self.programs: dict[str, Mapping[str, Program]] = {
            f: {"s": p.specification} | {c.name: c.program for c in p.classes} for f, p in self.parts.items()
        }
        self.constants = {
            (f, owner, op.out): _number(op) for f, owner, op in self.ops() if op.name == "constant"
        }
        self.operands: dict[Place, list[Place]] = {}
        for site in sites(plan).values():
            for ref, inputs in site.operands(bodies(plan, site.function)).items():
                owner, _, value = ref.partition(":")
                for name in inputs:
                    at = site.function, owner, name.partition(":")[2]
                    self.operands.setdefault(at, []).append(("", owner, value))
        self.signs: Counter[Place] = Counter()
        while self._pass():
            pass

    def ops(self) -> Iterator[tuple[str, str, Op]]:
        """All ops with their function and program, the main programs first."""
        for function, programs in self.programs.items():
            for owner, program in programs.items():
                yield from ((function, owner, op) for op in program.ops)

    def literal(self, function: str, owner: str, value: str) -> Fraction | None:
        return self.constants.get((function, owner, value))

    def _pass(self) -> bool:
        """Raises the sign of what the rules say more of by now; whether there was any."""
        found = {at: min(self.signs[o] for o in of) for at, of in self.operands.items()}
        changed = any(self.signs[at] < sign for at, sign in found.items())
        self.signs.update({at: sign - self.signs[at] for at, sign in found.items()})
        for function, owner, op in self.ops():
            at = function, owner, op.out
            sign = self._sign(function, owner, op)
            changed |= self.signs[at] < sign
            self.signs[at] = sign
        return changed

    def _sign(self, function: str, owner: str, op: Op) -> int:
        if op.name == "constant":
            value = self.constants[function, owner, op.out]
            return ANY if value is None or value < 0 else POSITIVE if value else NOT_NEGATIVE
        if op.name == CALL:
            body = self.programs[op.text("function")][owner]
            return self.signs[op.text("function"), owner, list(body.outputs.values())[op.integer("output")]]
        x = [self.signs[function, owner, name] for name in op.ins]
        if op.name in COLLECTIVES | MESSAGES:
            met = self.parts[function].meets(op)
            x = [self.signs[function, cls, name] for cls, other in met.items() for name in other.ins]
        match op.name:
            case "exponential" | "logistic":
                return POSITIVE
            case "maximum":
                return max(x)
            case "add":
                return max(x) if min(x) else ANY
            case "divide":
                return x[0] if x[1] == POSITIVE else ANY
            case "select":
                return min(x[1:])
            case "rsqrt":
                return x[0] if x[0] == POSITIVE else ANY
        least = NOT_NEGATIVE if self._never_negative(function, owner, op) else ANY
        return max(least, min(x)) if op.name in _OF_ALL else least

    def _never_negative(self, function: str, owner: str, op: Op) -> bool:
        """Whatever the operands are: a square, an even power, or what the table of ops says."""
        if op.name == "power":
            exponent = self.literal(function, owner, op.ins[1])
            return exponent is not None and exponent.denominator == 1 and exponent.numerator % 2 == 0
        return (op.name == "multiply" and op.ins[0] == op.ins[1]) or OPS[op.name].sign == "always"


def _number(op: Op) -> Fraction | None:
    """The value of a constant, if it is a number and one for all ranks."""
    value = op.attrs["value"]
    if isinstance(value, Affine):
        return None if value.terms else Fraction(value.const)
    if not isinstance(value, str) or op.type.sort == "Bool" or "inf" in value:
        return None
    return Fraction(value)
