"""Small schedules drawn at random: a way through a pipeline that comes to its end, and mistakes in it."""

from __future__ import annotations

import random
from functools import cache

from certificates.authoring.scheduling import LaneBuilder, ScheduleBuilder, meet, recv, send, with_schedule
from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.schedule import Item

from .schedule_plans import Built, Places, built, once

#: An event while lanes are made: segments by (`run`, segment, run), batches and waits by a number of theirs.
Draft = tuple[object, ...]
_PLACES = ((0, 1), (0, 1, 0), (0, 1, 1, 0), (0, 1, 2), (1, 0))


@cache
def _built(places: tuple[int, ...], microbatches: int, replicas: int, inside: bool) -> Built:
    return built(Places(places, microbatches, replicas), inside)


def drawn(seed: int) -> Plan:
    """A pipeline with a schedule; about half of them have mistakes."""
    rng = random.Random(seed)
    while True:
        b = _built(rng.choice(_PLACES), rng.randint(1, 3), rng.choice((1, 2)), rng.random() < 0.4)
        lanes = _way(b, rng)
        if rng.random() < 0.6:
            for _ in range(rng.randint(1, 3)):
                _mistake(lanes, rng)
        schedule = ScheduleBuilder(b.programs, once=once(b))
        try:
            for r, drafts in enumerate(lanes):
                lane = schedule.lane(f"rank{r}", {"pp": (r, r + 1)})
                _events(lane, drafts)
                _slots(b, lane, f"c{r}", rng)
            return with_schedule(b.plan, schedule.build())
        except (FormatError, KeyError):
            continue  # a wait before what it waits for


def _way(b: Built, rng: random.Random) -> list[list[Draft]]:
    """Any order in which all that is read is there, rank by rank; some messages in flight for a while."""
    place, last, mbs = b.places.rank, b.places.stages - 1, range(b.places.microbatches)
    todo: dict[tuple[str, int, int], list[tuple[str, int, int]]] = {}
    for s, m in ((s, m) for s in range(last + 1) for m in mbs):
        todo["f", s, m] = [("f", s - 1, m)] if s else []
        todo["i", s, m] = [("f", s, m), *([("i", s + 1, m)] if s < last else [])]
        todo["w", s, m] = [("i", s, m)]
    done: set[tuple[str, int, int]] = set()
    lanes: list[list[Draft]] = [[] for _ in range(b.places.ranks)]
    open_: list[list[tuple[int, object]]] = [[] for _ in lanes]
    numbers = iter(range(1 << 20))

    def issue(rank: int, on: str, item: Item, reader: object) -> None:
        number = next(numbers)
        if rng.random() < 0.5:
            lanes[rank].append(("now", number, on, (item,)))
        else:
            lanes[rank].append(("post", number, on, (item,)))
            open_[rank].append((number, reader))

    def settle(rank: int, what: object) -> None:
        for entry in list(open_[rank]):
            if entry[1] == what or rng.random() < 0.2:
                open_[rank].remove(entry)
                lanes[rank].append(("wait", entry[0]))

    while todo:
        ready = [key for key, needs in todo.items() if done.issuperset(needs)]
        kind, s, m = key = rng.choice(ready)
        del todo[key]
        done.add(key)
        settle(place[s], key)
        lanes[place[s]].append(("run", f"{kind}{s}", m))
        there = {"f": s + 1, "i": s - 1}.get(kind, -1)
        if 0 <= there <= last and place[there] != place[s]:
            seq = there if kind == "f" else 100 + there
            on = rng.choice(("pp", f"pair_{min(place[s], place[there])}"))
            issue(place[s], on, send(seq, m), None)
            issue(place[there], on, recv(seq, m), (kind, there, m))
    for r, lane in enumerate(lanes):
        for number, _ in open_[r]:
            lane.append(("wait", number))
        if place[last] == r:
            lane.append(("now", next(numbers), "dp", (meet(5001),)))
        for s, rank in enumerate(place):
            if rank == r and not b.inside:
                lane.append(("now", next(numbers), "dp", (meet(2000 + s),)))
        lane.append(("run", "update", 0))
    return lanes


def _mistake(lanes: list[list[Draft]], rng: random.Random) -> None:
    """Changes one lane in place, so that it may be wrong, or merely different."""
    lane = rng.choice(lanes)
    i = rng.randrange(len(lane))
    match rng.randrange(6):
        case 0 if i:
            lane[i - 1], lane[i] = lane[i], lane[i - 1]
        case 1:
            lane.insert(rng.randrange(len(lane)), lane.pop(i))
        case 2 if i and lane[i][0] == lane[i - 1][0] in ("now", "post"):
            before, after = lane[i - 1], lane.pop(i)
            lane[i - 1] = (*before[:3], (*before[3], *after[3]))  # type: ignore[misc]
            lane[:] = [e for e in lane if e != ("wait", after[1])]
        case 3 if lane[i][0] in ("now", "post"):
            lane[i] = (*lane[i][:2], rng.choice(("pp", "pair_0", "dp")), lane[i][3])
        case 4 if lane[i][0] == "now":
            lane.insert(rng.randrange(i + 1, len(lane) + 1), ("wait", lane[i][1]))
            lane[i] = ("post", *lane[i][1:])
        case 5:
            j = rng.randrange(len(lane))
            lane[i], lane[j] = lane[j], lane[i]
        case _:
            pass


def _events(lane: LaneBuilder, drafts: list[Draft]) -> None:
    number: dict[object, int] = {}
    for kind, *rest in drafts:
        match kind, rest:
            case "run", [str(segment), int(run)]:
                lane.run(segment, run)
            case "now", [_, str(on), tuple(items)]:
                lane.now(on, *items)
            case "post", [which, str(on), tuple(items)]:
                number[which] = lane.post(on, *items)
            case _:
                lane.wait(number[rest[0]])


def _slots(b: Built, lane: LaneBuilder, cls: str, rng: random.Random) -> None:
    """Memory for a few values, sometimes of less than all runs, sometimes shared."""
    program, taken = b.plan.by_class[cls].program, 0
    names = [op.out for op in program.ops if op.name not in ("send", "all_reduce")] + list(program.inputs)
    for name in rng.sample(names, rng.randint(0, 4)):
        count = 1 if name in program.inputs else rng.randint(1, b.places.microbatches)
        shared = taken and rng.random() < 0.3
        lane.slot(cls, name, count, rng.randrange(taken) if shared else None)
        taken = max(s.first + s.count for s in lane.slots)
