"""A plan as the emitter sees it: the op behind every REF, families of collective operands, reduced
tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property

from certificates.plan.affine import ZERO, Affine
from certificates.plan.bounds import Bounds
from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Group, Plan
from certificates.plan.program import Op
from certificates.proof.facts import Reduced, Ref, Tensors, split_ref

from .errors import NoDefinition
from .regroup import Part, reshape_parts

_REGROUPING = ("reshape", "all_gather", "all_to_all")

MASK_KEEPERS = frozenset(("convert", "broadcast_in_dim", "reshape", "transpose"))


class Model:
    """Look-ups over one plan. REFs are ``s:value`` or ``class:value``."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tensors = Tensors(plan)
        self.ops: dict[str, Op] = {f"s:{op.out}": op for op in plan.specification.ops}
        for cls in plan.classes:
            self.ops |= {f"{cls.name}:{op.out}": op for op in cls.program.ops}
        self._ends: dict[str, tuple[int, ...]] = {}
        self._factorised = {name: self._is_factorised(g) for name, g in plan.groups.items()}

    @cached_property
    def order(self) -> dict[Ref, int]:
        """Where each op stands in its program: the specification's first, then class by class."""
        return {ref: i for i, ref in enumerate(self.ops)}

    @cached_property
    def bounds(self) -> Bounds:
        """The ranges that ops show of integers; few plans look anything up by such a number."""
        return Bounds(self.plan)

    def _is_factorised(self, group: Group) -> bool:
        lists = sorted(self.plan.mesh.rank_lists(group.axes)) if group.axes and not group.steps else None
        return bool(group.steps) or sorted(group.ranks) == lists

    def op(self, ref: Ref) -> Op | None:
        """The op that computes a REF; ``None`` for inputs and reduced tensors."""
        return self.ops.get(ref) if isinstance(ref, str) else None

    def operands(self, ref: str) -> tuple[str, ...]:
        owner, _ = split_ref(ref)
        return tuple(f"{owner}:{v}" for v in self.ops[ref].ins)

    def ends(self, ref: str) -> tuple[int, ...]:
        """Where each operand of a ``concatenate`` ends along its dimension."""
        if ref not in self._ends:
            dim = self.ops[ref].integer("dim")
            sizes = (self.tensors.type(v).shape[dim] for v in self.operands(ref))
            self._ends[ref] = tuple(itertools.accumulate(sizes))
        return self._ends[ref]

    def group(self, ref: str) -> Group:
        """The group of a collective; it must equal its claimed axis factorisation."""
        op = self.ops[ref]
        name = op.text("group")
        if not self._factorised[name]:
            raise NoDefinition(f"{op.name} {ref}: group {name} is not the fibres of mesh axes")
        return self.plan.groups[name]

    def family(self, ref: str) -> dict[str, str]:
        """Operand REF per rank class of a collective's rendezvous, or that sends a message, in plan order."""
        ops = self.plan.meets(self.ops[ref])
        return {c.name: f"{c.name}:{ops[c.name].ins[0]}" for c in self.plan.classes if c.name in ops}

    def reduced(self, ref: str, kind: str) -> Reduced:
        """The reduced tensor that a collective computes on the class of ``ref``."""
        return self.reduced_of(split_ref(ref)[0], self.family(ref), self.group(ref).axes, kind)

    def reduced_of(self, cls: str, family: dict[str, str], axes: Sequence[str], kind: str) -> Reduced:
        """The reduced tensor over ``axes`` through class ``cls``; members must tile the axes."""
        box = self.plan.by_class[cls].box
        members = [
            c for c in self.plan.classes
            if c.name in family and all(c.box[a] == box[a] for a in box if a not in axes)
        ]  # fmt: skip
        volume = 0
        for c in members:
            count = 1
            for a in axes:
                count *= c.box[a][1] - c.box[a][0]
            volume += count
        total = 1
        for a in axes:
            total *= self.plan.mesh.axes[a]
        if volume != total:
            raise NoDefinition(
                f"reduction over {','.join(axes)} through class {cls}: its classes do not tile the axes"
            )
        order = tuple(a for a in self.plan.mesh.axes if a in axes)
        return Reduced(kind, order, tuple(family[c.name] for c in members))

    def source(self, ref: str, index: Sequence[Affine]) -> list[Affine]:
        """Where a ``recv`` reads an element: the sender's coordinates, the same dimensions."""
        axes = self.plan.mesh.axes
        here = dict(zip(axes, index, strict=False))
        return [*(f.substitute(here) for f in self.ops[ref].affines("from")), *index[len(axes) :]]

    def position(self, axes: Sequence[str], at: Sequence[Affine]) -> Affine:
        """Row-major position in a group, from the mesh coordinates at the head of a full index."""
        names = list(self.plan.mesh.axes)
        total = ZERO
        for a in axes:
            total = total.scale(self.plan.mesh.axes[a]) + at[names.index(a)]
        return total

    def parts(self, ref: str) -> list[Part]:
        """Parts of a regrouping op over full indices (mesh coordinates first)."""
        op = self.ops[ref]
        mesh = len(self.tensors.mesh_axes(ref))
        operand, result = self.tensors.type(self.operands(ref)[0]).shape, op.type.shape
        if op.name == "reshape":
            return [
                Part(tuple(mesh + d for d in p.arg), tuple(mesh + d for d in p.at), p.arg_sizes, p.at_sizes)
                for p in reshape_parts(operand, result)
            ]
        if op.name not in _REGROUPING:
            raise NoDefinition(f"{op.name} {ref} does not regroup indices")
        names = list(self.plan.mesh.axes)
        axes = self.group(ref).axes
        dim = op.integer("dim" if op.name == "all_gather" else "concat_dim")
        piece = result[dim] // self.group(ref).size
        return [
            Part(
                (*(names.index(a) for a in axes), mesh + dim),
                (mesh + dim,),
                (*(self.plan.mesh.axes[a] for a in axes), piece),
                (result[dim],),
            )
        ]

    def is_mask(self, ref: str) -> bool:
        """Whether a float tensor holds booleans, as 0 and 1, by the way it is made."""
        while (op := self.op(ref)) is not None and op.name in MASK_KEEPERS and op.type.sort == "Real":
            ref = self.operands(ref)[0]
            if op.name == "convert" and self.tensors.type(ref).sort == "Bool":
                return True
        return False

    def literal(self, ref: Ref) -> Fraction | str | Affine | None:
        """Value of a ``constant`` result: a rational, ``true false inf -inf``, or an affine form of mesh
        axes.
        """
        if isinstance(ref, str) and ref.startswith("#"):
            text = ref[3:]
            return text if text in ("true", "false") else Fraction(text)
        op = self.op(ref)
        if op is None or op.name != "constant":
            return None
        value = op.attrs["value"]
        if isinstance(value, Affine):
            return Fraction(value.const) if value.is_const else value
        text = str(value)
        return text if text in ("true", "false", "inf", "-inf") else Fraction(text)

    def scale(self, ref: Ref) -> tuple[int, Fraction] | None:
        """``(operand position, factor)`` if a REF is its operand times a rational literal."""
        op = self.op(ref)
        if op is None or op.type.sort != "Real" or not isinstance(ref, str):
            return None
        if op.name == "negate":
            return 0, Fraction(-1)
        if op.name == "convert":
            return (0, Fraction(1)) if self.tensors.type(self.operands(ref)[0]).sort == "Real" else None
        if op.name not in ("multiply", "divide"):
            return None
        left, right = (self.literal(v) for v in self.operands(ref))
        if op.name == "multiply" and isinstance(left, Fraction):
            return 1, left
        if isinstance(right, Fraction) and (op.name == "multiply" or right):
            return 0, right if op.name == "multiply" else 1 / right
        return None

    def coordinates(self, reduced: Reduced, member: str) -> Iterator[tuple[int, ...]]:
        """All coordinates of the reduced axes that a member's class holds, row-major."""
        box = self.plan.by_class[split_ref(member)[0]].box
        return itertools.product(*(range(*box[a]) for a in reduced.axes))

    def describe(self, ref: Ref) -> str:
        """One line for people: REF, op, type, ranks and source line."""
        if isinstance(ref, Reduced):
            return f"{ref.kind} over {' '.join(ref.axes)} of ({'; '.join(self.describe(m) for m in ref.of)})"
        owner, _ = split_ref(ref)
        op = self.ops.get(ref)
        words = [ref, op.name if op else "input", str(self.tensors.type(ref))]
        if owner != "s" and self.plan.mesh.axes:
            box = self.plan.by_class[owner].box
            words.append("ranks")
            words += [f"{a} {box[a][0]}..{box[a][1] - 1}" for a in self.plan.mesh.axes]
        if op and op.loc:
            words += [f"{self.plan.sources[op.loc.source]}:{op.loc.line}", op.loc.function]
        return " ".join(words)

    def is_collective(self, ref: Ref) -> bool:
        op = self.op(ref)
        return op is not None and op.name in COLLECTIVES
