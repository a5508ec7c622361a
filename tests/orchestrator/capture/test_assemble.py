"""From traced programs to a plan, with programs written by hand in place of traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from certificates.plan.affine import Affine
from certificates.plan.types import TensorType
from orchestrator.capture import Batch, CaptureError, Definition, assemble
from orchestrator.capture.builder import Draft
from orchestrator.capture.cutting import Cut
from orchestrator.capture.definition import Bucket
from orchestrator.capture.errors import LayoutError
from orchestrator.capture.fitting import FittedClass, Sample, summarise
from orchestrator.capture.layouts import Layout
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.messages import stages
from orchestrator.capture.origins import Part
from orchestrator.capture.tracing import RankTrace

from ..plans import unproved

F = TensorType("f32", (4, 4))
STATES = {"params.w": F, "params.b": F, "buffers.scale": F}
FRAME = ("model.py", 3, "cut")


def definition(**changes: Any) -> Definition:
    fields: dict[str, Any] = {
        "name": "written",
        "mesh": {"dp": 2},
        "build": lambda: nn.Linear(4, 4),
        "parallelize": lambda model, mesh: model,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "step": lambda model, optimizer, batch: {},
        "batch": {"x": Batch((4, 4))},
    }
    return Definition(**(fields | changes))


def program(outputs: Mapping[str, str] | None = None, **inputs: TensorType) -> RankProgram:
    """A step that changes both parameters and returns a loss, of which there may be more."""
    multiply = Draft("%0", "multiply", ("params.w", "batch.x"), F, (), None)
    given = {**STATES, "batch.x": F, **inputs}
    made = {"params.w": "%0", "params.b": "params.w", "loss": "%0", **(outputs or {})}
    return RankProgram(given, (multiply,), made, ())


def whole(name: str) -> Cut:
    """A tensor of which the rank holds all."""
    z = (Affine.symbol("z0"), Affine.symbol("z1"))
    return Cut((Part((4, 4), z, name, z),), FRAME, (4, 4))


def layout(name: str, cut: Cut | None, *, declared: bool = True) -> Layout:
    """That of a plain tensor; one that was not traced is declared as replicated, or it is not."""
    known = cut is not None and cut.parts is not None
    return Layout({} if declared and not known else None, (), (4, 4), name.partition(".")[2], cut)


def layouts() -> dict[str, Layout]:
    return {name: layout(name, whole(name)) for name in STATES}


class Traces:
    """Stands for the processes that trace ranks; those that fail are told at once."""

    def __init__(
        self,
        ranks: RankProgram | None = None,
        held: Mapping[str, Layout] | None = None,
        fails: Iterable[object] = (),
    ) -> None:
        self.ranks, self.held, self.fails = ranks or program(), layouts() if held is None else held, fails
        self.jobs: set[int] = set()
        self.surveyed: list[int] = []

    def __call__(
        self, _definition: Definition, ranks: Iterable[int | None], jobs: int, known: Any, _needed: Any
    ) -> Iterator[Sample]:
        self.jobs.add(jobs)
        for rank in ranks:
            if rank in self.fails:
                raise CaptureError(f"rank {rank} fails")
            one = (program(), {}) if rank is None else (self.ranks, self.held)
            yield summarise(RankTrace(rank, *one), known)

    def survey(self, _definition: Definition, ranks: Iterable[int], jobs: int) -> list[CaptureError]:
        self.jobs.add(jobs)
        self.surveyed = list(ranks)
        return [CaptureError(f"{rank} fails, too") for rank in self.surveyed]


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Any:
    def replace(*given: Any, **more: Any) -> Traces:
        made = Traces(*given, **more)
        monkeypatch.setattr(assemble, "trace_ranks", made)
        monkeypatch.setattr(assemble, "survey", made.survey)
        return made

    return replace


def test_ops_are_numbered_in_order_and_equal_ones_are_one() -> None:
    """Integers that differ in the trace of one rank may be fitted to one form; a trace also has gaps."""
    kinds = [("%3", "multiply", "params.w"), ("%5", "multiply", "params.w"), ("%8", "add", "%5")]
    drafts = tuple(Draft(out, name, (x, "batch.x"), F, (), None) for out, name, x in kinds)
    made = assemble.rank_program(RankProgram({**STATES, "batch.x": F}, drafts, {"y": "%5", "z": "%8"}, ()))
    assert [(op.out, op.name, op.ins) for op in made.ops] == [
        ("%0", "multiply", ("params.w", "batch.x")),
        ("%1", "add", ("%0", "batch.x")),
    ]
    assert made.outputs == {"y": "%0", "z": "%1"}


def test_inputs_that_no_program_changes_are_given_or_constant(traces: Any) -> None:
    traces()
    plan = assemble.capture(definition(), jobs=1)
    assert plan.given == ("batch.x",) and plan.constants == ("buffers.scale",)
    assert "declared, not traced" not in plan.provenance


def test_a_buffer_that_ranks_change_is_claimed_to_be_as_it_was_and_is_not_proved(traces: Any) -> None:
    """One that they only broadcast looks alike to the capture (ADR 0132): the proof tells them apart."""
    traces(program({"buffers.scale": "batch.x"}))
    plan = assemble.capture(definition(), jobs=1)
    assert plan.constants == () and plan.specification.outputs["buffers.scale"] == "buffers.scale"
    assert [r.spec for r in plan.outputs if r.plan == "buffers.scale"] == ["buffers.scale"]
    assert [line.split(":")[1] for line in unproved(plan) if "batch.x" in line] == ["batch.x"]
    traces(program({"buffers.scale": "buffers.scale"}))
    assert unproved(assemble.capture(definition(), jobs=1)) == []


def test_a_result_that_the_single_device_has_not_is_no_state(traces: Any) -> None:
    traces(program({"extra": "%0"}))
    with pytest.raises(CaptureError, match="ranks return an output that the single-device step") as caught:
        assemble.capture(definition(), jobs=1)
    assert caught.value.tensor == "extra"
    assert caught.value.instead == "the same names from step and parallel_step"


def test_as_many_ranks_are_traced_at_a_time_as_asked_for(
    traces: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = traces(fails=[1])
    with pytest.raises(CaptureError):
        assemble.capture(definition(), jobs=7)
    assert made.jobs == {7}
    monkeypatch.setattr(assemble, "_cores", lambda: 3)
    made = traces()
    assemble.capture(definition())
    assert made.jobs == {3}


@pytest.mark.parametrize(
    ("fails", "surveyed"), [(None, [0, 63]), (0, [0, 63]), (63, [63]), (1, []), (32, [])]
)
def test_when_a_trace_fails_the_first_and_the_last_rank_say_what_they_find(
    traces: Any, fails: int | None, surveyed: list[int]
) -> None:
    """A mistake of the last rank alone is told with that of the first, not in the next attempt: it is traced
    second."""
    made = traces(fails=[fails])
    with pytest.raises(CaptureError) as caught:
        assemble.capture(definition(mesh={"dp": 64}), jobs=1)
    told = [p.message for p in caught.value.problems()]
    assert made.surveyed == surveyed
    assert told == [f"rank {fails} fails", *(f"{rank} fails, too" for rank in surveyed)]


def test_wrong_names_are_told_with_what_a_rank_finds(traces: Any) -> None:
    """Those that the traces that came to an end can judge: of the single device, and of ranks."""
    wrong = definition(layouts={"v": {}}, buckets={"opt.flat": Bucket(("params.w",))})
    for fails in ([1], []):
        traces(fails=fails)
        with pytest.raises(CaptureError) as caught:
            assemble.capture(wrong, jobs=1)
        told = {p.message for p in caught.value.problems()}
        assert "layouts names 'v', which is no parameter, buffer or state of the optimizer" in told
        assert "buckets names 'opt.flat', which no rank has" in told
        assert ("rank 1 fails" in told) == bool(fails)


def test_the_plan_tells_what_rests_on_a_declaration(traces: Any) -> None:
    """Parameters and buffers that were made anew, or are not known to be cut at all; no results, no batch."""
    made_anew = Cut(None, FRAME, (4, 4), "is made anew")
    anew = {"params.w": layout("params.w", made_anew), "buffers.scale": layout("buffers.scale", None)}
    traces(held=layouts() | anew)
    plan = assemble.capture(definition(), jobs=1)
    assert plan.provenance["declared, not traced"] == ["params.w", "buffers.scale"]
    traces(held={name: held for name, held in layouts().items() if name != "buffers.scale"})
    plan = assemble.capture(definition(), jobs=1)
    assert plan.provenance["declared, not traced"] == ["buffers.scale"]


@pytest.mark.parametrize("axis", ["dp", None])
def test_a_bucket_rests_on_its_declaration(traces: Any, axis: str | None) -> None:
    """Chunks are not compared with what they list; the tensors that they list are nobody's any more."""
    flat = TensorType("f32", (8 if axis else 16,))
    given = {n: t for n, t in {**STATES, "params.flat": flat, "batch.x": F}.items() if n != "params.b"}
    draft = Draft("%0", "multiply", ("params.w", "batch.x"), F, (), None)
    made = RankProgram(given, (draft,), {"params.w": "%0", "loss": "%0", "params.flat": "params.flat"}, ())
    held = {name: held for name, held in layouts().items() if name != "params.b"}
    traces(made, held | {"params.flat": layout("params.flat", None)})
    bucket = Bucket(("params.b",), axis)
    plan = assemble.capture(definition(buckets={"params.flat": bucket}), jobs=1)
    assert plan.provenance["declared, not traced"] == ["params.flat"]
    assert [c.box["dp"] for c in plan.classes] == ([(0, 1), (1, 2)] if axis else [(0, 2)])
    for relations in (plan.inputs, plan.outputs):
        (found,) = [r for r in relations if r.plan == "params.flat"]
        assert found.spec == "params.b" and len(found.pieces) == len(plan.classes)


@pytest.mark.parametrize(
    ("cut", "message", "frame"),
    [
        (Cut(None, FRAME, (4, 4), "is made anew"), "see Definition.layouts: it is made anew", FRAME),
        (None, "see Definition.layouts", None),
    ],
)
def test_a_plain_tensor_of_which_nothing_is_known_needs_a_layout(
    traces: Any, cut: Cut | None, message: str, frame: object
) -> None:
    """The state of an optimizer that has another shape than its parameter was not seen to be cut."""
    traces(held=layouts() | {"params.w": layout("params.w", cut, declared=False)})
    made = definition()
    with pytest.raises(LayoutError) as caught:
        assemble.capture(made, jobs=1)
    assert {(p.message, p.tensor, p.frame) for p in caught.value.problems()} == {
        (f"a plain tensor without a declared layout; {message}", "params.w", frame or made.frame)
    }


def test_a_bucket_that_has_a_name_of_the_single_devices_is_told_so(traces: Any) -> None:
    """Its layout is not what is missing."""
    traces(held=layouts() | {"params.w": layout("params.w", None, declared=False)})
    made = definition(buckets={"params.w": Bucket(("params.w", "params.b"), "dp")})
    with pytest.raises(LayoutError, match="its Bucket is not that of the ranks' alone") as caught:
        assemble.capture(made, jobs=1)
    assert {p.instead for p in caught.value.problems()} == {
        "another name for what the ranks keep in pieces: of their parameter, or key of their state"
    }


# --- collectives within stages -----------------------------------------------------------------------------


class Shifted(nn.Module):
    """The weight of a stage, and the group of its replicas."""

    def __init__(self, weight: torch.Tensor, group: Any = None) -> None:
        super().__init__()
        self.w, self.group = nn.Parameter(weight), group


def centred(x: torch.Tensor, group: Any) -> torch.Tensor:
    total = x.sum(0)
    if group is not None:
        dist.all_reduce(total, group=group)
    return x - total / 8


def stages_with_replicas(*, whole: bool = True) -> Definition:
    """Both stages take a mean over their replicas: the first before it sends, the second, of its labels, once
    it has received. Not ``whole``: the second takes none."""

    def alone(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        y = (centred(batch["x"], None) @ model.w).tanh()
        return {"d": (y - centred(batch["y"], None)).square().sum()}

    def together(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        rank = dist.get_rank()
        if rank < 2:
            dist.send((centred(batch["x"], model.group) @ model.w).tanh().detach(), rank + 2)
            return {}
        y = torch.empty_like(batch["x"])
        dist.recv(y, rank - 2)
        labels = centred(batch["y"], model.group) if whole else batch["y"]
        distance = (y - labels).square().sum()
        dist.all_reduce(distance, group=model.group)
        return {"d": distance}

    return definition(
        mesh={"pp": 2, "dp": 2},
        build=lambda: Shifted(torch.zeros(4, 4)),
        parallelize=lambda m, mesh: Shifted(m.w.detach(), mesh["dp"].get_group()),
        step=alone,
        parallel_step=together,
        batch={n: Batch((8, 4), shard={"dp": 0}) for n in ("x", "y")},
    )


def test_stages_call_collectives_of_their_own() -> None:
    """The communicators of two stages have one name and one order; the second stage's waits for the first."""
    plan = assemble.capture(stages_with_replicas(), jobs=1)
    met = [{op.integer("seq") for op in c.program.ops if op.name == "all_reduce"} for c in plan.classes]
    assert [len(seqs) for seqs in met] == [1, 2] and not met[0] & met[1]
    assert unproved(plan) == []
    assert unproved(assemble.capture(stages_with_replicas(whole=False), jobs=1)) != []


def at(**box: tuple[int, int]) -> FittedClass:
    return FittedClass(box, RankProgram({}, (), {}, ()), (), ())


def test_stages_lie_along_axes_that_messages_cross() -> None:
    """Classes 1 and 2 are one stage: class 2 has ranks beside those of 1, and some of class 3's place."""
    boxes = [
        at(pp=(0, 1), dp=(0, 3)), at(pp=(1, 3), dp=(0, 2)), at(pp=(1, 2), dp=(2, 3)),
        at(pp=(2, 3), dp=(2, 3)), at(pp=(3, 4), dp=(0, 3)),
    ]  # fmt: skip
    sent = {(0, "%0"): 0, (1, "%0"): 0, (1, "%1"): 1, (4, "%0"): 1}
    assert stages(boxes, sent) == [{"pp": 1}, {"pp": 2}, {"pp": 2}, {"pp": 2}, {"pp": 3}]
    assert stages(boxes, {}) == [{}] * 5, "without messages all that is called alike is one rendezvous"
    assert stages(boxes, {(1, "%0"): 0, (2, "%0"): 0})[0] == {"dp": 1}
