"""Access patterns: which index of an operand goes with which index of a result."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.proof.facts import Reduced
from orchestrator.evaluating.interpreter import evaluate
from orchestrator.relating.access import access, adds_up, combine, commutes, same_attributes

HALF, NONE = Fraction(1, 2), None


@pytest.mark.parametrize("seed", range(8))
def test_access_patterns_say_what_a_contraction_sums(seed: int) -> None:
    """Replay dots and reductions as einsum over the pattern's variables."""
    rng = np.random.default_rng(seed)
    b = ProgramBuilder()
    x, y = b.input("x", "f32[2,3,4,5]"), b.input("y", "f32[5,2,4,6]")
    values = {"x": rng.normal(size=(2, 3, 4, 5)), "y": rng.normal(size=(5, 2, 4, 6))}
    b.output("d", b.dot(x, y, contract=((3, 2), (0, 2)), batch=((0,), (1,))))
    b.output("r", b.reduce(x, (1, 3)))
    program = b.build()
    env = evaluate(program, values)
    for op in program.ops:
        pattern = access(op, [env[v].shape for v in op.ins])
        assert pattern is not None
        letters = {n: chr(97 + i) for i, n in enumerate({v for p in pattern.operands for v in p})}
        words = ["".join(letters[n] for n in names) for names in (*pattern.operands, pattern.out)]
        einsum = np.einsum(f"{','.join(words[:-1])}->{words[-1]}", *(env[v] for v in op.ins))
        assert np.allclose(einsum, env[op.out])
        sizes = {n: env[v].shape[d] for v, p in zip(op.ins, pattern.operands, strict=True)
                 for d, n in enumerate(p)}  # fmt: skip
        assert dict(pattern.summed) == {n: s for n, s in sizes.items() if n.startswith("k")}


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
def test_a_comparison_commutes_where_exchanged_operands_give_the_same(direction: str) -> None:
    b = ProgramBuilder()
    x, y = b.input("x", "i64[9]"), b.input("y", "i64[9]")
    b.output("one", b.compare(x, y, direction))
    b.output("other", b.compare(y, x, direction))
    program = b.build()
    env = evaluate(program, {"x": np.arange(9) // 3, "y": np.arange(9) % 3})
    one, other = (env[program.outputs[name]] for name in ("one", "other"))
    assert commutes(program.ops[0]) == np.array_equal(one, other)


def test_differences_and_quotients_do_not_commute() -> None:
    b = ProgramBuilder()
    x, y = b.input("x", "f32[2]"), b.input("y", "f32[2]")
    for i, value in enumerate((x - y, x / y, x + y, x * y)):
        b.output(f"y{i}", value)
    assert [commutes(op) for op in b.build().ops] == [False, False, True, True]


def test_elementwise_ops_read_every_operand_where_they_write() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[2,3]")
    b.output("y", b.select(b.compare(x, 0, "GT"), b.tanh(x), x))
    b.output("z", x.T)
    for op in b.build().ops:
        pattern = access(op, [(2, 3)] * len(op.ins))
        if op.name in ("constant", "transpose"):
            assert pattern is None, "data movement and literals are followed, not matched"
        else:
            assert pattern is not None and not pattern.summed
            assert set(pattern.operands) == {pattern.out} == {("o0", "o1")}


@pytest.mark.parametrize(("kind", "told"), [("add", "add"), ("max", "max"), ("or", "max"), ("and", "min")])
def test_reductions_of_booleans_are_maxima_and_minima(kind: str, told: str) -> None:
    b = ProgramBuilder()
    x = b.input("x", "i1[4]" if kind in ("and", "or") else "f32[4]")
    b.output("y", b.reduce(x, (0,), kind))
    pattern = access(b.build().ops[0], [(4,)])
    assert pattern is not None and pattern.kind == told and pattern.summed == (("k0", 4),)


@pytest.mark.parametrize(
    ("op", "factors", "result"),
    [
        ("add", [2, 2], 2),
        ("add", [2, 3], None),
        ("add", [2, NONE], 2),  # the other one is zero
        ("multiply", [2, 3], 6),
        ("dot_general", [2, HALF], 1),
        ("divide", [2, HALF], 4),
        ("divide", [2, NONE], None),
        ("maximum", [2, 2], 2),
        ("maximum", [-2, -2], None),  # the largest of the negatives is the smallest
        ("maximum", [2, NONE], None),
        ("maximum", [1, NONE], 1),  # with a fixed number, such as zero
        ("reduce", [3], 3),
        ("reduce", [NONE], 1),  # a row of infinities, say, is the specification's as it stands
        ("select", [1, 2, 2], 2),
        ("select", [2, 1, 1], None),  # a scaled truth value is none
        ("select", [NONE, 2, 3], None),
        ("exponential", [1], 1),
        ("exponential", [2], None),
        ("compare", [2, 2], None),
    ],
)
def test_factors_of_operands_make_that_of_the_result(
    op: str, factors: list[Fraction | None], result: Fraction | None
) -> None:
    """``2 a + 2 b`` is twice ``a + b``; ``exp(2 a)`` is no multiple of ``exp(a)``."""
    assert combine(op, [None if f is None else Fraction(f) for f in factors]) == result


def test_attributes_that_change_the_meaning_must_agree() -> None:
    b = ProgramBuilder()
    x, y = b.input("x", "f32[8,3]"), b.input("y", "f32[8,3]")
    b.output("less", b.compare(x, y, "LT"))
    b.output("at_most", b.compare(x, y, "LE"))
    b.output("largest", b.reduce(x, (0,), "max"))
    less, at_most, largest = b.build().ops
    assert same_attributes(less, less) and not same_attributes(less, at_most)
    assert not same_attributes(largest, less)


@pytest.mark.parametrize("over", [("dp", ""), ("", "dp"), ("dp", "dp"), ("dp", "tp")])
@pytest.mark.parametrize("name", ["multiply", "divide", "maximum", "dot", "tanh", "add", "subtract"])
def test_what_is_made_of_summands_adds_up_where_it_says_so(name: str, over: tuple[str, str]) -> None:
    """Twelve numbers of two ranks along each axis; what has no axis is the same on all of them."""
    rng = np.random.default_rng(1)
    b = ProgramBuilder()
    x, y = b.input("x", "f64[3]"), b.input("y", "f64[3]")
    made = {
        **{"multiply": x * y, "divide": x / y, "maximum": b.maximum(x, y), "add": x + y, "subtract": x - y},
        **{"dot": b.dot(x, y, contract=((0,), (0,))), "tanh": b.tanh(x)},
    }[name]
    b.output("z", made)
    program = b.build()
    op = next(op for op in program.ops if op.out == program.outputs["z"])
    if name == "tanh":
        over = over[0], over[0]
    sizes = {"x": (2 if "dp" in over[0] else 1, 2 if "tp" in over[0] else 1)}
    sizes["y"] = (2 if "dp" in over[1] else 1, 2 if "tp" in over[1] else 1)
    parts = {n: rng.normal(size=(*shape, 3)) + 3 for n, shape in sizes.items()}
    ranks = {n: np.broadcast_to(p, (2, 2, 3)) for n, p in parts.items()}
    axes = [a for a in ("dp", "tp") if a in over]
    each = [(i, j) for i in range(2 if "dp" in axes else 1) for j in range(2 if "tp" in axes else 1)]

    def run(values: dict[str, np.ndarray]) -> np.ndarray:
        return evaluate(program, values)[program.outputs["z"]]

    total = sum(run({n: v[i, j] for n, v in ranks.items()}) for i, j in each)
    whole = run({n: p.sum((0, 1)) for n, p in parts.items()})
    sums = [Reduced("add", (o,), ("c0:x",)) if o else None for o in over[: len(op.ins)]]
    adds = np.allclose(total, whole)
    if name in ("add", "subtract") and None in sums:
        return  # what is the same on all ranks is a summand of so many times it
    assert adds_up(op, sums) == (adds or not any(sums))
