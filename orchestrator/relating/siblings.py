"""One unrelated operand, guessed from its siblings: what their partner in the specification reads there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from certificates.plan.affine import Affine
from certificates.proof.facts import Fact, Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .access import Access, commutes, same_attributes
from .candidates import Candidates, Operand
from .joining import join
from .knowledge import Knowledge
from .ledger import Unrelated
from .solving_facts import make_fact


class Siblings:
    """Relates the one operand of an op that has no relation, once."""

    def __init__(
        self, knowledge: Knowledge, candidates: Candidates, propose: Callable[[list[Fact]], bool]
    ) -> None:
        """``propose`` keeps guessed facts about one tensor if all of them are proved."""
        self.k, self.model = knowledge, knowledge.model
        self.candidates, self.propose = candidates, propose
        self._hinted: set[Ref] = set()

    def relate(
        self,
        ref: str,
        missing: Ref,
        pattern: Access,
        start: Cell,
        index: Callable[[Cell, Sequence[str]], list[Affine]],
    ) -> bool:
        """Relate the one unrelated operand by what its siblings' partner in the specification reads there."""
        ins = self.model.operands(ref)
        if len(ins) < 2 or ins.count(str(missing)) != 1 or missing in self._hinted:
            return False
        self._hinted.add(missing)
        position = ins.index(str(missing))
        return self.k.tries.attempt(
            lambda: self._relate(ref, missing, position, pattern, start, index), False
        )

    def _relate(
        self,
        ref: str,
        missing: Ref,
        position: int,
        pattern: Access,
        start: Cell,
        index: Callable[[Cell, Sequence[str]], list[Affine]],
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
                if self.propose(join(self.model, pieces)):
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
