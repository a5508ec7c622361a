"""Scenarios: choices of block-constant inputs at true sizes, and everything evaluated on them so far.

A scenario serves a plan and all its mutants: equal values are one node of its network.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program
from certificates.plan.types import TensorType

from ..evaluating.boxes import Evaluator
from ..evaluating.forms import Form
from ..evaluating.grids import Cuts, flattened
from ..evaluating.network import Expansion, Network, Node, Work

_VIEWS = frozenset(
    ["convert", "reshape", "transpose", "broadcast_in_dim", "slice", "pad", "concatenate", "negate"]
)
_SMOOTH = _VIEWS | frozenset(
    ["add", "subtract", "multiply", "divide", "power", "select", "maximum", "minimum"]
)
_MIXING = frozenset(["dot_general", "reduce", "gather", "call"])
#: How often a number near a literal is chosen, and how near.
_NEAR, _STEP = 0.3, Fraction(1, 8)

#: The largest input of which all elements differ where a plan compares elements of one tensor.
_APART = 1 << 12


@dataclass(frozen=True)
class Blocks:
    """One input: cuts per dimension and the row-major block values."""

    cuts: tuple[Cuts, ...]
    values: tuple[Fraction | int | bool, ...]


class Scenario:
    """Block-constant inputs of a specification, and the network and evaluator that live on them.

    ``work`` is what several scenarios may do together.
    """

    def __init__(
        self, inputs: Mapping[str, Blocks], junk: Fraction = Fraction(3), work: Work | None = None
    ) -> None:
        self.inputs, self.junk = inputs, junk
        self.network = Network(work=work or Work())
        self.evaluator = Evaluator(self.network)

    def expand(self, plan: Plan) -> Expansion:
        """The plan's values as nodes of this scenario's network."""

        def spec_input(name: str, type_: TensorType) -> int:
            blocks = self.inputs[name]
            values = tuple(float(v) if isinstance(v, Fraction) else v for v in blocks.values)
            return self.network.add(Node("block", (), (blocks.cuts, values), type_.sort, type_.shape))

        def plan_input(cls: str, rank: int, name: str, type_: TensorType) -> int:
            at = plan.mesh.coordinates(rank)
            sources: list[str] = []
            pieces = []
            for relation in plan.inputs:
                if relation.plan != name:
                    continue
                coef = float(relation.coef)
                if relation.reduce and relation.reduce[0] == "add" and any(at[a] for a in relation.reduce[1]):
                    coef = 0.0
                for piece in relation.pieces:
                    if piece.cls == cls:
                        sources.append(relation.spec)
                        pieces.append((
                            piece.sizes, forms(piece.plan, {}), forms(piece.spec, at), coef, len(sources) - 1
                        ))  # fmt: skip
            nodes = tuple(spec_input(s, plan.specification.inputs[s]) for s in sources)
            junk = {"Real": float(self.junk), "Int": 0, "Bool": False}[type_.sort]
            node = self.network.add(Node("layout", nodes, (junk, tuple(pieces)), type_.sort, type_.shape))
            return self._simple(node)

        return Expansion(plan, self.network, spec_input, plan_input)

    def _simple(self, number: int) -> int:
        """The node of the local contents where these are blocks: equal shards are then one node."""
        node = self.network.nodes[number]
        identity: list[Form] = [(0, ((d, 1),)) for d in range(len(node.shape))]
        parts = self.evaluator.parts([(number, identity)], node.shape)
        if len(parts) != 1 or len(parts[0][1]) != len(node.shape):
            return number
        grid = flattened(parts[0][2][0], node.shape)
        own = dict(grid.axes)
        cuts = tuple(own.get(d, (0, n)) for d, n in enumerate(node.shape))
        values = tuple(grid.data.reshape(-1).tolist())
        return self.network.add(Node("block", (), (cuts, values), node.sort, node.shape))


def forms(affines: Sequence[Affine], at: Mapping[str, int]) -> tuple[Form, ...]:
    """Index forms over digits ``z0, z1, …`` as box variables 0, 1, …, at given mesh coordinates."""
    out = []
    for affine in affines:
        const, terms = affine.const, []
        for symbol, coef in affine.terms:
            if symbol in at:
                const += coef * at[symbol]
            else:
                terms.append((int(symbol[1:]), coef))
        out.append((const, tuple(sorted(terms))))
    return tuple(out)


def random_inputs(
    plan: Plan, rng: random.Random, size: Fraction = Fraction(1), *, moments: bool = True
) -> dict[str, Blocks]:
    """Block-constant inputs that keep the step well conditioned; ``size`` scales what may be negative.

    Matrices that are contracted are scaled by the contracted size; with ``moments``, state that is never
    mixed with other positions is as small as gradients. Inputs that reach a root, a logarithm or the base of
    a power by elementwise ops are positive; those that are compared with a literal are often near it.
    Integers come from the declared ranges, preferably numbers that the plan's own offsets make interesting.
    Where elements of one tensor are compared with each other, as a router does, equal ones would leave open
    which comes first: then all elements differ.
    """
    spec = plan.specification
    roles = _roles(spec)
    bounds = _bounds(plan)
    marks = _interesting(plan)
    ranked = any(map(_ranked, (spec, *(f.specification for f in plan.functions.values()))))
    spread = rng.choice((1, 1, 2, 4))
    out = {}
    for name, type_ in spec.inputs.items():
        cuts = tuple(
            _cuts(n, [*_boundaries(plan, name, d), *(m for m in marks if 0 < m < n)], rng, type_.sort)
            for d, n in enumerate(type_.shape)
        )
        apart = ranked and type_.sort == "Real" and type_.size <= _APART
        if apart:
            cuts = tuple(tuple(range(n + 1)) for n in type_.shape)
        count = math.prod(len(c) - 1 for c in cuts)
        values: list[Fraction | int | bool] = []
        seen: set[Fraction | int | bool] = set()
        lo, hi = plan.ranges.get(name, (1, 7))
        near = [m for m in (lo, hi - 1, *marks) if lo <= m < hi]
        scale = Fraction(1)
        if roles.contracted.get(name):
            scale = Fraction(spread, 1 << (roles.contracted[name].bit_length() - 1))
        elif name in roles.local and moments:  # of the order of gradients, squares of their square
            scale = Fraction(1, 1 << (20 if name in roles.positive else 10))
        if name not in roles.positive and name not in roles.exponents:
            scale *= size
        for _ in range(count):
            for _attempt in range(20):
                if bounds.get(name) and rng.random() < _NEAR:
                    value: Fraction | int | bool = rng.choice(bounds[name])
                else:
                    value = _value(type_, name, roles, scale, near, (lo, hi), rng)
                if apart and isinstance(value, Fraction):
                    value += Fraction(rng.randrange(1 << 10), 1 << 16) * scale
                if value not in seen:
                    break
            seen.add(value)
            values.append(value)
        out[name] = Blocks(cuts, tuple(values))
    return out


def _value(
    type_: TensorType, name: str, roles: _Roles, scale: Fraction,
    near: Sequence[int], bounds: tuple[int, int], rng: random.Random,
) -> Fraction | int | bool:  # fmt: skip
    if type_.sort == "Bool":
        return rng.random() < 0.5
    if type_.sort == "Int":
        return rng.choice(near) if near and rng.random() < 0.7 else rng.randrange(*bounds)
    if name in roles.exponents:
        return Fraction(rng.randint(2, 6))
    value = Fraction(rng.randint(3, 13), 8) * scale
    if name not in roles.positive and rng.random() < 0.4:
        value = -value
    return value


def _cuts(size: int, boundaries: Sequence[int], rng: random.Random, sort: str) -> Cuts:
    """Two or three blocks; cuts at and beside shard boundaries, at round numbers and anywhere."""
    wanted = rng.choice((1, 2, 2) if sort != "Int" else (2, 3))
    found = {0, size}
    for _ in range(wanted):
        kind = rng.random()
        if boundaries and kind < 0.4:
            at = rng.choice(boundaries) + rng.choice((-1, 0, 0, 1))
        elif kind < 0.7:
            step = 1 << rng.randrange(max(size.bit_length() - 1, 1))
            at = step * rng.randrange(-(-size // step) + 1)
        else:
            at = rng.randrange(size + 1)
        if 0 < at < size:
            found.add(at)
    if len(found) == 2 and size > 1:
        found.add(rng.randrange(1, size))
    return tuple(sorted(found))


def _boundaries(plan: Plan, name: str, dim: int) -> list[int]:
    """Where shards of an input begin along a dimension."""
    out: set[int] = set()
    for relation in plan.inputs:
        if relation.spec != name:
            continue
        for piece in relation.pieces:
            cls = plan.by_class[piece.cls]
            lo, hi = piece.spec[dim].interval(
                {a: r for a, r in cls.box.items()} | {f"z{i}": (0, 1) for i in range(len(piece.sizes))}
            )
            out |= {lo, hi}
    return sorted(out - {0})


def _interesting(plan: Plan) -> list[int]:
    """Integers that the programs compare with or offset by, and their neighbours."""
    out: set[int] = set()
    for cls in plan.classes:
        for op in cls.program.ops:
            value = op.attrs.get("value") if op.name == "constant" and op.type.sort == "Int" else None
            form = (
                value if isinstance(value, Affine) else Affine(int(value)) if isinstance(value, str) else None
            )
            if form is not None:
                lo, hi = form.interval(cls.box)
                for v in (lo, hi):
                    out |= {v - 1, v, v + 1}
    return sorted(out)


def _ranked(spec: Program) -> bool:
    """Whether elements of one real tensor are compared with each other."""
    types, origin = spec.types(), dict[str, str]()
    for op in spec.ops:
        if op.name in _VIEWS:
            origin[op.out] = origin.get(op.ins[0], op.ins[0])
        elif op.name == "compare" and types[op.ins[0]].sort == "Real" and op.ins[0] != op.ins[1]:
            first, second = (origin.get(v, v) for v in op.ins)
            if first == second:
                return True
    return False


@dataclass(frozen=True)
class _Roles:
    """What inputs are used for, following elementwise ops from them.

    The contracted size of their first products; those that enter a root, a logarithm or the base of a power;
    scalars that enter an exponent; state that is never mixed with other positions (moments of an optimizer).
    """

    contracted: dict[str, int] = field(default_factory=dict)
    positive: set[str] = field(default_factory=set)
    exponents: set[str] = field(default_factory=set)
    local: set[str] = field(default_factory=set)


def _users(program: Program) -> dict[str, list[tuple[Op, int]]]:
    """Ops that read a value, and as which operand."""
    users: dict[str, list[tuple[Op, int]]] = {}
    for op in program.ops:
        for k, v in enumerate(op.ins):
            users.setdefault(v, []).append((op, k))
    return users


def _roles(spec: Program) -> _Roles:
    users, types, found = _users(spec), spec.types(), _Roles()
    mixed = _mixed(spec)
    for name, type_ in spec.inputs.items():
        reach, views, seen = [name], {name}, {name}
        while reach:
            value = reach.pop()
            for op, k in users.get(value, ()):
                if op.name == "dot_general" and value in views:
                    dims = op.ints("lhs_contract" if k == 0 else "rhs_contract")
                    size = math.prod(types[value].shape[d] for d in dims)
                    found.contracted[name] = max(found.contracted.get(name, 0), size)
                if op.name in ("sqrt", "rsqrt", "log") or (op.name == "power" and k == 0):
                    found.positive.add(name)
                if op.name == "power" and k == 1 and not type_.shape:
                    found.exponents.add(name)
                    found.positive.add(name)
                if op.name in _SMOOTH and op.out not in seen:
                    seen.add(op.out)
                    reach.append(op.out)
                    if op.name in _VIEWS and value in views:
                        views.add(op.out)
        if type_.shape and name in spec.outputs and name not in mixed:
            found.local.add(name)
    return found


def _mixed(program: Program) -> set[str]:
    """Values of which some op, or one on what is made of them, mixes positions."""
    found: set[str] = set()
    for op in reversed(program.ops):
        if op.name in _MIXING or op.out in found:
            found.update(op.ins)
    return found


def _bounds(plan: Plan) -> dict[str, list[Fraction]]:
    """Literals with which inputs of reals are compared, or that bound them, and numbers beside these."""
    found: dict[str, set[Fraction]] = {}
    for program in (plan.specification, *(c.program for c in plan.classes)):
        users, made = _users(program), {op.out: op for op in program.ops}
        for relation in plan.inputs:
            here = relation.spec if program is plan.specification else relation.plan
            if here in program.inputs and program.inputs[here].sort == "Real":
                found.setdefault(relation.spec, set()).update(_compared(users, made, here))
    return {n: sorted({x + d for x in near for d in (0, _STEP, -_STEP)}) for n, near in found.items() if near}


def _compared(
    users: Mapping[str, Sequence[tuple[Op, int]]], made: Mapping[str, Op], name: str
) -> Iterator[Fraction]:
    """Literals that are compared with an input, as it is or moved, of a program whose ops these are."""
    waiting = [name]
    while waiting:
        value = waiting.pop()
        for op, _ in users.get(value, ()):
            if op.name in _VIEWS and op.name != "negate":
                waiting.append(op.out)
            if op.name in ("compare", "maximum", "minimum"):
                for v in op.ins:
                    literal = made[v].attrs.get("value") if v in made else None
                    if isinstance(literal, str) and literal not in ("inf", "-inf", "true", "false"):
                        yield Fraction(literal)
