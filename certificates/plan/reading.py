"""Plan files read: :func:`load` and :func:`loads` return a checked plan or raise :class:`FormatError`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from certificates.plan.affine import Affine, Range
from certificates.plan.calls import call_from_json
from certificates.plan.names import check_symbol
from certificates.plan.plan import FORMAT, VERSIONS, Function, Group, Mesh, Piece, Plan, RankClass, Relation

from ..canonical import parse_json, read_bytes
from ..errors import FormatError
from ..shapes import as_list, as_object, as_text
from .checking import check_plan
from .ops import CALL
from .program import Op, Program, op_from_json
from .rows import lowered
from .schedule import schedule_from_json
from .types import TensorType, rational


def load(path: Path | str) -> Plan:
    """Read a plan file, gzip or plain."""
    return loads(read_bytes(Path(path)))


def _strings(data: object, what: str) -> tuple[str, ...]:
    items = as_list(data, what)
    if not all(isinstance(v, str) for v in items):
        raise FormatError(f"{what} must be a list of strings")
    return tuple(str(v) for v in items)


def _integers(data: object, what: str, signed: bool = False) -> tuple[int, ...]:
    out = []
    for value in as_list(data, what):
        if isinstance(value, bool) or not isinstance(value, int) or (value < 0 and not signed):
            raise FormatError(f"{what} must hold {'' if signed else 'non-negative '}integers")
        out.append(value)
    return tuple(out)


def _pairs(data: object, what: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for entry in as_list(data, what):
        pair = _strings(entry, f"entry of {what}")
        if len(pair) != 2 or pair[0] in out:
            raise FormatError(f"{what} must hold pairs with distinct names")
        out[pair[0]] = pair[1]
    return out


def _range(data: object, what: str, signed: bool = False) -> Range:
    pair = _integers(data, what, signed)
    if len(pair) != 2 or pair[0] >= pair[1]:
        raise FormatError(f"{what} must be a half-open range [lo, hi] with lo < hi")
    return pair[0], pair[1]


def _mapping(data: object, what: str) -> dict[str, object]:
    if not isinstance(data, dict):
        raise FormatError(f"{what} must be an object")
    return data


def _program(
    data: object,
    what: str,
    bodies: Mapping[str, Program] | None = None,
    groups: Mapping[str, Group] | None = None,
    mesh: Mesh | None = None,
) -> Program:
    """A program; ``bodies`` are those of the functions that it may call."""
    raw = as_object(data, what, frozenset(("inputs", "ops", "outputs")))
    inputs = {n: TensorType.parse(t) for n, t in _pairs(raw["inputs"], f"inputs of {what}").items()}
    ops: list[Op] = []
    for entry in as_list(raw["ops"], f"ops of {what}"):
        if isinstance(entry, list) and len(entry) == 5 and entry[1] == CALL:
            ops += call_from_json(entry, bodies or {})
        else:
            ops.append(op_from_json(entry))
    program = Program(inputs, tuple(ops), _pairs(raw["outputs"], f"outputs of {what}"))
    try:
        return lowered(program, groups or {}, mesh)
    except FormatError as error:
        raise FormatError(f"{what}: {error}") from error


def _axes(data: object, what: str) -> dict[str, int]:
    axes: dict[str, int] = {}
    for entry in as_list(data, what):
        pair = as_list(entry, f"an axis of {what}")
        if len(pair) != 2 or not isinstance(pair[0], str) or pair[0] in axes:
            raise FormatError(f"{what} must be a list of [name, size] with distinct names")
        axes[pair[0]] = _integers(pair[1:], f"sizes of the {what}")[0]
    return axes


def _group(name: str, data: object, time: Mapping[str, int]) -> Group:
    """A group over time axes has no rank lists."""
    over = isinstance(data, dict) and "ranks" not in data and bool(time)
    g = as_object(data, f"group {name}", frozenset(("axes",) if over else ("axes", "ranks")))
    axes = _strings(g["axes"], f"axes of {name}")
    if over:
        if not axes or not set(axes) <= time.keys():
            raise FormatError(f"group {name} has no rank lists and is not over time axes only")
        return Group(axes, (), math.prod(time[a] for a in axes))
    lists = tuple(_integers(r, f"ranks of {name}") for r in as_list(g["ranks"], f"ranks of {name}"))
    return Group(axes, lists)


def _functions(data: object) -> dict[str, Function]:
    functions = {}
    for name, entry in _mapping(data, "functions").items():
        check_symbol(name, "function")
        sliced = isinstance(entry, dict) and "along" in entry
        keys = ("specification", "classes", *(("along", "roles") if sliced else ()))
        f = as_object(entry, f"function {name}", frozenset(keys))
        bodies = {
            c: _program(p, f"{name} of class {c}") for c, p in _mapping(f["classes"], "classes").items()
        }
        specification = _program(f["specification"], f"{name} of the specification")
        along = _strings(f["along"], f"along of {name}") if sliced else ()
        roles = {
            r: {a: _range(side, f"role {r}") for a, side in _mapping(box, f"role {r}").items()}
            for r, box in (_mapping(f["roles"], f"roles of {name}") if sliced else {}).items()
        }
        if sliced and not along:
            raise FormatError(f"function {name}: an empty list of along; leave it out")
        functions[name] = Function(specification, bodies, along, roles)
    return functions


def _relation(data: object, known: dict[str, tuple[Piece, ...]]) -> Relation:
    """``known`` has the pieces that were read already, by their text: equal layers have equal ones."""
    raw = as_object(data, "a relation", frozenset(("spec", "plan", "coef", "reduce", "pieces")))
    spec, plan = as_text(raw["spec"], "spec of a relation"), as_text(raw["plan"], "plan of a relation")
    reduce: tuple[str, tuple[str, ...]] | None = None
    if raw["reduce"] is not None:
        pair = as_list(raw["reduce"], "reduce of a relation")
        if len(pair) != 2 or pair[0] not in ("add", "max", "min"):
            raise FormatError(f"reduce of relation {plan} must be null or [add|max|min, [axes]]")
        reduce = (str(pair[0]), _strings(pair[1], "reduce axes"))
    text = repr(raw["pieces"])
    if text not in known:
        known[text] = tuple(_piece(p) for p in as_list(raw["pieces"], "pieces of a relation"))
    return Relation(spec, plan, known[text], rational(as_text(raw["coef"], "coef of a relation")), reduce)


def _piece(data: object) -> Piece:
    raw = as_object(data, "a piece", frozenset(("class", "sizes", "plan", "spec")))
    return Piece(
        as_text(raw["class"], "class of a piece"),
        _integers(raw["sizes"], "sizes of a piece"),
        tuple(Affine.from_json(a) for a in as_list(raw["plan"], "plan forms")),
        tuple(Affine.from_json(a) for a in as_list(raw["spec"], "spec forms")),
    )


_KEYS = frozenset(
    (
        "format",
        "version",
        "name",
        "mesh",
        "groups",
        "sources",
        "specification",
        "classes",
        "inputs",
        "outputs",
        "ranges",
        "provenance",
    )
)


_OPTIONAL = frozenset(("functions", "given", "constants", "time", "schedule"))


def loads(data: bytes) -> Plan:
    """Parse and check a plan document."""
    document = parse_json(data)
    there = frozenset(document) if isinstance(document, dict) else frozenset()
    raw = as_object(document, "a plan", _KEYS | (there & _OPTIONAL))
    version = raw["version"]
    if raw["format"] != FORMAT or isinstance(version, bool) or version not in VERSIONS:
        raise FormatError(f"not a {FORMAT} document of version {' or '.join(map(str, VERSIONS))}")
    time, space = (_axes(raw.get(what, []), what) for what in ("time", "mesh"))
    if time.keys() & space.keys():
        raise FormatError("time and mesh must be lists of [name, size] with distinct names")
    groups = {n: _group(n, g, time) for n, g in _mapping(raw["groups"], "groups").items()}
    functions = _functions(raw.get("functions", {}))
    roles = {role: _strings(raw.get(role, []), role) for role in ("given", "constants")}
    for key in sorted(there & _OPTIONAL):
        if not raw[key]:
            raise FormatError(f"an empty list of {key}; leave it out")
    classes, mesh = [], Mesh(time | space, tuple(time))
    for entry in as_list(raw["classes"], "classes"):
        c = as_object(entry, "a rank class", frozenset(("name", "box", "program")))
        name = as_text(c["name"], "name of a class")
        box = {a: _range(r, f"box of {name}") for a, r in _mapping(c["box"], "box").items()}
        bodies = {}
        for label, function in functions.items():
            role = function.role(box) if function.along and box.keys() == mesh.axes.keys() else name
            if role is not None and role in function.classes:
                bodies[label] = function.classes[role]
            elif not function.along:
                raise FormatError(f"function {label} must have a body for every rank class")
        classes.append(
            RankClass(name, box, _program(c["program"], f"program of {name}", bodies, groups, mesh))
        )
    known: dict[str, tuple[Piece, ...]] = {}
    plan = Plan(
        as_text(raw["name"], "name"),
        mesh,
        groups,
        _strings(raw["sources"], "sources"),
        _program(raw["specification"], "specification", {f: g.specification for f, g in functions.items()}),
        tuple(classes),
        tuple(_relation(r, known) for r in as_list(raw["inputs"], "inputs")),
        tuple(_relation(r, known) for r in as_list(raw["outputs"], "outputs")),
        {n: _range(r, f"range of {n}", signed=True) for n, r in _mapping(raw["ranges"], "ranges").items()},
        _mapping(raw["provenance"], "provenance"),
        functions,
        roles["given"],
        roles["constants"],
        int(str(version)),
        schedule_from_json(raw["schedule"]) if "schedule" in raw else None,
    )
    check_plan(plan)
    return plan
