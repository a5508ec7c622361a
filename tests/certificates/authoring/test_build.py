"""The builder: inferred types, literals, locations, mistakes at the call that makes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan, exact
from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Group, Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps

MESH = {"dp": 2, "tp": 3}


def test_a_tp2_step_is_short_to_write() -> None:
    """The README's size: forward, backward and update of a tensor-parallel MLP, on both sides."""

    def step(b: ProgramBuilder, hidden: int, reduce: Callable[[Value], Value]) -> None:
        x, t = b.input("batch.x", "f32[5,4]"), b.input("batch.t", "f32[5,3]")
        w1, w2 = b.input("params.w1", f"f32[4,{hidden}]"), b.input("params.w2", f"f32[{hidden},3]")
        h = b.tanh(x @ w1)
        error = reduce(h @ w2) - t
        b.output("loss", (error * error).sum() / 15)
        grad = error * Fraction(2, 15)
        b.output("params.w1", w1 - x.T @ ((grad @ w2.T) * (1 - h * h)) * 0.1)
        b.output("params.w2", w2 - h.T @ grad * 0.1)

    single, rank = ProgramBuilder(), ProgramBuilder({"tp": 2})
    step(single, 8, lambda y: y)
    step(rank, 4, lambda y: rank.all_reduce(y, "tp"))
    weights = {"params.w1": {"tp": Shard(1)}, "params.w2": {"tp": Shard(0)}}
    plan = build_plan(
        name="mlp-tp2",
        mesh={"tp": 2},
        specification=single.build(),
        classes=rank.build(),
        inputs={"batch.x": {}, "batch.t": {}, **weights},
        outputs={"loss": {}, **weights},
    )
    assert loads(dumps(plan)) == plan
    assert plan.classes[0].box == {"tp": (0, 2)}


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (2, "2"),
        (0.1, "1/10"),
        (-2.5, "-5/2"),
        (1e-8, "1/100000000"),
        (Fraction(2, 6), "1/3"),
        ("2/3", "2/3"),
        (float("-inf"), "-inf"),
        (Affine(7), "7"),
    ],
)
def test_literals_are_exact(value: Any, literal: str) -> None:
    b = ProgramBuilder()
    b.output("y", b.constant(value, "f32[2]"))
    assert b.build().ops[0].attrs == {"value": literal}


def test_literals_that_are_no_numbers() -> None:
    with pytest.raises(FormatError, match="nan is not a rational number"):
        exact(float("nan"))
    with pytest.raises(FormatError, match="'2/4' is not in lowest terms"):
        ProgramBuilder().constant("2/4", "f32[]")
    with pytest.raises(FormatError, match="an integer literal cannot be a fraction"):
        ProgramBuilder().input("n", "i64[2]") * 0.5


def test_operators_splat_numbers_on_either_side() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[2,3]")
    for value in (x + 1, 1 + x, x - 1, 1 - x, x * 2, 2 * x, x / 2, 2 / x, -x):
        assert value.type == x.type
    ops = [(op.name, op.ins) for op in b.build().ops if op.name != "constant"]
    assert ops[3] == ("subtract", ("%6", "x")) and ops[7] == ("divide", ("%14", "x"))


def test_inferred_types() -> None:
    b = ProgramBuilder(MESH)
    x, y = b.input("x", "f32[4,6]"), b.input("y", "f32[2,4,6]")
    i = b.input("i", "i64[5]")
    shapes = {
        "x @ x.T": x @ x.T,
        "y @ batched": y @ y.transpose(0, 2, 1),
        "slice": y[:, 1:3, ::4],
        "sum": y.sum(0, 2),
        "sum all": y.sum(),
        "gather": b.gather(y, i, axis=1),
        "like": x.like(y, 1, 2),
        "compare": b.compare(x, 0, "GT"),
        "concatenate": b.concatenate([x, x], 1),
        "convert": b.convert(x, "bf16"),
        "all_gather": b.all_gather(x, "tp", 1),
        "reduce_scatter": b.reduce_scatter(x, "dp", 0),
        "all_to_all": b.all_to_all(x, "dp", 1, 0),
        "pad": b.pad(x, (1, 0), (2, 3)),
    }
    assert {k: str(v.type) for k, v in shapes.items()} == {
        "x @ x.T": "f32[4,4]",
        "y @ batched": "f32[2,4,4]",
        "slice": "f32[2,2,2]",
        "sum": "f32[4]",
        "sum all": "f32[]",
        "gather": "f32[2,5,6]",
        "like": "f32[2,4,6]",
        "compare": "i1[4,6]",
        "concatenate": "f32[4,12]",
        "convert": "bf16[4,6]",
        "all_gather": "f32[4,18]",
        "reduce_scatter": "f32[2,6]",
        "all_to_all": "f32[8,3]",
        "pad": "f32[7,9]",
    }
    assert [op.attrs["seq"] for op in b.build().ops if "seq" in op.attrs] == [0, 1, 2]


def test_a_given_rendezvous_number_is_kept_and_counted_on() -> None:
    b = ProgramBuilder(MESH)
    x = b.input("x", "f32[4,6]")
    b.all_reduce(x, "tp", seq=7)
    b.all_reduce(x, "dp", "max")
    assert [op.attrs["seq"] for op in b.build().ops] == [7, 8]


BUILD_ERRORS: list[tuple[Callable[[ProgramBuilder, Value], object], str]] = [
    (lambda b, x: x + b.input("v", "f32[6]"), r"add : \(f32\[4,6\], f32\[6\]\) -> f32\[4,6\]"),
    (lambda b, x: b.input("x", "f32[4,6]"), "input x is declared twice"),
    (lambda b, x: [b.output("y", x), b.output("y", x)], "output y is declared twice"),
    (lambda b, x: b.input("v", "f32[0]"), r"'f32\[0\]' is not a tensor type"),
    (lambda b, x: ProgramBuilder().negate(x), r"x : f32\[4,6\] belongs to another program"),
    (lambda b, x: x.transpose(0, 2), r"f32\[4,6\] has no dimension 2"),
    (lambda b, x: x.transpose(0, 0), "perm is not a permutation"),
    (lambda b, x: x.sum(2), "dims must be increasing dimensions"),
    (lambda b, x: x @ b.input("v", "f32[6]"), "is not a matrix product"),
    (lambda b, x: x @ x, "paired dimensions must be of equal size"),
    (lambda b, x: x[0:1, 0:1, 0:1], r"3 slices of f32\[4,6\]"),
    (lambda b, x: x[4:], r"slice of f32\[4,6\] to the sizes \[0, 6\] is empty"),
    (lambda b, x: b.slice(x, [Affine.symbol("dp"), 0], [4, 6]), "leaves the operand along dimension 0"),
    (lambda b, x: b.pad(x, (1,), (1,)), "needs one low and high per dimension|one low and one high"),
    (lambda b, x: b.concatenate([], 0), "concatenate of no tensors"),
    (lambda b, x: b.gather(x, x), "needs integer indices"),
    (lambda b, x: b.gather(x, x, axis=2), "has no dimension 2"),
    (lambda b, x: b.compare(x, 0, "LESS"), "compare has no direction 'LESS'"),
    (lambda b, x: b.reduce(x, (0,), "mean"), "reduce has no kind 'mean'"),
    (lambda b, x: b.all_reduce(x, "tp", "avg"), "all_reduce has no kind 'avg'"),
    (lambda b, x: b.all_reduce(x, "pp"), r"no process group 'pp' \(known: dp, tp\)"),
    (lambda b, x: b.all_gather(x, "tp", 2), "has no dimension 2"),
    (lambda b, x: b.reduce_scatter(x, "tp", 0), r"dimension 0 of f32\[4,6\] does not divide over 3 ranks"),
    (lambda b, x: b.all_to_all(x, "tp", 0, 1), "dimension 0 of .* does not divide over 3"),
    (lambda b, x: b.axis_index("pp"), "the program has no mesh axis 'pp'"),
    (lambda b, x: b.op("einsum", (x,), "f32[4,6]"), "einsum is not an op with the attributes"),
    (lambda b, x: b.op("reduce", (x,), "f32[4]", {"dims": (1,)}), "reduce is not an op with the attributes"),
    (lambda b, x: b.convert(x, "i64"), "a float converts to a float only"),
]


@pytest.mark.parametrize(("make", "reason"), BUILD_ERRORS, ids=range(len(BUILD_ERRORS)))
def test_mistakes_are_reported_where_they_are_made(
    make: Callable[[ProgramBuilder, Value], object], reason: str
) -> None:
    b = ProgramBuilder(MESH)
    x = b.input("x", "f32[4,6]")
    with pytest.raises(FormatError, match=reason):
        make(b, x)


def test_a_specification_has_no_ranks() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[2]")
    with pytest.raises(FormatError, match="a specification has no ranks"):
        b.all_gather(x, "tp")
    with pytest.raises(FormatError, match="the program has no mesh axis 'tp'"):
        b.axis_index("tp")


def helper(x: Value) -> Value:
    return x + x


def test_ops_remember_the_line_that_asked_for_them() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[2]")
    b.output("y", helper(x) @ helper(x).reshape(2, 1))
    program = b.build()
    here = inspect.getsourcelines(helper)[1] + 1
    first = program.ops[0].loc
    assert first is not None and (first.line, first.function) == (here, "helper")
    last = program.ops[-1].loc
    assert last is not None and last.function == test_ops_remember_the_line_that_asked_for_them.__name__
    assert program.sources == (__file__,)


def one_op_plan(specification_file: str, class_file: str) -> Plan:
    """A plan whose programs were written in files of these names."""
    source = "def write(b):\n    b.output('y', -b.input('x', 'f32[2]'))\n"
    programs = []
    for builder, file in ((ProgramBuilder(), specification_file), (ProgramBuilder({"dp": 2}), class_file)):
        scope: dict[str, Any] = {}
        exec(compile(source, file, "exec"), scope)
        scope["write"](builder)
        programs.append(builder.build())
    return build_plan(
        name="p",
        mesh={"dp": 2},
        specification=programs[0],
        classes=programs[1],
        inputs={"x": {}},
        outputs={"y": {}},
    )


@pytest.mark.parametrize(
    ("files", "sources"),
    [
        (("/home/me/model.py", "/home/me/plan.py"), ("model.py", "plan.py")),
        (("/home/me/a/step.py", "/home/me/b/step.py"), ("a/step.py", "b/step.py")),
        (("/home/me/step.py", "/home/me/step.py"), ("step.py",)),
        (("<cell 1>", "<cell 2>"), ("<cell 1>", "<cell 2>")),
    ],
)
def test_sources_are_merged_and_name_no_machine(files: tuple[str, str], sources: tuple[str, ...]) -> None:
    plan = one_op_plan(*files)
    assert plan.sources == sources
    locations = [p.ops[0].loc for p in (plan.specification, plan.classes[0].program)]
    assert [loc and plan.sources[loc.source] for loc in locations] == [sources[0], sources[-1]]
    assert all(loc and (loc.line, loc.function) == (2, "write") for loc in locations)


def test_groups_by_axes_and_rank_by_rank() -> None:
    groups = {"world": ("dp", "tp"), "odd": Group((), ((1, 0), (2, 3), (5, 4)))}
    b = ProgramBuilder(MESH, groups)
    x = b.input("x", "f32[6]")
    assert b.all_gather(x, "world").shape == (36,)
    assert b.reduce_scatter(x, "odd").shape == (3,)
    specification = ProgramBuilder()
    specification.input("x", "f32[6]")
    plan = build_plan(
        name="g",
        mesh=MESH,
        specification=specification.build(),
        classes=b.build(),
        groups=groups,
        inputs={},
        outputs={},
    )
    assert plan.groups["world"].ranks == ((0, 1, 2, 3, 4, 5),)
    with pytest.raises(FormatError, match=r"group g over \['pp'\]: the mesh has \['dp', 'tp'\]"):
        ProgramBuilder(MESH, {"g": ("pp",)})


def test_relations_must_name_what_exists() -> None:
    with pytest.raises(FormatError, match="the specification has no z to relate"):
        plan = one_op_plan("a.py", "b.py")
        build_plan(
            name="p",
            mesh={"dp": 2},
            specification=plan.specification,
            classes=plan.classes[0].program,
            inputs={"z": {}},
            outputs={},
        )
