"""Why a refuted plan is wrong: one cause, the outputs that follow from it, and an edit that repairs it.

Edits that people would make (:mod:`.proposals`) are tried, the likeliest first (:mod:`.choosing`), on the
witness's inputs and on others (:mod:`.trials`). The first after which all outputs are right says where the
cause is; it is suggested only if the edited plan was proved. If a factor is wrong, which any line of a
product may have, edits at other lines are told too. If no edit repairs, :mod:`.losing` says where the
relation to the specification is lost.

All of this is for people; the refutation does not rest on it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from certificates.plan.plan import Plan
from certificates.plan.program import Op

from ..errors import OutOfTime
from ..evaluating.network import SPEED, Work
from .choosing import LATE, Choice
from .edits import Edit, Place, numbered
from .losing import Found, Losing
from .proposals import Proposals
from .scenarios import Scenario
from .search import Witness
from .sites import Sites
from .standing import Standings
from .trials import Trials
from .wording import Line, Names, line_of, multiple, op_json, op_words

#: Is every one of these output relations of the plan proved? Raises nothing.
Prove = Callable[[Plan, Sequence[int]], bool]
#: Edits that are tried, and repairing ones that are handed to the prover.
_TRIED, _PROVED = 4000, 3
#: Other lines that are told where a factor is wrong.
_OTHERS = 2
#: Seeds of further inputs.
_MORE = range(8, 16)


@dataclass(frozen=True)
class Suggestion:
    """An edit in words, ``at`` the line of its first op."""

    what: str
    at: Line | None


@dataclass(frozen=True)
class Cause:
    """What is wrong, first ``at``. ``outputs`` are the relations that follow, ``ranks`` where they are seen;
    ``suggestion`` is an edit after which these outputs are proved, or nothing; ``others`` are such edits at
    other lines, where a factor is wrong that any of them may have."""

    op: Op
    cls: str
    at: Line | None
    what: str
    ranks: tuple[int, ...]
    outputs: tuple[int, ...]
    suggestion: str = ""
    others: tuple[Suggestion, ...] = ()

    def describe(self, plan: Plan) -> str:
        """The cause in one line, and the suggestion."""
        where = f"{self.at}: " if self.at else ""
        on = "" if len(self.ranks) in (0, plan.mesh.ranks) else f" on {_ranks(self.ranks)}"
        more = f"; suggestion (proved): {self.suggestion}" if self.suggestion else ""
        more += "".join(f"; or: {other.what}" for other in self.others)
        return f"{where}{self.what}{on}{more}"

    def to_json(self, plan: Plan) -> dict[str, object]:
        """The cause as the document of ``--json`` has it."""
        return op_json(self.op, self.cls, self.at) | {
            "what": self.what,
            "ranks": list(self.ranks),
            "outputs": [plan.outputs[i].plan for i in self.outputs],
            "suggestion": self.suggestion or None,
            "or": [
                {"file": o.at.file, "line": o.at.line, "suggestion": o.what}
                for o in self.others
                if o.at is not None
            ],
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
        self.losing = Losing(self.plan, self.witness, self.sites, self.standings, self.choice)

    def cause(self, prove: Prove) -> Cause | None:
        first: Cause | None = None
        edits = iter(sorted(Proposals(self.sites, self.standings).all(), key=self.choice.key)[:_TRIED])
        for edit in itertools.islice(self._repairing(edits), _PROVED):
            edited = edit.apply(self.plan)
            if prove(numbered(edited), self.wrong):
                best, *others = self._of_a_factor(edit, edits, prove)
                told = tuple(Suggestion(self._suggestion(o), self._line(o)) for o in others)
                made = self._made(self._told(best), self._suggestion(best))
                return dataclasses.replace(made, others=told)
            if edit.kind not in LATE and first is None:  # any tensor may be the sum of two others by chance
                first = self._made(self._told(edit), "") if self._by_more(edited) else None
        if first is not None:
            return first
        self.trials.work.last = math.inf  # what is left is little, and most is known
        lost = self.losing.first(self.ranks[0] if self.ranks else 0)
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

    def _of_a_factor(self, edit: Edit, rest: Iterable[Edit], prove: Prove) -> list[Edit]:
        """A proved edit, and others of the rest at other lines if it mends a factor: any line of a product
        may be meant.

        A mean is left as it is where another factor may be wrong, and a factor that right ones have as well.
        """
        found, lines = [edit], {self._line(edit)}
        if not self._is_factor(edit):
            return found
        likely = (e for e in rest if self._is_factor(e) and not self.choice.right_beside(e))
        for other in self._repairing(e for e in likely if self._line(e) not in lines):
            if prove(numbered(other.apply(self.plan)), self.wrong):
                found.append(other)
                lines.add(self._line(other))
            if len(found) > _OTHERS:
                break
        choice = self.choice
        return sorted(found, key=lambda e: (choice.right_beside(e) or choice.is_given(e), choice.is_mean(e)))

    def _told(self, edit: Edit) -> Found:
        """The op of an edit; if it changes what is settled, where something else than expected is read."""
        ops = [self._op(place) for place in edit.ops]
        if edit.kind in ("swap", "change") and all(self.choice.settled(c, op.out) for c, op in ops):
            return self.losing.taken(self.ranks[0] if self.ranks else 0) or self._edited(edit)
        return self._edited(edit)

    def _is_factor(self, edit: Edit) -> bool:
        """Does it change or drop a literal by which something is multiplied or divided?"""
        return edit.kind in ("drop", "literal") and all(
            self.choice.factor(*self._op(p)) is not None for p in edit.ops
        )

    def _line(self, edit: Edit) -> Line | None:
        return line_of(self.plan, self._op(edit.ops[0])[1].loc)

    def _repairing(self, edits: Iterable[Edit]) -> Iterator[Edit]:
        """Those of some edits that repair the plan on the inputs that are tried."""
        with suppress(OutOfTime):
            for edit in edits:
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
                readers = self.sites.users[cls][op.out]
                reader = next((r for r in readers if self.choice.deviates(cls, r)), next(iter(readers), None))
                return self.losing.unsummed(cls, op, axes, reader)
            case "scale":
                what += f" is {multiple(self.names, standings[0])}; expected 1 x"
            case "operand" | "add":
                what += ": from here on the values are not the specification's"
            case "drop" | "literal" if self._is_factor(edit) and not self.choice.deviates(cls, op):
                what += f" multiplies by {self.choice.factor(cls, op)}; another factor is expected, or none"
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

    def _rank(self, cls: str) -> int:
        """A rank of the class at which the output is wrong, if there is one."""
        mesh, classes = self.plan.mesh, self.plan
        mine = [r for r in range(mesh.ranks) if classes.class_of(mesh.coordinates(r)).name == cls]
        return next((r for r in mine if r in self.ranks), mine[0])


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
