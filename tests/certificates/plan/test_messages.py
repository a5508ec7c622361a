"""Messages in plans: both ends mean each other, or the plan is refused with the end named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from tests.pipeline_plans import pipeline, whole

Stage = Callable[[ProgramBuilder], None]


def plan(*stages: Stage, time: int = 0) -> Plan:
    """One class per rank of ``pp``; each holds ``x``, and the claim is about the last one's."""
    mesh = {"pp": len(stages)}
    runs = {"mb": time} if time else None
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[3]"))
    classes = {}
    for s, run in enumerate(stages):
        b = ProgramBuilder(mesh, box={"pp": (s, s + 1)}, time=runs)
        x = b.input("x", "f32[3]")
        run(b)
        b.output("y", x)
        classes[f"c{s}"] = ({"pp": (s, s + 1)}, b.build())
    names = list(classes)
    relations = [whole("x", (3,), names)], [whole("y", (3,), names)]
    return build_plan(
        name="messages", mesh=mesh, time=runs, specification=spec.build(), classes=classes,
        inputs=relations[0], outputs=relations[1],
    )  # fmt: skip


def send(seq: int, to: int | Affine, **more: int | Affine) -> Stage:
    return lambda b: void(b.send(b.constant(1, "f32[3]"), seq, pp=to, **more))


def recv(seq: int, source: int | Affine, type_: str = "f32[3]") -> Stage:
    return lambda b: void(b.recv(type_, seq, pp=source))


def void(_: object) -> None:
    """A value that nobody needs."""


def both(*steps: Stage) -> Stage:
    return lambda b: void([step(b) for step in steps])


def nothing(_: ProgramBuilder) -> None:
    """A stage without messages."""


def test_a_plan_with_messages_is_of_version_2_and_is_read_as_it_was_written() -> None:
    made = plan(send(0, 1), recv(0, 0))
    assert made.version == 2 and loads(dumps(made)) == made
    assert plan(nothing, nothing).version == 1


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ((send(0, 1), nothing), "class c0: send %1: class c1 has no recv 0"),
        ((nothing, recv(0, 0)), "class c1: recv %0: class c0 has no send 0"),
        ((send(0, 2), recv(0, 0)), "class c0: send %1: to leaves the mesh along pp"),
        ((send(0, -1), recv(0, 0)), "class c0: send %1: to leaves the mesh along pp"),
        ((send(0, 1), recv(0, 0, "bf16[3]")), r"class c1 has bf16\[3\] where f32\[3\] is meant"),
        ((send(0, 1), recv(0, 1)), "class c0: send %1: recv %0 of class c1 means other ranks"),
        ((send(0, 1), send(0, 1), recv(0, 0)), "class c0: send %1: class c1 has no recv 0"),
        ((send(0, 2), send(0, 2), recv(0, 0)), "class c1: send %1: recv %0 of class c2 means other ranks"),
        ((both(send(0, 1), send(0, 1)), recv(0, 0)), "class c0: send %3: message 0 occurs twice"),
        ((send(0, 1), both(recv(0, 0), recv(0, 0))), "class c1: recv %1: message 0 occurs twice"),
        ((recv(0, 0), nothing), "class c0: recv %0: class c0 has no send 0"),
    ],
)
def test_ends_that_do_not_fit(stages: tuple[Stage, ...], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        plan(*stages)


def test_a_message_keeps_its_time() -> None:
    late = Affine.of(1, {"mb": -1})
    with pytest.raises(FormatError, match="class c0: send %1: a message keeps its mb"):
        plan(send(0, 1, mb=late), recv(0, 0), time=2)


def test_a_number_is_a_message_or_a_rendezvous() -> None:
    def summed(b: ProgramBuilder) -> None:
        b.all_reduce(b.constant(1, "f32[3]"), "pp", seq=0)

    with pytest.raises(FormatError, match="0 is a rendezvous as well"):
        plan(both(send(0, 1), summed), both(recv(0, 0), summed))


def test_messages_that_wait_for_one_another() -> None:
    def hop(b: ProgramBuilder) -> None:
        got = b.recv("f32[3]", 0, pp=0)
        b.send(got, 0, pp=0)

    with pytest.raises(FormatError, match=r"a value rests on itself: message 0 \((send|recv) c0\)"):
        plan(hop)

    def first(b: ProgramBuilder) -> None:
        b.send(b.recv("f32[3]", 0, pp=1), 1, pp=1)

    def last(b: ProgramBuilder) -> None:
        b.send(b.recv("f32[3]", 1, pp=0), 0, pp=0)

    with pytest.raises(FormatError, match="a value rests on itself"):
        plan(first, last)


def test_a_builder_names_an_axis_that_is_not_there() -> None:
    b = ProgramBuilder({"pp": 2})
    with pytest.raises(FormatError, match="no mesh axis 'tp'"):
        b.recv("f32[3]", 0, tp=1)


def test_a_pipeline_is_read_as_it_was_written() -> None:
    made = pipeline()
    assert loads(dumps(made)) == made and made.version == 2
