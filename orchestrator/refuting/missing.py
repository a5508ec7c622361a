"""Which stage an output without a verdict lacks, in the words of a diagnosis: the op, what was looked for,
what to do.

It rests on what the prover knows when it gives up: the first op without a relation to the specification is
where a reader should look, whether the plan is wrong there or right in a way that is not understood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.proof.facts import Reduced, Ref, split_ref

from ..relating.hints import Missing
from .reductions import LINEAR, times
from .standing import Standing
from .witnessing import choices
from .wording import Line, Names, line_of, multiple, op_json, op_words

#: Ops of the specification that are named as what was looked for.
_NAMED = 2


@dataclass(frozen=True)
class Lack:
    """A stage that ``outputs`` lack: the user's line, ``what`` is missing, what was ``looked`` for."""

    outputs: tuple[int, ...]
    cls: str
    op: Op
    at: Line | None
    what: str
    looked: str
    advice: str

    def __str__(self) -> str:
        where = f"{self.at}: " if self.at else ""
        return where + "; ".join(part for part in (self.what, self.looked, self.advice) if part)

    def to_json(self, plan: Plan) -> dict[str, object]:
        """As the document of ``--json`` has it."""
        return op_json(self.op, self.cls, self.at) | {
            "what": self.what,
            "looked_for": self.looked or None,
            "advice": self.advice,
            "outputs": [plan.outputs[i].plan for i in self.outputs],
        }


def grouped(plan: Plan, lacks: Mapping[int, Missing], seconds: float | None) -> list[Lack]:
    """Each missing stage of outputs of a plan once, with the outputs that lack it.

    A witness was looked for in ``seconds``; ``None`` if there is one against another output.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for output, missing in lacks.items():
        key = (missing.plan.name, missing.cls, missing.op.out, *((f, c.out) for f, c in missing.inside))
        found.setdefault(key, []).append(output)
    return [_lack(plan, lacks[outputs[0]], outputs, _tried(seconds)) for outputs in found.values()]


def _tried(seconds: float | None) -> str:
    if seconds is None:
        return "a witness is looked for against one output only"
    if seconds <= 0:
        return "no witness was looked for (--witness-seconds)"
    return f"no witness was found among {choices(seconds)} inputs or in {seconds:g} s (--witness-seconds)"


def _lack(claimed: Plan, missing: Missing, outputs: Sequence[int], tried: str) -> Lack:
    plan, op, at = missing.plan, missing.op, line_of(missing.plan, missing.op.loc)
    where = "".join(f", in the function {f} of {op_words(plan, call)}" for f, call in missing.inside)
    here = f"{op_words(plan, op)} of class {missing.cls}{where}"
    if missing.unmodelled:
        what = f"no stage can be made of {here}: no model of {missing.unmodelled}"
        advice = "write it with collectives that docs/format.md has a meaning for"
        return Lack(tuple(outputs), missing.cls, op, at, what, "", advice)
    own, names, looked, change = next(_standings(missing, op.out), None), Names(plan), "", _unsummed(missing)
    if own is None or change:  # what is made of parts as if they were whole is related by chance
        what, looked = f"no relation of {here} to the specification was found", _looked(missing)
    else:
        relation = claimed.outputs[outputs[0]]
        axes = relation.reduce[1] if relation.reduce else ()
        claim = Standing(relation.coef, tuple(axes), claimed.specification.outputs[relation.spec])
        what = f"{here} is {multiple(names, own)}; claimed is {multiple(names, claim)}"
        change = _to_be(own, claim)
        if own == claim:
            what = f"{here} seems to be {multiple(names, own)}, as is claimed, and no stage proves it"
    advice = f"if this line is right, the prover lacks a stage for it (docs/extending.md); {tried}"
    advice = f"{change}; {advice}" if change else advice
    unbounded = _unbounded(missing) if op.name == "gather" else []
    if unbounded:
        given = " and ".join(f"`{name}`" for name in unbounded)
        advice = f"{given} may name a row outside of the table: declare bounds (Batch), or clamp it; {tried}"
    if not missing.inside:
        advice += f"; tv-show --op {missing.cls}:{op.out} shows it"
    return Lack(tuple(outputs), missing.cls, op, at, what, looked, advice)


def _unsummed(missing: Missing) -> str:
    """What to do if an op that is not linear reads a tensor of which only the sum over ranks is known."""
    if missing.op.name in LINEAR | COLLECTIVES:
        return ""
    for value in dict.fromkeys(missing.op.ins):
        known = [*_standings(missing, value)]
        if known and all(s.axes for s in known):
            over = "/".join(known[0].axes)
            return (
                f"if `{value}` should be whole here, a reduction over {over} is missing: all_reduce it before"
            )
    return ""


def _to_be(own: Standing, claim: Standing) -> str:
    """What makes of a tensor that is known the one that is claimed, if a sum or a factor does."""
    if own.spec != claim.spec or not {*claim.axes} <= {*own.axes}:
        return ""
    axes = "/".join(a for a in own.axes if a not in claim.axes)
    sum_ = [f"a reduction over {axes} is missing: all_reduce it"] if axes else []
    factor = [times(claim.coef / own.coef)] if claim.coef != own.coef and own.coef else []
    return f"if the claim is right, {' and '.join(sum_ + factor)}" if sum_ or factor else ""


def _unbounded(missing: Missing) -> list[str]:
    """Integer inputs without a declared range that decide where a look-up reads."""
    program = missing.plan.by_class[missing.cls].program
    made = {op.out: op for op in program.ops}
    found, work = list[str](), [missing.op.ins[1]]
    for value in work:  # grows meanwhile
        op = made.get(value)
        if op is not None and op.name not in ("maximum", "minimum"):  # a clamp
            work += [v for v in op.ins if v not in work]
        elif op is None and program.inputs[value].sort == "Int" and value not in missing.plan.ranges:
            found.append(value)
    return found


def _looked(missing: Missing) -> str:
    """Which relation was expected: the specification's op of this name on what the operands stand for."""
    plan, op = missing.plan, missing.op
    names = Names(plan)
    known = {v: next(_standings(missing, v), None) for v in dict.fromkeys(op.ins)}
    found = {v: s for v, s in known.items() if s is not None}
    operands = ", ".join(
        f"`{v}` is given" if v == s.spec and v not in names.ops else f"`{v}` is {multiple(names, s)}"
        for v, s in found.items()
    )
    specs = {s.spec for s in found.values()}
    readers = [o for o in plan.specification.ops if any(specs & _made_of(missing, v) for v in o.ins)]
    alike = [o for o in readers if o.name == op.name]
    if not found:
        return "none of its operands has one by itself"
    if alike:
        ops = " or ".join(_spec(missing, o) for o in alike[:_NAMED])
        looked = f"looked for what the specification makes of it, {ops}, in shards or as a sum over ranks"
        return f"{operands}: {looked}"
    if readers:
        ops = " and ".join(_spec(missing, o) for o in readers[:_NAMED])
        return f"{operands}, of which the specification makes {ops}, and no {op.name}"
    return f"{operands}, of which the specification makes nothing more"


def _made_of(missing: Missing, value: str) -> set[str]:
    """A tensor of the specification, and those of which it is a multiple or a part."""
    known = missing.knowledge
    sources = {known.facts[n].rhs for n in known.facts_for(f"s:{value}")}
    return {value} | {split_ref(r)[1] for r in sources if isinstance(r, str) and r.startswith("s:")}


def _spec(missing: Missing, op: Op) -> str:
    line = line_of(missing.plan, op.loc)
    return f"its `{op.name} {op.out}`" + (f" ({line.file}:{line.line})" if line else "")


def _standings(missing: Missing, value: str) -> Iterator[Standing]:
    """What a value is known to be: a multiple of a tensor of the specification, perhaps summed over ranks."""
    known = missing.knowledge
    ref = f"{missing.cls}:{value}"
    sides: list[Ref] = [ref, *known.partials.get(ref, ())]
    for side in sides:
        for number in known.facts_for(side):
            fact = known.facts[number]
            if isinstance(fact.rhs, str) and fact.rhs.startswith("s:"):
                axes = side.axes if isinstance(side, Reduced) else ()
                yield Standing(fact.coef, tuple(axes), split_ref(fact.rhs)[1])
