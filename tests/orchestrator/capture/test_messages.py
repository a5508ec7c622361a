"""Messages of captured steps: which send meets which receive, and what is refused with both lines."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from certificates.plan.affine import Affine
from certificates.plan.plan import Mesh, Plan
from certificates.plan.types import TensorType
from orchestrator.capture import Batch, CaptureError, Definition, capture
from orchestrator.capture.builder import Draft
from orchestrator.capture.errors import GroupError, WaitError
from orchestrator.capture.fingerprint import expected_lines, traced_lines
from orchestrator.capture.fitting import FittedClass
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.messages import matched
from orchestrator.capture.running import run
from trainverify import Kind, verify

F = TensorType("f32", (4,))


# --- programs written by hand ------------------------------------------------------------------------------


def end(out: str, kind: str, to: Affine, number: int = 0, made: str = "x", **more: Any) -> Draft:
    """A send of ``made``, or a recv, along the axis ``p``."""
    fields = {"channel": "p", "number": number, "tag": 0, "members": (), **more}
    fields["to" if kind == "send" else "from"] = (to,)
    type_ = fields.pop("type_", F)
    ins = (made,) if kind == "send" else ()
    frame = ("model.py", 10 + number, kind)
    return Draft(out, kind, ins, type_, tuple(sorted(fields.items())), frame)


def fitted(box: tuple[int, int], *drafts: Draft) -> FittedClass:
    """A class of the ranks in ``box`` along ``p``; the forms are those of the drafts."""
    forms = [f for d in drafts for _, v in d.attrs if isinstance(v, tuple) for f in v]
    plain = [
        replace(
            d,
            attrs=tuple((k, tuple(Affine(0) for _ in v) if isinstance(v, tuple) else v) for k, v in d.attrs),
        )
        for d in drafts
    ]
    program = RankProgram({"x": F}, tuple(plain), {"y": drafts[-1].out}, ())
    return FittedClass({"p": box}, program, tuple(forms), ())


def numbers(classes: list[FittedClass], size: int) -> dict[tuple[int, str], int]:
    return dict(matched(Mesh({"p": size}), classes)[1])


HERE = Affine.symbol("p")


def test_the_kth_send_of_a_channel_meets_its_kth_receive() -> None:
    first = fitted((0, 1), end("%0", "send", Affine(1)), end("%1", "send", Affine(1), 1))
    second = fitted((1, 2), end("%0", "recv", Affine(0)), end("%1", "recv", Affine(0), 1))
    found = numbers([first, second], 2)
    assert found[0, "%0"] == found[1, "%0"] != found[0, "%1"] == found[1, "%1"]


def test_communicators_are_channels_of_their_own() -> None:
    first = fitted((0, 1), end("%0", "send", Affine(1)), end("%1", "send", Affine(1), channel="p.1"))
    second = fitted((1, 2), end("%0", "recv", Affine(0), channel="p.1"), end("%1", "recv", Affine(0)))
    found = numbers([first, second], 2)
    assert found[0, "%0"] == found[1, "%1"] and found[0, "%1"] == found[1, "%0"]


def test_one_message_of_a_class_is_one_message_for_all_its_ranks() -> None:
    """Ranks 0 and 1 send to 2 and 3, which receive: pairs without anything in common but their class."""
    first = fitted((0, 2), end("%0", "send", HERE + 2))
    second = fitted((2, 4), end("%0", "recv", HERE - 2))
    assert numbers([first, second], 4) == {(0, "%0"): 0, (1, "%0"): 0}


def test_a_chain_inside_a_class_is_cut_into_ranks() -> None:
    """Ranks 1 to 3 run one program and pass on what they receive; a class does not rest on itself."""
    head = fitted((0, 1), end("%0", "send", Affine(1)))
    middle = fitted((1, 4), end("%0", "recv", HERE - 1), end("%1", "send", HERE + 1, made="%0"))
    tail = fitted((4, 5), end("%0", "recv", Affine(3)))
    classes, found = matched(Mesh({"p": 5}), [head, middle, tail])
    assert [c.box["p"] for c in classes] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert [found[i, "%1"] for i in (1, 2, 3)] == [found[i, "%0"] for i in (2, 3, 4)]
    assert len({found[0, "%0"], *(found[i, "%1"] for i in (1, 2, 3))}) == 4


def test_a_ring_of_three_is_cut_into_ranks() -> None:
    """Where ranks 0 and 1 receive from fits a rule, as any two numbers do: 2 - 2 * p, not the ring's."""
    most = fitted((0, 2), end("%0", "send", HERE + 1), end("%1", "recv", Affine.of(2, {"p": -2})))
    last = fitted((2, 3), end("%0", "send", Affine(0)), end("%1", "recv", Affine(1)))
    classes, found = matched(Mesh({"p": 3}), [most, last])
    assert [c.box["p"] for c in classes] == [(0, 1), (1, 2), (2, 3)]
    assert [found[i, "%0"] for i in range(3)] == [found[i, "%1"] for i in (1, 2, 0)]


def test_what_ranks_of_a_class_exchange_at_once_is_one_class() -> None:
    """Nobody passes on what it receives: halves 0, 1 and 2, 3 exchange in one class each."""
    left = fitted((0, 2), end("%0", "send", HERE + 2), end("%1", "recv", HERE + 2))
    right = fitted((2, 4), end("%0", "send", HERE - 2), end("%1", "recv", HERE - 2))
    assert len(matched(Mesh({"p": 4}), [left, right])[0]) == 2


def test_what_meets_nothing_is_told_once_with_the_last_that_met() -> None:
    first = fitted((0, 1), *(end(f"%{i}", "send", Affine(1), i) for i in range(3)))
    second = fitted((1, 2), *(end(f"%{i}", "recv", Affine(0), i) for i in range(2)))
    with pytest.raises(
        GroupError, match="rank 0 sends 3 messages to rank 1 on p, which receives 2"
    ) as caught:
        numbers([first, second], 2)
    assert "the last one at model.py:11 in recv" in str(caught.value)
    assert caught.value.frame == ("model.py", 12, "send") and not caught.value.others
    with pytest.raises(GroupError, match="rank 1 receives 1 message from rank 0 on p, which sends none"):
        numbers([fitted((0, 1), end("%0", "send", Affine(2))), *rest()], 3)


def rest() -> list[FittedClass]:
    return [
        fitted((1, 2), end("%0", "recv", Affine(0))),
        fitted((2, 3), end("%0", "recv", Affine(0))),
    ]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"type_": TensorType("f32", (2, 2))}, r"f32\[4\] is received as f32\[2,2\] at model.py:10 in recv"),
        ({"type_": TensorType("bf16", (4,))}, r"f32\[4\] is received as bf16\[4\]"),
        ({"tag": 3}, "what is sent with tag 0 is received with tag 3"),
    ],
)
def test_ends_that_do_not_fit_are_refused(other: dict[str, Any], message: str) -> None:
    first = fitted((0, 1), end("%0", "send", Affine(1)))
    second = fitted((1, 2), end("%0", "recv", Affine(0), **other))
    with pytest.raises(GroupError, match=f"message 0 from rank 0 to rank 1 on p: {message}"):
        numbers([first, second], 2)


def test_a_rule_that_leaves_the_mesh_is_refused() -> None:
    with pytest.raises(GroupError, match=r"names the rank {'p': 2}, which the mesh does not have"):
        numbers([fitted((0, 2), end("%0", "send", HERE + 1))], 2)


def test_channels_that_meet_at_some_ranks_only_are_refused() -> None:
    """Messages 0 to ``p`` + 1 and to 3 - ``p`` are two channels, but one at rank 1."""
    sends = fitted((0, 2), end("%0", "send", HERE + 1), end("%1", "send", Affine(3) - HERE))
    with pytest.raises(GroupError, match=r"the channel of another send at model\.py:10 in send on this rank"):
        numbers([sends], 4)


def test_what_is_made_of_itself_is_refused_with_both_lines() -> None:
    one = fitted((0, 1), end("%0", "recv", Affine(1)), end("%1", "send", Affine(1), made="%0"))
    two = fitted((1, 2), end("%0", "recv", Affine(0)), end("%1", "send", Affine(0), made="%0"))
    with pytest.raises(GroupError, match="what is sent is made of itself") as caught:
        numbers([one, two], 2)
    assert caught.value.message.count("at model.py:10 in send") == 2


# --- steps -------------------------------------------------------------------------------------------------


class Two(nn.Module):
    """Two layers; a stage holds one of them under its name."""

    def __init__(self, first: nn.Module | None, second: nn.Module | None) -> None:
        super().__init__()
        self.first, self.second = first, second


def build() -> nn.Module:
    return Two(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))


def alone(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    loss = model.second(model.first(batch["x"]).tanh()).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


Talk = Callable[[Any, torch.Tensor], torch.Tensor]


def waits(work: Any) -> None:
    work.wait()


def in_a_batch(sends: torch.Tensor | None, receives: torch.Tensor | None, there: int) -> None:
    ops = [dist.P2POp(dist.isend, sends, there)] if sends is not None else []
    ops += [dist.P2POp(dist.irecv, receives, there)] if receives is not None else []
    for work in dist.batch_isend_irecv(ops):
        work.wait()


#: Ways to hand a tensor on, and to take one.
SENDS: dict[str, Callable[[torch.Tensor, int], None]] = {
    "send": lambda x, there: dist.send(x, there),
    "isend": lambda x, there: waits(dist.isend(x, there)),
    "batch": lambda x, there: in_a_batch(x, None, there),
}
RECEIVES: dict[str, Callable[[torch.Tensor, int], None]] = {
    "send": lambda x, there: dist.recv(x, there) and None,
    "isend": lambda x, there: waits(dist.irecv(x, there)),
    "batch": lambda x, there: in_a_batch(None, x, there),
}


def pipeline(how: str = "send", **changes: Any) -> Definition:
    """Two stages, each with replicas if the mesh has ``dp``; messages are sent ``how``."""
    send, receive = SENDS[how], RECEIVES[how]

    def together(model: Any, optimizer: Any, batch: Any) -> Mapping[str, torch.Tensor]:
        x, results = batch["x"], {}
        here, size = dist.get_rank(), dist.get_world_size()
        if model.first is not None:
            y = model.first(x).tanh()
            send(y.detach(), here + size // 2)
            gradient = torch.empty_like(y)
            receive(gradient, here + size // 2)
            y.backward(gradient)
        else:
            y = torch.empty_like(x)
            receive(y, here - size // 2)
            y.requires_grad_()
            results["loss"] = model.second(y).square().sum()
            results["loss"].backward()
            send(y.grad, here - size // 2)
        optimizer.step()
        optimizer.zero_grad()
        return results

    fields: dict[str, Any] = {
        "name": "two",
        "mesh": {"pp": 2},
        "build": build,
        "parallelize": lambda m, mesh: (
            Two(m.first, None) if mesh.get_local_rank("pp") == 0 else Two(None, m.second)
        ),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "step": alone,
        "parallel_step": together,
        "batch": {"x": Batch((4, 3))},
    }
    return Definition(**(fields | changes))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return capture(pipeline(), jobs=1)


def test_stages_are_classes_with_states_and_outputs_of_their_own(plan: Plan) -> None:
    first, second = plan.classes
    assert set(first.program.outputs) == {"params.first.weight"}
    assert set(second.program.outputs) == {"params.second.weight", "loss"}
    held = {r.spec: [p.cls for p in r.pieces] for r in plan.inputs}
    assert held["params.first.weight"] == ["c0"] and held["params.second.weight"] == ["c1"]
    assert plan.version == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["isend", "batch"])
def test_ways_to_send_are_one_plan(plan: Plan, how: str) -> None:
    other = capture(pipeline(how), jobs=1)
    assert [c.program.ops for c in other.classes] != []
    for one, two in zip(plan.classes, other.classes, strict=True):
        assert [(o.name, o.ins, o.attrs) for o in one.program.ops] == [
            (o.name, o.ins, o.attrs) for o in two.program.ops
        ]


def test_the_plan_is_proved_and_what_runs(plan: Plan) -> None:
    assert verify(plan).kind is Kind.PROVED
    assert run(plan, pipeline(), steps=2).largest < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_launch_is_compared_message_by_message(plan: Plan, rank: int) -> None:
    want = [line.text for line in expected_lines(plan, rank)]
    assert want == [line.text for line in traced_lines(pipeline(), plan, rank)]
    assert sum("channel=pp 0 0" in line for line in want) == 2
    other = replace(plan, provenance={**plan.provenance, "messages": ["0 pp 1 0", "1 pp 0 0"]})
    assert want != [line.text for line in expected_lines(other, rank)]


@pytest.mark.slow
def test_replicas_that_exchange_their_messages_are_refuted() -> None:
    """Every message arrives, at the dp neighbour's stage: the batch of one replica, the labels of another."""
    mesh, batch = {"pp": 2, "dp": 2}, {n: Batch((4, 3), shard={"dp": 0}) for n in ("x", "y")}

    def together(model: Any, optimizer: Any, batch: Any, cross: int = 0) -> Mapping[str, torch.Tensor]:
        here, x, results = dist.get_rank(), batch["x"], {}
        there = (here + 2) % 4 ^ cross
        if model.first is not None:
            y = model.first(x).tanh()
            dist.send(y.detach(), there)
            gradient = torch.empty_like(y)
            dist.recv(gradient, there)
            y.backward(gradient)
        else:
            y = torch.empty_like(x)
            dist.recv(y, there)
            y.requires_grad_()
            results["loss"] = (model.second(y) - batch["y"]).square().sum()
            results["loss"].backward()
            dist.send(y.grad, there)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=model.replicas)
        optimizer.step()
        optimizer.zero_grad()
        return {n: t / 1 for n, t in results.items()}

    def plain(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = (model.second(model.first(batch["x"]).tanh()) - batch["y"]).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss / 2}

    def parallelize(model: Any, mesh: Any) -> nn.Module:
        stage = Two(model.first, None) if mesh.get_local_rank("pp") == 0 else Two(None, model.second)
        stage.replicas = mesh["dp"].get_group()
        return stage

    for cross, kind in ((0, Kind.PROVED), (1, Kind.REFUTED)):
        step = functools.partial(together, cross=cross)
        made = pipeline(
            mesh=mesh, batch=batch, parallelize=parallelize, parallel_step=step, step=plain,
            mean_over={"loss": ("dp",)},
        )  # fmt: skip
        assert verify(capture(made, jobs=1)).kind is kind


@pytest.mark.slow
def test_stages_of_one_program_are_classes_of_one_rank_each() -> None:
    """Weights are stacked and cut over the stages: the middle ones run one program, in a chain."""
    stages = 4

    class Stack(nn.Module):
        def __init__(self, w: torch.Tensor) -> None:
            super().__init__()
            self.w = nn.Parameter(w)

    def plain(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        x = batch["x"]
        for i in range(stages):
            x = torch.tanh(x @ model.w[i])
        return {"y": x.clone()}

    def together(model: Any, optimizer: Any, batch: Any) -> Mapping[str, torch.Tensor]:
        x, here = batch["x"], dist.get_rank()
        if here:
            x = torch.empty_like(x)
            dist.recv(x, here - 1)
        y = torch.tanh(x @ model.w[0])
        if here == stages - 1:
            return {"y": y.detach()}
        dist.send(y.detach(), here + 1)
        return {}

    made = pipeline(
        mesh={"pp": stages},
        build=lambda: Stack(torch.zeros(stages, 3, 3)),
        parallelize=lambda m, mesh: Stack(m.w.detach().chunk(stages)[mesh.get_local_rank("pp")]),
        step=plain,
        parallel_step=together,
    )
    plan = capture(made, jobs=1)
    assert [c.box["pp"] for c in plan.classes] == [(i, i + 1) for i in range(stages)]
    assert verify(plan).kind is Kind.PROVED


def said(talk: Callable[[int], object], **changes: Any) -> Definition:
    """A step whose ranks ``talk`` and compute nothing."""

    def together(model: Any, optimizer: Any, batch: Any) -> Mapping[str, torch.Tensor]:
        talk(dist.get_rank())
        return pipeline().parallel_step(model, optimizer, batch)  # type: ignore[misc]

    return pipeline(parallel_step=together, **changes)


def never_received(rank: int) -> None:
    if rank == 0:
        dist.send(torch.zeros(2), 1, group=None, tag=7)


def waits_for_none(rank: int) -> None:
    if rank == 0:
        dist.isend(torch.zeros(3), 1)
    else:
        dist.recv(torch.zeros(3), 0)


def of_another_shape(rank: int) -> None:
    if rank == 0:
        dist.send(torch.zeros(2, 3), 1)
    else:
        dist.recv(torch.zeros(3, 2), 0)


def from_anybody(rank: int) -> None:
    if rank == 0:
        dist.send(torch.zeros(2), 1)
    else:
        work = dist.irecv(torch.zeros(2))
        work.wait()


def used_early(rank: int) -> None:
    if rank == 0:
        x = torch.zeros(2)
        work = dist.isend(x, 1)
        x.add_(1)
        work.wait()
    else:
        dist.recv(torch.zeros(2), 0)


def to_itself(rank: int) -> None:
    x = torch.zeros(2)
    works = [dist.isend(x, rank), dist.irecv(torch.zeros(2), rank)]
    for work in works:
        work.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("talk", "kind", "message", "line"),
    [
        (never_received, GroupError, r"f32\[2\] is received as f32\[4,3\]", "dist.send("),
        (waits_for_none, WaitError, "nobody waits for a send", "dist.isend("),
        (of_another_shape, GroupError, r"f32\[2,3\] is received as f32\[3,2\]", "dist.send("),
        (from_anybody, GroupError, "a recv from any rank", "dist.irecv("),
        (used_early, WaitError, "an operand of dist.send is overwritten", "x.add_(1)"),
        (to_itself, GroupError, "a rank sends to itself", "works ="),
    ],
)
def test_what_is_said_wrongly_has_its_line(talk: Any, kind: Any, message: str, line: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        capture(said(talk), jobs=1)
    found = next(p for p in caught.value.problems() if p.message.find(message[:12].replace("\\", "")) >= 0)
    assert isinstance(found, kind) and found.instead
    file, number, _ = found.frame or ("", 0, "")
    assert file == __file__ and line in linecache.getline(file, number)
