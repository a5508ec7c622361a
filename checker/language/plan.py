"""A plan as data: programs, rank classes, process groups, relations (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from .affine import Affine
from .ops import Op, Type
from .schedule import Schedule

Box = tuple[tuple[int, int], ...]


Site = tuple[str, int]
"""A function and the number of an instance of it."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program in static single assignment; `types` covers inputs and results, `producers` the results.
    `calls` has the operands and the results of every call; each result's producer is an op named `call`.
    Ops on packed rows are read as plain ops: `keys` has what their orders sort by and the number of keys,
    `shipped` how rows go under a number, `after` the order that a result waits for (`reading/rows.py`)."""

    inputs: Mapping[str, Type]
    ops: tuple[Op, ...]
    outputs: Mapping[str, str]
    types: Mapping[str, Type]
    producers: Mapping[str, Op]
    calls: Mapping[Site, tuple[tuple[str, ...], tuple[str, ...]]]
    keys: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    shipped: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankClass:
    """The ranks in `box` (half-open intervals in mesh order), which run `program`."""

    name: str
    box: Box
    program: Program


@dataclass(frozen=True, slots=True)
class Group:
    """A process group; `factorised` when its rank lists are exactly the fibres of `axes`, order included.
    A group over time axes joins so many `runs` of one rank and has no lists."""

    name: str
    axes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    factorised: bool
    runs: int = 0

    @property
    def size(self) -> int:
        return self.runs or len(self.ranks[0])


class Message(NamedTuple):
    """What sends and what receives a message, by class."""

    send: dict[str, Op]
    recv: dict[str, Op]


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a relation: digits z0.. of these sizes, forms of the plan and specification index."""

    cls: str
    sizes: tuple[int, ...]
    plan: tuple[Affine, ...]
    spec: tuple[Affine, ...]

    def digits(self) -> dict[str, tuple[int, int]]:
        return {f"z{i}": (0, n) for i, n in enumerate(self.sizes)}


@dataclass(frozen=True, slots=True)
class Relation:
    """`plan[...] = coef * spec[...]`, or the reduction over mesh axes of the plan side (`reduce`)."""

    spec: str
    plan: str
    coef: Fraction
    reduce: tuple[str, tuple[str, ...]] | None
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan file. `mesh` has the `time` axes first, then those of the ranks. `rendezvous[seq][class]`
    is the collective of that number in that class. A function is a plan of its own, without relations: its
    bodies. One at a slice stands on the mesh without the axes `along` it; its classes are roles, and `plays`
    says which role each class of the plan has that may call it."""

    name: str
    mesh: tuple[tuple[str, int], ...]
    groups: Mapping[str, Group]
    sources: tuple[str, ...]
    spec: Program
    classes: Mapping[str, RankClass]
    inputs: tuple[Relation, ...]
    outputs: tuple[Relation, ...]
    ranges: Mapping[str, tuple[int, int]]
    provenance: Mapping[str, Any]
    rendezvous: Mapping[int, Mapping[str, Op]]
    digest: str
    functions: Mapping[str, Plan]
    given: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    version: int = 1
    time: tuple[str, ...] = ()
    messages: Mapping[int, Message] = field(default_factory=dict)
    schedule: Schedule | None = None
    along: tuple[str, ...] = ()
    plays: Mapping[str, str] = field(default_factory=dict)

    def axis(self, name: str) -> int:
        """Position of a mesh axis."""
        return [a for a, _ in self.mesh].index(name)

    def box(self, cls: str) -> dict[str, tuple[int, int]]:
        """The range of every mesh axis in a class."""
        return {a: b for (a, _), b in zip(self.mesh, self.classes[cls].box, strict=True)}

    def lines(self, group: Group) -> Sequence[tuple[int, ...]]:
        """The points that a group joins, as numbers on the whole mesh, time included."""
        return fibres(self.mesh, group.axes) if self.time else group.ranks

    def meets(self, op: Op) -> Mapping[str, Op]:
        """What a collective or an end of a message is made of, in every class: ops with operands."""
        seq = op.attrs["seq"]
        return self.messages[seq].send if seq in self.messages else self.rendezvous[seq]

    def reached(self, cls: RankClass, op: Op) -> list[str]:
        """The classes that the forms of a message may meet: those that send what is received, or receive."""
        box = self.box(cls.name)
        spans = [f.interval(box) for f in op.attrs["to" if op.name == "send" else "from"]]
        return [
            name
            for name, other in self.classes.items()
            if all(
                first < hi and lo <= last for (first, last), (lo, hi) in zip(spans, other.box, strict=True)
            )
        ]

    def program(self, space: str) -> Program:
        return self.classes[space].program if space in self.classes else self.spec

    def role(self, function: str, space: str) -> str:
        """Whose body of a function a class runs, or the specification."""
        return self.functions[function].plays.get(space, space)

    def callers(self, site: Site) -> list[str]:
        """The classes that call an instance of a function."""
        return [c for c, cls in self.classes.items() if site in cls.program.calls]

    def operands(self, function: str, space: str, name: str) -> list[tuple[str, str]]:
        """What stands for an input of a function at each of its calls, in every class that has this role."""
        place = list(self.functions[function].program(space).inputs).index(name)
        spaces = [s for s in ("s", *self.classes) if self.role(function, s) == space]
        return [
            (s, o[place]) for s in spaces for (f, _), (o, _) in self.program(s).calls.items() if f == function
        ]


def apart(a: Box, b: Box) -> bool:
    """Have two boxes no common point?"""
    return any(x[1] <= y[0] or y[1] <= x[0] for x, y in zip(a, b, strict=True))


def fibres(mesh: tuple[tuple[str, int], ...], axes: Sequence[str]) -> list[tuple[int, ...]]:
    """The rank lists of a factorised group (obligation 13): members in row-major order of the axes as
    listed."""
    sizes, stride, steps = dict(mesh), 1, dict[str, range]()
    for axis, n in reversed(mesh):
        steps[axis], stride = range(0, n * stride, stride), stride * n
    bases = product(*(steps[a] for a in sizes if a not in axes))
    return [tuple(sum(base) + sum(step) for step in product(*(steps[a] for a in axes))) for base in bases]
