"""What ranks add up before it is added over ranks: a sum over ranks of sums is a sum of sums over ranks.

A bag of rows that ranks look up in their parts of a table is one: what all ranks have of a row adds up to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from certificates.proof.facts import Reduced, split_ref
from smtlib_emit.errors import NoDefinition

from ..relating.knowledge import Knowledge
from ..relating.matching import Matcher
from .spans import Spans

#: Ops by which a sum over ranks of results is one of operands, and so many of them below each other.
_LINEAR = frozenset(("reduce", "reshape", "transpose", "negate", "multiply", "divide", "dot_general"))
_DEEP = 6


class Summands:
    """Looks once below each sum over ranks that some op needs."""

    def __init__(self, knowledge: Knowledge, spans: Spans, matcher: Matcher) -> None:
        self.k, self.spans, self.matcher = knowledge, spans, matcher
        self._opened: set[Reduced] = set()

    def relate(self, refs: Sequence[str]) -> bool:
        """Relate what the sums over ranks are made of that some tensors come from, and then these."""
        done = False
        for red in self.spans.sums_below(refs):
            if red not in self._opened:
                self._opened.add(red)
                for above in self._above(red):
                    done = any([self.matcher.relate(member) for member in above.of]) or done
        if done:
            self.k.forget_failures()  # of what is moved from them
        return done

    def _above(self, red: Reduced) -> list[Reduced]:
        """Sums over ranks between one that is found related, below, and ``red``, which is the last one;
        nothing if there is no such."""
        work: list[list[Reduced]] = [[red]]
        while work:
            above = work.pop()
            for below in _below(self.k, above[0]):
                numbers = self.k.facts_for(below)
                for number in numbers:
                    if number not in self.k.by_lhs.get(below, ()):
                        self.k.relate_by(number)
                if numbers:
                    return above
                if len(above) < _DEEP:
                    work.append([below, *above])
        return []


def _below(knowledge: Knowledge, red: Reduced) -> Iterator[Reduced]:
    """Sums over ranks of an operand that no rank has a relation for, where all compute it by one op."""
    model, members = knowledge.model, dict[str, tuple[str, ...]]()
    for member in red.of:
        op = model.op(member)
        if op is None or op.name not in _LINEAR or (op.name == "reduce" and op.text("kind") != "add"):
            return
        members[member] = tuple(model.operands(member))
    if red.kind != "add" or len({len(operands) for operands in members.values()}) > 1:
        return
    for of in zip(*members.values(), strict=True):
        if any(model.op(v) is None or knowledge.facts_for(v) for v in of):
            continue
        try:
            family = {split_ref(v)[0]: v for v in of}
            yield model.reduced_of(split_ref(red.of[0])[0], family, red.axes, red.kind)
        except NoDefinition:
            continue
