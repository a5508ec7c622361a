"""Collectives after which the ranks of a group hold less than they gave: a broadcast over shards.

Only data that is moved counts: what the ops that compute receive of a collective's result, at all members of
the group, is compared with what the members gave. It is judged by values, on inputs that differ from shard
to shard; a guess for people, on which nothing rests.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import networkx as nx

from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.plan.types import TensorType

from ..evaluating.grids import Cuts
from ..evaluating.network import Expansion
from .scenarios import Blocks, Scenario

MOVING = frozenset(["convert", "reshape", "transpose", "broadcast_in_dim", "slice", "pad", "concatenate"])
_GATHERING = frozenset(["all_gather", "all_to_all"])
#: Dimensions are cut in so many blocks at most; more shards are not told apart.
_BLOCKS = 16
#: Distinct values of a node of the network, zero left out, or nothing if it cannot be evaluated.
Contents = Callable[[Scenario, int], set[int] | None]


@dataclass(frozen=True)
class Narrowing:
    """Looks for such collectives in one plan; ``contents`` reads values."""

    plan: Plan
    scenario: Scenario
    expansion: Expansion
    contents: Contents

    @classmethod
    def of(cls, plan: Plan, witness: Mapping[str, Blocks], junk: Fraction, contents: Contents) -> Narrowing:
        """On inputs of their own at every shard; scalars and exponents are the witness's."""
        scenario = Scenario(_distinct(plan, witness), junk)
        return cls(plan, scenario, scenario.expand(plan), contents)

    def before(self, rank: int, output: str) -> Op | None:
        """The first narrowing collective of the rank's program on which a value rests."""
        ops = {op.out: op for op in self.expansion.program(rank).ops}
        made = nx.DiGraph((v, op.out) for op in ops.values() for v in op.ins)
        made.add_node(output)
        cone = {output} | nx.ancestors(made, output)
        for op in ops.values():
            if op.name in _GATHERING and op.out in cone and self._narrows(rank, op, ops, made):
                return op
        return None

    def _narrows(self, rank: int, op: Op, ops: Mapping[str, Op], made: nx.DiGraph) -> bool:
        members = self.expansion.members(op.text("group"), rank)
        if len({self.expansion.class_of(r) for r in members}) > 1:
            return False
        received = list(_received(op.out, ops, made))
        gave = self._together(members, [op.ins[0]])
        have = self._together(members, received)
        return gave is not None and have is not None and have < gave and not self._known(have)

    def _together(self, ranks: tuple[int, ...], names: list[str]) -> set[int] | None:
        found: set[int] = set()
        for rank, name in itertools.product(ranks, names):
            values = self.contents(self.scenario, self.expansion.value(rank, name))
            if values is None:
                return None
            found |= values
        return found

    def _known(self, values: set[int]) -> bool:
        """Does a tensor of the specification hold just these?"""
        program = self.plan.specification
        names = [*program.inputs, *(op.out for op in program.ops if op.name in MOVING)]
        return any(self.contents(self.scenario, self.expansion.value(-1, name)) == values for name in names)


def _received(name: str, ops: Mapping[str, Op], made: nx.DiGraph) -> Iterator[str]:
    """What is made of a value by moving it, where another op, or nobody, takes it."""
    waiting = [name]
    while waiting:
        here = waiting.pop()
        takers = [v for v in made.successors(here) if ops[v].name in MOVING]
        waiting += takers
        if not takers or len(takers) < made.out_degree(here):
            yield here


def _distinct(plan: Plan, witness: Mapping[str, Blocks]) -> dict[str, Blocks]:
    """Inputs cut where shards begin, with as many values as the kind of the input has."""
    rng = random.Random(0)
    found = {}
    for name, blocks in witness.items():
        type_ = plan.specification.inputs[name]
        cuts = tuple(_starts(plan, name, dim, size) for dim, size in enumerate(type_.shape))
        count = 1
        for cut in cuts:
            count *= len(cut) - 1
        found[name] = (
            Blocks(cuts, _numbers(type_, count, plan.ranges.get(name), rng)) if count > 1 else blocks
        )
    return found


def _starts(plan: Plan, name: str, dim: int, size: int) -> Cuts:
    found = {0, size}
    for relation in plan.inputs:
        for piece in relation.pieces if relation.spec == name else ():
            form = piece.spec[dim]
            axes = [a for a in plan.mesh.axes if a in dict(form.terms)]
            box = plan.by_class[piece.cls].box
            for at in itertools.islice(itertools.product(*(range(*box[a]) for a in axes)), _BLOCKS):
                digits = {f"z{i}": 0 for i in range(len(piece.sizes))}
                found.add(form.evaluate(digits | dict(zip(axes, at, strict=True))))
    inside = sorted(n for n in found if 0 < n < size)[: _BLOCKS - 1]
    return (0, *inside, size)


def _numbers(
    type_: TensorType, count: int, bounds: tuple[int, int] | None, rng: random.Random
) -> tuple[Fraction | int | bool, ...]:
    if type_.sort == "Bool":
        return tuple(rng.random() < 0.5 for _ in range(count))
    if type_.sort == "Int":
        lo, hi = bounds or (1, count + 1)
        return tuple(lo + (hi - 1 - lo - i) % (hi - lo) for i in range(count))
    return tuple(Fraction(rng.randint(1 << 10, 1 << 11), 1 << 10) for _ in range(count))
