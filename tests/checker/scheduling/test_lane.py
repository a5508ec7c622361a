"""What one rank does in its own order: nothing twice or never, nothing too early, no slot overwritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.authoring.scheduling import ScheduleBuilder, meet, recv, send, with_schedule
from certificates.plan.plan import Plan
from certificates.plan.schedule import Batch, Event, Item, Run, Slot, Wait
from checker.errors import Undecided
from checker.scheduling import lane as lanes
from tests.checker.samples import refuses
from tests.schedule_plans import by_torch, chain, edited, judged, once, place, reason
from tests.schedule_simulator import trouble


def serial(slots: Callable[[Plan, int], list[Slot]] = lambda plan, r: []) -> Plan:
    """Two stages, three microbatches, GPipe with blocking messages; the step at the end."""
    b = chain(2, 3)
    s = ScheduleBuilder(b.programs, once=once(b))
    first, last = s.lane("rank0", {"pp": (0, 1)}), s.lane("rank1", {"pp": (1, 2)})
    for k in range(3):
        first.run("f0", k)
        first.now("pp", send(1, k))
        last.now("pp", recv(1, k))
        last.run("f1", k)
    for k in range(3):
        last.run("i1", k)
        last.now("pp", send(100, k))
        last.run("w1", k)
        first.now("pp", recv(100, k))
        first.run("i0", k)
        first.run("w0", k)
    last.now("dp", meet(5001))
    for r, lane in enumerate((first, last)):
        lane.now("dp", meet(2000 + r))
        lane.run("update")
        lane.slots += slots(b.plan, r)
    return with_schedule(b.plan, s.build())


def moved(plan: Plan, lane: str, event: Event, before: Event) -> Plan:
    def change(events: list[Event]) -> list[Event]:
        events.remove(event)
        events.insert(events.index(before), event)
        return events

    return edited(plan, lane, change)


def test_the_serial_order_is_safe() -> None:
    found = judged(serial())
    assert found is not None and found.safe and trouble(serial(), 1) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: [*e, Run("f0", 1)], r"\(f0, run 1\): f0, run 1 is done again, or .* \(event 2, f0"),
        (lambda e: [x for x in e if x != Run("f0", 1)], r"f0, run 1 is never done \(1 such\)"),
        (lambda e: [*e, Run("update", 1)], r"update, run 1 is done again, or for no run \(event \d+, update"),
        (lambda e: [x for x in e if not isinstance(x, Batch)], r"meet 2000, run 0 is never done \(7 such\)"),
        (lambda e: [replace(x, posted=True) if x == Batch("pp", (send(1, 0),)) else x for x in e],
         "nothing waits for it"),
    ],
)  # fmt: skip
def test_no_run_is_lost_or_done_twice(change: Callable[[list[Event]], list[Event]], words: str) -> None:
    found = judged(edited(serial(), "rank0", change))
    assert found is not None and not found.safe
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(found.reason)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Run("nothing", 0), "is nothing, run 0: the plan has no such part or run"),
        (Run("f0", 3), "is f0, run 3: the plan has no such part or run"),
        (Batch("pp", (Item("recv", 1, 0),)), "is recv 1, run 0: the plan has no such part or run"),
        (Wait(0), "waits for event 0, of which nothing is open"),
        (Wait(99), "waits for event 99, of which nothing is open"),
    ],
)
def test_a_schedule_of_another_plan(event: Event, words: str) -> None:
    with refuses(23, words):
        judged(edited(serial(), "rank0", lambda e: [*e, event]))


def test_a_wait_is_for_one_post() -> None:
    plan = by_torch("1F1B", 2, 2)
    assert plan.schedule is not None
    waits = [e for e in plan.schedule.lanes[0].events if isinstance(e, Wait)]
    with refuses(23, "of which nothing is open"):
        judged(edited(plan, "rank0", lambda e: [*e, waits[0]]))


def test_a_gradient_is_reduced_when_it_is_whole() -> None:
    plan = serial()
    early = moved(plan, "rank1", Batch("dp", (meet(2001),)), Run("w1", 2))
    assert "(meet 2001, run 0): it reads %" in reason(early) and "(event 15, w1, run 2)" in reason(early)
    assert "reads" in trouble(early, 1)
    step = moved(plan, "rank0", Run("update", 0), Batch("dp", (meet(2000),)))
    assert "(update, run 0): it reads %" in reason(step)


def test_operands_come_first() -> None:
    plan = serial()
    early = moved(plan, "rank0", Batch("pp", (send(1, 0),)), Run("f0", 0))
    assert reason(early).startswith("lane rank0: event 0 (send 1, run 0): it reads %")
    late = moved(plan, "rank1", Run("f1", 2), Batch("pp", (recv(1, 2),)))
    assert "(event 5, recv 1, run 2)" in reason(late)


def test_what_is_in_flight_is_not_there() -> None:
    """The forward that reads what is received stands before the wait."""
    plan = by_torch("GPipe", 2, 2)
    assert plan.schedule is not None
    i = place(plan, "rank1", Run("f1", 0))
    assert isinstance(plan.schedule.lanes[1].events[i - 1], Wait)
    early = edited(plan, "rank1", lambda e: [*e[: i - 1], e[i], e[i - 1], *e[i + 1 :]])
    assert "it reads %" in reason(early) and "wait for event" in reason(early)


def received(plan: Plan, r: int) -> str:
    return next(op.out for op in plan.classes[r].program.ops if op.name == "recv")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_slot_is_written_after_its_last_reader(count: int) -> None:
    """All forwards stand before all backwards, so that three activations are alive at once."""
    plan = serial(lambda p, r: [Slot("c1", received(p, 1), 0, count)] if r else [])
    if count == 3:
        found = judged(plan)
        assert found is not None and found.safe
        return
    assert "is written to slot 0, from which %" in reason(plan) and "still to be read" in reason(plan)
    assert "finds" in trouble(plan, 1)


def test_two_values_of_one_slot() -> None:
    """The gradient that is received may lie where no activation is read any more, and only there."""

    def shared(p: Plan, r: int) -> list[Slot]:
        ops = p.classes[0].program.ops
        h = next(op.out for op in ops if op.name == "dot_general")
        return [] if r else [Slot("c0", h, 0, 3), Slot("c0", received(p, 0), 0, 3)]

    assert "still to be read" in reason(serial(shared)), "tanh of it is computed again in the backward"
    assert trouble(serial(shared), 1) != ""


def test_what_lies_in_the_memory_of_another_is_a_reader_too() -> None:
    """The gradient's transpose is a view: it has no memory of its own."""
    plan = serial()
    ops = plan.classes[0].program.ops
    cut = next(op for op in ops if op.name == "slice")
    assert cut.ins == ("batch.x",)
    shared = serial(lambda p, r: [] if r else [Slot("c0", "batch.x", 0), Slot("c0", received(p, 0), 0)])
    assert "from which batch.x, run 0 is still to be read" in reason(shared), "dot reads the slice of it"
    assert "finds" in trouble(shared, 1)


def test_a_step_in_place() -> None:
    """The new weight may lie where the old one is read last, by the op that writes it; not earlier."""

    def in_place(p: Plan, r: int) -> list[Slot]:
        c, program = p.classes[r].name, p.classes[r].program
        name = f"params.{r}.w"
        return [Slot(c, name, 0), Slot(c, program.outputs[name], 0)]

    found = judged(serial(in_place))
    assert found is not None and found.safe
    b = chain(2, 3)
    program = b.plan.classes[0].program
    weights = Slot("c0", "params.0.w", 0)
    grad = next(op.ins[0] for op in program.ops if op.name == "all_reduce" and op.integer("seq") == 2000)
    assert "all_reduce 1000, run 0 is written to slot 0" in reason(
        serial(lambda p, r: [] if r else [weights, Slot("c0", grad, 0)])
    )


def test_a_value_has_one_slot_of_its_class() -> None:
    with refuses(23, "class c0 has no value %999"):
        judged(serial(lambda p, r: [] if r else [Slot("c0", "%999", 0)]))
    with refuses(23, "it has no ranks of class c1"):
        judged(serial(lambda p, r: [] if r else [Slot("c1", received(p, 1), 0)]))


def test_what_is_received_has_a_slot() -> None:
    plan = serial()
    assert plan.schedule is not None
    bare = tuple(replace(n, slots=()) for n in plan.schedule.lanes)
    with refuses(23, "is received or accumulated, and has no slot"):
        judged(replace(plan, schedule=replace(plan.schedule, lanes=bare)))


def test_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MAX_WORK", 10)
    with pytest.raises(Undecided, match="more than 10 ops and slots"):
        judged(serial())


def two_programs(slots: list[Slot]) -> Plan:
    """One rank, whose second run has a program of its own; both read `w`."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("w", "f32[2]") * 2)
    bs = {c: ProgramBuilder({"pp": 1}, box={"mb": (k, k + 1)}, time={"mb": 2}) for k, c in enumerate("ab")}
    for b in bs.values():
        w = b.input("w", "f32[2]")
        with b.segment("part"):
            v = w * 1
        b.output("y", b.all_reduce(v, "mb", seq=0))
    programs = {c: b.build() for c, b in bs.items()}
    plan = build_plan(
        name="two", mesh={"pp": 1}, time={"mb": 2}, specification=spec.build(),
        classes={c: ({"mb": (k, k + 1)}, p) for k, (c, p) in enumerate(programs.items())},
        inputs={"w": {}}, outputs={"y": {}}, given=["w"],
    )  # fmt: skip
    s = ScheduleBuilder(programs)
    lane = s.lane("rank", {})
    lane.run("part", 0)
    lane.run("part", 1)
    lane.slots += slots
    return with_schedule(plan, s.build())


def test_programs_of_one_rank_share_its_inputs() -> None:
    """The first run may not write over an input that the second one reads, by whatever program."""
    found = judged(two_programs([]))
    assert found is not None and found.safe and trouble(two_programs([]), 1) == ""
    half = [Slot("a", "w", 0), Slot("a", "%1", 0)]
    with refuses(23, "w has a slot for some of the classes"):
        judged(two_programs(half))
    whole = two_programs([*half, Slot("b", "w", 0)])
    assert "from which w, run 0 is still to be read" in reason(whole)
    assert "finds" in trouble(whole, 1)


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ([Slot("a", "w", 0), Slot("b", "w", 1), Slot("a", "%1", 0)], "w, run 0 has two slots"),
        ([Slot("a", "%2", 0), Slot("b", "%2", 1)], "all_reduce 0, run 0 has two slots"),
        ([Slot("a", "%1", 0), Slot("a", "%1", 1)], "%1, run 0 has two slots"),
    ],
)
def test_what_is_one_tensor_lies_in_one_slot(slots: list[Slot], words: str) -> None:
    """An input that is said to lie elsewhere for the second program would be written over in between, and an
    accumulator would get half of its operands."""
    plan = two_programs(slots)
    with refuses(23, words):
        judged(plan)
    assert trouble(plan, 1) != "" or slots[0].value == "%1", "a value twice is only ambiguous"


def test_an_accumulator_without_a_slot_gets_one_for_all_its_programs() -> None:
    plan = two_programs([])
    assert plan.schedule is not None
    one, other = plan.schedule.lanes[0].slots
    assert (one.cls, other.cls) == ("a", "b") and one == replace(other, cls="a")
    assert two_programs([Slot("b", "%2", 5, 2)]).schedule.lanes[0].slots == (
        Slot("b", "%2", 5, 2),
        Slot("a", "%2", 5, 2),
    )


def one_rank(
    time: dict[str, int], write: Callable[[ProgramBuilder], None], order: list[Event], *sharing: str
) -> Plan:
    """One rank that does these events, with values that share a slot; what it computes does not matter."""
    spec, b = ProgramBuilder(), ProgramBuilder({"pp": 1}, time=time)
    spec.output("y", spec.input("x", "f32[2]") * 2)
    write(b)
    program = b.build()
    plan = build_plan(
        name="one", mesh={"pp": 1}, time=time, specification=spec.build(), classes=program,
        inputs={"x": {}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip
    cls = plan.classes[0].name
    s = ScheduleBuilder({cls: program})
    lane = s.lane("rank", {})
    lane.events += order
    lane.slots += [Slot(cls, name, 0) for name in sharing]
    return with_schedule(plan, s.build())


def views(b: ProgramBuilder) -> None:
    x = b.input("x", "f32[2]")
    with b.segment("make"):
        shown = b.tanh(x).reshape(2, 1).reshape(1, 2).reshape(2)
    with b.segment("other"):
        b.tanh(x)
    with b.segment("read"):
        b.output("y", shown + shown)


@pytest.mark.parametrize("late", [False, True])
def test_a_view_of_a_view_is_a_reader(late: bool) -> None:
    """The slot of what it shows is free once it was read; two values that follow one another share it."""
    order = ["make", "other", "read"] if late else ["make", "read", "other"]
    plan = one_rank({"mb": 1}, views, [Run(s, 0) for s in order], "%0", "%4")
    if late:
        assert "%4, run 0 is written to slot 0, from which %0, run 0 is still to be read" in reason(plan)
        assert trouble(plan, 1) != ""
    else:
        found = judged(plan)
        assert found is not None and found.safe and trouble(plan, 1) == ""


def sums_of_one_axis(b: ProgramBuilder) -> None:
    x = b.input("x", "f32[2]")
    with b.segment("make"):
        made = b.tanh(x)
    total = b.all_reduce(made, "inner", seq=0)
    with b.segment("read"):
        b.output("y", total + total)


def test_a_sum_over_one_time_axis_is_whole_without_the_runs_of_the_other() -> None:
    """Runs 0 and 1 have one value of the outer axis: their sum may be read before run 2 begins."""
    order: list[Event] = []
    for outer in range(2):
        order += [Run("make", 2 * outer + k) for k in range(2)] + [
            Run("read", 2 * outer + k) for k in range(2)
        ]
    found = judged(one_rank({"outer": 2, "inner": 2}, sums_of_one_axis, order))
    assert found is not None and found.safe
    order[1], order[2] = order[2], order[1]
    early = one_rank({"outer": 2, "inner": 2}, sums_of_one_axis, order)
    assert "(read, run 0): it reads %1 before that is whole (event 2, make, run 1)" in reason(early)
