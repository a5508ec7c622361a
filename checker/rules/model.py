"""What the kernel knows of the tensors of a plan: types, coordinates, producers, reductions, families.

Obligations 13 (groups) and 14 (rendezvous and reduced tensors) are decided here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from ..errors import Rejected
from ..language.affine import Affine, Ranges, row_major
from ..language.ops import Op, Term, Type
from ..language.plan import Box, Plan
from ..language.proof import Element, Index, Reduced, Ref, Tensor
from .bounds import Bounds
from .terms import literal, nary, range_guard

LITERALS = {"#f": "f64", "#i": "i64", "#b": "i1"}


class Model:
    """A plan, or a function of `caller`. A REF that does not exist or is not complete is rejected."""

    def __init__(self, plan: Plan, function: str = "", caller: Plan | None = None) -> None:
        self.plan, self.axes = plan, tuple(a for a, _ in plan.mesh)
        self.function, self.caller = function, caller
        self.bounds = Bounds(plan)
        self._known: dict[Ref, tuple[Type, tuple[str, ...], Box]] = {}

    def producer(self, ref: Ref) -> Op | None:
        return self.plan.program(ref.space).producers.get(ref.value) if isinstance(ref, Tensor) else None

    def type(self, ref: Ref) -> Type:
        return self._look(ref)[0]

    def mesh_axes(self, ref: Ref) -> tuple[str, ...]:
        """The mesh axes among the coordinates, which they lead."""
        return self._look(ref)[1]

    def ranges(self, ref: Ref) -> Box:
        """The range of every coordinate of the full index."""
        return self._look(ref)[2]

    def _look(self, ref: Ref) -> tuple[Type, tuple[str, ...], Box]:
        if ref not in self._known:
            self._known[ref] = self._plain(ref) if isinstance(ref, Tensor) else self._reduced(ref)
        return self._known[ref]

    def _plain(self, ref: Tensor) -> tuple[Type, tuple[str, ...], Box]:
        if ref.space in LITERALS:
            return Type(LITERALS[ref.space], ()), (), ()
        cls = self.plan.classes.get(ref.space)
        if (cls is None and ref.space != "s") or ref.value not in self.plan.program(ref.space).types:
            raise Rejected(3, f"there is no tensor {str(ref)[:80]}")
        kind = self.plan.program(ref.space).types[ref.value]
        box, axes = (cls.box, self.axes) if cls else ((), ())
        return kind, axes, (*box, *((0, n) for n in kind.shape))

    def _reduced(self, ref: Reduced) -> tuple[Type, tuple[str, ...], Box]:
        """Obligation 14: members in plan order, of one type, agreeing outside the axes and tiling them."""

        def require(good: bool, why: str) -> None:
            if not good:
                raise Rejected(14, f"{str(ref)[:200]}: {why}")

        require(
            bool(ref.axes) and list(ref.axes) == [a for a in self.axes if a in ref.axes],
            "axes must be mesh axes in mesh order",
        )
        spaces = [r.space for r in ref.of]
        require(all(s in self.plan.classes for s in spaces), "a member is no tensor of the plan")
        require(spaces == [c for c in self.plan.classes if c in spaces], "members must stand in plan order")
        kinds = {self.type(r) for r in ref.of}
        kind = kinds.pop()
        require(not kinds and kind.sort != "Bool", "members must have one numeric type")
        kept = tuple(a for a in self.axes if a not in ref.axes)
        boxes = [self.plan.box(s) for s in spaces]
        rest = {tuple(box[a] for a in kept) for box in boxes}
        require(len(rest) == 1, "classes disagree outside the axes")
        covered = sum(math.prod(box[a][1] - box[a][0] for a in ref.axes) for box in boxes)
        require(
            covered == math.prod(n for a, n in self.plan.mesh if a in ref.axes),
            "the classes do not tile the axes",
        )
        return kind, kept, (*rest.pop(), *((0, n) for n in kind.shape))

    # Collectives

    def reduced_of(self, op: Op, ref: Tensor) -> Reduced:
        """The reduced tensor of a collective's operands, seen from the class of `ref`."""
        axes, here = self.group_axes(op), self.plan.box(ref.space)
        meets = self.plan.rendezvous[op.attrs["seq"]]
        of = tuple(
            Tensor(c, meets[c].operands[0])
            for c in self.plan.classes
            if c in meets and all(self.plan.box(c)[a] == here[a] for a in self.axes if a not in axes)
        )
        return Reduced(op.attrs["kind"], tuple(a for a in self.axes if a in axes), of)

    def group_axes(self, op: Op) -> tuple[str, ...]:
        """Obligation 13: the group's rank lists are the fibres of its axes, order included."""
        group = self.plan.groups[op.attrs["group"]]
        if not group.factorised:
            raise Rejected(13, f"group {group.name[:60]} of op {op.result} is no mesh factorisation")
        return group.axes

    def position(self, op: Op, mesh: Sequence[Affine]) -> Affine:
        """Row-major position of a rank in the group of a collective."""
        places = [self.plan.axis(a) for a in self.group_axes(op)]
        return row_major([mesh[i] for i in places], [self.plan.mesh[i][1] for i in places])

    def family(self, op: Op, index: Index, ranges: Ranges) -> Term:
        """The operand of a rendezvous, or of a message, read at mesh forms that may reach several classes."""
        meets, mesh = self.plan.meets(op), index[: len(self.axes)]
        spans = [form.interval(ranges) for form in mesh]
        chain: list[tuple[list[Term], Term]] = []
        for name, cls in self.plan.classes.items():
            if all(
                first < high and low <= last
                for (first, last), (low, high) in zip(spans, cls.box, strict=True)
            ):
                if name not in meets:
                    raise Rejected(14, f"class {name} takes no part in {op.result}")
                operand = Tensor(name, meets[name].operands[0])
                chain.append((range_guard(mesh, cls.box, ranges), self.read(operand, index)))
        if not chain:
            raise Rejected(14, f"no class is reached by {op.result}")
        result = chain[-1][1]
        for guard, term in reversed(chain[:-1]):
            result = ("ite", nary("and", guard), term, result) if guard else term
        return result

    def mask(self, ref: Tensor) -> bool:
        """Is a float tensor made of booleans, as 0 and 1, by conversion and data movement?"""
        while (
            (op := self.producer(ref)) is not None
            and op.type.sort == "Real"
            and op.name in ("convert", "broadcast_in_dim", "reshape", "transpose")
        ):
            if op.ins[0].sort == "Bool":
                return True
            ref = Tensor(ref.space, op.operands[0])
        return False

    def shown(self, ref: Ref) -> tuple[int, int] | None:
        """The least and the greatest that the ops of a tensor of a program show; None of a reduced tensor."""
        if not isinstance(ref, Tensor) or ref.space in LITERALS:
            return None
        return self.bounds.of(ref.space, ref.value)

    # Reading elements

    def constant(self, ref: Ref) -> Fraction | bool | str | Affine | None:
        """The value of a literal REF or of the result of a `constant` op."""
        if isinstance(ref, Tensor) and ref.space in LITERALS:
            return ref.value == "true" if ref.space == "#b" else Fraction(ref.value)
        op = self.producer(ref)
        return op.attrs["value"] if op and op.name == "constant" else None

    def read(self, ref: Ref, index: Index) -> Term:
        """The term of one element at index forms (layout stages)."""
        op, sort, value = self.producer(ref), self.type(ref).sort, self.constant(ref)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return "pos_inf" if value == "inf" else "neg_inf"
        if isinstance(value, Fraction):
            return literal(value, sort)
        form = None
        if isinstance(value, Affine):
            form = value.substitute(dict(zip(self.axes, index, strict=False)))
        elif op is not None and op.name == "iota":
            form = index[len(self.mesh_axes(ref)) + op.attrs["dim"]]
        if form is not None:
            return ("to_real", form) if sort == "Real" else form
        return (ref, *index) if index else ref

    # Text

    def signature(self, ref: Ref) -> str:
        return f"({' '.join(['Int'] * len(self.ranges(ref)))}) {self.type(ref).sort}"

    def describe(self, item: Ref | Element) -> str:
        """The comment that names a tensor or an element: op, type, ranks and source line."""
        if isinstance(item, Element):
            coords = ", ".join(f"p{c[0]}:{'.'.join(map(str, c[1:]))}" for c in item.coords)
            return f"{self.describe(item.ref)} at [{coords}]"
        if isinstance(item, Reduced):
            return f"{item.kind} over {' '.join(item.axes)} of ({'; '.join(map(self.describe, item.of))})"
        op = self.producer(item)
        text = f"{item} {op.name if op else 'input'} {self.type(item)}"
        if item.space in self.plan.classes and self.axes:
            box = self.plan.box(item.space)
            text += " ranks " + " ".join(f"{a} {lo}..{hi - 1}" for a, (lo, hi) in box.items())
        if op is not None and op.source is not None:
            text += f" {self.plan.sources[op.source[0]]}:{op.source[1]} {op.source[2]}"
        return text
