"""List ops are the op of one tensor, many times."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.errors import UnsupportedOpError
from orchestrator.capture.lowering.foreach import single_ops
from orchestrator.capture.recorder import Node

x, y = torch.rand(3, dtype=torch.float64) + 0.5, torch.rand(2, 2, dtype=torch.float64) + 0.5


def node(op: str, *args: object, writes: tuple = ()) -> Node:
    return Node(op, args, {}, args[0], writes, None)


def test_each_tensor_has_its_own_op_and_its_own_scalar() -> None:
    parts = list(
        single_ops(node("aten._foreach_add_.ScalarList", ["a", "b"], [1, 2], writes=("a", "b"))) or ()
    )
    assert [(p.op, p.args, p.writes) for p in parts] == [
        ("aten.add_.Scalar", ("a", 1), ("a",)),
        ("aten.add_.Scalar", ("b", 2), ("b",)),
    ]


def test_one_scalar_is_for_all() -> None:
    parts = list(single_ops(node("aten._foreach_mul.Scalar", ["a", "b"], 3)) or ())
    assert [(p.op, p.args) for p in parts] == [("aten.mul.Scalar", ("a", 3)), ("aten.mul.Scalar", ("b", 3))]


def test_other_ops_are_none_of_the_table() -> None:
    assert single_ops(node("aten.add.Tensor", ["a"])) is None
    assert single_ops(node("aten._foreach_lgamma.default", ["a"])) is None


def test_lists_are_computed_one_by_one(agrees) -> None:
    def step(a, b):
        made = [a.clone(), b.clone()]
        torch._foreach_mul_(made, [2.0, 3.0])
        torch._foreach_addcdiv_(made, [a, b], [b[0, 0] + a, b], [0.5, -1.0])
        torch._foreach_lerp_(made, [a, b], 0.25)
        return [*made, *torch._foreach_sqrt([a, b]), *torch._foreach_norm([a, b], 1)]

    agrees(step, x, y)


def test_a_list_op_without_single_op_is_refused_by_name(lowered) -> None:
    with pytest.raises(UnsupportedOpError, match="_foreach_lgamma"):
        lowered(lambda a, b: torch._foreach_lgamma([a, b])[0], x, y)
