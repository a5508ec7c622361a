"""What is known of each tensor: declared facts, guessed facts with the way to prove them, and data movement.

A plan tensor is *related* when facts tie every one of its elements to a specification tensor that is not data
movement itself (an *atom*) or to a literal. Facts guessed here are proved by layout stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from certificates.proof.facts import Fact, Reduced, Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .carried import links, moved_facts, reduced_facts, repeated
from .ledger import LayoutRecipe, Unrelated
from .readings import Readings
from .tries import Tries


@dataclass
class Knowledge(Readings):
    """All that is known of the tensors of one problem, and the ways to know more when asked."""

    #: Facts that one fact stands for, by their left side.
    restated: dict[Ref, tuple[int, ...]] = field(default_factory=dict)
    #: Moved tensors of which only some elements were known when asked.
    _in_part: set[str] = field(default_factory=set)
    #: Further ways to relate a tensor: sums of sums over ranks, and what only a whole cone of ops shows.
    nested: Callable[[Reduced], list[int]] = lambda _: []
    masked: Callable[[Ref], list[int]] = lambda _: []
    #: What the way in which a tensor is computed shows of all of its elements.
    positive: Callable[[Ref], bool] = lambda _: False
    nonnegative: Callable[[Ref], bool] = lambda _: False
    finite: Callable[[Ref], bool] = lambda _: False
    #: Sums over ranks of what is one number.
    counted: Callable[[Reduced], list[int]] = lambda _: []
    #: What guesses from whole cones of ops may still cost.
    tries: Tries = field(default_factory=Tries)
    _movement: dict[Ref, list[int]] = field(default_factory=dict)
    _asking: set[Ref] = field(default_factory=set)
    _links: dict[str, list[int] | None] = field(default_factory=dict)
    #: Whether the facts that were known of a tensor cover it.
    _covered: dict[Ref, tuple[tuple[Fact, ...], bool]] = field(default_factory=dict)

    def facts_for(self, ref: Ref) -> list[int]:
        """Facts with this left side that cover it; empty if it is unrelated."""
        if ref in self.by_lhs:
            return self.by_lhs[ref]
        if ref not in self._movement:
            outermost = not self._asking
            self._asking.add(ref)
            self._movement[ref] = []
            try:
                if isinstance(ref, Reduced):
                    found = [*self.nested(ref), *reduced_facts(self, ref), *repeated(self, ref)]
                elif self.moves(ref):
                    found = moved_facts(self, ref)
                else:
                    found = []
            except (Unrelated, Unfollowable, NoDefinition):
                found = []
            if not found and isinstance(ref, Reduced):
                found = self.masked(ref) or self.counted(ref)
            self._asking.discard(ref)
            if not found and not outermost:
                # Not known while something else is being asked: that something may be what it needs.
                del self._movement[ref]
                return []
            self._movement[ref] = found
            if found and isinstance(ref, str) and not self.covers(ref):
                self._in_part.add(ref)
        return self._movement[ref]

    def forget_failures(self) -> None:
        """What had no relation may have one now, and what was moved and known in part may be known whole."""
        self._movement = {ref: found for ref, found in self._movement.items() if found}
        self.forget_parts(self._in_part & self.by_lhs.keys())
        self._in_part.clear()

    def forget_movement(self) -> None:
        """What moved tensors are is found anew where it is known in part only."""
        self._movement = {}
        self.forget_parts(r for r in self.by_lhs if isinstance(r, str) and self.moves(r))

    def forget_parts(self, refs: Iterable[Ref]) -> None:
        """Forget what is known of tensors, where it is not all that there is to know."""
        for ref in [r for r in refs if r in self.by_lhs and r not in self.restated and not self.covers(r)]:
            for number in self.by_lhs.pop(ref):
                self.drop(number)
            self._movement.pop(ref, None)

    def covers(self, ref: Ref) -> bool:
        """Whether facts say of every element of a tensor what it is."""
        numbers = self.facts_for(ref)
        facts = tuple(self.facts[n] for n in numbers)
        if ref not in self._covered or self._covered[ref][0] != facts:
            self._covered[ref] = facts, self._said(ref, numbers)
        return self._covered[ref][1]

    def _said(self, ref: Ref, numbers: Sequence[int]) -> bool:
        def said(cell: Cell) -> None:
            if self.through(numbers, tuple(cell.at.values()), cell.ranges) is None:
                raise Unrelated(ref)

        try:
            explore(self.full_index(ref), said)
        except (Unrelated, Unfollowable):
            return False
        return True

    def restate(self, facts: Sequence[Fact]) -> None:
        """Let facts stand for all that is known of their left side, which proves them."""
        lhs = facts[0].lhs
        parts = self.restated[lhs] = tuple(self.facts_for(lhs))
        self.by_lhs[lhs] = []
        for fact in facts:
            self.add(fact, LayoutRecipe(expand=frozenset((fact.rhs,)), parts=parts))

    def links(self, ref: str) -> list[int] | None:
        """Facts that tie a moved plan tensor to the unmoved plan tensors of its own rank it comes from.

        ``None`` if the tensor is not moved; raises ``Unfollowable`` where it crosses ranks.
        """
        if ref not in self._links:
            self._links[ref] = links(self, ref) if self.moves(ref) else None
        return self._links[ref]
