"""Stages that do the same to other tensors, at other times; no PyTorch program is run."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from certificates.plan.affine import Affine
from certificates.plan.types import TensorType
from orchestrator.capture.builder import Draft
from orchestrator.capture.cutting import Cut
from orchestrator.capture.fitting import Sample, summarise
from orchestrator.capture.layouts import Layout
from orchestrator.capture.likeness import Likeness, Likenesses, agrees
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.origins import Part
from orchestrator.capture.tracing import RankTrace

TENSOR = TensorType("f32", (8,))
T = TypeVar("T")


def some(found: T | None) -> T:
    assert found is not None
    return found


def stage(
    pp: int, tp: int = 0, *, later: bool = False, by: int = 4, to: int = 1, op: str = "negate"
) -> tuple[Sample, RankProgram, tuple[int, int]]:
    """Two rows of a parameter, one of which is sent to the next stage; `later`: the other one comes first."""
    weight = f"params.{pp}.w"

    def rows(out: str, start: int) -> Draft:
        attrs = (("start", (Affine(start),)), ("stride", (1,)))
        return Draft(out, "slice", (weight,), TensorType("f32", (4,)), attrs, None)

    first = [rows("%0", by * tp), Draft("%1", op, ("%0",), TensorType("f32", (4,)), (), None)]
    second = [
        rows("%2", 2 * tp + 1),
        Draft("%3", "tanh", ("%2",), TensorType("f32", (4,)), (), None),
        Draft(
            "%4",
            "send",
            ("%3",),
            TensorType("f32", (4,)),
            (("batch", int(later)), ("number", 0), ("to", (Affine(pp + to), Affine(tp)))),
            None,
        ),
    ]
    drafts = [*second, *first] if later else [*first, *second]
    program = RankProgram({weight: TENSOR}, tuple(drafts), {weight: "%1", "loss": "%3"}, ())
    part = Part((8,), (Affine.of(0, {"z0": 1}),), weight, (Affine.of(8 * tp, {"z0": 1}),))
    layout = Layout({"tp": 0}, ("tp",), (8,), f"{pp}.w", Cut((part,), None, (8,), agreed=(("x", str(pp)),)))
    traced = RankTrace(10 * pp + tp, program, {weight: layout})
    return summarise(traced), program, (pp, tp)


def alike(one: tuple[Sample, RankProgram, tuple[int, int]], other: object) -> Likeness | None:
    return Likenesses().between(one, other)  # type: ignore[arg-type]


@pytest.mark.parametrize("later", [False, True])
def test_what_another_rank_would_be_traced_as_is_known(later: bool) -> None:
    like = some(alike(stage(2, later=later), stage(1)))
    lent = some(like.lent(stage(2, later=later)[0], stage(1)[0], stage(1, 3)[0], 23))
    traced = stage(2, 3, later=later)[0]
    assert lent.rank == 23 and agrees(lent, traced) and lent.scalars == traced.scalars
    assert some(some(lent.layouts["params.2.w"].cut).parts)[0].source == "params.2.w"
    assert lent.layouts["params.2.w"].owner == "2.w"


@pytest.mark.parametrize(
    "other",
    [
        stage(1, op="tanh"),
        stage(1, to=2),
        (stage(1)[0], replace(stage(1)[1], inputs={"params.1.w": TensorType("f32", (9,))}), (1, 0)),
        (stage(1)[0], replace(stage(1)[1], outputs={"params.1.w": "%3", "loss": "%1"}), (1, 0)),
        (stage(1)[0], replace(stage(1)[1], groups=((("tp",), 0),)), (1, 0)),
        (replace(stage(1)[0], layouts={}), *stage(1)[1:]),
    ],
    ids=["another op", "to another stage", "shape", "another output", "groups", "layouts"],
)
def test_another_stage_is_not_alike(other: object) -> None:
    assert alike(stage(2), other) is None


def test_a_rank_that_rises_otherwise_is_no_such_rank() -> None:
    """Its slice begins elsewhere, so what it holds is not what another stage says."""
    like = some(alike(stage(2, by=3), stage(1)))
    lent = some(like.lent(stage(2, by=3)[0], stage(1)[0], stage(1, 3)[0], 23))
    assert not agrees(lent, stage(2, 3, by=3)[0])


def test_a_rank_that_lies_elsewhere_is_no_such_rank() -> None:
    like = some(alike(stage(2), stage(1)))
    lent = some(like.lent(stage(2)[0], stage(1)[0], stage(1, 3)[0], 23))
    traced = stage(2, 3)[0]
    moved = replace(traced.layouts["params.2.w"], order=())
    assert agrees(lent, traced) and not agrees(lent, replace(traced, layouts={"params.2.w": moved}))


def test_what_is_cut_out_of_a_tensor_without_a_name_there_is_not_lent() -> None:
    one, other = stage(2), stage(1)
    cut = some(other[0].layouts["params.1.w"].cut)
    part = replace(some(cut.parts)[0], source="params.embedding")
    there = replace(other[0].layouts["params.1.w"], cut=replace(cut, parts=(part,)))
    like = some(alike(one, other))
    assert like.lent(one[0], other[0], replace(other[0], layouts={"params.1.w": there}), 23) is None
