"""How ranks wait for one another: channels, collectives, batches, and certificates that are forged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.authoring.scheduling import ScheduleBuilder, meet, recv, send, with_schedule
from certificates.plan.affine import Affine
from certificates.plan.plan import Piece, Plan, Relation
from certificates.plan.schedule import Batch, Event, Run
from certificates.plan.writing import dumps
from certificates.proof.when import When
from checker.reading.plan import read_plan
from checker.scheduling.lane import Unsafe, Walk
from checker.scheduling.parts import parts
from checker.scheduling.transport import Transport
from orchestrator.scheduling import when
from tests.checker.samples import refuses
from tests.schedule_plans import built, by_torch, edited, finish, judged, once, placed, reason
from tests.schedule_simulator import trouble


def exchanged(plan: Plan, lane: str, one: Event, other: Event) -> Plan:
    """A plan in which two events of a lane have each other's place."""
    return edited(plan, lane, lambda e: [{one: other, other: one}.get(x, x) for x in e])


def test_swapped_receives() -> None:
    """Types and counts agree, values do not: both are refused by the order of the channel."""
    plan = by_torch("GPipe", 2, 3)
    plan = exchanged(
        plan, "rank1", Batch("pair_0_1", (recv(1, 0),), True), Batch("pair_0_1", (recv(1, 1),), True)
    )
    assert "rank1" in reason(plan)
    assert trouble(plan, 1) != ""


def exchange(first: str, last: str, on: tuple[str, str] = ("pp", "pp")) -> Plan:
    """Two ranks that hand each other two messages; letters are the events of each: `s` and `r` block, a pair
    in capitals is one batch, `p` posts the receive and `w` waits for it."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[2]") * 1)
    bs = [ProgramBuilder({"pp": 2}, box={"pp": (r, r + 1)}) for r in range(2)]
    for r, b in enumerate(bs):
        x = b.input("x", "f32[2]")
        b.send(x, r, pp=1 - r)
        got = b.recv(x.type, 1 - r, pp=1 - r)
        with b.segment("end"):
            b.output("y", got * 1)
    programs = {f"c{r}": b.build() for r, b in enumerate(bs)}
    plan = build_plan(
        name="exchange", mesh={"pp": 2}, specification=spec.build(),
        classes={f"c{r}": ({"pp": (r, r + 1)}, p) for r, p in enumerate(programs.values())},
        inputs={"x": {}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip
    s = ScheduleBuilder(programs)
    for r, letters in enumerate((first, last)):
        lane, posted = s.lane(f"rank{r}", {"pp": (r, r + 1)}), 0
        for letter in letters:
            match letter:
                case "s":
                    lane.now(on[r], send(r))
                case "r":
                    lane.now(on[r], recv(1 - r))
                case "B":
                    lane.now(on[r], send(r), recv(1 - r))
                case "p":
                    posted = lane.post(on[r], recv(1 - r))
                case _:
                    lane.wait(posted)
        lane.run("end")
    return with_schedule(plan, s.build())


@pytest.mark.parametrize(
    ("first", "last", "safe"),
    [
        ("sr", "rs", True),
        ("B", "B", True),
        ("sr", "sr", False),
        ("rs", "rs", False),
        ("psw", "psw", False),  # on one communicator the send stands behind the receive
        ("psw", "rs", False),
        ("spw", "psw", True),
        ("spw", "rs", True),
    ],
)
def test_who_waits_for_whom(first: str, last: str, safe: bool) -> None:
    plan = exchange(first, last)
    found = judged(plan)
    assert found is not None and found.safe == safe
    if not safe:
        assert "wait for one another" in found.reason and found.marked
    assert (trouble(plan, 1) == "") == safe


@pytest.mark.parametrize("last", ["sr", "rs"])
def test_a_batch_is_done_as_a_whole(last: str) -> None:
    """Stricter than a transport that lets each message of a batch go by itself: that is not assumed."""
    assert "wait for one another" in reason(exchange("B", last))
    assert trouble(exchange("B", last), 1) == ""


def test_both_ends_name_one_communicator() -> None:
    plan = exchange("sr", "rs", ("one", "other"))
    assert (
        reason(plan) == "from rank0 to rank1 on one, message 1: 0 of run 0 is sent, and nothing is received"
    )
    assert trouble(plan, 1) != ""


def ring(batched: bool) -> Plan:
    """Ranks of one class that hand a value on around a ring."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[2]") * 1)
    b = ProgramBuilder({"cp": 4}, box={"cp": (0, 4)})
    x = b.input("x", "f32[2]")
    b.send(x, 0, cp=Affine.of(3, {"cp": -1}))
    got = b.recv(x.type, 0, cp=Affine.of(3, {"cp": -1}))
    with b.segment("end"):
        b.output("y", got * 1)
    program = b.build()
    plan = build_plan(name="ring", mesh={"cp": 4}, specification=spec.build(), classes=program,
                      inputs={"x": {}}, outputs={"y": {}}, given=["x"])  # fmt: skip
    s = ScheduleBuilder({"c0": program})
    lane = s.lane("all", {})
    for items in ([send(0), recv(0)],) if batched else ([send(0)], [recv(0)]):
        lane.now("cp", *items)
    lane.run("end")
    return with_schedule(plan, s.build())


def test_all_send_first() -> None:
    """Ranks of one lane do the same: that all send before they receive needs buffers."""
    found = judged(ring(batched=True))
    assert found is not None and found.safe and trouble(ring(batched=True), 1) == ""
    assert reason(ring(batched=False)) == (
        "2 events wait for one another: all 0 (send 0, run 0) -> all 1 (recv 0, run 0)"
    )
    assert "waits for ever" in trouble(ring(batched=False), 1)


def crossed(posted: bool, same: bool = False) -> Plan:
    """Two ranks reduce over two groups, the second one in another order unless `same`."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[2]") * 4)
    groups = {"one": ("pp",), "other": ("pp",)}
    bs = [ProgramBuilder({"pp": 2}, groups, box={"pp": (r, r + 1)}) for r in range(2)]
    for b in bs:
        x = b.input("x", "f32[2]")
        left, right = b.all_reduce(x, "one", seq=0), b.all_reduce(x, "other", seq=1)
        with b.segment("end"):
            b.output("y", left + right)
    programs = {f"c{r}": b.build() for r, b in enumerate(bs)}
    plan = build_plan(
        name="crossed", mesh={"pp": 2}, groups=groups, specification=spec.build(),
        classes={f"c{r}": ({"pp": (r, r + 1)}, p) for r, p in enumerate(programs.values())},
        inputs={"x": {}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip
    s = ScheduleBuilder(programs)
    for r in range(2):
        lane = s.lane(f"rank{r}", {"pp": (r, r + 1)})
        order = [("one", 0), ("other", 1)] if same or not r else [("other", 1), ("one", 0)]
        numbers = [lane.post(on, meet(seq)) for on, seq in order if posted]
        for on, seq in order if not posted else []:
            lane.now(on, meet(seq))
        for number in numbers:
            lane.wait(number)
        lane.run("end")
    return with_schedule(plan, s.build())


@pytest.mark.parametrize("posted", [False, True])
def test_crossed_communicators(posted: bool) -> None:
    """Collectives of a rank follow one another whatever their communicators, in flight as well."""
    assert "wait for one another" in reason(crossed(posted))
    found = judged(crossed(posted, same=True))
    assert found is not None and found.safe and trouble(crossed(posted, same=True), 1) == ""
    assert trouble(crossed(posted), 1) != ""


def met(*orders: Sequence[int], once: Mapping[str, list[int]] | None = None, over: str = "") -> Plan:
    """Two ranks that reduce at every run, each in an order of its own; the first one's last on ``over``."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[2]") * 2)
    bs = [ProgramBuilder({"pp": 2}, box={"pp": (r, r + 1)}, time={"mb": 2}) for r in range(2)]
    for b in bs:
        b.output("y", b.all_reduce(b.input("x", "f32[2]"), "pp", seq=0))
    programs = {f"c{r}": b.build() for r, b in enumerate(bs)}
    plan = build_plan(
        name="once", mesh={"pp": 2}, time={"mb": 2}, specification=spec.build(),
        classes={f"c{r}": ({"pp": (r, r + 1)}, p) for r, p in enumerate(programs.values())},
        inputs={"x": {}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip
    s = ScheduleBuilder(programs, once=once)
    for r, order in enumerate(orders):
        lane = s.lane(f"rank{r}", {"pp": (r, r + 1)})
        for k in order:
            lane.now(over if over and (r, k) == (0, 1) else "pp", meet(0, k))
    return with_schedule(plan, s.build())


def test_a_collective_has_all_its_members() -> None:
    """One rank reduces once, the other at every run."""
    plan = met((0,), (0, 1), once={"c0": [0]})
    assert reason(plan) == "collective 0, run 1: lane rank0 does not take part"
    assert "on another communicator" in reason(met((0, 1), (0, 1), over="other"))


def test_members_meet_in_one_run() -> None:
    """Nothing hangs: the sums of two runs are mixed, as each rank takes part in the next one of the other."""
    assert judged(met((0, 1), (0, 1))) is not None and judged(met((1, 0), (1, 0))) is not None
    for plan in (met((0, 1), (1, 0)), met((1, 0), (0, 1))):
        assert "wait for one another" in reason(plan) and trouble(plan, 1) != ""


def test_unbatched_messages_of_1f1b() -> None:
    """The classic: why frameworks fuse the send of an activation and the receive of a gradient."""
    plan = by_torch("1F1B", 3, 4)
    assert plan.schedule is not None
    for lane in plan.schedule.lanes:
        plan = edited(plan, lane.name, blocking)
    assert "wait for one another" in reason(plan) and trouble(plan, 1) != ""


def blocking(events: list[Event]) -> list[Event]:
    """Every message by itself, waited for at once, on one communicator."""
    out: list[Event] = []
    for event in events:
        if isinstance(event, Batch):
            out += [Batch("pp" if i.end != "meet" else "dp", (i,)) for i in event.items]
        elif isinstance(event, Run):
            out.append(event)
    return out


def test_collectives_inside_of_segments() -> None:
    """Ranks that meet in a segment run all of it together."""
    b = built(placed("1F1B", 2, 2), inside=True)
    s = ScheduleBuilder(b.programs, once=once(b))
    lanes = [s.lane(f"rank{r}", {"pp": (r, r + 1)}) for r in range(2)]
    for k in range(2):
        lanes[0].run("f0", k)
        lanes[0].now("pp", send(1, k))
        lanes[1].now("pp", recv(1, k))
        for part in "fiw":
            lanes[1].run(f"{part}1", k)
        lanes[1].now("pp", send(100, k))
        lanes[0].now("pp", recv(100, k))
        lanes[0].run("i0", k)
        lanes[0].run("w0", k)
    for r, lane in enumerate(lanes):
        finish(b, lane, r)
    plan = with_schedule(b.plan, s.build())
    found = judged(plan)
    assert found is not None and found.safe and trouble(plan, 1) == ""
    assert plan.schedule is not None
    halves = tuple(
        replace(lane, name=f"{lane.name}_{d}", box={**lane.box, "dp": (d, d + 1)})
        for lane in plan.schedule.lanes
        for d in range(2)
    )
    plan = replace(plan, schedule=replace(plan.schedule, lanes=halves))
    found = judged(plan)
    assert found is not None and found.safe, "a lane for every rank says the same"
    assert trouble(plan, 1) == ""


def test_lanes_that_messages_cut() -> None:
    plan = by_torch("1F1B", 2, 2)
    assert plan.schedule is not None
    first, last = plan.schedule.lanes
    halves = tuple(replace(first, name=f"h{d}", box={**first.box, "dp": (d, d + 1)}) for d in range(2))
    with refuses(23, "goes to ranks of several lanes|share some of its lists"):
        judged(replace(plan, schedule=replace(plan.schedule, lanes=(*halves, last))))


@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble"])
def test_forged_times(name: str) -> None:
    """No event is as early as one that it comes after, and no end of a message at another time."""
    plan = by_torch(name, 2, 3)
    found = when(plan)
    assert found is not None and plan.schedule is not None
    for lane in plan.schedule.lanes:
        line = found.times[lane.name]
        for i, event in enumerate(lane.events):
            before = lane.events[i - 1] if i else event
            if isinstance(event, Batch):
                forged, words = line[i] + 10_000, "is not after event|meet at two times"
            elif i and not (isinstance(before, Batch) and before.posted):
                forged, words = line[i - 1], f"event {i} is not after event"
            else:
                continue
            with refuses(23, words):
                judged(plan, When(found.times | {lane.name: (*line[:i], forged, *line[i + 1 :])}))
    with refuses(23, "every event has one time"):
        judged(plan, When({lane: line[:-1] for lane, line in found.times.items()}))
    with refuses(23, "every event has one time"):
        judged(plan, When(dict(list(found.times.items())[:1])))


def test_forged_circles() -> None:
    plan = by_torch("1F1B", 2, 2)
    for circle, words in (
        ((("rank0", 0), ("rank0", 1)), "need not come before"),
        ((("rank0", 0),), "need not come before"),
        ((("rank7", 0),), "there is no event 0 of lane rank7"),
        ((("rank0", 999),), "there is no event 999"),
    ):
        with refuses(23, words):
            judged(plan, When({}, circle))
    deadlock = exchange("sr", "sr")
    found = when(deadlock)
    assert found is not None and found.circle
    with refuses(23, "may happen at the same time"):
        judged(deadlock, When({}, (("rank0", 0), ("rank1", 1))))


def test_the_lane_that_is_absent_is_named() -> None:
    """Of four ranks in two groups, the last one does not take part."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[2]") * 2)
    b = ProgramBuilder({"pp": 2, "dp": 2}, time={"mb": 1})
    b.output("y", b.all_reduce(b.input("x", "f32[2]"), "dp", seq=0))
    plan = build_plan(
        name="absent", mesh={"pp": 2, "dp": 2}, time={"mb": 1}, specification=spec.build(), classes=b.build(),
        inputs={"x": {}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip
    cls = plan.classes[0].name
    s = ScheduleBuilder({cls: b.build()})
    for r in range(4):
        s.lane(f"rank{r}", {"pp": (r // 2, r // 2 + 1), "dp": (r % 2, r % 2 + 1)}).now("dp", meet(0))
    read = read_plan(dumps(with_schedule(plan, s.build())))
    assert read.schedule is not None
    ordered = {c: parts(read, read.schedule, c) for c in read.classes}
    walks = {lane.name: Walk(read, lane, ordered) for lane in read.schedule.lanes}
    walks["rank3"] = Walk(read, read.schedule.lanes[3]._replace(events=()), ordered)
    with pytest.raises(Unsafe, match="collective 0, run 0: lane rank3 does not take part"):
        Transport(read, walks)


def tied(name: str, *classes: str) -> Relation:
    """The same vector of two in these classes."""
    z = (Affine.symbol("z0"),)
    return Relation(name, name, tuple(Piece(c, (2,), z, z) for c in classes))


def test_the_form_of_an_end_may_name_a_time() -> None:
    """In the second run the target is written as `mb`, which is 1 there and nothing else."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[2]") * 2)
    programs, classes = {}, {}
    for k in range(2):
        box = {"mb": (k, k + 1)}
        first = ProgramBuilder({"pp": 2}, box={"pp": (0, 1), **box}, time={"mb": 2})
        first.send(first.input("x", "f32[2]"), 0, pp=Affine.symbol("mb") if k else 1)
        last = ProgramBuilder({"pp": 2}, box={"pp": (1, 2), **box}, time={"mb": 2})
        got = last.recv("f32[2]", 0, pp=0)
        with last.segment("end"):
            last.output("y", got + got)
        programs |= {f"s{k}": first.build(), f"r{k}": last.build()}
        classes |= {f"s{k}": ({"pp": (0, 1), **box}, programs[f"s{k}"])}
        classes |= {f"r{k}": ({"pp": (1, 2), **box}, programs[f"r{k}"])}
    plan = build_plan(
        name="named", mesh={"pp": 2}, time={"mb": 2}, specification=spec.build(), classes=classes,
        inputs=[tied("x", "s0", "s1")], outputs=[tied("y", "r0", "r1")], given=["x"],
    )  # fmt: skip
    s = ScheduleBuilder(programs)
    one, other = s.lane("rank0", {"pp": (0, 1)}), s.lane("rank1", {"pp": (1, 2)})
    for k in range(2):
        one.now("pp", send(0, k))
        other.now("pp", recv(0, k))
        other.run("end", k)
    found = judged(with_schedule(plan, s.build()))
    assert found is not None and found.safe
