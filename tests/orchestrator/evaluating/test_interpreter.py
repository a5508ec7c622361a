"""The oracle against numpy and torch formulas, op by op; collectives; whole plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.plan import Group, Plan
from certificates.plan.program import Op
from certificates.plan.types import TensorType
from orchestrator.errors import EvaluationError
from orchestrator.evaluating.interpreter import (
    apply,
    collective,
    compare_outputs,
    evaluate,
    evaluate_ranks,
    random_inputs,
    run_plan,
    run_specification,
    scatter_inputs,
)

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4))
Y = RNG.standard_normal((3, 4))
K = RNG.integers(-5, 6, (3, 4))
J = RNG.integers(-5, 6, (3, 4))
P = X > 0
Q = Y > 0
B3 = RNG.standard_normal((2, 3, 4))
B4 = RNG.standard_normal((2, 4, 5))


def run(make: Callable[..., Value], *arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Evaluate one builder expression on arrays."""
    b = ProgramBuilder()
    dtypes = {"f": "f32", "i": "i64", "b": "i1"}
    ins = []
    for k, a in enumerate(arrays):
        ins.append(b.input(f"x{k}", TensorType(dtypes[a.dtype.kind], a.shape)))
    out = make(b, *ins)
    b.output("out", out)
    program = b.build()
    result = evaluate(program, {f"x{k}": a for k, a in enumerate(arrays)})[out.name]
    assert result.shape == out.shape
    assert {"f": "Real", "i": "Int", "b": "Bool"}[result.dtype.kind] == out.type.sort
    return result


UNARY: dict[str, Callable[[Any], Any]] = {
    "negate": np.negative,
    "exponential": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "sine": np.sin,
    "cosine": np.cos,
    "tanh": np.tanh,
    "logistic": lambda x: np.exp(x) / (1 + np.exp(x)),
    "erf": np.vectorize(math.erf),
    "abs": np.abs,
}


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(name: str) -> None:
    x = np.abs(X) + 0.1 if name in ("log", "sqrt", "rsqrt") else X
    np.testing.assert_allclose(run(lambda b, v: getattr(b, name)(v), x), UNARY[name](x), rtol=1e-14)


@pytest.mark.parametrize("name", ["negate", "abs"])
def test_unary_on_integers(name: str) -> None:
    np.testing.assert_array_equal(run(lambda b, v: getattr(b, name)(v), K), UNARY[name](K))


BINARY: dict[str, tuple[Callable[[Any, Any], Value], Callable[[Any, Any], Any]]] = {
    "add": (lambda x, y: x + y, np.add),
    "subtract": (lambda x, y: x - y, np.subtract),
    "multiply": (lambda x, y: x * y, np.multiply),
    "maximum": (lambda x, y: x.builder.maximum(x, y), np.maximum),
    "minimum": (lambda x, y: x.builder.minimum(x, y), np.minimum),
}


@pytest.mark.parametrize("name", sorted(BINARY))
@pytest.mark.parametrize("sort", ["Real", "Int"])
def test_binary(name: str, sort: str) -> None:
    x, y = (X, Y) if sort == "Real" else (K, J)
    ours, numpys = BINARY[name]
    np.testing.assert_array_equal(run(lambda b, v, w: ours(v, w), x, y), numpys(x, y))


def test_divide_and_power() -> None:
    np.testing.assert_array_equal(run(lambda b, v, w: v / w, X, Y), X / Y)
    np.testing.assert_allclose(run(lambda b, v, w: b.power(v, w), np.abs(X), Y), np.abs(X) ** Y)


def test_booleans() -> None:
    np.testing.assert_array_equal(run(lambda b, p, q: b.logical_and(p, q), P, Q), P & Q)
    np.testing.assert_array_equal(run(lambda b, p, q: b.logical_or(p, q), P, Q), P | Q)
    np.testing.assert_array_equal(run(lambda b, p: b.logical_not(p), P), ~P)
    np.testing.assert_array_equal(run(lambda b, p, x, y: b.select(p, x, y), P, X, Y), np.where(P, X, Y))


@pytest.mark.parametrize(
    ("direction", "formula"),
    [
        ("EQ", np.equal),
        ("NE", np.not_equal),
        ("LT", np.less),
        ("LE", np.less_equal),
        ("GT", np.greater),
        ("GE", np.greater_equal),
    ],
)
def test_compare(direction: str, formula: Callable[[Any, Any], Any]) -> None:
    for x, y in ((X, Y), (K, J), (X, X)):
        np.testing.assert_array_equal(run(lambda b, v, w: b.compare(v, w, direction), x, y), formula(x, y))
    if direction in ("EQ", "NE"):
        np.testing.assert_array_equal(run(lambda b, v, w: b.compare(v, w, direction), P, Q), formula(P, Q))


def test_convert() -> None:
    np.testing.assert_array_equal(run(lambda b, v: b.convert(v, "bf16"), X), X)  # no rounding: reals
    np.testing.assert_array_equal(run(lambda b, v: b.convert(v, "f32"), K), K.astype(float))
    np.testing.assert_array_equal(run(lambda b, v: b.convert(v, "i1"), K), K != 0)
    np.testing.assert_array_equal(run(lambda b, v: b.convert(v, "f32"), P), P.astype(float))
    np.testing.assert_array_equal(run(lambda b, v: b.convert(v, "i32"), P), P.astype(int))
    np.testing.assert_array_equal(run(lambda b, v: b.convert(v, "i8"), K * 1000), K * 1000)


def test_data_movement() -> None:
    np.testing.assert_array_equal(run(lambda b, v: v.reshape(2, 6), X), X.reshape(2, 6))
    np.testing.assert_array_equal(run(lambda b, v: v.transpose(2, 0, 1), B3), B3.transpose(2, 0, 1))
    np.testing.assert_array_equal(run(lambda b, v: v[1:3, ::2], X), X[1:3, ::2])
    np.testing.assert_array_equal(run(lambda b, v: v[0:1], X), X[0:1])
    np.testing.assert_array_equal(
        run(lambda b, v: b.pad(v, (1, 0), (0, 2), 5), X), np.pad(X, ((1, 0), (0, 2)), constant_values=5)
    )
    np.testing.assert_array_equal(
        run(lambda b, v, w: b.concatenate([v, w, v], 1), X, Y), np.concatenate([X, Y, X], 1)
    )
    np.testing.assert_array_equal(
        run(lambda b, v: b.broadcast(v, (2, 3, 5, 4), (1, 3)), X),
        np.broadcast_to(X[None, :, None, :], (2, 3, 5, 4)),
    )
    np.testing.assert_array_equal(
        run(lambda b, v: b.broadcast(v, (3, 4), (0, 1)), X[:, :1]), np.broadcast_to(X[:, :1], (3, 4))
    )


def test_scalars_pad_and_slice() -> None:
    scalar = np.array(2.5)
    np.testing.assert_array_equal(run(lambda b, v: b.pad(v, (), ()), scalar), scalar)
    np.testing.assert_array_equal(run(lambda b, v: b.slice(v, (), ()), scalar), scalar)


def test_constants_and_iota() -> None:
    assert run(lambda b: b.constant("-7/2", "f32[2]")).tolist() == [-3.5, -3.5]
    assert run(lambda b: b.constant(float("-inf"), "f32[]")) == -np.inf
    assert run(lambda b: b.constant(12, "i64[]")) == 12
    assert run(lambda b: b.constant(True, "i1[1]")).tolist() == [True]
    assert run(lambda b: b.iota("i64[2,3]", 1)).tolist() == [[0, 1, 2]] * 2
    assert run(lambda b: b.iota("f32[3]", 0)).dtype == np.float64


def test_rank_dependent_scalars_and_slices() -> None:
    b = ProgramBuilder({"dp": 2, "tp": 3})
    x = b.input("x", "f32[6,2]")
    row = b.axis_index("dp").scale(3) + b.axis_index("tp")
    b.output("row", b.constant(row, "i64[]"))
    b.output("part", b.slice(x, [row, 0], [1, 2]))
    program, value = b.build(), np.arange(12.0).reshape(6, 2)
    for dp in range(2):
        for tp in range(3):
            env = evaluate(program, {"x": value}, {"dp": dp, "tp": tp})
            assert env[program.outputs["row"]] == 3 * dp + tp
            np.testing.assert_array_equal(env[program.outputs["part"]], value[3 * dp + tp][None])


def test_dot_general() -> None:
    np.testing.assert_allclose(run(lambda b, v, w: v @ w.T, X, Y), X @ Y.T)
    np.testing.assert_allclose(run(lambda b, v, w: v @ w, B3, B4), B3 @ B4)
    z = RNG.standard_normal((4, 2, 6, 3))
    np.testing.assert_allclose(
        run(lambda b, v, w: b.dot(v, w, contract=((2, 1), (0, 3)), batch=((0,), (1,))), B3, z),
        np.einsum("bjk,kbij->bi", B3, z),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        run(lambda b, v, w: b.dot(v, w, contract=((), ())), X, Y), np.einsum("ij,kl->ijkl", X, Y)
    )
    np.testing.assert_array_equal(run(lambda b, v, w: v @ w.T, K, J), K @ J.T)


def test_reduce() -> None:
    for kind, formula in (("add", np.sum), ("max", np.max), ("min", np.min)):
        np.testing.assert_allclose(
            run(lambda b, v, kind=kind: b.reduce(v, (0, 2), kind), B3), formula(B3, axis=(0, 2))
        )
    np.testing.assert_array_equal(run(lambda b, v: b.reduce(v, (1,), "and"), P), P.all(1))
    np.testing.assert_array_equal(run(lambda b, v: b.reduce(v, (1,), "or"), P), P.any(1))


def test_gather() -> None:
    index = np.array([[2, 0], [1, 1]])
    np.testing.assert_array_equal(run(lambda b, v, i: b.gather(v, i), X, index), X[index])
    np.testing.assert_array_equal(run(lambda b, v, i: b.gather(v, i, axis=1), X, index), X[:, index])
    rows = np.array([[2, 0, 1, 1], [0, 0, 2, 2]])
    expected = np.stack([B3[k][:, rows[k]] for k in range(2)])
    np.testing.assert_array_equal(
        run(lambda b, v, i: b.gather(v, i, axis=2, batch_dims=1), B3, rows), expected
    )
    diagonal = np.array([3, 0, 1])
    np.testing.assert_array_equal(
        run(lambda b, v, i: b.gather(v, i, axis=1, batch_dims=1), X, diagonal), X[np.arange(3), diagonal]
    )


@pytest.mark.parametrize("bad", [-1, 3])
def test_gather_out_of_range_has_no_meaning(bad: int) -> None:
    with pytest.raises(EvaluationError, match=r"gather %0 reads index .* of an axis of 3"):
        run(lambda b, v, i: b.gather(v, i), X, np.array([0, bad]))


def test_layers_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x, w = RNG.standard_normal((5, 8)), RNG.standard_normal((8,))

    def softmax(b: ProgramBuilder, v: Value) -> Value:
        top = b.reduce(v, (1,), "max").like(v, 0)
        e = b.exponential(v - top)
        return e / e.sum(1).like(v, 0)

    def rms_norm(b: ProgramBuilder, v: Value, s: Value) -> Value:
        scale = b.rsqrt((v * v).sum(1) / 8 + 1e-5)
        return v * scale.like(v, 0) * s.like(v, 1)

    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    np.testing.assert_allclose(run(softmax, x), torch.softmax(tx, 1).numpy(), rtol=1e-12)
    np.testing.assert_allclose(
        run(rms_norm, x, w), torch.nn.functional.rms_norm(tx, (8,), tw, 1e-5).numpy(), rtol=1e-12
    )


def test_the_mlp_step_agrees_with_torch_autograd(mlp: Plan) -> None:
    torch = pytest.importorskip("torch")
    inputs = random_inputs(mlp, np.random.default_rng(1))
    t = {n: torch.tensor(v, requires_grad=n.startswith("params.")) for n, v in inputs.items()}
    error = torch.tanh(t["batch.x"] @ t["params.w1"]) @ t["params.w2"] - t["batch.t"]
    loss = (error * error).mean()
    loss.backward()
    ours = run_specification(mlp, inputs)
    np.testing.assert_allclose(ours["loss"], loss.detach().numpy())
    for name in ("params.w1", "params.w2"):
        np.testing.assert_allclose(ours[f"grads.{name}"], t[name].grad.numpy(), rtol=1e-12)
        stepped = t[name].detach() - t["hyper.lr"] * t[name].grad
        np.testing.assert_allclose(ours[name], stepped.numpy(), rtol=1e-12)


# --- errors ---


def test_inputs_are_checked() -> None:
    b = ProgramBuilder()
    b.output("y", b.input("x", "f32[2]") * 2)
    program = b.build()
    with pytest.raises(EvaluationError, match=r"input x : f32\[2\] is missing"):
        evaluate(program, {})
    with pytest.raises(EvaluationError, match=r"input x : f32\[2\] is given with shape \[3\]"):
        evaluate(program, {"x": np.zeros(3)})
    with pytest.raises(EvaluationError, match=r"input x : f32\[2\] is given as int64"):
        evaluate(program, {"x": np.zeros(2, dtype=np.int64)})


def test_an_unknown_op_is_named() -> None:
    op = Op("%3", "fused_attention", (), TensorType("f32", (2,)))
    with pytest.raises(EvaluationError, match="op 'fused_attention' of %3 has no meaning"):
        apply(op, [], {})
    with pytest.raises(EvaluationError, match="op 'fused_attention' is not a collective"):
        collective(op, [np.zeros(2)])


def test_a_collective_needs_all_ranks(mlp: Plan) -> None:
    inputs = scatter_inputs(mlp, random_inputs(mlp, RNG), RNG)
    with pytest.raises(EvaluationError, match="all_reduce %3 joins ranks"):
        evaluate(mlp.classes[0].program, inputs[0], {"dp": 0, "tp": 0})
    with pytest.raises(EvaluationError, match="inputs for 1 ranks, the mesh has 4"):
        run_plan(mlp, inputs[:1])


def test_a_constant_beyond_int64_is_refused() -> None:
    with pytest.raises(EvaluationError, match=r"constant %0 = .* is too large"):
        run(lambda b: b.constant(1 << 70, "i64[]"))


def test_a_nan_is_never_accepted(mlp: Plan) -> None:
    inputs = random_inputs(mlp, RNG)
    spec, ranks = run_specification(mlp, inputs), run_plan(mlp, scatter_inputs(mlp, inputs, RNG))
    spec["loss"] = np.array(np.nan)
    for outputs in ranks:
        outputs["loss"] = np.array(np.nan)
    assert len(compare_outputs(mlp, spec, ranks)) == 4


# --- collectives ---

PERMUTED = Group((), ((2, 0), (1, 3)))


def collective_plan(make: Callable[[ProgramBuilder, Value], Value], shape: str) -> Plan:
    """Four ranks, one collective over the permuted group; relations say nothing of interest."""
    mesh, groups = {"r": 4}, {"g": PERMUTED}
    specification, b = ProgramBuilder(), ProgramBuilder(mesh, groups)
    specification.output("y", specification.input("x", "f32[]"))
    b.output("y", make(b, b.input("x", shape)))
    return build_plan(
        name="collective",
        mesh=mesh,
        specification=specification.build(),
        classes=b.build(),
        groups=groups,
        inputs=[],
        outputs=[],
    )


def run_collective(make: Callable[[ProgramBuilder, Value], Value], shape: str) -> tuple[list[Any], list[Any]]:
    plan = collective_plan(make, shape)
    xs = [RNG.standard_normal(TensorType.parse(shape).shape) for _ in range(4)]
    return xs, [out["y"] for out in run_plan(plan, [{"x": x} for x in xs])]


@pytest.mark.parametrize(("kind", "formula"), [("add", np.add), ("max", np.maximum), ("min", np.minimum)])
def test_all_reduce(kind: str, formula: Callable[[Any, Any], Any]) -> None:
    xs, ys = run_collective(lambda b, x: b.all_reduce(x, "g", kind), "f32[3]")
    for r, other in ((0, 2), (2, 0), (1, 3), (3, 1)):
        np.testing.assert_allclose(ys[r], formula(xs[r], xs[other]))


def test_all_gather_follows_the_group_order() -> None:
    xs, ys = run_collective(lambda b, x: b.all_gather(x, "g", dim=1), "f32[2,3]")
    for r in (0, 2):
        np.testing.assert_array_equal(ys[r], np.concatenate([xs[2], xs[0]], axis=1))
    for r in (1, 3):
        np.testing.assert_array_equal(ys[r], np.concatenate([xs[1], xs[3]], axis=1))


def test_reduce_scatter_gives_the_piece_of_the_position() -> None:
    xs, ys = run_collective(lambda b, x: b.reduce_scatter(x, "g", dim=1), "f32[2,4]")
    for members in PERMUTED.ranks:
        total = sum(xs[r] for r in members)
        for position, r in enumerate(members):
            np.testing.assert_allclose(ys[r], total[:, 2 * position : 2 * position + 2])


def test_all_to_all() -> None:
    xs, ys = run_collective(lambda b, x: b.all_to_all(x, "g", split_dim=0, concat_dim=1), "f32[4,3]")
    for members in PERMUTED.ranks:
        for j, r in enumerate(members):
            expected = np.concatenate([xs[m][2 * j : 2 * j + 2] for m in members], axis=1)
            np.testing.assert_array_equal(ys[r], expected)


def two_orders(swap: bool, chain: bool) -> Plan:
    """Two classes that run two all-reduces, the second one in the other order; a chain makes it a circle."""
    mesh = {"r": 2}
    specification = ProgramBuilder()
    specification.output("y", specification.input("x", "f32[]"))
    classes = {}
    for k in range(2):
        b = ProgramBuilder(mesh, box={"r": (k, k + 1)})
        x = b.input("x", "f32[]")
        first, second = (1, 0) if swap and k else (0, 1)
        a = b.all_reduce(x, "r", seq=first)
        c = b.all_reduce(a if chain else x * 2, "r", seq=second)
        b.output("y", a)
        b.output("other", c)
        classes[f"c{k}"] = ({"r": (k, k + 1)}, b.build())
    return build_plan(
        name="orders",
        mesh=mesh,
        specification=specification.build(),
        classes=classes,
        inputs=[],
        outputs=[],
    )


def test_the_order_of_independent_collectives_does_not_matter() -> None:
    inputs = [{"x": np.array(1.0)}, {"x": np.array(10.0)}]
    straight = run_plan(two_orders(swap=False, chain=False), inputs)
    assert [float(o["y"]) for o in straight] == [11.0, 11.0]
    # Swapped: rendezvous 0 joins x of rank 0 with 2x of rank 1, rendezvous 1 the others.
    swapped = run_plan(two_orders(swap=True, chain=False), inputs)
    assert [float(o["y"]) for o in swapped] == [21.0, 12.0]


def test_a_circle_of_rendezvous_is_an_error() -> None:
    with pytest.raises(FormatError, match="a value rests on itself: rendezvous 0 <- rendezvous 1"):
        two_orders(swap=True, chain=True)
    plan = two_orders(swap=False, chain=True)
    first, second = plan.classes
    ops = [
        replace(op, attrs={**op.attrs, "seq": 1 - op.integer("seq")}) if "seq" in op.attrs else op
        for op in second.program.ops
    ]
    circle = replace(plan, classes=(first, replace(second, program=replace(second.program, ops=tuple(ops)))))
    inputs = [{"x": np.array(1.0)}, {"x": np.array(10.0)}]
    with pytest.raises(EvaluationError, match=r"rendezvous \[0, 1\] wait for one another"):
        run_plan(circle, inputs)


def test_every_value_of_every_rank_is_available(mlp: Plan) -> None:
    inputs = scatter_inputs(mlp, random_inputs(mlp, RNG), RNG)
    values = evaluate_ranks(mlp, inputs)
    assert all(set(env) == set(mlp.classes[0].program.types()) for env in values)


def test_affine_constants_need_their_coordinates() -> None:
    op = Op("%0", "constant", (), TensorType("i64", ()), {"value": Affine.symbol("dp")})
    with pytest.raises(EvaluationError, match="%0 mentions the mesh axis 'dp', which has no coordinate"):
        apply(op, [], {})


def test_true_model_sizes_are_refused_before_they_fill_the_memory() -> None:
    b, mesh = ProgramBuilder(), {"dp": 2}
    b.output("y", b.input("x", "f32[65536,65536]") * 2)
    program = b.build()
    with pytest.raises(EvaluationError, match="the program has 4294967296 elements, over the oracle's limit"):
        evaluate(program, {})
    local = ProgramBuilder(mesh)
    local.output("y", local.input("x", "f32[65536,65536]") * 2)
    plan = build_plan(
        name="big", mesh=mesh, specification=program, classes=local.build(), inputs={"x": {}}, outputs={}
    )
    with pytest.raises(EvaluationError, match="the specification's input has"):
        random_inputs(plan, RNG)
    with pytest.raises(EvaluationError, match="the input of all ranks has 8589934592 elements"):
        scatter_inputs(plan, {}, RNG)
    with pytest.raises(EvaluationError, match="the program of all ranks has"):
        run_plan(plan, [{}, {}])
