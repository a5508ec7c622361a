"""From how ranks are cut to layouts."""

from __future__ import annotations

import pytest
import torch

from certificates.plan.affine import Affine
from certificates.plan.plan import Mesh
from orchestrator.capture.cutting import Cut
from orchestrator.capture.errors import LayoutError
from orchestrator.capture.layouts import padded_shape
from orchestrator.capture.origins import Part
from orchestrator.capture.placing import Placement, agree, compare, derive
from orchestrator.capture.recorder import reference

MESH = Mesh({"dp": 2, "tp": 2})


def cut(starts: tuple[int, ...], sizes: tuple[int, ...], source: str = "w") -> Cut:
    symbols = tuple(Affine.symbol(f"z{d}") for d in range(len(sizes)))
    part = Part(sizes, symbols, source, tuple(s + n for s, n in zip(symbols, starts, strict=True)))
    return Cut((part,), None, sizes)


@pytest.mark.parametrize(
    ("shards", "order", "boxes"),
    [
        ({}, (), [((0, 8), (0, 4))] * 4),
        ({"tp": 0}, ("tp",), [((0, 4), (0, 4)), ((4, 4), (0, 4))] * 2),
        ({"dp": 0, "tp": 1}, ("dp", "tp"), [((a, 4), (b, 2)) for a in (0, 4) for b in (0, 2)]),
        ({"dp": 0, "tp": 0}, ("tp", "dp"), [((a, 2), (0, 4)) for a in (0, 4, 2, 6)]),
        ({"dp": 0, "tp": 0}, ("dp", "tp"), [((a, 2), (0, 4)) for a in (0, 2, 4, 6)]),
    ],
    ids=str,
)
def test_a_layout_is_found_from_the_cuts_and_agrees_with_them(shards, order, boxes) -> None:
    placement = Placement(shards, order)
    assert [placement.box((8, 4), MESH, r) for r in range(4)] == boxes
    cuts = {r: cut(tuple(lo for lo, _ in box), tuple(n for _, n in box)) for r, box in enumerate(boxes)}
    compare("w", (8, 4), placement, MESH, cuts)
    found = derive("w", (8, 4), MESH, cuts)
    assert found is not None and [found.box((8, 4), MESH, r) for r in range(4)] == boxes
    assert len(found.order) == len(order), "no axis that is not needed"


def test_every_rank_that_contradicts_a_layout_is_named() -> None:
    cuts = {r: cut((4 * (r % 2), 0), (4, 4)) for r in range(4)}
    with pytest.raises(LayoutError, match="where its layout implies") as caught:
        compare("w", (8, 4), Placement({"dp": 0}, ("dp",)), MESH, cuts)
    assert sorted(p.rank for p in caught.value.problems()) == [1, 2]
    with pytest.raises(LayoutError):
        compare("v", (8, 4), Placement({"tp": 0}, ("tp",)), MESH, cuts)


def test_what_a_broadcast_passed_on_must_be_one_tensor() -> None:
    one, other = Cut(None, None, (1,), agreed=(("b", "x"),)), Cut(None, None, (1,), agreed=(("b", "y"),))
    agree("w", {0: one, 1: one})
    with pytest.raises(LayoutError, match="ranks 0 and 2 pass different tensors"):
        agree("w", {0: one, 1: one, 2: other})


def test_only_dense_rows_at_the_start_of_a_longer_storage_are_padded() -> None:
    storage = torch.zeros(4, 3)

    def shape(view: torch.Tensor) -> tuple[int, ...] | None:
        return padded_shape(view, reference(view))

    assert shape(storage[:3]) == (4, 3)
    assert shape(storage) is None
    assert shape(storage[1:]) is None
    assert shape(storage[:, :2]) is None
    assert shape(storage.view(-1)[:9].view(3, 3)) == (4, 3)
    assert shape(storage.view(-1)[:10].view(2, 5)) is None
