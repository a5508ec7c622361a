"""Tampered bundles, sealed again: every operator is refused, for a reason that fits it, wherever it strikes.

A mutant is a valid bundle with one change. Digests are always fresh, so that obligation 1 sees nothing. A
*forger* goes further: obligation files too are written anew, from the changed records, by the checker's own
text
generator, so that obligation 12 sees nothing either and only meaning is left. Solver answers come from z3.

The default run takes a slice of the seeds; `-m slow` takes all (more than 1,100 mutants).
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import z3

from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from checker import kernel
from checker.errors import Malformed, Rejected, Undecided
from checker.reading.bundle import read_bundle
from checker.reading.plan import read_plan
from checker.reading.proof import read_manifest, read_proof
from checker.reading.rows import PACKED
from orchestrator.errors import EvaluationError
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores
from tests.conftest import BUILDERS
from tests.corpus.run import oracle_equal
from tests.packed_plans import dispatch
from tests.sliced_plans import dense

sys.path.insert(0, str(Path(__file__).parent))
from samples import Bundle, dump, forged, row_parallel, seal, shards, staged

MANIFEST = "manifest-sha256.txt"
BAD, ACCEPTED, SAT, OPEN = "malformed", "accepted", "refuted by the solver", "no verdict"
Random = random.Random
Change = Callable[[Bundle, Random], Any]
"""Changes a bundle in place; None where there is nothing to change."""


# Bundles and outcomes ---------------------------------------------------------------------------------------


@cache
def emitted(name: str) -> Bundle:
    return proved({**BUILDERS, "dispatch": dispatch, "slices": dense}[name]())


def proved(plan: Plan) -> Bundle:
    """What the engine proves of a small plan; an output without a proof has no place in this test."""
    engine = Engine(plan, Cores())
    engine.relate()
    claims = [fact for facts in engine.claims() for fact in facts]
    for fact in claims:
        engine.prove(fact)
    proof = engine.proof(claims)
    verdicts = [{"spec": r.spec, "plan": r.plan, "verdict": "PROVED", "reason": ""} for r in plan.outputs]
    files = {f"{o.number:04}": o.text for o in proof.obligations}
    status = "unsat" if ":status unsat" in files["0001"] else "unknown"
    return Bundle(json.loads(dumps(plan)), json.loads(proof.document), files, verdicts, status)


def fresh(make: Callable[[], Bundle]) -> Bundle:
    """A bundle that shares no list with another, nor within itself."""
    found = make()
    plan, proof = json.loads(json.dumps([found.plan, found.proof]))
    return Bundle(plan, proof, dict(found.files), [dict(v) for v in found.verdicts], found.status)


BASES: dict[str, Callable[[], Bundle]] = {
    "row": partial(fresh, row_parallel),
    "shards": partial(fresh, shards),
    "staged": partial(fresh, staged),
    "mlp": partial(fresh, partial(emitted, "mlp")),
    "slices": partial(fresh, partial(emitted, "slices")),
    "dispatch": partial(fresh, partial(emitted, "dispatch")),
}


@cache
def answer(text: bytes) -> str:
    context = z3.Context()
    program = "(set-option :rlimit 4000000)\n" + text.decode()
    try:
        return " ".join(z3.Z3_eval_smtlib2_string(context.ref(), program).split())
    except z3.Z3Exception as error:  # such as an answer that contradicts :status
        return f"error: {error}"


def outcome(data: dict[str, bytes]) -> tuple[str | int, str]:
    """Obligation number or word, and the message."""
    try:
        examined = kernel.examine(
            read_manifest(data),
            read_plan(data["plan.json"]),
            read_proof(data["proof.json"]),
            data,
        )
        answers = {name: answer(text) for name, text in examined.files.items()}
        verified = kernel.conclude(examined, {"z3": answers}, 1, {})
    except Malformed as error:
        return BAD, str(error)
    except Rejected as error:
        return error.number, str(error)
    except Undecided as error:
        return OPEN, str(error)
    if all(o.verdict == "PROVED" for o in verified.outputs):
        return ACCEPTED, ""
    return SAT if any(a != "unsat" for a in answers.values()) else OPEN, verified.outputs[0].reason


# Operators --------------------------------------------------------------------------------------------------


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Path, container and key of every node."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key), value, key
        yield from nodes(inner, (*path, key))


def at(where: str, *steps: str) -> Callable[[Bundle], list[tuple[Any, Any]]]:
    """Containers and keys at paths in `plan` or `proof`; `*` is any step, `**` any number of them."""

    def fits(path: tuple[Any, ...], pattern: tuple[str, ...]) -> bool:
        if not pattern:
            return not path
        if pattern[0] == "**":
            return fits(path, pattern[1:]) or (bool(path) and fits(path[1:], pattern))
        return bool(path) and pattern[0] in ("*", str(path[0])) and fits(path[1:], pattern[1:])

    return lambda b: [(box, key) for path, box, key in nodes(getattr(b, where)) if fits(path, steps)]


def change(
    find: Callable[[Bundle], list[tuple[Any, Any]]],
    how: Callable[[Any, Random, Bundle], Any],
    fit: Callable[[Any], bool] = lambda _: True,
) -> Change:
    """One of the places that fit gets the value that `how` makes of the old one; None leaves it."""

    def strike(b: Bundle, rng: Random) -> Any:
        places = [(box, key) for box, key in find(b) if fit(box[key])]
        if not places:
            return None
        box, key = rng.choice(places)
        new = how(box[key], rng, b)
        if new is None or new == box[key]:
            return None
        box[key] = new
        return True

    return strike


def pick(
    find: Callable[[Bundle], list[tuple[Any, Any]]],
    act: Callable[[list[Any], int, Random], Any],
    least: int = 1,
) -> Change:
    """Acts on one entry of one of the lists."""

    def strike(b: Bundle, rng: Random) -> Any:
        lists = [box[key] for box, key in find(b) if isinstance(box[key], list) and len(box[key]) >= least]
        if not lists:
            return None
        chosen = rng.choice(lists)
        before = json.dumps(chosen)
        act(chosen, rng.randrange(len(chosen)), rng)
        return True if json.dumps(chosen) != before else None

    return strike


def swap(items: list[Any], i: int, rng: Random) -> None:
    j = rng.randrange(len(items))
    items[i], items[j] = items[j], items[i]


def strided(pieces: list[Any], i: int, rng: Random) -> None:
    """Strides where there were none, or none where there were some."""
    offset, classes, *given = pieces[i]
    pieces[i] = [offset, classes] if given else [offset, classes, [rng.choice((2, 3))] * len(classes)]


def other(options: Callable[[Bundle], list[Any]]) -> Callable[[Any, Random, Bundle], Any]:
    def how(old: Any, rng: Random, b: Bundle) -> Any:
        found = [o for o in options(b) if o != old]
        return rng.choice(found) if found else None

    return how


def shifted(value: Any, rng: Random, b: Bundle) -> Any:
    step = rng.choice((-1, 1, 2))
    if isinstance(value, dict):
        key = rng.choice(sorted(value))
        return {**value, key: value[key] + step or 7}
    return value + step


def refs(b: Bundle) -> list[Any]:
    found = [f[k] for f in b.proof["facts"] for k in ("lhs", "rhs")]
    return [r for r in found if isinstance(r, str)]


def everywhere(old: Any, new: Any, value: Any) -> Any:
    if value == old:
        return new
    if isinstance(value, list):
        return [everywhere(old, new, v) for v in value]
    return {k: everywhere(old, new, v) for k, v in value.items()} if isinstance(value, dict) else value


def one_name_for_two(b: Bundle, rng: Random) -> Any:
    one, two = (rng.choice(refs(b)) for _ in range(2))
    if one == two:
        return None
    b.proof = everywhere(one, two, b.proof)
    return True


def ops(*names: str) -> Callable[[Any], bool]:
    return lambda op: isinstance(op, list) and len(op) == 6 and op[1] in names


OPS = at("plan", "classes", "*", "program", "ops", "*")
SPEC_OPS = at("plan", "specification", "ops", "*")


def rewired(op: list[Any], rng: Random, b: Bundle) -> Any:
    """An operand is another value of the same type, defined before."""
    programs = [b.plan["specification"], *(c["program"] for c in b.plan["classes"])]
    program = next(p for p in programs if any(o is op for o in p["ops"]))
    before = program["ops"][: next(i for i, o in enumerate(program["ops"]) if o is op)]
    types = dict(program["inputs"]) | {o[0]: o[3] for o in before}
    if not op[2]:
        return None
    i = rng.randrange(len(op[2]))
    found = [v for v, t in types.items() if t == types[op[2][i]] and v != op[2][i]]
    return [*op[:2], [*op[2][:i], rng.choice(found), *op[2][i + 1 :]], *op[3:]] if found else None


BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
UNARY = ("exponential", "log", "sqrt", "rsqrt", "tanh", "sine", "logistic", "negate")
RENAMED = BINARY + UNARY


def renamed(op: list[Any], rng: Random, b: Bundle) -> Any:
    return [op[0], rng.choice(BINARY if op[1] in BINARY else UNARY), *op[2:]]


def reversed_operands(op: list[Any], rng: Random, b: Bundle) -> Any:
    return [*op[:2], op[2][::-1], *op[3:]] if len(op[2]) == 2 else None


def skipped(b: Bundle, rng: Random) -> Any:
    """A collective that keeps the type is dropped: whoever reads it reads its operand."""
    found = [
        (c["program"], o) for c in b.plan["classes"] for o in c["program"]["ops"] if o[1] == "all_reduce"
    ]
    if not found:
        return None
    program, op = rng.choice(found)
    for o in program["ops"]:
        o[2] = [op[2][0] if v == op[0] else v for v in o[2]]
    program["outputs"] = [[n, op[2][0] if v == op[0] else v] for n, v in program["outputs"]]
    return True


def attribute(name: str, how: Callable[[Any, Random, Bundle], Any], *owners: str) -> Change:
    return change(
        OPS,
        lambda op, rng, b: (
            None if (new := how(op[4][name], rng, b)) is None else [*op[:4], {**op[4], name: new}, op[5]]
        ),
        lambda op: ops(*owners)(op) and name in op[4],
    )


def elsewhere(forms: Any, rng: Random, b: Bundle) -> Any:
    """One coordinate of the other end of a message is another."""
    i = rng.randrange(len(forms))
    return [shifted(f, rng, b) if k == i else f for k, f in enumerate(forms)]


def claim_and_proof(b: Bundle, rng: Random) -> Any:
    """An output relation and the facts that prove it get another coefficient."""
    i = rng.randrange(len(b.plan["outputs"]))
    b.plan["outputs"][i]["coef"] = "2"
    for fact in b.proof["facts"]:
        if fact["by"] == {"output": i}:
            fact["coef"] = "2"
    return True


def circular(b: Bundle, rng: Random) -> Any:
    """A stage takes its own goal, or a later one's, for granted."""
    stages = [s for s in b.proof["stages"] if s["kind"] == "layout"]
    stage = rng.choice(stages)
    later = b.proof["stages"][b.proof["stages"].index(stage) :]
    goal = rng.choice(later)["goal"]
    forms = [{s[0]: 1} for s in b.proof["facts"][stage["goal"]]["symbols"]]
    stage["premises"].insert(0, {"k": "hyp", "facts": [goal], "at": forms, "lift": [], "kind": "add"})
    return True


def false_law(b: Bundle, rng: Random) -> Any:
    cases = [c for s in b.proof["stages"] if s["kind"] == "algebra" for c in s["cases"]]
    schema = rng.choice(("ring", "lattice", "recip", "field"))
    left = {
        "ring": ["+", ["lit", "1"], ["lit", "1"]],
        "lattice": ["max2", ["lit", "1"], ["lit", "2"]],
        "recip": ["recip", ["lit", "0"]],
        "field": ["fexp", ["lit", "1"]],
    }[schema]
    right = ["lit", rng.choice(("0", "1", "-3"))]
    if not cases:
        return None
    premises = rng.choice(cases)["premises"]
    premises.insert(
        rng.randrange(len(premises) + 1), {"k": "law", "schema": schema, "lhs": left, "rhs": right}
    )
    return True


def exchange_files(b: Bundle, rng: Random) -> Any:
    one, two = (rng.choice(sorted(b.files)) for _ in range(2))
    if b.files[one] == b.files[two]:
        return None
    b.files[one], b.files[two] = b.files[two], b.files[one]
    return True


def edit_file(old: str, new: str) -> Change:
    def strike(b: Bundle, rng: Random) -> Any:
        names = sorted(n for n, t in b.files.items() if old in t)
        if not names:
            return None
        name = rng.choice(names)
        parts = b.files[name].split(old)
        i = rng.randrange(1, len(parts))
        b.files[name] = old.join(parts[:i]) + new + old.join(parts[i:])
        return True

    return strike


def dropped_tree(b: Bundle, rng: Random) -> Any:
    """Of a tensor that is not read as a literal: a constant needs no trees."""
    programs = {"s": b.plan["specification"], **{c["name"]: c["program"] for c in b.plan["classes"]}}
    literal = {f"{space}:{o[0]}" for space, p in programs.items() for o in p["ops"] if o[1] == "constant"}
    found = [
        (s["trees"], t)
        for s in b.proof["stages"]
        for t in s.get("trees", ())
        if isinstance(t[0], dict) or t[0] not in literal
    ]
    if not found:
        return None
    trees, tree = rng.choice(found)
    trees.remove(tree)
    return True


def dropped_verdict(b: Bundle, rng: Random) -> Any:
    b.verdicts.pop(rng.randrange(len(b.verdicts)))
    return True


def called_refuted(b: Bundle, rng: Random) -> Any:
    rng.choice(b.verdicts)["verdict"] = "REFUTED"
    return True


def another_output(b: Bundle, rng: Random) -> Any:
    rng.choice(b.verdicts)["plan"] += "x"
    return True


def another_status(b: Bundle, rng: Random) -> Any:
    b.status = "unknown" if b.status == "unsat" else "unsat"
    return True


def unproved(b: Bundle, rng: Random) -> Any:
    """The last stage of a claimed fact vanishes with its fact; the verdict stays."""
    last = len(b.proof["facts"]) - 1
    stages = b.proof["stages"]
    used = [p for s in stages for c in s.get("cases", [s]) for p in c["premises"] if p["k"] == "hyp"]
    if stages[-1]["goal"] != last or any(p.get("fact", p.get("facts")) in (last, [last]) for p in used):
        return None
    b.proof["facts"].pop()
    gone = stages.pop()
    kept = {c["file"] for s in stages for c in s.get("cases", [s])}
    for case in gone.get("cases", [gone]):
        if case["file"] not in kept:
            b.files.pop(case["file"], None)
    return True


PREMISES = at("proof", "stages", "**", "premises")
FACTS = at("proof", "facts", "*")
INDEX = at("proof", "stages", "**", "premises", "*", "at", "*")
ANY = frozenset(range(1, 21)) | {BAD, SAT}
SOME = dict[str, tuple[Change, set[Any] | frozenset[Any]]]


def knowing(form: Any, rng: Random, b: Bundle) -> Any:
    """The form, moved by the coordinate of the stage."""
    return {**(form if isinstance(form, dict) else {"": form} if form else {}), "pp": rng.choice([1, 2, -1])}


def symbol_of_a_slice(b: Bundle, rng: Random) -> Any:
    """A digit of a lemma gets the name of the axis that a call puts in."""
    lemmas = [m for m in b.proof.get("lemmas", []) if "along" in b.plan["functions"][m["function"]]]
    if not lemmas:
        return None
    text = json.dumps(lemmas[0]).replace(rng.choice(['"z0"', '"z1"']), '"pp"')
    b.proof["lemmas"][b.proof["lemmas"].index(lemmas[0])] = json.loads(text)
    return True


def step(options: str) -> Callable[[Any, Random, Bundle], Any]:
    return other(lambda b: options.split())


#: Changes of the proof and the manifest alone: files stay as they are.
def made(b: Bundle) -> list[Any]:
    return [op for c in b.plan["classes"] for op in c["program"]["ops"]]


def other_order(op: Any, r: Random, b: Bundle) -> str:
    """The result of another op that makes an order, or a plain tensor."""
    orders = [o[0] for o in made(b) if o[1] in ("sort_rows", "ship_rows", "regroup_rows")]
    return r.choice([v for v in (*orders, "keys") if v not in (op[2][-1], op[0])])


def packed(b: Bundle, op: Any) -> list[str]:
    """What is not in the order that an op finds its rows in."""
    same = next(o for o in made(b) if o[0] == op[2][0])
    return ["x", *(o[0] for o in made(b) if o[1] in PACKED and o[1] != same[1] and o[2][-1] != same[2][-1])]


PROOF: SOME = {
    "stage dropped": (pick(at("proof", "stages"), lambda s, i, r: s.pop(i)), {11, 12}),
    "stage twice": (pick(at("proof", "stages"), lambda s, i, r: s.append(s[i])), {11}),
    "stages swapped": (pick(at("proof", "stages"), swap, 2), {11, 12}),
    "fact dropped": (pick(at("proof", "facts"), lambda s, i, r: s.pop(i)), {BAD, 3, 4, 8, 10, 11, 12}),
    "facts swapped": (pick(at("proof", "facts"), swap, 2), {BAD, 3, 4, 8, 10, 11, 12}),
    "goal made trivial": (
        change(
            FACTS,
            lambda f, r, b: {**f, "rhs": f["lhs"], "rhs_index": f["lhs_index"], "coef": "1"},
            lambda f: f["by"] is None or "output" in f["by"],
        ),
        {4, 8, 10, 12, 16},
    ),
    "coefficient of a fact": (
        change(at("proof", "facts", "*", "coef"), step("2 -1 1/2 0")),
        {BAD, 3, 4, 12, 16},
    ),
    "range of a fact": (
        change(at("proof", "facts", "*", "symbols", "*", "2"), shifted),
        {BAD, 3, 4, 10, 12, 16},
    ),
    "start of a fact": (
        change(at("proof", "facts", "*", "symbols", "*", "1"), shifted),
        {BAD, 3, 4, 10, 12, 16},
    ),
    "index of a fact": (
        change(at("proof", "facts", "*", "rhs_index", "*"), shifted),
        {BAD, 3, 4, 10, 12, 16},
    ),
    "tensor of a fact": (change(at("proof", "facts", "*", "rhs"), other(refs)), {3, 4, 8, 10, 12, 16}),
    "fact called declared": (
        change(
            at("proof", "facts", "*", "by"),
            lambda v, r, b: {"input": 0},
            lambda v: v is None or "output" in v,
        ),
        {3},
    ),
    "declared by another": (change(at("proof", "facts", "*", "by", "input"), lambda v, r, b: v + 1), {3}),
    "not declared": (
        change(
            at("proof", "facts", "*", "by"),
            lambda v, r, b: {"output": 0},
            lambda v: v is not None and "input" in v,
        ),
        {11},
    ),
    "digit named like a slice": (symbol_of_a_slice, {11}),
    "coordinate of a slice in a lemma": (
        change(at("proof", "lemmas", "*", "facts", "*", "lhs_index"), lambda v, r, b: [0, *v]),
        {3},
    ),
    "instance that a lemma serves": (
        change(at("proof", "stages", "*", "instance"), lambda v, r, b: v + r.choice([1, -1])),
        {BAD, 11, 12, 16, OPEN},
    ),
    "premise dropped": (pick(PREMISES, lambda s, i, r: s.pop(i)), {4, 6, 9, 12}),
    "premise twice": (pick(PREMISES, lambda s, i, r: s.append(s[i])), {12}),
    "premises swapped": (pick(PREMISES, swap, 2), {12}),
    "own goal as premise": (circular, {11}),
    "false law": (false_law, {7}),
    "another fact": (
        change(at("proof", "stages", "**", "premises", "*", "fact"), shifted),
        {BAD, 4, 8, 11, 12},
    ),
    "other facts": (
        change(at("proof", "stages", "*", "premises", "*", "facts", "*"), shifted),
        {BAD, 4, 5, 11, 12},
    ),
    "index of a premise": (change(INDEX, shifted), {BAD, 4, 5, 6, 8, 12}),
    "operand index": (change(at("proof", "stages", "**", "arg", "*"), shifted), {5, 6, 12}),
    "operand index left out": (pick(at("proof", "stages", "**", "arg"), lambda s, i, r: s.pop(i)), {5, 6}),
    "other tensor of a premise": (
        change(at("proof", "stages", "**", "premises", "*", "t"), other(refs)),
        {3, 5, 6, 12},
    ),
    "part of a bound": (change(at("proof", "stages", "**", "part"), shifted), {BAD, 6, 12}),
    "bound of another symbol": (
        change(at("proof", "stages", "**", "sym"), step("q0 q1 q2 q3 q9 z0 dp tp")),
        {6, 12},
    ),
    "range of a fresh symbol": (
        change(at("proof", "stages", "*", "symbols", "*", "2"), shifted),
        {BAD, 6, 12},
    ),
    "fresh symbol dropped": (
        pick(at("proof", "stages", "*", "symbols"), lambda s, i, r: s.pop(i)),
        {BAD, 12},
    ),
    "fresh symbols swapped": (pick(at("proof", "stages", "*", "symbols"), swap, 2), {6, 12}),
    "lifted": (
        change(at("proof", "stages", "*", "premises", "*", "lift"), other(lambda b: [[], ["dp"], ["tp"]])),
        {4, 12, 14},
    ),
    "kind of a lift": (
        change(at("proof", "stages", "*", "premises", "*", "kind"), step("add max min")),
        {4, 12},
    ),
    "size of a class": (change(at("proof", "stages", "*", "classes", "*", "1"), shifted), {BAD, 8}),
    "fewer representatives": (
        change(at("proof", "stages", "*", "classes", "*", "2"), lambda v, r, b: v - 1),
        {BAD, 8, 9, 10, 12},
    ),
    "more representatives": (
        change(at("proof", "stages", "*", "classes", "*", "2"), lambda v, r, b: v + 1),
        {BAD, 8, 10, 12},
    ),
    "class dropped": (pick(at("proof", "stages", "*", "classes"), lambda s, i, r: s.pop(i)), {BAD}),
    "offset of a piece": (
        change(at("proof", "stages", "*", "trees", "*", "1", "*", "*", "0"), shifted),
        {BAD, 8},
    ),
    "class of a piece": (
        pick(at("proof", "stages", "*", "trees", "*", "1", "*", "*", "1"), lambda s, i, r: s.append(s[i])),
        {8},
    ),
    "strides of a piece": (pick(at("proof", "stages", "*", "trees", "*", "1", "*"), strided), {BAD, 8}),
    "piece dropped": (
        pick(at("proof", "stages", "*", "trees", "*", "1", "*"), lambda s, i, r: s.pop(i)),
        {8},
    ),
    "tree dropped": (dropped_tree, {8}),
    "tree twice": (pick(at("proof", "stages", "*", "trees"), lambda s, i, r: s.append(s[i])), {8}),
    "case dropped": (pick(at("proof", "stages", "*", "cases"), lambda s, i, r: s.pop(i)), {10}),
    "case twice": (pick(at("proof", "stages", "*", "cases"), lambda s, i, r: s.append(s[i])), {10}),
    "pattern": (change(at("proof", "stages", "*", "cases", "*", "reps", "*", "*"), shifted), {BAD, 10}),
    "classes of the goal": (pick(at("proof", "stages", "*", "goal_at", "*"), lambda s, i, r: s.pop(i)), {10}),
    "symbols of the goal": (pick(at("proof", "stages", "*", "goal_at"), lambda s, i, r: s.pop(i)), {10}),
    "representative of an element": (
        change(at("proof", "stages", "**", "e", "1", "*", "*"), shifted),
        {BAD, 8, 12},
    ),
    "side that a hyp defines": (change(at("proof", "stages", "**", "defines"), step("lhs rhs")), {4, 9, 12}),
    "two names made one": (one_name_for_two, ANY),
    "member of a reduced tensor": (
        pick(at("proof", "facts", "*", "lhs", "of"), lambda s, i, r: s.pop(i)),
        {BAD, 14},
    ),
    "axes of a reduced tensor": (
        pick(at("proof", "facts", "*", "lhs", "axes"), lambda s, i, r: s.pop(i)),
        {14},
    ),
    "kind of a reduced tensor": (
        change(at("proof", "facts", "*", "lhs", "kind"), step("add max min")),
        {4, 8, 9, 12, 14},
    ),
    "file of a stage": (
        change(at("proof", "stages", "**", "file"), lambda v, r, b: r.choice(sorted(b.files))),
        {12},
    ),
    "file of no stage": (change(at("proof", "stages", "**", "file"), step("9999 0000 ../1 1")), {BAD, 12}),
    "files exchanged": (exchange_files, {12}),
    "weaker goal in a file": (edit_file("(not (= ", "(not (=  "), {12}),
    "assertion in a file": (edit_file("(check-sat)", "(assert false)\n(check-sat)"), {12}),
    "literal in a file": (edit_file("2.0", "3.0"), {12}),
    "comment in a file": (edit_file("; t0", "; t1"), {12}),
    "title": (
        change(at("proof", "stages", "*", "title"), lambda v, r, b: v + r.choice(("!", "|", "\n"))),
        {BAD, 12},
    ),
    "verdict dropped": (dropped_verdict, {16}),
    "verdict of another output": (another_output, {16}),
    "refuted without witness": (called_refuted, {18}),
    "status": (another_status, {12}),
    "proved without a stage": (unproved, {16}),
}
#: Wrong plans with files to match.
WRONG: SOME = {
    "literal": (
        attribute("value", lambda v, r, b: "7/3" if v != "7/3" else "1", "constant"),
        {4, 7, 12, SAT},
    ),
    "operation": (change(OPS, renamed, ops(*RENAMED)), {BAD, 2, 4, 5, 7, 8, 9, 12, SAT}),
    "operation of the specification": (
        change(SPEC_OPS, renamed, ops(*RENAMED)),
        {BAD, 2, 4, 5, 7, 8, 9, 12, SAT},
    ),
    "operands exchanged": (
        change(OPS, reversed_operands, ops("subtract", "divide", "dot_general")),
        {BAD, 4, 5, 8, 12, SAT},
    ),
    "operand": (change(OPS, rewired, lambda op: isinstance(op, list)), {4, 5, 6, 8, 9, 10, 11, 12, SAT}),
    "collective dropped": (skipped, {4, 5, 6, 8, 14, 16, SAT}),
    "reduction": (attribute("kind", step("add max min"), "reduce", "all_reduce"), {BAD, 4, 8, 9, 14, SAT}),
    "dimensions": (
        attribute(
            "dims",
            lambda v, r, b: v[1:] if r.random() < 0.5 else [d + 1 for d in v],
            "reduce",
            "broadcast_in_dim",
        ),
        {BAD, 4, 8, SAT},
    ),
    "group order": (change(at("plan", "groups", "*", "ranks", "*"), lambda v, r, b: v[::-1]), {13}),
    "group axes": (
        change(at("plan", "groups", "*", "axes"), other(lambda b: [[], ["dp"], ["tp"]])),
        {BAD, 13},
    ),
    "group": (
        change(
            OPS,
            lambda op, r, b: [*op[:4], {**op[4], "group": r.choice(sorted(b.plan["groups"]))}, op[5]],
            lambda op: isinstance(op, list) and "group" in op[4],
        ),
        {BAD, 4, 5, 6, 8, 12, 14, SAT},
    ),
    "sequence number": (
        attribute("seq", shifted, "all_reduce", "all_gather", "reduce_scatter"),
        {BAD, ACCEPTED},
    ),
    "claim scaled": (change(at("plan", "outputs", "*", "coef"), step("2 -1 1/3")), {16}),
    "claim and facts scaled": (claim_and_proof, {4, 12, 16, SAT}),
    "claim of another tensor": (
        change(
            at("plan", "outputs", "*", "spec"),
            lambda v, r, b: r.choice([o[0] for o in b.plan["specification"]["outputs"]]),
        ),
        {BAD, 16},
    ),
    "claim shrunk": (
        change(at("plan", "outputs", "*", "pieces", "*", "sizes", "*"), lambda v, r, b: v - 1),
        {BAD, 16},
    ),
    "claim moved": (change(at("plan", "outputs", "*", "pieces", "*", "spec", "*"), shifted), {BAD, 16}),
    "piece of a claim dropped": (
        pick(at("plan", "outputs", "*", "pieces"), lambda s, i, r: s.pop(i)),
        {BAD, 16},
    ),
    "claim dropped": (pick(at("plan", "outputs"), lambda s, i, r: s.pop(i)), {16}),
    "input moved": (change(at("plan", "inputs", "*", "pieces", "*", "spec", "*"), shifted), {BAD, 3, 15}),
    "input placed elsewhere": (
        change(at("plan", "inputs", "*", "pieces", "*", "plan", "*"), shifted),
        {BAD, 3, 15},
    ),
    "input scaled": (change(at("plan", "inputs", "*", "coef"), step("2 -1 1/3")), {BAD, 3}),  # BAD: integers
    "input twice": (pick(at("plan", "inputs"), lambda s, i, r: s.append(s[i])), {15}),
    "piece of an input twice": (
        pick(at("plan", "inputs", "*", "pieces"), lambda s, i, r: s.append(s[i])),
        {15},
    ),
    "input of another name": (
        change(
            at("plan", "inputs", "*", "spec"),
            lambda v, r, b: r.choice([o[0] for o in b.plan["specification"]["inputs"]]),
        ),
        {BAD, 3},
    ),
    "input dropped": (pick(at("plan", "inputs"), lambda s, i, r: s.pop(i)), {3}),
    "box of a class": (change(at("plan", "classes", "*", "box", "*", "*"), shifted), {BAD}),
    "mesh": (change(at("plan", "mesh", "*", "1"), shifted), {BAD}),
    "class dropped": (pick(at("plan", "classes"), lambda s, i, r: s.pop(i)), {BAD}),
    "type": (
        change(at("plan", "classes", "*", "program", "ops", "*", "3"), lambda v, r, b: v.replace("[", "[2,")),
        {BAD},
    ),
    "dtype": (
        change(
            at("plan", "classes", "*", "program", "ops", "*", "3"), lambda v, r, b: v.replace("f32", "i32")
        ),
        {BAD},
    ),
    "output of a program": (
        change(
            at("plan", "classes", "*", "program", "outputs", "*", "1"),
            lambda v, r, b: r.choice([o[0] for c in b.plan["classes"] for o in c["program"]["ops"]]),
        ),
        {BAD, 16},
    ),
    "output of the specification": (
        change(
            at("plan", "specification", "outputs", "*", "1"),
            lambda v, r, b: r.choice([o[0] for o in b.plan["specification"]["ops"]]),
        ),
        {BAD, 16},
    ),
    "contraction": (
        attribute("lhs_contract", lambda v, r, b: [1 - d for d in v], "dot_general"),
        {BAD, 4, 8, SAT},
    ),
    "receiver of a message": (attribute("to", elsewhere, "send"), {19}),
    "sender of a message": (attribute("from", elsewhere, "recv"), {19}),
    "number of a message": (attribute("seq", shifted, "send", "recv"), {BAD, 19}),
    "message not sent": (
        change(OPS, lambda op, r, b: [op[0], "negate", op[2], op[3], {}, op[5]], ops("send")),
        {19},
    ),
    "message not received": (
        change(OPS, lambda op, r, b: [op[0], "constant", [], op[3], {"value": "1"}, op[5]], ops("recv")),
        {19},
    ),
    "state that is cut over time": (
        change(
            at("plan", "inputs", "*", "pieces", "*"),
            lambda v, r, b: {**v, "sizes": [n // 2 for n in v["sizes"]], "spec": [{"mb": 2, "z0": 1}]},
            lambda v: len(v["sizes"]) == 1,
        ),
        {BAD, 20},
    ),
    "time": (change(at("plan", "time", "*", "1"), shifted), {BAD}),
    "order that an op on rows takes": (
        change(
            OPS,
            lambda op, r, b: [*op[:2], [*op[2][:-1], other_order(op, r, b)], *op[3:]],
            ops(*(name for name in PACKED if name != "sort_rows")),
        ),
        {BAD, 22},
    ),
    "rows in another order": (
        change(
            OPS,
            lambda op, r, b: [*op[:2], [r.choice(packed(b, op)), *op[2][1:]], *op[3:]],
            ops("ship", "regroup", "ungroup", "ship_back", "unpack", "ragged_dot"),
        ),
        {BAD, 22},
    ),
    "fewer keys": (attribute("count", lambda v, r, b: v - 1, "sort_rows"), {BAD, 22}),
    "keys below their range": (change(at("plan", "ranges", "keys"), lambda v, r, b: [-1, v[1]]), {22}),
    "function along another axis": (
        change(at("plan", "functions", "*", "along", "*"), lambda v, r, b: r.choice(["tp", "dp", "mb"])),
        {BAD},
    ),
    "role on fewer ranks": (
        change(at("plan", "functions", "*", "roles", "*", "*", "1"), lambda v, r, b: v - 1),
        {BAD},
    ),
    "layer of another slice": (
        change(
            at("plan", "classes", "*", "program", "ops", "*", "4"),
            lambda v, r, b: 1 - v,
            lambda v: isinstance(v, int),
        ),
        {11},
    ),
    "form of a body that knows its slice": (
        change(at("plan", "functions", "*", "classes", "*", "ops", "*", "4", "start", "1"), knowing),
        {BAD},
    ),
    "body without its sum": (
        change(
            at("plan", "functions", "*", "classes", "*", "ops", "*"),
            lambda op, r, b: [op[0], "negate", op[2], op[3], {}, op[5]],
            ops("all_reduce"),
        ),
        {3, 4, 5, 8, 10, SAT},
    ),
    "group of a body": (
        change(at("plan", "groups", "tp", "ranks", "*"), lambda v, r, b: v[::-1]),
        {13},
    ),
    "permutation": (attribute("perm", lambda v, r, b: v[::-1], "transpose"), {BAD, 4, 8, SAT}),
}
#: Operators for the bundle with a function at a slice, whose calls most others do not expect.
AT_A_SLICE = {
    *("digit named like a slice", "coordinate of a slice in a lemma", "instance that a lemma serves"),
    *("function along another axis", "role on fewer ranks", "layer of another slice"),
    *("form of a body that knows its slice", "body without its sum", "group of a body"),
    *("message not sent", "message not received", "fact dropped", "index of a fact", "range of a fact"),
}
#: Accepted mutants that are no wrong claims, with the reason.
HARMLESS = {
    ("PROOF", "title"): "a stage that shares its file with an earlier one: a comment, and those may differ",
    ("PROOF", "more representatives"): "the class is in no sum: its files are the same, and m may exceed w",
    (
        "PROOF",
        "side that a hyp defines",
    ): "the same equation, substituted the other way round; files are the same",
    (
        "WRONG",
        "sequence number",
    ): "a number that names one rendezvous, the same in every class; it orders nothing",
}


@dataclass(frozen=True)
class Mutant:
    base: str
    family: str
    operator: str
    seed: int

    def build(self) -> Bundle | None:
        bundle = BASES[self.base]()
        strike = (PROOF if self.family == "PROOF" else WRONG)[self.operator][0]
        if strike(bundle, Random(f"{self.operator} {self.seed}")) is None:
            return None
        return forged(bundle) if self.family == "WRONG" else bundle


def mutants(seeds: range) -> list[Mutant]:
    return [
        Mutant(base, family, operator, seed)
        for base in BASES
        for family, table in (("PROOF", PROOF), ("WRONG", WRONG))
        for operator in table
        if base != "slices" or operator in AT_A_SLICE
        for seed in seeds
    ]


def strikes(seeds: range, counts: Counter[str]) -> list[str]:
    """Everything that went wrong: outcomes that do not fit the operator."""
    wrong, seen = [], set[tuple[str, int]]()
    for mutant in mutants(seeds):
        bundle = mutant.build()
        if bundle is None:
            continue
        data = bundle.members()
        key = (mutant.base, hash(tuple(sorted(data.items()))))
        if key in seen:
            continue
        seen.add(key)
        found, message = outcome(data)
        counts[f"{mutant.family} {mutant.operator}"] += 1
        expected = (PROOF if mutant.family == "PROOF" else WRONG)[mutant.operator][1]
        expected = expected | ({22} if bundle.plan.get("version", 1) > 2 else set())
        expected = expected | (
            {11} if mutant.base == "slices" else set()
        )  # what a call does not say any more
        excused = found == ACCEPTED and (mutant.family, mutant.operator) in HARMLESS
        if not excused and (found not in expected or found == ACCEPTED):
            wrong.append(f"{mutant}: {found} {message[:200]}")
    return wrong


def test_bundles_are_valid_before() -> None:
    for name, make in BASES.items():
        assert outcome(make().members()) == (ACCEPTED, ""), name
        assert outcome(forged(make()).members()) == (ACCEPTED, ""), name


def test_a_slice_of_all_mutants() -> None:
    counts: Counter[str] = Counter()
    assert strikes(range(2), counts) == []
    assert len(counts) >= 90
    said = (Path(__file__).resolve().parents[2] / "docs" / "checking.md").read_text()
    assert f"changes valid bundles by {len(PROOF) + len(WRONG)} operators" in said


@pytest.mark.slow
def test_all_mutants() -> None:
    counts: Counter[str] = Counter()
    assert strikes(range(12), counts) == []
    assert sum(counts.values()) >= 1100


# A forger with a false claim --------------------------------------------------------------------------------


def false_claims(seeds: range) -> Iterator[tuple[str, Bundle]]:
    """Bundles about plans that the interpreter shows to be wrong, records changed once more, files to
    match."""
    for seed in seeds:
        for base in (name for name in BASES if name != "slices"):
            rng = Random(f"{base} {seed}")
            bundle = BASES[base]()
            operator = rng.choice(
                (
                    "operation",
                    "operands exchanged",
                    "operand",
                    "collective dropped",
                    "reduction",
                    "claim and facts scaled",
                    "contraction",
                    "literal",
                )
            )
            if WRONG[operator][0](bundle, rng) is None:
                continue
            try:
                if oracle_equal(loads(dump(bundle.plan)), range(1)):
                    continue
            except (FormatError, EvaluationError):
                continue
            names = [rng.choice(sorted(PROOF)) for _ in range(rng.randrange(4))]
            for name in names:
                if "file" not in name and "verdict" not in name:
                    PROOF[name][0](bundle, rng)
            yield f"{base} {seed}: {operator}, {names}", forged(bundle)


def forgeries(seeds: range) -> int:
    count = 0
    for what, bundle in false_claims(seeds):
        try:
            data = bundle.members()
        except (KeyError, TypeError, IndexError):
            continue
        assert outcome(data)[0] != ACCEPTED, what
        count += 1
    return count


def test_false_claims_are_never_accepted() -> None:
    assert forgeries(range(40)) >= 20


@pytest.mark.slow
def test_many_false_claims_are_never_accepted() -> None:
    assert forgeries(range(40, 340)) >= 160


# Bytes and folders ------------------------------------------------------------------------------------------


def put_version(data: bytes, text: bytes) -> bytes:
    """With this in place of the member `version`."""
    return re.sub(rb'"version":[12]', lambda _: text, data, count=1)


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "member twice": lambda d: put_version(d, b'"version":1,"version":1'),
    "not a number": lambda d: put_version(d, b'"version":NaN'),
    "float": lambda d: put_version(d, b'"version":1.0'),
    "exponent": lambda d: put_version(d, b'"version":1e0'),
    "enormous number": lambda d: put_version(d, b'"version":' + b"9" * 100_000),
    "enormous text": lambda d: put_version(d, b'"version":"' + b"9" * 100_000 + b'"'),
    "another version": lambda d: put_version(d, b'"version":5'),
    "another format": lambda d: d.replace(b'"format":"trainverify', b'"format":"x', 1),
    "deep list": lambda d: put_version(d, b'"version":' + b"[" * 100_000),
    "deep but closed": lambda d: put_version(d, b'"version":' + b"[" * 400 + b"]" * 400),
    "deep objects": lambda d: put_version(d, b'"version":' + b'{"a":' * 900 + b"1" + b"}" * 900),
    "cut off": lambda d: d[:-10],
    "trailing": lambda d: d + b"{}",
    "no text": lambda d: b"\xff" + d,
    "byte order mark": lambda d: b"\xef\xbb\xbf" + d,
    "empty": lambda d: b"",
    "a list": lambda d: b"[" + d + b"]",
    "null": lambda d: b"null",
    "unknown member": lambda d: put_version(d, b'"version":1,"extra":[]'),
}


@pytest.mark.parametrize("member", ["plan.json", "proof.json", "manifest.json"])
@pytest.mark.parametrize("operator", BYTES)
def test_bytes(member: str, operator: str) -> None:
    data = row_parallel().members()
    changed = BYTES[operator](data[member])
    assert changed != data[member]
    with pytest.raises(Malformed) as caught:
        if member == "manifest.json":
            read_manifest(data | {member: changed})
        else:
            {"plan.json": read_plan, "proof.json": read_proof}[member](changed)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    10**17,
    "",
    "x",
    "%0",
    "s:x",
    "9" * 5000,
    "1/3",
    [],
    [[]],
    {},
    {"": 0},
    {"k": []},
    ["e"],
    [0, 1],
    {"x": 1},
    1 << 62,
    ["+"],
    "\x00",
    "é",
]


@pytest.mark.parametrize("where", ["plan", "proof"])
def test_any_node_replaced_by_junk(where: str) -> None:
    """No node makes a reader or the kernel stumble: whatever stands there, the answer is one of ours."""
    for make in (BASES["row"], BASES["shards"]):
        paths = [path for path, _, _ in nodes(getattr(make(), where))]
        rng = Random(where)
        for path in rng.sample(paths, min(len(paths), 150)):
            bundle = make()
            box = getattr(bundle, where)
            for key in path[:-1]:
                box = box[key]
            old = json.dumps(box[path[-1]])
            box[path[-1]] = rng.choice(JUNK)
            found, _ = outcome(bundle.members())
            informative = path[0] in ("name", "provenance", "sources", "version") or path[-1] == "by"
            assert found != ACCEPTED or informative or old == json.dumps(box[path[-1]]), path


def folder(tmp_path: Path) -> Path:
    return row_parallel().write(tmp_path / "bundle")


def linked(f: Path) -> None:
    (f / "data/obligations/0001.smt2").rename(f.parent / "a")
    (f / "data/obligations/0001.smt2").symlink_to(f.parent / "a")


def linked_folder(f: Path) -> None:
    (f / "data/obligations").rename(f.parent / "o")
    (f / "data/obligations").symlink_to(f.parent / "o")


def pipe(f: Path) -> None:
    os.mkfifo(f / "data/x.txt")


@pytest.mark.parametrize(
    "tamper",
    [
        linked,
        linked_folder,
        pipe,
        lambda f: (f / "data/plan.json").unlink(),
        lambda f: (f / "data/obligations/deep").mkdir(),
        lambda f: (f / "more").mkdir(),
        lambda f: os.truncate(f / "data/plan.json", 1 << 27),
        lambda f: (f / "plan.json").write_bytes(b""),
        lambda f: (f / "data/bagit.txt").write_bytes(b""),
    ],
)
def test_folders(tmp_path: Path, tamper: Callable[[Path], Any]) -> None:
    place = folder(tmp_path)
    tamper(place)
    with pytest.raises(Malformed):
        read_bundle(place)


@pytest.mark.parametrize(
    "name",
    [
        "../plan.json",
        "/etc/passwd",
        "obligations/../plan.json",
        "obligations/1.smt2",
        "x",
        "obligations/0001.smt2/x",
        "",
        "manifest.json",
    ],
)
def test_member_names(name: str) -> None:
    data = row_parallel().members()
    with pytest.raises(Malformed):
        read_manifest(data | {MANIFEST: data[MANIFEST] + b"0" * 64 + f"  data/{name}\n".encode()})


def test_every_byte_of_every_file_counts(tmp_path: Path) -> None:
    """Whatever file of a bag is changed, one byte more, less or another, its name is said."""
    place = folder(tmp_path)
    (place / "bag-info.txt").write_bytes(b"Contact-Name: x\n")
    seal(place)
    for path in sorted(p for p in place.rglob("*") if p.is_file()):
        whole = path.read_bytes()
        named = "sha256|[.]txt|json" if "sha256" in path.name else path.stem
        for changed in (whole + b" ", whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]):
            path.write_bytes(changed)
            with pytest.raises((Malformed, Rejected), match=named):
                accepted(place)
        path.unlink()
        with pytest.raises((Malformed, Rejected), match=re.escape(path.name)):
            accepted(place)
        path.write_bytes(whole)
    for more in ("x", "data/x", "data/obligations/9999.smt2", "data/report.pdf", "manifest-md5.txt"):
        (place / more).write_bytes(b"")
        with pytest.raises(Rejected, match=f"{more.removeprefix('data/')} is not listed"):
            accepted(place)
        (place / more).unlink()
    accepted(place)


def accepted(place: Path) -> None:
    data = read_bundle(place)
    kernel.examine(read_manifest(data), read_plan(data["plan.json"]), read_proof(data["proof.json"]), data)
