"""Follows a program op by op: what exponentials, and what is made of them, are in lowest terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from certificates.plan.program import Op, Program

from ..cells import Unfollowable
from .contracting import Contracting
from .cutting import Cutting
from .moving import Moving
from .scope import Hop, Scope
from .values import OMEGA, ONE, Inverse, Letter, Value
from .writing import MOVES

#: Ops with laws of their own; what is made of their results is followed.
LAWFUL = frozenset(("exponential", "log", "logistic"))


@dataclass(frozen=True)
class Followed:
    """A program with its ``ghosts``, and the ``hops`` to them in order.

    Tensors of the program that are ``seen`` are what their ops say, without a ghost; ``sums`` of products of
    letters have names. A program ``merges`` if it divides by a sum of sums of exponentials.
    """

    program: Program
    ghosts: frozenset[str]
    hops: tuple[Hop, ...]
    seen: frozenset[str]
    sums: frozenset[str]
    merges: bool


class Follower:
    """The values of one program; ``positive`` and ``nonnegative`` say it of tensors of the program."""

    def __init__(
        self, program: Program, positive: Callable[[str], bool], nonnegative: Callable[[str], bool]
    ) -> None:
        self.program = program
        self.scope = Scope(program, self._by_rule, positive, nonnegative)
        self.moving = Moving(self.scope)
        self.contracting = Contracting(self.scope, self.moving)
        self.cutting = Cutting(self.scope, self._pass)

    def follow(self) -> Followed:
        """The program with its ghosts, each behind the first op that needs it."""
        scope, ops = self.scope, list[Op]()
        for op in self.program.ops:
            ops.append(op)
            scope.writer.passed(op)
            before = len(scope.writer.ghosts)
            if op.type.sort == "Real" and (op.name in LAWFUL or any(v in scope.lively for v in op.ins)):
                self._pass(op)
            ops += scope.writer.ghosts[before:]
        needed = {hop.ghost for hop in scope.hops}
        for op in reversed(ops):
            if op.out in needed:
                needed.update(op.ins)
        own = scope.ops.keys()
        kept = tuple(op for op in ops if op.out in own or op.out in needed)
        return Followed(
            Program(self.program.inputs, kept, self.program.outputs),
            frozenset(op.out for op in kept) - own,
            tuple(scope.hops),
            frozenset(scope.seen),
            frozenset(self.contracting.sums.named()),
            any(map(self._merges, scope.known.values())),
        )

    def _pass(self, op: Op) -> None:
        """Follow one op; where that cannot be done it is a letter from here on."""
        scope, count = self.scope, len(self.scope.hops)
        if op.name == "concatenate" or any(v in self.cutting.joins for v in op.ins):
            self.cutting.take(op)
            return
        scope.values.begin()
        self.contracting.step = None
        try:
            value = self._by_rule(op)
            if value is None:
                return
            certain = self.contracting.certain(op, value) if op.name == "reduce" else None
            scope.known[op.out] = certain or value
            if not scope.is_lively(value):
                scope.seen.add(op.out)
                return
            scope.lively.add(op.out)
            if (op.name in MOVES and op.name != "slice") or certain is not None:
                return
            if any(a == OMEGA for a in value.atoms()):  # no ghost is infinite
                scope.seen.add(op.out)
                return
            ghost = scope.writer.value(self.contracting.step or value, op.type)
        except Unfollowable:
            del scope.hops[count:]
            scope.known.pop(op.out, None)
            scope.lively.discard(op.out)
            return
        if ghost != op.out:
            # Of a sum in two steps the first is proved by what is summed as it is, not by what that equals.
            scope.hops.insert(count, Hop(op.out, ghost, scope.roots_of(op.ins)))

    def _merges(self, value: Value) -> bool:
        factors = [*value.below, *(a.of for a in value.atoms() if isinstance(a, Inverse))]
        lively = self.scope.lively
        return any(
            len(f) > 1 and all(any(isinstance(a, Letter) and a.name in lively for a, _ in m) for m, _ in f)
            for f in factors
        )

    def _by_rule(self, op: Op) -> Value | None:
        """What an op makes of the values of its operands; ``None`` of one that is not followed."""
        values, of = self.scope.values, self.scope.value
        match op.name:
            case "exponential":
                return values.exponential(of(op.ins[0]))
            case "log":
                return values.logarithm(of(op.ins[0]))
            case "logistic":
                return values.logistic(of(op.ins[0]))
            case "add":
                return values.plus(*map(of, op.ins))
            case "subtract":
                return values.plus(of(op.ins[0]), values.scaled(of(op.ins[1]), -ONE))
            case "negate":
                return values.scaled(of(op.ins[0]), -ONE)
            case "multiply":
                return values.times(*map(of, op.ins))
            case "divide":
                by = self.scope.number(op.ins[1])
                if by is not None:
                    return values.scaled(of(op.ins[0]), 1 / by) if by else None
                return values.times(of(op.ins[0]), values.inverse(of(op.ins[1])))
            case "convert":
                return of(op.ins[0]) if self.scope.writer.types[op.ins[0]].sort == "Real" else None
            case "select":
                return self.moving.chosen(op)
            case "dot_general" | "reduce":
                return self.contracting.summed(op)
            case name if name in MOVES:
                return self.moving.moved(op)
        return None
