"""Rendezvous that rest on their own results: such a plan has no run, and is no plan.

Only a rendezvous carries a value from rank class to rank class, so a circle passes through some of them, and
the graph of rendezvous alone shows it: one rests on those that its operands are made of. Those of a function
count anew at each of its calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from certificates.plan.affine import Range
from certificates.plan.calls import Site, calls

from ..errors import FormatError
from .ops import CALL, COLLECTIVES
from .program import Op, Program

Meeting = tuple[Site, int, int]
"""The call that it belongs to, its ``seq`` there, and the number of the classes that it joins."""
Made = tuple[frozenset[Meeting], frozenset[str]]
"""What a value is made of: the nearest rendezvous, and inputs of its program."""
Traces = tuple[Mapping[str, Made], Mapping[Meeting, Made]]
OUTSIDE: Site = ("", 0)


def check_circles(
    classes: Mapping[str, tuple[Mapping[str, Range], Program]],
    functions: Mapping[str, Mapping[str, Program]],
    groups: Mapping[str, Sequence[Sequence[int]]],
    mesh: Mapping[str, int],
) -> None:
    """No rendezvous rests on its own result. ``classes`` has boxes, ``functions`` bodies by class."""
    if len(classes) == 1:
        return
    owner = _owners({name: box for name, (box, _) in classes.items()}, mesh)
    joined = {name: _joined(ranks, owner) for name, ranks in groups.items()}
    rests: dict[Meeting, set[Meeting]] = {}
    for name, (_, program) in classes.items():
        places = {group: of[name] for group, of in joined.items()}
        bodies = {label: (f[name], _traces(f[name], places, {})) for label, f in functions.items()}
        for meeting, (before, _) in _traces(program, places, bodies)[1].items():
            rests.setdefault(meeting, set()).update(before)
    circle = _circle(rests)
    if circle:
        shown = " <- ".join(
            f"rendezvous {seq}" + (f" of {site[0]} {site[1]}" if site != OUTSIDE else "")
            for site, seq, _ in circle[:8]
        )
        raise FormatError(f"a value rests on itself: {shown}{' ...' if len(circle) > 8 else ''}")


def _owners(boxes: Mapping[str, Mapping[str, Range]], mesh: Mapping[str, int]) -> dict[int, str]:
    """The class of each rank."""
    owner = {}
    for name, box in boxes.items():
        for at in itertools.product(*(range(*box[axis]) for axis in mesh)):
            rank = 0
            for i, size in zip(at, mesh.values(), strict=True):
                rank = rank * size + i
            owner[rank] = name
    return owner


def _joined(lists: Iterable[Sequence[int]], owner: Mapping[int, str]) -> dict[str, int]:
    """Equal numbers for classes that rank lists of a group connect, directly or through others."""
    sets = [{name} for name in dict.fromkeys(owner.values())]
    for members in {frozenset(owner[r] for r in ranks) for ranks in lists}:
        apart = [s for s in sets if not s & members]
        sets = [*apart, set().union(*(s for s in sets if s & members))]
    return {name: i for i, s in enumerate(sets) for name in s}


def _traces(
    program: Program, places: Mapping[str, int], bodies: Mapping[str, tuple[Program, Traces]]
) -> Traces:
    """What values and rendezvous of a class's program are made of; inputs of the plan are nothing."""
    made: dict[str, Made] = {
        name: (frozenset(), frozenset(() if bodies else (name,))) for name in program.inputs
    }
    meetings: dict[Meeting, Made] = {}

    def together(names: Iterable[str]) -> Made:
        found = [made[name] for name in names]
        return frozenset().union(*(m for m, _ in found)), frozenset().union(*(i for _, i in found))

    sites = {call.results[0]: call for call in calls(program)}
    for op in program.ops:
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
            meetings[meeting] = together(op.ins)
            made[op.out] = frozenset((meeting,)), frozenset()
        else:
            made[op.out] = together(op.ins)
    return made, meetings


def _meeting(op: Op, places: Mapping[str, int]) -> Meeting:
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
