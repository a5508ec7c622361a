"""Stages and their premises, as data (``docs/certificate.md``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.proof.facts import Fact, Ref

from ..plan.affine import Affine
from .ghosts import Ghosts
from .when import When

FORMAT, VERSION = "trainverify-proof", 1


Index = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class BoundSymbol:
    """The range of an index symbol."""

    sym: str


@dataclass(frozen=True, slots=True)
class BoundIndex:
    """``lin(at) = lin(arg)`` for one part of an op that regroups indices."""

    t: Ref
    at: Index
    arg: Index
    part: int


@dataclass(frozen=True, slots=True)
class BoundValue:
    """``value = t[at]`` for an integer tensor."""

    t: Ref
    at: Index
    value: str


@dataclass(frozen=True, slots=True)
class Def:
    """One element of one op's result, at symbolic indices."""

    t: Ref
    at: Index
    arg: Index | None = None


@dataclass(frozen=True, slots=True)
class Hyp:
    """An instance of a declared or proved fact; ``lift`` lists axes of a sum congruence."""

    facts: tuple[int, ...]
    at: Index
    lift: tuple[str, ...] = ()
    kind: str = "add"


@dataclass(frozen=True, slots=True)
class InputRange:
    """The declared range of an integer input's element."""

    input: str
    at: Index


@dataclass(frozen=True, slots=True)
class EvidentRange:
    """The range of an integer element that its ops show (``certificates/plan/bounds.py``)."""

    t: Ref
    at: Index


LayoutPremise = BoundSymbol | BoundIndex | BoundValue | Def | Hyp | InputRange | EvidentRange


@dataclass(frozen=True, slots=True)
class Elem:
    """An element of a tensor at representatives: per coordinate the piece number and representatives."""

    ref: Ref
    index: tuple[tuple[int, ...], ...]


#: ``Elem`` | ``Fraction`` | ``(operator, argument, …)``; see TERM in the format.
Term = Elem | Fraction | tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ElemDef:
    """One element of one op's result, at representatives."""

    e: Elem


@dataclass(frozen=True, slots=True)
class ElemHyp:
    """A fact at representatives; ``at`` is over ``class.rep`` symbols, ``defines`` is ``lhs`` or ``rhs``."""

    fact: int
    at: Index
    defines: str = "lhs"


@dataclass(frozen=True, slots=True)
class Law:
    """An instance of a law schema: ``ring``, ``lattice``, ``recip`` or ``root``."""

    schema: str
    lhs: Term
    rhs: Term


AlgebraPremise = ElemDef | ElemHyp | Law


@dataclass(frozen=True, slots=True)
class LayoutStage:
    """Data movement at true sizes, with symbolic indices."""

    goal: int
    title: str
    symbols: tuple[tuple[str, int | None, int | None], ...]
    premises: tuple[LayoutPremise, ...]
    file: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One assignment of representatives to the goal's free indices."""

    reps: tuple[tuple[int, ...], ...]
    premises: tuple[AlgebraPremise, ...]
    file: str = ""


#: Offset, classes major to minor, and the stride of each.
Piece = tuple[int, tuple[str, ...], tuple[int, ...]]


Tree = tuple[Piece, ...]


def strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of digits of these sizes."""
    return tuple(math.prod(sizes[k + 1 :]) for k in range(len(sizes)))


@dataclass(frozen=True)
class AlgebraStage:
    """Arithmetic at reduced sizes: index classes, trees, cases."""

    goal: int
    title: str
    classes: Mapping[str, tuple[int, int]]
    trees: Mapping[Ref, tuple[Tree, ...]]
    goal_at: tuple[tuple[str, ...], ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class CallStage:
    """A lemma at one call: its conclusions hold whose assumptions do."""

    lemma: int
    instance: int


Stage = LayoutStage | AlgebraStage


@dataclass(frozen=True)
class Lemma:
    """What follows inside a function: facts without a stage are assumed, ``concludes`` are for the caller."""

    function: str
    facts: Sequence[Fact]
    stages: Sequence[Stage]
    concludes: Sequence[int]


@dataclass(frozen=True)
class Proof:
    """All facts and the stages that prove them, in dependency order; ``when`` is of the plan's schedule, and
    ``ghosts`` are tensors that only the proof has."""

    facts: Sequence[Fact]
    stages: Sequence[Stage | CallStage]
    lemmas: Sequence[Lemma] = ()
    when: When | None = None
    ghosts: Ghosts = field(default_factory=dict)
