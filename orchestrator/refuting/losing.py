"""Where a plan that no edit repairs goes wrong: the op after which a tensor is no longer the specification's.

That is the first op whose result is lost although its operands are not, or what such an op reads: a sum that
was not made yet, or not of all terms, a tensor of another place, a mask like none of the specification's. The
line that is told is the one that a reader would change; both ends are named where two lines do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import networkx as nx

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Op

from ..errors import EvaluationError
from .choosing import Choice
from .narrowing import MOVING, Narrowing
from .reductions import LINEAR
from .search import Witness
from .sites import Sites
from .standing import BUCKET, Standings, contents
from .wording import Names, line_of, multiple, op_words

#: An op of a rank class, and what is said of it.
Found = tuple[str, Op, str]
Ops = Mapping[str, Op]
#: Tensors of fewer dimensions are buckets, whose elements have no places of their own.
_GRID = 2
#: Ops that choose nothing.
_RENAMED = frozenset(["convert", "reshape"])
_SHOWN = _RENAMED | {"broadcast_in_dim", "transpose"}
#: Ops through which a partial sum stays one.
_SCALING = frozenset(["multiply", "divide", "negate", "convert", "reshape", "transpose", "broadcast_in_dim"])
#: Ops of the specification that a term passes on its way into a sum.
_ADDING = _SCALING | {"add", "subtract"}


class Losing:
    """Looks for it in one plan, on the inputs of a witness."""

    def __init__(
        self, plan: Plan, witness: Witness, sites: Sites, standings: Standings, choice: Choice
    ) -> None:
        self.plan, self.witness, self.sites = plan, witness, sites
        self.standings, self.choice, self.names = standings, choice, Names(plan)

    def first(self, rank: int) -> Found | None:
        """Where a rank's program loses the wrong output, or ``None`` if no op makes it."""
        plan = self.plan
        cls, ops, output = self._class(rank), self._ops(rank), self._output(rank)
        if output not in ops:
            return None
        found = self._lost(rank)
        # If nothing is lost, outputs were exchanged, or rows are right ones of another place.
        narrowing = Narrowing.of(plan, self.witness.inputs, self.witness.junk, contents)
        narrow = narrowing.before(rank, output if found is None else found.out)
        if narrow is not None:
            less = "after it the ranks hold less of the tensor than they gave"
            return cls, narrow, f"{op_words(plan, narrow)}: {less}"
        if found is None:
            placed = ops[output]
            while placed.name in _RENAMED and placed.ins[0] in ops:
                placed = ops[placed.ins[0]]
            return cls, placed, f"{op_words(plan, placed)} is not the tensor that is claimed"
        for cause in (self._partial, self._unlike, self._instead, self._piece, self._moved):
            if (told := cause(rank, ops, found)) is not None:
                return cls, *told
        return cls, found, self._lost_at(cls, found)

    def _lost_at(self, cls: str, op: Op) -> str:
        readers = self.sites.users[cls][op.out]
        read = f", {self._read_by(readers[0])}" if len({r.loc for r in readers}) == 1 else ""
        return f"{op_words(self.plan, op)}: its operands are the specification's, its result is not{read}"

    def _read_by(self, reader: Op) -> str:
        return f"where {self._with_line(reader)} reads it"

    def taken(self, rank: int) -> Found | None:
        """Where the first lost op of a rank reads another tensor of the specification than it should."""
        found = self._lost(rank)
        told = None if found is None else self._instead(rank, self._ops(rank), found)
        return None if told is None else (self._class(rank), *told)

    def _lost(self, rank: int) -> Op | None:
        """The first op of a rank whose result is not the specification's, which leads to the wrong output."""
        ops, output = self._ops(rank), self._output(rank)

        def settled(cls: str, value: str) -> bool:
            return ops[value].type.sort != "Real" or self.choice.settled(cls, value)

        def there(_cls: str, value: str) -> bool:
            return ops[value].name == "constant" or not self.standings.lost(rank, value)

        return self._first(rank, ops, output, settled) or self._first(rank, ops, output, there)

    def _ops(self, rank: int) -> Ops:
        return self.sites.made[self._class(rank)]

    def _output(self, rank: int) -> str:
        program = self.plan.by_class[self._class(rank)].program
        return program.outputs[self.plan.outputs[self.witness.output].plan]

    def unsummed(self, cls: str, op: Op, axes: Sequence[str], reader: Op | None) -> Found:
        """A partial sum that is read as if it were whole: told at the op that makes it; but if the sum is
        made elsewhere, at that sum, which is not read, or at the op that reads too early."""
        over = "/".join(axes)
        if reader is None:
            return cls, op, f"{op_words(self.plan, op)} is still a partial sum over {over}: {_lacks(over)}"
        summed = None if reader.name in COLLECTIVES else self._summed(cls, op, axes)
        if summed is None:
            read = f"{self._read_by(reader)}: {_lacks(over)}"
            return cls, op, f"{op_words(self.plan, op)} is still a partial sum over {over} {read}"
        part, made = summed
        if self._number(cls, reader) < self._number(cls, made):
            before = f"reads {self._with_line(part)} before {self._with_line(made)} has summed it"
            return cls, reader, f"{op_words(self.plan, reader)} {before}"
        unread = f"sums {self._with_line(part)}, and {self._with_line(reader)} reads what was before the sum"
        return cls, made, f"{op_words(self.plan, made)} {unread}"

    def _summed(self, cls: str, op: Op, axes: Sequence[str]) -> tuple[Op, Op] | None:
        """A partial sum that a value is a multiple of, and the sum over such axes that is made of it."""
        here: Op | None = op
        while here is not None:
            made = self._sum_of(cls, here, axes)
            if made is not None:
                return here, made
            operands = [self.sites.made[cls].get(v) for v in here.ins if self.sites.literal(cls, v) is None]
            here = operands[0] if here.name in _SCALING and len(operands) == 1 else None
        return None

    def _sum_of(self, cls: str, op: Op, axes: Sequence[str]) -> Op | None:
        """The sum over such axes that is made of a value, perhaps moved and scaled before."""
        waiting, seen = [op.out], set[str]()
        while waiting:
            for user in self.sites.users[cls][waiting.pop()]:
                if user.name in COLLECTIVES and user.attrs.get("kind") == "add":
                    if {*axes} & {*self.plan.groups[user.text("group")].axes}:
                        return user
                elif user.name in LINEAR and user.out not in seen:
                    seen.add(user.out)
                    waiting.append(user.out)
        return None

    def _number(self, cls: str, op: Op) -> int:
        return self.plan.by_class[cls].program.ops.index(op)

    def _unlike(self, rank: int, ops: Ops, reader: Op) -> tuple[Op, str] | None:
        """The first op of integers or truth values that makes what an op reads, if the specification's op of
        this name reads such a one, and none like it. Row numbers of a shard count from where it begins."""
        made, reads = set[str](), set[str]()
        for op in self.plan.specification.ops:
            if made & {*op.ins}:
                reads.add(op.name)
            if op.type.sort != "Real" and (op.name not in MOVING or made & {*op.ins}):
                made.add(op.out)
        numbers = [v for v in reader.ins if v in ops and ops[v].type.sort != "Real"]
        unlike = [v for v in numbers if ops[v].name != "constant" and not self.standings.alike(rank, v)]
        unlike = unlike if reader.name in reads - {"gather"} else []
        if not unlike:
            return None

        def right(_cls: str, value: str) -> bool:
            op = ops[value]
            return op.type.sort == "Real" or op.name == "constant" or self.standings.alike(rank, value)

        first = self._first(rank, ops, unlike[0], right)
        if first is None:
            return None
        read = [ops[v] for v in first.ins if v in ops]
        first = read[0] if read and all(op.name == "constant" for op in read) else first
        what = f"no tensor of the specification is like it, {self._read_by(reader)}"
        return first, f"{op_words(self.plan, first)}: {what}"

    def _moved(self, rank: int, ops: Ops, reader: Op) -> tuple[Op, str] | None:
        """Where elements first are in other places, though their values are the specification's."""

        def placed(_cls: str, value: str) -> bool:
            op, found = ops[value], self.standings.of(rank, value)
            if op.name == "reshape" and op.ins[0] in ops and self._same_grid(rank, op):
                return placed(_cls, op.ins[0])
            flat = len(op.type.shape) < _GRID
            return flat or value == reader.out or not found or any(s.placed for s in found)

        away = [v for v in reader.ins if v in ops and not placed("", v)]
        first = self._first(rank, ops, away[0], placed) if away else None
        return None if first is None else (first, self._lost_at(self._class(rank), first))

    def _same_grid(self, rank: int, op: Op) -> bool:
        """Does a reshape only add or drop dimensions of size 1?"""
        before = self.sites.types[self._class(rank)][op.ins[0]].shape
        return [n for n in before if n > 1] == [n for n in op.type.shape if n > 1]

    def _class(self, rank: int) -> str:
        return self.plan.class_of(self.plan.mesh.coordinates(rank)).name

    def _instead(self, rank: int, ops: Ops, reader: Op) -> tuple[Op, str] | None:
        """What an op reads is another tensor of the specification than the one that its op of this name reads
        beside the same operands: one term of a sum, or what was cut out at another place."""
        for k, v in enumerate(reader.ins):
            expected = self._expected(rank, ops, reader, k) if v in ops else None
            if expected is None or (reader.name == "gather" and self._in_a_part(rank, reader, k)):
                continue
            if ops[v].type.sort != "Real":
                is_not = f"has not the values of {self.names.of(expected)}"
                return ops[v], f"{op_words(self.plan, ops[v])} {is_not}, {self._read_by(reader)}"
            mine = self._specs(rank, v)
            terms = mine & self._terms(expected)
            if terms:
                maker, passed = self._maker(rank, ops, v, terms)
                reads = f"reads {self._with_line(maker)}, one term of {self.names.of(expected)}"
                at = passed or reader
                return at, f"{op_words(self.plan, at)} {reads}; expected are all its terms"
            at = ops[v]
            while at.name in _SHOWN and at.ins[0] in ops:
                at = ops[at.ins[0]]
            if at.name in MOVING:
                return (
                    at,
                    f"{op_words(self.plan, at)} {self._not(rank, v, expected)}, {self._read_by(reader)}",
                )
        return None

    def _not(self, rank: int, value: str, expected: str) -> str:
        """What a value is, and what it should be."""
        while expected in self.names.ops and self.names.ops[expected].name in _SHOWN:
            expected = self.names.ops[expected].ins[0]
        told = next((s for s in self.standings.of(rank, value) if s.spec != BUCKET), None)
        if told is None:
            return f"is made of several tensors; expected is {self.names.of(expected)}"
        if told.spec == expected:
            return f"has the elements of {self.names.of(expected)} in other places"
        return f"is {multiple(self.names, told)}; expected is {self.names.of(expected)}"

    def _expected(self, rank: int, ops: Ops, reader: Op, index: int) -> str | None:
        """The specification's tensor that stands at this operand of its op of the name, all other operands
        being the same; nothing if it is what is read, or if there is no such op."""
        others = [(k, v) for k, v in enumerate(reader.ins) if k != index and not _is_literal(ops.get(v))]
        known = [(k, self._specs(rank, v) | {v}) for k, v in others]
        alike = [
            o for o in self.plan.specification.ops if (o.name, len(o.ins)) == (reader.name, len(reader.ins))
        ]
        found = [o.ins[index] for o in alike if known and all(o.ins[k] in specs for k, specs in known)]
        if not known:  # an op of one operand: what reads a piece of the same tensor
            specs = self._whole(rank, ops, reader.ins[index])
            found = [o.ins[index] for o in alike if specs & _cut_from(self.names.ops, o.ins[index])]
        found = [v for v in found if not _is_literal(self.names.ops.get(v))]
        mine = reader.ins[index]
        real = mine not in ops or ops[mine].type.sort == "Real"
        same = self.standings.stands if real else self.standings.like
        return None if any(same(rank, mine, v) for v in found) else next(iter(found), None)

    def _piece(self, rank: int, ops: Ops, mover: Op) -> tuple[Op, str] | None:
        """Where elements are cut out of a tensor of the specification that are no piece of it: what they are
        read as."""
        here: Op | None = mover
        while here is not None and here.name in MOVING:
            here = next(iter(self.sites.users[self._class(rank)][here.out]), None)
        return None if here is None or here is mover else self._instead(rank, ops, here)

    def _in_a_part(self, rank: int, reader: Op, index: int) -> bool:
        """Does another operand of a look-up hold a part only? Then places count from where that begins."""
        types, specs = self.sites.types[self._class(rank)], self.plan.specification.types()
        return any(
            types[v].shape != specs[spec].shape
            for k, v in enumerate(reader.ins) if k != index
            for spec in self._specs(rank, v) or {v} & {*self.plan.specification.inputs}
        )  # fmt: skip

    def _specs(self, rank: int, value: str) -> set[str]:
        return {s.spec for s in self.standings.of(rank, value)} - {BUCKET}

    def _whole(self, rank: int, ops: Ops, value: str) -> set[str]:
        """The specification's tensors that a value is, or else that it was cut out of."""
        here = value
        while not (found := self._specs(rank, here)) and here in ops and ops[here].name in MOVING:
            here = ops[here].ins[0]
        return found

    def _terms(self, value: str) -> set[str]:
        """What a tensor of the specification is a sum of, each perhaps scaled or moved."""
        found, waiting, summed = set[str](), [value], False
        while waiting:
            op = self.names.ops.get(waiting.pop())
            if op is not None and op.name in _ADDING:
                summed = summed or op.name in ("add", "subtract")
                found |= {*op.ins}
                waiting += op.ins
        return found if summed else set()

    def _maker(self, rank: int, ops: Ops, value: str, specs: set[str]) -> tuple[Op, Op | None]:
        """The first op that makes one of these tensors of what leads to a value, and the op that reads it."""
        here, reader = ops[value], None
        while True:
            before = next((ops[v] for v in here.ins if v in ops and specs & self._specs(rank, v)), None)
            if before is None:
                return here, reader
            here, reader = before, here

    def _first(self, rank: int, ops: Ops, output: str, right: Callable[[str, str], bool]) -> Op | None:
        """The first op of the last chain of ops that are not right and lead to the output."""
        cls = self._class(rank)
        made = nx.DiGraph((v, op.out) for op in ops.values() for v in op.ins)
        made.add_node(output)
        cone = {output} | nx.ancestors(made, output)
        lost = made.subgraph(name for name in ops if name in cone and not right(cls, name))
        if output not in lost:
            return None
        chain = {output} | nx.ancestors(lost, output)
        return next(op for op in ops.values() if op.out in chain and not lost.in_degree(op.out))

    def _partial(self, rank: int, ops: Ops, reader: Op) -> tuple[Op, str] | None:
        """The partial sum that an op reads as if it were whole, at the op that made it."""
        if reader.name in COLLECTIVES and reader.attrs.get("kind") == "add":
            return None
        for v in reversed(reader.ins):  # parts of a sum may be divided by a whole, not by a part
            here = ops.get(v)
            while here is not None and here.name in _SCALING and self._axes(rank, here.out):
                before = next((ops[i] for i in here.ins if i in ops and self._axes(rank, i)), None)
                if before is None:
                    break
                here = before
            if here is not None and (axes := self._axes(rank, here.out)):
                return self.unsummed(self._class(rank), here, axes, reader)[1:]
        return None

    def _axes(self, rank: int, value: str) -> tuple[str, ...]:
        """Axes over which a value is a partial sum, and nothing without a sum."""
        try:
            found = self.standings.of(rank, value)
        except EvaluationError:
            return ()
        return found[0].axes if found and all(s.axes for s in found) else ()

    def _with_line(self, op: Op) -> str:
        line = line_of(self.plan, op.loc)
        return op_words(self.plan, op) + (f" ({line.file}:{line.line})" if line else "")


def _lacks(over: str) -> str:
    return f"a reduction over {over} is missing"


def _cut_from(ops: Mapping[str, Op], value: str) -> set[str]:
    """What a tensor of the specification is a piece of, in the same order of elements or in another."""
    found, here = set[str](), ops.get(value)
    while here is not None and here.name in MOVING:
        found.add(here.ins[0])
        here = ops.get(here.ins[0])
    return found


def _is_literal(op: Op | None) -> bool:
    return op is not None and op.name == "constant"
