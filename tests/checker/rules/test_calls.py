"""Functions, lemmas and calls in the checker: what a forged lemma or call would let through.

The bundle is of four equal layers. Files are the emitter's; digests are always fresh.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from certificates.plan.writing import dumps
from checker import kernel
from checker.errors import CheckerError, Malformed, Rejected
from checker.reading.plan import read_plan
from checker.refuting.inline import inline
from orchestrator.outlining.outline import outline
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores

sys.path.insert(0, str(Path(__file__).parents[1]))
import samples
from samples import HEAD, Bundle, dump, op, piece, plan_of, program, relation, z

from tests.orchestrator.deep_plans import deep


@cache
def _made() -> str:
    plan = outline(deep(4))
    engine = Engine(plan, Cores())
    engine.relate()
    claims = [n for facts in engine.claims() for n in facts]
    for n in claims:
        engine.prove(n)
    proof = engine.proof(claims, "unsat")
    files = {o.file: o.text for o in proof.obligations}
    verdicts = [{"spec": r.spec, "plan": r.plan, "verdict": "PROVED", "reason": ""} for r in plan.outputs]
    return json.dumps([json.loads(dumps(plan)), json.loads(proof.document), files, verdicts])


def bundle() -> Bundle:
    plan, proof, files, verdicts = json.loads(_made())
    return Bundle(plan, proof, files, verdicts, "unsat")


def proved(b: Bundle) -> set[str]:
    """Outputs that are PROVED if every solver refutes every file."""
    return samples.proved(b.examine())


def test_the_bundle_is_accepted_as_it_is() -> None:
    b = bundle()
    assert proved(b) == {"y", *(f"norms.layers.{k}" for k in range(4))}
    assert b.proof["lemmas"] and any(s["kind"] == "call" for s in b.proof["stages"])


def lemma(b: Bundle) -> Any:
    return b.proof["lemmas"][0]


def test_a_lemma_may_assume_a_literal() -> None:
    """A literal is the same inside and outside."""
    b = bundle()
    before = proved(b)
    body = b.plan["functions"]["f0"]["specification"]["inputs"]
    name = next(n for n, kind in body if kind.count(",") == 1)
    lemma(b)["facts"].append(
        {
            "lhs": f"s:{name}",
            "rhs": "#f:0",
            "coef": "1",
            "symbols": [],
            "by": None,
            "lhs_index": [0, 0],
            "rhs_index": [],
        }
    )
    assert proved(b) == before


def stage_about(b: Bundle, function: Callable[[Any], bool]) -> Any:
    return next(s for s in b.proof["stages"] if function(s))


def conclude_inner(b: Bundle) -> None:
    """A fact about a tensor inside the body leaves it."""
    goals = {s["goal"] for s in lemma(b)["stages"]}
    shown = {
        v
        for p in [b.plan["functions"]["f0"]["specification"], *b.plan["functions"]["f0"]["classes"].values()]
        for _, v in p["outputs"]
    }
    inner = next(
        n
        for n in goals
        if isinstance(lemma(b)["facts"][n]["lhs"], str)
        and lemma(b)["facts"][n]["lhs"].partition(":")[2] not in shown
    )
    lemma(b)["concludes"].append(inner)


def assume_result(b: Bundle) -> None:
    """What should be proved is assumed: its stage is gone."""
    goal = lemma(b)["stages"].pop()["goal"]
    assert goal in lemma(b)["concludes"]


def unknown_instance(b: Bundle) -> None:
    stage_about(b, lambda s: s["kind"] == "call")["instance"] = 99


def unknown_function(b: Bundle) -> None:
    lemma(b)["function"] = "f7"


def call_inside(b: Bundle) -> None:
    lemma(b)["stages"].append({"kind": "call", "lemma": 0, "instance": 0})


def unknown_lemma(b: Bundle) -> None:
    stage_about(b, lambda s: s["kind"] == "call")["lemma"] = 5


def wrong_conclusion(b: Bundle) -> None:
    """A conclusion that was never derived, listed by number."""
    lemma(b)["facts"].append({**lemma(b)["facts"][lemma(b)["concludes"][0]], "coef": "2"})
    lemma(b)["concludes"].append(len(lemma(b)["facts"]) - 1)


def define_a_call(b: Bundle) -> None:
    """A call's result is opened as if an op had made it."""
    ref = next(f"c0:{op[0][0]}" for op in b.plan["classes"][0]["program"]["ops"] if op[1] == "call")
    b.proof["facts"].append(
        {
            "lhs": "s:batch.x",
            "rhs": "s:batch.x",
            "coef": "1",
            "symbols": [],
            "by": None,
            "lhs_index": [0, 0],
            "rhs_index": [0, 0],
        }
    )
    opened = {"k": "def", "t": ref, "at": [0] * (len(b.plan["mesh"]) + 2), "arg": None}
    b.proof["stages"].append(
        {
            "kind": "layout",
            "goal": len(b.proof["facts"]) - 1,
            "title": "open",
            "symbols": [],
            "file": "0001",
            "premises": [opened],
        }
    )


def assumed_beyond_its_range(b: Bundle) -> None:
    fact = lemma(b)["facts"][0]
    lemma(b)["facts"].append({**fact, "symbols": [[s, low, high + 1] for s, low, high in fact["symbols"]]})


REFUSED: list[tuple[Callable[[Bundle], None], int | str, str]] = [
    (conclude_inner, 11, "a fact is concluded about what no call shows"),
    (assume_result, 11, "a fact is assumed about what no call shows"),
    (unknown_instance, 11, "there is no call of f0 99"),
    (unknown_function, 11, "fails at lemma 0: there is no function f7"),
    (assumed_beyond_its_range, 3, "may leave its range"),
    (call_inside, "malformed", "unknown kind"),
    (unknown_lemma, "malformed", "lemma"),
    (wrong_conclusion, 11, "a fact is assumed about what no call shows"),
]


@pytest.mark.parametrize(("change", "number", "reason"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_forged_lemmas_are_refused(change: Callable[[Bundle], None], number: int | str, reason: str) -> None:
    b = bundle()
    change(b)
    with samples.refused(number, reason):
        proved(b)


def test_a_call_whose_operands_are_not_what_the_lemma_assumes_says_nothing() -> None:
    """Layer 2 of the plan reads another layer's weight: outputs after it are not proved, those before are."""
    b = bundle()
    for entry in ops(b):
        if entry[1] == "call" and entry[4] == 2:
            entry[2] = [v.replace("layers.2.w", "layers.3.w") for v in entry[2]]
    try:
        left = proved(b)
    except Rejected as error:
        assert error.number in (11, 16)
    else:
        assert left <= {"norms.layers.0", "norms.layers.1"}


def test_an_output_is_not_proved_without_its_call() -> None:
    b = bundle()
    calls = [s for s in b.proof["stages"] if s["kind"] == "call"]
    b.proof["stages"].remove(next(s for s in calls if s["instance"] == 3))
    with pytest.raises(CheckerError) as error:
        proved(b)
    assert "fact" in str(error.value) or "PROVED" in str(error.value)


def test_a_call_before_its_operands_are_proved_says_nothing() -> None:
    b = bundle()
    calls = [s for s in b.proof["stages"] if s["kind"] == "call"]
    b.proof["stages"] = calls[::-1] + [s for s in b.proof["stages"] if s["kind"] != "call"]
    with pytest.raises(Rejected) as error:
        proved(b)
    assert error.value.number in (11, 16)


def test_a_file_that_one_solver_does_not_refute_fells_every_layer() -> None:
    b = bundle()
    examined = b.examine()
    inside = next(s for s in lemma(b)["stages"] if s["goal"] in lemma(b)["concludes"])
    file = inside.get("file") or inside["cases"][0]["file"]
    good = dict.fromkeys(examined.files, "unsat")
    verified = kernel.conclude(examined, {"a": good, "b": good | {file: "unknown"}}, 2, {})
    assert "UNKNOWN" in {o.verdict for o in verified.outputs}
    assert all(f"obligations/{file}.smt2" in o.reason for o in verified.outputs if o.verdict == "UNKNOWN")


def test_a_call_that_is_made_again_proves_nothing_again() -> None:
    """A fact has one proof, the first."""
    b = bundle()
    before = b.examine()
    b.proof["stages"] += [s for s in b.proof["stages"] if s["kind"] == "call"]
    after = b.examine()
    assert (after.stages, after.facts) == (before.stages, before.facts)


def test_opening_a_call_is_refused() -> None:
    b = bundle()
    define_a_call(b)
    with pytest.raises(Rejected) as error:
        proved(b)
    assert error.value.number == 5 and "is no result of an op" in str(error.value)


# Reading -------------------------------------------------------------------------------------------------


def ops(b: Bundle) -> list[Any]:
    found: list[Any] = b.plan["classes"][0]["program"]["ops"]
    return found


def first_call(b: Bundle) -> Any:
    return next(op for op in ops(b) if op[1] == "call")


MALFORMED: list[tuple[Callable[[Bundle], Any], str]] = [
    (lambda b: first_call(b)[2].reverse(), "operands of other types"),
    (lambda b: first_call(b)[0].pop(), "a result for each of"),
    (lambda b: first_call(b).__setitem__(4, 77), "call different instances"),
    (lambda b: first_call(b).__setitem__(4, -1), "-1 is no integer in"),
    (lambda b: first_call(b).__setitem__(3, "f9"), "unknown function"),
    (lambda b: first_call(b)[0].__setitem__(0, first_call(b)[0][1]), "assigned twice"),
    (lambda b: first_call(b)[2].__setitem__(0, "%99999"), "an operand is not defined before it"),
    (lambda b: ops(b).insert(ops(b).index(first_call(b)) + 1, first_call(b)), "it occurs twice"),
    (lambda b: b.plan["functions"]["f0"]["classes"].clear(), "member c0 is missing"),
    (
        lambda b: b.plan["functions"]["f0"]["specification"]["ops"].append([["%900"], "call", [], "f0", 0]),
        "unknown function",
    ),
    (lambda b: b.plan.__setitem__("functions", ["f0"]), "an object is expected"),
    (lambda b: b.plan.__setitem__("functions", {}), "an optional member is empty"),
]


@pytest.mark.parametrize(("change", "reason"), MALFORMED, ids=[r for _, r in MALFORMED])
def test_calls_that_do_not_fit_are_malformed(change: Callable[[Bundle], Any], reason: str) -> None:
    b = bundle()
    change(b)
    with pytest.raises(Malformed) as error:
        b.examine()
    assert reason in str(error.value)


def test_a_collective_of_a_body_meets_within_its_instance() -> None:
    """Written out, every instance has rendezvous of its own, the same in every class."""
    plan = read_plan(dumps(outline(deep(4))))
    flat = inline(plan)
    body = plan.functions["f0"].classes["c0"].program
    inside = sum("seq" in op.attrs for op in body.ops)
    assert inside and len(flat.rendezvous) == 4 * inside + len(plan.rendezvous)
    assert not flat.functions and not any(op.name == "call" for op in flat.spec.ops)


# What a function may use of its operands -------------------------------------------------------------------


def called(*operands: str, functions: str = "f") -> dict[str, Any]:
    """A specification that calls f with each of these values: inputs, or %9, which is computed."""
    body = program([["a", "i64[4]"]], [op("%0", "convert", ["a"], "f32[4]")], [["b", "%0"]])
    outer = program(
        [["i", "i64[4]"], ["j", "i64[4]"], ["k", "i64[4]"]],
        [
            op("%9", "add", ["i", "i"], "i64[4]"),
            *([[f"%{n}"], "call", [o], functions, n] for n, o in enumerate(operands)),
        ],
        [],
    )
    plan = plan_of(
        [["r", 1]],
        outer,
        [{"name": "c0", "box": {"r": [0, 1]}, "program": outer}],
        [],
        [],
        ranges={"i": [0, 5], "j": [2, 9]},
    )
    plan["functions"] = {f: {"specification": body, "classes": {"c0": body}} for f in ("f", "g")}
    return plan


@pytest.mark.parametrize(
    ("operands", "found"),
    [
        (["i"], {"a": (0, 5)}),
        (["j", "i", "j"], {"a": (0, 9)}),
        (["i", "k"], {}),
        (["k", "i"], {}),
        (["%9"], {}),
        (["i", "%9"], {}),
    ],
)
def test_a_function_has_the_ranges_of_its_operands_at_all_calls(
    operands: list[str], found: dict[str, Any]
) -> None:
    functions = read_plan(dump(called(*operands))).functions
    assert functions["f"].ranges == found
    assert functions["g"].ranges == {}, "it is never called"


def test_another_functions_calls_say_nothing_of_a_function() -> None:
    functions = read_plan(dump(called("i", functions="g"))).functions
    assert (functions["f"].ranges, functions["g"].ranges) == ({}, {"a": (0, 5)})


# The smallest lemma --------------------------------------------------------------------------------------

NEGATED = (
    HEAD.format(logic="ALL")
    + """; negated
(declare-fun r () Int)
(declare-fun z0 () Int)
; t0 = c0:%0 negate f32[4] ranks r 0..1
(declare-fun t0 (Int Int) Real)
; t1 = c0:a input f32[4] ranks r 0..1
(declare-fun t1 (Int Int) Real)
; t2 = s:a input f32[4]
(declare-fun t2 (Int) Real)
; t3 = s:%0 negate f32[4]
(declare-fun t3 (Int) Real)
(assert (! (= (t0 r z0) (- (t1 r z0))) :named def.1))
(assert (! (= (t1 r z0) (t2 z0)) :named hyp.2))
(assert (! (= (t3 z0) (- (t2 z0))) :named def.3))
(assert (! (not (= (t0 r z0) (t3 z0))) :named goal))
(check-sat)
(exit)
"""
)


def equal(value: str, size: int = 4) -> Any:
    """The first elements of a tensor are the same on both ranks and in the specification."""
    return {
        "lhs": f"c0:{value}",
        "rhs": f"s:{value}",
        "coef": "1",
        "symbols": [["r", 0, 2], ["z0", 0, size]],
        "lhs_index": [{"r": 1}, z(0)],
        "rhs_index": [z(0)],
        "by": None,
    }


def negation(value: str, goal: int, assumed: int, file: str) -> Any:
    place = [{"r": 1}, z(0)]
    return {
        "kind": "layout",
        "goal": goal,
        "title": "negated",
        "file": file,
        "symbols": [],
        "premises": [
            {"k": "def", "t": f"c0:{value}", "at": place, "arg": None},
            {"k": "hyp", "facts": [assumed], "at": place, "lift": [], "kind": "add"},
            {"k": "def", "t": f"s:{value}", "at": [z(0)], "arg": None},
        ],
    }


def negated() -> Bundle:
    """y = f(x), f(a) = -a on both sides; x is the same on both ranks."""
    body = program([["a", "f32[4]"]], [op("%0", "negate", ["a"], "f32[4]")], [["b", "%0"]])
    outer = program([["x", "f32[4]"]], [[["%7"], "call", ["x"], "f", 0]], [["y", "%7"]])
    same = piece("c0", [4], [z(0)], [z(0)])
    plan = plan_of(
        [["r", 2]],
        outer,
        [{"name": "c0", "box": {"r": [0, 2]}, "program": outer}],
        [relation("x", "x", same)],
        [relation("y", "y", same)],
    )
    plan["functions"] = {"f": {"specification": body, "classes": {"c0": body}}}
    proof = {
        "format": "trainverify-proof",
        "version": 1,
        "facts": [],
        "stages": [{"kind": "call", "lemma": 0, "instance": 0}],
        "lemmas": [
            {
                "function": "f",
                "facts": [equal("a"), equal("%0")],
                "stages": [negation("%0", 1, 0, "0001")],
                "concludes": [0, 1],
            }
        ],
    }
    verdicts = [{"spec": "y", "plan": "y", "verdict": "PROVED", "reason": ""}]
    return Bundle(plan, proof, {"0001": NEGATED}, verdicts, "unsat")


def test_a_lemma_about_all_that_a_call_shows() -> None:
    """It assumes something of every input and concludes it; its result rests on all that is proved."""
    b = negated()
    assert proved(b) == {"y"}
    assert [(s.goal, s.used, s.files, s.title) for s in b.examine().stages] == [(1, {0}, {"0001"}, "f 0")]


def test_every_conclusion_of_a_call_is_a_fact_of_its_own() -> None:
    """Stages after the call cite them by number."""
    b = negated()
    b.proof["lemmas"][0]["facts"].append(equal("%0", 2))
    b.proof["lemmas"][0]["stages"].append(negation("%0", 2, 0, "0001"))
    b.proof["lemmas"][0]["concludes"].append(2)
    assert proved(b) == {"y"}
    examined = b.examine()
    assert [s.goal for s in examined.stages] == [1, 2]
    assert [f.symbols[-1] for f in examined.facts[1:]] == [("z0", 0, 4), ("z0", 0, 2)]
    assert examined.known == {f: n for n, f in enumerate(examined.facts)}


def test_a_call_concludes_more_once_more_is_proved_of_its_operands() -> None:
    """f(x, g(x)) stands before g in the proof and again after it."""
    b = negated()
    both = program(
        [["a", "f32[4]"], ["e", "f32[4]"]],
        [op("%0", "negate", ["a"], "f32[4]"), op("%1", "negate", ["e"], "f32[4]")],
        [["b", "%0"], ["c", "%1"]],
    )
    outer = program(
        [["x", "f32[4]"]],
        [[["%7"], "call", ["x"], "f", 0], [["%8", "%9"], "call", ["x", "%7"], "g", 0]],
        [["y", "%8"], ["z", "%9"]],
    )
    b.plan["specification"] = b.plan["classes"][0]["program"] = outer
    b.plan["functions"]["g"] = {"specification": both, "classes": {"c0": both}}
    b.plan["outputs"].append(b.plan["outputs"][0] | {"spec": "z", "plan": "z"})
    b.proof["lemmas"].append(
        {
            "function": "g",
            "facts": [equal("a"), equal("e"), equal("%0"), equal("%1")],
            "concludes": [2, 3],
            "stages": [negation("%0", 2, 0, "0001"), negation("%1", 3, 1, "0002")],
        }
    )
    b.files["0002"] = NEGATED.replace("%0", "%1").replace(":a input", ":e input")
    b.verdicts.append(b.verdicts[0] | {"spec": "z", "plan": "z"})
    first, second = ({"kind": "call", "lemma": n, "instance": 0} for n in (1, 0))
    b.proof["stages"] = [first, second, first]
    assert proved(b) == {"y", "z"}
    assert [s.title for s in b.examine().stages] == ["g 0", "f 0", "g 0"]
    b.proof["stages"] = [first, second]
    with pytest.raises(Rejected) as error:
        proved(b)
    assert error.value.number == 16 and "z" in str(error.value)


def test_a_call_outside_of_what_the_lemma_assumes_says_nothing() -> None:
    b = negated()
    b.plan["inputs"][0]["coef"] = "2"
    with pytest.raises(Rejected) as error:
        proved(b)
    assert error.value.number == 16 and "1 of its 1 facts are goals of no stage" in str(error.value)


def test_a_call_has_no_meaning_in_an_algebra_stage() -> None:
    """Only in a lemma is it known what a function computes."""
    b = negated()
    rank, row = [[0, ["t"]]], [[0, ["i"]]]
    b.proof["facts"] = [
        {
            "lhs": "c0:%7",
            "rhs": "s:%7",
            "coef": "1",
            "symbols": [["r", 0, 2], ["z0", 0, 4]],
            "lhs_index": [{"r": 1}, z(0)],
            "rhs_index": [z(0)],
            "by": None,
        }
    ]
    b.proof["stages"] = [
        {
            "kind": "algebra",
            "goal": 0,
            "title": "opened",
            "classes": [["t", 2, 1], ["i", 4, 1]],
            "trees": [["c0:%7", [rank, row]], ["s:%7", [row]]],
            "goal_at": [["t"], ["i"]],
            "cases": [
                {
                    "reps": [[0], [0]],
                    "file": "0002",
                    "premises": [{"k": "def", "e": ["c0:%7", [[0, 0], [0, 0]]]}],
                }
            ],
        }
    ]
    with pytest.raises(Rejected) as error:
        proved(b)
    assert error.value.number == 5 and "call of c0:%7 has no algebra def" in str(error.value)


def test_a_function_shows_something() -> None:
    b = negated()
    for p in (b.plan["specification"], b.plan["classes"][0]["program"]):
        p["ops"], p["outputs"] = [[[], "call", ["x"], "f", 0]], []
    for p in (b.plan["functions"]["f"]["specification"], b.plan["functions"]["f"]["classes"]["c0"]):
        p["outputs"] = []
    with pytest.raises(Malformed) as error:
        b.examine()
    assert "call of f 0: a result for each of 0 outputs" in str(error.value)
