"""The kernel: decides whether a bundle proves what it claims. No input or output, no solver, no trust.

    examine(manifest, plan, proof, members)   obligations 1-16, gives the exact files that solvers must refute
    conclude(examined, answers, confirmations) obligation 17, gives a `Verified`, which nothing else can build

 1 members         every member has the digest that the manifest lists, and every member is listed
 2 plan            the plan is well-formed (the reader), infinite literals are used only where they mean
 something 3 facts           facts are well-formed and in range; a declared fact is one that the input
 relation declares 4 hypotheses      a hypothesis is an instance of a fact; a tensor has one definition;
 definitions are not circular 5 definitions     a definition is the op's meaning, by the checker's own table
 6 bounds          an index symbol has its range; a fresh symbol is introduced once, from earlier ones
 7 laws            a law is an instance of its schema
 8 trees           one tree per coordinate, tiling it; one size per class; every op and fact cuts its tensors
 alike 9 widths          every class has m >= min(n, w) representatives, w by the checker's own count
10 goals           the goals of a stage are all coincidence patterns of its fact's free indices
11 order           every fact is declared or the goal of one stage, which uses earlier facts only
12 text            every obligation file is, byte for byte, what its record says
13 groups          a process group that is used is a mesh factorisation, order included
14 rendezvous      collectives and reduced tensors join rank classes that tile the reduced axes
15 inputs          the input relation can be satisfied: no element is given twice
16 outputs         relations cover every specification output and every element of the plan's outputs at every
rank 17 solvers         the policy's number of solvers refuted every file a verdict rests on, and none
disagreed 18 witnesses       a refuted output has a witness that replays at true sizes without a solver
(witness.py)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .affine import Affine
from .algebra import Algebra
from .errors import Rejected, Undecided
from .layout import Layout
from .model import Model, evident
from .normalise import Normaliser
from .reader import Piece, Plan, Program, Relation
from .records import AlgebraStage, ElementHyp, Fact, Hyp, LayoutStage, Manifest, Proof, Reduced, Ref, Tensor
from .terms import file_text, plain

_SEAL = object()
MAX_INTERVALS = 1 << 16
MOVES = frozenset(("broadcast_in_dim", "reshape", "transpose", "slice", "pad", "concatenate", "gather",
                   "all_gather", "all_to_all", "select", "maximum", "minimum", "convert"))


@dataclass(frozen=True)
class Examined:
    """A bundle that fulfils obligations 1 to 16: what is left is that solvers refute `files`."""

    plan: Plan
    manifest: Manifest
    files: Mapping[str, bytes]
    facts: tuple[Fact, ...]
    stages: tuple[tuple[int, str, frozenset[str], frozenset[int]], ...]
    claimed: tuple[tuple[Fact, ...], ...]
    cases: int
    normalised: frozenset[str]
    assumptions: tuple[str, ...]
    padding: tuple[str, ...]


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
    """Obligations 1 to 16; raises `Rejected` where one fails."""
    for name, digest in manifest.members.items():
        if name not in members or hashlib.sha256(members[name]).hexdigest() != digest:
            raise Rejected(1, "members", f"{name} is missing or not what the manifest lists")
    for name in members:
        if name not in manifest.members and name != "manifest.json":
            raise Rejected(1, "members", f"{name} is not listed in the manifest")
    model = Model(plan)
    assumptions = _infinities(plan)
    _inputs(plan)
    padding = _outputs(plan)
    declared = [relation_facts(plan, r, "inputs") for r in plan.inputs]
    claimed = tuple(tuple(relation_facts(plan, r, "outputs")) for r in plan.outputs)
    for facts in [*declared, *claimed]:
        for fact in facts:
            _fact(model, fact, "a fact of a relation")
    for number, fact in enumerate(proof.facts):
        _fact(model, fact, f"fact {number}")
        relation = proof.declared.get(number)
        if relation is not None and (relation >= len(declared) or fact not in declared[relation]):
            raise Rejected(3, "facts", "this is no fact of the input relation it cites", f"fact {number}")
    stages, files, cases, normalised = _stages(model, proof, manifest, members)
    return Examined(plan, manifest, files, proof.facts, stages, claimed, cases, normalised, tuple(assumptions),
                    tuple(padding))


# Facts (obligation 3) ---------------------------------------------------------------------------------------


def relation_facts(plan: Plan, relation: Relation, side: str) -> list[Fact]:
    """The facts that a relation states (docs/certificate.md, Tensors, indices, facts)."""
    def tensor(cls: str) -> Tensor:
        program = plan.classes[cls].program
        return Tensor(cls, relation.plan if side == "inputs" else program.outputs[relation.plan])

    rhs = Tensor("s", relation.spec if side == "inputs" else plan.spec.outputs[relation.spec])
    gone = relation.reduce[1] if relation.reduce else ()
    groups: dict[Any, list[Piece]] = {}
    for number, piece in enumerate(relation.pieces):
        box = plan.classes[piece.cls].box
        kept = tuple((a, *b) for (a, _), b in zip(plan.mesh, box, strict=True) if a not in gone)
        key = (piece.sizes, piece.plan, piece.spec, kept, None if relation.reduce else number)
        groups.setdefault(key, []).append(piece)
    facts = []
    for (sizes, left, right, kept, _), pieces in groups.items():
        symbols = (*kept, *((f"z{i}", 0, n) for i, n in enumerate(sizes)))
        index = (*(Affine.symbol(a) for a, _, _ in kept), *left)
        lhs: Ref = tensor(pieces[0].cls)
        if relation.reduce:
            order = list(plan.classes)
            of = sorted((p.cls for p in pieces), key=order.index)
            lhs = Reduced(relation.reduce[0], gone, tuple(tensor(c) for c in of))
        facts.append(Fact(lhs, rhs, relation.coef, symbols, index, right))
    return facts


def _fact(model: Model, fact: Fact, where: str) -> None:
    if model.is_literal(fact.lhs) or (model.is_literal(fact.rhs) and fact.coef != 1):
        raise Rejected(3, "facts", "a literal stands on the left or under a coefficient", where)
    ranges, sorts = fact.ranges(), {model.type(fact.lhs).sort, model.type(fact.rhs).sort}
    if len(sorts) != 1 or (fact.coef != 1 and sorts != {"Real"}):
        raise Rejected(3, "facts", "sorts or coefficient do not fit", where)
    for ref, index in ((fact.lhs, fact.lhs_index), (fact.rhs, fact.rhs_index)):
        bounds = model.ranges(ref)
        if len(index) != len(bounds):
            raise Rejected(3, "facts", f"{ref} has {len(bounds)} coordinates, {len(index)} given", where)
        for form, (low, high) in zip(index, bounds, strict=True):
            if not evident(form, low, high, ranges):
                raise Rejected(3, "facts", f"an index of {ref} may leave its range", where)


# Stages (obligations 4 to 12) -------------------------------------------------------------------------------


def _stages(model: Model, proof: Proof, manifest: Manifest, members: Mapping[str, bytes]) -> tuple[
        tuple[tuple[int, str, frozenset[str], frozenset[int]], ...], dict[str, bytes], int, frozenset[str]]:
    proved = set(proof.declared)
    files: dict[str, bytes] = {}
    normal: dict[str, bool] = {}
    stages, cases = [], 0
    for number, stage in enumerate(proof.stages):
        where = f"stage {number} ({stage.title[:80]})"
        goal = proof.facts[stage.goal]
        if stage.goal in proved:
            raise Rejected(11, "order", f"fact {stage.goal} is declared or proved already", where)
        used = _used(stage)
        if not used <= proved:
            raise Rejected(11, "order", f"fact {min(used - proved)} is used before it is proved", where)
        names = set()
        status = manifest.status
        if isinstance(stage, LayoutStage):
            layout = Layout(model, proof.facts, stage, where)
            symbols = [*goal.ranges(), *(s[0] for s in stage.symbols)]
            text = file_text("QF_UFLIRA", stage.title, status, symbols, layout.assertions, model.signature,
                             model.describe)
            _text(files, members, stage.file, text, where)
            names.add(stage.file)
            normal[stage.file] = False
            cases += 1
        else:
            algebra = Algebra(model, proof.facts, stage, where)
            for i, (file, assertions, defs, left, right) in enumerate(algebra.cases):
                text = file_text("QF_UFLRA", stage.title, status, [], assertions, lambda _: "() Real",
                                 model.describe)
                _text(files, members, file, text, f"{where}, case {i}")
                names.add(file)
                if file not in normal:
                    normal[file] = _normal(defs, left, right)
                cases += 1
        proved.add(stage.goal)
        stages.append((stage.goal, stage.title, frozenset(names), frozenset(used)))
    if len(proved) != len(proof.facts):
        raise Rejected(11, "order", f"fact {min(set(range(len(proof.facts))) - proved)} is never proved")
    for name in members:
        if name.startswith("obligations/") and name[12:-5] not in files:
            raise Rejected(12, "text", f"{name} belongs to no stage")
    return tuple(stages), files, cases, frozenset(f for f, confirmed in normal.items() if confirmed)


def _used(stage: LayoutStage | AlgebraStage) -> set[int]:
    if isinstance(stage, LayoutStage):
        return {f for p in stage.premises if isinstance(p, Hyp) for f in p.facts}
    return {p.fact for case in stage.cases for p in case.premises if isinstance(p, ElementHyp)}


def _text(files: dict[str, bytes], members: Mapping[str, bytes], name: str, text: bytes, where: str) -> None:
    """Obligation 12: bytes for the first case that names a file, all but comments for later ones."""
    member = f"obligations/{name}.smt2"
    if member not in members:
        raise Rejected(12, "text", f"{member} is missing", where)
    if name not in files and name != f"{len(files) + 1:04}":
        raise Rejected(12, "text", f"{member} is not numbered in order of first use", where)
    written, text = (members[member], text) if name not in files else (plain(files[name]), plain(text))
    files.setdefault(name, written)
    if written != text:
        ours, theirs = text.decode().split("\n"), written.decode("utf-8", "replace").split("\n")
        line = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours) - 1)
        found = theirs[line][:160] if line < len(theirs) else "the end"
        raise Rejected(12, "text",
                       f"{member}, line {line + 1}: expected {ours[line][:160]!r}, found {found!r}", where)


def _normal(defs: Mapping[Any, Any], left: Any, right: Any) -> bool:
    try:
        return Normaliser(defs).equal(left, right)
    except (Undecided, RecursionError):
        return False


# The relations (obligations 2, 15, 16) ----------------------------------------------------------------------


def _infinities(plan: Plan) -> list[str]:
    """Obligation 2 for all programs; a collective passes infinities on to every class that takes part."""
    meets: dict[int, int] = {}
    before = -1
    while before != len(meets):
        before = len(meets)
        notes = _infinite("specification", plan.spec, meets)
        for cls in plan.classes.values():
            notes += _infinite(f"class {cls.name}", cls.program, meets)
    return notes


def _infinite(name: str, program: Program, meets: dict[int, int]) -> list[str]:
    """Follows infinite literals to `exponential`; gives the assumptions that no row is masked."""
    sign: dict[str, int] = {}
    notes = []
    for op in program.ops:
        found = [sign.get(o, 0) for o in op.operands]
        if "seq" in op.attrs:
            seq = op.attrs["seq"]
            found = [meets.setdefault(seq, found[0]) if found[0] else meets.get(seq, 0)]
        if op.name == "constant" and op.attrs["value"] in ("inf", "-inf"):
            sign[op.result] = -1 if op.attrs["value"] == "-inf" else 1
        if not any(found):
            continue
        one = next(s for s in found if s)
        kind = op.attrs.get("kind", "")
        if op.name in MOVES and all(s in (0, one) for s in found):
            sign[op.result] = one
        elif op.name in ("reduce", "all_reduce") and (kind, one) in (("max", -1), ("min", 1)):
            notes.append(f"{name}: no row that {op.result} ({op.name} {kind}) reduces is completely masked")
        elif op.name == "negate" or (op.name in ("add", "subtract") and not all(found)):
            sign[op.result] = -one if op.name == "negate" or (op.name == "subtract" and found[1]) else one
        elif op.name != "exponential" or one > 0:
            raise Rejected(2, "plan", f"an infinite literal reaches {op.name}, which is outside the model",
                           f"{name}, op {op.result}")
    for output, value in program.outputs.items():
        if value in sign:
            raise Rejected(2, "plan", f"output {output} may be infinite", name)
    return notes


def _image(form: Affine, ranges: Mapping[str, tuple[int, int]]) -> list[tuple[int, int]]:
    """The set of values of a form, as disjoint sorted intervals."""
    base = form.const + sum(c * ranges[s][0] if c > 0 else c * (ranges[s][1] - 1) for s, c in form.terms)
    found = [(base, base + 1)]
    for step, count in sorted((abs(c), ranges[s][1] - ranges[s][0]) for s, c in form.terms):
        if all(step <= high - low for low, high in found):
            found = [(low, high + step * (count - 1)) for low, high in found]
        elif len(found) * count > MAX_INTERVALS:
            raise Undecided("a relation has too many separate intervals")
        else:
            found = [(low + step * i, high + step * i) for i in range(count) for low, high in found]
        found = _union(found)
    return found


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if result and low <= result[-1][1]:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


def _meet(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> bool:
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][0] < b[j][1] and b[j][0] < a[i][1]:
            return True
        i, j = (i + 1, j) if a[i][1] <= b[j][1] else (i, j + 1)
    return False


def _injective(piece: Piece) -> bool:
    """Every digit stands in one dimension, where the digits are separated in mixed radix."""
    seen: list[str] = []
    for form in piece.plan:
        reach = 0
        for c, name in sorted((abs(c), s) for s, c in form.terms):
            if c <= reach:
                return False
            reach += c * (piece.sizes[int(name[1:])] - 1)
            seen.append(name)
    return sorted(seen) == sorted(set(seen)) and all(f"z{i}" in seen for i, n in enumerate(piece.sizes)
                                                     if n > 1)


def _once(relations: Sequence[Relation], number: int, name: str) -> dict[tuple[str, str], int]:
    """Per (class, plan tensor) the number of elements that the pieces give, no element twice."""
    placed: dict[tuple[str, str], list[tuple[list[list[tuple[int, int]]], int]]] = {}
    for relation in relations:
        for piece in relation.pieces:
            where = f"{relation.plan} in class {piece.cls}"
            digits = {f"z{i}": (0, n) for i, n in enumerate(piece.sizes)}
            image = [_image(form, digits) for form in piece.plan]
            others = placed.setdefault((piece.cls, relation.plan), [])
            if not _injective(piece):
                raise Rejected(number, name, "a piece may give an element twice", where)
            if any(all(map(_meet, image, other)) for other, _ in others):
                raise Rejected(number, name, "two pieces may give one element", where)
            others.append((image, prod(piece.sizes)))
    return {key: sum(count for _, count in pieces) for key, pieces in placed.items()}


def _inputs(plan: Plan) -> None:
    """Obligation 15. No element is given twice, so any specification input has plan inputs."""
    _once(plan.inputs, 15, "inputs")


def _outputs(plan: Plan) -> list[str]:
    """Obligation 16: both sides of the output relations are covered, at every rank of every class.

    A state may keep elements that no piece covers, if the same pieces leave the same elements open on the way in
    (padding of an uneven shard); gives a note for each.
    """
    counts, notes = _once(plan.outputs, 16, "outputs"), []
    for name in dict.fromkeys(relation.plan for relation in plan.outputs):
        for cls in plan.classes.values():
            value = cls.program.outputs.get(name)
            size, covered = cls.program.types[value].size if value else 0, counts.get((cls.name, name), 0)
            pieces = [{(r.reduce, p) for r in side if r.plan == name for p in r.pieces if p.cls == cls.name}
                      for side in (plan.inputs, plan.outputs)]
            if not covered or (covered != size and pieces[0] != pieces[1]):
                raise Rejected(16, "outputs", f"elements of {name} in class {cls.name} are not covered")
            if covered != size:
                notes.append(f"{size - covered} elements of {name} at every rank of class {cls.name} are padding")
    for output, value in plan.spec.outputs.items():
        shape = plan.spec.types[value].shape
        boxes = []
        for relation in plan.outputs:
            for piece in relation.pieces if relation.spec == output else ():
                ranges = {a: b for (a, _), b in zip(plan.mesh, plan.classes[piece.cls].box, strict=True)}
                ranges |= {f"z{i}": (0, n) for i, n in enumerate(piece.sizes)}
                names = [s for form in piece.spec for s in form.names()]
                if len(set(names)) == len(names):
                    boxes.append([_image(form, ranges) for form in piece.spec])
        if not _covers(shape, boxes):
            raise Rejected(16, "outputs", f"elements of the specification's output {output} are not covered")
    return notes


def _covers(shape: Sequence[int], boxes: list[list[list[tuple[int, int]]]]) -> bool:
    """Do the products of interval lists cover all indices? By the sets of boxes over each coordinate."""
    unique = [list(map(list, box)) for box in {tuple(map(tuple, box)) for box in boxes}]
    reached = {(1 << len(unique)) - 1}
    for dim, n in enumerate(shape):
        events: dict[int, int] = {0: 0}
        for i, box in enumerate(unique):
            for low, high in box[dim]:
                events[low] = events.get(low, 0) ^ (1 << i)
                events[high] = events.get(high, 0) ^ (1 << i)
        here, masks = 0, set()
        for at in sorted(events):
            here ^= events[at]
            if at < n:
                masks.add(here)
        reached = {a & b for a in reached for b in masks}
    return 0 not in reached


# The verdict (obligation 17) --------------------------------------------------------------------------------


def conclude(examined: Examined, answers: Mapping[str, Mapping[str, str]], confirmations: int,
             refuted: Mapping[int, str]) -> Verified:
    """Verdict per output from the solvers' answers (solver, file number); `refuted` has replayed witnesses.

    A fact is proved when enough solvers answered unsat on every file of its stage and of all stages before it
    that it rests on, and none gave another answer.
    """
    bad: dict[str, str] = {}
    for file in examined.files:
        given = {solver: found.get(file, "nothing") for solver, found in answers.items()}
        agree = sum(answer == "unsat" for answer in given.values())
        if agree < max(confirmations, 1) or agree < len(given):
            bad[file] = f"obligations/{file}.smt2: " + ", ".join(f"{s} says {a}" for s,
                                                                 a in sorted(given.items()))
    why: dict[int, str] = {}
    for goal, title, files, used in examined.stages:
        broken = [bad[f] for f in sorted(files) if f in bad] + [why[f] for f in sorted(used) if f in why]
        if broken:
            why[goal] = f"{broken[0]} (stage {title[:80]})" if files & set(bad) else broken[0]
    number = {fact: i for i, fact in reversed(list(enumerate(examined.facts)))}
    outputs = []
    manifest = examined.manifest.verdicts
    if len(manifest) != len(examined.plan.outputs):
        raise Rejected(16, "outputs", "the manifest must have one verdict per output relation")
    for i, (relation, facts) in enumerate(zip(examined.plan.outputs, examined.claimed, strict=True)):
        spec, plan, claim, reason = manifest[i]
        if (spec, plan) != (relation.spec, relation.plan):
            raise Rejected(16, "outputs", f"verdict {i} of the manifest names another relation")
        missing = [f for f in facts if f not in number]
        if i in refuted and not missing and not any(number[f] in why for f in facts):
            raise Undecided(f"{plan} is proved and refuted: a solver or the checker is wrong")
        if i in refuted:
            outputs.append(Output(spec, plan, "REFUTED", refuted[i]))
        elif claim == "REFUTED":
            raise Rejected(18, "witnesses", f"{plan} is called REFUTED and no witness shows it")
        elif claim == "PROVED" and missing:
            raise Rejected(16, "outputs",
                           f"{plan} is called PROVED and {len(missing)} of its {len(facts)} facts are "
                           "goals of no stage")
        else:
            reasons = [why[number[f]] for f in facts if f not in missing and number[f] in why]
            proved = not missing and not reasons
            outputs.append(Output(spec, plan, "PROVED" if proved else "UNKNOWN", "" if proved else
                                  reasons[0] if reasons else reason or "no proof in the bundle"))
    return Verified(tuple(outputs), _invariant(examined.plan, outputs), _SEAL)


def _invariant(plan: Plan, outputs: Sequence[Output]) -> tuple[str, ...]:
    """Why the claim is not the inductive invariant of a whole run; empty if it is (DESIGN section 1)."""
    reasons = [f"{o.plan} is not proved" for o in outputs if o.verdict != "PROVED"]
    if not plan.outputs:
        reasons.append("nothing is claimed")

    def relations(relations: Sequence[Relation], side: str, name: str) -> set[tuple[Any, ...]]:
        return {(r.spec, r.plan, r.coef, r.reduce, p) for r in relations for p in r.pieces
                if getattr(r, side) == name}

    states = [("specification", "spec", n) for n in plan.spec.inputs if n in plan.spec.outputs]
    states += sorted({("plan", "plan", n) for c in plan.classes.values() for n in c.program.inputs
                      if n in c.program.outputs})
    for owner, side, name in states:
        before, after = relations(plan.inputs, side, name), relations(plan.outputs, side, name)
        if before != after and before:
            reasons.append(f"{owner} state {name} leaves the step under another relation than it enters")
        if owner == "specification" and name in plan.ranges:
            reasons.append(f"the declared range of the state {name} is not re-established")
    return tuple(reasons)


