"""Facts, stages and whole certificates as text, in the style of :mod:`certificates.showing.plan_text`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import assert_never

from ..plan.plan import Plan
from ..plan.types import format_rational
from ..proof.facts import Fact, Ref, split_ref
from ..proof.stages import (
    AlgebraPremise,
    AlgebraStage,
    BoundIndex,
    BoundSymbol,
    BoundValue,
    CallStage,
    Def,
    Elem,
    ElemDef,
    ElemHyp,
    EvidentRange,
    Hyp,
    Index,
    InputRange,
    Law,
    LayoutPremise,
    LayoutStage,
    Proof,
    Stage,
)
from ..words import clean, count
from .plan_text import op_text


def bundle_text(proof: Proof, verdicts: Sequence[tuple[str, str, str, str]]) -> list[list[str]]:
    """Two sections: the verdicts that the bundle claims, and one line per stage."""
    claimed = ["claimed verdicts {"]
    for spec, plan, verdict, reason in verdicts:
        names = clean(plan) if plan == spec else f"{clean(plan)} ~ {clean(spec)}"
        claimed.append(f"  {clean(verdict):<8} {names}" + (f": {clean(reason)}" if reason else ""))
    lemmas = []
    for number, lemma in enumerate(proof.lemmas):
        inside = Proof(lemma.facts, lemma.stages)
        assumed = len(lemma.facts) - len(lemma.stages)
        size = f"{count(assumed, 'assumption')}, {count(len(lemma.concludes), 'conclusion')}"
        lemmas.append(
            [f"lemma {number} about function {clean(lemma.function)} ({size}):"]
            + [f"  {stage_line(inside, i)}" for i in range(len(lemma.stages))]
        )
    return [
        [*claimed, "}"],
        *lemmas,
        [count(len(proof.stages), "stage") + ", each proves one fact:"]
        + [f"  {stage_line(proof, i)}" for i in range(len(proof.stages))],
    ]


def stage_line(proof: Proof, number: int) -> str:
    """``stage 3 layout: title (2 premises)``."""
    stage = proof.stages[number]
    match stage:
        case CallStage():
            function = clean(proof.lemmas[stage.lemma].function)
            return f"stage {number} call: {function} {stage.instance}, by lemma {stage.lemma}"
        case LayoutStage():
            size = count(len(stage.premises), "premise")
            kind = "layout"
        case AlgebraStage():
            premises = sum(len(c.premises) for c in stage.cases)
            size = f"{count(len(stage.cases), 'case')}, {count(premises, 'premise')}"
            kind = "algebra"
        case _:
            assert_never(stage)
    return f"stage {number} {kind}: {clean(stage.title)} ({size})"


def stage_text(plan: Plan, proof: Proof, number: int) -> list[str]:
    """One stage in full: the fact it proves, from what, and in which file."""
    stage = proof.stages[number]
    if isinstance(stage, CallStage):
        return [stage_line(proof, number)]
    lines = [stage_line(proof, number), f"  proves {fact_text(proof, stage.goal)}"]
    match stage:
        case LayoutStage():
            if stage.symbols:
                lines.append(f"  with {', '.join(_symbol(*s) for s in stage.symbols)}")
            lines += _file(stage.file, 1)
            lines += [f"    {line}" for p in stage.premises for line in _layout(plan, proof, p)]
        case AlgebraStage():
            reduced = [f"{clean(c)} has {n}, {m} stand for them" for c, (n, m) in stage.classes.items()]
            lines.append(f"  index classes: {'; '.join(reduced) or 'none'}")
            for case in stage.cases:
                at = ", ".join(".".join(map(str, r)) for r in case.reps)
                lines.append(f"  case at ({at})" if at else "  case")
                lines += _file(case.file, 2)
                lines += [f"      {line}" for p in case.premises for line in _algebra(plan, proof, p)]
        case _:
            assert_never(stage)
    return lines


def _file(file: str, depth: int) -> list[str]:
    return [f"{'  ' * depth}obligations/{clean(file)}.smt2, from"] if file else [f"{'  ' * depth}from"]


def _symbol(name: str, lo: int | None, hi: int | None) -> str:
    return f"{clean(name)} (a value)" if lo is None else f"{clean(name)} in [{lo},{hi})"


def fact_text(proof: Proof, number: int) -> str:
    """``fact 7: c0:%5[dp, z0] = s:%3[4*dp + z0] for ... (input relation 2)``."""
    if not 0 <= number < len(proof.facts):
        return f"fact {number}, which does not exist"
    fact = proof.facts[number]
    return f"fact {number}: {clean(fact)}{_origin(proof.stages, fact, number)}"


def _origin(stages: Sequence[Stage | CallStage], fact: Fact, number: int) -> str:
    if fact.by is not None and fact.by[0] == "input":
        return f" (input relation {fact.by[1]})"
    goals = (i for i, s in enumerate(stages) if not isinstance(s, CallStage) and s.goal == number)
    prover = next(goals, None)
    called = any(isinstance(s, CallStage) for s in stages)
    proved = f"stage {prover}" if prover is not None else "by a call" if called else "not proved"
    return f" ({proved}; output relation {fact.by[1]})" if fact.by is not None else f" ({proved})"


def _at(ref: Ref, index: Index) -> str:
    return f"{clean(ref)}[{', '.join(map(clean, index))}]"


def _definition(plan: Plan, ref: Ref) -> list[str]:
    """The op that computes a tensor, or nothing for reduced tensors and inputs."""
    if not isinstance(ref, str):
        return []
    owner, value = split_ref(ref)
    cls = plan.by_class.get(owner)
    program = plan.specification if owner == "s" else cls.program if cls is not None else None
    ops = () if program is None else program.ops
    return [f"       {op_text(op, plan.sources)}" for op in ops if op.out == value]


def _layout(plan: Plan, proof: Proof, p: LayoutPremise) -> list[str]:
    match p:
        case BoundSymbol():
            return [f"bound  range of {clean(p.sym)}"]
        case BoundIndex():
            return [f"bound  index of {_at(p.t, p.at)} regrouped as [{', '.join(map(clean, p.arg))}]"]
        case BoundValue():
            return [f"bound  {clean(p.value)} is {_at(p.t, p.at)}"]
        case Def():
            read = "" if p.arg is None else f" from [{', '.join(map(clean, p.arg))}]"
            return [f"def    {_at(p.t, p.at)}{read}", *_definition(plan, p.t)]
        case Hyp():
            lifted = f", {clean(p.kind)} over {', '.join(map(clean, p.lift))}" if p.lift else ""
            at = f"({', '.join(map(clean, p.at))})"
            return [f"hyp    {fact_text(proof, f)} at {at}{lifted}" for f in p.facts]
        case InputRange():
            return [f"range  {_at('s:' + p.input, p.at)}"]
        case EvidentRange():
            return [f"range  {_at(p.t, p.at)}, as its ops show"]
        case _:
            assert_never(p)


def _algebra(plan: Plan, proof: Proof, p: AlgebraPremise) -> list[str]:
    match p:
        case ElemDef():
            return [f"def    {term_text(p.e)}", *_definition(plan, p.e.ref)]
        case ElemHyp():
            at = ", ".join(map(clean, p.at))
            return [f"hyp    {fact_text(proof, p.fact)} at ({at}), read as its {clean(p.defines)}"]
        case Law():
            return [f"law    {clean(p.schema)}: {term_text(p.lhs)} = {term_text(p.rhs)}"]
        case _:
            assert_never(p)


def term_text(term: object) -> str:
    """A term of the algebra, ``mul(c0:%1[0:1], 1/2 * s:%3[0:0])``."""
    match term:
        case Elem():
            places = [f"{c[0]}:{'.'.join(map(str, c[1:]))}" if c[1:] else str(c[0]) for c in term.index if c]
            return f"{clean(term.ref)}[{', '.join(places)}]"
        case Fraction():
            return format_rational(term)
        case ("*", Fraction() as factor, body):
            return f"{format_rational(factor)} * {term_text(body)}"
        case ("+" | "-" as sign, *arguments):
            return f"({f' {sign} '.join(map(term_text, arguments))})"
        case (function, *arguments):
            return f"{clean(function)}({', '.join(map(term_text, arguments))})"
        case _:
            raise TypeError(f"not a term: {term!r}")
