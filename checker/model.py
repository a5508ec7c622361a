"""What the kernel knows of the tensors of a plan: types, coordinates, producers, reductions, families.

Obligations 13 (groups) and 14 (rendezvous and reduced tensors) are decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from .affine import Affine
from .errors import Rejected
from .reader import Op, Plan, Program, RankClass, Type
from .records import Element, Index, Reduced, Ref, Tensor
from .terms import Term, element_text, integer, literal, nary

Ranges = Mapping[str, tuple[int, int] | None]
MAX_SUMMANDS = 128
LITERALS = {"#f": "f64", "#i": "i64", "#b": "i1"}


def evident(form: Affine, low: int | None, high: int | None, ranges: Ranges) -> bool:
    """`low <= form` and `form < high`, by interval arithmetic over the symbols' ranges (None: not asked)."""
    first, last = form.interval(ranges)
    return (low is None or low <= first) and (high is None or last < high)


def range_guard(forms: Sequence[Affine], bounds: Sequence[tuple[int, int]], ranges: Ranges) -> list[Term]:
    """Per coordinate the parts of `lo <= form < hi` that are not evident."""
    guard: list[Term] = []
    for form, (low, high) in zip(forms, bounds, strict=True):
        if not evident(form, low, None, ranges):
            guard.append(("<=", integer(low), form))
        if not evident(form, None, high, ranges):
            guard.append(("<", form, integer(high)))
    return guard


class Model:
    """A plan, with lookups by REF. A REF that does not exist or is not complete is rejected."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.axes = tuple(a for a, _ in plan.mesh)
        self._known: dict[Ref, tuple[Type, tuple[str, ...], tuple[tuple[int, int], ...]]] = {}

    def cls(self, ref: Tensor) -> RankClass | None:
        return self.plan.classes.get(ref.space)

    def program(self, ref: Tensor) -> Program:
        cls = self.cls(ref)
        return self.plan.spec if cls is None else cls.program

    def producer(self, ref: Ref) -> Op | None:
        return self.program(ref).producers.get(ref.value) if isinstance(ref, Tensor) else None

    def type(self, ref: Ref) -> Type:
        return self._look(ref)[0]

    def mesh_axes(self, ref: Ref) -> tuple[str, ...]:
        """The mesh axes among the coordinates, which they lead."""
        return self._look(ref)[1]

    def ranges(self, ref: Ref) -> tuple[tuple[int, int], ...]:
        """The range of every coordinate of the full index."""
        return self._look(ref)[2]

    def _look(self, ref: Ref) -> tuple[Type, tuple[str, ...], tuple[tuple[int, int], ...]]:
        if ref not in self._known:
            self._known[ref] = self._plain(ref) if isinstance(ref, Tensor) else self._reduced(ref)
        return self._known[ref]

    @staticmethod
    def is_literal(ref: Ref) -> bool:
        return isinstance(ref, Tensor) and ref.space in LITERALS

    def _plain(self, ref: Tensor) -> tuple[Type, tuple[str, ...], tuple[tuple[int, int], ...]]:
        if ref.space in LITERALS:
            return Type(LITERALS[ref.space], ()), (), ()
        cls = self.cls(ref)
        if (cls is None and ref.space != "s") or ref.value not in self.program(ref).types:
            raise Rejected(3, "facts and tensors", f"there is no tensor {str(ref)[:80]}")
        kind = self.program(ref).types[ref.value]
        box = () if cls is None else cls.box
        return kind, () if cls is None else self.axes, (*box, *((0, n) for n in kind.shape))

    def _reduced(self, ref: Reduced) -> tuple[Type, tuple[str, ...], tuple[tuple[int, int], ...]]:
        """Obligation 14: members in plan order, of one type, agreeing outside the axes and tiling them."""
        def fail(why: str) -> Rejected:
            return Rejected(14, "rendezvous and reduced tensors", f"{str(ref)[:200]}: {why}")

        if not ref.axes or list(ref.axes) != [a for a in self.axes if a in ref.axes]:
            raise fail("axes must be mesh axes in mesh order")
        if any(r.space not in self.plan.classes for r in ref.of):
            raise fail("a member is no tensor of the plan")
        kinds = [self.type(r) for r in ref.of]
        spaces = [r.space for r in ref.of]
        if kinds[0].sort == "Bool" or any(k != kinds[0] for k in kinds):
            raise fail("members must have one numeric type")
        if spaces != [c for c in self.plan.classes if c in spaces] or len(set(spaces)) != len(spaces):
            raise fail("members must stand in plan order, one per class")
        rest = [tuple(b for a, b in zip(self.axes, self.ranges(r), strict=False) if a not in ref.axes)
                for r in ref.of]
        if any(box != rest[0] for box in rest):
            raise fail("classes disagree outside the axes")
        covered = 0
        for r in ref.of:
            inside = 1
            for a, (low, high) in zip(self.axes, self.ranges(r), strict=False):
                inside *= high - low if a in ref.axes else 1
            covered += inside
        full = 1
        for a, n in self.plan.mesh:
            full *= n if a in ref.axes else 1
        if covered != full:
            raise fail("the classes do not tile the axes")
        kept = tuple(a for a in self.axes if a not in ref.axes)
        return kinds[0], kept, (*rest[0], *((0, n) for n in kinds[0].shape))

    # Collectives

    def reduced_of(self, op: Op, ref: Tensor, kind: str) -> Reduced:
        """The reduced tensor of a collective's operands, seen from the class of `ref`."""
        axes = self.group_axes(op)
        meets = self.plan.rendezvous[op.attrs["seq"]]
        keep = [i for i, a in enumerate(self.axes) if a not in axes]
        here = self.plan.classes[ref.space].box
        of = tuple(Tensor(c, meets[c].operands[0]) for c, cls in self.plan.classes.items()
                   if c in meets and all(cls.box[i] == here[i] for i in keep))
        return Reduced(kind, tuple(a for a in self.axes if a in axes), of)

    def group_axes(self, op: Op) -> tuple[str, ...]:
        """Obligation 13: the group's rank lists are the fibres of its axes, order included."""
        group = self.plan.groups[op.attrs["group"]]
        if not group.factorised:
            raise Rejected(13, "process groups",
                           f"group {group.name} of op {op.result} is no mesh factorisation")
        return group.axes

    def position(self, op: Op, mesh: Sequence[Affine]) -> Affine:
        """Row-major position of a rank in the group of a collective."""
        result = Affine(0)
        for axis in self.group_axes(op):
            i = self.plan.axis(axis)
            result = Affine.total([(self.plan.mesh[i][1], result), (1, mesh[i])])
        return result

    def family(self, op: Op, index: Index, ranges: Ranges) -> Term:
        """The operand of a rendezvous read at mesh forms that may reach several classes."""
        meets = self.plan.rendezvous[op.attrs["seq"]]
        k = len(self.axes)
        chain: list[tuple[list[Term], Term]] = []
        for name, cls in self.plan.classes.items():
            spans = [form.interval(ranges) for form in index[:k]]
            if all(first < high and low <= last for (first, last),
                   (low, high) in zip(spans, cls.box, strict=True)):
                if name not in meets:
                    raise Rejected(14, "rendezvous and reduced tensors",
                                   f"class {name} takes no part in {op.result}")
                operand = Tensor(name, meets[name].operands[0])
                chain.append((range_guard(index[:k], cls.box, ranges), self.read(operand, index)))
        if not chain:
            raise Rejected(14, "rendezvous and reduced tensors", f"no class is reached by {op.result}")
        result = chain[-1][1]
        for guard, term in reversed(chain[:-1]):
            result = ("ite", nary("and", guard), term, result) if guard else term
        return result

    # Reading elements in layout stages

    def constant(self, ref: Ref) -> Fraction | bool | str | Affine | None:
        """The value of a literal REF or of the result of a `constant` op."""
        if isinstance(ref, Tensor) and ref.space in LITERALS:
            return ref.value == "true" if ref.space == "#b" else Fraction(ref.value)
        op = self.producer(ref)
        if op is None or op.name != "constant":
            return None
        value: Fraction | bool | str | Affine = op.attrs["value"]
        return value

    def read(self, ref: Ref, index: Index) -> Term:
        """The term of one element at index forms (layout stages)."""
        op, sort = self.producer(ref), self.type(ref).sort
        value = self.constant(ref)
        k = len(self.mesh_axes(ref))
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return "pos_inf" if value == "inf" else "neg_inf"
        if isinstance(value, Fraction):
            return literal(value, sort)
        if op is not None and (isinstance(value, Affine) or op.name == "iota"):
            form = index[k + op.attrs["dim"]] if value is None else value.substitute(
                dict(zip(self.axes, index, strict=False)))
            return ("to_real", form) if sort == "Real" else form
        return (ref, *index) if index else ref

    # Text

    def signature(self, ref: Ref) -> str:
        return f"({' '.join(['Int'] * len(self.ranges(ref)))}) {self.type(ref).sort}"

    def describe(self, item: Ref | Element) -> str:
        """The comment that names a tensor: op, type, ranks and source line."""
        if isinstance(item, Element):
            return element_text(item, self.describe)
        if isinstance(item, Reduced):
            inner = "; ".join(self.describe(r) for r in item.of)
            return f"{item.kind} over {' '.join(item.axes)} of ({inner})"
        op, cls = self.producer(item), self.cls(item)
        text = f"{item} {op.name if op else 'input'} {self.type(item)}"
        if cls is not None and cls.box:
            text += " ranks " + " ".join(f"{a} {lo}..{hi - 1}" for a,
                                         (lo, hi) in zip(self.axes, cls.box, strict=True))
        if op is not None and op.source is not None:
            text += f" {self.plan.sources[op.source[0]]}:{op.source[1]} {op.source[2]}"
        return text
