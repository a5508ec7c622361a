"""Facts: the judgements that stages prove, and the facts that a plan's relations declare or claim.

``docs/certificate.md``, section *Tensors, indices, facts*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from ..plan.affine import Affine, Range, digits
from ..plan.plan import Plan, Relation
from ..plan.types import TensorType, format_rational


@dataclass(frozen=True, slots=True)
class Reduced:
    """``kind`` over all coordinates of ``axes`` of the value each rank holds; one member per rank class."""

    kind: str
    axes: tuple[str, ...]
    of: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(self.axes)}]({', '.join(self.of)})"


#: ``"s:%12"``, ``"c0:params.w"``, a literal ``"#f:1/2" "#i:3" "#b:true"``, or a reduced tensor.
Ref = str | Reduced
_LITERAL_TYPES = {"#f": TensorType("f64", ()), "#i": TensorType("i64", ()), "#b": TensorType("i1", ())}


def split_ref(ref: str) -> tuple[str, str]:
    """``"c0:%5"`` -> ``("c0", "%5")``; the specification is called ``s``."""
    owner, _, value = ref.partition(":")
    return owner, value


@dataclass(frozen=True, slots=True)
class Fact:
    """For all symbols in range: ``lhs[lhs_index] = coef * rhs[rhs_index]`` (full indices)."""

    lhs: Ref
    rhs: Ref
    symbols: tuple[tuple[str, int, int], ...]
    lhs_index: tuple[Affine, ...]
    rhs_index: tuple[Affine, ...]
    coef: Fraction = Fraction(1)
    by: tuple[str, int] | None = field(default=None, compare=False)

    @property
    def ranges(self) -> dict[str, Range]:
        return {name: (lo, hi) for name, lo, hi in self.symbols}

    def __str__(self) -> str:
        over = ", ".join(f"{s} in [{lo},{hi})" for s, lo, hi in self.symbols)
        coef = "" if self.coef == 1 else f"{format_rational(self.coef)} * "
        left, right = (", ".join(map(str, index)) for index in (self.lhs_index, self.rhs_index))
        return f"{self.lhs}[{left}] = {coef}{self.rhs}[{right}] for {over or 'all ranks'}"


class Tensors:
    """Types and full-index ranges of every REF of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.types: dict[str, TensorType] = {f"s:{n}": t for n, t in plan.specification.types().items()}
        for cls in plan.classes:
            self.types |= {f"{cls.name}:{n}": t for n, t in cls.program.types().items()}

    def type(self, ref: Ref) -> TensorType:
        if isinstance(ref, str) and ref.startswith("#"):
            return _LITERAL_TYPES[ref[:2]]
        return self.types[ref if isinstance(ref, str) else ref.of[0]]

    def mesh_axes(self, ref: Ref) -> tuple[str, ...]:
        """Mesh axes among the coordinates, in mesh order."""
        if isinstance(ref, Reduced):
            return tuple(a for a in self.plan.mesh.axes if a not in ref.axes)
        return () if ref.startswith(("s:", "#")) else tuple(self.plan.mesh.axes)

    def ranges(self, ref: Ref) -> tuple[Range, ...]:
        """Half-open range of each coordinate of the full index."""
        if isinstance(ref, str) and ref.startswith("#"):
            return ()
        member = ref if isinstance(ref, str) else ref.of[0]
        owner, _ = split_ref(member)
        mesh = tuple(self.plan.by_class[owner].box[a] for a in self.mesh_axes(ref))
        return mesh + tuple((0, n) for n in self.type(ref).shape)


def relation_facts(plan: Plan, relation: Relation, side: str, number: int) -> list[Fact]:
    """The facts that a relation stands for; ``side`` is ``input`` (declared) or ``output`` (claimed)."""

    def value(program_of: str, name: str) -> str:
        program = plan.specification if program_of == "s" else plan.by_class[program_of].program
        return f"{program_of}:{name if side == 'input' else program.outputs[name]}"

    spec = value("s", relation.spec)
    reduced = relation.reduce[1] if relation.reduce else ()
    free = [a for a in plan.mesh.axes if a not in reduced]
    groups: dict[object, list[str]] = {}
    shown: dict[object, tuple[tuple[str, int, int], ...]] = {}
    forms: dict[object, tuple[tuple[Affine, ...], tuple[Affine, ...]]] = {}
    for position, piece in enumerate(relation.pieces):
        box: Mapping[str, Range] = plan.by_class[piece.cls].box
        key: object = position
        if reduced:
            key = (piece.sizes, piece.plan, piece.spec, tuple(box[a] for a in free))
        groups.setdefault(key, []).append(value(piece.cls, relation.plan))
        shown[key] = tuple((a, *box[a]) for a in free) + tuple(
            (z, *r) for z, r in digits(piece.sizes).items()
        )
        forms[key] = (tuple(Affine.symbol(a) for a in free) + piece.plan, piece.spec)
    order = [c.name for c in plan.classes]
    facts = []
    for key, members in groups.items():
        members.sort(key=lambda ref: order.index(split_ref(ref)[0]))
        axes = tuple(a for a in plan.mesh.axes if a in reduced)
        lhs: Ref = Reduced(relation.reduce[0], axes, tuple(members)) if relation.reduce else members[0]
        facts.append(Fact(lhs, spec, shown[key], *forms[key], relation.coef, (side, number)))
    return facts
