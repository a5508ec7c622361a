"""Schedules of right plans that hang, mix up or overwrite, and the words by which the checker says so.

Every output of these plans is what it should be as far as a proof goes: only the order of events is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from certificates.authoring.scheduling import meet, recv, send
from certificates.plan.plan import Plan
from certificates.plan.schedule import Batch, Event, Run, Slot, Wait

from .checker.scheduling.test_lane import moved, received, serial
from .checker.scheduling.test_transport import blocking, crossed, exchange, met, ring
from .schedule_plans import by_torch, edited


def without(lane: str, event: Event) -> Plan:
    return edited(serial(), lane, lambda e: [x for x in e if x != event])


def instead(lane: str, event: Event, other: Event) -> Plan:
    return edited(serial(), lane, lambda e: [other if x == event else x for x in e])


def exchanged(lane: str, one: Event, other: Event) -> Plan:
    return edited(serial(), lane, lambda e: [{one: other, other: one}.get(x, x) for x in e])


def unbatched() -> Plan:
    plan = by_torch("1F1B", 3, 4)
    for r in range(3):
        plan = edited(plan, f"rank{r}", blocking)
    return plan


def never_waited_for() -> Plan:
    last = Batch("pp", (send(1, 2),))
    return instead("rank0", last, replace(last, posted=True))


def in_flight() -> Plan:
    """The forward stands before the wait for what it reads."""

    def change(events: list[Event]) -> list[Event]:
        i = next(i for i, e in enumerate(events) if isinstance(e, Wait))
        return [*events[:i], events[i + 1], events[i], *events[i + 2 :]]

    return edited(by_torch("GPipe", 2, 2), "rank1", change)


def shared(count: int) -> Plan:
    return serial(lambda p, r: [Slot("c1", received(p, 1), 0, count)] if r else [])


def over_the_weight() -> Plan:
    """The gradient's accumulator lies where the weight does that the backward reads."""

    def slots(p: Plan, r: int) -> list[Slot]:
        sums = [o for o in p.classes[0].program.ops if o.name == "all_reduce" and o.integer("seq") == 1000]
        return [] if r else [Slot("c0", "params.0.w", 0), Slot("c0", sums[0].out, 0)]

    return serial(slots)


F, B = Batch("pp", (recv(1, 0),)), Batch("pp", (recv(1, 1),))
#: Name, plan, and what the checker says.
BREAKAGES: dict[str, tuple[Callable[[], Plan], str]] = {
    "microbatch left out": (lambda: without("rank0", Run("w0", 1)), "w0, run 1 is never done"),
    "microbatch run twice": (
        lambda: instead("rank0", Run("f0", 1), Run("f0", 0)), "f0, run 0 is done again, or for no run"),
    "step taken for every microbatch": (
        lambda: instead("rank0", Run("w0", 1), Run("update", 1)), "update, run 1 is done again, or for"),
    "two receives exchanged": (
        lambda: moved(serial(), "rank1", B, F),
        "from rank0 to rank1 on pp, message 1: 1 of run 0 is sent, and 1 of run 1 is received"),
    "another microbatch received": (lambda: exchanged("rank1", F, B), "it reads %"),
    "two sends exchanged": (
        lambda: moved(serial(), "rank0", Batch("pp", (send(1, 0),)), Batch("pp", (send(1, 2),))),
        "from rank0 to rank1 on pp, message 1: 1 of run 1 is sent, and 1 of run 0 is received"),
    "gradient reduced before the last microbatch": (
        lambda: moved(serial(), "rank1", Batch("dp", (meet(2001),)), Run("w1", 2)),
        "(meet 2001, run 0): it reads %"),
    "step before the gradient is reduced": (
        lambda: moved(serial(), "rank0", Run("update"), Batch("dp", (meet(2000),))),
        "(update, run 0): it reads %"),
    "activation read while in flight": (in_flight, "before that is whole"),
    "send that nobody waits for": (never_waited_for, "nothing waits for it"),
    "buffers of two microbatches for three": (lambda: shared(2), "is written to slot 0, from which"),
    "gradient accumulated over its weight": (over_the_weight, "all_reduce 1000, run 0 is written to slot 0"),
    "unbatched 1F1B": (unbatched, "wait for one another"),
    "both ranks send first": (lambda: exchange("sr", "sr"), "wait for one another"),
    "both ranks receive first": (lambda: exchange("rs", "rs"), "wait for one another"),
    "receive in flight in front of the send on one communicator": (
        lambda: exchange("psw", "psw"), "wait for one another"),
    "ends on two communicators": (
        lambda: exchange("sr", "rs", ("one", "other")), "is sent, and nothing is received"),
    "ring in which all send first": (lambda: ring(batched=False), "2 events wait for one another: all 0"),
    "sums of two microbatches mixed": (lambda: met((0, 1), (1, 0)), "wait for one another"),
    "two communicators in crossed order": (lambda: crossed(posted=False), "wait for one another"),
    "two communicators in crossed order, in flight": (lambda: crossed(posted=True), "wait for one another"),
}  # fmt: skip
