"""Looking for a witness: inputs at true sizes on which a claimed output fact fails.

A :class:`Scenario` is one choice of block-constant inputs with everything evaluated on them so far;
scenarios serve a plan and all its mutants. :func:`search` tries scenarios until a claimed fact visibly fails
and returns the document ``witness.json`` of ``docs/certificate.md``. A witness found here is a guess in
floating point: only the checker's interval arithmetic decides.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from certificates.plan.affine import Affine
from certificates.plan.plan import Piece, Plan, Relation
from certificates.plan.program import Program
from certificates.plan.types import TensorType, format_rational

from ..errors import EvaluationError, OutOfTime
from ..evaluating.boxes import Evaluator
from ..evaluating.forms import Form
from ..evaluating.grids import Array, Cuts, Grid, common_axes, flattened, refined
from ..evaluating.network import Expansion, Network, Node

#: Relative difference from which a fact counts as failed, and from which a better one is not looked for.
VISIBLE, PLAIN = 1e-9, 1e-4
#: Score where the plan divides by zero or takes a root of a negative number and the specification does not.
UNDEFINED = 1e-8
_RANKS_PER_FACT = 8
#: Of inputs, seed by seed: a clipped norm is small for some and large for others.
SIZES = tuple(Fraction(n) for n in ("1", "1", "1", "1/64", "1", "16", "1/1024", "1"))
_VIEWS = frozenset(
    ["convert", "reshape", "transpose", "broadcast_in_dim", "slice", "pad", "concatenate", "negate"]
)
_SMOOTH = _VIEWS | frozenset(
    ["add", "subtract", "multiply", "divide", "power", "select", "maximum", "minimum"]
)


@dataclass(frozen=True)
class Blocks:
    """One input: cuts per dimension and the row-major block values."""

    cuts: tuple[Cuts, ...]
    values: tuple[Fraction | int | bool, ...]


@dataclass(frozen=True)
class Witness:
    """Inputs and the element at which claimed fact ``piece`` of output relation ``output`` fails."""

    output: int
    piece: int
    symbols: Mapping[str, int]
    junk: Fraction
    inputs: Mapping[str, Blocks]
    plan_value: float
    spec_value: float

    def to_json(self) -> dict[str, object]:
        """The document ``witness.json``."""
        return {
            "output": self.output,
            "piece": self.piece,
            "symbols": dict(self.symbols),
            "junk": format_rational(self.junk),
            "inputs": {
                name: {"cuts": [list(c) for c in b.cuts], "values": [_text(v) for v in b.values]}
                for name, b in self.inputs.items()
            },
        }


def _text(value: Fraction | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else format_rational(value)


@dataclass(frozen=True)
class Fact:
    """A claimed fact: one piece of a relation, or the pieces of several classes under a reduction."""

    piece: Piece
    classes: tuple[str, ...]
    box: Mapping[str, tuple[int, int]]


def claimed_facts(plan: Plan, relation: Relation) -> list[Fact]:
    """The facts of an output relation, numbered as in ``docs/certificate.md``."""
    if relation.reduce is None:
        return [Fact(p, (p.cls,), plan.by_class[p.cls].box) for p in relation.pieces]
    groups: dict[object, list[Piece]] = {}
    for piece in relation.pieces:
        box = {a: r for a, r in plan.by_class[piece.cls].box.items() if a not in relation.reduce[1]}
        groups.setdefault((piece.sizes, piece.plan, piece.spec, tuple(box.items())), []).append(piece)
    out = []
    for pieces in groups.values():
        box = {a: r for a, r in plan.by_class[pieces[0].cls].box.items() if a not in relation.reduce[1]}
        out.append(Fact(pieces[0], tuple(p.cls for p in pieces), box))
    return out


class Scenario:
    """Block-constant inputs of a specification, and the network and evaluator that live on them."""

    def __init__(self, inputs: Mapping[str, Blocks], junk: Fraction = Fraction(3)) -> None:
        self.inputs, self.junk = inputs, junk
        self.network = Network()
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


@dataclass(frozen=True)
class Difference:
    """Where a fact fails most visibly in one scenario."""

    score: float
    output: int
    piece: int
    symbols: dict[str, int]
    plan_value: float
    spec_value: float


class Refuter:
    """Searches for witnesses against plans with one specification; keeps its scenarios between searches."""

    def __init__(self, plan: Plan, seeds: Iterable[int] = range(8)) -> None:
        self._plan = plan
        self._seeds = tuple(seeds)
        self._scenarios: dict[int, Scenario] = {}

    def scenario(self, seed: int) -> Scenario:
        """The scenario of a seed; its memory is dropped when it has grown large."""
        found = self._scenarios.get(seed)
        if found is None:
            inputs = random_inputs(self._plan, random.Random(seed), SIZES[seed % len(SIZES)])
            found = self._scenarios[seed] = Scenario(inputs)
        elif len(found.network.nodes) > 200_000:
            found = self._scenarios[seed] = Scenario(found.inputs)
        return found

    def search(
        self, plan: Plan, facts: Sequence[tuple[int, int]] | None = None, *, budget: float = 60.0
    ) -> Witness | None:
        """A witness against one of ``facts`` (output relation, claimed fact; default: all), or ``None``.

        Stops at the first plain difference, else returns the most visible one found in ``budget`` seconds.
        What was begun in that time is given up after as long again: a deep plan on many ranks has more
        tensors than there is memory.
        """
        deadline = time.monotonic() + budget
        best: tuple[Difference, Scenario] | None = None
        for seed in self._seeds:
            if time.monotonic() > deadline:
                break
            scenario = self.scenario(seed)
            scenario.network.deadline = deadline + budget
            with suppress(OutOfTime):
                for found in differences(plan, scenario, facts):
                    if best is None or found.score > best[0].score:
                        best = found, scenario
                    if found.score >= PLAIN or time.monotonic() > deadline:
                        break
            scenario.network.deadline = math.inf
            if best is not None and best[0].score > UNDEFINED:
                break
        if best is None:
            return None
        found, scenario = best
        return Witness(
            found.output, found.piece, found.symbols, scenario.junk, scenario.inputs,
            found.plan_value, found.spec_value,
        )  # fmt: skip


def search(
    plan: Plan,
    facts: Sequence[tuple[int, int]] | None = None,
    *,
    seeds: Iterable[int] = range(8),
    budget: float = 60.0,
) -> Witness | None:
    """One search with scenarios of its own; see :meth:`Refuter.search`."""
    return Refuter(plan, seeds).search(plan, facts, budget=budget)


def differences(
    plan: Plan, scenario: Scenario, facts: Sequence[tuple[int, int]] | None = None
) -> Iterator[Difference]:
    """Visible failures of claimed facts in one scenario, the cheap outputs (scalars, losses) first."""
    expansion = scenario.expand(plan)
    wanted = None if facts is None else set(facts)
    order = sorted(range(len(plan.outputs)), key=lambda i: len(plan.outputs[i].pieces[0].sizes) > 0)
    for output in order:
        relation = plan.outputs[output]
        for number, fact in enumerate(claimed_facts(plan, relation)):
            if wanted is not None and (output, number) not in wanted:
                continue
            for at in _places(fact.box):
                try:
                    found = _difference(plan, scenario, expansion, relation, fact, at)
                except EvaluationError:
                    continue
                if found is not None:
                    score, symbols, plan_value, spec_value = found
                    yield Difference(score, output, number, symbols, plan_value, spec_value)


def _places(box: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """Mesh coordinates to look at: all of a small box, else its corners and some others."""
    if math.prod(hi - lo for lo, hi in box.values()) <= _RANKS_PER_FACT:
        return [
            dict(zip(box, at, strict=True)) for at in itertools.product(*(range(*r) for r in box.values()))
        ]
    rng = random.Random(0)
    out = [{a: lo for a, (lo, _) in box.items()}, {a: hi - 1 for a, (_, hi) in box.items()}]
    out += [{a: rng.randrange(lo, hi) for a, (lo, hi) in box.items()} for _ in range(_RANKS_PER_FACT - 2)]
    return out


def fact_nodes(
    plan: Plan, expansion: Expansion, relation: Relation, fact: Fact, at: Mapping[str, int]
) -> tuple[int, int]:
    """Nodes of the plan side (reduced over ranks if the relation is) and of the specification side."""
    spec = expansion.value(-1, plan.specification.outputs[relation.spec])
    axes = relation.reduce[1] if relation.reduce else ()
    nodes = []
    for moving in itertools.product(*(range(plan.mesh.axes[a]) for a in axes)):
        rank = plan.mesh.rank({**at, **dict(zip(axes, moving, strict=True))})
        nodes.append(expansion.value(rank, expansion.program(rank).outputs[relation.plan]))
    if relation.reduce is None:
        return nodes[0], spec
    first = expansion.network.nodes[nodes[0]]
    merged = Node("merge", tuple(sorted(nodes)), (relation.reduce[0],), first.sort, first.shape)
    return expansion.network.add(merged), spec


def _difference(
    plan: Plan,
    scenario: Scenario,
    expansion: Expansion,
    relation: Relation,
    fact: Fact,
    at: Mapping[str, int],
) -> tuple[float, dict[str, int], float, float] | None:
    mine, theirs = fact_nodes(plan, expansion, relation, fact, at)
    piece = fact.piece
    mine_at, theirs_at = forms(piece.plan, at), forms(piece.spec, at)
    if mine == theirs and mine_at == theirs_at and relation.coef == 1:
        return None
    best: tuple[float, dict[str, int], float, float] | None = None
    parts = scenario.evaluator.parts([(mine, mine_at), (theirs, theirs_at)], piece.sizes)
    pairs = []
    for olds, sizes, grids in parts:
        left, right = (flattened(g, sizes) for g in grids)
        axes = common_axes([left, right])
        shape = [len(c) - 1 for _, c in axes]
        pairs.append((
            olds, axes, np.broadcast_to(refined(left, axes), shape),
            np.broadcast_to(refined(right, axes) * _scale(relation, right), shape),
        ))  # fmt: skip
    # rounding errors are relative to the tensor's scale: cancellation leaves noise where the truth is 0
    floor = max(
        (float(np.max(np.abs(np.nan_to_num(r.astype(np.float64))))) for _, _, _, r in pairs), default=0.0
    )
    for olds, axes, a, b in pairs:
        score = _scores(a, b, floor)
        cell = np.unravel_index(int(np.argmax(score)), score.shape) if score.shape else ()
        value = float(score[cell])
        if value < VISIBLE or (best is not None and value <= best[0]):
            continue
        corner = {v: cuts[int(i)] for (v, cuts), i in zip(axes, cell, strict=True)}
        symbols = dict(at) | {
            f"z{z}": const + sum(c * corner.get(v, 0) for v, c in terms)
            for z, (const, terms) in enumerate(olds)
        }
        best = value, symbols, float(a[cell]), float(b[cell])
    return best


def _scale(relation: Relation, grid: Grid) -> float | int | bool:
    return float(relation.coef) if grid.data.dtype == np.float64 else grid.data.dtype.type(1)


def _scores(a: Array, b: Array, floor: float) -> Array:
    """Relative difference per cell; 1 where integers or booleans differ; barely visible where only the plan's
    side leaves the real numbers; 0 where the specification's does."""
    if a.dtype != np.float64:
        return np.asarray((a != b).astype(np.float64))
    with np.errstate(all="ignore"):
        scale = np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-6 * floor)
        score = np.abs(a - b) / scale
    score = np.where(np.isfinite(a), np.where(scale > 0, score, 0.0), UNDEFINED)
    return np.where(np.isfinite(b), score, 0.0)


# --- inputs ------------------------------------------------------------------------------------------------


def random_inputs(plan: Plan, rng: random.Random, size: Fraction = Fraction(1)) -> dict[str, Blocks]:
    """Block-constant inputs that keep the step well conditioned; ``size`` scales what may be negative.

    Matrices that are contracted are scaled by the contracted size; inputs that reach a root, a logarithm or
    the base of a power by elementwise ops are positive; integers come from the declared ranges, preferably
    numbers that the plan's own offsets make interesting.
    """
    spec = plan.specification
    contracted, positive, exponents, local = _roles(spec)
    marks = _interesting(plan)
    spread = rng.choice((1, 1, 2, 4))
    out = {}
    for name, type_ in spec.inputs.items():
        cuts = tuple(
            _cuts(n, [*_boundaries(plan, name, d), *(m for m in marks if 0 < m < n)], rng, type_.sort)
            for d, n in enumerate(type_.shape)
        )
        count = math.prod(len(c) - 1 for c in cuts)
        values: list[Fraction | int | bool] = []
        seen: set[Fraction | int | bool] = set()
        lo, hi = plan.ranges.get(name, (1, 7))
        near = [m for m in (lo, hi - 1, *marks) if lo <= m < hi]
        for _ in range(count):
            for _attempt in range(20):
                scale = Fraction(1)
                if contracted.get(name):
                    scale = Fraction(spread, 1 << (contracted[name].bit_length() - 1))
                elif name in local:  # moments: of the order of gradients, squares of their square
                    scale = Fraction(1, 1 << (20 if name in positive else 10))
                if name not in positive and name not in exponents:
                    scale *= size
                value = _value(type_, name in positive, name in exponents, scale, near, (lo, hi), rng)
                if value not in seen:
                    break
            seen.add(value)
            values.append(value)
        out[name] = Blocks(cuts, tuple(values))
    return out


def _value(
    type_: TensorType, positive: bool, exponent: bool, scale: Fraction,
    near: Sequence[int], bounds: tuple[int, int], rng: random.Random,
) -> Fraction | int | bool:  # fmt: skip
    if type_.sort == "Bool":
        return rng.random() < 0.5
    if type_.sort == "Int":
        return rng.choice(near) if near and rng.random() < 0.7 else rng.randrange(*bounds)
    if exponent:
        return Fraction(rng.randint(2, 6))
    value = Fraction(rng.randint(3, 13), 8) * scale
    if not positive and rng.random() < 0.4:
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


def _roles(spec: Program) -> tuple[dict[str, int], set[str], set[str], set[str]]:
    """What inputs are used for, following elementwise ops from them.

    The contracted size of their first products; those that enter a root, a logarithm or the base of a power;
    scalars that enter an exponent; those never mixed with other positions (moments of an optimizer).
    """
    users: dict[str, list[tuple[int, int]]] = {}
    for i, op in enumerate(spec.ops):
        for k, v in enumerate(op.ins):
            users.setdefault(v, []).append((i, k))
    types = spec.types()
    contracted: dict[str, int] = {}
    positive: set[str] = set()
    exponents: set[str] = set()
    local: set[str] = set()
    for name in spec.inputs:
        reach, views = [name], {name}
        seen, mixed = {name}, False
        while reach:
            value = reach.pop()
            for i, k in users.get(value, ()):
                op = spec.ops[i]
                if op.name == "dot_general" and value in views:
                    dims = op.ints("lhs_contract" if k == 0 else "rhs_contract")
                    size = math.prod(types[value].shape[d] for d in dims)
                    contracted[name] = max(contracted.get(name, 0), size)
                if op.name in ("sqrt", "rsqrt", "log") or (op.name == "power" and k == 0):
                    positive.add(name)
                if op.name == "power" and k == 1 and not spec.inputs[name].shape:
                    exponents.add(name)
                    positive.add(name)
                mixed |= op.name in ("dot_general", "reduce", "gather")
                if op.name in _SMOOTH and op.out not in seen:
                    seen.add(op.out)
                    reach.append(op.out)
                    if op.name in _VIEWS and value in views:
                        views.add(op.out)
        if not mixed and spec.inputs[name].shape:
            local.add(name)
    return contracted, positive, exponents, local
