"""Relations from placements: DTensor's ``Shard(d)``, ``Replicate`` and ``Partial(kind)`` per mesh axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.affine import Affine, digits
from certificates.plan.plan import Mesh, Piece, Plan, RankClass, Relation

from ..errors import FormatError


@dataclass(frozen=True)
class Shard:
    """The axis splits tensor dimension ``dim`` into chunks of ``ceil(n / size)``, the last ones shorter."""

    dim: int


@dataclass(frozen=True)
class Replicate:
    """Every rank of the axis holds the same values."""


@dataclass(frozen=True)
class Partial:
    """The ranks of the axis hold summands (``add``) or candidates (``max``, ``min``) of the values."""

    kind: str = "add"


Placement = Shard | Replicate | Partial


def shard_range(size: int, parts: int, index: int) -> tuple[int, int]:
    """Rows ``[lo, hi)`` of chunk ``index`` when ``size`` rows are cut as ``torch.chunk`` cuts them."""
    step = -(-size // parts)
    return min(index * step, size), min((index + 1) * step, size)


def units(order: Sequence[str], joint: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """The axes of an order, those together that cut a dimension at once, as one axis made of them does."""
    of = {axis: tuple(unit) for unit in joint for axis in unit}
    for axis in order:
        unit = of.get(axis, (axis,))
        if axis == unit[0]:
            yield unit


def strides(unit: Sequence[str], mesh: Mesh) -> dict[str, int]:
    """What one step along each axis adds to the number of a chunk, major axis first."""
    return {a: math.prod(mesh.axes[b] for b in unit[i + 1 :]) for i, a in enumerate(unit)}


def relate(
    spec: str,
    shape: Sequence[int],
    placements: Mapping[str, Placement],
    mesh: Mesh,
    classes: Sequence[RankClass],
    *,
    plan: str | None = None,
    order: Sequence[str] | None = None,
    joint: Sequence[Sequence[str]] = (),
    coef: Fraction | int = 1,
) -> Relation:
    """The relation of a tensor of true ``shape`` under one placement per mesh axis (default ``Replicate``).

    ``order`` lists axes from major to minor where several shard one dimension (default: mesh order). Each
    cuts the chunks of those before it; the axes of one group of ``joint`` cut at once, another way
    where rows are left over. Shards are uneven as in DTensor; each class must lie where its chunks have one
    size, else ``FormatError``.
    """
    order = tuple(order or mesh.space)
    if not set(placements) <= set(mesh.space) or sorted(order) != sorted(mesh.space):
        raise FormatError(f"{spec}: the mesh has the axes {list(mesh.space)}")
    for place in placements.values():
        if isinstance(place, Shard) and not 0 <= place.dim < len(shape):
            raise FormatError(f"{spec}: no dimension {place.dim} to shard in {list(shape)}")
    partial = tuple(a for a in mesh.axes if isinstance(placements.get(a), Partial))
    kinds = {p.kind for p in placements.values() if isinstance(p, Partial)}
    if len(kinds) > 1:
        raise FormatError(f"{spec}: partial placements of different kinds {sorted(kinds)}")
    pieces = []
    for cls in classes:
        sizes, forms = list(shape), [Affine.symbol(f"z{d}") for d in range(len(shape))]
        for unit in units(order, joint):
            placement = placements.get(unit[0], Replicate())
            if not isinstance(placement, Shard):
                continue
            parts, whole = math.prod(mesh.axes[a] for a in unit), sizes[placement.dim]
            step, rises = -(-whole // parts), strides(unit, mesh)
            ranges = [range(*cls.box[a]) for a in unit]
            places = itertools.product(*ranges)
            chunks = (sum(i * n for i, n in zip(at, rises.values(), strict=True)) for at in places)
            lengths = {b - a for a, b in (shard_range(whole, parts, i) for i in chunks)}
            if len(lengths) != 1 or 0 in lengths:
                where = ", ".join(f"{a}={r.start}..{r.stop - 1}" for a, r in zip(unit, ranges, strict=True))
                raise FormatError(
                    f"{spec}: chunks of {whole} rows over {where} have sizes "
                    f"{sorted(lengths)}; split class {cls.name}"
                )
            sizes[placement.dim] = lengths.pop()
            rise = Affine.of(0, {axis: step * n for axis, n in rises.items()})
            forms[placement.dim] = forms[placement.dim] + rise
        local = tuple(Affine.symbol(f"z{d}") for d in range(len(shape)))
        pieces.append(Piece(cls.name, tuple(sizes), local, tuple(forms)))
    reduce = (kinds.pop(), partial) if partial else None
    return Relation(spec, plan or spec, tuple(pieces), Fraction(coef), reduce)


def placements_of(plan: Plan, relation: Relation, shape: Sequence[int]) -> list[tuple[str, Placement]] | None:
    """The short form of a relation, major axis first and ``Replicate`` left out; ``None`` if it has none.

    ``shape`` is that of the specification tensor. The guess is read off the forms and confirmed by building
    the relation again, up to symbols that can take one value only.
    """
    reduced = relation.reduce[1] if relation.reduce else ()
    steps: dict[str, int] = {}
    dims: dict[str, int] = {}
    for piece in relation.pieces:
        for dim, form in enumerate(piece.spec):
            for symbol, coef in form.terms:
                if symbol not in plan.mesh.axes:
                    continue
                if dims.setdefault(symbol, dim) != dim:
                    return None
                steps[symbol] = max(coef, steps.get(symbol, coef))
    partial: list[tuple[str, Placement]] = []
    if relation.reduce:
        partial = [(a, Partial(relation.reduce[0])) for a in plan.mesh.axes if a in reduced]
    rest = tuple(a for a in plan.mesh.space if a not in dims)
    wanted = {_settled(plan, p) for p in relation.pieces}
    # Large steps are major; with uneven chunks that is a guess, so the other orders are tried as well.
    for sharded in itertools.permutations(sorted(dims, key=lambda axis: -steps[axis])):
        found = [(a, Shard(dims[a])) for a in sharded] + partial
        try:
            again = relate(relation.spec, shape, dict(found), plan.mesh, plan.classes, order=sharded + rest)
        except FormatError:
            continue
        if {_settled(plan, p) for p in again.pieces} == wanted and len(again.pieces) == len(relation.pieces):
            return found
    return None


def _settled(plan: Plan, piece: Piece) -> Piece:
    """The piece with every symbol of a single value replaced by that value."""
    ranges = digits(piece.sizes) | dict(plan.by_class[piece.cls].box)
    fixed = {s: Affine(lo) for s, (lo, hi) in ranges.items() if hi - lo == 1}
    forms = [tuple(f.substitute(fixed) for f in side) for side in (piece.plan, piece.spec)]
    return Piece(piece.cls, piece.sizes, forms[0], forms[1])
