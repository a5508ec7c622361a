"""States of ranks that have names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from certificates.plan.affine import Affine
from certificates.plan.plan import Mesh, RankClass
from certificates.plan.program import Op, Program
from certificates.plan.types import TensorType
from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.cutting import Cut
from orchestrator.capture.errors import CaptureError, LayoutError
from orchestrator.capture.fitting import Sample
from orchestrator.capture.layouts import Layout
from orchestrator.capture.origins import Part
from orchestrator.capture.renaming import Renamed
from trainverify import Kind, verify

MESH = Mesh({"tp": 2})
Z = Affine.symbol("z0")
SPEC = ("params.a", "params.b", "opt.m.a", "opt.m.b", "opt.step.a", "opt.step.b")


def cut(*parts: tuple[str | None, int, int, int], shape: int = 4) -> Cut:
    """Source, where in it, where in the cut, how many."""
    found = tuple(
        Part((n,), (Z + at,), source, (Z + start,) if source else ()) for source, start, at, n in parts
    )
    return Cut(found, None, (shape,))


def layout(
    cut_: Cut | None, local: tuple[int, ...] = (4,), shards: Mapping[str, int] | None = None
) -> Layout:
    return Layout(shards, tuple(shards or ()), local, "q", cut_)


def renamed(*cuts: Cut | None, **more: Any) -> Renamed:
    """Ranks whose ``q`` was cut so, with two states of an optimizer."""
    samples = [
        Sample(
            rank,
            "",
            (),
            {"params.q": layout(c, **more), "opt.m.q": layout(c, **more), "opt.step.q": layout(None, (), {})},
            0,
            None,
        )
        for rank, c in enumerate(cuts)
    ]
    return Renamed(SPEC, (), samples)


def classes(*boxes: tuple[int, int], left: bool = True) -> list[RankClass]:
    whole = TensorType("f32", (4,))
    inputs = {"params.q": whole, "opt.m.q": whole, "opt.step.q": TensorType("f32", ())}
    ops = (Op("%0", "negate", ("params.q",), inputs["params.q"], {}),)
    program = Program(inputs, ops, {"params.q": "%0"} if left else {})
    return [RankClass(f"c{i}", {"tp": box}, program) for i, box in enumerate(boxes)]


def pieces(found: Renamed, name: str, of: list[RankClass], *, left: bool = False) -> list[str]:
    boxes = [c.box for c in of]
    relations = found.relations(name, (8,), MESH, of, boxes, left=left)
    return [
        f"{r.spec} {r.plan} {p.cls} {p.plan[0]} {p.spec[0]} {p.sizes[0]}" for r in relations for p in r.pieces
    ]


def test_a_part_of_another_name_and_what_the_optimizer_keeps_for_it() -> None:
    found = renamed(cut(("params.a", 0, 0, 4)), cut(("params.a", 4, 0, 4)))
    assert found.holds == {
        "params.q": {"params.a": "params.a"},
        "opt.m.q": {"opt.m.a": "params.a"},
        "opt.step.q": {"opt.step.a": "params.a"},
    }
    assert pieces(found, "params.a", classes((0, 2)), left=True) == ["params.a params.q c0 z0 4*tp + z0 4"]
    assert pieces(found, "opt.m.a", classes((0, 2))) == ["opt.m.a opt.m.q c0 z0 4*tp + z0 4"]
    assert found.under("params.a") == ["params.q"] and found.under("params.b") == []
    (one,) = found.relations("opt.step.a", (), MESH, classes((0, 2)), [{"tp": (0, 2)}])
    assert (one.spec, one.plan, [p.sizes for p in one.pieces]) == ("opt.step.a", "opt.step.q", [()])


def test_two_tensors_in_one_and_padding() -> None:
    found = renamed(*2 * [cut(("params.a", 0, 0, 1), ("params.b", 5, 1, 2), (None, 0, 3, 1))])
    assert found.holds["params.q"] == {"params.a": "params.a", "params.b": "params.b"}
    assert pieces(found, "params.b", classes((0, 2))) == ["params.b params.q c0 z0 + 1 z0 + 5 2"]
    assert found.complete(["params.a", "params.b"]) == {"params.q"}
    assert found.complete(["params.a"]) == set(), "what no one claims of a part is no output"


def test_axes_along_which_ranks_hold_parts_of_other_forms() -> None:
    """A flat piece ends inside a tensor on one rank, and begins with another on the next."""
    found = renamed(cut(("params.a", 0, 0, 4)), cut(("params.a", 4, 0, 1), ("params.b", 0, 1, 3)))
    assert found.unlike(MESH, [{"tp": (0, 2)}]) == ["tp"]
    assert found.unlike(MESH, [{"tp": (0, 1)}, {"tp": (1, 2)}]) == []
    assert pieces(found, "params.a", classes((0, 1), (1, 2))) == [
        "params.a params.q c0 z0 z0 4",
        "params.a params.q c1 z0 z0 + 4 1",
    ]
    with pytest.raises(LayoutError, match="run one program but hold other parts"):
        pieces(found, "params.a", classes((0, 2)))
    replicas = renamed(*2 * [cut(("params.a", 0, 0, 4)), cut(("params.a", 4, 0, 1), ("params.b", 0, 1, 3))])
    assert replicas.unlike(Mesh({"dp": 2, "tp": 2}), [{"dp": (0, 2), "tp": (0, 2)}]) == ["tp"]


@pytest.mark.parametrize(
    "cuts",
    [
        [cut(("params.a", 0, 0, 4)), None],
        [Cut(None, None, (4,), "is computed by add", computed=True)] * 2,
        [cut(("params.c", 0, 0, 4))] * 2,
        [cut((None, 0, 0, 4))] * 2,
    ],
)
def test_what_is_not_followed_holds_nothing(cuts: list[Cut | None]) -> None:
    assert renamed(*cuts).holds == {}


def test_names_that_others_tell_of_are_left_to_them() -> None:
    samples = renamed(*2 * [cut(("params.a", 0, 0, 4))]).traces
    assert "params.q" not in Renamed(SPEC, ("params.q",), samples).holds
    assert "params.q" not in Renamed((*SPEC, "params.q"), (), samples).holds
    summed = [
        replace(s, layouts={n: replace(x, summed=("tp",)) for n, x in s.layouts.items()}) for s in samples
    ]
    assert Renamed(SPEC, (), summed).holds == {}


def test_a_layout_that_is_not_how_it_was_cut_is_refused() -> None:
    found = renamed(cut(("params.a", 0, 0, 4)), cut(("params.a", 0, 0, 4)), shards={"tp": 0})
    with pytest.raises(LayoutError, match="where its layout implies"):
        pieces(found, "params.a", classes((0, 2)))
    agreed = renamed(cut(("params.a", 0, 0, 4)), cut(("params.a", 4, 0, 4)), shards={"tp": 0})
    assert pieces(agreed, "params.a", classes((0, 2)))


def test_what_a_broadcast_passed_on_must_be_one_tensor() -> None:
    one = replace(cut(("params.a", 0, 0, 4)), agreed=(("dp#0.0", "x"),))
    found = renamed(one, replace(one, agreed=(("dp#0.0", "y"),)))
    with pytest.raises(LayoutError, match="pass different tensors"):
        pieces(found, "params.a", classes((0, 2)))


def test_ranks_without_the_tensor_are_not_asked_and_buffers_have_names_too() -> None:
    part, other = layout(cut(("buffers.a", 0, 0, 4))), layout(cut(("params.a", 0, 0, 4)))
    held = [{"buffers.q": part}, {"params.q": other, "opt.step.q": layout(None, (), {})}]
    samples = [Sample(rank, "", (), of, 0, None) for rank, of in enumerate(held)]
    found = Renamed((*SPEC, "buffers.a"), (), [*samples, Sample(None, "", (), held[0], 0, None)])
    assert found.holds["buffers.q"] == {"buffers.a": "buffers.a"}
    assert found.holds["opt.step.q"] == {"opt.step.a": "params.a"}
    nobody = [RankClass("c0", {"tp": (0, 1)}, Program({}, (), {}))]
    assert pieces(found, "opt.step.a", nobody) == pieces(found, "buffers.a", nobody) == []


def test_a_class_that_leaves_its_part_alone_is_refused() -> None:
    found = renamed(cut(("params.a", 0, 0, 4)), cut(("params.a", 4, 0, 4)))
    assert pieces(found, "params.a", classes((0, 2), left=False))
    with pytest.raises(LayoutError, match=r"which the single-device step changes and class c0 does not"):
        pieces(found, "params.a", classes((0, 2), left=False), left=True)


# --- a whole step ------------------------------------------------------------------------------------------


class Halves(nn.Module):
    """A rank's half of both halves of a fused weight."""

    def __init__(self, model: nn.Linear, rank: int, *, right: bool) -> None:
        super().__init__()
        halves = model.weight.detach().chunk(2)
        self.gate = nn.Parameter(halves[0].chunk(2)[rank].clone())
        self.up = nn.Parameter(halves[1].chunk(2)[rank if right else 1 - rank].clone())
        self.group: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.gate.T) * (x @ self.up.T)


def definition(*, right: bool = True, **changes: Any) -> Definition:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        if isinstance(model, nn.Linear):
            gate, up = model(batch["x"]).chunk(2, -1)
            total = (gate * up).sum()
        else:
            total = model(batch["x"]).sum()
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not isinstance(model, nn.Linear):
            total = total.detach()
            torch.distributed.all_reduce(total)
        return {"loss": total}

    fields: dict[str, Any] = {
        "name": "halves",
        "mesh": {"tp": 2},
        "build": lambda: nn.Linear(3, 8, bias=False),
        "parallelize": lambda model, mesh: Halves(model, mesh.get_local_rank("tp"), right=right),
        "optimizer": lambda params: torch.optim.Adam(params),
        "step": step,
        "batch": {"x": Batch((2, 3))},
    }
    return Definition(**(fields | changes))


def test_parts_of_a_fused_weight_are_proved_and_parts_of_other_rows_are_not() -> None:
    plan = capture(definition(), jobs=1)
    held = {(r.spec, r.plan) for r in plan.outputs}
    assert {("params.weight", f"params.{n}") for n in ("gate", "up")} < held
    assert {("opt.step.weight", f"opt.step.{n}") for n in ("gate", "up")} < held
    assert "declared, not traced" not in plan.provenance
    assert verify(plan, jobs=1).kind is Kind.PROVED
    assert verify(capture(definition(right=False), jobs=1), jobs=1).kind is Kind.REFUTED


def test_a_state_that_is_computed_from_the_models_values_has_no_other_name() -> None:
    class Doubled(nn.Module):
        def __init__(self, model: nn.Linear) -> None:
            super().__init__()
            self.w = nn.Parameter(model.weight.detach() * 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.w)

    with pytest.raises(CaptureError, match="a state that the single-device step does not have"):
        capture(definition(parallelize=lambda model, mesh: Doubled(model)), jobs=1)
