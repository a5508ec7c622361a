"""Messages: every ``send`` is received once and every ``recv`` is sent once, by the ranks that they name.

``to`` of the sender and ``from`` of the receiver are inverse to each other, on all of both boxes, so the
points that send a message and those that receive it stand in a bijection. A message stays at its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from certificates.plan.affine import Affine
from certificates.plan.plan import Box, Plan, RankClass

from ..errors import FormatError
from .ops import MESSAGES
from .program import Op

#: Per op: the attribute that names the other end, and the op there.
_ENDS = {"send": ("to", "recv"), "recv": ("from", "send")}


def check_messages(plan: Plan) -> None:
    """Raises :class:`FormatError` naming the message; functions have none."""
    seen: set[tuple[str, str, int]] = set()
    for cls in plan.classes:
        for op in cls.program.ops:
            if op.name not in MESSAGES:
                continue
            key = cls.name, op.name, op.integer("seq")
            if key in seen:
                raise FormatError(f"class {cls.name}: {op.name} {op.out}: message {key[2]} occurs twice")
            seen.add(key)
            if plan.rendezvous(key[2]):
                raise FormatError(f"class {cls.name}: {op.name} {op.out}: {key[2]} is a rendezvous as well")
    for cls in plan.classes:
        for op in cls.program.ops:
            if op.name in MESSAGES:
                problem = _mismatch(plan, cls, op)
                if problem:
                    raise FormatError(f"class {cls.name}: {op.name} {op.out}: {problem}")


def ends(plan: Plan, cls: RankClass, op: Op) -> Iterator[RankClass]:
    """The classes that a message's forms reach: of a ``recv`` those that may send it."""
    spans = [f.interval(cls.box) for f in op.affines(_ENDS[op.name][0])]
    for other in plan.classes:
        box = [other.box[axis] for axis in plan.mesh.axes]
        if all(first < hi and lo <= last for (first, last), (lo, hi) in zip(spans, box, strict=True)):
            yield other


def _mismatch(plan: Plan, cls: RankClass, op: Op) -> str | None:
    key, there = _ENDS[op.name]
    forms = _settled(op.affines(key), cls.box)
    for (axis, size), form in zip(plan.mesh.axes.items(), forms, strict=True):
        first, last = form.interval(cls.box)
        if first < 0 or last >= size:
            return f"{key} leaves the mesh along {axis}"
        if axis in plan.mesh.time and not _is_here(form, axis, cls.box):
            return f"a message keeps its {axis}"
    for other in ends(plan, cls, op):
        met = plan.messages(there, op.integer("seq")).get(other.name)
        if met is None:
            return f"class {other.name} has no {there} {op.integer('seq')}"
        if met.type != op.type:
            return f"class {other.name} has {met.type} where {op.type} is meant"
        outward = dict(zip(plan.mesh.axes, forms, strict=True))
        back = [f.substitute(outward) for f in met.affines(_ENDS[there][0])]
        if not all(map(_is_here, back, plan.mesh.axes, [cls.box] * len(back))):
            return f"{there} {met.out} of class {other.name} means other ranks"
    return None


def _settled(forms: Sequence[Affine], box: Box) -> list[Affine]:
    """The forms with the number for each axis that has one coordinate in the box."""
    fixed = {a: Affine(lo) for a, (lo, hi) in box.items() if hi == lo + 1}
    return [f.substitute(fixed) for f in forms]


def _is_here(form: Affine, axis: str, box: Box) -> bool:
    lo, hi = box[axis]
    return form == (Affine(lo) if hi == lo + 1 else Affine.symbol(axis))
