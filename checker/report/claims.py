"""An output relation in words: types, coefficient, reduction, and the placement of each mesh axis.

Placements are DTensor's: `Shard(d)` cuts dimension d into chunks of the size rounded up, of a `Partial` value
each rank holds a part, all else is `Replicate`. A layout that is none of these is told by its pieces.
"""

from __future__ import annotations

from itertools import permutations
from math import prod

from ..language.affine import Affine
from ..language.plan import Piece, Plan, Relation

REDUCED = {"add": "sum", "max": "maximum", "min": "minimum"}
PARTIAL = {"add": "sum", "max": "max", "min": "min"}
MOST = 5  # axes on one tensor whose orders are tried
FEW = 8  # more pieces than this are counted only


def claim(plan: Plan, relation: Relation) -> str:
    """What an output relation says, in full."""
    spec = plan.spec.types[plan.spec.outputs[relation.spec]]
    held = [c.program for c in plan.classes.values() if relation.plan in c.program.outputs]
    kinds = dict.fromkeys(str(p.types[p.outputs[relation.plan]]) for p in held)
    left = f"{relation.plan} {' or '.join(kinds)}"
    right = f"{relation.spec} {spec}"
    if relation.reduce:
        left = f"{REDUCED[relation.reduce[0]]} over {' '.join(relation.reduce[1])} of {left}"
    if relation.coef != 1:
        right = f"{relation.coef} * {right}"
    words = placement(plan, relation, spec.shape)
    return f"{left} = {right}{'; ' + words if words else ''}"


def placement(plan: Plan, relation: Relation, shape: tuple[int, ...]) -> str:
    """`dp Shard(0), tp Replicate`, or the pieces."""
    dims = dict[str, int]()
    for piece in relation.pieces:
        for dim, form in enumerate(piece.spec):
            for axis in form.names() & {a for a, _ in plan.mesh}:
                if dims.setdefault(axis, dim) != dim:
                    return by_pieces(plan, relation)
    if len(dims) > MOST or {p.cls for p in relation.pieces} != set(plan.classes):
        return by_pieces(plan, relation)
    for order in permutations(dims):  # mesh order is not always from major to minor
        if all(_chunk(plan, piece, {a: dims[a] for a in order}, shape) for piece in relation.pieces):
            break
    else:
        return by_pieces(plan, relation)
    kind, gone = relation.reduce or ("", ())
    names = [a for a, _ in plan.mesh]
    how = {a: f"Shard({dim})" for a, dim in dims.items()} | {a: f"Partial({PARTIAL[kind]})" for a in gone}
    said = [f"{a} {how.get(a, 'Replicate')}" for a in names]
    majors = [(d, [a for a in order if dims[a] == d]) for d in dict.fromkeys(dims.values())]
    said += [
        f"dimension {d} from major to minor {' '.join(axes)}"
        for d, axes in majors
        if axes != [a for a in names if a in axes]
    ]
    return ", ".join(said)


def _chunk(plan: Plan, piece: Piece, dims: dict[str, int], shape: tuple[int, ...]) -> bool:
    """Is the piece the whole of a rank's chunks, where axes (major first) cut these dimensions?"""
    sizes, box, step = list(shape), plan.box(piece.cls), dict[str, int]()
    for axis, dim in dims.items():
        (low, high), whole = box[axis], sizes[dim]
        step[axis] = -(-whole // dict(plan.mesh)[axis])
        lengths = {max(0, min(step[axis], whole - i * step[axis])) for i in {low, high - 1}}
        if len(lengths) > 1:
            return False
        sizes[dim] = lengths.pop()
    if list(piece.sizes) != sizes or not prod(sizes):
        return False
    ranges = {**box, **piece.digits()}
    fixed = {s: Affine(lo) if hi == lo + 1 else Affine.symbol(s) for s, (lo, hi) in ranges.items()}
    for dim, (local, form) in enumerate(zip(piece.plan, piece.spec, strict=True)):
        own = Affine.symbol(f"z{dim}")
        over = Affine.total([(1, own), *((step[a], Affine.symbol(a)) for a in dims if dims[a] == dim)])
        if any(f.substitute(fixed) != g.substitute(fixed) for f, g in ((local, own), (form, over))):
            return False
    return True


def by_pieces(plan: Plan, relation: Relation) -> str:
    """Which elements lie where: no placement of DTensor's."""
    said = []
    for piece in relation.pieces[:FEW]:
        there, here = (", ".join(map(words, forms)) for forms in (piece.plan, piece.spec))
        where = ", ".join(f"z{i} < {n}" for i, n in enumerate(piece.sizes))
        said.append(f"class {piece.cls} has [{here}] at [{there}]" + (f" for {where}" if where else ""))
    more = len(relation.pieces) - FEW
    return ", ".join([*said, *([f"and {more} more pieces"] if more > 0 else [])])


def words(form: Affine) -> str:
    """An affine form as people write it."""
    parts = [name if c == 1 else f"{c}*{name}" for name, c in form.terms]
    return " + ".join([*parts, *([str(form.const)] if form.const or not parts else [])])
