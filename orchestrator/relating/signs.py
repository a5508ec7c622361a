"""What the way in which tensors are computed shows of them: conditions of the laws ``root`` and ``field``.

The rules are those of ``docs/certificate.md``: ``sqrt(p) * sqrt(p) = p`` is claimed of tensors that are never
negative only, and only what is positive is divided by and has a logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from certificates.plan.functions import body_plan
from certificates.plan.ops import CALL, COLLECTIVES, MESSAGES, ROWS
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.plan.sites import bodies, sites
from certificates.proof.facts import Reduced, Ref, split_ref

#: Results that are not negative whatever the operands are, or if no operand is, on all ranks.
_ALWAYS, _CLOSED = (frozenset(r.name for r in ROWS if r.sign == sign) for sign in ("always", "kept"))
#: The checker gives up behind so many tensors, or on so long a chain of them.
_MOST, _DEEPEST = 10_000, 100
#: Ops that may pass an infinite literal on; it reaches no other one but an exponential, and a maximum over
#: rows of which none is masked as a whole.
_PASSES = frozenset(
    (
        *("negate", "add", "subtract", "maximum", "minimum", "select", "convert", "gather"),
        *("broadcast_in_dim", "transpose", "reshape", "slice", "pad", "concatenate"),
        *("all_gather", "all_to_all", *MESSAGES),
    )
)


class Signs:
    """Signs in a plan and in its functions: an input of a function is its operand at every call."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._bodies: dict[str, _Body] = {"": _Body(plan)}
        self._known: dict[tuple[str, str, str], bool] = {}

    def nonnegative(self, function: str, ref: str) -> bool:
        """Whether no element of a tensor is negative; ``function`` is empty for the main programs."""
        work = [(function, ref)]
        seen = set(work)
        while work and len(seen) <= _MOST:
            here, tensor = work.pop()
            behind = self._behind(here, tensor)
            if behind is None:
                return False
            work += behind - seen
            seen |= behind
        return not work

    def finite(self, function: str, ref: str) -> bool:
        """Whether no infinite literal reaches a tensor."""
        return self._shown((function, ref), "finite", 0)

    def positive(self, function: str, ref: str) -> bool:
        """Whether every element of a tensor is evidently a positive number."""
        return self._shown((function, ref), "positive", 0)

    def _shown(self, tensor: tuple[str, str], word: str, depth: int) -> bool:
        key = (word, *tensor)
        if key not in self._known:
            self._known[key] = False
            if depth < _DEEPEST:
                self._known[key] = (self._finite if word == "finite" else self._positive)(tensor, depth + 1)
        return self._known[key]

    def _finite(self, tensor: tuple[str, str], depth: int) -> bool:
        op = self._body(tensor[0]).ops.get(tensor[1])
        if op is None:
            return True
        if op.name == "constant":
            return op.attrs["value"] not in ("inf", "-inf")
        if op.name not in _PASSES:
            return True
        return all(self._shown(t, "finite", depth) for t in self._read(tensor, op))

    def _positive(self, tensor: tuple[str, str], depth: int) -> bool:
        op = self._body(tensor[0]).ops.get(tensor[1])
        if op is None or op.name == CALL:
            behind = self._behind(*tensor)
            return bool(behind) and all(self._shown(t, "positive", depth) for t in behind or ())
        read = self._read(tensor, op)
        match op.name:
            case "constant":
                return _literal(op) > 0
            case "exponential":
                return all(self._shown(t, "finite", depth) for t in read)
            case "logistic":
                return True
            case "reduce" if self._shifted(tensor, op, depth):
                return True
            case "add" | "maximum":
                some = any(self._shown(t, "positive", depth) for t in read)
                return some and all(self.nonnegative(*t) for t in read)
        closed = op.name in _CLOSED or op.name in ("divide", "sqrt")
        return closed and all(self._shown(t, "positive", depth) for t in read)

    def _shifted(self, tensor: tuple[str, str], op: Op, depth: int) -> bool:
        """Whether it is a sum of ``exp(x - y)`` over rows of whose ``x`` the program takes the maximum, so
        that none is masked as a whole; ``y`` is finite."""
        function, (owner, _) = tensor[0], split_ref(tensor[1])
        body = self._body(function)
        power = body.ops.get(f"{owner}:{op.ins[0]}")
        if op.text("kind") != "add" or power is None or power.name != "exponential":
            return False
        inner = body.ops.get(f"{owner}:{power.ins[0]}")
        x, *rest = inner.ins if inner is not None and inner.name == "subtract" else power.ins
        if not all(self._shown((function, f"{owner}:{y}"), "finite", depth) for y in rest):
            return False
        return (owner, x, op.ints("dims")) in body.maxima

    def _read(self, tensor: tuple[str, str], op: Op) -> list[tuple[str, str]]:
        """The operands of an op, or of all ranks that meet in a collective or a message."""
        function, (owner, _) = tensor[0], split_ref(tensor[1])
        if op.name in COLLECTIVES | MESSAGES:
            meet = self._body(function).plan.meets(op)
            return [(function, f"{cls}:{other.ins[0]}") for cls, other in meet.items()]
        return [(function, f"{owner}:{v}") for v in op.ins]

    def operands(self, function: str) -> list[str]:
        """The inputs of a function's bodies that are never negative."""
        return [ref for ref in self._body(function).inputs if self.nonnegative(function, ref)]

    def _behind(self, function: str, ref: str) -> set[tuple[str, str]] | None:
        """The tensors on which the sign rests, or ``None`` if it is not known."""
        body = self._body(function)
        op, (owner, _) = body.ops.get(ref), split_ref(ref)
        if op is None:
            called = self._body("").operands.get((function, ref)) if ref in body.inputs else None
            return {("", operand) for operand in called} if called else None
        if op.name in _ALWAYS or (op.name == "constant" and _literal(op) >= 0):
            return set()
        if op.name == "multiply" and op.ins[0] == op.ins[1]:
            return set()
        if op.name == CALL:
            inner, output = op.text("function"), op.integer("output")
            role = "s" if owner == "s" else str(self.plan.role(inner, owner))
            return {(inner, self._body(inner).outputs[role][output])}
        if op.name in COLLECTIVES | MESSAGES:
            meet = body.plan.meets(op)
            return {(function, f"{cls}:{other.ins[0]}") for cls, other in meet.items()}
        return {(function, f"{owner}:{v}") for v in op.ins} if op.name in _CLOSED else None

    def _body(self, function: str) -> _Body:
        if function not in self._bodies:
            self._bodies[function] = _Body(body_plan(self.plan, function))
        return self._bodies[function]


@dataclass(frozen=True)
class Shown:
    """The signs of one function's tensors; a sum over ranks is what all of its members are."""

    signs: Signs
    function: str

    def nonnegative(self, ref: Ref) -> bool:
        return all(self.signs.nonnegative(self.function, t) for t in _members(ref))

    def positive(self, ref: Ref) -> bool:
        if isinstance(ref, str) and ref.startswith("#"):
            return False
        return all(self.signs.positive(self.function, t) for t in _members(ref))

    def finite(self, ref: Ref) -> bool:
        return all(self.signs.finite(self.function, t) for t in _members(ref))


def _members(ref: Ref) -> tuple[str, ...]:
    return ref.of if isinstance(ref, Reduced) else (ref,)


class _Body:
    """The programs of a plan, or of a function, by tensor."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.programs = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
        self.inputs = dict.fromkeys(f"{o}:{v}" for o, p in self.programs.items() for v in p.inputs)
        self.outputs = {o: [f"{o}:{v}" for v in p.outputs.values()] for o, p in self.programs.items()}

    @cached_property
    def ops(self) -> Mapping[str, Op]:
        return {f"{o}:{op.out}": op for o, p in self.programs.items() for op in p.ops}

    @cached_property
    def maxima(self) -> frozenset[tuple[str, str, tuple[int, ...]]]:
        """What each program takes maxima of, over which dimensions."""
        return frozenset(
            (o, op.ins[0], op.ints("dims"))
            for o, p in self.programs.items()
            for op in p.ops
            if op.name == "reduce" and op.text("kind") == "max"
        )

    @cached_property
    def operands(self) -> Mapping[tuple[str, str], set[str]]:
        """What stands for each input of each function, at all its calls."""
        found: dict[tuple[str, str], set[str]] = {}
        for site in sites(self.plan).values():
            for value, inputs in site.operands(bodies(self.plan, site.function)).items():
                for ref in inputs:
                    found.setdefault((site.function, ref), set()).add(value)
        return found


def _literal(op: Op) -> Fraction:
    """The value of a real constant; a negative one stands for all others."""
    value = op.attrs["value"]
    if op.type.sort != "Real" or not isinstance(value, str) or "inf" in value:
        return Fraction(-1)
    return Fraction(value)
