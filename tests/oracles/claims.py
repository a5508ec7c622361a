"""An output relation in the words of ``tv-check``, from the plan as the emitter reads it.

The checker has code of its own for the same words; ``tests/checker/report/test_claims.py`` compares the two.
"""

from __future__ import annotations

from certificates.plan.affine import Affine
from certificates.plan.placements import Partial, Shard, placements_of
from certificates.plan.plan import Plan, Relation

SUM = {"add": "sum", "max": "maximum", "min": "minimum"}
#: More pieces than this are counted only.
FEW = 8


def claim(plan: Plan, relation: Relation) -> str:
    """``sum over dp of grad f32[4] = 2 * grad f32[8]; dp Partial(sum), tp Shard(0)``."""
    target = _type(plan, "s", relation.spec)
    local = dict.fromkeys(
        _type(plan, c.name, relation.plan) for c in plan.classes if relation.plan in c.program.outputs
    )
    left = f"{relation.plan} {' or '.join(local)}"
    if relation.reduce is not None:
        kind, axes = relation.reduce
        left = f"{SUM[kind]} over {' '.join(axes)} of {left}"
    factor = "" if relation.coef == 1 else f"{relation.coef} * "
    where = _placement(plan, relation)
    return f"{left} = {factor}{relation.spec} {target}" + (f"; {where}" if where else "")


def _type(plan: Plan, space: str, output: str) -> str:
    program = plan.specification if space == "s" else plan.by_class[space].program
    return str(program.types()[program.outputs[output]])


def _placement(plan: Plan, relation: Relation) -> str:
    spec = plan.specification
    found = placements_of(plan, relation, spec.types()[spec.outputs[relation.spec]].shape)
    if found is None or {p.cls for p in relation.pieces} != {c.name for c in plan.classes}:
        return _pieces(relation)
    at, words, cut = dict(found), [], dict[int, list[str]]()
    for axis, place in found:
        if isinstance(place, Shard):
            cut.setdefault(place.dim, []).append(axis)
    for axis in plan.mesh.axes:
        one = at.get(axis)
        if isinstance(one, Partial):
            words.append(f"{axis} Partial({'sum' if one.kind == 'add' else one.kind})")
        else:
            words.append(f"{axis} Shard({one.dim})" if isinstance(one, Shard) else f"{axis} Replicate")
    for dim, axes in cut.items():
        if axes != [a for a in plan.mesh.axes if a in axes]:
            words.append(f"dimension {dim} from major to minor {' '.join(axes)}")
    return ", ".join(words)


def _pieces(relation: Relation) -> str:
    said = []
    for piece in relation.pieces[:FEW]:
        here, there = (", ".join(map(_form, forms)) for forms in (piece.spec, piece.plan))
        where = ", ".join(f"z{i} < {n}" for i, n in enumerate(piece.sizes))
        said.append(f"class {piece.cls} has [{here}] at [{there}]" + (f" for {where}" if where else ""))
    more = len(relation.pieces) - FEW
    return ", ".join(said + ([f"and {more} more pieces"] if more > 0 else []))


def _form(form: Affine) -> str:
    parts = [symbol if coef == 1 else f"{coef}*{symbol}" for symbol, coef in form.terms]
    return " + ".join(parts + ([str(form.const)] if form.const or not parts else []))


def open_elements(plan: Plan) -> list[str]:
    """Elements of outputs that no piece covers (padding of uneven shards), and outputs without a relation."""
    covered: dict[tuple[str, str], int] = {}
    for relation in plan.outputs:
        for piece in relation.pieces:
            size = 1
            for n in piece.sizes:
                size *= n
            key = piece.cls, relation.plan
            covered[key] = covered.get(key, 0) + size
    found = []
    for name in dict.fromkeys(r.plan for r in plan.outputs):
        for cls in plan.classes:
            if name in cls.program.outputs:
                size = cls.program.types()[cls.program.outputs[name]].size
                missing = size - covered.get((cls.name, name), 0)
                if missing:
                    found.append(
                        f"{missing} elements of {name} at every rank of class {cls.name} are padding"
                    )
    related = {r.plan for r in plan.outputs}
    others = sorted({o for c in plan.classes for o in c.program.outputs} - related)
    return [*found, *(f"plan output {name} has no relation" for name in others)]
