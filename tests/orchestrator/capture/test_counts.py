"""Step counts that ranks keep once for several parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from certificates.plan.plan import Mesh, RankClass
from certificates.plan.program import Op, Program
from certificates.plan.types import TensorType
from orchestrator.capture import capture
from orchestrator.capture.counts import ONE_FOR, Counts, counts, stood_for
from orchestrator.capture.definition import Bucket
from orchestrator.capture.errors import LayoutError, StateError
from orchestrator.capture.fitting import Sample
from orchestrator.capture.layouts import Layout
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.running import run
from tests.right_plans.front.flat import one_partition, zero2_as_shipped

NUMBER, ROW = TensorType("f32", ()), TensorType("f32", (2,))
STATES = {f"opt.{kind}.{p}": t for kind, t in (("m", ROW), ("step", NUMBER)) for p in "abcd"}


def on_ranks(*numbers: str, local: tuple[int, ...] = ()) -> list[Sample]:
    layouts = {name: Layout({}, (), local, name.split(".")[-1]) for name in numbers}
    return [Sample(rank, "", (), layouts, 0, None) for rank in (None, 0)]


def steps(*parameters: str) -> tuple[str, ...]:
    return tuple(f"opt.step.{p}" for p in parameters)


def test_a_number_follows_the_bucket_of_its_parameter_or_one_of_its_own() -> None:
    flat = {"params.flat": Bucket(("params.a", "params.b")), "opt.count": Bucket(steps("c", "d"))}
    found = counts(STATES, flat, on_ranks("opt.step.flat", "opt.count"), {})
    assert found.held == {"opt.step.flat": steps("a", "b"), "opt.count": steps("c", "d")}
    assert not counts(STATES, flat, on_ranks("opt.step.flat", "opt.count")[:1], {}).held  # no rank
    of_its_own = {"opt.step.a": Bucket(steps("a", "b"))}
    assert counts(STATES, of_its_own, on_ranks("opt.step.a"), {}).held == {"opt.step.a": steps("a", "b")}


def test_numbers_of_a_model_are_not_joined() -> None:
    states = {**STATES, "buffers.n.a": NUMBER, "buffers.n.b": NUMBER}
    bucket = {"buffers.n": Bucket(("buffers.n.a", "buffers.n.b"))}
    assert not counts(states, bucket, on_ranks("buffers.n"), {}).held


@pytest.mark.parametrize(
    ("name", "buckets", "local"),
    [
        ("opt.step.q", {"params.flat": Bucket(("params.a", "params.b"))}, ()),
        ("opt.step.flat", {"params.flat": Bucket(("params.a",))}, ()),
        ("opt.step.flat", {"params.flat": Bucket(("params.a", "params.b"))}, (2,)),
        ("opt.step.flat", {"params.flat": Bucket(("params.a", "params.e"))}, ()),
        ("opt.m.flat", {"params.flat": Bucket(("params.a", "params.b"))}, ()),
        ("opt.step.a", {"params.a": Bucket(("params.a", "params.b"))}, ()),
    ],
    ids=["no bucket", "one tensor", "no number", "no state", "not of numbers", "of the single device"],
)
def test_what_is_no_number_of_several(name: str, buckets: dict[str, Bucket], local: tuple[int, ...]) -> None:
    assert not counts(STATES, buckets, on_ranks(name, local=local), {}).held


def test_numbers_that_share_a_holder_are_one() -> None:
    cut = {"opt.step.p": steps("b", "c"), "opt.step.q": steps("a", "b"), "opt.step.r": steps("d")}
    found = counts(STATES, {}, (), cut)
    assert {*found.first} == {*steps("a", "b", "c")} and len({*found.first.values()}) == 1
    (first,) = {*found.first.values()}
    assert {*found.of(first)} == {"opt.step.p", "opt.step.q", *steps("a", "b", "c")} - {first}
    assert stood_for({ONE_FOR: found.told()}) == {m: first for m in steps("a", "b", "c") if m != first}
    assert stood_for({}) == {}
    two = Counts({"opt.step.p": steps("a", "b"), "opt.step.q": steps("c", "d")})
    assert two.told() == ["opt.step.a: opt.step.b", "opt.step.c: opt.step.d"]


def test_what_has_no_name_in_the_specification_is_known() -> None:
    found = Counts({"opt.step.p": steps("a", "b"), "opt.step.q": steps("c", "d")})
    assert found.names() == {"opt.step.p", "opt.step.q", *steps("b", "d")}
    assert found.complete({"opt.step.a"}) == {"opt.step.p", "opt.step.b"} and not found.complete(())


def single(*outputs: str) -> RankProgram:
    return RankProgram(
        {"opt.step.a": NUMBER, "opt.step.b": NUMBER}, (), dict.fromkeys(outputs, outputs[0]), ()
    )


def test_numbers_of_two_types_are_not_one() -> None:
    found = Counts({"opt.step.p": steps("a", "b")})
    assert list(found.joined(single("opt.step.a")).inputs) == ["opt.step.a"]
    mixed = replace(single("opt.step.a"), inputs={"opt.step.a": NUMBER, "opt.step.b": ROW})
    with pytest.raises(LayoutError, match="ranks keep one number for both"):
        found.joined(mixed)


def added(name: str, number: str) -> list[Op]:
    one = Op(f"%{name}", "constant", (), NUMBER, {"value": number}, None)
    return [one, Op(f"%{name}.", "add", ("opt.step.a", one.out), NUMBER, {}, None)]


def test_what_is_left_alike_is_one_output() -> None:
    outputs = {"opt.step.a": "%x.", "opt.step.b": "%x.", "loss": "%x"}
    program = Program({"opt.step.a": NUMBER}, tuple(added("x", "1")), outputs)
    left = Counts({"opt.step.p": steps("a", "b")}).left(program).outputs
    assert left == {"opt.step.a": "%x.", "loss": "%x"}


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ({"opt.step.a": "%x.", "opt.step.b": "%y."}, "another number in it than in"),
        ({"opt.step.a": "%x."}, "another number in it than in"),
        ({"opt.step.b": "%x."}, "it alone, and so it does"),
        ({}, "it alone, and so it does"),
    ],
)
def test_what_is_left_otherwise_or_alone_is_refused(outputs: dict[str, str], told: str) -> None:
    """A factor of each parameter that no step changes: that they are equal would be nobody's word."""
    program = Program({"opt.step.a": NUMBER}, (*added("x", "1"), *added("y", "2")), outputs)
    with pytest.raises(StateError, match=told):
        Counts({"opt.step.p": steps("a", "b")}).left(program)


def test_a_class_that_does_not_count_is_refused() -> None:
    found = Counts({"opt.step.p": steps("a", "b")})
    idle = RankClass("c0", {"dp": (0, 2)}, Program({"opt.step.p": NUMBER}, (), {}))
    mesh = Mesh({"dp": 2})
    (relation,) = found.relations("opt.step.a", mesh, [idle], left=False)
    assert (relation.spec, relation.plan) == ("opt.step.a", "opt.step.p")
    counting = replace(idle, program=replace(idle.program, outputs={"opt.step.p": "opt.step.p"}))
    assert len(list(found.relations("opt.step.a", mesh, [counting], left=True))) == 1
    with pytest.raises(LayoutError, match="class c0 does not") as raised:
        list(found.relations("opt.step.a", mesh, [idle], left=True))
    assert raised.value.tensor == "opt.step.p"


def test_a_piece_of_a_layer_counts_for_all_that_it_is_cut_from() -> None:
    plan = capture(zero2_as_shipped(), jobs=1)
    assert [n for n in plan.specification.inputs if n.startswith("opt.step")] == [
        *steps("0.weight", "2.weight")
    ]
    assert plan.provenance[ONE_FOR] == [f"opt.step.{n}.weight: opt.step.{n}.bias" for n in (0, 2)]


def test_counts_that_go_on_otherwise_are_refused() -> None:
    """The single device counts two for the first bias: no one number of a rank is both."""

    class Twice(torch.optim.AdamW):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            super().step()
            for p, kept in self.state.items():
                if p.shape == (6,):
                    kept["step"] += 1

    made = zero2_as_shipped()

    def trained(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return made.optimizer(params) if torch.distributed.is_initialized() else Twice(params)

    with pytest.raises(StateError, match=r"another number in it than in opt\.step\.0\.weight") as raised:
        capture(replace(made, optimizer=trained), jobs=1)
    assert raised.value.tensor == "opt.step.0.bias"


@pytest.mark.slow
@pytest.mark.parametrize("made", [zero2_as_shipped, one_partition])
def test_a_launch_is_compared_with_all_that_one_number_stands_for(made: Any) -> None:
    assert run(capture(made(), jobs=1), made(), steps=2).largest < 1e-6
