"""The kernel: decides whether a bundle proves what it claims. No input or output, no solver, no trust.

    examine(manifest, plan, proof, members)     obligations 1-16, 19-23, gives the files to refute
    conclude(examined, answers, confirmations)  obligation 17, builds the one kind of `Verified`

 1 members            every member has the digest that the manifest lists, and every member is listed
 2 plan               the plan is well-formed (the reader); infinite literals stand where they have meaning
 3 facts              facts are well-formed and in range; a declared fact is an input relation's
 4 hypotheses         a hypothesis is an instance of a fact; a tensor has one definition, none is circular
 5 definitions        a definition is the op's meaning, by the checker's own table
 6 bounds             an index symbol has its range; a fresh symbol is introduced once, from earlier ones
 7 laws               a law is an instance of its schema
 8 trees and classes  one tree per coordinate, tiling it; one size per class; every op cuts its tensors alike
 9 widths             every class has m >= min(n, w) representatives, w by the checker's own count
10 goals              the goals of a stage are all coincidence patterns of its fact's free indices
11 order              every fact is declared, the goal of one stage, which uses earlier facts only, or a
                      conclusion of a lemma at a call where the facts that it rests on are proved; a function
                      at a slice is called by the classes of one slice, and no fact of a lemma speaks of it
12 text               every obligation file is, byte for byte, what its record says
13 process groups     a process group that is used is a mesh factorisation, order included; in a function at a
                      slice it is one of the other axes
14 rendezvous         collectives and reduced tensors join rank classes that tile the reduced axes; no value
                      rests on itself, however classes meet
15 inputs             the input relation can be satisfied: no element is given twice
16 outputs            relations cover every element of both sides' outputs, at every rank
17 solvers            the policy's number of solvers refuted every file a verdict rests on, none disagreed
18 witnesses          a refuted output has a witness that replays at true sizes without a solver (witness.py)
19 messages           what a rank receives is what the rank that both ends mean sends, once, at the same time
20 time               a rank has each tensor once for all its runs, which sums and stacks alone join
21 ghosts             tensors that only the proof has are computed from the plan's by ops without effect on it
22 rows               no result depends on the order of packed rows: each op on rows names it, keys lie in
                      their range, and ranks that meet ship rows of one order (rows.py)
23 schedule           the schedule is one of this plan, its times grow; SAFE or UNSAFE is a verdict of its own
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import Masked, Rejected, Undecided
from .language.affine import evident
from .language.plan import Plan
from .language.proof import (
    CallStage,
    ElementHyp,
    Fact,
    Hyp,
    LayoutStage,
    Lemma,
    Manifest,
    Proof,
    Stage,
    Tensor,
)
from .rules.acyclic import check_acyclic
from .rules.algebra import Algebra
from .rules.calls import Call, check_symbols, seen, tensors
from .rules.ghosts import check_ghosts
from .rules.infinite import infinities
from .rules.layout import Layout
from .rules.messages import check_messages
from .rules.model import LITERALS, Model
from .rules.normalise import Normaliser
from .rules.relations import check_once, check_outputs, relation_facts
from .rules.roles import broken
from .rules.rows import check_rows
from .rules.terms import file_text, plain
from .rules.timing import check_time
from .rules.widths import check_widths
from .scheduling.safety import Safety, safety

_SEAL = object()


@dataclass(frozen=True)
class Proved:
    """One examined stage: the number of its goal, its files, and the facts that it uses."""

    goal: int
    title: str
    files: frozenset[str]
    used: frozenset[int]


@dataclass(frozen=True)
class Examined:
    """A bundle that fulfils obligations 1 to 16 and 19 to 23; what is left: solvers refute `files`.
    `safe` is the verdict on its schedule, if it has one."""

    plan: Plan
    manifest: Manifest
    files: Mapping[str, bytes]
    facts: tuple[Fact, ...]
    known: Mapping[Fact, int]
    stages: tuple[Proved, ...]
    claimed: tuple[tuple[Fact, ...], ...]
    cases: int
    steps: int
    algebra: frozenset[str]
    normalised: frozenset[str]
    assumptions: tuple[str, ...]
    padding: tuple[str, ...]
    never: Masked | None = None
    safe: Safety | None = None


@dataclass(frozen=True)
class Output:
    """The verdict on one output relation."""

    spec: str
    plan: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Verified:
    """The checker's verdict; only `conclude` can build one."""

    outputs: tuple[Output, ...]
    invariant: tuple[str, ...]
    seal: object

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            raise TypeError("only the kernel builds a Verified")


def examine(manifest: Manifest, plan: Plan, proof: Proof, members: Mapping[str, bytes]) -> Examined:
    """Obligations 1 to 16 and 19 to 23; raises `Rejected` where one fails."""
    for name, digest in manifest.members.items():
        if name not in members or hashlib.sha256(members[name]).hexdigest() != digest:
            raise Rejected(1, f"{name} is missing or not what the manifest lists")
    for name in sorted(members.keys() - manifest.members.keys()):
        raise Rejected(1, f"{name} is not listed in the manifest")
    check_messages(plan)
    check_time(plan)
    check_rows(plan)
    check_acyclic(plan)
    safe = safety(plan, proof.when)
    whole = proof.extended or plan
    check_ghosts(plan, whole)
    model, assumptions, never = Model(whole), list[str](), None
    try:
        assumptions = infinities(whole)
    except Masked as error:
        never = error
    check_once(plan.inputs, 15)
    padding = check_outputs(plan)
    declared = [relation_facts(plan, r, "inputs") for r in plan.inputs]
    claimed = tuple(tuple(relation_facts(plan, r, "outputs")) for r in plan.outputs)
    for fact in [f for facts in [*declared, *claimed] for f in facts]:
        _fact(model, fact, "a fact of a relation")
    for number, fact in enumerate(proof.facts):
        _fact(model, fact, f"fact {number}")
        relation = proof.declared.get(number)
        if relation is not None and (relation >= len(declared) or fact not in declared[relation]):
            raise Rejected(3, "this is no fact of the input relation it cites", f"fact {number}")
    texts = _Texts(members, manifest)
    lemmas = [_lemma(whole, lemma, texts, f"lemma {i}, ") for i, lemma in enumerate(proof.lemmas)]
    unlisted = dict.fromkeys(f for relation in declared for f in relation if lemmas).keys() - set(proof.facts)
    facts = [*proof.facts, *unlisted]  # a call may rest on a declared fact without its being listed
    given = {*proof.declared, *range(len(proof.facts), len(facts))}
    known = {f: i for i, f in reversed(list(enumerate(facts)))}
    stages = _stages(model, facts, known, given, proof.stages, texts, "", lemmas)
    for name in texts.members:
        if name.startswith("obligations/") and name[12:-5] not in texts.files:
            raise Rejected(12, f"{name} belongs to no stage")
    return Examined(
        plan,
        manifest,
        texts.files,
        tuple(facts),
        known,
        stages,
        claimed,
        texts.cases,
        len(proof.stages) + sum(len(lemma.stages) for lemma in proof.lemmas),
        frozenset(texts.algebra),
        frozenset(texts.normalised),
        tuple(assumptions),
        tuple(padding),
        never,
        safe,
    )


def _fact(model: Model, fact: Fact, where: str) -> None:
    """Obligation 3: existing tensors of one sort, index forms evidently in range."""
    literals = [isinstance(ref, Tensor) and ref.space in LITERALS for ref in (fact.lhs, fact.rhs)]
    if literals[0] or (literals[1] and fact.coef != 1):
        raise Rejected(3, "a literal stands on the left or under a coefficient", where)
    sorts = {model.type(fact.lhs).sort, model.type(fact.rhs).sort}
    if len(sorts) != 1 or (fact.coef != 1 and sorts != {"Real"}):
        raise Rejected(3, "sorts or coefficient do not fit", where)
    ranges = fact.ranges()
    for ref, index in ((fact.lhs, fact.lhs_index), (fact.rhs, fact.rhs_index)):
        bounds = model.ranges(ref)
        if len(index) != len(bounds):
            raise Rejected(3, f"{ref} has {len(bounds)} coordinates, {len(index)} given", where)
        if not all(evident(f, low, high, ranges) for f, (low, high) in zip(index, bounds, strict=True)):
            raise Rejected(3, f"an index of {ref} may leave its range", where)


# Stages (obligations 4 to 12) -------------------------------------------------------------------------------


class _Texts:
    """Obligation 12: the files of a bundle against the texts that the kernel generates."""

    def __init__(self, members: Mapping[str, bytes], manifest: Manifest) -> None:
        self.members, self.status, self.version = members, manifest.status, manifest.version
        self.files: dict[str, bytes] = {}
        self.algebra: set[str] = set()
        self.normalised: set[str] = set()
        self.cases = 0

    def compare(self, name: str, text: bytes, where: str) -> bool:
        """Bytes for the first case that names a file (gives True), all but comments for later ones."""
        member, new = f"obligations/{name}.smt2", name not in self.files
        if member not in self.members:
            raise Rejected(12, f"{member} is missing", where)
        if new and name != f"{len(self.files) + 1:04}":
            raise Rejected(12, f"{member} is not numbered in order of first use", where)
        written, text = (self.members[member], text) if new else (plain(self.files[name]), plain(text))
        self.files.setdefault(name, written)
        self.cases += 1
        if written != text:
            ours, theirs = (t.decode("utf-8", "replace").split("\n") for t in (text, written + b"\nthe end"))
            line = next(
                (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours) - 1
            )
            raise Rejected(
                12,
                f"{member}, line {line + 1}: expected {ours[line][:160]!r}, found "
                f"{theirs[min(line, len(theirs) - 1)][:160]!r}",
                where,
            )
        return new


@dataclass(frozen=True)
class _Lemma:
    """An examined lemma; per conclusion the assumed facts and the files that it rests on."""

    function: str
    facts: tuple[Fact, ...]
    concludes: tuple[tuple[Fact, frozenset[int], frozenset[str]], ...]


def _lemma(plan: Plan, lemma: Lemma, texts: _Texts, where: str) -> _Lemma:
    """A proof about the bodies of a function, from facts about its inputs to facts about its outputs."""
    if lemma.function not in plan.functions:
        raise Rejected(11, f"there is no function {lemma.function[:60]}", where[:-2])
    body = plan.functions[lemma.function]
    model = Model(body, lemma.function, plan)
    assumed = set(range(len(lemma.facts))) - {s.goal for s in lemma.stages}
    for number, fact in enumerate(lemma.facts):
        _fact(model, fact, f"{where}fact {number}")
        check_symbols(body, fact, f"{where}fact {number}")
        for about, kind in ((assumed, "assumed"), (set(lemma.concludes), "concluded")):
            if number in about and not set(tensors(fact)) <= seen(body, kind == "concluded"):
                raise Rejected(11, f"a fact is {kind} about what no call shows", f"{where}fact {number}")
    rests = {n: (frozenset((n,)), frozenset[str]()) for n in assumed}
    for stage in _stages(model, list(lemma.facts), {}, set(assumed), lemma.stages, texts, where, []):
        below = [rests[f] for f in stage.used]
        rests[stage.goal] = (
            frozenset[int]().union(*(r[0] for r in below)),
            stage.files.union(*(r[1] for r in below)),
        )
    return _Lemma(lemma.function, lemma.facts, tuple((lemma.facts[n], *rests[n]) for n in lemma.concludes))


def _stages(
    model: Model,
    facts: list[Fact],
    known: dict[Fact, int],
    proved: set[int],
    given: Sequence[Stage | CallStage],
    texts: _Texts,
    prefix: str,
    lemmas: Sequence[_Lemma],
) -> tuple[Proved, ...]:
    """Every stage in order. Conclusions of calls join `facts` and `known`, their numbers."""
    stages, listed, calls = list[Proved](), len(facts), dict[CallStage, _Called]()
    for number, stage in enumerate(given):
        where = f"{prefix}stage {number}"
        if isinstance(stage, CallStage):
            if stage not in calls:
                calls[stage] = _Called(model.plan, lemmas[stage.lemma], stage, where)
            made = len(facts)
            stages += calls[stage].concluded(facts, known, proved)
            for fact in facts[made:]:
                _fact(model, fact, where)
            continue
        where = f"{where} ({stage.title[:80]})"
        used = _used(stage)
        if stage.goal in proved:
            raise Rejected(11, f"fact {stage.goal} is declared or proved already", where)
        if not used <= proved:
            raise Rejected(11, f"fact {min(used - proved)} is used before it is proved", where)
        if isinstance(stage, LayoutStage):
            layout = Layout(model, facts, stage, where)
            text = file_text(
                "t",
                texts.version,
                stage.title,
                texts.status,
                list(layout.ranges),
                layout.assertions,
                model.signature,
                model.describe,
            )
            texts.compare(stage.file, text, where)
            names = {stage.file}
        else:
            algebra = Algebra(model, facts, stage, where)
            check_widths(algebra, where)
            for i, case in enumerate(algebra.cases):
                text = file_text(
                    "e",
                    texts.version,
                    stage.title,
                    texts.status,
                    [],
                    case.assertions,
                    lambda _: "() Real",
                    model.describe,
                )
                new = texts.compare(case.file, text, f"{where}, case {i}")
                if new and _normal(case.defs, case.left, case.right):
                    texts.normalised.add(case.file)
            names = {case.file for case in algebra.cases}
            texts.algebra |= names
        proved.add(stage.goal)
        stages.append(Proved(stage.goal, stage.title, frozenset(names), frozenset(used)))
    if not proved.issuperset(range(listed)):
        raise Rejected(11, f"fact {min(set(range(listed)) - proved)} is never proved")
    return tuple(stages)


class _Called:
    """A lemma at a call; `open` are the conclusions that are not proved there yet."""

    def __init__(self, plan: Plan, lemma: _Lemma, stage: CallStage, where: str) -> None:
        if (lemma.function, stage.instance) not in plan.spec.calls:
            raise Rejected(11, f"there is no call of {lemma.function} {stage.instance}", where)
        call, self.title = Call(plan, (lemma.function, stage.instance)), f"{lemma.function} {stage.instance}"
        self.open = [(call.fact(fact), rests, files) for fact, rests, files in lemma.concludes]
        rested = frozenset[int]().union(*(rests for _, rests, _ in lemma.concludes))
        self.assumed = {n: call.fact(lemma.facts[n]) for n in rested}

    def concluded(self, facts: list[Fact], known: dict[Fact, int], proved: set[int]) -> list[Proved]:
        """The conclusions that rest on proved facts only; they are proved then."""
        place, out = {n: known.get(fact, -1) for n, fact in self.assumed.items()}, list[Proved]()
        missing = {n for n in place if place[n] not in proved}
        ready = [c for c in self.open if missing.isdisjoint(c[1])]
        self.open = [c for c in self.open if not missing.isdisjoint(c[1])]
        for fact, rests, files in ready:
            goal = known.setdefault(fact, len(facts))
            if goal not in proved:
                facts += [fact] if goal == len(facts) else []
                proved.add(goal)
                out.append(Proved(goal, self.title, files, frozenset(place[n] for n in rests)))
        return out


def _used(stage: Stage) -> set[int]:
    if isinstance(stage, LayoutStage):
        return {f for p in stage.premises if isinstance(p, Hyp) for f in p.facts}
    return {p.fact for case in stage.cases for p in case.premises if isinstance(p, ElementHyp)}


def _normal(defs: Mapping[Any, Any], left: Any, right: Any) -> bool:
    try:
        return Normaliser(defs).equal(left, right)
    except (Undecided, RecursionError):
        return False


# The verdict (obligation 17) --------------------------------------------------------------------------------


def conclude(
    examined: Examined,
    answers: Mapping[str, Mapping[str, str]],
    confirmations: int,
    refuted: Mapping[int, str],
) -> Verified:
    """Verdict per output from the solvers' answers (solver, file number); `refuted` has replayed witnesses.

    A fact is proved when enough solvers answered unsat on every file of its stage and of all stages before it
    that it rests on, and none gave another answer.
    """
    bad: dict[str, str] = {}
    for file in examined.files:
        given = {solver: found.get(file, "nothing") for solver, found in answers.items()}
        agree = sum(answer == "unsat" for answer in given.values())
        if agree < max(confirmations, 1) or agree < len(given):
            said = ", ".join(f"{s} says {a}" for s, a in sorted(given.items()))
            bad[file] = f"obligations/{file}.smt2: {said}"
    why: dict[int, str] = {}
    for stage in examined.stages if bad else ():
        own = [f"{bad[f]} (stage {stage.title[:80]})" for f in sorted(stage.files) if f in bad]
        broken = own + [why[f] for f in sorted(stage.used) if f in why]
        if broken:
            why[stage.goal] = broken[0]
    number = examined.known
    outputs, manifest = [], examined.manifest.verdicts
    if len(manifest) != len(examined.plan.outputs):
        raise Rejected(16, "the manifest must have one verdict per output relation")
    for i, (relation, facts) in enumerate(zip(examined.plan.outputs, examined.claimed, strict=True)):
        spec, plan, claim, reason = manifest[i]
        if (spec, plan) != (relation.spec, relation.plan):
            raise Rejected(16, f"verdict {i} of the manifest names another relation")
        missing = sum(f not in number for f in facts)
        reasons = [why[number[f]] for f in facts if f in number and number[f] in why]
        proved = not missing and not reasons
        if i in refuted and proved:
            raise Undecided(f"{plan} is proved and refuted: a solver or the checker is wrong")
        if i in refuted:
            outputs.append(Output(spec, plan, "REFUTED", refuted[i]))
        elif claim == "REFUTED":
            raise Rejected(18, f"{plan} is called REFUTED and no witness shows it")
        elif claim == "PROVED" and missing:
            raise Rejected(
                16, f"{plan} is called PROVED and {missing} of its {len(facts)} facts are goals of no stage"
            )
        else:
            outputs.append(
                Output(spec, plan, "PROVED", "")
                if proved
                else Output(spec, plan, "UNKNOWN", (reasons or [reason or "no proof in the bundle"])[0])
            )
    if examined.never and not refuted:
        raise examined.never
    return Verified(tuple(outputs), invariant(examined.plan, outputs), _SEAL)


def invariant(plan: Plan, outputs: Sequence[Output]) -> tuple[str, ...]:
    """Why the claim is not the inductive invariant of a whole run; empty if it is (DESIGN section 1)."""
    reasons = [f"{o.plan} is not proved" for o in outputs if o.verdict != "PROVED"]
    reasons += [] if plan.outputs else ["nothing is claimed"]
    return (*reasons, *broken(plan))
