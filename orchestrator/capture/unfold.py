"""Is a folded plan the plan that was captured? Its runs are written out and compared, value by value.

Two values are equal if they are made in one way of the same inputs. Sums are compared as bags of summands, as
the order of additions is what folding changes, and zeros in them are none; a stack that is added up is a sum
as well. A conversion between float types is the identity, so a sum may be one before it or after. Views of
memory are compared in the form that folding gives them; what that form means is tested by numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence

from certificates.plan.affine import Affine
from certificates.plan.ops import MESSAGES
from certificates.plan.plan import Plan
from certificates.plan.program import Attr, Op, Program
from certificates.plan.types import TensorType

from .builder import MEETING
from .fold import AXIS, RUNS
from .recorded import Place
from .views import SPREADS, composed, numbers, renames

#: Outputs of a run, and what it hands to each rendezvous.
_Result = tuple[dict[str, int], dict[object, object]]
_Run = Generator[tuple[Op, int], int, _Result]
#: What an op says beside its operands: attributes, and the type of its result.
_Said = tuple[tuple[tuple[str, str], ...], str]


def same(plan: Plan, folded: Plan, seqs: Mapping[int, Place]) -> bool:
    """Do all runs of ``folded`` compute what ``plan`` does? ``seqs`` says where its rendezvous are."""
    count = folded.mesh.axes[AXIS]
    often = {seq for seq, run in seqs.values() if run is not None}
    table = _Table()
    for one, other in zip(plan.classes, folded.classes, strict=True):
        whole = _finished(table.run(composed(one.program), lambda seq: seqs[seq]))
        runs = [
            table.run(program, lambda seq, k=k: (seq, k if seq in often else None), said)
            for k, (program, said) in enumerate(_runs(composed(other.program), count))
        ]
        results = _together(runs, table)
        met = {place: what for _, meetings in results for place, what in meetings.items()}
        if any(outputs != whole[0] for outputs, _ in results) or met != whole[1]:
            return False
        if any(met[place] != what for _, meetings in results for place, what in meetings.items()):
            return False
    return True


class _Table:
    """Numbers of expressions: equal ones have one number."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        #: Of a sum its summands, of zero none.
        self._summands: dict[int, tuple[int, ...]] = {}
        #: Of a stack its dimension, and what is stacked.
        self._stacked: dict[int, tuple[int, tuple[int, ...]]] = {}

    def number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def total(self, of: TensorType, terms: Sequence[int]) -> int:
        """The sum of expressions of one type; which float type it is does not count."""
        kind = of.sort, of.shape
        leaves = tuple(sorted(leaf for term in terms for leaf in self._summands.get(term, (term,))))
        if len(leaves) == 1:
            return leaves[0]
        number = self.number(("sum", kind, leaves))
        self._summands[number] = leaves
        return number

    def stack(self, op: Op, terms: Sequence[int]) -> int:
        number = self.number(("concatenate", op.integer("dim"), str(op.type), tuple(terms)))
        self._stacked[number] = op.integer("dim"), tuple(terms)
        return number

    def run(self, program: Program, place: object, known: Mapping[str, _Said] | None = None) -> _Run:
        """Yields what joins runs with its operand, and is sent the result; gives outputs and rendezvous.

        ``known`` is what ops say, by their results, as far as it was written before.
        """
        assert callable(place)
        known = known or {}
        values = {name: self.number(("input", name)) for name in program.inputs}
        meetings: dict[object, object] = {}
        for op in program.ops:
            ins = [values[v] for v in op.ins]
            attrs, made = known.get(op.out) or _said(op)
            if op.attrs.get("group") == RUNS:
                values[op.out] = yield op, ins[0]
            elif op.name in MEETING | MESSAGES:
                at = place(op.integer("seq"))
                meetings[op.name, at] = attrs, made, tuple(ins)
                values[op.out] = self.number((op.name, attrs, made, at, tuple(ins)))
            elif op.name == "add":
                values[op.out] = self.total(op.type, ins)
            elif self._adds_up(op, ins):
                parts = [self.number((op.name, attrs, made, (part,))) for part in self._stacked[ins[0]][1]]
                values[op.out] = self.total(op.type, parts)
            elif op.name == "concatenate":
                values[op.out] = self.stack(op, ins)
            elif renames(program, op):
                values[op.out] = ins[0]
            elif self._is_zero(op, ins):
                values[op.out] = self.total(op.type, ())
            else:
                values[op.out] = self.number((op.name, attrs, made, tuple(ins)))
        return {n: values[v] for n, v in program.outputs.items()}, meetings

    def _adds_up(self, op: Op, ins: Sequence[int]) -> bool:
        """Is a stack added up, in whatever order it is?"""
        if op.name != "reduce" or op.attrs["kind"] != "add" or ins[0] not in self._stacked:
            return False
        return self._stacked[ins[0]][0] in numbers(op, "dims")

    def _is_zero(self, op: Op, ins: Sequence[int]) -> bool:
        if op.name == "constant":
            return op.attrs["value"] in ("0", Affine(0))
        return op.name in SPREADS and self._summands.get(ins[0]) == ()


def _finished(run: _Run) -> _Result:
    try:
        next(run)
    except StopIteration as end:
        result: _Result = end.value
        return result
    raise AssertionError("a plan without time axes joins no runs")


def _together(runs: Sequence[_Run], table: _Table) -> list[_Result]:
    """All runs of a rank, joined where they join."""
    sent: int | None = None
    while True:
        results, waiting = [], []
        for run in runs:
            try:
                waiting.append(next(run) if sent is None else run.send(sent))
            except StopIteration as end:
                results.append(end.value)
        if not waiting:
            return results
        assert not results and len({op.integer("seq") for op, _ in waiting}) == 1, "runs join alike"
        op, terms = waiting[0][0], [operand for _, operand in waiting]
        sent = table.total(op.type, terms) if op.name == "all_reduce" else table.stack(op, terms)


def _said(op: Op) -> _Said:
    return tuple(sorted((k, str(v)) for k, v in op.attrs.items() if k != "seq")), str(op.type)


def _runs(program: Program, count: int) -> Iterator[tuple[Program, Mapping[str, _Said]]]:
    """The program of each run, and what ops say that say the same in all of them."""
    timed = {op.out for op in program.ops if op.name in MESSAGES or any(map(_has_time, op.attrs.values()))}
    said = {op.out: _said(op) for op in program.ops if op.out not in timed}
    for run in range(count):
        ops = tuple(_at(op, run) if op.out in timed else op for op in program.ops)
        yield Program(program.inputs, ops, program.outputs), said


def _has_time(value: Attr) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, Affine) and AXIS in part.symbols for part in parts)


def _at(op: Op, run: int) -> Op:
    """The op in one run."""
    here = {AXIS: Affine(run)}

    def at(value: Attr) -> Attr:
        if isinstance(value, Affine):
            return value.substitute(here)
        if isinstance(value, tuple):
            return tuple(v.substitute(here) if isinstance(v, Affine) else v for v in value)  # type: ignore[return-value]
        return value

    attrs = {k: at(v) for k, v in op.attrs.items()}
    if op.name in MESSAGES:  # without its time, which is the run's
        attrs |= {k: v[1:] for k, v in attrs.items() if isinstance(v, tuple)}
    return Op(op.out, op.name, op.ins, op.type, attrs, op.loc)
