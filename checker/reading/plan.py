"""The plan reader: plan bytes to a fully type-checked `Plan`, or `Malformed` (obligation 2).

Nothing in the data model can be built from bytes without passing every check below, so later modules may rely
on types, ranges and names.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from ..errors import Malformed, need
from ..language.affine import Affine, evident
from ..language.ops import ATTRIBUTES, COLLECTIVES, OPERANDS, SORTS, Op, Type, check_types
from ..language.plan import Group, Piece, Plan, Program, RankClass, Relation, Site, apart, fibres
from .meeting import check_meetings, meetings
from .rows import PACKED, Rows
from .schedule import read_schedule
from .slices import Ground, check_calls, check_groups, read_ground
from .strict import (
    RESULT,
    Reader,
    affine,
    affines,
    anything,
    array,
    integer,
    integers,
    interval,
    many,
    members,
    name,
    natural,
    one_of,
    optional,
    rational,
    read_json,
    record,
    row,
    symbol,
    text,
)

MAX_RANKS, MAX_CLASSES = 1 << 20, 1 << 12
VERSIONS = (1, 2, 3, 4)
NAMED = ATTRIBUTES | {op: attrs for op, (_, attrs) in PACKED.items()}
axes = many(row(symbol, natural))
ROLES = ("given", "constants")
OPTIONAL = ("functions", "time", "schedule", *ROLES)
SLICED = ("along", "roles")


def read_plan(data: bytes) -> Plan:
    """The plan in these (uncompressed) bytes, everything in it checked; else `Malformed`."""
    document = read_json(data, "plan")
    extra = {k: document.pop(k) for k in OPTIONAL if k in document} if isinstance(document, dict) else {}
    need(all(extra.values()), "plan: an optional member is empty")
    called = extra.get("functions", {})
    top = record(
        document,
        "plan",
        format=one_of(("trainverify-plan",), "unknown format"),
        version=anything,
        name=text,
        mesh=axes,
        groups=anything,
        sources=many(text),
        specification=anything,
        classes=array,
        inputs=array,
        outputs=array,
        ranges=anything,
        provenance=anything,
    )
    time, version = axes(extra.get("time", []), "time"), top["version"]
    mesh, names = (*time, *top["mesh"]), tuple(a for a, _ in time)
    known = isinstance(version, int) and not isinstance(version, bool) and version in VERSIONS
    need(known and isinstance(top["provenance"], dict), "plan: unknown version, or provenance")
    need(
        version > 1 or not extra.keys() & {"time", "schedule"}, "plan: version 1 has no time axes or schedule"
    )
    world = math.prod(n for _, n in mesh)
    need(len(dict(mesh)) == len(mesh) and 1 <= world <= MAX_RANKS, "mesh: bad axes")
    need(len(top["classes"]) <= MAX_CLASSES, f"plan: more than {MAX_CLASSES} classes")
    groups = _groups(top["groups"], top["mesh"], dict(time))
    boxes, programs = dict[str, dict[str, tuple[int, int]]](), dict[str, Any]()
    for entry in top["classes"]:
        item = record(entry, "class", name=symbol, box=anything, program=anything)
        what = f"class {item['name']}"
        box = record(item["box"], f"{what}: box", **{a: interval for a, _ in mesh})
        need(all(box[a][0] >= 0 and box[a][1] <= n for a, n in mesh), f"{what}: bad box")
        need(item["name"] not in boxes, f"{what} occurs twice")
        boxes[item["name"]], programs[item["name"]] = box, item["program"]
    whole = Ground(mesh, names, boxes, groups)

    def problem(
        what: str, ground: Ground, spec: Any, bodies: Mapping[str, Any], functions: Mapping[str, Plan]
    ) -> Plan:
        """The specification's program and one for each class, which meet, and may call functions."""
        sources = len(top["sources"])
        bare = {f: p.spec for f, p in functions.items()}
        read = _program(spec, f"{what}specification", {}, {}, sources, bare, {})
        classes = {
            c: RankClass(
                c,
                tuple(box[a] for a, _ in ground.mesh),
                _program(
                    bodies[c],
                    f"{what}class {c}",
                    box,
                    ground.groups,
                    sources,
                    {
                        f: p.program(p.plays.get(c, c))
                        for f, p in functions.items()
                        if c in p.plays or not p.along
                    },
                    dict(ground.mesh),
                ),
            )
            for c, box in ground.boxes.items()
        }
        rendezvous, messages = meetings(classes)
        need(not messages or version > 1, "plan: version 1 has no messages")
        packed = any(p.keys for p in (read, *(c.program for c in classes.values())))
        need(not packed or version > 2, f"plan: version {version} has no packed rows")
        plan = Plan(
            top["name"],
            ground.mesh,
            ground.groups,
            top["sources"],
            read,
            classes,
            (),
            (),
            {},
            top["provenance"],
            rendezvous,
            hashlib.sha256(data).hexdigest(),
            functions,
            version=version,
            time=names,
            messages=messages,
            along=ground.along,
            plays=ground.plays,
        )
        _tile(plan)
        check_groups(plan, what)
        check_meetings(plan)
        check_calls(plan)
        return plan

    functions = dict[str, Plan]()
    for key, entry in members(
        called, "functions", "", " ".join(called) if isinstance(called, dict) else ""
    ).items():
        what = f"function {symbol(key, 'function')}"
        parts = dict.fromkeys(SLICED, anything) if isinstance(entry, dict) and "along" in entry else {}
        need(not parts or version > 3, f"{what}: version {version} has no functions at a slice")
        item = record(entry, what, specification=anything, classes=anything, **parts)
        own = read_ground(item, what, whole) if parts else whole
        bodies = members(item["classes"], f"{what}: classes", " ".join(own.boxes))
        functions[key] = problem(f"{what}: ", own, item["specification"], bodies, {})
    plan = problem("", whole, top["specification"], programs, functions)
    integral = " ".join(n for n, t in plan.spec.inputs.items() if t.sort == "Int")
    ranges = {
        n: interval(r, f"range of {n}") for n, r in members(top["ranges"], "ranges", "", integral).items()
    }
    relations = [
        tuple(_relation(r, plan, side, f"{side[:-1]} relation {i}") for i, r in enumerate(top[side]))
        for side in ("inputs", "outputs")
    ]
    for f, body in functions.items():
        given = {i: {v for _, v in plan.operands(f, "s", i)} for i in body.spec.inputs}
        functions[f] = replace(
            body,
            ranges={
                i: (min(ranges[v][0] for v in vs), max(ranges[v][1] for v in vs))
                for i, vs in given.items()
                if vs and ranges.keys() >= vs
            },
        )
    roles = [_declared(plan, extra.get(role, []), role) for role in ROLES]
    need(not set(roles[0]) & set(roles[1]), "an input is declared both given and constant")
    return replace(
        plan,
        inputs=relations[0],
        outputs=relations[1],
        ranges=ranges,
        given=roles[0],
        constants=roles[1],
        schedule=read_schedule(extra["schedule"], plan) if "schedule" in extra else None,
    )


def _declared(plan: Plan, value: Any, role: str) -> tuple[str, ...]:
    """Inputs that the plan declares given anew, or constant: a step leaves them as they were."""
    programs = [plan.program(space) for space in ("s", *plan.classes)]
    names: tuple[str, ...] = many(one_of({n for p in programs for n in p.inputs}, "no input:"))(value, role)
    need(list(names) == sorted(set(names)), f"{role}: names must be sorted, each once")
    for n in names:
        need(all(p.outputs.get(n, n) == n for p in programs), f"{role}: a step leaves {n} with another value")
    return names


def attribute_readers(
    op: str, axes: Mapping[str, tuple[int, int]], groups: Mapping[str, Any]
) -> dict[str, Reader]:
    """How to read each attribute of an op; `axes` are the symbols of rank-dependent forms."""
    special: dict[str, Reader] = {
        "value": lambda value, what: value if isinstance(value, str) else affine(value, what, axes),
        "start": affines(axes),
        "to": affines(axes),
        "from": affines(axes),
        "stride": partial(integers, low=1),
        "group": one_of(groups, "unknown process group"),
        "seq": integer,
        "kind": one_of(("add", "max", "min", "and", "or"), "unknown kind"),
        "direction": one_of(("EQ", "NE", "LT", "LE", "GT", "GE"), "unknown direction"),
    }
    lists = ("dims", "perm", "low", "high", "lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract")
    return {a: special.get(a, integers if a in lists else natural) for a in NAMED[op].split()}


def literal_value(value: Any, kind: Type, what: str) -> Any:
    """The `value` of a constant: Fraction, bool, "inf", "-inf" or a rank-dependent form; None if wrong."""
    if kind.sort == "Bool":
        return {"true": True, "false": False}.get(value) if isinstance(value, str) else None
    if isinstance(value, Affine):
        return value if value.terms else Fraction(value.const)
    if value in ("inf", "-inf"):
        return value if kind.sort == "Real" else None
    number = rational(value, what)
    return number if kind.sort == "Real" or number.denominator == 1 else None


def read_type(value: Any, what: str) -> Type:
    found = re.fullmatch(r"([a-z0-9]{2,4})\[([0-9,]*)\]", value) if isinstance(value, str) else None
    if found is None or found[1] not in SORTS:
        raise Malformed(f"{what}: {value!r:.60} is no type")
    dims = found[2].split(",") if found[2] else []
    need(
        len(dims) <= 16 and all(re.fullmatch(r"[1-9][0-9]{0,11}", d) for d in dims),
        f"{what}: {value[:60]} has a bad dimension",
    )
    return Type(found[1], tuple(map(int, dims)))


def _groups(value: Any, mesh: tuple[tuple[str, int], ...], time: Mapping[str, int]) -> dict[str, Group]:
    """Groups of ranks, by their lists, or of the runs of a rank, by their axes alone (obligation 20)."""
    groups, world = {}, math.prod(n for _, n in mesh)
    for key, entry in members(
        value, "groups", "", " ".join(value) if isinstance(value, dict) else ""
    ).items():
        what = f"group {key!r:.60}"
        if time and isinstance(entry, dict) and "ranks" not in entry:
            axes = record(entry, what, axes=many(one_of(time, "no time axis")))["axes"]
            need(len(set(axes)) == len(axes) > 0, f"{what}: bad axes")
            groups[key] = Group(key, axes, (), True, math.prod(time[a] for a in axes))
            continue
        item = record(entry, what, axes=many(text), ranks=many(partial(integers, high=world)))
        axes, ranks = item["axes"], item["ranks"]
        need(set(axes) <= set(dict(mesh)) and len(set(axes)) == len(axes), f"{what}: bad axes")
        need(sorted(r for line in ranks for r in line) == list(range(world)), f"{what}: no partition")
        need(len({len(line) for line in ranks}) == 1, f"{what}: lists of different lengths")
        factorised = bool(axes) and set(ranks) == set(fibres(mesh, axes))
        groups[key] = Group(key, axes, ranks, factorised)
    return groups


def _program(
    value: Any,
    what: str,
    axes: Mapping[str, tuple[int, int]],
    groups: Mapping[str, Group],
    sources: int,
    bodies: Mapping[str, Program],
    mesh: Mapping[str, int],
) -> Program:
    item = record(value, what, inputs=many(row(name, read_type)), ops=array, outputs=many(row(name, text)))
    types, ops = dict[str, Type](item["inputs"]), dict[str, Op]()
    need(len(types) == len(item["inputs"]), f"{what}: an input occurs twice")
    inputs, calls = dict(types), dict[Site, tuple[tuple[str, ...], tuple[str, ...]]]()
    rows = Rows(what, mesh, item["ops"])
    for entry in item["ops"]:
        if isinstance(entry, list) and entry[1:2] == ["call"]:
            for operand in _call(entry, what, bodies, types, ops, calls):
                rows.plain(operand, "a call takes")
            continue
        result, op, operands, kind, attrs, source = array(entry, f"{what}: op", 6)
        where = f"{what}: op {text(result, what, RESULT)}"
        where = f"{where} {one_of(NAMED, 'unknown op')(op, where)}"
        need(result not in types, f"{where}: assigned twice")
        operands = many(one_of(types, "an operand is not defined before it:"))(operands, where)
        wanted = PACKED[op][0] if op in PACKED else OPERANDS.get(op, 1)
        wanted = max(len(operands), 1) if op == "concatenate" else wanted
        need(len(operands) == wanted, f"{where}: a list of {wanted} operands is expected")
        found = record(attrs, where, **attribute_readers(op, axes, groups))
        shape = read_type(kind, where)
        if op == "constant":
            found["value"] = literal_value(found["value"], shape, where)
        place = optional(row(partial(integer, low=0, high=sources), natural, text))(source, where)
        written = tuple(rows.declared[o] if o in rows.declared else types[o] for o in operands)
        made = Op(result, op, operands, written, shape, found, place)
        try:
            if op not in PACKED:
                check_types(made, axes, groups[found["group"]].size if op in COLLECTIVES else 1)
            for plain in rows.read(made, types, groups):
                need(plain.result not in types, f"{plain.result} is assigned already")
                types[plain.result], ops[plain.result] = plain.type, plain
                if plain is not made:
                    size = groups[plain.attrs["group"]].size if plain.name in COLLECTIVES else 1
                    check_types(plain, axes, size)
        except Malformed as error:
            raise Malformed(f"{where}: {error}") from None
    outputs = dict[str, str](item["outputs"])
    need(len(outputs) == len(item["outputs"]), f"{what}: an output occurs twice")
    need(set(outputs.values()) <= set(types), f"{what}: an output has no value")
    for output in outputs.values():
        rows.plain(output, "an output is")
    return Program(inputs, tuple(ops.values()), outputs, types, ops, calls, rows.keys, rows.meets, rows.after)


def _call(
    entry: list[Any],
    what: str,
    bodies: Mapping[str, Program],
    types: dict[str, Type],
    ops: dict[str, Op],
    calls: dict[Site, tuple[tuple[str, ...], tuple[str, ...]]],
) -> tuple[str, ...]:
    """A call: a new value for each output of the body, whose inputs have the types of the operands."""
    listed, _, operands, function, number = array(entry, f"{what}: call", 5)
    body = bodies[one_of(bodies, "unknown function")(function, f"{what}: call")]
    where = f"{what}: call of {function} {natural(number, f'{what}: call')}"
    taken: tuple[str, ...] = many(one_of(types, "an operand is not defined before it:"))(operands, where)
    results = many(lambda r, w: text(r, w, RESULT))(listed, where)
    need((function, number) not in calls, f"{where}: it occurs twice")
    need([types[o] for o in taken] == list(body.inputs.values()), f"{where}: operands of other types")
    need(len(results) == len(body.outputs) > 0, f"{where}: a result for each of {len(body.outputs)} outputs")
    for result, value in zip(results, body.outputs.values(), strict=True):
        need(result not in types, f"{where}: {result} is assigned twice")
        types[result] = body.types[value]
        ops[result] = Op(
            result, "call", taken, (), types[result], {"function": function, "value": value}, None
        )
    calls[function, number] = taken, results
    return taken


def _tile(plan: Plan) -> None:
    """The boxes of the rank classes tile the mesh: pairwise disjoint, and as many ranks as the mesh has."""
    boxes = [c.box for c in plan.classes.values()]
    need(all(apart(a, b) for i, a in enumerate(boxes) for b in boxes[:i]), "two rank classes share a rank")
    total = sum(math.prod(hi - lo for lo, hi in box) for box in boxes)
    need(total == math.prod(n for _, n in plan.mesh), "the rank classes do not cover the mesh")


def _relation(value: Any, plan: Plan, side: str, what: str) -> Relation:
    item = record(
        value,
        what,
        spec=name,
        plan=name,
        coef=rational,
        pieces=array,
        reduce=optional(row(one_of(("add", "max", "min"), "unknown reduction"), many(text))),
    )
    spec, local, coef, reduce = (item[k] for k in ("spec", "plan", "coef", "reduce"))

    def tensor(program: Program, key: str, owner: str) -> Type:
        need(key in getattr(program, side), f"{what}: {owner} has no such {side[:-1]} {key[:60]}")
        return program.types[key if side == "inputs" else program.outputs[key]]

    target = tensor(plan.spec, spec, "the specification")
    need(coef != 0 and (coef == 1 or target.sort == "Real"), f"{what}: bad coefficient")
    gone = reduce[1] if reduce else ()
    need(
        gone == tuple(a for a, _ in plan.mesh if a in gone) and bool(gone) == bool(reduce),
        f"{what}: reduced axes must be mesh axes in mesh order",
    )
    need(not reduce or target.sort != "Bool", f"{what}: unknown reduction")
    pieces = []
    for entry in item["pieces"]:
        where = f"{what}: piece"
        raw = record(
            entry,
            where,
            sizes=partial(integers, low=1),
            plan=anything,
            spec=anything,
            **{"class": one_of(plan.classes, "unknown class")},
        )
        cls, sizes = plan.classes[raw["class"]], raw["sizes"]
        kind = tensor(cls.program, local, f"class {cls.name}")
        need(kind.sort == target.sort, f"{where}: the sorts of {spec[:60]} and {local[:60]} differ")
        need(len(sizes) <= 32, f"{where}: too many digits")
        digits = Piece(cls.name, sizes, (), ()).digits()
        symbols = digits | {a: b for a, b in plan.box(cls.name).items() if a not in gone}
        forms, images = affines(digits)(raw["plan"], where), affines(symbols)(raw["spec"], where)
        need(len(forms) == len(kind.shape) and len(images) == len(target.shape), f"{where}: wrong rank")
        need(
            all(
                evident(form, 0, n, symbols)
                for form, n in zip(forms + images, kind.shape + target.shape, strict=True)
            ),
            f"{where}: a piece in class {cls.name} leaves its tensor",
        )
        pieces.append(Piece(cls.name, sizes, forms, images))
    need(bool(pieces), f"{what}: no pieces")
    return Relation(spec, local, coef, reduce, tuple(pieces))
