"""Functions at a slice in the checker: each sentence of obligations 11 and 13 about them, forged.

The bundle is of two stages with a layer each; obligation files are written anew after every change, so only
meaning is left.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from certificates.plan.plan import Plan
from certificates.plan.writing import dumps
from checker.errors import Rejected
from checker.language.proof import Tensor
from checker.reading.plan import read_plan
from checker.report.domains import Domains
from checker.rules.infinite import infinities
from checker.rules.model import Model
from checker.rules.positive import Signs
from checker.rules.roots import nonnegative
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores

sys.path.insert(0, str(Path(__file__).parents[1]))
import samples
from samples import Bundle, forged, op

from tests.sliced_plans import Sliced, chosen, dense

ROOT = Path(__file__).resolve().parents[3]


@cache
def _made(parts: int) -> str:
    plan = Sliced(2, 1, parts=2).plan() if parts else dense()
    engine = Engine(plan, Cores())
    engine.relate()
    claims = [n for facts in engine.claims() for n in facts]
    for n in claims:
        engine.prove(n)
    proof = engine.proof(claims, "unsat")
    files = {o.file: o.text for o in proof.obligations}
    verdicts = [{"spec": r.spec, "plan": r.plan, "verdict": "PROVED", "reason": ""} for r in plan.outputs]
    return json.dumps([json.loads(dumps(plan)), json.loads(proof.document), files, verdicts])


def bundle(parts: int = 0) -> Bundle:
    plan, proof, files, verdicts = json.loads(_made(parts))
    return Bundle(plan, proof, files, verdicts, "unsat")


def proved(b: Bundle) -> set[str]:
    """Outputs that are PROVED if every solver refutes every file."""
    return samples.proved(forged(b).examine())


def test_the_bundles_are_accepted_as_they_are() -> None:
    assert proved(bundle()) == {"y"}
    assert proved(bundle(2)) == {"loss", "params.head", *(f"params.{i}.{n}" for i in (0, 1) for n in "ud")}
    assert [f["symbols"][0] for f in bundle().proof["facts"] if f["lhs"] == "c1:%0"] == [["pp", 1, 2]]


def layer(b: Bundle) -> Any:
    return b.plan["functions"]["layer"]


def body(b: Bundle) -> Any:
    return layer(b)["classes"]["r"]


def lemma(b: Bundle) -> Any:
    return b.proof["lemmas"][0]


def concluded(b: Bundle) -> Any:
    return lemma(b)["facts"][lemma(b)["concludes"][0]]


def calls(b: Bundle, cls: int) -> list[Any]:
    return [o for o in b.plan["classes"][cls]["program"]["ops"] if o[1] == "call"]


def put(*path: Any) -> Callable[[Bundle], None]:
    """Sets a member of the function."""

    def change(b: Bundle) -> None:
        box = layer(b)
        for step in path[:-2]:
            box = box[step]
        box[path[-2]] = path[-1]

    return change


def named_like_a_class(b: Bundle) -> None:
    for member in ("roles", "classes"):
        layer(b)[member]["c0"] = layer(b)[member].pop("r")


def played_twice(b: Bundle) -> None:
    for member in ("roles", "classes"):
        layer(b)[member]["r2"] = layer(b)[member]["r"]


def over_stages(b: Bundle) -> None:
    group = {"axes": ["pp"], "ranks": [[0, 2], [1, 3]]}
    b.plan["groups"]["pp"] = group
    next(o for o in body(b)["ops"] if o[1] == "all_reduce")[4]["group"] = "pp"


def over_no_axes(b: Bundle) -> None:
    """The lists of the slice's axis, and no axes claimed."""
    b.plan["groups"]["tp"]["axes"] = []


def in_another_order(b: Bundle) -> None:
    b.plan["groups"]["tp"]["ranks"] = [[1, 0], [2, 3]]


def message_inside(b: Bundle) -> None:
    body(b)["ops"].insert(0, op("%9", "send", ["x"], "f32[3,4]", seq=40, to=[{"tp": 1}]))


def called_by_two_slices(b: Bundle) -> None:
    calls(b, 1)[0][4] = 0


def called_by_none(b: Bundle) -> None:
    spec = [o for o in b.plan["specification"]["ops"] if o[1] == "call"]
    result = calls(b, 1)[0][0][0]
    ops = b.plan["classes"][1]["program"]["ops"]
    ops[ops.index(calls(b, 1)[0])] = op(result, "constant", [], "f32[3,4]", value="0")
    assert len(spec) == 2


def called_without_the_specification(b: Bundle) -> None:
    calls(b, 1)[0][4] = 7


def one_class_on_two_slices(b: Bundle) -> None:
    b.plan["classes"][0]["box"]["pp"] = [0, 2]
    del b.plan["classes"][1]


def a_role_left_out(b: Bundle) -> None:
    """The second class of stage 0 calls nothing in place of its layer."""
    entry = next(o for o in calls(b, 2) if o[3] == "ahead")
    assert b.plan["classes"][2]["box"]["pp"] == [0, 1] and b.plan["classes"][2]["box"]["dp"] == [1, 2]
    ops = b.plan["classes"][2]["program"]["ops"]
    types = ("f32[2,6]", "f32[2,10]")
    i = ops.index(entry)
    made = zip(entry[0], types, strict=True)
    ops[i : i + 1] = [op(r, "constant", [], t, value="0") for r, t in made]


def symbol_of_the_slice(b: Bundle) -> None:
    """y[pp, z] = s:y[4 pp + z], said with a symbol that the call would give another range."""
    b.proof["lemmas"][0] = json.loads(json.dumps(lemma(b)).replace('"z0"', '"pp"'))


def assumed_with_the_symbol(b: Bundle) -> None:
    lemma(b)["facts"][0] = json.loads(json.dumps(lemma(b)["facts"][0]).replace('"z0"', '"pp"'))


def coordinate_of_the_slice(b: Bundle) -> None:
    concluded(b)["lhs_index"].insert(0, 0)


def tensor_of_a_caller(b: Bundle) -> None:
    concluded(b)["lhs"] = concluded(b)["lhs"].replace("r:", "c0:")


def sum_over_stages(b: Bundle) -> None:
    fact = concluded(b)
    fact["lhs"] = {"kind": "add", "axes": ["pp"], "of": [fact["lhs"]]}


def lifted_over_stages(b: Bundle) -> None:
    stage = next(s for s in lemma(b)["stages"] if s["kind"] == "layout")
    next(p for p in stage["premises"] if p["k"] == "hyp")["lift"] = ["pp"]


def claimed_at_another_slice(b: Bundle) -> None:
    """What stage 1 has, with the coordinate of stage 0."""
    fact = next(f for f in b.proof["facts"] if f["lhs"] == "c1:%0")
    fact["symbols"][0] = ["pp", 0, 1]


ALONG = "along must be mesh axes in mesh order"
REFUSED: list[tuple[Callable[[Bundle], None], int | str, str]] = [
    (put("along", []), "malformed", ALONG),
    (put("along", ["dp"]), "malformed", ALONG),
    (put("along", ["pp", "pp"]), "malformed", ALONG),
    (put("along", ["tp"]), "malformed", "member pp is missing"),
    (put("roles", "r", "tp", [0, 1]), "malformed", "a role has the box of no class"),
    (put("roles", "r", "pp", [0, 1]), "malformed", "unknown member 'pp'"),
    (put("roles", {}), "malformed", "unknown member 'r'"),
    (named_like_a_class, "malformed", "role c0 has the name of a class"),
    (played_twice, "malformed", "a role has the box of no class"),
    (put("classes", "r", "ops", 0, 4, "start", 1, {"pp": 2}), "malformed", "unknown symbol"),
    (lambda b: b.plan.update(version=3), "malformed", "version 3 has no functions at a slice"),
    (over_stages, 13, "group pp of op %2 is no factorisation of a slice's mesh"),
    (over_no_axes, 13, "group tp of op %2 is no factorisation of a slice's mesh"),
    (in_another_order, 13, "group tp of op %2 is no factorisation of a slice's mesh"),
    (message_inside, 19, "a function has no messages"),
    (called_by_two_slices, 11, "fails at layer 0: it is not called by the classes of one slice"),
    (called_by_none, 11, "fails at layer 1: it is not called by the classes of one slice"),
    (one_class_on_two_slices, 11, "fails at layer 0: it is not called by the classes of one slice"),
    (called_without_the_specification, "malformed", "class c1: it and the specification call different"),
    (symbol_of_the_slice, 11, "a fact about a function along pp has a symbol of that name"),
    (assumed_with_the_symbol, 11, "a fact about a function along pp has a symbol of that name"),
    (coordinate_of_the_slice, 3, "has 3 coordinates, 4 given"),
    (tensor_of_a_caller, 3, "there is no tensor c0:"),
    (sum_over_stages, 14, "axes must be mesh axes in mesh order"),
    (lifted_over_stages, 4, "lifted axes must be mesh axes in mesh order"),
    (claimed_at_another_slice, 3, "an index of c1:%0 may leave its range"),
]


@pytest.mark.parametrize(("change", "number", "reason"), REFUSED)
def test_forged_slices_are_refused(change: Callable[[Bundle], None], number: int | str, reason: str) -> None:
    b = bundle()
    change(b)
    refused(b, number, reason)


def test_a_role_that_no_class_plays_is_refused() -> None:
    b = bundle(2)
    a_role_left_out(b)
    refused(b, 11, "the classes that call it do not play each role once")


def refused(b: Bundle, number: int | str, reason: str) -> None:
    with samples.refused(number, reason):
        proved(b)


def test_the_document_has_the_sentences() -> None:
    said = (ROOT / "docs/checking.md").read_text()
    reasons = {r.partition(": ")[2] or r for _, number, r in REFUSED if number in (11, 13)}
    assert {r for r in reasons if r not in said} == set()


def test_a_call_says_nothing_where_its_operands_are_not_what_the_lemma_assumes() -> None:
    """Stage 1 reads its weight as it lies in stage 0's relation to another tensor."""
    b = bundle()
    pieces = next(r for r in b.plan["inputs"] if r["plan"] == "w1")
    pieces["spec"] = "w0"
    with pytest.raises(Rejected) as error:
        proved(b)
    assert error.value.number in (3, 16)


# What is said of operands: at every call, in the class that calls ------------------------------------------


def read(plan: Plan) -> Any:
    return read_plan(dumps(plan))


@pytest.mark.parametrize(("square", "shown"), [(True, True), (False, False)])
def test_a_sign_rests_on_the_operands_of_every_class_that_plays_the_role(square: bool, shown: bool) -> None:
    """Stage 0 hands in a square; stage 1 a square, or any number."""
    plan = read(chosen(square=square))
    inner = Model(plan.functions["layer"], "layer", plan)
    assert nonnegative(inner, Tensor("r", "p")) is shown
    handed, (root, _) = plan.program("c0").calls["layer", 0]
    assert nonnegative(Model(plan), Tensor("c0", handed[0])) and nonnegative(Model(plan), Tensor("c0", root))
    assert not Signs(inner).positive(Tensor("r", "p"))
    assert any(line.startswith("sqrt") for line in Domains(plan).unshown()) is not shown


@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_is_looked_at_in_every_class_that_plays_the_role(masked: bool) -> None:
    """Constants of stage 1 mask a whole row, or none does."""
    plan = read(chosen(square=True, masked=masked))
    if masked:
        assert any("is completely masked" in line for line in infinities(plan))
    else:
        assert infinities(plan) == []
