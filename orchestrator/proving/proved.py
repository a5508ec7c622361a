"""Proved facts in the order of their proofs, and what each rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx

from certificates.proof.stages import Stage

from .dependencies import dependencies
from .lemmas import Binding


@dataclass(frozen=True, eq=False)
class Called:
    """In place of a stage: a fact about results of a call, and the facts about its operands it rests on."""

    binding: Binding
    statement: int
    rests: tuple[int, ...]


def uses_of(stage: Stage | Called) -> Sequence[int]:
    """The facts that a stage rests on directly."""
    return stage.rests if isinstance(stage, Called) else dependencies(stage)


@dataclass
class Proved:
    """Facts by their numbers; every one comes after those that it rests on."""

    built: dict[int, Stage | Called] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    #: From every proved fact to those that its proof rests on directly.
    _rests: nx.DiGraph = field(default_factory=nx.DiGraph)

    def put(self, number: int, stage: Stage | Called) -> None:
        """A fact whose stage, and all it rests on, stand."""
        self.built[number] = stage
        self.order.append(number)
        self._rests.add_edges_from((number, n) for n in uses_of(stage))

    def uses(self, number: int) -> Sequence[int]:
        """The facts that a proved fact rests on directly."""
        return uses_of(self.built[number]) if number in self.built else ()

    def needed(self, wanted: Sequence[int]) -> set[int]:
        """Facts, and all that their proofs rest on."""
        inner = [n for n in wanted if n in self._rests]
        return set(wanted).union(*nx.bfs_layers(self._rests, inner))

    def assumptions(self, number: int) -> frozenset[int]:
        """The facts without a proof of their own that a proved fact rests on."""
        return frozenset(n for n in self.needed([number]) if n not in self.built)
