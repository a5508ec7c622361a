"""A verification problem as data: specification, plan, input relation and claimed output relation.

Format: ``docs/format.md``. :mod:`.reading` makes checked plans of files, :mod:`.writing` deterministic bytes
of plans.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache

from certificates.plan.affine import Affine, Range
from certificates.plan.calls import calls

from .ops import COLLECTIVES, MESSAGES
from .program import Op, Program
from .schedule import Schedule

FORMAT, VERSIONS = "trainverify-plan", (1, 2, 3, 4)

Box = Mapping[str, Range]
Coordinates = Mapping[str, int]


@dataclass(frozen=True)
class Mesh:
    """Named axes and their sizes: time axes first, if there are any, then those of the ranks.

    A *point* is a rank at one coordinate of each time axis. Points are numbered row-major, and so are ranks:
    without time axes they are the same.
    """

    axes: Mapping[str, int]
    time: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return math.prod(self.space.values())

    @property
    def points(self) -> int:
        return math.prod(self.axes.values())

    @property
    def space(self) -> dict[str, int]:
        """The axes of the ranks."""
        return {name: size for name, size in self.axes.items() if name not in self.time}

    def without(self, axes: tuple[str, ...]) -> dict[str, int]:
        """The other axes."""
        return {name: size for name, size in self.axes.items() if name not in axes}

    def coordinates(self, point: int) -> dict[str, int]:
        out: dict[str, int] = {}
        for name, size in reversed(list(self.axes.items())):
            point, out[name] = divmod(point, size)
        return {name: out[name] for name in self.axes}

    def rank(self, at: Coordinates) -> int:
        """The rank at these coordinates."""
        return self._number(at, self.space)

    def point(self, at: Coordinates) -> int:
        return self._number(at, self.axes)

    @staticmethod
    def _number(at: Coordinates, axes: Mapping[str, int]) -> int:
        total = 0
        for name, size in axes.items():
            total = total * size + at[name]
        return total

    def rank_lists(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The partition of all ranks into fibres of ``axes``: lists ordered row-major in the listed axes."""
        return Mesh(self.space).fibres(axes)

    def fibres(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The same partition of all points."""
        return _fibres(tuple(self.axes.items()), axes)


@lru_cache(maxsize=32)  # asked for each collective of a plan
def _fibres(sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    mesh = Mesh(dict(sizes))
    rest = [a for a in mesh.axes if a not in axes]
    return tuple(
        tuple(
            mesh.point(dict(zip(rest, fixed, strict=True)) | dict(zip(axes, moving, strict=True)))
            for moving in itertools.product(*(range(mesh.axes[a]) for a in axes))
        )
        for fixed in itertools.product(*(range(mesh.axes[a]) for a in rest))
    )


@dataclass(frozen=True)
class Group:
    """A process group: all its instances as ordered rank lists, and the factorisation its author claims.

    A group over time axes has no rank lists: it joins the ``steps`` time coordinates of one rank.
    """

    axes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    steps: int = 0

    @property
    def size(self) -> int:
        return self.steps or len(self.ranks[0])

    def lists(self, mesh: Mesh) -> tuple[tuple[int, ...], ...]:
        """All instances as lists of points. With time axes every group is factorised."""
        return mesh.fibres(self.axes) if mesh.time else self.ranks


@dataclass(frozen=True)
class RankClass:
    """Ranks of one box of mesh coordinates run one program."""

    name: str
    box: Box
    program: Program


@dataclass(frozen=True)
class Function:
    """Code that the step runs many times: its body in the specification and in every rank class.

    A function at a slice is called by the classes of one coordinate ``along`` some mesh axes; its bodies
    stand on the other axes and belong to ``roles``, boxes there, which the calling classes have.
    """

    specification: Program
    classes: Mapping[str, Program]
    along: tuple[str, ...] = ()
    roles: Mapping[str, Box] = field(default_factory=dict)

    def role(self, box: Box) -> str | None:
        """The role that a class of this box has in a function at a slice."""
        boxes = ((r, b) for r, b in self.roles.items() if all(box[a] == side for a, side in b.items()))
        return next((r for r, _ in boxes), None)


@dataclass(frozen=True)
class Piece:
    """``plan_m[plan(z)] = coef * spec[spec(z, m)]`` for every rank ``m`` of a class and digits ``z``."""

    cls: str
    sizes: tuple[int, ...]
    plan: tuple[Affine, ...]
    spec: tuple[Affine, ...]


@dataclass(frozen=True)
class Relation:
    """How one specification tensor lies on the mesh; ``reduce`` is ``(kind, axes)`` for partial values."""

    spec: str
    plan: str
    pieces: tuple[Piece, ...]
    coef: Fraction = Fraction(1)
    reduce: tuple[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Plan:
    """A verification problem. Immutable; :func:`.checking.check_plan` holds for every one that was loaded."""

    name: str
    mesh: Mesh
    groups: Mapping[str, Group]
    sources: tuple[str, ...]
    specification: Program
    classes: tuple[RankClass, ...]
    inputs: tuple[Relation, ...]
    outputs: tuple[Relation, ...]
    ranges: Mapping[str, Range] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    version: int = 1
    schedule: Schedule | None = None
    written: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Texts of the members of its document, from the first time that :func:`.writing.texts` is asked."""

    @cached_property
    def by_class(self) -> dict[str, RankClass]:
        return {c.name: c for c in self.classes}

    def class_of(self, at: Coordinates) -> RankClass:
        """The rank class that holds a mesh coordinate."""
        return next(c for c in self.classes if all(c.box[a][0] <= x < c.box[a][1] for a, x in at.items()))

    def role(self, function: str, cls: str) -> str | None:
        """Whose body of a function a class runs, if it may call it."""
        return self._roles[function].get(cls)

    def body(self, function: str, cls: str) -> Program:
        """What a class runs at a call of a function."""
        role = self.role(function, cls)
        assert role is not None, f"class {cls} has no role of {function}"
        return self.functions[function].classes[role]

    @cached_property
    def _roles(self) -> dict[str, dict[str, str | None]]:
        return {
            name: {c.name: f.role(c.box) if f.along else c.name for c in self.classes}
            for name, f in self.functions.items()
        }

    def rendezvous(self, seq: int) -> dict[str, Op]:
        """The op of each class that takes part in collective ``seq``."""
        return self._rendezvous.get(seq, {})

    def messages(self, name: str, seq: int) -> dict[str, Op]:
        """The ``send`` or ``recv`` (``name``) of message ``seq`` in each class that has it."""
        return self._messages.get((name, seq), {})

    def meets(self, op: Op) -> dict[str, Op]:
        """What a collective or a message is made of, in every class: ops with operands."""
        seq = op.integer("seq")
        return self.messages("send", seq) if op.name in MESSAGES else self.rendezvous(seq)

    def sender(self, op: Op, at: Coordinates) -> int:
        """The point from which a ``recv`` at these coordinates takes its value."""
        forms = zip(self.mesh.axes, op.affines("from"), strict=True)
        return self.mesh.point({axis: form.evaluate(at) for axis, form in forms})

    @cached_property
    def _messages(self) -> dict[tuple[str, int], dict[str, Op]]:
        out: dict[tuple[str, int], dict[str, Op]] = {}
        for cls in self.classes:
            for op in cls.program.ops:
                if op.name in MESSAGES:
                    out.setdefault((op.name, op.integer("seq")), {})[cls.name] = op
        return out

    @cached_property
    def operand_ranges(self) -> dict[str, dict[str, Range]]:
        """For each function that is called: ranges of the inputs whose operands all have one."""
        operands: dict[str, list[tuple[str, ...]]] = {}
        for call in calls(self.specification):
            operands.setdefault(call.function, []).append(call.ins)
        out: dict[str, dict[str, Range]] = {}
        for name, of_calls in operands.items():
            inputs = self.functions[name].specification.inputs
            found = {i: set(values) for i, values in zip(inputs, zip(*of_calls, strict=True), strict=True)}
            out[name] = {
                i: (min(self.ranges[v][0] for v in values), max(self.ranges[v][1] for v in values))
                for i, values in found.items()
                if values <= self.ranges.keys()
            }
        return out

    @cached_property
    def _rendezvous(self) -> dict[int, dict[str, Op]]:
        out: dict[int, dict[str, Op]] = {}
        for cls in self.classes:
            for op in cls.program.ops:
                if op.name in COLLECTIVES:
                    out.setdefault(op.integer("seq"), {})[cls.name] = op
        return out


def states(plan: Plan) -> Iterator[str]:
    """Inputs of both sides that a relation ties and that are declared neither given nor constant."""
    tied = dict.fromkeys(name for r in plan.inputs for name in (r.spec, r.plan))
    return (name for name in tied if name not in plan.given and name not in plan.constants)
