"""Rendezvous that rest on their own results: such a plan has no run, and is no plan.

Only a rendezvous or a message carries a value from rank class to rank class, so a circle passes through some
of them, and the graph of these alone shows it: one rests on those that its operands are made of. Those of a
function count anew at each of its calls. A class that receives from itself what rests on it is refused too,
though its ranks might take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from certificates.plan.calls import Site, calls

from ..errors import FormatError
from .ops import CALL, COLLECTIVES, MESSAGES
from .program import Op, Program

Meeting = tuple[Site, int, int | str]
"""The call that it belongs to, its ``seq`` there, and the number of the classes that it joins. Of a message:
``send`` or ``recv`` and the class."""
Made = tuple[frozenset[Meeting], frozenset[str]]
"""What a value is made of: the nearest rendezvous, and inputs of its program."""
Traces = tuple[Mapping[str, Made], Mapping[Meeting, Made]]
OUTSIDE: Site = ("", 0)


def check_circles(
    classes: Mapping[str, Program],
    functions: Mapping[str, Mapping[str, Program]],
    joined: Mapping[str, Mapping[str, int]],
    messages: Mapping[tuple[str, int], Iterable[str]],
) -> None:
    """No rendezvous rests on its own result. ``functions`` has bodies by class, ``joined`` per group equal
    numbers for classes that it connects, ``messages`` the senders by receiving class and ``seq``."""
    if len(classes) == 1 and not messages:
        return
    rests: dict[Meeting, set[Meeting]] = {}
    for name, program in classes.items():
        places: dict[str, int | str] = {group: of[name] for group, of in joined.items()} | {"": name}
        bodies = {
            label: (f[name], _traces(f[name], places, {})) for label, f in functions.items() if name in f
        }
        for meeting, (before, _) in _traces(program, places, bodies)[1].items():
            rests.setdefault(meeting, set()).update(before)
    for (name, seq), senders in messages.items():
        rests[OUTSIDE, seq, f"recv {name}"] = {(OUTSIDE, seq, f"send {sender}") for sender in senders}
    circle = _circle(rests)
    if circle:
        shown = " <- ".join(
            (f"rendezvous {seq}" if isinstance(place, int) else f"message {seq} ({place})")
            + (f" of {site[0]} {site[1]}" if site != OUTSIDE else "")
            for site, seq, place in circle[:8]
        )
        raise FormatError(f"a value rests on itself: {shown}{' ...' if len(circle) > 8 else ''}")


def _traces(
    program: Program, places: Mapping[str, int | str], bodies: Mapping[str, tuple[Program, Traces]]
) -> Traces:
    """What values and rendezvous of a class's program are made of; inputs of the plan are nothing."""
    made: dict[str, Made] = {
        name: (frozenset(), frozenset(() if bodies else (name,))) for name in program.inputs
    }
    meetings: dict[Meeting, Made] = {}

    def together(names: Iterable[str]) -> Made:
        found = {id(what): what for what in (made[name] for name in names)}
        if len(found) == 1:  # most values are made of what one operand is made of
            return found.popitem()[1]
        return (
            frozenset().union(*(m for m, _ in found.values())),
            frozenset().union(*(i for _, i in found.values())),
        )

    sites = {call.results[0]: call for call in calls(program)}
    after = program.rows.after if program.rows else {}
    for op in program.ops:
        ins = (*op.ins, after[op.out]) if op.out in after else op.ins
        if op.name == CALL:
            if op.out in sites:
                call = sites[op.out]
                body, (values, inner) = bodies[call.function]
                operand = dict(zip(body.inputs, call.ins, strict=True))
                results = dict(zip(call.results, body.outputs.values(), strict=True))
                here: dict[Made, Made] = {}
                for inside in {*inner.values(), *(values[value] for value in results.values())}:
                    outer = together(operand[name] for name in inside[1])
                    here[inside] = outer[0] | {(call.site, *m[1:]) for m in inside[0]}, outer[1]
                meetings |= {(call.site, m[1], m[2]): here[what] for m, what in inner.items()}
                made |= {result: here[values[value]] for result, value in results.items()}
        elif op.name in COLLECTIVES:
            meeting = _meeting(op, places)
            meetings[meeting] = together(ins)
            made[op.out] = frozenset((meeting,)), frozenset()
        elif op.name in MESSAGES:
            meeting = OUTSIDE, op.integer("seq"), f"{op.name} {places['']}"
            meetings[meeting] = together(op.ins)
            made[op.out] = frozenset((meeting,)), frozenset()
        else:
            made[op.out] = together(ins)
    return made, meetings


def _meeting(op: Op, places: Mapping[str, int | str]) -> Meeting:
    return OUTSIDE, op.integer("seq"), places[op.text("group")]


def _circle(rests: Mapping[Meeting, Iterable[Meeting]]) -> list[Meeting]:
    """Some circle, or nothing: a walk in depth that meets a place it has not left."""
    done: set[Meeting] = set()
    for start in rests:
        path = {start: iter(rests[start])} if start not in done else {}
        while path:
            here = next(reversed(path))
            after = next((m for m in path[here] if m not in done), None)
            if after is None:
                done.add(here)
                del path[here]
            elif after in path:
                return list(path)[list(path).index(after) :]
            else:
                path[after] = iter(rests[after])
    return []
