"""What a tensor of a rank is to the specification: a multiple of one of its tensors, perhaps a partial sum.

By values, on the inputs of a few scenarios: a tensor stands for one of the specification if all its values
occur there, up to a factor made of mesh sizes and counts, as they are or summed over the ranks of some mesh
axes; and where it could be one of its blocks, if it is one. A guess for people; nothing rests on it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program

from ..errors import EvaluationError
from ..evaluating.forms import Form, Split
from ..evaluating.grids import Array, common_axes, flattened, refined
from ..evaluating.network import Expansion, Node
from .scenarios import Scenario

_SAMPLE = 48
#: Multiples of which a tensor may be at the same time.
_MULTIPLES = 3
#: Blocks of a tensor of the specification that a tensor of a rank is compared with.
_BLOCKS = 64
#: Relative to the largest number of a tensor: what is taken for zero, and what rounding may change.
_SMALL, _NOISE = 1e-7, 1e-12
#: Tensors of so many dimensions are looked for in other orders of dimensions too.
_TURNED = 4
#: Counts in the programs up to this one may be factors.
_COUNT, _COUNTS = 64, 6


#: Stands for tensors of the specification one after another.
BUCKET = ""
#: What tells the ops of a program apart, and finds those of another class that do the same.
Role = tuple[object, ...]


@dataclass(frozen=True)
class Standing:
    """The sum over ``axes`` of a tensor is ``coef`` times (a part of) the specification's tensor ``spec``.

    ``placed``: its elements are in their places, as those of a block; else only the values are the same ones.
    ``per`` is a count of the specification by which it is divided already.
    """

    coef: Fraction
    axes: tuple[str, ...]
    spec: str
    placed: bool = True
    per: str = ""


class Standings:
    """Standings of the tensors of one plan in one scenario, as far as they hold in ``others`` too."""

    def __init__(
        self, plan: Plan, scenario: Scenario, expansion: Expansion, others: Sequence[Standings] = ()
    ) -> None:
        self._plan, self._scenario, self._expansion = plan, scenario, expansion
        self._others = tuple(others)
        self._alike: dict[tuple[int, str], bool] = {}
        self._owners: dict[int, set[int]] = {}
        self._numbers: dict[int, Array | None] = {}
        self._known: dict[tuple[int, str], tuple[Standing, ...]] = {}
        self._made: dict[str, tuple[dict[str, Role], dict[Role, str]]] = {}
        self._names = [*plan.specification.inputs, *(op.out for op in plan.specification.ops)]
        for number, name in enumerate(self._names):
            values = self._values(expansion.value(-1, name))
            for key in () if values is None else _keys(values).tolist():
                self._owners.setdefault(key, set()).add(number)
        program = plan.specification
        self._states = {program.inputs[n].shape for n in program.inputs if n in program.outputs}
        self._factors = _factors(plan)
        self._counts = _divisors(program)
        axes = [a for a, n in plan.mesh.axes.items() if n > 1]
        self._axes = [c for k in range(len(axes) + 1) for c in itertools.combinations(axes, k)]

    def of(self, rank: int, name: str) -> tuple[Standing, ...]:
        """Of a tensor of reals, the simplest first: without a sum, then those with the factor 1."""
        key = (rank, name)
        if key not in self._known:
            every = tuple(self._of(rank, name))
            # rows that are alike add up to a multiple of one: what the same op makes says more
            same = any(self._same_op(rank, name, s) for s in every)
            self._known[key] = tuple(s for s in every if not same or s.placed or self._same_op(rank, name, s))
        return self._known[key]

    def stands(self, rank: int, name: str, spec: str) -> bool:
        """Does a tensor that stands for one of the specification's stand for this one as well?"""
        every = (self, *self._others)
        return any(
            all(o.holds(rank, name, replace(s, spec=spec)) for o in every)
            for s in self.of(rank, name) if s.spec != BUCKET
        )  # fmt: skip

    def lost(self, rank: int, name: str) -> bool:
        """Has a tensor of reals, not all zero, no standing?"""
        node = self._expansion.value(rank, name)
        if not self._judged(node):
            return False
        values = self._values(node)
        return values is not None and len(values) > 0 and not self.of(rank, name)

    def partial(self, ops: Sequence[tuple[str, Op]]) -> Iterator[tuple[tuple[str, ...], Fraction]]:
        """Axes over which the results of all ops are partial sums, fewest first, and of what multiple; then
        some of such axes, as the sum over the others may follow."""
        sums = [{(s.axes, s.coef) for s in self._everywhere(cls, op)} for cls, op in ops]
        if sums and all(axes for s in sums for axes, _ in s):
            common = sorted(set.intersection(*sums), key=lambda a: (len(a[0]), a))
            some = [(part, coef) for axes, coef in common for k in range(1, len(axes))
                    for part in itertools.combinations(axes, k)]  # fmt: skip
            yield from dict.fromkeys([*common, *some])

    def settled(self, rank: int, name: str) -> bool:
        """Is it a tensor of the specification, in full, in parts that add up, or in parts to be averaged?

        Where every rank takes the mean over its rows, gradients of its activations are multiples too, by the
        number of parts.
        """
        sizes = self._plan.mesh.axes
        every = _products(list(sizes.values()))
        for s in self.of(rank, name):
            if s.coef in _products([sizes[a] for a in s.axes]):
                return True
            if s.spec == BUCKET:
                continue
            shape = self._expansion.network.nodes[self._expansion.value(-1, s.spec)].shape
            node = self._expansion.network.nodes[self._expansion.value(rank, name)]
            part = len(shape) > 1 and len(node.shape) > 1 and node.shape != shape
            if s.coef in every and part and shape not in self._states:
                return True
        return False

    def factors(self, ops: Sequence[tuple[str, Op]]) -> Iterator[Fraction]:
        """Factors, not 1, by which the results of all ops are multiples of something; then what is left of
        these where parts are to be averaged."""
        found = [{s.coef for s in self._everywhere(cls, op)} for cls, op in ops]
        if found and all(1 not in f for f in found):
            common = sorted(set.intersection(*found))
            parts = sorted(_products(list(self._plan.mesh.axes.values())))
            yield from (f for f in dict.fromkeys(c / n for n in parts for c in common) if f != 1)

    def _judged(self, node: int) -> bool:
        """Reals, and counts: other integers and truth values are too often equal by chance."""
        found = self._expansion.network.nodes[node]
        return found.sort == "Real" or (found.sort == "Int" and not found.shape)

    def _everywhere(self, cls: str, op: Op) -> tuple[Standing, ...]:
        """Standings at the first rank of a class."""
        box = self._plan.by_class[cls].box
        return self.of(self._plan.mesh.rank({a: lo for a, (lo, _) in box.items()}), op.out)

    def _of(self, rank: int, name: str) -> Iterator[Standing]:
        node = self._expansion.value(rank, name)
        if not self._judged(node):
            return
        for axes in self._axes:
            summed = self._sum(rank, name, axes)
            values = None if summed is None else self._values(summed)
            if summed is None or values is None or not len(values):
                continue
            held = (self._held(rank, name, axes, summed, values, factor) for factor in self._factors)
            found = list(itertools.islice((s for s in held if s is not None), _MULTIPLES))
            if not found:
                one = Fraction(1)
                divided = (self._held(rank, name, axes, summed, values, one, per) for per in self._counts)
                found = [s for s in divided if s is not None][:1]
            found = [s for s in found if s.spec != BUCKET] or found[:1]
            yield from sorted(found, key=lambda s: (s.coef != 1, not self._same_op(rank, name, s)))

    def _held(
        self,
        rank: int,
        name: str,
        axes: tuple[str, ...],
        summed: int,
        values: Array,
        factor: Fraction,
        per: str = "",
    ) -> Standing | None:
        """The first tensor of which it is this multiple in all scenarios."""
        for owner in self._owners_of(summed, values, self._scale(factor, per)):
            spec = BUCKET if owner is None else self._names[owner]
            placed = owner is not None and self._is_block(summed, owner)
            standing = Standing(1 / factor, axes, spec, placed, per)
            if all(o.holds(rank, name, standing) for o in self._others):
                return standing
        return None

    def _scale(self, factor: Fraction, per: str) -> float:
        """A factor times a count, in this scenario; not a number if the count is none."""
        if not per:
            return float(factor)
        count = self._values(self._expansion.value(-1, per))
        return float(factor) * (float(count[0]) if count is not None and len(count) == 1 else math.nan)

    def _same_op(self, rank: int, name: str, standing: Standing) -> bool:
        """Any tensor divided by a count is a multiple of itself; what the same op makes says more."""
        mine, theirs = self._expansion.op(rank, name), self._expansion.op(-1, standing.spec)
        return mine is not None and theirs is not None and mine.name == theirs.name

    def holds(self, rank: int, name: str, standing: Standing) -> bool:
        """Does it hold in this scenario?"""
        summed = self._sum(rank, name, standing.axes)
        values = None if summed is None else self._values(summed)
        if summed is None or values is None:
            return False
        owners = self._owners_of(summed, values, self._scale(1 / standing.coef, standing.per))
        return not len(values) or any(o is None or self._names[o] == standing.spec for o in owners)

    def alike(self, rank: int, name: str) -> bool:
        """Is a tensor of integers or truth values a block of such a tensor of the specification?"""
        key = (rank, name)
        if key not in self._alike:
            node = self._expansion.value(rank, name)
            self._alike[key] = any(
                self._block_of(node, owner) and all(o.alike(rank, name) for o in self._others)
                for owner in range(len(self._names))
            )
        return self._alike[key]

    def like(self, rank: int, name: str, spec: str) -> bool:
        """Is a tensor of integers or truth values a block of this tensor of the specification?"""
        owner, every = self._names.index(spec), (self, *self._others)
        return all(o._block_of(o._expansion.value(rank, name), owner) for o in every)

    def _block_of(self, node: int, owner: int) -> bool:
        nodes = self._expansion.network.nodes
        other = nodes[self._expansion.value(-1, self._names[owner])]
        return (
            other.sort == nodes[node].sort and self._is_block(node, owner) and self._placed(node, owner, 1.0)
        )

    def _owners_of(self, node: int, values: Array, scale: float) -> Iterator[int | None]:
        """Tensors with all values; ``None`` for a flat bucket whose values stand in several."""
        sample = values[:: max(1, len(values) // _SAMPLE)] * scale
        members = []
        for key in _keys(sample).tolist():
            members.append(self._having(key))
            if not members[-1]:
                return
        shape = self._expansion.network.nodes[node].shape
        common = set.intersection(*members)
        alike = [o for o in sorted(common) if self._shape(o) == shape]
        # a tensor of the same shape has its values in the same places
        yield from (o for o in alike or sorted(common) if self._placed(node, o, scale))
        if len(shape) == 1 and not common:
            yield None

    def _having(self, key: int) -> set[int]:
        """Tensors with a number, which may have been rounded to the next one."""
        return set().union(*(self._owners.get(key + k, ()) for k in (-1, 0, 1)))

    def _is_block(self, node: int, owner: int) -> bool:
        """Could it be a block of the specification's tensor, by its shape?"""
        return _blocks(self._expansion.network.nodes[node].shape, self._shape(owner))

    def _placed(self, node: int, owner: int, scale: float) -> bool:
        """Is it a block of the specification's tensor, perhaps transposed, if it could be one?"""
        mine, whole = self._expansion.network.nodes[node].shape, self._shape(owner)
        if not _blocks(mine, whole):
            return True
        for turn in itertools.permutations(range(len(mine))):
            turned = [whole[d] for d in turn]
            if _blocks(mine, turned) and (len(mine) <= _TURNED or list(turn) == sorted(turn)):
                starts = (range(0, n, m) for m, n in zip(mine, turned, strict=True))
                if any(self._equal(node, owner, scale, at, turn) for at in itertools.product(*starts)):
                    return True
        return False

    def _shape(self, owner: int) -> tuple[int, ...]:
        return self._expansion.network.nodes[self._expansion.value(-1, self._names[owner])].shape

    def _equal(self, node: int, owner: int, scale: float, starts: Sequence[int], turn: Sequence[int]) -> bool:
        """Is it the block that begins there, with the specification's dimensions in this order?"""
        shape = self._expansion.network.nodes[node].shape
        own: list[Form] = [(0, ((d, 1),)) for d in range(len(shape))]
        there: list[Form] = [(0, ())] * len(shape)
        for d, start in enumerate(starts):
            there[turn[d]] = (start, ((d, 1),))
        try:
            parts = self._scenario.evaluator.parts(
                [(node, own), (self._expansion.value(-1, self._names[owner]), there)], shape
            )
        except (EvaluationError, Split):
            return False
        for _, sizes, grids in parts:
            mine, theirs = (flattened(g, sizes) for g in grids)
            axes = common_axes([mine, theirs])
            left, right = refined(mine, axes), refined(theirs, axes)
            if left.dtype != np.float64:
                if np.any(left != right):
                    return False
            elif not np.allclose(left * scale, right, rtol=1e-8, atol=_noise(right), equal_nan=True):
                return False
        return True

    def _sum(self, rank: int, name: str, axes: tuple[str, ...]) -> int | None:
        """The tensor added up over mesh axes, where every rank there has one in the same place, and along
        each axis not all the same one."""
        if not axes:
            return self._expansion.value(rank, name)
        mesh = self._plan.mesh
        at = mesh.coordinates(rank)
        parts: dict[tuple[int, ...], int] = {}
        for moving in itertools.product(*(range(mesh.axes[a]) for a in axes)):
            member = mesh.rank({**at, **dict(zip(axes, moving, strict=True))})
            theirs = self._alike_at(member, rank, name)
            if theirs is None:
                return None
            parts[moving] = self._expansion.value(member, theirs)
        for k, axis in enumerate(axes):
            apart = {(place[:k] + place[k + 1 :], node) for place, node in parts.items()}
            if len(apart) * mesh.axes[axis] == len(parts):
                return None
        first = self._expansion.network.nodes[parts[(0,) * len(axes)]]
        merged = Node("merge", tuple(sorted(parts.values())), ("add",), first.sort, first.shape)
        return self._expansion.network.add(merged)

    def _alike_at(self, member: int, rank: int, name: str) -> str | None:
        """The tensor that another rank makes in the same place: its class has as many ops of this line, name
        and type before it."""
        mine, theirs = self._expansion.class_of(rank), self._expansion.class_of(member)
        if mine == theirs:
            return name
        role = self._roles(mine)[0].get(name)
        return None if role is None else self._roles(theirs)[1].get(role)

    def _roles(self, cls: str) -> tuple[dict[str, Role], dict[Role, str]]:
        if cls not in self._made:
            program = self._plan.by_class[cls].program
            counts: Counter[tuple[object, ...]] = Counter()
            roles: dict[str, Role] = {n: (n, t) for n, t in program.inputs.items()}
            for op in program.ops:
                place = (op.loc, op.name, op.type)
                roles[op.out] = (*place, counts[place])
                counts[place] += 1
            self._made[cls] = roles, {role: name for name, role in roles.items()}
        return self._made[cls]

    def _values(self, node: int) -> Array | None:
        if node not in self._numbers:
            self._numbers[node] = distinct(self._scenario, node)
        return self._numbers[node]


def distinct(scenario: Scenario, node: int) -> Array | None:
    """The finite values of a tensor, each once; ``None`` if it cannot be evaluated. Without zeros, and
    without what is so small beside the others that it may be what rounding left of one."""
    shape = scenario.network.nodes[node].shape
    identity: list[Form] = [(0, ((d, 1),)) for d in range(len(shape))]
    try:
        parts = scenario.evaluator.parts([(node, identity)], shape)
    except (EvaluationError, Split):
        return None
    numbers = np.concatenate([grid.data.astype(np.float64).reshape(-1) for _, _, (grid,) in parts])
    numbers = numbers[np.isfinite(numbers)]
    return np.unique(numbers[np.abs(numbers) > _SMALL * np.max(np.abs(numbers), initial=0.0)])


def _keys(values: Array) -> Array:
    """Numbers to nine digits."""
    mantissa, exponent = np.frexp(values)
    keys: Array = np.round(mantissa * (1 << 30)).astype(np.int64) + (exponent.astype(np.int64) << 40)
    return keys


def _blocks(mine: Sequence[int], whole: Sequence[int]) -> bool:
    """Could a tensor of the first shape be one of a few blocks of one of the second?"""
    if len(mine) != len(whole) or any(n % m for m, n in zip(mine, whole, strict=True)):
        return False
    return math.prod(whole) <= _BLOCKS * math.prod(mine)


def _products(sizes: Sequence[int]) -> set[Fraction]:
    """1 and all products of some of the numbers."""
    return {Fraction(math.prod(c)) for k in range(len(sizes) + 1) for c in itertools.combinations(sizes, k)}


def _factors(plan: Plan) -> list[Fraction]:
    """1, then products of mesh sizes, then counts in the programs, as they are and times such products; each
    also as a divisor."""
    sizes = [n for n in plan.mesh.axes.values() if n > 1]
    found = [
        math.prod(chosen) for k in range(1, len(sizes) + 1) for chosen in itertools.combinations(sizes, k)
    ]
    counts = sorted(_counts(plan))[:_COUNTS]
    found += [*counts, *(n * m for m in found for n in counts)]
    return list(dict.fromkeys([Fraction(1), *(f for n in found for f in (Fraction(n), Fraction(1, n)))]))


def _divisors(program: Program) -> list[str]:
    """Scalars, no literals, by which a program divides something: counts of tokens."""
    made = {op.out: op for op in program.ops}
    found = dict.fromkeys(op.ins[1] for op in program.ops if op.name == "divide")
    for value in [*found]:
        while value in made and made[value].name in ("broadcast_in_dim", "convert", "reshape"):
            value = made[value].ins[0]
        if value in made and made[value].name != "constant" and not made[value].type.shape:
            found[value] = None
    return [v for v in found if v in made and made[v].name != "constant" and not made[v].type.shape][:_COUNTS]


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


def _noise(values: Array) -> float:
    return _NOISE * float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))


def contents(scenario: Scenario, node: int) -> set[int] | None:
    """The distinct values of a tensor to nine digits, zero left out; ``None`` if it cannot be evaluated."""
    values = distinct(scenario, node)
    return None if values is None else set(_keys(values).tolist())
