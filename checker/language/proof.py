"""A proof as data: tensors, facts, stages, lemmas, and the manifest (docs/certificate.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from .affine import Affine
from .plan import Plan
from .schedule import When

MAX_REPS = 1000


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the specification (space "s") or of a rank class, or a literal (space "#f", "#i", "#b")."""

    space: str
    value: str

    def __str__(self) -> str:
        return f"{self.space}:{self.value}"


@dataclass(frozen=True, slots=True)
class Reduced:
    """The reduction, over all coordinates of `axes`, of what each rank holds; one member per rank class."""

    kind: str
    axes: tuple[str, ...]
    of: tuple[Tensor, ...]

    def __str__(self) -> str:
        return f"{self.kind} over {' '.join(self.axes)} of ({'; '.join(map(str, self.of))})"


Ref = Tensor | Reduced
Index = tuple[Affine, ...]
Piece = tuple[int, tuple[str, ...], tuple[int, ...]]
"""Offset, classes major to minor, and the stride of each."""
Tree = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """For all values of the symbols: `lhs[lhs_index] = coef * rhs[rhs_index]`."""

    lhs: Ref
    rhs: Ref
    coef: Fraction
    symbols: tuple[tuple[str, int, int], ...]
    lhs_index: Index
    rhs_index: Index

    def __hash__(self) -> int:
        return hash((self.lhs, self.rhs, self.lhs_index, self.rhs_index))  # that of a Fraction is slow

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {name: (lo, hi) for name, lo, hi in self.symbols}


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a tensor in an algebra stage: per coordinate the piece number and its representatives."""

    ref: Ref
    coords: tuple[tuple[Any, ...], ...]

    def pieces(self) -> tuple[int, ...]:
        return tuple(c[0] for c in self.coords)


class BoundSymbol(NamedTuple):
    sym: str


class BoundPart(NamedTuple):
    t: Ref
    at: Index
    arg: Index
    part: int


class BoundValue(NamedTuple):
    t: Ref
    at: Index
    value: str


class Def(NamedTuple):
    t: Ref
    at: Index
    arg: Index | None


class Hyp(NamedTuple):
    facts: tuple[int, ...]
    at: Index
    lift: tuple[str, ...]
    kind: str


class Range(NamedTuple):
    input: str
    at: Index


class Evident(NamedTuple):
    t: Ref
    at: Index


class ElementDef(NamedTuple):
    e: Element


class ElementHyp(NamedTuple):
    fact: int
    at: Index
    defines: str


class Law(NamedTuple):
    """`lhs = rhs`; terms are Elements, ("lit", q), ("*", q, term) and (operator or function, term, …)."""

    schema: str
    lhs: Any
    rhs: Any


LayoutPremise = BoundSymbol | BoundPart | BoundValue | Def | Hyp | Range | Evident
AlgebraPremise = ElementDef | ElementHyp | Law


class LayoutStage(NamedTuple):
    goal: int
    title: str
    file: str
    symbols: tuple[tuple[str, tuple[int, int] | None], ...]
    premises: tuple[LayoutPremise, ...]


class Case(NamedTuple):
    reps: tuple[tuple[int, ...], ...]
    premises: tuple[AlgebraPremise, ...]
    file: str


class AlgebraStage(NamedTuple):
    goal: int
    title: str
    classes: Mapping[str, tuple[int, int]]
    trees: tuple[tuple[Ref, tuple[Tree, ...]], ...]
    goal_at: tuple[tuple[str, ...], ...]
    cases: tuple[Case, ...]


Stage = LayoutStage | AlgebraStage


class CallStage(NamedTuple):
    """The conclusions of a lemma (by number) at one instance of its function."""

    lemma: int
    instance: int


class Lemma(NamedTuple):
    """Stages about the bodies of a function. Facts that no stage proves are assumed."""

    function: str
    facts: tuple[Fact, ...]
    stages: tuple[Stage, ...]
    concludes: tuple[int, ...]


class Proof(NamedTuple):
    """All facts, the input relation that each declared fact cites (by fact number), lemmas, all stages; when
    the events of the plan's schedule happen; the plan with its ghosts, if the proof has any."""

    facts: tuple[Fact, ...]
    declared: Mapping[int, int]
    stages: tuple[Stage | CallStage, ...]
    lemmas: tuple[Lemma, ...]
    when: When | None = None
    extended: Plan | None = None


class Manifest(NamedTuple):
    """What the manifests say: status of the files, a claim per output relation, digests of all files. That of
    `root`, which lists the others, is the bundle's."""

    version: int
    generator: str
    status: str
    members: Mapping[str, str]
    verdicts: tuple[tuple[str, str, str, str], ...]
    solvers: Mapping[str, str]
    root: str
