"""The table of lowerings and what it gives to them."""

from __future__ import annotations

import pytest

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder
from orchestrator.capture.errors import GroupError, LoweringError
from orchestrator.capture.lowering.table import (
    LOWERINGS,
    Context,
    axis_of,
    communicator,
    dims_of,
    find,
    lowers,
)
from orchestrator.capture.recorder import GroupRef


def context(axes: tuple[str, ...] = ("dp",), rank: int = 0) -> Context:
    return Context(Builder(), lambda _group: axes, rank=rank)


def test_an_in_place_op_is_its_functional_form_and_an_overload_has_its_own() -> None:
    assert find("aten.add_.Tensor") is LOWERINGS["aten.add"]
    assert find("aten.max.dim") is LOWERINGS["aten.max.dim"] and find("aten.max.other") is None
    assert find("aten.__and__.Tensor") is LOWERINGS["aten.__and__"]


def test_what_a_lowering_ignores_stands_in_its_registration(monkeypatch) -> None:
    monkeypatch.setattr("orchestrator.capture.lowering.table.LOWERINGS", table := {})
    lowers("aten.made_up", ignores=("hint",))(lambda c: c.b.iota(0, (2,)))
    assert table["aten.made_up"].ignores == frozenset(("hint",))


def test_operands_of_a_comparison_meet_in_the_larger_sort() -> None:
    c = context()
    flag, count, number = (c.b.input(n, TensorType(n, (2,))) for n in ("i1", "i32", "f32"))
    assert [v.dtype for v in c.pair(flag, 2)] == ["i64", "i64"]
    assert [v.dtype for v in c.pair(flag, True)] == ["i1", "i1"]
    assert [v.dtype for v in c.pair(count, 2)] == ["i32", "i32"]
    assert [v.dtype for v in c.pair(count, number)] == ["f32", "f32"]


@pytest.mark.parametrize(("literal", "reason"), [(0.5, "among integers"), (1j, "the complex literal")])
def test_a_literal_that_the_type_has_not_is_refused(literal, reason) -> None:
    with pytest.raises(LoweringError, match=reason):
        context().value(literal, "i64")


def test_rendezvous_are_counted_for_each_communicator() -> None:
    c = context()
    x = c.b.input("x", TensorType("f32", (2,)))
    seqs = [c.collective("all_reduce", x, GroupRef((0, 1), n), (2,), kind="add") for n in (0, 0, 1)]
    assert [str(d.attr("group")) + str(d.attr("seq")) for d in map(c.b.draft, seqs) if d] == [
        "dp0",
        "dp1",
        "dp.10",
    ]


def test_a_group_of_one_is_no_communication_and_one_across_the_mesh_is_refused() -> None:
    x = context().b.input("x", TensorType("f32", (2,)))
    assert context().collective("all_reduce", x, GroupRef((3,)), (2,)) is x
    with pytest.raises(GroupError, match="no fibre of mesh axes"):
        context(()).collective("all_reduce", x, GroupRef((0, 3)), (2,))
    assert communicator(("dp", "tp"), 2) == "dp_tp.2"


def test_dimensions_count_from_either_end_and_a_scalar_has_one() -> None:
    assert (axis_of(-1, 3), axis_of(-1, 0)) == (2, 0)
    assert dims_of(None, 2) == dims_of([], 2) == [0, 1]
    assert dims_of((-1, 0), 3) == [0, 2] and dims_of(0, 0) == []
