"""What a tensor of a rank is to the specification: a multiple of one of its tensors, perhaps a partial sum.

By values, on the inputs of one scenario: a tensor stands for one of the specification if all its values occur
there, up to a factor made of mesh sizes and counts, as they are or summed over the ranks of some mesh axes.
A guess for people; nothing rests on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.plan.types import TensorType

from ..errors import EvaluationError
from ..evaluating.forms import Form, Split
from ..evaluating.grids import Array, common_axes, flattened, refined
from ..evaluating.network import Expansion, Node
from .scenarios import Scenario

_SAMPLE = 48
#: Counts in the programs up to this one may be factors.
_COUNT, _COUNTS = 64, 6


@dataclass(frozen=True)
class Standing:
    """The sum over ``axes`` of a tensor is ``coef`` times (a part of) the specification's tensor ``spec``."""

    coef: Fraction
    axes: tuple[str, ...]
    spec: str


class Standings:
    """Standings of the tensors of one plan in one scenario."""

    def __init__(self, plan: Plan, scenario: Scenario, expansion: Expansion) -> None:
        self._plan, self._scenario, self._expansion = plan, scenario, expansion
        self._owners: dict[int, set[int]] = {}
        self._numbers: dict[int, Array | None] = {}
        self._known: dict[tuple[int, str], tuple[Standing, ...]] = {}
        self._made: dict[str, dict[str, tuple[str, TensorType]]] = {}
        self._names = [*plan.specification.inputs, *(op.out for op in plan.specification.ops)]
        for number, name in enumerate(self._names):
            values = self._values(expansion.value(-1, name))
            for key in () if values is None else _keys(values).tolist():
                self._owners.setdefault(key, set()).add(number)
        program = plan.specification
        self._states = {program.inputs[n].shape for n in program.inputs if n in program.outputs}
        self._factors = _factors(plan)
        axes = [a for a, n in plan.mesh.axes.items() if n > 1]
        self._axes = [c for k in range(len(axes) + 1) for c in itertools.combinations(axes, k)]

    def of(self, rank: int, name: str) -> tuple[Standing, ...]:
        """Of a tensor of reals, the simplest first: without a sum, then those with the factor 1."""
        key = (rank, name)
        if key not in self._known:
            self._known[key] = tuple(self._of(rank, name))
        return self._known[key]

    def lost(self, rank: int, name: str) -> bool:
        """Has a tensor of reals, not all zero, no standing?"""
        node = self._expansion.value(rank, name)
        if not self._judged(node):
            return False
        values = self._values(node)
        return values is not None and len(values) > 0 and not self.of(rank, name)

    def partial(self, ops: Sequence[tuple[str, Op]]) -> Iterator[tuple[tuple[str, ...], Fraction]]:
        """Axes over which the results of all ops are partial sums, fewest first, and of what multiple."""
        sums = [{(s.axes, s.coef) for s in self._everywhere(cls, op)} for cls, op in ops]
        if sums and all(axes for s in sums for axes, _ in s):
            yield from sorted(set.intersection(*sums), key=lambda a: (len(a[0]), a))

    def settled(self, rank: int, name: str) -> bool:
        """Is it a tensor of the specification, in full, in parts that add up, or in parts to be averaged?

        Where every rank takes the mean over its rows, gradients of its activations are multiples too, by the
        number of parts.
        """
        sizes = self._plan.mesh.axes
        every = {Fraction(math.prod(sizes[a] for a in axes)) for axes in self._axes}
        for s in self.of(rank, name):
            if s.coef in (1, math.prod(sizes[a] for a in s.axes)):
                return True
            shape = self._expansion.network.nodes[self._expansion.value(-1, s.spec)].shape
            node = self._expansion.network.nodes[self._expansion.value(rank, name)]
            part = len(shape) > 1 and len(node.shape) > 1 and node.shape != shape
            if s.coef in every and part and shape not in self._states:
                return True
        return False

    def factors(self, ops: Sequence[tuple[str, Op]]) -> Iterator[Fraction]:
        """Factors, not 1, by which the results of all ops are multiples of something."""
        found = [{s.coef for s in self._everywhere(cls, op)} for cls, op in ops]
        if found and all(1 not in f for f in found):
            yield from sorted(set.intersection(*found))

    def _judged(self, node: int) -> bool:
        """Reals: integers and truth values are too often equal by chance."""
        return self._expansion.network.nodes[node].sort == "Real"

    def _everywhere(self, cls: str, op: Op) -> tuple[Standing, ...]:
        """Standings at the first rank of a class."""
        box = self._plan.by_class[cls].box
        return self.of(self._plan.mesh.rank({a: lo for a, (lo, _) in box.items()}), op.out)

    def _of(self, rank: int, name: str) -> Iterator[Standing]:
        node = self._expansion.value(rank, name)
        if not self._judged(node):
            return
        here = self._plan.mesh.coordinates(rank)
        for axes in self._axes:
            summed = self._sum(name, here, axes) if axes else node
            values = None if summed is None else self._values(summed)
            if summed is None or values is None or not len(values):
                continue
            flat = len(self._expansion.network.nodes[node].shape) == 1
            for factor in self._factors:
                owner = self._owner(summed, values, factor, flat)
                if owner is not None:
                    yield Standing(1 / factor, axes, self._names[owner])
                    break

    def _owner(self, node: int, values: Array, factor: Fraction, flat: bool) -> int | None:
        """The first tensor with all values; those of a flat bucket may stand in several: the first."""
        sample = values[:: max(1, len(values) // _SAMPLE)] * float(factor)
        members = [self._owners.get(key, set()) for key in _keys(sample).tolist()]
        if not all(members):
            return None
        common = set.intersection(*members)
        alike = [o for o in sorted(common) if self._shape(o) == self._expansion.network.nodes[node].shape]
        if alike:  # a tensor of the same shape has its values in the same places
            return next((o for o in alike if self._equal(node, o, factor)), None)
        return min(common) if common else min(members[0]) if flat else None

    def _shape(self, owner: int) -> tuple[int, ...]:
        return self._expansion.network.nodes[self._expansion.value(-1, self._names[owner])].shape

    def _equal(self, node: int, owner: int, factor: Fraction) -> bool:
        shape = self._shape(owner)
        identity: list[Form] = [(0, ((d, 1),)) for d in range(len(shape))]
        both = [(node, identity), (self._expansion.value(-1, self._names[owner]), identity)]
        try:
            parts = self._scenario.evaluator.parts(both, shape)
        except (EvaluationError, Split):
            return False
        for _, sizes, grids in parts:
            mine, theirs = (flattened(g, sizes) for g in grids)
            axes = common_axes([mine, theirs])
            left, right = refined(mine, axes) * float(factor), refined(theirs, axes)
            if not np.allclose(left, right, rtol=1e-8, atol=0, equal_nan=True):
                return False
        return True

    def _sum(self, name: str, at: dict[str, int], axes: tuple[str, ...]) -> int | None:
        """The tensor added up over mesh axes, where every rank there computes one by the same op."""
        mesh = self._plan.mesh
        parts = []
        for moving in itertools.product(*(range(mesh.axes[a]) for a in axes)):
            rank = mesh.rank({**at, **dict(zip(axes, moving, strict=True))})
            if self._maker(rank, name) != self._maker(mesh.rank(at), name):
                return None
            parts.append(self._expansion.value(rank, name))
        first = self._expansion.network.nodes[parts[0]]
        merged = Node("merge", tuple(sorted(parts)), ("add",), first.sort, first.shape)
        return self._expansion.network.add(merged)

    def _maker(self, rank: int, name: str) -> tuple[str, TensorType] | None:
        """How a rank makes a tensor of this name."""
        cls = self._expansion.class_of(rank)
        if cls not in self._made:
            program = self._plan.by_class[cls].program
            self._made[cls] = {n: ("input", t) for n, t in program.inputs.items()}
            self._made[cls] |= {op.out: (op.name, op.type) for op in program.ops}
        return self._made[cls].get(name)

    def _values(self, node: int) -> Array | None:
        if node not in self._numbers:
            self._numbers[node] = distinct(self._scenario, node)
        return self._numbers[node]


def distinct(scenario: Scenario, node: int) -> Array | None:
    """The finite values of a tensor, each once, zero left out; ``None`` if it cannot be evaluated."""
    shape = scenario.network.nodes[node].shape
    identity: list[Form] = [(0, ((d, 1),)) for d in range(len(shape))]
    try:
        parts = scenario.evaluator.parts([(node, identity)], shape)
    except (EvaluationError, Split):
        return None
    numbers = np.concatenate([grid.data.astype(np.float64).reshape(-1) for _, _, (grid,) in parts])
    return np.unique(numbers[np.isfinite(numbers) & (numbers != 0)])


def _keys(values: Array) -> Array:
    """Numbers to nine digits."""
    mantissa, exponent = np.frexp(values)
    keys: Array = np.round(mantissa * (1 << 30)).astype(np.int64) + (exponent.astype(np.int64) << 40)
    return keys


def _factors(plan: Plan) -> list[Fraction]:
    """1, then products of mesh sizes, then counts that stand in the programs; each also as a divisor."""
    sizes = [n for n in plan.mesh.axes.values() if n > 1]
    found = [
        math.prod(chosen) for k in range(1, len(sizes) + 1) for chosen in itertools.combinations(sizes, k)
    ]
    found += sorted(_counts(plan))[:_COUNTS]
    return list(dict.fromkeys([Fraction(1), *(f for n in found for f in (Fraction(n), Fraction(1, n)))]))


def _counts(plan: Plan) -> set[int]:
    programs = [plan.specification, *(c.program for c in plan.classes)]
    literals = {
        op.attrs["value"]
        for p in programs
        for op in p.ops
        if op.name == "constant" and op.type.sort == "Real"
    }
    numbers = {Fraction(v) for v in literals if isinstance(v, str) and v not in ("inf", "-inf")}
    return {int(n) for n in numbers if n.denominator == 1 and 1 < n <= _COUNT}


def contents(scenario: Scenario, node: int) -> set[int] | None:
    """The distinct values of a tensor to nine digits, zero left out; ``None`` if it cannot be evaluated."""
    values = distinct(scenario, node)
    return None if values is None else set(_keys(values).tolist())
