"""Why a refuted plan is wrong: one cause, the outputs that follow from it, and an edit that repairs it.

Edits that people would make (:mod:`.proposals`) are tried, the likeliest first (:mod:`.choosing`), on the
witness's inputs and on others (:mod:`.trials`). The first after which all outputs are right says where the
cause is; it is suggested only if the edited plan was proved. If none is, the cause is the first op whose
result is no tensor of the specification although its operands are, from which such ops lead to the wrong
output, or the collective before it after which the ranks hold less than they gave (:mod:`.narrowing`). Where
every value has a counterpart, the collective is looked for before the output itself.

All of this is for people; the refutation does not rest on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import networkx as nx

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Op

from ..errors import EvaluationError, OutOfTime
from ..evaluating.network import SPEED, Work
from .choosing import LATE, Choice
from .edits import Edit, Place, numbered
from .narrowing import MOVING, Narrowing
from .proposals import Proposals
from .scenarios import Scenario
from .search import Witness
from .sites import Sites
from .standing import Standings, contents
from .trials import Trials
from .wording import Line, Names, line_of, multiple, op_json, op_words

#: Is every one of these output relations of the plan proved? Raises nothing.
Prove = Callable[[Plan, Sequence[int]], bool]
#: Edits that are tried, and repairing ones that are handed to the prover.
_TRIED, _PROVED = 4000, 3
#: Seeds of further inputs.
_MORE = range(8, 16)
#: Tensors of fewer dimensions are buckets, whose elements have no places of their own.
_GRID = 2
#: Ops that choose nothing.
_RENAMED = frozenset(["convert", "reshape"])
#: Ops through which a partial sum stays one.
_LINEAR = frozenset(["multiply", "divide", "negate", "convert", "reshape", "transpose", "broadcast_in_dim"])


@dataclass(frozen=True)
class Cause:
    """What is wrong, first ``at``. ``outputs`` are the relations that follow, ``ranks`` where they are seen;
    ``suggestion`` is an edit after which these outputs are proved, or nothing."""

    op: Op
    cls: str
    at: Line | None
    what: str
    ranks: tuple[int, ...]
    outputs: tuple[int, ...]
    suggestion: str = ""

    def describe(self, plan: Plan) -> str:
        """The cause in one line, and the suggestion."""
        where = f"{self.at}: " if self.at else ""
        on = "" if len(self.ranks) in (0, plan.mesh.ranks) else f" on {_ranks(self.ranks)}"
        more = f"; suggestion (proved): {self.suggestion}" if self.suggestion else ""
        return f"{where}{self.what}{on}{more}"

    def to_json(self, plan: Plan) -> dict[str, object]:
        """The cause as the document of ``--json`` has it."""
        return op_json(self.op, self.cls, self.at) | {
            "what": self.what,
            "ranks": list(self.ranks),
            "outputs": [plan.outputs[i].plan for i in self.outputs],
            "suggestion": self.suggestion or None,
        }


def diagnose(plan: Plan, witness: Witness, seconds: float, prove: Prove) -> Cause | None:
    """The cause of what a witness shows, or ``None`` if no op stands out. Edits are tried for ``seconds``
    of so many steps (``SPEED``)."""
    trials = Trials.of(plan, witness.inputs, Work(last=seconds * SPEED))
    wrong = trials.wrong() or [witness.output]
    return _Diagnosis(plan, witness, trials, wrong).cause(prove)


@dataclass
class _Diagnosis:
    plan: Plan
    witness: Witness
    trials: Trials
    wrong: list[int]
    sites: Sites = field(init=False)
    standings: Standings = field(init=False)
    scenarios: tuple[Scenario, ...] = field(init=False)
    more: Trials | None = None

    def __post_init__(self) -> None:
        self.sites = Sites(self.plan, self.wrong)
        self.scenarios = tuple(self.trials.scenarios)  # those of the trials are made anew when they are large
        first, *others = self.scenarios
        rest = [Standings(self.plan, s, s.expand(self.plan)) for s in others]
        self.standings = Standings(self.plan, first, first.expand(self.plan), rest)
        self.names = Names(self.plan)
        self.ranks = self.trials.ranks(self.witness.output)
        self.choice = Choice(self.plan, self.sites, self.standings, self.ranks)

    def cause(self, prove: Prove) -> Cause | None:
        first: Cause | None = None
        for edit in itertools.islice(self._repairs(), _PROVED):
            edited = edit.apply(self.plan)
            if prove(numbered(edited), self.wrong):
                return self._made(self._edited(edit), self._suggestion(edit))
            if edit.kind not in LATE and first is None:  # any tensor may be the sum of two others by chance
                first = self._made(self._edited(edit), "") if self._by_more(edited) else None
        if first is not None:
            return first
        self.trials.work.last = math.inf  # what is left is little, and most is known
        lost = self._lost()
        return None if lost is None else self._made(lost, "")

    def _made(self, found: tuple[str, Op, str], suggestion: str) -> Cause:
        cls, op, what = found
        at = line_of(self.plan, op.loc)
        return Cause(op, cls, at, what, self.ranks, tuple(self.wrong), suggestion)

    def _by_more(self, edited: Plan) -> bool:
        """Does an edit that was not proved repair the plan on further inputs too, or was it by chance?"""
        if self.more is None:
            inputs = self.witness.inputs
            self.more = Trials.of(self.plan, inputs, self.trials.work, _MORE)
        with suppress(OutOfTime):
            return self.more.repairs(edited, self.wrong)
        return False

    def _repairs(self) -> Iterator[Edit]:
        """Repairing edits, the likeliest first."""
        with suppress(OutOfTime):
            for edit in sorted(Proposals(self.sites, self.standings).all(), key=self.choice.key)[:_TRIED]:
                if self.trials.repairs(edit.apply(self.plan), self.wrong):
                    yield edit

    # --- what an edit shows ----------------------------------------------------------------------------

    def _edited(self, edit: Edit) -> tuple[str, Op, str]:
        cls, op = self._op(edit.ops[0])
        if edit.kind in ("drop", "literal") and (literal := self.sites.own_literal(cls, op)) is not None:
            return (
                cls,
                literal,
                f"{op_words(self.plan, op)} has a wrong factor or term, {self._value(literal)}",
            )
        standings = self.standings.of(self._rank(cls), op.out)
        what = f"{op_words(self.plan, op)}"
        match edit.kind:
            case "insert" | "average":
                axes = next((s.axes for s in standings if s.axes), ())
                over = "/".join(axes)
                readers = self.sites.users[cls][op.out]
                reader = next((r for r in readers if self.choice.deviates(cls, r)), next(iter(readers), None))
                where = "" if reader is None else f" where {self._with_line(reader)} reads it"
                what += f" is still a partial sum over {over}{where}: a reduction over {over} is missing"
            case "scale":
                what += f" is {multiple(self.names, standings[0])}; expected 1 x"
            case "operand" | "add":
                what += ": from here on the values are not the specification's"
            case _ if standings and not self.standings.settled(self._rank(cls), op.out):
                what += f" is {multiple(self.names, standings[0])}; expected 1 x"
            case _:
                what += ": the first op at which the relation to the specification is lost"
        return cls, op, what

    @staticmethod
    def _value(literal: Op) -> str:
        return str(literal.attrs["value"])

    def _suggestion(self, edit: Edit) -> str:
        lines = dict.fromkeys(
            f"{line.file}:{line.line}" for cls, op in map(self._op, edit.ops)
            if (line := line_of(self.plan, op.loc)) is not None
        )  # fmt: skip
        return f"{edit.what}{', after' if edit.after else ' at'} {', '.join(lines) or edit.ops[0][1]}"

    def _op(self, place: Place) -> tuple[str, Op]:
        cls, out = place
        return cls, self.sites.made[cls][out]

    def _with_line(self, op: Op) -> str:
        line = line_of(self.plan, op.loc)
        return op_words(self.plan, op) + (f" ({line.file}:{line.line})" if line else "")

    # --- without an edit -------------------------------------------------------------------------------

    def _rank(self, cls: str) -> int:
        """A rank of the class at which the output is wrong, if there is one."""
        mesh, classes = self.plan.mesh, self.plan
        mine = [r for r in range(mesh.ranks) if classes.class_of(mesh.coordinates(r)).name == cls]
        return next((r for r in mine if r in self.ranks), mine[0])

    def _lost(self) -> tuple[str, Op, str] | None:
        """The first op whose result is no tensor of the specification, although its operands are."""
        plan = self.plan
        rank = self.ranks[0] if self.ranks else 0
        cls = plan.class_of(plan.mesh.coordinates(rank))
        ops = {op.out: op for op in cls.program.ops}
        output = cls.program.outputs[plan.outputs[self.witness.output].plan]
        if output not in ops:
            return None

        def settled(cls: str, value: str) -> bool:
            return ops[value].type.sort != "Real" or self.choice.settled(cls, value)

        def there(_cls: str, value: str) -> bool:
            return ops[value].name == "constant" or not self.standings.lost(rank, value)

        found = self._first(rank, ops, output, settled) or self._first(rank, ops, output, there)
        # If nothing is lost, outputs were exchanged, or rows are right ones of another place.
        narrowing = Narrowing.of(plan, self.witness.inputs, self.witness.junk, contents)
        narrow = narrowing.before(rank, output if found is None else found.out)
        if narrow is not None:
            less = "after it the ranks hold less of the tensor than they gave"
            return cls.name, narrow, f"{op_words(plan, narrow)}: {less}"
        if found is None:
            placed = ops[output]
            while placed.name in _RENAMED and placed.ins[0] in ops:
                placed = ops[placed.ins[0]]
            return cls.name, placed, f"{op_words(plan, placed)} is not the tensor that is claimed"
        if (partial := self._partial(cls.name, rank, ops, found)) is not None:
            return partial
        if (number := self._unlike(rank, ops, found)) is not None:
            what = f"no tensor of the specification is like it, where {self._with_line(found)} reads it"
            return cls.name, number, f"{op_words(plan, number)}: {what}"
        found = self._moved(rank, ops, found)
        what = "its operands are the specification's, its result is not"
        return cls.name, found, f"{op_words(plan, found)}: {what}"

    def _unlike(self, rank: int, ops: dict[str, Op], reader: Op) -> Op | None:
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
        read = [ops[v] for v in first.ins if v in ops] if first is not None else []
        return read[0] if read and all(op.name == "constant" for op in read) else first

    def _moved(self, rank: int, ops: dict[str, Op], reader: Op) -> Op:
        """Where elements first are in other places, though their values are the specification's."""

        def placed(_cls: str, value: str) -> bool:
            found = self.standings.of(rank, value)
            flat = len(ops[value].type.shape) < _GRID
            return flat or value == reader.out or not found or any(s.placed for s in found)

        away = [v for v in reader.ins if v in ops and not placed("", v)]
        return (self._first(rank, ops, away[0], placed) or reader) if away else reader

    def _first(
        self, rank: int, ops: dict[str, Op], output: str, right: Callable[[str, str], bool]
    ) -> Op | None:
        """The first op of the last chain of ops that are not right and lead to the output."""
        cls = self.plan.class_of(self.plan.mesh.coordinates(rank)).name
        made = nx.DiGraph((v, op.out) for op in ops.values() for v in op.ins)
        made.add_node(output)
        cone = {output} | nx.ancestors(made, output)
        lost = made.subgraph(name for name in ops if name in cone and not right(cls, name))
        if output not in lost:
            return None
        chain = {output} | nx.ancestors(lost, output)
        return next(op for op in ops.values() if op.out in chain and not lost.in_degree(op.out))

    def _partial(self, cls: str, rank: int, ops: dict[str, Op], reader: Op) -> tuple[str, Op, str] | None:
        """The partial sum that an op reads as if it were whole, at the op that made it."""
        if reader.name in COLLECTIVES and reader.attrs.get("kind") == "add":
            return None
        for v in reversed(reader.ins):  # parts of a sum may be divided by a whole, not by a part
            here = ops.get(v)
            while here is not None and here.name in _LINEAR and self._axes(rank, here.out):
                before = next((ops[i] for i in here.ins if i in ops and self._axes(rank, i)), None)
                if before is None:
                    break
                here = before
            if here is not None and (axes := self._axes(rank, here.out)):
                over = "/".join(axes)
                read = f"is still a partial sum over {over} where {self._with_line(reader)} reads it"
                return cls, here, f"{op_words(self.plan, here)} {read}: a reduction over {over} is missing"
        return None

    def _axes(self, rank: int, value: str) -> tuple[str, ...]:
        """Axes over which a value is a partial sum, and nothing without a sum."""
        try:
            found = self.standings.of(rank, value)
        except EvaluationError:
            return ()
        return found[0].axes if found and all(s.axes for s in found) else ()


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
