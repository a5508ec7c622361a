"""Plan files: round trips, deterministic bytes, and every way a file can be malformed, with its reason."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates import canonical
from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.canonical import canonical_bytes, digest, read_bytes
from certificates.errors import FormatError
from certificates.plan.placements import Shard
from certificates.plan.plan import Mesh, Plan, states
from certificates.plan.reading import load, loads
from certificates.plan.writing import dump, dumps

Document = dict[str, Any]


# --- round trips ---


def test_plans_round_trip(any_plan: Plan) -> None:
    data = dumps(any_plan)
    assert loads(data) == any_plan
    assert dumps(loads(data)) == data


def test_bytes_do_not_depend_on_the_order_of_mappings(mlp: Plan) -> None:
    turned = Plan(
        **{f: getattr(mlp, f) for f in ("name", "mesh", "sources", "specification", "classes")},
        groups=dict(reversed(list(mlp.groups.items()))),
        inputs=mlp.inputs,
        outputs=mlp.outputs,
        given=mlp.given,
    )
    assert dumps(turned) == dumps(mlp)
    assert dumps(mlp).endswith(b"}\n") and b": " not in dumps(mlp)


def test_gzip_is_deterministic_and_has_the_digest_of_the_document(mlp: Plan, tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz", "c.json"):
        dump(mlp, tmp_path / name)
    a, b, c = ((tmp_path / n).read_bytes() for n in ("a.json.gz", "b.json.gz", "c.json"))
    assert a == b and gzip.decompress(a) == c == dumps(mlp)
    assert load(tmp_path / "a.json.gz") == load(tmp_path / "c.json") == mlp
    assert digest(read_bytes(tmp_path / "a.json.gz")) == digest(c)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json.gz", "b.json.gz", "c.json"]


def test_states_are_inputs_that_are_not_declared_otherwise(mlp: Plan) -> None:
    assert list(states(mlp)) == ["params.w1", "params.w2"]
    assert list(states(replace(mlp, given=("batch.t",), constants=("hyper.lr",)))) == [
        *("batch.x", "params.w1", "params.w2")
    ]


STEPS: list[Callable[[ProgramBuilder, Value], Value]] = [
    lambda b, x: x + x,
    lambda b, x: x * 3,
    lambda b, x: b.tanh(x) / 7,
    lambda b, x: x.T,
    lambda b, x: x.reshape(x.type.size, 1),
    lambda b, x: x.reshape(1, x.type.size),
    lambda b, x: x @ x.T,
    lambda b, x: b.pad(x, (1, 0), (0, 2), -1),
    lambda b, x: x[::2],
    lambda b, x: b.concatenate([x, x], 0),
    lambda b, x: x.sum(1).like(x, 0),
    lambda b, x: b.select(b.compare(x, 0, "GT"), x, -x),
    lambda b, x: b.convert(b.convert(x, "bf16"), "f32"),
]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=6),
    rows=st.integers(1, 4),
    name=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8),
    notes=st.dictionaries(st.text(max_size=4), st.text(max_size=4) | st.lists(st.text(max_size=3))),
    mesh=st.dictionaries(st.sampled_from(["dp", "tp", "cp"]), st.integers(1, 3), max_size=3),
)
def test_random_plans_round_trip(
    steps: list[Any], rows: int, name: str, notes: dict[str, Any], mesh: dict[str, int]
) -> None:
    builders = ProgramBuilder(), ProgramBuilder(mesh)
    for b in builders:
        x = b.input("x", f"f32[{rows},3]")
        for step in steps:
            x = step(b, x)
        b.output("y", x)
    plan = build_plan(
        name=name,
        mesh=mesh,
        specification=builders[0].build(),
        classes=builders[1].build(),
        inputs={"x": {}},
        outputs={"y": {}},
        provenance=notes,
    )
    assert loads(dumps(plan)) == plan
    assert dumps(loads(dumps(plan))) == dumps(plan)


def test_mesh_ranks_are_row_major() -> None:
    mesh = Mesh({"dp": 2, "tp": 3})
    assert [mesh.coordinates(r) for r in (0, 1, 5)] == [
        *({"dp": 0, "tp": 0}, {"dp": 0, "tp": 1}, {"dp": 1, "tp": 2}),
    ]
    assert all(mesh.rank(mesh.coordinates(r)) == r for r in range(mesh.ranks))
    assert mesh.fibres(("dp",)) == ((0, 3), (1, 4), (2, 5))
    assert mesh.fibres(("tp", "dp")) == ((0, 3, 1, 4, 2, 5),)


# --- unreadable files ---


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a JSON document"),
        (b"\x00\x01", "not a JSON document"),
        (b"\xff\xfe\xff", "not a JSON document"),
        (b'{"format": "trainverify-plan"', "not a JSON document"),
        (b"[" * 200_000, "not a JSON document"),
        (b'{"a":' * 100_000, "not a JSON document"),
        (b"1" * 5000, "integer 1+... has more than 18 digits"),
        (b"[-1234567890123456789]", "has more than 18 digits"),
        (b"1.5", "floating-point number 1.5"),
        (b"[1e400]", "floating-point number 1e400"),
        (b"[NaN]", "floating-point number NaN"),
        (b"[-Infinity]", "floating-point number -Infinity"),
        (b'{"a":1,"a":2}', "repeats a key"),
        (b"[]", "a plan must be an object with exactly the keys classes, format"),
        (b"{}", "a plan must be an object with exactly the keys"),
    ],
    ids=range(15),
)
def test_unreadable_documents(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        loads(data)


def test_damaged_files(mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json.gz"
    dump(mlp, path)
    good = path.read_bytes()
    for data, reason in (
        (good[:-10], "is a truncated gzip file"),
        (good[:30], "is a truncated gzip file"),
        (good[:20] + b"\x00" * 20 + good[40:], "is a damaged gzip file"),
        (good[:-8] + b"\x00" * 8, "is a damaged gzip file"),
        (good + b"more", "has data after the end"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=reason):
            load(path)
    with pytest.raises(FormatError, match=r"cannot read .*: No such file or directory"):
        load(tmp_path / "absent")
    with pytest.raises(FormatError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)
    monkeypatch.setattr(canonical, "MAX_BYTES", 1000)
    path.write_bytes(good)
    with pytest.raises(FormatError, match=r"unpacks to more than 1000 bytes|is over 1000 bytes"):
        load(path)
    path.write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(FormatError, match="unpacks to more than 1000 bytes"):
        load(path)
    path.write_bytes(b" " * 1001)
    with pytest.raises(FormatError, match="is over 1000 bytes"):
        load(path)


# --- malformed documents: one edit of a good one, and the reason ---


def edit(path: str, value: object) -> Callable[[Document], None]:
    """Set the member at a dotted path (``classes.0.box``); ``value`` may be a function of the old one."""

    def apply(document: Document) -> None:
        *parents, last = path.split(".")
        node: Any = document
        for key in parents:
            node = node[int(key) if isinstance(node, list) else key]
        key = int(last) if isinstance(node, list) else last
        node[key] = value(node[key]) if callable(value) else value

    return apply


def drop(path: str) -> Callable[[Document], None]:
    def apply(document: Document) -> None:
        *parents, last = path.split(".")
        node: Any = document
        for key in parents:
            node = node[int(key) if isinstance(node, list) else key]
        del node[int(last) if isinstance(node, list) else last]

    return apply


def split_in_two(document: Document) -> None:
    """Two rank classes with equal programs, dp 0 and dp 1."""
    (cls,) = document["classes"]
    document["classes"] = [
        {**copy.deepcopy(cls), "name": f"c{k}", "box": {**cls["box"], "dp": [k, k + 1]}} for k in range(2)
    ]
    for relation in document["inputs"] + document["outputs"]:
        pieces = relation["pieces"]
        relation["pieces"] = [{**p, "class": f"c{k}"} for p in pieces for k in range(2)]


def collective(document: Document, cls: int, seq: int) -> list[Any]:
    ops = document["classes"][cls]["program"]["ops"]
    return next(op for op in ops if op[4].get("seq") == seq)


def without_rendezvous(document: Document) -> None:
    """Class c1 computes alone where c0 still waits for it."""
    split_in_two(document)
    op = collective(document, 1, 1)
    op[1], op[2], op[4] = "add", op[2] * 2, {}


def other_collective(document: Document) -> None:
    split_in_two(document)
    collective(document, 1, 1)[4]["kind"] = "max"


def twice(document: Document) -> None:
    collective(document, 0, 2)[4]["seq"] = 1


def nested(document: Document) -> None:
    """Valid JSON, but far deeper than a plan."""
    inner: Any = []
    for _ in range(500):
        inner = [inner]
    document["mesh"] = inner


MALFORMED: list[tuple[Callable[[Document], None], str]] = [
    (edit("format", "other"), "not a trainverify-plan document of version 1"),
    (edit("version", 2), "not a trainverify-plan document of version 1"),
    (drop("ranges"), "a plan must be an object with exactly the keys"),
    (edit("extra", 1), "a plan must be an object with exactly the keys"),
    (edit("name", 3), "name must be a string"),
    (nested, r"mesh must be a list of \[name, size\]"),
    # mesh
    (edit("mesh", {}), "mesh must be a list"),
    (edit("mesh.0", ["dp"]), r"mesh must be a list of \[name, size\]"),
    (edit("mesh.1.0", "dp"), r"mesh must be a list of \[name, size\] with distinct names"),
    (edit("mesh.0.1", True), "sizes of the mesh must hold non-negative integers"),
    (edit("mesh.0.1", -2), "sizes of the mesh must hold non-negative integers"),
    (edit("mesh.0.1", 0), "mesh axis 'dp' of size 0"),
    (edit("mesh.0.0", "z0"), "mesh axis 'z0': needs a lower-case identifier that is not reserved"),
    (edit("mesh.0.0", "mul"), "mesh axis 'mul': needs a lower-case identifier that is not reserved"),
    (edit("mesh.0.0", "d p"), "mesh axis 'd p': needs a lower-case identifier"),
    (edit("mesh.0.0", "dé"), r"mesh axis 'd\\xe9' is not at most 200 printable ASCII characters"),
    (edit("name", "a\nb"), r"name or source 'a\\nb' is not at most 200 printable"),
    (edit("sources", ["x" * 201]), "name or source 'x+' is not at most 200 printable"),
    (edit("classes.0.program.ops.0.5.2", "\x1b"), r"function of %0 '\\x1b' is not at most 200 printable"),
    (edit("mesh.0.1", 1 << 40), "ranks is over the limit of 131072"),
    # groups
    (edit("groups", []), "groups must be an object"),
    (edit("groups.dp", {"axes": ["dp"]}), "group dp must be an object with exactly the keys axes, ranks"),
    (edit("groups.dp.ranks", [[0, 2]]), "group dp is not a partition of the 4 ranks"),
    (edit("groups.dp.ranks", [[0, 2], [1, 2]]), "group dp is not a partition"),
    (edit("groups.dp.ranks", [[0, 2, 1], [3]]), "group dp must hold rank lists of one positive length"),
    (edit("groups.dp.ranks", []), "group dp must hold rank lists of one positive length"),
    (edit("groups.dp.ranks.0.0", -1), "ranks of dp must hold non-negative integers"),
    (edit("groups.dp.axes", ["pp"]), r"group dp claims axes \('pp',\) that the mesh does not have"),
    (edit("groups.dp.axes", ["dp", "dp"]), "group dp claims axes"),
    (edit("groups.dp.axes", [1]), "axes of dp must be a list of strings"),
    # classes
    (edit("classes", []), "rank classes cover 0 of 4 ranks"),
    (edit("classes", {}), "classes must be a list"),
    (edit("classes.0", lambda c: {**c, "rank": 0}), "a rank class must be an object with exactly the keys"),
    (edit("classes.0.name", "s"), "rank class 's': needs a lower-case identifier that is not reserved"),
    (edit("classes.0.name", "c 0"), "rank class 'c 0': needs a lower-case identifier"),
    (edit("classes", lambda c: c * 2), "rank classes need distinct names"),
    (edit("classes", lambda c: [*c, {**c[0], "name": "c1"}]), "rank classes c0 and c1 overlap"),
    (edit("classes.0.box.dp", [0, 1]), "rank classes cover 2 of 4 ranks"),
    (edit("classes.0.box.dp", [0, 3]), "box of class c0 leaves the mesh"),
    (edit("classes.0.box.dp", [1, 1]), "box of c0 must be a half-open range"),
    (edit("classes.0.box.dp", [0]), "box of c0 must be a half-open range"),
    (edit("classes.0.box", {"dp": [0, 2]}), "box of class c0 must name every mesh axis"),
    # programs
    (edit("specification", []), "specification must be an object with exactly the keys inputs, ops, outputs"),
    (edit("specification.inputs.0", ["batch.x"]), "inputs of specification must hold pairs"),
    (edit("specification.inputs.1.0", "batch.x"), "inputs of specification must hold pairs with distinct"),
    (edit("specification.ops.3.3", "f32[6,4]"), "subtract %3 : "),
    (edit("classes.0.program.ops.1.3", "f32[3,5]"), "class c0: tanh %1 : "),
    (edit("classes.0.program.ops.0.5.0", 7), "location of %0 names source 7, which is not listed"),
    (edit("sources", []), "location of %0 names source 0, which is not listed"),
    (edit("specification.outputs.0.1", "%99"), "output loss names the unknown value %99"),
    # rendezvous
    (edit("classes.0.program.ops.3.4.group", "pp"), "all_reduce %3 of class c0 names no group of the plan"),
    (twice, "class c0 meets rendezvous 1 twice"),
    (without_rendezvous, r"rendezvous 1 \(all_reduce\): class c1 does not take part"),
    (other_collective, "rendezvous 1: classes c0 and c1 run different collectives"),
    # relations
    (edit("inputs", {}), "inputs must be a list"),
    (edit("inputs.0", {"spec": "batch.x"}), "a relation must be an object with exactly the keys"),
    (edit("inputs.0.spec", "nope"), "input relation nope ~ batch.x: nope is not an input"),
    (edit("inputs.0.plan", "nope"), "input relation batch.x ~ nope: nope is not an input"),
    (edit("outputs.0.plan", "nope"), "output relation loss ~ nope: nope is not an output"),
    (edit("inputs.0.coef", "0"), "coefficient 0 relates nothing"),
    (edit("inputs.0.coef", 1), "coef of a relation must be a string"),
    (edit("inputs.0.coef", "0.5"), "'0.5' is not a rational number"),
    (edit("inputs.0.pieces", []), "has no pieces"),
    (edit("inputs.0.pieces.0", {}), "a piece must be an object with exactly the keys"),
    (edit("inputs.0.pieces.0.class", "c9"), "names the unknown class c9"),
    (edit("inputs.0.pieces.0.sizes", [3, 0]), "digit sizes must be positive"),
    (edit("inputs.0.pieces.0.sizes", [4, 4]), "plan index z0 leaves dimension 0 of size 3"),
    (edit("inputs.0.pieces.0.sizes", [1 << 63, 4]), "integer 9223372036854775808... has more than 18 digits"),
    (edit("inputs.0.pieces.0.plan.0", {"": -1, "z0": 1}), r"plan index z0 - 1 leaves dimension 0 of size 3"),
    (edit("inputs.0.pieces.0.plan.0", {"dp": 1}), "plan index dp mentions a symbol outside"),
    (edit("inputs.0.pieces.0.spec.0", {"z9": 1}), "spec index z9 mentions a symbol outside"),
    (edit("inputs.0.pieces.0.spec.0", {"z0": 1, "dp": 4}), r"spec index 4\*dp \+ z0 leaves dimension 0"),
    (edit("inputs.0.pieces.0.spec", lambda s: s[:1]), "spec side needs 2 index forms, has 1"),
    (edit("inputs.0.pieces.0.spec.0", True), "an affine form is an integer or an object, not a boolean"),
    (edit("inputs.0.reduce", ["mul", ["tp"]]), r"reduce of relation batch.x must be null or"),
    (edit("inputs.0.reduce", ["add", []]), "which are not distinct mesh axes"),
    (edit("inputs.0.reduce", ["add", ["pp"]]), "which are not distinct mesh axes"),
    (edit("inputs.0.reduce", ["add", ["dp"]]), r"spec index 3\*dp \+ z0 mentions a symbol outside"),
    (edit("inputs.0.pieces", lambda p: p * 2), "batch.x on c0: pieces of batch.x and batch.x may determine"),
    (edit("inputs.0.pieces.0.plan.0", 0), "batch.x ~ batch.x on c0: different z0 may meet"),
    # ranges and provenance
    (edit("ranges", {"batch.x": [0, 2]}), "range of batch.x, which is not an integer input"),
    (edit("ranges", {"nope": [0, 2]}), "range of nope, which is not an integer input"),
    (edit("inputs.0.reduce", ["add", ["tp", "dp"]]), "over axes in mesh order"),
    (edit("ranges", {"batch.x": [2, 2]}), "range of batch.x must be a half-open range"),
    (edit("provenance", []), "provenance must be an object"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_documents(mlp: Plan, change: Callable[[Document], None], reason: str) -> None:
    document = json.loads(dumps(mlp))
    change(document)
    with pytest.raises(FormatError, match=reason):
        loads(canonical_bytes(document))


@pytest.mark.parametrize(
    ("seq_op", "reason"),
    [
        ({"3": "f32[11,2]"}, r"class full: all_gather %2: result shape must be \[12, 2\], not \[11, 2\]"),
        ({"4": {"group": "dp", "dim": 2, "seq": 0}}, "all_gather %2: names a dimension that its operand"),
        ({"1": "reduce_scatter", "4": {"group": "dp", "kind": "add", "dim": 0, "seq": 0}}, "does not divide"),
    ],
)
def test_collectives_of_the_wrong_shape(uneven: Plan, seq_op: dict[str, Any], reason: str) -> None:
    document = json.loads(dumps(uneven))
    for position, value in seq_op.items():
        document["classes"][0]["program"]["ops"][2][int(position)] = value
    with pytest.raises(FormatError, match=reason):
        loads(canonical_bytes(document))


def test_a_partial_value_needs_every_class_of_its_fibre(mlp: Plan) -> None:
    document = json.loads(dumps(mlp))
    split_in_two(document)
    partial = next(r for r in document["outputs"] if r["reduce"])
    partial["pieces"] = partial["pieces"][:1]
    with pytest.raises(FormatError, match=r"grads.params.w1: piece on c0 reaches 1 of 2 ranks along dp"):
        loads(canonical_bytes(document))
    partial["pieces"] *= 2
    with pytest.raises(FormatError, match="piece on c0, c0 reaches 2 of 2 ranks"):
        loads(canonical_bytes(document))


def test_the_edit_that_splits_the_class_is_itself_well_formed(mlp: Plan) -> None:
    document = json.loads(dumps(mlp))
    split_in_two(document)
    assert len(loads(canonical_bytes(document)).classes) == 2


def test_a_class_outside_the_instance_need_not_take_part() -> None:
    """Classes by dp; a collective over tp joins ranks of one class only, so the other may lack it."""
    mesh = {"dp": 2, "tp": 2}
    specification = ProgramBuilder()
    specification.output("y", specification.input("x", "f32[]"))
    classes = {}
    for k in range(2):
        b = ProgramBuilder(mesh, box={"dp": (k, k + 1)})
        x = b.input("x", "f32[]")
        b.output("y", b.all_reduce(x, "tp") if k else x)
        classes[f"c{k}"] = ({"dp": (k, k + 1)}, b.build())
    plan = build_plan(
        name="own", mesh=mesh, specification=specification.build(), classes=classes, inputs=[], outputs=[]
    )
    assert set(plan.rendezvous(0)) == {"c1"} and plan.rendezvous(1) == {}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_small_corruption_escapes_as_another_exception(data: st.DataObject) -> None:
    """Replace any one node of a plan by junk: it still loads, or it is a FormatError."""
    document = json.loads(CORRUPTED)
    node: Any = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(node[key], dict | list) and node[key] and data.draw(st.integers(0, 4)):
            node = node[key]
            continue
        node[key] = data.draw(st.sampled_from(JUNK))
        break
    try:
        loads(canonical_bytes(document))
    except FormatError as error:
        assert str(error)


JUNK: list[Any] = [None, True, -1, 0, 1, 10**30, "", "%0", "x", "f32[2]"]
JUNK += [[], [[]], ["a", 1], {}, {"": 1}, {"z0": 1}]


def _corrupted() -> bytes:
    b, mesh = ProgramBuilder({"dp": 2}), {"dp": 2}
    s = ProgramBuilder()
    s.output("y", s.gather(s.input("x", "f32[4,3]"), s.input("i", "i64[2]"))[:1] * 2)
    x, i = b.input("x", "f32[2,3]"), b.input("i", "i64[2]")
    b.output("y", b.gather(b.all_gather(x, "dp"), i)[:1] * 2)
    place: Any = {"x": {"dp": Shard(0)}, "i": {}}
    return dumps(
        build_plan(
            name="c",
            mesh=mesh,
            specification=s.build(),
            classes=b.build(),
            inputs=place,
            outputs={"y": {}},
            ranges={"i": (0, 4)},
        )
    )


CORRUPTED = _corrupted()


def test_ranges_may_be_negative() -> None:
    """Labels that are to be ignored are often -100."""
    specification, b = ProgramBuilder(), ProgramBuilder({"dp": 2})
    for builder in (specification, b):
        builder.output("y", builder.input("labels", "i64[3]") * 2)
    plan = build_plan(
        name="labels",
        mesh={"dp": 2},
        specification=specification.build(),
        classes=b.build(),
        inputs={"labels": {}},
        outputs={"y": {}},
        ranges={"labels": (-100, 9)},
    )
    assert loads(dumps(plan)) == plan
