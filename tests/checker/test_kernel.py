"""The kernel on bundles written by hand: accepted as they are, refused for the right reason once changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checker import kernel
from checker.errors import CheckerError, Malformed, Rejected

sys.path.insert(0, str(Path(__file__).parent))
from samples import Bundle, program, row_parallel, shards, z

Change = Callable[[Bundle], Any]
ALL = ("0001", "0002")


def put(path: str, value: Any) -> Change:
    """Assigns `value` at a path such as `proof.facts.0.coef`."""

    def change(b: Bundle) -> None:
        head, *keys = path.split(".")
        at: Any = getattr(b, head)
        for key in keys[:-1]:
            at = at[int(key) if isinstance(at, list) else key]
        at[int(keys[-1]) if isinstance(at, list) else keys[-1]] = value

    return change


def every(*changes: Change) -> Change:
    def change(b: Bundle) -> None:
        for c in changes:
            c(b)

    return change


def first(number: int) -> Change:
    """Moves a premise of the algebra stage to the front."""

    def change(b: Bundle) -> None:
        premises = b.proof["stages"][0]["cases"][0]["premises"]
        premises.insert(0, premises.pop(number))

    return change


def text(name: str, old: str, new: str) -> Change:
    def change(b: Bundle) -> None:
        if old not in b.files[name]:
            raise ValueError(old)
        b.files[name] = b.files[name].replace(old, new, 1)

    return change


@pytest.mark.parametrize("make", [row_parallel, shards])
def test_accepts(make: Callable[[], Bundle]) -> None:
    examined = make().examine()
    assert sorted(examined.files) == list(ALL)
    verified = kernel.conclude(examined, {s: dict.fromkeys(ALL, "unsat") for s in ("a", "b")}, 2, {})
    assert [o.verdict for o in verified.outputs] == ["PROVED"] and not verified.invariant


def test_normaliser_confirms_the_algebra_stage() -> None:
    assert row_parallel().examine().normalised == {"0001"}


CASE = "proof.stages.0.cases.0"
ALGEBRA: list[tuple[str, Change, int, str]] = [
    ("tampered text", text("0001", "(* 2.0 e1)", "(* 1.0 e1)"), 12, "line 23: expected"),
    ("tampered comment", text("0001", "; e2 = c0:x", "; e2 = c0:w"), 12, "expected"),
    ("another status", text("0001", "status unsat", "status sat"), 12, "expected"),
    ("a file too many", lambda b: b.files.update({"0003": b.files["0001"]}), 12, "belongs to no stage"),
    ("file order", put("proof.stages.1.file", "0003"), 12, "is missing"),
    ("weaker goal", put("proof.facts.3.rhs_index.0", 0), 12, "expected"),
    ("declared fact forged", put("proof.facts.0.rhs_index.1", z(1)), 3, "no fact of the input relation"),
    ("declared fact scaled", put("proof.facts.0.coef", "2"), 3, "no fact of the input relation"),
    (
        "declared by another relation",
        put("proof.facts.0.by", {"input": 1}),
        3,
        "no fact of the input relation",
    ),
    ("index out of range", put("proof.facts.2.symbols.0", ["z0", 0, 5]), 3, "may leave its range"),
    ("unknown tensor", put("proof.facts.2.rhs", "s:%7"), 3, "there is no tensor"),
    ("undeclared hypothesis", put("proof.facts.0.by", None), 11, "is used before it is proved"),
    ("circular stages", put(f"{CASE}.premises.2.fact", 3), 11, "is used before it is proved"),
    ("stage dropped", lambda b: b.proof["stages"].pop(), 11, "is never proved"),
    ("one fact proved twice", lambda b: b.proof["stages"].append(b.proof["stages"][0]), 11, "proved already"),
    ("wrong weight", put("proof.stages.0.classes.3", ["k", 4, 1]), 8, "do not tile"),
    ("class of the wrong size", put("proof.stages.0.classes.0", ["i", 5, 1]), 8, "do not tile"),
    ("tree missing", lambda b: b.proof["stages"][0]["trees"].pop(), 8, "has no trees"),
    (
        "tree twice",
        lambda b: b.proof["stages"][0]["trees"].append(b.proof["stages"][0]["trees"][0]),
        8,
        "one list of trees",
    ),
    ("factors swapped", put("proof.stages.0.trees.5.1.1", [[0, ["k", "t"]]]), 4, "no position of a piece"),
    (
        "operands cut differently",
        every(put("proof.stages.0.trees.5.1.1", [[0, ["k", "t"]]]), first(4)),
        8,
        "cut differently",
    ),
    ("representative out of range", put(f"{CASE}.premises.1.e.1.1", [0, 1]), 8, "has no element"),
    ("hypothesis aimed elsewhere", put(f"{CASE}.premises.2.at.2", 0), 4, "no position of a piece"),
    ("hypothesis out of range", put(f"{CASE}.premises.2.at.2", {"k.0": 1, "": 1}), 4, "leaves the range"),
    (
        "defined by def and hyp",
        lambda b: b.proof["stages"][0]["cases"][0]["premises"].append(
            {"k": "hyp", "fact": 0, "at": [{"t.0": 1}, {"i.0": 1}, {"k.0": 1}], "defines": "rhs"}
        ),
        4,
        "circular",
    ),
    ("def of an input", put(f"{CASE}.premises.1.e", ["s:x", [[0, 0], [0, 0, 0]]]), 5, "is an input"),
    ("forged law", put(f"{CASE}.premises.5.rhs.1", "7"), 7, "no instance of the ring law"),
    ("law of another schema", put(f"{CASE}.premises.5.schema", "lattice"), 7, "no instance of the lattice"),
    ("no case", put("proof.stages.0.cases", []), 10, "coincidence patterns"),
    ("goal on another class", put("proof.stages.0.goal_at.0", ["j"]), 10, "do not make up its range"),
    ("reduced tensor of part of the mesh", put("proof.facts.2.lhs.axes", []), 14, "mesh order"),
    (
        "permuted group",
        put("plan.groups.g", {"axes": ["tp"], "ranks": [[1, 0]]}),
        13,
        "no mesh factorisation",
    ),
    ("verdict of another relation", put("verdicts.0.spec", "z"), 16, "names another relation"),
]


@pytest.mark.parametrize("name,change,number,reason", ALGEBRA, ids=[a[0] for a in ALGEBRA])
def test_rejects(name: str, change: Change, number: int, reason: str) -> None:
    refused(row_parallel(), change, number, reason)


def refused(bundle: Bundle, change: Change, number: int, reason: str) -> None:
    change(bundle)
    with pytest.raises(Rejected) as caught:
        kernel.conclude(bundle.examine(), {"a": dict.fromkeys(ALL, "unsat")}, 1, {})
    assert (caught.value.number, reason in caught.value.detail) == (number, True), str(caught.value)


STAGE = "proof.stages.0"
LAYOUT: list[tuple[str, Change, int, str]] = [
    (
        "fresh symbol with two meanings",
        put(f"{STAGE}.premises.12.arg", [{"q0": 1}, {"q5": 1}]),
        6,
        "introduced twice",
    ),
    (
        "fresh symbol of the wrong range",
        put(f"{STAGE}.symbols.0", ["q0", 0, 7]),
        6,
        "neither resolved nor fresh",
    ),
    ("part that does not exist", put(f"{STAGE}.premises.4.part", 1), 6, "has no part"),
    (
        "symbol that depends on itself",
        put(f"{STAGE}.premises.6.at", [{"dp": 1}, {"q3": 1}, {"q1": 1}]),
        6,
        "depends on itself",
    ),
    ("operand index missing", put(f"{STAGE}.premises.5.arg", None), 5, "missing or out of place"),
    ("axis of the gather changed", put(f"{STAGE}.premises.7.arg.2", {"q5": 1}), 6, "not regrouped changes"),
    ("too few coordinates", put(f"{STAGE}.premises.5.at", [z(0)]), 5, "coordinates"),
    ("hypothesis with two facts", put(f"{STAGE}.premises.8.facts", [0, 1]), 4, "has one fact"),
    ("lifted along no symbol", put(f"{STAGE}.premises.8.lift", ["zz"]), 4, "mesh axes"),
    (
        "lifted half",
        put(
            f"{STAGE}.premises.8",
            {"k": "hyp", "facts": [0], "at": [z(0), {"q1": 1}], "lift": ["dp"], "kind": "add"},
        ),
        4,
        "otherwise than as its coordinate",
    ),
    (
        "undeclared range",
        put(f"{STAGE}.premises.8", {"k": "range", "input": "x", "at": [0, 0]}),
        6,
        "no range",
    ),
    ("bound of a foreign symbol", put(f"{STAGE}.premises.0.sym", "q9"), 6, "has no range"),
    (
        "wrong offset in the relation",
        every(
            put("plan.inputs.0.pieces.1.spec.0", {"dp": 2, "z0": 1}),
            put("proof.facts.1.rhs_index.0", {"dp": 2, "z0": 1}),
        ),
        12,
        "expected",
    ),
    ("group in another order", put("plan.groups.g.ranks", [[1, 0]]), 13, "no mesh factorisation"),
    (
        "an element given twice",
        put("plan.inputs.0.pieces.1.class", "c0"),
        15,
        "two pieces may give one element",
    ),
    ("a digit that places nothing", put("plan.inputs.0.pieces.0.plan.0", 0), 15, "may give an element twice"),
    ("a rank left out", lambda b: b.plan["outputs"][0]["pieces"].pop(), 16, "in class c1 are not covered"),
    ("half a tensor", put("plan.outputs.0.pieces.0.sizes", [6]), 16, "in class c0 are not covered"),
    (
        "output without relation",
        lambda b: b.plan["specification"]["outputs"].append(["x", "x"]),
        16,
        "specification's output x are not covered",
    ),
    (
        "specification half covered",
        every(*(put(f"plan.outputs.0.pieces.{r}.spec.0", 0) for r in range(2))),
        16,
        "specification's output y are not covered",
    ),
    ("claim that no stage proves", put("plan.outputs.0.coef", "2"), 16, "are goals of no stage"),
    ("refuted without witness", put("verdicts.0.verdict", "REFUTED"), 18, "no witness"),
]


@pytest.mark.parametrize("name,change,number,reason", LAYOUT, ids=[a[0] for a in LAYOUT])
def test_rejects_layout(name: str, change: Change, number: int, reason: str) -> None:
    refused(shards(), change, number, reason)


def test_unlisted_and_missing_members() -> None:
    from checker.reading.plan import read_plan
    from checker.reading.proof import read_manifest, read_proof

    data = row_parallel().members()
    parsed = (
        read_manifest(data),
        read_plan(data["plan.json"]),
        read_proof(data["proof.json"]),
    )
    for change, reason in ((data | {"extra": b""}, "not listed"), (data | {"plan.json": b""}, "not what")):
        with pytest.raises(Rejected, match=f"obligation 1 .*{reason}"):
            kernel.examine(*parsed, change)


@pytest.mark.parametrize(
    "answers,verdict",
    [
        ({"a": "unsat", "b": "unsat"}, "PROVED"),
        ({"a": "unsat"}, "UNKNOWN"),
        ({"a": "unsat", "b": "sat"}, "UNKNOWN"),
        ({"a": "unsat", "b": "unsat", "c": "unknown"}, "UNKNOWN"),
        ({"a": "unsat", "b": "crash"}, "UNKNOWN"),
        ({}, "UNKNOWN"),
    ],
)
def test_answers(answers: dict[str, str], verdict: str) -> None:
    """A stage rests on the stages before it: here only the first file's answers differ."""
    given = {s: {"0001": a, "0002": "unsat"} for s, a in answers.items()}
    verified = kernel.conclude(row_parallel().examine(), given, 2, {})
    assert verified.outputs[0].verdict == verdict
    assert verdict == "PROVED" or "obligations/000" in verified.outputs[0].reason
    assert bool(verified.invariant) == (verdict != "PROVED")


def test_only_the_kernel_builds_a_verdict() -> None:
    with pytest.raises(TypeError):
        kernel.Verified((), (), object())


def infinite(use: str, **attrs: Any) -> Change:
    kind = "f32[12]" if use != "reduce" else "f32[]"

    def change(b: Bundle) -> None:
        b.plan["specification"]["ops"] += [
            ["%1", "constant", [], "f32[12]", {"value": "-inf"}, None],
            ["%2", use, ["%1"] if use in ("reduce", "exponential") else ["%0", "%1"], kind, attrs, None],
        ]

    return change


@pytest.mark.parametrize(
    "use,attrs,allowed",
    [
        ("exponential", {}, True),
        ("maximum", {}, True),
        ("subtract", {}, True),
        ("multiply", {}, False),
        ("divide", {}, False),
        ("reduce", {"dims": [0], "kind": "add"}, False),
    ],
)
def test_infinite_literals(use: str, attrs: dict[str, Any], allowed: bool) -> None:
    if allowed:
        bundle = shards()
        infinite(use, **attrs)(bundle)
        assert not bundle.examine().assumptions
    else:
        refused(shards(), infinite(use, **attrs), 2, "outside the model")


def test_a_row_that_constants_mask_is_no_assumption() -> None:
    """An assumption that no run fulfils would make every claim true; a proof of it is no proof."""
    bundle = shards()
    infinite("reduce", dims=[0], kind="max")(bundle)
    examined, answers = bundle.examine(), {s: dict.fromkeys(ALL, "unsat") for s in "ab"}
    with pytest.raises(Rejected, match="constants mask a whole row that %2"):
        kernel.conclude(examined, answers, 2, {})
    refuted = kernel.conclude(examined, {s: dict.fromkeys(ALL, "sat") for s in "ab"}, 2, {0: "a witness"})
    assert refuted.outputs[0].verdict == "REFUTED", "a witness needs no assumption"


def test_state_under_another_relation_is_one_step() -> None:
    """x is cut over two ranks when it enters and whole when it leaves: proved, but no invariant."""
    bundle = shards()
    for owner in (bundle.plan["specification"], bundle.plan["classes"][0]["program"]):  # which c1 shares
        owner["inputs"].append(["y", "f32[12]"])
    bundle.plan["inputs"].append(bundle.plan["outputs"][0] | {"coef": "2"})
    verified = kernel.conclude(bundle.examine(), {s: dict.fromkeys(ALL, "unsat") for s in "ab"}, 2, {})
    assert verified.outputs[0].verdict == "PROVED"
    assert "leaves the step under another relation" in verified.invariant[0]


MALFORMED: list[tuple[str, Change, str]] = [
    ("unknown member", put("proof.stages.0.extra", 1), "unknown member"),
    ("float", put("proof.facts.0.lhs_index.0", 0.5), "floating-point"),
    ("huge number", put("proof.facts.0.lhs_index.0", 10**30), "too many digits"),
    ("rational not lowest", put("proof.facts.0.coef", "2/4"), "lowest terms"),
    ("reserved symbol", put("proof.facts.2.symbols.0.0", "fexp"), "reserved"),
    ("tensor name as symbol", put("proof.facts.2.symbols.0.0", "t0"), "reserved"),
    ("title with a bar", put("proof.stages.0.title", "a|b"), "title"),
    ("title with a line break", put("proof.stages.0.title", "a\nb"), "no valid text"),
    ("path as file", put("proof.stages.0.cases.0.file", "../1"), "no valid text"),
    (
        "more representatives than elements",
        put("proof.stages.0.classes.0", ["i", 4, 5]),
        "more representatives than",
    ),
    ("boolean as number", put("proof.stages.0.goal", True), "no integer"),
    ("dimension zero", put("plan.specification.inputs.0.1", "f32[0,6]"), "bad dimension"),
    ("box beyond the mesh", put("plan.classes.0.box.tp", [0, 3]), "bad box"),
    ("ranks left out", put("plan.classes.0.box.tp", [0, 1]), "do not cover the mesh"),
    ("unknown op", put("plan.specification.ops.0.1", "sort"), "unknown op"),
    ("wrong result type", put("plan.specification.ops.0.3", "f32[8,4]"), "result type does not fit"),
    ("used before defined", put("plan.specification.ops.0.2.0", "%5"), "not defined before"),
    ("zero coefficient", put("plan.outputs.0.coef", "0"), "bad coefficient"),
    ("class called s", put("plan.classes.0.name", "s"), "reserved"),
    ("program as list", put("plan.specification", []), "an object is expected"),
    ("relation to nothing", put("plan.inputs.0.spec", "v"), "no such input"),
    ("piece out of range", put("plan.inputs.0.pieces.0.sizes", [5, 3]), "leaves its tensor"),
]


@pytest.mark.parametrize("name,change,reason", MALFORMED, ids=[m[0] for m in MALFORMED])
def test_malformed(name: str, change: Change, reason: str) -> None:
    bundle = row_parallel()
    change(bundle)
    with pytest.raises(Malformed, match=reason):
        bundle.examine()


def test_duplicate_keys_and_depth() -> None:
    from checker.reading.plan import read_plan

    for data, reason in (
        (b'{"a":1,"a":2}', "duplicate"),
        (b"[" * 100_000, "deeply"),
        (b"\xff", "no JSON"),
        (b'{"a":NaN}', "floating-point"),
        (b"{", "no JSON"),
    ):
        with pytest.raises(CheckerError, match=reason):
            read_plan(data)


def test_rendezvous() -> None:
    """A class that leaves out a collective of its group is no plan."""
    bundle = shards()
    bundle.plan["classes"][1]["program"] = program([["x", "f32[3,2]"]], [], [["y", "x"]])
    with pytest.raises(Malformed, match="absent"):
        bundle.examine()
