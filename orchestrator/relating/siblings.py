"""One operand guessed from its siblings: what their partner in the specification reads there.

It has no relation yet; or it is a mask that positions alone make, such as the diagonal of a rank's own block,
which stands at more than one place of the specification's mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from certificates.plan.affine import Affine
from certificates.plan.ops import ELEMENTWISE
from certificates.proof.facts import Fact, Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .access import Access, commutes, same_attributes
from .candidates import Candidates, Operand
from .joining import join
from .knowledge import Knowledge
from .ledger import Unrelated
from .solving_facts import make_fact

#: Ops that a mask is made by.
MAX_OPENED = 64
Index = Callable[[Cell, Sequence[str]], list[Affine]]


class Propose(Protocol):
    """Keeps guessed facts about one tensor if all of them are proved, by opening some tensors if these are
    named."""

    def __call__(self, facts: list[Fact], cones: frozenset[Ref] | None = None, /) -> bool: ...


def nothing(_facts: list[Fact], _cones: frozenset[Ref] | None = None, /) -> bool:
    """Keeps no guess."""
    return False


class Siblings:
    """Relates the one operand of an op that has no relation, once, or has it elsewhere."""

    def __init__(self, knowledge: Knowledge, candidates: Candidates, propose: Propose) -> None:
        self.k, self.model = knowledge, knowledge.model
        self.candidates, self.propose = candidates, propose
        self._hinted: set[Ref] = set()
        self._masks: dict[str, frozenset[Ref] | None] = {}

    def relate(
        self,
        ref: str,
        missing: Ref,
        pattern: Access,
        start: Cell,
        index: Index,
    ) -> bool:
        """Relate the one unrelated operand by what its siblings' partner in the specification reads there."""
        ins = self.model.operands(ref)
        if len(ins) < 2 or ins.count(str(missing)) != 1 or missing in self._hinted:
            return False
        self._hinted.add(missing)
        position = ins.index(str(missing))
        return self.k.tries.attempt(
            lambda: self._relate(ref, missing, position, pattern, start, index, self.propose), False
        )

    def elsewhere(self, ref: str, pattern: Access, start: Cell, index: Index) -> bool:
        """Relate an operand that positions alone make to where the partner of its siblings reads it; whether
        one was."""
        ins = self.model.operands(ref)
        for position, v in enumerate(ins):
            opened = self._made_of_positions(v) if len(ins) > 1 and v not in self._hinted else None
            if opened is not None:
                self._hinted.add(v)
                moved = partial(self._replaced, v, opened)
                way = partial(self._relate, ref, v, position, pattern, start, index, moved)
                if self.k.tries.attempt(way, False):
                    return True
        return False

    def _replaced(self, ref: str, opened: frozenset[Ref], facts: list[Fact]) -> bool:
        """Let facts about a mask stand for what was known of it, if they are proved."""
        for fact in facts:
            theirs = self._made_of_positions(fact.rhs) if isinstance(fact.rhs, str) else None
            if theirs is None:
                return False
            opened |= theirs
        before = self.k.by_lhs.pop(ref, None)
        if self.propose(facts, opened):
            self.k.forget_movement()
            return True
        if before is not None:
            self.k.by_lhs[ref] = before
        return False

    def _made_of_positions(self, ref: str) -> frozenset[Ref] | None:
        """The ops that make a mask of positions; ``None`` for all that is made of something else, too."""
        if ref not in self._masks:
            opened, seen, work, counted = set[Ref](), {ref}, [ref], False
            while work:
                current = work.pop()
                op = self.model.op(current)
                if op is not None and op.name == "iota":
                    counted = True
                    continue
                if self.model.literal(current) is not None:
                    continue
                elementwise = op is not None and op.name in ELEMENTWISE
                if (
                    not (elementwise or (op is not None and self.k.moves(current)))
                    or len(opened) > MAX_OPENED
                ):
                    counted = False
                    break
                opened |= {current} if elementwise else set()
                below = [v for v in self.model.operands(current) if v not in seen]
                seen.update(below)
                work += below
            self._masks[ref] = frozenset(opened) if counted else None
        return self._masks[ref]

    def _relate(
        self,
        ref: str,
        missing: Ref,
        position: int,
        pattern: Access,
        start: Cell,
        index: Index,
        propose: Callable[[list[Fact]], bool],
    ) -> bool:
        ins = self.model.operands(ref)

        def compute(cell: Cell) -> list[tuple[str, list[Affine]]]:
            operands = [
                None if i == position else self.candidates.operand(v, index(cell, names), cell.ranges)
                for i, (v, names) in enumerate(zip(ins, pattern.operands, strict=True))
            ]
            return self._places(ref, operands, position, cell)

        try:
            found = explore(start, compute)
            for wanted in dict.fromkeys(v for v, _ in found[0][1]):
                pieces = []
                for cell, guesses in found:
                    at = next((at for v, at in guesses if v == wanted), None)
                    if at is None:
                        raise Unrelated(missing)
                    pieces += self._pieces(missing, index(cell, pattern.operands[position]), wanted, at, cell)
                if propose(join(self.model, pieces)):
                    return True
        except (Unrelated, Unfollowable, NoDefinition):
            pass
        return False

    def _pieces(
        self, missing: Ref, left: Sequence[Affine], wanted: str, at: Sequence[Affine], cell: Cell
    ) -> list[Fact]:
        """What a tensor equals on a box if it is ``wanted`` there: a concatenation, say, is read in parts."""

        def here(forms: Sequence[Affine], part: Cell) -> list[Affine]:
            return [f.substitute(part.at) for f in forms]

        found = explore(
            Cell.whole(cell.ranges), lambda part: self.k.read(wanted, here(at, part), part.ranges)
        )
        return [
            make_fact(self.model, part, missing, here(left, part), r.target, r.at, r.coef)
            for part, r in found
        ]

    def _places(
        self, ref: str, operands: Sequence[Operand | None], position: int, cell: Cell
    ) -> list[tuple[str, list[Affine]]]:
        """What partners of ``ref`` in the specification read where it reads the missing operand."""
        op = self.model.ops[ref]
        targets = {o.reading.target for o in operands if o and self.model.literal(o.reading.target) is None}
        out: list[tuple[str, list[Affine]]] = []
        for spec in dict.fromkeys(s for t in targets for s in self.candidates.readers(op.name, t)):
            self.k.tries.step()
            pattern = self.candidates.access(spec)
            if pattern is None or not same_attributes(op, self.model.ops[spec]):
                continue
            orders = [tuple(range(len(operands)))]
            if commutes(op) or op.name == "dot_general":
                orders.append(tuple(reversed(orders[0])))
            for order in orders:
                known: dict[str, Affine] = {}
                ins = self.model.operands(spec)
                fits = True
                for v, names, i in zip(ins, pattern.operands, order, strict=True):
                    operand = operands[i]
                    if operand is not None and self.model.literal(operand.reading.target) is None:
                        found = next(
                            self.candidates.solutions(v, names, operand.reading, known, cell.ranges, {}), None
                        )
                        fits = fits and found is not None
                        known = known if found is None else found[1]
                place = order.index(position)
                if fits and all(n in known for n in pattern.operands[place]):
                    out.append((ins[place], [known[n] for n in pattern.operands[place]]))
        return out
