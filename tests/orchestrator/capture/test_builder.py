"""Ops of a plan under construction: what each is given, what it results in, what it refuses."""

from __future__ import annotations

import pytest

from certificates.plan.affine import Affine
from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder, exact
from orchestrator.capture.errors import LoweringError

RANGES = {
    "i8": (-(2**7), 2**7), "i16": (-(2**15), 2**15), "i32": (-(2**31), 2**31), "i64": (-(2**63), 2**63),
    "u8": (0, 2**8),
}  # fmt: skip


@pytest.mark.parametrize("dtype", RANGES)
def test_an_integer_constant_is_one_of_its_type(dtype: str) -> None:
    b, (low, high) = Builder(), RANGES[dtype]
    for value in (low, high - 1):
        made = b.draft(b.constant(value, TensorType(dtype, ())))
        assert made is not None and made.attr("value") == Affine(value)
    for value in (low - 1, high):
        with pytest.raises(LoweringError, match=f"literal {value} does not fit {dtype}"):
            b.constant(value, TensorType(dtype, ()))


@pytest.mark.parametrize("source", RANGES)
@pytest.mark.parametrize("target", RANGES)
def test_a_conversion_to_a_small_integer_must_hold_every_value(source: str, target: str) -> None:
    """PyTorch wraps around where a plan's integers do not."""
    b = Builder()
    x = b.input("x", TensorType(source, (2,)))
    (a, z), (low, high) = RANGES[source], RANGES[target]
    if target in ("i32", "i64") or (low <= a and z <= high):
        assert b.convert(x, target).dtype == target
    else:
        with pytest.raises(LoweringError, match=f"to {target}, which wraps around"):
            b.convert(x, target)


@pytest.mark.parametrize("shape", [(6,), (4, 2, 3)])
def test_an_integer_in_another_shape_is_of_the_line_that_wrote_it(shape: tuple[int, ...]) -> None:
    """Equal literals of real type are one op, whichever lines wrote them: no line is that of all."""
    b = Builder()
    wrote, reads = (("kit.py", 3, "own"), ("train.py", 10, "step")), (("train.py", 20, "step"), None)
    for literal, dtype, line in ((7, "i64", wrote), (0.5, "f32", reads)):
        b.frame, b.caller = wrote
        value = b.constant(literal, TensorType(dtype, (2, 3)))
        b.frame, b.caller = reads
        again = b.draft(b.reshape(value, shape) if len(shape) == 1 else b.expand(value, shape))
        assert again is not None and (again.name, again.type.shape) == ("constant", shape)
        assert (again.frame, again.caller) == line and (b.frame, b.caller) == reads


def test_a_line_ends_with_what_is_emitted_at_it() -> None:
    b = Builder()
    b.frame = here = ("train.py", 20, "step")
    with pytest.raises(LoweringError), b.at(("kit.py", 3, "own"), here):
        assert (b.frame, b.caller) == (("kit.py", 3, "own"), here)
        b.reshape(b.input("x", TensorType("f32", (2,))), (3,))
    assert (b.frame, b.caller) == (here, None)


def test_an_integer_that_may_depend_on_the_rank_is_converted_by_an_op() -> None:
    """A literal of real type says one number for all ranks; between real types there is no other."""
    b = Builder()
    rank = b.constant(3, TensorType("i64", (2,)))
    draft = b.draft(b.convert(rank, "f32"))
    assert draft is not None and (draft.name, draft.ins) == ("convert", (rank.name,))
    half = b.draft(b.convert(b.constant(0.5, TensorType("f32", (2,))), "f64"))
    assert half is not None and (half.name, half.attr("value")) == ("constant", "1/2")


def test_truth_values_are_reduced_by_and_and_or_only() -> None:
    b = Builder()
    flags, numbers = b.input("p", TensorType("i1", (2, 3))), b.input("x", TensorType("f32", (2, 3)))
    for kind in ("and", "or"):
        assert b.reduce(flags, [1], kind).type == TensorType("i1", (2,))
        with pytest.raises(LoweringError, match=f"the {kind} of elements of f32"):
            b.reduce(numbers, [1], kind)
    with pytest.raises(LoweringError, match="the max of elements of i1"):
        b.reduce(flags, [1], "max")


def test_a_reduction_keeps_its_dimensions_when_asked_to() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (2, 3)))
    assert b.reduce(x, [0], "add").shape == (3,)
    assert b.reduce(x, [0], "add", keepdim=True).shape == (1, 3)


def test_a_product_has_the_dimensions_that_are_not_contracted() -> None:
    b = Builder()
    x, y = b.input("x", TensorType("f32", (5, 2, 3))), b.input("y", TensorType("f32", (5, 3, 4)))
    assert b.dot(x, y, contract=([2], [1]), batch=([0], [0])).shape == (5, 2, 4)


def test_reshapes_and_transposes_in_a_row_are_one() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (2, 3, 4)))
    once = b.draft(b.reshape(b.reshape(x, (6, 4)), (4, 6)))
    assert once is not None and once.ins == ("x",)
    assert b.reshape(b.reshape(x, (24,)), (2, 3, 4)) == x
    turned = b.draft(b.transpose(b.transpose(x, (1, 2, 0)), (0, 2, 1)))
    assert turned is not None and (turned.ins, turned.attr("perm")) == (("x",), (1, 0, 2))
    assert b.operand(b.unary("exponential", x)) == x


def test_not_a_number_has_no_literal() -> None:
    with pytest.raises(LoweringError, match="the literal nan has no meaning over the reals"):
        exact(float("nan"))
    assert [exact(v) for v in (float("inf"), float("-inf"), 0.1, True)] == ["inf", "-inf", "1/10", "true"]


def test_what_is_chosen_by_a_constant_is_what_it_chooses() -> None:
    """A row of attention that is masked whole is looked for, and of finite scores there is none."""
    b = Builder()
    x, y = (b.input(name, TensorType("f32", (2, 3))) for name in "xy")
    false = b.constant(False, TensorType("i1", (2, 3)))
    masked = b.reduce(false, (1,), "and", keepdim=True)
    draft = b.draft(masked)
    assert draft is not None and (draft.name, draft.attr("value"), draft.type.shape) == (
        *("constant", "false"), (2, 1),
    )  # fmt: skip
    assert b.select(masked, x, y) == y and b.select(b.constant(True, false.type), x, y) == x
    most = b.draft(b.reduce(b.constant(7, x.type), (0, 1), "max"))
    assert most is not None and most.attr("value") == "7"
    total = b.draft(b.reduce(b.constant(7, x.type), (0, 1), "add"))
    assert total is not None and total.name == "reduce", "a sum is no element"
