"""What the readers refuse: every check of reader, records, strict and bundle by a case of its own."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.reading import bundle as folders
from checker.reading import plan as reader
from checker.reading import strict
from checker.reading.plan import read_plan, read_type
from checker.reading.proof import read_manifest, read_proof, read_ref

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, piece, plan_of, program, relation, row_parallel, shards, z


def at(path: str, value: Any) -> Callable[[Any], None]:
    """Assigns at a path of keys; a function gets the old value."""

    def change(top: Any) -> None:
        *keys, last = [int(k) if k.isdigit() else k for k in path.split(".")]
        for key in keys:
            top = top[key]
        top[last] = value(copy.deepcopy(top[last])) if callable(value) else value

    return change


def plus(extra: Any) -> Callable[[Any], Any]:
    return lambda old: old | extra if isinstance(old, dict) else [*old, extra]


# Proofs -----------------------------------------------------------------------------------------------------

CASE, STAGE = "stages.0.cases.0.", "stages.0."
PROOFS: list[tuple[str, Any, str]] = [
    ("version", 2, "unknown version"),
    ("format", "trainverify-plan", "unknown format"),
    ("facts.0.by", {"input": 0, "output": 0}, "by names one relation"),
    ("facts.0.by", {}, "no integer"),
    ("facts.0.by", {"input": -1}, "no integer in"),
    ("facts.0.by", [], "an object is expected"),
    ("facts.2.lhs.of", [], "a reduced tensor has members"),
    ("facts.2.lhs.kind", "mean", "unknown reduction"),
    ("facts.2.rhs", "sx", "is no tensor"),
    ("facts.2.rhs", "#b:1", "is no literal"),
    ("facts.2.rhs", "#b:", "is no literal"),
    ("facts.2.rhs", "#i:1/2", "is no literal"),
    ("facts.2.rhs", "#g:1", "is no literal"),
    ("facts.2.rhs", "#:1", "is no literal"),
    ("facts.2.rhs", "#f:true", "is no rational"),
    ("facts.2.symbols.0", ["z0", 4, 4], "an empty range"),
    ("facts.2.symbols.0", ["z0", 4, 3], "an empty range"),
    ("facts.2.symbols.1", ["z0", 0, 8], "a symbol occurs twice"),
    ("facts.2.symbols.0", ["z0", 0], "a list of 3"),
    ("facts.2.symbols.0", ["q0", 0, 4], "is reserved"),
    ("facts.2.symbols.0", ["e1", 0, 4], "is reserved"),
    ("facts.2.coef", "0", "a coefficient of zero"),
    ("facts.2.lhs_index.0", {"y": 1}, "unknown symbol"),
    ("facts.2.lhs_index.0", {"z0": 0}, "zero coefficient"),
    ("facts.2.lhs_index.0", {"": 1}, "an object without symbols"),
    ("facts.2.lhs_index.0", {}, "an object without symbols"),
    ("stages.0", 7, "an object is expected"),
    ("stages.0.kind", "guess", "unknown kind"),
    ("stages.0.goal", 4, r"no integer in \[0, 4\)"),
    ("stages.0.goal", -1, r"no integer in \[0, 4\)"),
    ("stages.0.title", "a|b", "a title has no bar"),
    ("stages.0.title", "a" * 201, "no valid text"),
    ("stages.1.symbols", [["q0", 0, 4], ["q0", 0, 4]], "a symbol occurs twice"),
    ("stages.1.symbols", [["z0", 0, 4]], "fresh symbol"),
    ("stages.1.symbols", [["q", 0, 4]], "fresh symbol"),
    ("stages.1.symbols", [["q0123456789", 0, 4]], "fresh symbol"),
    ("stages.1.symbols", [["v0", 0, 4]], "a v symbol has no range"),
    ("stages.1.symbols", [["v0", None, 4]], "a v symbol has no range"),
    ("stages.1.symbols", [["v0", 0, None]], "a v symbol has no range"),
    ("stages.1.symbols", [["q0", 0, 0]], r"no integer in \[1, "),
    ("stages.1.symbols", [["q0", 0, None]], "no integer"),
    ("stages.1.symbols", [["q0", 0]], "a list of 3"),
    ("stages.1.premises.0", 7, "stage 1, premise 1: an object with a kind is expected"),
    ("stages.1.premises.0", {"sym": "z0"}, "an object with a kind is expected"),
    ("stages.1.premises.0", {"k": ["bound"]}, "an object with a kind is expected"),
    ("stages.1.premises.0", {"k": "law", "schema": "ring"}, "unknown kind 'law'"),
    ("stages.1.premises.0", {"k": "bound", "sym": "z0", "t": "s:x"}, "unknown member 't'"),
    ("stages.1.premises.1.facts", [4], r"no integer in \[0, 4\)"),
    ("stages.1.premises.1.kind", "and", "unknown reduction"),
    ("stages.1.premises.0.arg", 7, "a list is expected"),
    ("stages.1.file", "12", "no valid text"),
    (STAGE + "classes", plus(["i", 4, 1]), "a class occurs twice"),
    (STAGE + "classes.0", ["i", 0, 0], r"no integer in \[1, "),
    (STAGE + "classes.0", ["i", 4, 0], r"no integer in \[1, "),
    (STAGE + "classes.0", ["i", 4, 5], "more representatives than elements"),
    (STAGE + "classes.0", ["e0", 4, 1], "is reserved"),
    (STAGE + "trees.0.1.0", [[-1, ["i"]]], r"no integer in \[0, "),
    (STAGE + "trees.0.1.0", [[0, ["x"]]], "unknown class 'x'"),
    (STAGE + "goal_at.0", ["x"], "unknown class 'x'"),
    (CASE + "reps.0", [-1], r"no integer in \[0, 1000000000\)"),
    (CASE + "reps.0", [10**9], r"no integer in \[0, 1000000000\)"),
    (CASE + "premises.0", {"k": "bound", "sym": "z0"}, "stage 0, case 0, premise 1: unknown kind 'bound'"),
    (CASE + "premises.2.fact", 4, r"no integer in \[0, 4\)"),
    (CASE + "premises.2.defines", "both", "defines lhs or rhs, not"),
    (CASE + "premises.2.at.0", {"t.1": 1}, "unknown symbol"),
    (CASE + "premises.5.schema", "a guess", "is no valid text here"),
    (CASE + "premises.0.e.1.0", [0, -1], "no integer in"),
]


@pytest.mark.parametrize("path,value,reason", PROOFS, ids=[f"{n} {p}" for n, (p, _, _) in enumerate(PROOFS)])
def test_proofs(path: str, value: Any, reason: str) -> None:
    proof = copy.deepcopy(row_parallel().proof)
    assert read_proof(dump(proof))
    at(path, value)(proof)
    with pytest.raises(Malformed, match=reason):
        read_proof(dump(proof))


def test_what_proofs_may_say() -> None:
    """The other side of the limits above."""
    for path, value in (
        ("facts.2.rhs", "#b:false"),
        ("facts.2.rhs", "#i:-3"),
        ("facts.2.rhs", "#f:1/2"),
        ("facts.2.symbols.0", ["z0", 3, 4]),
        ("stages.1.symbols", [["q0", 3, 4], ["v0", None, None]]),
        ("stages.1.symbols", [["q123456789", -2, 4]]),
        ("stages.0.title", "~" * 200),
        ("stages.0.title", ""),
        ("stages.1.file", "0000001"),
        (STAGE + "classes.0", ["i", 4, 4]),
        (CASE + "reps.0", [10**9 - 1]),
        ("facts.3.by", {"output": 7}),
        ("facts.2.lhs.kind", "max"),
        ("stages.1.premises.0.arg", None),
        ("stages.1.premises.0.arg", [0, 1]),
        ("stages.1.premises.1.facts", []),
    ):
        proof = copy.deepcopy(row_parallel().proof)
        at(path, value)(proof)
        assert read_proof(dump(proof)), path
    proof = copy.deepcopy(row_parallel().proof)
    at("facts.3.by", {"output": 7})(proof)
    assert dict(read_proof(dump(proof)).declared) == {0: 0, 1: 1}, "only an input relation declares"


def test_sums_have_two_terms_or_more() -> None:
    """And every other function as many as docs/certificate.md says."""
    one = ["lit", "1"]
    counts = {
        "+": (2, 3, 4, 5),
        "-": (2,),
        "neg": (1,),
        "recip": (1,),
        "fexp": (1,),
        "mul": (2,),
        "fpow": (2,),
        "max2": (2,),
        "min2": (2,),
        "cmp_le": (2,),
        "neg_inf": (0,),
        "pos_inf": (0,),
        "nonzero": (1,),
    }
    for head, right in counts.items():
        for n in range(6):
            proof = copy.deepcopy(row_parallel().proof)
            at(CASE + "premises.5.lhs", [head, *[one] * n])(proof)
            if n in right:
                assert read_proof(dump(proof)), head
            else:
                with pytest.raises(Malformed, match="a list of"):
                    read_proof(dump(proof))
    for term, good in ((["*", "2"], False), (["*", "2", one], True), (["*", "2", one, one], False)):
        proof = copy.deepcopy(row_parallel().proof)
        at(CASE + "premises.5.lhs", term)(proof)
        if good:
            assert read_proof(dump(proof))
        else:
            with pytest.raises(Malformed, match="a list of 3"):
                read_proof(dump(proof))


def test_references() -> None:
    assert str(read_ref("c0:%1", "x")) == "c0:%1"
    for wrong in ("", "c0", "#b:maybe", 7, None, ["s:x"]):
        with pytest.raises(Malformed):
            read_ref(wrong, "x")


# Manifests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path,value,reason",
    [
        ("version", 2, "unknown version"),
        ("version", 0, "unknown version"),
        ("status", "sat", "unknown status"),
        ("verdicts.0.reason", 7, "a text is expected"),
        ("verdicts.0.verdict", "VALID", "unknown verdict"),
        ("members", [], "an object is expected"),
        ("members", {"plan.json": "0" * 64}, "proof.json is missing"),
        ("members", plus({"plan.json": "0" * 63}), "no valid text"),
        ("members", plus({"../x": "0" * 64}), "no valid text"),
        ("members", plus({"obligations/12.smt2": "0" * 64}), "no valid text"),
        ("format", "zip", "format"),
        ("members", plus({"obligations/0001.smt2.gz": "0" * 64}), "no valid text"),
    ],
)
def test_manifests(path: str, value: Any, reason: str) -> None:
    import json

    manifest = json.loads(row_parallel().members()["manifest.json"])
    assert read_manifest(dump(manifest))
    at(path, value)(manifest)
    with pytest.raises(Malformed, match=reason):
        read_manifest(dump(manifest))


def test_reasons_are_cut_and_printable() -> None:
    import json

    manifest = json.loads(row_parallel().members()["manifest.json"])
    at("verdicts.0.reason", "a\x1b[2J" + "b" * 2000)(manifest)
    reason = read_manifest(dump(manifest)).verdicts[0][3]
    assert reason == "a[2J" + "b" * 995, "1000 characters, and no control characters of a terminal"


# Plans ------------------------------------------------------------------------------------------------------

INTEGER = ["n", "i64[4]"]
PLANS: list[tuple[str, Any, str]] = [
    ("version", 2, "unknown version, or provenance"),
    ("provenance", [], "unknown version, or provenance"),
    ("mesh", [["tp", 2], ["tp", 1]], "mesh: bad axes"),
    ("mesh", [["tp", 0]], "mesh: bad axes"),
    ("mesh", [["tp", (1 << 20) + 1]], "mesh: bad axes"),
    ("mesh.0.0", "t0", "is reserved"),
    ("classes.0.box", {"tp": [0, 2], "dp": [0, 1]}, "box: unknown member"),
    ("classes.0.box", {"tp": [-1, 2]}, "bad box"),
    ("classes.0.box", {"tp": [0, 3]}, "bad box"),
    ("classes.0.box", {"tp": [1, 1]}, r"no integer in \[2, "),
    ("classes.0.box", {}, "tp is missing"),
    ("classes", lambda c: [*c, c[0]], "class c0 occurs twice"),
    ("classes", lambda c: [*c, c[0] | {"name": "c1"}], "two rank classes share a rank"),
    ("classes.0.box", {"tp": [0, 1]}, "do not cover the mesh"),
    ("ranges", {"x": [0, 2]}, "unknown member 'x'"),
    ("ranges", {"q": [0, 2]}, "unknown member 'q'"),
    ("groups.g.axes", ["tp", "tp"], "bad axes"),
    ("groups.g.axes", ["pp"], "bad axes"),
    ("groups.g.ranks", [[0], [0, 1]], "no partition"),
    ("groups.g.ranks", [[0, 2]], "no integer in"),
    ("groups.g.ranks", [[0, 1], []], "lists of different lengths"),
    ("groups", [], "an object is expected"),
    ("specification.inputs", plus(["x", "f32[4,6]"]), "an input occurs twice"),
    ("specification.outputs", plus(["y", "x"]), "an output occurs twice"),
    ("specification.outputs", plus(["z", "%9"]), "an output has no value"),
    ("specification.ops", lambda o: o * 2, "assigned twice"),
    ("specification.ops.0.0", "x", "no valid text"),
    ("specification.ops.0.0", "%00", "no valid text"),
    ("specification.ops.0", lambda o: o[:5], "a list of 6"),
    ("specification.ops.0.5", [1, 1, "f"], r"no integer in \[0, 1\)"),
    ("specification.ops.0.5", [0, -1, "f"], "no integer in"),
    ("specification.ops.0.5", [0, 1], "a list of 3"),
    ("classes.0.program.ops.1.4.group", "h", "unknown process group"),
    ("inputs.0.spec", "v", "the specification has no such input v"),
    ("inputs.0.plan", "v", "class c0 has no such input v"),
    ("outputs.0.spec", "x", "the specification has no such output x"),
    ("outputs.0.plan", "x", "class c0 has no such output x"),
    ("inputs.0.coef", "0", "^input relation 0: bad coefficient"),
    ("inputs.0.pieces", [], "no pieces"),
    ("inputs.0.reduce", ["add", []], "reduced axes must be mesh axes"),
    ("inputs.0.reduce", ["add", ["dp"]], "reduced axes must be mesh axes"),
    ("inputs.0.reduce", ["add", ["tp", "tp"]], "reduced axes must be mesh axes"),
    ("inputs.0.reduce", ["mean", ["tp"]], "unknown reduction"),
    ("inputs.0.pieces.0.class", "c9", "unknown class"),
    ("inputs.0.pieces.0.sizes", [4, 3] + [1] * 31, "too many digits"),
    ("inputs.0.pieces.0.sizes", [0, 3], r"no integer in \[1, "),
    ("inputs.0.pieces.0.plan", [{"z0": 1}], "wrong rank"),
    ("inputs.0.pieces.0.spec", [{"z0": 1}], "wrong rank"),
    ("inputs.0.pieces.0.plan", [{"tp": 1}, {"z1": 1}], "unknown symbol"),
    ("inputs.0.pieces.0.sizes", [5, 3], "leaves its tensor"),
    ("inputs.0.pieces.0.plan.1", {"z1": 1, "": 1}, "leaves its tensor"),
    ("inputs.0.pieces.0.spec.0", {"z0": 1, "": -1}, "leaves its tensor"),
    ("inputs.0.pieces.0.spec.1", {"tp": 3, "z1": 1, "": 1}, "leaves its tensor"),
]


@pytest.mark.parametrize("path,value,reason", PLANS, ids=[f"{n} {p}" for n, (p, _, _) in enumerate(PLANS)])
def test_plans(path: str, value: Any, reason: str) -> None:
    plan = copy.deepcopy(row_parallel().plan)
    assert read_plan(dump(plan))
    at(path, value)(plan)
    with pytest.raises(Malformed, match=reason):
        read_plan(dump(plan))


def test_what_plans_may_say() -> None:
    for path, value in (
        ("inputs.0.pieces.0.sizes", [4, 3] + [1] * 30),
        ("groups", {}),
        ("sources", []),
        ("specification.ops.0.5", [0, 0, "f"]),
        ("provenance", {"any": [1, {"k": None}]}),
    ):
        plan = copy.deepcopy(row_parallel().plan)
        if path == "groups":
            del plan["classes"][0]["program"]["ops"][1]
            plan["classes"][0]["program"]["outputs"] = []
            plan["outputs"] = []
        at(path, value)(plan)
        assert read_plan(dump(plan)), path


def one_rank(inputs: list[list[str]], *ops: Any, mesh: Any = (("r", 1),)) -> dict[str, Any]:
    given = program(inputs, list(ops), [])
    box = {a: [0, n] for a, n in mesh}
    return plan_of([list(m) for m in mesh], given, [{"name": "c0", "box": box, "program": given}], [], [])


def test_which_groups_are_factorised() -> None:
    """Their rank lists are the fibres of the axes they name, in the order of these; no axes, no fibres."""
    mesh = (("a", 2), ("b", 2))
    for axes, ranks, good in (
        (["a"], [[0, 2], [1, 3]], True), (["b"], [[0, 1], [2, 3]], True), (["a"], [[0, 1], [2, 3]], False),
        (["a", "b"], [[0, 1, 2, 3]], True), (["b", "a"], [[0, 2, 1, 3]], True),
        (["b", "a"], [[0, 1, 2, 3]], False), (["a"], [[2, 0], [1, 3]], False),
        (["a"], [[1, 3], [0, 2]], True), ([], [[0], [1], [2], [3]], False), ([], [[0, 1, 2, 3]], False),
    ):  # fmt: skip
        plan = one_rank([], mesh=mesh) | {"groups": {"g": {"axes": axes, "ranks": ranks}}}
        assert read_plan(dump(plan)).groups["g"].factorised == good, (axes, ranks)


def test_sorts_of_a_relation_agree() -> None:
    plan = one_rank([["x", "f32[4]"], ["n", "i64[4]"], ["p", "i1[4]"]])
    whole = piece("c0", [4], [z(0)], [z(0)])
    for spec, local, coef, good in (
        ("x", "x", "2", True),
        ("n", "n", "1", True),
        ("n", "n", "2", False),
        ("p", "p", "1", True),
        ("p", "p", "2", False),
        ("x", "n", "1", False),
        ("n", "x", "1", False),
        ("p", "x", "1", False),
    ):
        plan["inputs"] = [relation(spec, local, whole, coef=coef)]
        if good:
            assert read_plan(dump(plan))
        else:
            with pytest.raises(Malformed, match="bad coefficient" if spec == local else "the sorts of"):
                read_plan(dump(plan))


def test_ranges_are_of_integers() -> None:
    plan = one_rank([["x", "f32[4]"], ["n", "i64[4]"]])
    for name, bounds, good in (
        ("n", [0, 1], True),
        ("n", [-5, 3], True),
        ("n", [0, 0], False),
        ("x", [0, 1], False),
        ("n", [0], False),
    ):
        plan["ranges"] = {name: bounds}
        if good:
            assert read_plan(dump(plan)).ranges == {"n": tuple(bounds)}
        else:
            with pytest.raises(Malformed):
                read_plan(dump(plan))


def test_classes_and_ranks_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = program([], [], [])

    def parts(n: int) -> bytes:
        plan = one_rank([], mesh=(("r", n),))
        plan["classes"] = [{"name": f"k{i}", "box": {"r": [i, i + 1]}, "program": empty} for i in range(n)]
        return dump(plan)

    assert read_plan(dump(one_rank([], mesh=(("r", 1 << 20),)))), "a million ranks in one class"
    monkeypatch.setattr(reader, "MAX_CLASSES", 3)
    assert read_plan(parts(3))
    with pytest.raises(Malformed, match="more than 3 classes"):
        read_plan(parts(4))


@pytest.mark.parametrize(
    "change", [("1", "all_gather", {"dim": 1, "seq": 3}), ("4.dim", 1, None), ("4.group", "h", None)]
)
def test_classes_meet_in_one_op(change: tuple[Any, ...]) -> None:
    """The same number in two classes is one collective: op, group, attributes and operand type agree."""
    bundle = shards()
    plan = copy.deepcopy(bundle.plan) | {"outputs": []}
    plan["groups"]["h"] = copy.deepcopy(plan["groups"]["g"])
    programs = [copy.deepcopy(plan["classes"][0]["program"]) for _ in range(2)]
    for own in programs:
        own["ops"], own["outputs"] = own["ops"][:1], []
    plan["classes"] = [plan["classes"][i] | {"program": programs[i]} for i in range(2)]
    assert read_plan(dump(plan))
    if change[0] == "4.dim":
        programs[1]["ops"][0][4]["dim"], programs[1]["ops"][0][3] = 1, "f32[3,4]"
    elif change[0] == "4.group":
        programs[1]["ops"][0][4]["group"] = "h"
    else:
        programs[1]["ops"][0] = op("%0", "all_reduce", ["x"], "f32[3,2]", group="g", kind="add", seq=3)
    with pytest.raises(Malformed, match="rendezvous 3: classes disagree"):
        read_plan(dump(plan))


def test_absent_members_of_a_group() -> None:
    """Three classes of two ranks each; a collective of pairs may leave out a whole class, not half a pair."""
    own = program(
        [["x", "f32[2]"]], [op("%0", "all_reduce", ["x"], "f32[2]", group="g", kind="add", seq=0)], []
    )
    idle = program([["x", "f32[2]"]], [], [])
    for pairs, good in (
        ([[0, 1], [2, 3], [4, 5]], True),
        ([[0, 2], [1, 3], [4, 5]], True),
        ([[0, 4], [1, 5], [2, 3]], False),
        ([[1, 2], [3, 4], [0, 5]], False),
    ):
        plan = plan_of(
            [["a", 3], ["b", 2]],
            program([], [], []),
            [
                {"name": f"c{i}", "box": {"a": [i, i + 1], "b": [0, 2]}, "program": own if i < 2 else idle}
                for i in range(3)
            ],
            [],
            [],
            {"g": {"axes": [], "ranks": pairs}},
        )
        if good:
            assert not read_plan(dump(plan)).groups["g"].factorised
        else:
            with pytest.raises(Malformed, match="a member of a group is absent"):
                read_plan(dump(plan))


@pytest.mark.parametrize(
    "text,good",
    [
        ("f32[]", True),
        ("f32[1]", True),
        ("bf16[2,3]", True),
        ("f32[" + ",".join(["1"] * 16) + "]", True),
        ("f32[" + ",".join(["1"] * 17) + "]", False),
        ("f32[0]", False),
        ("f32[01]", False),
        ("f32[1,]", False),
        ("f32[,1]", False),
        ("f32[-1]", False),
        ("f32[999999999999]", True),
        ("f32[1000000000000]", False),
        ("f32", False),
        ("f33[1]", False),
        ("F32[1]", False),
        ("f32[1] ", False),
        (None, False),
        (7, False),
    ],
)
def test_types(text: Any, good: bool) -> None:
    if good:
        assert str(read_type(text, "x")) == text
    else:
        with pytest.raises(Malformed):
            read_type(text, "x")


# Values -----------------------------------------------------------------------------------------------------


def test_integers_and_intervals() -> None:
    big = 10**18
    assert [strict.integer(v, "x") for v in (-big, big - 1)] == [-big, big - 1]
    assert strict.integer(3, "x", 3, 4) == 3 and strict.interval([2, 3], "x") == (2, 3)
    assert strict.integers([0, (1 << 40) - 1], "x") == (0, (1 << 40) - 1)
    assert strict.natural(0, "x") == 0
    for wrong in (-big - 1, big, True, False, 1.0, "1", None):
        with pytest.raises(Malformed, match="is no integer in"):
            strict.integer(wrong, "x")
    for read, value in (
        (strict.natural, -1),
        (strict.integers, [-1]),
        (strict.integers, [1 << 40]),
        (strict.interval, [2, 2]),
        (strict.interval, [2]),
        (strict.interval, [1, 2, 3]),
    ):
        with pytest.raises(Malformed):
            read(value, "x")


def test_rationals() -> None:
    for good in ("0", "-3", "1/2", "-1/2", "9" * 400, "1/" + "9" * 400):
        assert str(strict.rational(good, "x")) == good
    for wrong in (
        "9" * 401,
        "1/" + "9" * 401,
        "1/0",
        "2/4",
        "1/1",
        "-0",
        "+1",
        "01",
        "1.5",
        "1/-2",
        "",
        1,
        None,
    ):
        with pytest.raises(Malformed):
            strict.rational(wrong, "x")


def test_forms() -> None:
    form = strict.affine({"z1": 2, "z0": -1, "": 3}, "x", {"z0", "z1"})
    assert (form.const, form.terms) == (3, (("z0", -1), ("z1", 2)))
    assert strict.affine(7, "x", ()).const == 7 and strict.affine({"z0": 1}, "x", {"z0"}).const == 0
    for wrong in ({"z0": 0}, {"z0": 1, "": 0}, {"": 1}, {}, {"z2": 1}, {"z0": "1"}, "z0", None, {"z0": True}):
        with pytest.raises(Malformed):
            strict.affine(wrong, "x", {"z0"})


def test_symbols_and_names() -> None:
    for good in ("dp", "a_1", "ta", "z", "zz0"):
        assert strict.symbol(good, "x") == good
    for wrong in (
        "t0",
        "e12",
        "q3",
        "v0",
        "z0",
        "",
        "Dp",
        "0a",
        "and",
        "mul",
        "neg_inf",
        "s",
        "dp\n",
        "sinh",
    ):
        with pytest.raises(Malformed):
            strict.symbol(wrong, "x")
    assert strict.symbol("z0", "x", "teqv") == "z0"
    for good in ("params.w", "_x", "A.b_1"):
        assert strict.name(good, "x") == good
    for wrong in ("%0", "a b", "", ".a", "1a", "a\n"):
        with pytest.raises(Malformed):
            strict.name(wrong, "x")


def test_the_size_of_a_file_is_capped() -> None:
    room = strict.MAX_BYTES - 2
    assert strict.read_json(b'"' + b" " * room + b'"', "x") == " " * room
    with pytest.raises(Malformed, match="x: larger than 67108864 bytes"):
        strict.read_json(b'"' + b" " * room + b'" ', "x")


# Folders ----------------------------------------------------------------------------------------------------


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_parallel().write(tmp_path / "b")
    found = folders.read_bundle(folder)
    assert sorted(found) == [
        "manifest.json",
        "obligations/0001.smt2",
        "obligations/0002.smt2",
        "plan.json",
        "proof.json",
    ]
    assert found["plan.json"] == (folder / "plan.json").read_bytes()
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "link", tmp_path / "file", tmp_path / "none"):
        with pytest.raises(Malformed, match="no folder"):
            folders.read_bundle(wrong)
    total = sum(map(len, found.values()))
    for name, least in (("MAX_FILES", 5), ("MAX_TOTAL", total)):
        with monkeypatch.context() as patch:
            patch.setattr(folders, name, least)
            assert folders.read_bundle(folder) == found
            patch.setattr(folders, name, least - 1)
            with pytest.raises(Malformed, match="the bundle is too large"):
                folders.read_bundle(folder)
    (folder / "obligations" / "more").mkdir()
    with pytest.raises(Malformed, match="an unexpected folder"):
        folders.read_bundle(folder)
    (folder / "obligations" / "more").rmdir()
    for name in ("manifest.json", "plan.json", "proof.json"):
        (folder / name).rename(tmp_path / "aside")
        with pytest.raises(Malformed, match=f"{name} is missing"):
            folders.read_bundle(folder)
        (tmp_path / "aside").rename(folder / name)


def test_a_bundle_without_obligations(tmp_path: Path) -> None:
    folder = row_parallel().write(tmp_path / "b")
    for path in (folder / "obligations").iterdir():
        path.unlink()
    (folder / "obligations").rmdir()
    assert sorted(folders.read_bundle(folder)) == ["manifest.json", "plan.json", "proof.json"]
    (folder / "obligations").write_text("")
    with pytest.raises(Malformed, match="obligations/: cannot be read"):
        folders.read_bundle(folder)


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_parallel().write(tmp_path / "b")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders.os, "scandir", refuse)
    with pytest.raises(Malformed, match=rf"^{folder}: cannot be read \(Permission denied\)"):
        folders.read_bundle(folder)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip
    import os

    (tmp_path / "f").write_bytes(b"12345")
    assert folders.read_file(tmp_path / "f", "f") == folders.read_plan_file(tmp_path / "f") == b"12345"
    (tmp_path / "l").symlink_to(tmp_path / "f")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("l", "l: cannot be read"),
        ("none", "none: cannot be read"),
        ("pipe", "no plain file"),
        (".", "cannot be read|no plain file"),
    ):
        with pytest.raises(Malformed, match=reason):
            folders.read_file(tmp_path / name, name)
    (tmp_path / "p.gz").write_bytes(gzip.compress(b"12345"))
    assert folders.read_plan_file(tmp_path / "p.gz") == b"12345"
    for cap in (5, 4):
        monkeypatch.setattr(folders, "MAX_BYTES", cap)
        if cap == 5:
            assert folders.read_file(tmp_path / "f", "f") == b"12345"
        else:
            with pytest.raises(Malformed, match="f: larger than 4 bytes"):
                folders.read_file(tmp_path / "f", "f")
    monkeypatch.setattr(folders, "MAX_BYTES", 1000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"0" * 1000))
    assert len(folders.read_plan_file(tmp_path / "bomb.gz")) == 1000
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"0" * 1001))
    with pytest.raises(Malformed, match="larger than 1000 bytes"):
        folders.read_plan_file(tmp_path / "bomb.gz")
    for broken in (b"", b"no gzip", gzip.compress(b"12345")[:-9], gzip.compress(b"12345")[:-1]):
        (tmp_path / "broken.gz").write_bytes(broken)
        if broken:
            with pytest.raises(Malformed, match=r"broken.gz: cannot be read"):
                folders.read_plan_file(tmp_path / "broken.gz")


# Type rules -------------------------------------------------------------------------------------------------

DOT = {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [1], "rhs_contract": [0]}
X, N = "f32[4,6]", "i64[4]"
TYPES: list[tuple[str, list[str], str, dict[str, Any], str | None]] = [
    ("constant", [], "i1[2]", {"value": "True"}, "the literal does not fit"),
    ("constant", [], "i1[2]", {"value": 1}, "the literal does not fit"),
    ("constant", [], "i64[]", {"value": "1/2"}, "the literal does not fit"),
    ("constant", [], "i64[]", {"value": "-inf"}, "the literal does not fit"),
    ("constant", [], "f32[]", {"value": 7}, None),
    ("iota", [], "i64[4]", {"dim": 1}, "a bad dimension"),
    ("iota", [], "i1[4]", {"dim": 0}, "a bad dimension"),
    ("iota", [], "i64[]", {"dim": 0}, "a bad dimension"),
    ("compare", ["x", "w"], "i1[4,6]", {"direction": "EQ"}, "types do not fit"),
    ("compare", ["i", "y"], "i1[4]", {"direction": "EQ"}, "types do not fit"),
    ("compare", ["y", "h"], "i1[4]", {"direction": "EQ"}, None),
    ("compare", ["p", "p"], "i1[4]", {"direction": "GE"}, "booleans have no order"),
    ("compare", ["p", "p"], "i1[4]", {"direction": "NE"}, None),
    ("convert", ["y"], N, {}, "no such conversion"),
    ("convert", ["y"], "i1[4]", {}, "no such conversion"),
    ("convert", ["y"], "f64[4]", {}, None),
    ("select", ["i", "y", "y"], "f32[4]", {}, "operands do not fit"),
    ("select", ["p", "y", "i"], "f32[4]", {}, "operands do not fit"),
    ("select", ["p", "x", "x"], X, {}, "operands do not fit"),
    ("select", ["p", "y", "y"], "i64[4]", {}, "result type does not fit"),
    ("broadcast_in_dim", ["y"], "f32[4,2]", {"dims": [0, 1]}, "dims does not fit the operand"),
    ("broadcast_in_dim", ["y"], "f32[4,2]", {"dims": [2]}, "dims names no dimensions"),
    ("broadcast_in_dim", ["x"], "f32[4,6]", {"dims": [0, 0]}, "dims names no dimensions"),
    ("broadcast_in_dim", ["x"], "f32[6,4]", {"dims": [1, 0]}, "dims must increase"),
    ("broadcast_in_dim", ["y"], "f32[4,2]", {"dims": [1]}, "sizes do not fit"),
    ("broadcast_in_dim", ["o"], "f32[4,6]", {"dims": [0, 1]}, None),
    ("reshape", ["x"], "f32[25]", {}, "the size changes"),
    ("transpose", ["x"], "f32[4]", {"perm": [0]}, "no permutation"),
    ("transpose", ["x"], "f32[4,4]", {"perm": [0, 0]}, "perm names no dimensions"),
    ("slice", ["x"], "f32[4]", {"start": [0, 0], "stride": [1, 1]}, "ranks differ"),
    ("slice", ["x"], X, {"start": [0], "stride": [1, 1]}, "ranks differ"),
    ("slice", ["x"], X, {"start": [0, 0], "stride": [1]}, "ranks differ"),
    ("slice", ["y"], "f32[2]", {"start": [-1], "stride": [1]}, "the slice leaves its operand"),
    ("slice", ["y"], "f32[2]", {"start": [1], "stride": [3]}, "the slice leaves its operand"),
    ("slice", ["y"], "f32[2]", {"start": [3], "stride": [1]}, "the slice leaves its operand"),
    ("slice", ["y"], "f32[2]", {"start": [0], "stride": [3]}, None),
    ("slice", ["y"], "f32[1]", {"start": [3], "stride": [9]}, None),
    ("pad", ["y", "v"], "f32[6]", {"low": [1, 0], "high": [1]}, "ranks differ"),
    ("pad", ["y", "v"], "f32[6]", {"low": [1], "high": [1, 0]}, "ranks differ"),
    ("pad", ["y", "y"], "f32[6]", {"low": [1], "high": [1]}, "the padding value must be a scalar"),
    ("pad", ["i", "v"], "i64[6]", {"low": [1], "high": [1]}, "the padding value must be a scalar"),
    ("pad", ["y", "v"], "f32[6]", {"low": [1], "high": [1]}, None),
    ("concatenate", ["y", "y"], "f32[8]", {"dim": 1}, "a bad dimension"),
    ("concatenate", ["y", "i"], "f32[8]", {"dim": 0}, "types do not fit"),
    ("concatenate", ["x", "w"], "f32[4,14]", {"dim": 1}, "types do not fit"),
    ("concatenate", ["x", "w"], "f32[10,6]", {"dim": 0}, "types do not fit"),
    ("concatenate", ["x", "y"], "f32[8,6]", {"dim": 0}, "types do not fit"),
    ("concatenate", ["x", "o"], "f32[5,6]", {"dim": 0}, None),
    ("concatenate", ["y", "v"], "f32[5]", {"dim": 0}, "types do not fit"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_batch": [1]}, "a dimension is named twice"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"rhs_batch": [0]}, "a dimension is named twice"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_batch": [0], "rhs_batch": [1]}, "batch sizes differ"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_batch": [0]}, "batch sizes differ"),
    ("dot_general", ["x", "w"], "f32[6,6]", DOT | {"lhs_contract": [0]}, "contracting sizes differ"),
    ("dot_general", ["x", "w"], "f32[4,6,8]", DOT | {"lhs_contract": []}, "contracting sizes differ"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_contract": [2]}, "lhs_contract names no dimensions"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"rhs_contract": [2]}, "rhs_contract names no dimensions"),
    ("dot_general", ["x", "w"], "i64[4,8]", DOT, "sorts do not fit"),
    ("dot_general", ["x", "n"], "f32[4,8]", DOT, "sorts do not fit"),
    ("dot_general", ["k", "w"], "f32[4,8]", DOT, "sorts do not fit"),
    ("dot_general", ["b", "b"], "i1[4,4]", DOT | {"rhs_contract": [1]}, "sorts do not fit"),
    ("dot_general", ["x", "w"], "f64[4,8]", DOT, None),
    ("reduce", ["x"], "f32[4]", {"dims": [2], "kind": "add"}, "dims names no dimensions"),
    ("reduce", ["x"], "f32[]", {"dims": [1, 0], "kind": "add"}, "dims must increase"),
    ("reduce", ["x"], "f32[4]", {"dims": [1], "kind": "and"}, "unknown kind"),
    ("reduce", ["p"], "i1[]", {"dims": [0], "kind": "max"}, "unknown kind"),
    ("reduce", ["p"], "i1[]", {"dims": [0], "kind": "or"}, None),
    ("reduce", ["x"], "f32[]", {"dims": [0, 1], "kind": "min"}, None),
    ("gather", ["x", "i"], "f32[4,4]", {"axis": 2, "batch_dims": 0}, "a bad axis"),
    ("gather", ["x", "i"], "f32[4]", {"axis": 0, "batch_dims": 1}, "a bad axis"),
    ("gather", ["x", "j"], "f32[4]", {"axis": 1, "batch_dims": 1}, "a bad axis"),
    ("gather", ["x", "y"], "f32[4,6]", {"axis": 0, "batch_dims": 0}, "the index tensor does not fit"),
    ("gather", ["w", "i"], "f32[6]", {"axis": 1, "batch_dims": 1}, "the index tensor does not fit"),
    ("gather", ["x", "i"], "f32[4]", {"axis": 1, "batch_dims": 1}, None),
    ("gather", ["x", "j"], "f32[6]", {"axis": 0, "batch_dims": 0}, None),
    ("add", ["y", "h"], "f32[4]", {}, "operands and result must have one suitable type"),
    ("add", ["p", "p"], "i1[4]", {}, "operands and result must have one suitable type"),
    ("power", ["i", "i"], N, {}, "operands and result must have one suitable type"),
    ("abs", ["i"], N, {}, None),
]


@pytest.mark.parametrize("name,operands,kind,attrs,reason", TYPES, ids=str)
def test_type_rules(
    name: str, operands: list[str], kind: str, attrs: dict[str, Any], reason: str | None
) -> None:
    """StableHLO's: who breaks one is told which."""
    given = [["x", X], ["w", "f32[6,8]"], ["n", "i64[6,8]"], ["y", "f32[4]"], ["h", "f64[4]"], ["i", N],
             ["p", "i1[4]"], ["b", "i1[4,6]"], ["v", "f32[]"], ["o", "f32[1,6]"], ["j", "i64[]"],
             ["k", "i64[4,6]"]]  # fmt: skip
    plan = dump(one_rank(given, op("%0", name, operands, kind, **attrs)))
    if reason is None:
        assert str(read_plan(plan).spec.types["%0"]) == kind
    else:
        with pytest.raises(Malformed, match=f"specification: op %0 {name}: {reason}"):
            read_plan(plan)


COLLECTIVES: list[tuple[str, str, dict[str, Any], str | None]] = [
    ("all_reduce", "f32[4,6]", {"kind": "and"}, "unknown kind"),
    ("all_reduce", "f32[4,6]", {"kind": "min"}, None),
    ("reduce_scatter", "f32[2,6]", {"kind": "max", "dim": 0}, "unknown kind"),
    ("reduce_scatter", "f32[4,3]", {"kind": "add", "dim": 1}, None),
    ("reduce_scatter", "f32[4,6]", {"kind": "add", "dim": 2}, "a bad dimension"),
    ("all_gather", "f32[8,6]", {"dim": 2}, "a bad dimension"),
    ("all_gather", "f32[4,12]", {"dim": 1}, None),
    ("all_to_all", "f32[8,3]", {"split_dim": 2, "concat_dim": 0}, "a bad dimension"),
    ("all_to_all", "f32[8,3]", {"split_dim": 1, "concat_dim": 2}, "a bad dimension"),
    ("all_to_all", "f32[8,3]", {"split_dim": 1, "concat_dim": 0}, None),
    ("all_to_all", "f32[2,12]", {"split_dim": 0, "concat_dim": 1}, None),
    ("all_to_all", "f32[4,6]", {"split_dim": 1, "concat_dim": 1}, None),
    ("all_gather", "f32[8,6]", {"dim": 1}, "result type does not fit"),
]


@pytest.mark.parametrize("name,kind,attrs,reason", COLLECTIVES, ids=str)
def test_type_rules_of_collectives(name: str, kind: str, attrs: dict[str, Any], reason: str | None) -> None:
    plan = one_rank([["x", X]], op("%0", name, ["x"], kind, group="g", seq=0, **attrs), mesh=(("r", 2),))
    plan |= {"groups": {"g": {"axes": ["r"], "ranks": [[0, 1]]}}, "specification": program([], [], [])}
    if reason is None:
        assert read_plan(dump(plan)).rendezvous[0]["c0"].name == name
    else:
        with pytest.raises(Malformed, match=f"class c0: op %0 {name}: {reason}"):
            read_plan(dump(plan))


def test_the_group_divides_the_dimension() -> None:
    for name, kind, attrs in (("reduce_scatter", "f32[1,6]", {"kind": "add", "dim": 0}),
                              ("all_to_all", "f32[1,18]", {"split_dim": 0, "concat_dim": 1})):  # fmt: skip
        plan = one_rank([["x", X]], op("%0", name, ["x"], kind, group="g", seq=0, **attrs), mesh=(("r", 3),))
        plan |= {"groups": {"g": {"axes": ["r"], "ranks": [[0, 1, 2]]}}, "specification": program([], [], [])}
        with pytest.raises(Malformed, match="the group does not divide the dimension"):
            read_plan(dump(plan))


def test_booleans_are_not_reduced_over_ranks() -> None:
    reduce = op("%0", "all_reduce", ["p"], "i1[4]", group="g", seq=0, kind="max")
    plan = one_rank([["p", "i1[4]"]], reduce, mesh=(("r", 2),))
    plan |= {"groups": {"g": {"axes": ["r"], "ranks": [[0, 1]]}}, "specification": program([], [], [])}
    with pytest.raises(Malformed, match="unknown kind"):
        read_plan(dump(plan))


def test_literals_with_rank_dependent_forms() -> None:
    """A form without a symbol is a number like one that is given as a text."""
    constant = op("%0", "constant", [], "i64[]", value={"r": 2, "": 1})
    plan = one_rank([], mesh=(("r", 2),))
    plan["classes"][0]["program"] = program([], [constant, op("%1", "constant", [], "i64[]", value=3)], [])
    ops = read_plan(dump(plan)).classes["c0"].program.ops
    assert str(ops[0].attrs["value"].terms) == "(('r', 2),)" and ops[1].attrs["value"] == 3
