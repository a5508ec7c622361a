"""The order in which ops of all rank classes are related."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from certificates.plan.calls import Site
from certificates.plan.messages import ends
from certificates.plan.ops import CALL, COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.plan.sites import sites


def segments(plan: Plan) -> Iterator[list[str] | Site]:
    """Ops of all classes from one collective or call to the next; each segment needs earlier ones only.

    A call that all its callers have reached is a segment of its own. A class waits for what it receives.
    """
    callers = {site: len(each.roles) - 1 for site, each in sites(plan).items()}
    position = {c.name: 0 for c in plan.classes}
    sent: set[tuple[str, int]] = set()
    while True:
        segment: list[str] = []
        waiting = False
        arrived: dict[int, set[str]] = {}
        called: dict[Site, list[str]] = {}
        for cls in plan.classes:
            ops = cls.program.ops
            while position[cls.name] < len(ops):
                op = ops[position[cls.name]]
                if op.name in COLLECTIVES:
                    arrived.setdefault(op.integer("seq"), set()).add(cls.name)
                    break
                if op.name == CALL:
                    called.setdefault((op.text("function"), op.integer("instance")), []).append(cls.name)
                    break
                if op.name == "recv" and any(
                    (c.name, op.integer("seq")) not in sent for c in ends(plan, cls, op)
                ):
                    waiting = True
                    break
                if op.name == "send":
                    sent.add((cls.name, op.integer("seq")))
                segment.append(f"{cls.name}:{op.out}")
                position[cls.name] += 1
        yield segment
        complete = [
            c for seq, classes in arrived.items() if classes == set(plan.rendezvous(seq)) for c in classes
        ]
        for name in complete:
            position[name] += 1
        for site, names in called.items():
            if len(names) == callers[site]:
                yield site
                complete += names
                for name in names:
                    position[name] += _width(plan.by_class[name].program.ops, position[name])
        if not complete and not (waiting and segment):
            return


def _width(ops: Sequence[Op], first: int) -> int:
    """How many results the call has whose first one stands at ``first``."""
    last = first + 1
    while last < len(ops) and ops[last].name == CALL and ops[last].integer("output"):
        last += 1
    return last - first
