"""Plans written: deterministic bytes, files replaced as a whole."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from pathlib import Path

from certificates.plan.calls import call_to_json, calls
from certificates.plan.plan import FORMAT, Box, Group, Plan, Relation

from ..canonical import canonical_text, object_text, read_bytes
from ..errors import FormatError
from .ops import CALL
from .program import Program, op_to_json
from .schedule import schedule_to_json
from .types import format_rational


def to_json(plan: Plan) -> dict[str, object]:
    """The document as plain data."""

    def program(p: Program) -> dict[str, object]:
        made = {c.results[0]: call_to_json(c) for c in calls(p)}
        return {
            "inputs": [[n, str(t)] for n, t in p.inputs.items()],
            "ops": [
                made[op.out] if op.name == CALL else op_to_json(op)
                for op in p.written
                if op.name != CALL or op.out in made
            ],
            "outputs": [[n, v] for n, v in p.outputs.items()],
        }

    shown: dict[int, list[object]] = {}  # equal layers share their pieces

    def pieces(r: Relation) -> list[object]:
        if id(r.pieces) not in shown:
            shown[id(r.pieces)] = [
                {
                    "class": p.cls,
                    "sizes": list(p.sizes),
                    "plan": [a.to_json() for a in p.plan],
                    "spec": [a.to_json() for a in p.spec],
                }
                for p in r.pieces
            ]
        return shown[id(r.pieces)]

    def relation(r: Relation) -> dict[str, object]:
        return {
            "spec": r.spec,
            "plan": r.plan,
            "coef": format_rational(r.coef),
            "reduce": None if r.reduce is None else [r.reduce[0], list(r.reduce[1])],
            "pieces": pieces(r),
        }

    functions = {
        n: {
            "specification": program(f.specification),
            "classes": {c: program(body) for c, body in f.classes.items()},
        }
        | ({"along": list(f.along), "roles": {r: _box(box) for r, box in f.roles.items()}} if f.along else {})
        for n, f in plan.functions.items()
    }

    def group(g: Group) -> dict[str, object]:
        return {"axes": list(g.axes)} | ({} if g.steps else {"ranks": [list(r) for r in g.ranks]})

    time = [[a, plan.mesh.axes[a]] for a in plan.mesh.time]
    optional = {
        "time": time,
        "functions": functions,
        "given": list(plan.given),
        "constants": list(plan.constants),
        "schedule": schedule_to_json(plan.schedule) if plan.schedule else {},
    }
    return {key: value for key, value in optional.items() if value} | {
        "format": FORMAT,
        "version": plan.version,
        "name": plan.name,
        "mesh": [[a, n] for a, n in plan.mesh.space.items()],
        "groups": {n: group(g) for n, g in plan.groups.items()},
        "sources": list(plan.sources),
        "specification": program(plan.specification),
        "classes": [
            {"name": c.name, "box": _box(c.box), "program": program(c.program)} for c in plan.classes
        ],
        "inputs": [relation(r) for r in plan.inputs],
        "outputs": [relation(r) for r in plan.outputs],
        "ranges": {n: list(r) for n, r in plan.ranges.items()},
        "provenance": dict(plan.provenance),
    }


def _box(box: Box) -> dict[str, list[int]]:
    return {a: list(side) for a, side in box.items()}


def texts(plan: Plan) -> Mapping[str, str]:
    """Canonical JSON of every member of the plan's document; a plan's is made once."""
    if not plan.written:
        plan.written.update({key: canonical_text(value) for key, value in to_json(plan).items()})
    return plan.written


def dumps(plan: Plan) -> bytes:
    """The document: canonical JSON."""
    return (object_text(texts(plan)) + "\n").encode("ascii")


def dump(plan: Plan, path: Path | str) -> None:
    """Write a plan; a name ending in ``.gz`` is compressed deterministically.

    Replaces atomically, through links too: a failure or an interrupt leaves what was there, and nothing else.
    """
    path, data = Path(path).resolve(), dumps(plan)
    if path.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        scratch.write_bytes(data)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def is_plan_file(path: Path) -> bool:
    """Does ``path`` look like a file that :func:`dump` wrote? Only its ends and its header are compared."""
    try:
        data = read_bytes(path)
    except FormatError:
        return False
    header = f'"format":"{FORMAT}"'.encode()
    return data.startswith(b'{"classes":[') and data.endswith(b"}\n") and header in data
