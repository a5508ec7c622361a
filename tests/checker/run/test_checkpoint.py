"""A sharded checkpoint against the input relation: names, shapes, parts. test_tie.py has torch's own."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.placements import Partial, Placement, Replicate, Shard
from certificates.plan.writing import dumps
from checker.errors import Malformed, Undecided
from checker.language.plan import Plan
from checker.reading.plan import read_plan
from checker.run.checkpoint import boxes, called, compare, tensors
from checker.run.foreign import Foreign

Parts = list[tuple[tuple[int, ...], tuple[int, ...]]]


# What torch pickles, by hand, under torch's names: nothing of torch is needed to write or to read it.


@dataclass
class ChunkStorageMetadata:
    offsets: Any
    sizes: Any


@dataclass
class TensorStorageMetadata:
    properties: Any
    size: Any
    chunks: list[ChunkStorageMetadata]


@dataclass
class BytesStorageMetadata:
    pass


@dataclass
class Metadata:
    state_dict_metadata: dict[str, Any]
    storage_data: dict[Any, Any] = field(default_factory=dict)


class Size(tuple[int, ...]):
    def __reduce__(self) -> Any:
        return Size, (tuple(self),)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pickles name these classes as torch's."""
    module = types.ModuleType("torch.distributed.checkpoint.metadata")
    for cls in (ChunkStorageMetadata, TensorStorageMetadata, BytesStorageMetadata, Metadata):
        monkeypatch.setattr(cls, "__module__", module.__name__)
        setattr(module, cls.__name__, cls)
    top = types.ModuleType("torch")
    top.Size = Size  # type: ignore[attr-defined]
    monkeypatch.setattr(Size, "__module__", "torch")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", top)
        patch.setitem(sys.modules, "torch.distributed", types.ModuleType("torch.distributed"))
        patch.setitem(sys.modules, "torch.distributed.checkpoint", types.ModuleType("checkpoint"))
        patch.setitem(sys.modules, module.__name__, module)
        yield


def metadata(stored: dict[str, tuple[tuple[int, ...], Parts]]) -> bytes:
    entries: dict[str, Any] = {
        name: TensorStorageMetadata(
            None, Size(size), [ChunkStorageMetadata(Size(o), Size(n)) for o, n in parts]
        )
        for name, (size, parts) in stored.items()
    }
    return pickle.dumps(Metadata(entries | {"extra": BytesStorageMetadata()}))


def step(**places: dict[str, Placement]) -> Plan:
    """Two states of 8 x 6 and a scalar on dp 2 x tp 2; `w` and `m` lie as given."""
    mesh = {"dp": 2, "tp": 2}
    spec, rank = ProgramBuilder(), ProgramBuilder(mesh)
    for name, where in places.items():
        shape = [8, 6]
        for axis, place in where.items():
            if isinstance(place, Shard):
                shape[place.dim] //= mesh[axis]
        spec.output(name.replace("__", "."), spec.input(name.replace("__", "."), "f32[8,6]"))
        local = f"f32[{','.join(map(str, shape))}]"
        rank.output(name.replace("__", "."), rank.input(name.replace("__", "."), local))
    relations = {name.replace("__", "."): where for name, where in places.items()}
    plan = build_plan(
        name="step", mesh=mesh, specification=spec.build(), classes=rank.build(), inputs=relations,
        outputs=relations,
    )  # fmt: skip
    return read_plan(dumps(plan))


PLAN = {"params__w": {"dp": Shard(0), "tp": Shard(1)}, "opt__exp_avg__w": {"tp": Shard(0)}}
W: Parts = [((r, c), (4, 3)) for r in (0, 4) for c in (0, 3)]
M: Parts = [((0, 0), (4, 6)), ((4, 0), (4, 6))]
GOOD = {"model.w": ((8, 6), W), "optimizer.state.w.exp_avg": ((8, 6), M)}


def test_a_checkpoint_of_this_plan() -> None:
    said = "checkpoint: 2 states have the shapes and the layout of the input relation"
    assert compare(step(**PLAN), metadata(GOOD)) == [said]
    more = GOOD | {"scheduler.lr": ((), [((), ())])}
    assert compare(step(**PLAN), metadata(more)) == [f"{said}; 1 more tensors were not compared"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model.w": None}, r"no tensor for the state params\.w \(tried params\.w, model\.w, w, "),
        ({"optimizer.state.w.exp_avg": None}, r"no tensor for the state opt\.exp_avg\.w"),
        ({"model.w": ((6, 8), W)}, r"model\.w of the checkpoint has the size \[6, 8\], params\.w \[8, 6\]"),
        ({"model.w": ((8, 6), W[:3])}, r"the parts of model\.w do not make the whole tensor"),
        ({"model.w": ((8, 6), [*W[:3], W[0]])}, r"the parts of model\.w do not make the whole tensor"),
        ({"model.w": ((8, 6), [*W[:3], ((5, 3), (4, 3))])}, r"a part of model\.w lies outside of it"),
        ({"model.w": ((8, 6), [*W[:3], ((4,), (12,))])}, r"a part of model\.w lies outside of it"),
        (
            {"model.w": ((8, 6), M)},
            r"model\.w of the checkpoint is cut otherwise than params\.w: the part at \[0, 0\] of "
            r"size \[4, 3\] is the plan's, not the checkpoint's",
        ),
        (
            {"optimizer.state.w.exp_avg": ((8, 6), [((0, 0), (8, 6))])},
            r"the part at \[0, 0\] of size \[4, 6\] is the plan's",
        ),
    ],
)
def test_a_foreign_one_is_refused_by_name(change: dict[str, Any], reason: str) -> None:
    stored = {n: v for n, v in (GOOD | change).items() if v is not None}
    with pytest.raises(Foreign, match=reason):
        compare(step(**PLAN), metadata(stored))


def test_axes_on_one_dimension_cut_it_in_their_order() -> None:
    plan = step(params__w={"dp": Shard(0), "tp": Shard(0)})
    assert sorted(boxes(plan, "params.w")) == [((i, 0), (2, 6)) for i in (0, 2, 4, 6)]
    assert set(boxes(step(params__w={"dp": Replicate()}), "params.w")) == {((0, 0), (8, 6))}


def test_what_no_checkpoint_stores_is_unknown() -> None:
    """Summands on ranks: nothing is said rather than something wrong."""
    with pytest.raises(Undecided, match=r"the ranks hold params\.w in summands"):
        compare(step(params__w={"dp": Partial()}), metadata({"w": ((8, 6), [((0, 0), (8, 6))])}))


def test_a_plan_without_states_has_nothing_to_compare() -> None:
    plan = step(**PLAN)
    with pytest.raises(Foreign, match="no state that a checkpoint could hold"):
        compare(replace(plan, given=("params.w", "opt.exp_avg.w")), metadata(GOOD))


def test_names_are_tried_in_order() -> None:
    stored = tensors(metadata({"w": ((), [((), ())]), "model.w": ((), [((), ())]), "step": ((), [((), ())])}))
    assert called("params.w", stored) == "model.w" and called("step", stored) == "step"


@pytest.mark.parametrize(
    "value",
    [
        {},
        [1],
        Metadata({"w": 3}),
        Metadata({"w": TensorStorageMetadata(None, (8, 6), [])}),
        Metadata({"w": {}}),
    ],
)
def test_what_is_no_metadata_is_malformed(value: object) -> None:
    with pytest.raises(Malformed, match="no checkpoint of torch"):
        compare(step(**PLAN), pickle.dumps(value))
