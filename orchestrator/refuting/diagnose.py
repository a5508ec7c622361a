"""Where a refuted plan goes wrong: the first tensor without a counterpart although its operands have one.

On the witness's inputs, a tensor of a rank *has a counterpart* if all its values occur in one tensor of the
specification, up to a factor made of mesh sizes, either as they are or summed over the ranks of some mesh
axes. Right plans hold tensors without counterpart too (a local maximum, a partial denominator), but their
effect disappears again before the outputs. So the suspects are the ops without counterpart from which a
chain of such ops leads to the wrong output, and the first of these whose operands are in order is named.
Tensors of less than all shards have counterparts as well. So if that op, or the output if nothing is lost,
rests on a collective after which the ranks hold less than they gave (a broadcast over shards:
:mod:`.narrowing`), the collective is named.
This is a guess for people; the refutation does not rest on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx
import numpy as np

from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.plan.types import TensorType

from ..errors import EvaluationError
from ..evaluating.forms import Form, Split
from ..evaluating.network import Expansion, Node
from .narrowing import Narrowing
from .scenarios import Scenario
from .search import Witness

_SAMPLE = 48


@dataclass(frozen=True)
class Suspect:
    """The op, at the rank where the wrong output was seen."""

    rank: int
    cls: str
    op: Op

    def describe(self, plan: Plan) -> str:
        """One line: op, class, rank and Python line."""
        loc = self.op.loc
        place = f", {plan.sources[loc.source]}:{loc.line} in {loc.function}" if loc else ""
        return f"{self.op.name} {self.op.out} of {self.cls} (rank {self.rank}){place}"


def locate(plan: Plan, witness: Witness) -> Suspect | None:
    """The op to look at first, or ``None`` if nothing stands out."""
    scenario = Scenario(witness.inputs, witness.junk)
    expansion = scenario.expand(plan)
    relation = plan.outputs[witness.output]
    at = {a: witness.symbols.get(a, 0) for a in plan.mesh.axes}
    rank = plan.mesh.point(at)
    output = expansion.program(rank).outputs[relation.plan]
    values = _Values(plan, scenario, expansion)
    ops = {op.out: op for op in expansion.program(rank).ops}
    found = _first_lost(values, rank, ops, output)
    if found is not None and found.name == "concatenate":
        # Values of several tensors in one bucket are no mistake by themselves.
        values.mixed = True
        found = _first_lost(values, rank, ops, output) or found
    # if every tensor has a counterpart, two outputs were exchanged, or a right tensor is not the right one
    at_fault = _scaled_term(values, rank, ops, found) if found is not None else ops.get(output)
    if at_fault is None:
        return None
    narrowing = Narrowing.of(plan, witness.inputs, witness.junk, contents)
    lost = narrowing.before(rank, output if found is None else found.out)
    return Suspect(rank, expansion.class_of(rank), lost or at_fault)


def _first_lost(values: _Values, rank: int, ops: dict[str, Op], output: str) -> Op | None:
    """The first op without a counterpart from which such ops lead to the output."""
    made = nx.DiGraph((v, op.out) for op in ops.values() for v in op.ins)
    made.add_node(output)
    cone = {output} | nx.ancestors(made, output)
    lost = made.subgraph(name for name in ops if name in cone and not values.known(rank, name))
    if output not in lost:
        return None
    chain = {output} | nx.ancestors(lost, output)
    return next(op for op in ops.values() if op.out in chain and not lost.in_degree(op.out))


def _scaled_term(values: _Values, rank: int, ops: dict[str, Op], op: Op) -> Op:
    """The op behind the one term of a wrong sum that is a multiple of its counterpart; else the sum."""
    if op.name not in ("add", "subtract"):
        return op
    scaled = [v for v in op.ins if v in ops and values.factor(rank, v) not in (None, 1.0)]
    return ops[scaled[0]] if len(scaled) == 1 else op


class _Values:
    """Fingerprints of all tensors of the specification, and lookups in them."""

    def __init__(self, plan: Plan, scenario: Scenario, expansion: Expansion) -> None:
        self._plan, self._scenario, self._expansion = plan, scenario, expansion
        self._owners: dict[int, set[int]] = {}
        self._ops: dict[str, dict[str, tuple[str, TensorType]]] = {}
        names = [*plan.specification.inputs, *(op.out for op in plan.specification.ops)]
        for number, name in enumerate(names):
            for key in self._keys(expansion.value(-1, name)) or ():
                self._owners.setdefault(key, set()).add(number)
        sizes = {n for n in plan.mesh.axes.values() if n > 1}
        #: Whether the values of a flat tensor may have their counterparts in several tensors.
        self.mixed = False
        self._factors = {1.0} | {float(n) for n in sizes} | {1.0 / n for n in sizes}

    def known(self, rank: int, name: str) -> bool:
        """Does the tensor have a counterpart? Integers, booleans and constants always do."""
        node = self._expansion.value(rank, name)
        network = self._expansion.network
        if network.nodes[node].sort != "Real":
            return True
        sums = [node]
        axes = [a for a, n in self._plan.mesh.axes.items() if n > 1]
        here = self._plan.mesh.coordinates(rank)
        for count in range(1, len(axes) + 1):
            for chosen in itertools.combinations(axes, count):
                summed = self._sum(name, here, chosen)
                if summed is not None:
                    sums.append(summed)
        return any(self._matches(n) for n in sums)

    def factor(self, rank: int, name: str) -> float | None:
        """What a tensor must be multiplied by to have a counterpart: 1 if that will do, or nothing fits."""
        node = self._expansion.value(rank, name)
        if self._expansion.network.nodes[node].sort != "Real":
            return None
        return self._fit(node)

    def _sum(self, name: str, at: dict[str, int], axes: tuple[str, ...]) -> int | None:
        """The tensor added up over mesh axes, where every rank there computes one by the same op."""
        mesh = self._plan.mesh
        parts = []
        for moving in itertools.product(*(range(mesh.axes[a]) for a in axes)):
            rank = mesh.point({**at, **dict(zip(axes, moving, strict=True))})
            if self._made(rank, name) != self._made(mesh.point(at), name):
                return None
            parts.append(self._expansion.value(rank, name))
        first = self._expansion.network.nodes[parts[0]]
        return self._expansion.network.add(
            Node("merge", tuple(sorted(parts)), ("add",), first.sort, first.shape)
        )

    def _made(self, rank: int, name: str) -> tuple[str, TensorType] | None:
        """How a rank makes a tensor of this name."""
        cls = self._expansion.class_of(rank)
        if cls not in self._ops:
            program = self._plan.by_class[cls].program
            self._ops[cls] = {n: ("input", t) for n, t in program.inputs.items()}
            self._ops[cls] |= {op.out: (op.name, op.type) for op in program.ops}
        return self._ops[cls].get(name)

    def _matches(self, node: int) -> bool:
        return self._fit(node) is not None

    def _fit(self, node: int) -> float | None:
        flat = self.mixed and len(self._expansion.network.nodes[node].shape) == 1
        for factor in sorted(self._factors, key=lambda f: (f != 1.0, f)):
            keys = self._keys(node, factor, _SAMPLE)
            if keys is None:
                return None
            owners = [self._owners.get(k, set()) for k in keys]
            if all(owners) if flat else _shared(owners):
                return factor
        return None

    def _keys(self, node: int, factor: float = 1.0, limit: int = 1 << 20) -> set[int] | None:
        return contents(self._scenario, node, factor, limit)


def contents(scenario: Scenario, node: int, factor: float = 1.0, limit: int = 1 << 20) -> set[int] | None:
    """Distinct values to nine digits, zero left out; ``None`` if the tensor cannot be evaluated."""
    shape = scenario.network.nodes[node].shape
    identity: list[Form] = [(0, ((d, 1),)) for d in range(len(shape))]
    try:
        parts = scenario.evaluator.parts([(node, identity)], shape)
    except (EvaluationError, Split):
        return None
    found: set[int] = set()
    for _, _, (grid,) in parts:
        numbers = np.unique(grid.data.astype(np.float64))
        mantissa, exponent = np.frexp(numbers[np.isfinite(numbers) & (numbers != 0)] * factor)
        keys = np.round(mantissa * (1 << 30)).astype(np.int64) + (exponent.astype(np.int64) << 40)
        found.update(keys[:: max(1, len(keys) // limit)].tolist())
    return found


def _shared(sets: Iterable[set[int]]) -> bool:
    """Do all sets have a common member? Of no sets at all (a tensor of zeros): yes."""
    common: set[int] | None = None
    for members in sets:
        common = set(members) if common is None else common & members
        if not common:
            return False
    return True
