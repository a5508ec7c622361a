"""Documents that are well-formed and no plan: one edit of a good one, and the reason."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.canonical import canonical_bytes
from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps

Document = dict[str, Any]


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
    (edit("version", 5), "not a trainverify-plan document of version 1"),
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
