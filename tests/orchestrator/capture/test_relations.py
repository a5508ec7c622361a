"""Relations of tensors that all ranks hold, that some hold, and that none does."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

from certificates.plan.affine import Affine
from certificates.plan.plan import Mesh, RankClass
from certificates.plan.program import Op, Program
from certificates.plan.types import TensorType
from orchestrator.capture import Batch, CaptureError, Definition
from orchestrator.capture.counts import Counts
from orchestrator.capture.cutting import Cut
from orchestrator.capture.errors import DefinitionError, LayoutError
from orchestrator.capture.fitting import Sample
from orchestrator.capture.layouts import Layout
from orchestrator.capture.origins import Part
from orchestrator.capture.relations import Relations
from orchestrator.capture.renaming import Renamed

F, S = TensorType("f32", (4, 4)), TensorType("f32", ())
MESH = Mesh({"pp": 2, "dp": 2})
Z = (Affine.symbol("z0"), Affine.symbol("z1"))


def definition(**changes: Any) -> Definition:
    fields: dict[str, Any] = {
        "name": "written",
        "mesh": dict(MESH.axes),
        "build": lambda: nn.Linear(4, 4),
        "parallelize": lambda model, mesh: model,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "step": lambda model, optimizer, batch: {},
        "batch": {"x": Batch((4, 4))},
    }
    return Definition(**(fields | changes))


def program(*states: str, loss: bool) -> Program:
    """Each state is squared; the loss is the sum of the batch."""
    inputs = {**dict.fromkeys(states, F), "batch.x": F}
    ops = [Op(f"%{i}", "multiply", (name, name), F, {}) for i, name in enumerate(states)]
    outputs = {name: f"%{i}" for i, name in enumerate(states)}
    if loss:
        ops.append(Op("%9", "reduce", ("batch.x",), S, {"dims": (0, 1), "kind": "add"}))
        outputs["loss"] = "%9"
    return Program(inputs, tuple(ops), outputs)


def whole(name: str, declared: Mapping[str, int] | None = None) -> Layout:
    cut = Cut((Part((4, 4), Z, name, Z),), None, (4, 4))
    return Layout(declared, tuple(declared or {}), (4, 4), name.partition(".")[2], cut)


def related(
    held: Mapping[int, tuple[str, ...]],
    losses: Mapping[int, bool],
    **changes: Any,
) -> Relations:
    """The classes are the stages, or the ranks if ``held`` has four; each holds these states."""
    names = ("params.a", "params.b")
    points = [MESH.coordinates(r) for r in range(4)] if len(held) == 4 else [{"pp": 0}, {"pp": 1}]
    classes = [
        RankClass(
            f"c{i}",
            {a: (at[a], at[a] + 1) if a in at else (0, 2) for a in MESH.axes},
            program(*held[i], loss=losses[i]),
        )
        for i, at in enumerate(points)
    ]
    traces = [
        Sample(r, "", (), {n: whole(n) for n in held[r if len(held) == 4 else r // 2]}, 0, None)
        for r in range(4)
    ]
    spec = program(*names, loss=True)
    defined, boxes = definition(**changes), [c.box for c in classes]
    renamed = Renamed(spec.inputs, defined.buckets, traces)
    return Relations(defined, MESH, spec, classes, traces, boxes, renamed, Counts({}))


def test_a_state_is_related_on_the_classes_that_hold_it() -> None:
    found = related({0: ("params.a",), 1: ("params.b",)}, {0: False, 1: True})
    for relations in (found.inputs(), found.outputs()):
        pieces = {r.spec: [p.cls for p in r.pieces] for r in relations}
        assert pieces["params.a"] == ["c0"] and pieces["params.b"] == ["c1"]
    assert {r.spec: [p.cls for p in r.pieces] for r in found.inputs()}["batch.x"] == ["c0", "c1"]
    assert {r.spec: [p.cls for p in r.pieces] for r in found.outputs()}["loss"] == ["c1"]
    assert found.untraced() == []


def test_a_state_that_no_rank_holds_is_refused() -> None:
    found = related({0: ("params.a",), 1: ("params.a",)}, {0: True, 1: True})
    with pytest.raises(LayoutError, match="the parallel model has no such tensor on any rank") as caught:
        found.inputs()
    assert caught.value.tensor == "params.b" and caught.value.instead
    assert found.untraced() == ["params.b"]


def test_a_result_that_no_rank_returns_is_refused() -> None:
    found = related({0: ("params.a",), 1: ("params.b",)}, {0: False, 1: False})
    with pytest.raises(DefinitionError, match=r"class c0 does not return it, .* does \(tensor loss\)"):
        found.outputs()


def test_a_mean_is_returned_by_all_along_its_axes() -> None:
    """Of the last stage both replicas; what the other stage does is no concern of theirs."""
    both = {r: ("params.a", "params.b") for r in range(4)}
    mean = {"mean_over": {"loss": ("dp",)}}
    found = related(both, {0: False, 1: False, 2: True, 3: True}, **mean).outputs()
    loss = next(r for r in found if r.spec == "loss")
    assert [p.cls for p in loss.pieces] == ["c2", "c3"] and loss.reduce == ("add", ("dp",))
    assert loss.coef == Fraction(2)
    with pytest.raises(CaptureError, match=r"class c3 does not return it, .* and it is a mean over dp"):
        related(both, {0: False, 1: False, 2: True, 3: False}, **mean).outputs()


def test_replicas_need_not_all_return_a_result_that_is_no_mean() -> None:
    both = {r: ("params.a", "params.b") for r in range(4)}
    found = related(both, {0: True, 1: False, 2: False, 3: False}).outputs()
    assert [p.cls for r in found if r.spec == "loss" for p in r.pieces] == ["c0"]
