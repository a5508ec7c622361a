"""The plan file: specification, plan, input relation and claimed output relation in one document.

Format: ``docs/format.md``. :func:`load` and :func:`loads` return a fully checked :class:`Plan` or raise
:class:`FormatError`; :func:`dumps` writes deterministic bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from .affine import Affine, Range
from .affine import digits as digits
from .calls import call_from_json, call_to_json, calls, check_calls
from .circles import check_circles
from .determined import check_determined
from .errors import FormatError
from .ir import (
    CALL,
    COLLECTIVES,
    Op,
    Program,
    TensorType,
    check_program,
    format_rational,
    op_from_json,
    op_to_json,
    rational,
)
from .names import check_symbol, check_text
from .roles import check_roles

FORMAT, VERSION = "trainverify-plan", 1
MAX_BYTES = 1 << 30
_MAX_RANKS = 1 << 17

Box = Mapping[str, Range]
Coordinates = Mapping[str, int]


@dataclass(frozen=True)
class Mesh:
    """Named mesh axes and their sizes; ranks are numbered row-major."""

    axes: Mapping[str, int]

    @property
    def ranks(self) -> int:
        return math.prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        out: dict[str, int] = {}
        for name, size in reversed(list(self.axes.items())):
            rank, out[name] = divmod(rank, size)
        return {name: out[name] for name in self.axes}

    def rank(self, at: Coordinates) -> int:
        total = 0
        for name, size in self.axes.items():
            total = total * size + at[name]
        return total

    def fibres(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The partition of all ranks into fibres of ``axes``: lists ordered row-major in the listed axes."""
        rest = [a for a in self.axes if a not in axes]
        return tuple(
            tuple(
                self.rank(dict(zip(rest, fixed, strict=True)) | dict(zip(axes, moving, strict=True)))
                for moving in itertools.product(*(range(self.axes[a]) for a in axes))
            )
            for fixed in itertools.product(*(range(self.axes[a]) for a in rest))
        )


@dataclass(frozen=True)
class Group:
    """A process group: all its instances as ordered rank lists, and the factorisation its author claims."""

    axes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return len(self.ranks[0])


@dataclass(frozen=True)
class RankClass:
    """Ranks of one box of mesh coordinates run one program."""

    name: str
    box: Box
    program: Program


@dataclass(frozen=True)
class Function:
    """Code that the step runs many times: its body in the specification and in every rank class."""

    specification: Program
    classes: Mapping[str, Program]


@dataclass(frozen=True)
class Piece:
    """``plan_m[plan(z)] = coef * spec[spec(z, m)]`` for every rank ``m`` of a class and digits ``z``."""

    cls: str
    sizes: tuple[int, ...]
    plan: tuple[Affine, ...]
    spec: tuple[Affine, ...]


@dataclass(frozen=True)
class Relation:
    """How one specification tensor lies on the mesh; ``reduce`` is ``(kind, axes)`` for partial values."""

    spec: str
    plan: str
    pieces: tuple[Piece, ...]
    coef: Fraction = Fraction(1)
    reduce: tuple[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Plan:
    """A verification problem. Immutable; :func:`check_plan` holds for every instance the loaders return."""

    name: str
    mesh: Mesh
    groups: Mapping[str, Group]
    sources: tuple[str, ...]
    specification: Program
    classes: tuple[RankClass, ...]
    inputs: tuple[Relation, ...]
    outputs: tuple[Relation, ...]
    ranges: Mapping[str, Range] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    @cached_property
    def by_class(self) -> dict[str, RankClass]:
        return {c.name: c for c in self.classes}

    def class_of(self, at: Coordinates) -> RankClass:
        """The rank class that holds a mesh coordinate."""
        return next(c for c in self.classes if all(c.box[a][0] <= x < c.box[a][1] for a, x in at.items()))

    def rendezvous(self, seq: int) -> dict[str, Op]:
        """The op of each class that takes part in collective ``seq``."""
        return self._rendezvous.get(seq, {})

    @cached_property
    def operand_ranges(self) -> dict[str, dict[str, Range]]:
        """For each function that is called: ranges of the inputs whose operands all have one."""
        operands: dict[str, list[tuple[str, ...]]] = {}
        for call in calls(self.specification):
            operands.setdefault(call.function, []).append(call.ins)
        out: dict[str, dict[str, Range]] = {}
        for name, of_calls in operands.items():
            inputs = self.functions[name].specification.inputs
            found = {i: set(values) for i, values in zip(inputs, zip(*of_calls, strict=True), strict=True)}
            out[name] = {
                i: (min(self.ranges[v][0] for v in values), max(self.ranges[v][1] for v in values))
                for i, values in found.items()
                if values <= self.ranges.keys()
            }
        return out

    @cached_property
    def texts(self) -> dict[str, str]:
        """Canonical JSON of every member of the plan's document."""
        return {key: canonical_text(value) for key, value in to_json(self).items()}

    @cached_property
    def _rendezvous(self) -> dict[int, dict[str, Op]]:
        out: dict[int, dict[str, Op]] = {}
        for cls in self.classes:
            for op in cls.program.ops:
                if op.name in COLLECTIVES:
                    out.setdefault(op.integer("seq"), {})[cls.name] = op
        return out


# --- reading -----------------------------------------------------------------------------------------------


def load(path: Path | str) -> Plan:
    """Read a plan file, gzip or plain."""
    return loads(read_bytes(Path(path)))


def read_bytes(path: Path) -> bytes:
    """The uncompressed bytes of a plan file; over 1 GiB or not gzip after all is a ``FormatError``."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FormatError(f"{path} is over {MAX_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    if data[:2] == b"\x1f\x8b":
        try:
            engine = zlib.decompressobj(wbits=31)
            data = engine.decompress(data, MAX_BYTES)
        except zlib.error as error:
            raise FormatError(f"{path} is a damaged gzip file: {error}") from error
        if engine.unconsumed_tail:
            raise FormatError(f"{path} unpacks to more than {MAX_BYTES} bytes")
        if not engine.eof:
            raise FormatError(f"{path} is a truncated gzip file")
        if engine.unused_data:
            raise FormatError(f"{path} has data after the end of its gzip stream")
    return data


def parse_json(data: bytes) -> object:
    """JSON without floats, duplicate keys, integers of more than 18 digits or absurd nesting."""

    def no_float(text: str) -> object:
        raise FormatError(f"floating-point number {text[:20]} in the document; write a rational string")

    def short(text: str) -> int:
        if len(text) > 18 and len(text.lstrip("-")) > 18:
            raise FormatError(f"integer {text[:20]}... has more than 18 digits")
        return int(text)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        out = dict(pairs)
        if len(out) != len(pairs):
            raise FormatError("an object of the document repeats a key")
        return out

    try:
        return json.loads(
            data,
            parse_float=no_float,
            parse_int=short,
            parse_constant=no_float,
            object_pairs_hook=unique,
        )
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a JSON document: {error}") from error


def _get(data: object, what: str, keys: frozenset[str]) -> dict[str, object]:
    if not isinstance(data, dict) or set(data) != keys:
        raise FormatError(f"{what} must be an object with exactly the keys {', '.join(sorted(keys))}")
    return data


def _items(data: object, what: str) -> list[object]:
    if not isinstance(data, list):
        raise FormatError(f"{what} must be a list")
    return data


def _strings(data: object, what: str) -> tuple[str, ...]:
    items = _items(data, what)
    if not all(isinstance(v, str) for v in items):
        raise FormatError(f"{what} must be a list of strings")
    return tuple(str(v) for v in items)


def _integers(data: object, what: str, signed: bool = False) -> tuple[int, ...]:
    out = []
    for value in _items(data, what):
        if isinstance(value, bool) or not isinstance(value, int) or (value < 0 and not signed):
            raise FormatError(f"{what} must hold {'' if signed else 'non-negative '}integers")
        out.append(value)
    return tuple(out)


def _text(data: object, what: str) -> str:
    if not isinstance(data, str):
        raise FormatError(f"{what} must be a string")
    return data


def _pairs(data: object, what: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for entry in _items(data, what):
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


def _program(data: object, what: str, bodies: Mapping[str, Program] | None = None) -> Program:
    """A program; ``bodies`` are those of the functions that it may call."""
    raw = _get(data, what, frozenset(("inputs", "ops", "outputs")))
    inputs = {n: TensorType.parse(t) for n, t in _pairs(raw["inputs"], f"inputs of {what}").items()}
    ops: list[Op] = []
    for entry in _items(raw["ops"], f"ops of {what}"):
        if isinstance(entry, list) and len(entry) == 5 and entry[1] == CALL:
            ops += call_from_json(entry, bodies or {})
        else:
            ops.append(op_from_json(entry))
    return Program(inputs, tuple(ops), _pairs(raw["outputs"], f"outputs of {what}"))


def _functions(data: object) -> dict[str, Function]:
    functions = {}
    for name, entry in _mapping(data, "functions").items():
        check_symbol(name, "function")
        f = _get(entry, f"function {name}", frozenset(("specification", "classes")))
        bodies = {
            c: _program(p, f"{name} of class {c}") for c, p in _mapping(f["classes"], "classes").items()
        }
        functions[name] = Function(_program(f["specification"], f"{name} of the specification"), bodies)
    return functions


def _relation(data: object, known: dict[str, tuple[Piece, ...]]) -> Relation:
    """``known`` has the pieces that were read already, by their text: equal layers have equal ones."""
    raw = _get(data, "a relation", frozenset(("spec", "plan", "coef", "reduce", "pieces")))
    spec, plan = _text(raw["spec"], "spec of a relation"), _text(raw["plan"], "plan of a relation")
    reduce: tuple[str, tuple[str, ...]] | None = None
    if raw["reduce"] is not None:
        pair = _items(raw["reduce"], "reduce of a relation")
        if len(pair) != 2 or pair[0] not in ("add", "max", "min"):
            raise FormatError(f"reduce of relation {plan} must be null or [add|max|min, [axes]]")
        reduce = (str(pair[0]), _strings(pair[1], "reduce axes"))
    text = repr(raw["pieces"])
    if text not in known:
        known[text] = tuple(_piece(p) for p in _items(raw["pieces"], "pieces of a relation"))
    return Relation(spec, plan, known[text], rational(_text(raw["coef"], "coef of a relation")), reduce)


def _piece(data: object) -> Piece:
    raw = _get(data, "a piece", frozenset(("class", "sizes", "plan", "spec")))
    return Piece(
        _text(raw["class"], "class of a piece"),
        _integers(raw["sizes"], "sizes of a piece"),
        tuple(Affine.from_json(a) for a in _items(raw["plan"], "plan forms")),
        tuple(Affine.from_json(a) for a in _items(raw["spec"], "spec forms")),
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
_OPTIONAL = frozenset(("functions", "given", "constants"))


def loads(data: bytes) -> Plan:
    """Parse and check a plan document."""
    document = parse_json(data)
    there = frozenset(document) if isinstance(document, dict) else frozenset()
    raw = _get(document, "a plan", _KEYS | (there & _OPTIONAL))
    if raw["format"] != FORMAT or raw["version"] != VERSION:
        raise FormatError(f"not a {FORMAT} document of version {VERSION}")
    axes: dict[str, int] = {}
    for entry in _items(raw["mesh"], "mesh"):
        pair = _items(entry, "a mesh axis")
        if len(pair) != 2 or not isinstance(pair[0], str) or pair[0] in axes:
            raise FormatError("mesh must be a list of [name, size] with distinct names")
        axes[pair[0]] = _integers(pair[1:], "sizes of the mesh")[0]
    groups = {}
    for name, entry in _mapping(raw["groups"], "groups").items():
        g = _get(entry, f"group {name}", frozenset(("axes", "ranks")))
        lists = tuple(_integers(r, f"ranks of {name}") for r in _items(g["ranks"], f"ranks of {name}"))
        groups[name] = Group(_strings(g["axes"], f"axes of {name}"), lists)
    functions = _functions(raw.get("functions", {}))
    roles = {role: _strings(raw.get(role, []), role) for role in ("given", "constants")}
    for key in sorted(there & _OPTIONAL):
        if not raw[key]:
            raise FormatError(f"an empty list of {key}; leave it out")
    classes = []
    for entry in _items(raw["classes"], "classes"):
        c = _get(entry, "a rank class", frozenset(("name", "box", "program")))
        name = _text(c["name"], "name of a class")
        box = {a: _range(r, f"box of {name}") for a, r in _mapping(c["box"], "box").items()}
        for label, function in functions.items():
            if name not in function.classes:
                raise FormatError(f"function {label} must have a body for every rank class")
        bodies = {label: function.classes[name] for label, function in functions.items()}
        classes.append(RankClass(name, box, _program(c["program"], f"program of {name}", bodies)))
    known: dict[str, tuple[Piece, ...]] = {}
    plan = Plan(
        _text(raw["name"], "name"),
        Mesh(axes),
        groups,
        _strings(raw["sources"], "sources"),
        _program(raw["specification"], "specification", {f: g.specification for f, g in functions.items()}),
        tuple(classes),
        tuple(_relation(r, known) for r in _items(raw["inputs"], "inputs")),
        tuple(_relation(r, known) for r in _items(raw["outputs"], "outputs")),
        {n: _range(r, f"range of {n}", signed=True) for n, r in _mapping(raw["ranges"], "ranges").items()},
        _mapping(raw["provenance"], "provenance"),
        functions,
        roles["given"],
        roles["constants"],
    )
    check_plan(plan)
    return plan


# --- checking ----------------------------------------------------------------------------------------------


def check_plan(plan: Plan) -> None:
    """Well-formedness of a whole plan: mesh, groups, classes, programs, rendezvous, relations."""
    mesh = plan.mesh
    for text in (plan.name, *plan.sources):
        check_text(text, "name or source")
    for name, size in mesh.axes.items():
        check_symbol(name, "mesh axis")
        if size < 1:
            raise FormatError(f"mesh axis {name!r} of size {size}")
    if mesh.ranks > _MAX_RANKS:
        raise FormatError(f"a mesh of {mesh.ranks} ranks is over the limit of {_MAX_RANKS}")
    for name, group in plan.groups.items():
        members = [r for ranks in group.ranks for r in ranks]
        if not group.ranks or len({len(r) for r in group.ranks}) != 1 or not group.ranks[0]:
            raise FormatError(f"group {name} must hold rank lists of one positive length")
        if sorted(members) != list(range(mesh.ranks)):
            raise FormatError(f"group {name} is not a partition of the {mesh.ranks} ranks")
        if not set(group.axes) <= set(mesh.axes) or len(set(group.axes)) != len(group.axes):
            raise FormatError(f"group {name} claims axes {group.axes} that the mesh does not have")
    _check_boxes(plan)
    _check_programs(plan)
    for name, function in plan.functions.items():
        if function.classes.keys() != plan.by_class.keys():
            raise FormatError(f"function {name} must have a body for every rank class")
        classes = tuple(RankClass(c.name, c.box, function.classes[c.name]) for c in plan.classes)
        try:
            _check_programs(
                replace(plan, specification=function.specification, classes=classes, functions={})
            )
        except FormatError as error:
            raise FormatError(f"function {name}: {error}") from error
    check_calls(
        {"specification": plan.specification} | {f"class {c.name}": c.program for c in plan.classes},
        {
            n: {"specification": f.specification} | {f"class {c}": p for c, p in f.classes.items()}
            for n, f in plan.functions.items()
        },
    )
    check_circles(
        {c.name: (c.box, c.program) for c in plan.classes},
        {n: f.classes for n, f in plan.functions.items()},
        {n: g.ranks for n, g in plan.groups.items()},
        mesh.axes,
    )
    checked: set[object] = set()
    for side, relations in (("input", plan.inputs), ("output", plan.outputs)):
        for relation in relations:
            try:
                check_relation(plan, relation, side, checked)
            except FormatError as error:
                raise FormatError(f"{side} relation {relation.spec} ~ {relation.plan}: {error}") from error
    check_determined(plan.inputs)
    for name in plan.ranges:
        if name not in plan.specification.inputs or plan.specification.inputs[name].sort != "Int":
            raise FormatError(f"range of {name}, which is not an integer input of the specification")
    check_roles(plan.given, plan.constants, [plan.specification, *(c.program for c in plan.classes)])


def _check_programs(plan: Plan) -> None:
    check_program(plan.specification)
    for cls in plan.classes:
        try:
            check_program(cls.program, cls.box)
        except FormatError as error:
            raise FormatError(f"class {cls.name}: {error}") from error
    for program in (plan.specification, *(c.program for c in plan.classes)):
        for op in program.ops:
            if op.loc is None:
                continue
            check_text(op.loc.function, f"function of {op.out}")
            if op.loc.source >= len(plan.sources):
                raise FormatError(f"location of {op.out} names source {op.loc.source}, which is not listed")
    _check_rendezvous(plan)


def _check_boxes(plan: Plan) -> None:
    names = [c.name for c in plan.classes]
    for name in names:
        check_symbol(name, "rank class")
    if len(set(names)) != len(names):
        raise FormatError("rank classes need distinct names")
    volume = 0
    for i, cls in enumerate(plan.classes):
        if set(cls.box) != set(plan.mesh.axes):
            raise FormatError(f"box of class {cls.name} must name every mesh axis")
        if any(hi > plan.mesh.axes[a] for a, (_, hi) in cls.box.items()):
            raise FormatError(f"box of class {cls.name} leaves the mesh")
        volume += math.prod(hi - lo for lo, hi in cls.box.values())
        for other in plan.classes[:i]:
            pairs = [(cls.box[a], other.box[a]) for a in cls.box]
            if all(max(x[0], y[0]) < min(x[1], y[1]) for x, y in pairs):
                raise FormatError(f"rank classes {other.name} and {cls.name} overlap")
    if volume != plan.mesh.ranks:
        raise FormatError(f"rank classes cover {volume} of {plan.mesh.ranks} ranks")


def _check_rendezvous(plan: Plan) -> None:
    of_rank: list[str] | None = None
    operand: dict[tuple[str, str], TensorType] = {}
    seen: set[tuple[str, int]] = set()
    for cls in plan.classes:
        types = cls.program.types()
        for op in cls.program.ops:
            if op.name not in COLLECTIVES:
                continue
            key = (cls.name, op.integer("seq"))
            if key in seen:
                raise FormatError(f"class {cls.name} meets rendezvous {key[1]} twice")
            seen.add(key)
            if op.text("group") not in plan.groups:
                raise FormatError(f"{op.name} {op.out} of class {cls.name} names no group of the plan")
            operand[cls.name, op.out] = types[op.ins[0]]
            problem = collective_mismatch(op, types[op.ins[0]], plan.groups[op.text("group")].size)
            if problem:
                raise FormatError(f"class {cls.name}: {op.name} {op.out}: {problem}")
    for seq in sorted({s for _, s in seen}):
        ops = plan.rendezvous(seq)
        first_class, first = next(iter(ops.items()))
        for name, op in ops.items():
            here = (op.name, op.attrs, operand[name, op.out])
            if here != (first.name, first.attrs, operand[first_class, first.out]):
                raise FormatError(
                    f"rendezvous {seq}: classes {first_class} and {name} run different collectives"
                )
        if len(ops) == len(plan.classes):
            continue
        of_rank = of_rank or [plan.class_of(plan.mesh.coordinates(r)).name for r in range(plan.mesh.ranks)]
        for ranks in plan.groups[first.text("group")].ranks:
            members = {of_rank[r] for r in ranks}
            if members & set(ops) and not members <= set(ops):
                missing = sorted(members - set(ops))[0]
                raise FormatError(f"rendezvous {seq} ({first.name}): class {missing} does not take part")


def collective_mismatch(op: Op, operand: TensorType, size: int) -> str | None:
    """Why a collective's result type does not follow from its operand in a group of ``size``."""
    shape, out = list(operand.shape), list(op.type.shape)
    keys = [k for k in ("dim", "split_dim", "concat_dim") if k in op.attrs]
    if any(op.integer(k) >= len(shape) for k in keys):
        return "names a dimension that its operand does not have"
    match op.name:
        case "all_gather":
            shape[op.integer("dim")] *= size
        case "reduce_scatter" | "all_to_all":
            split = op.integer("dim" if op.name == "reduce_scatter" else "split_dim")
            if shape[split] % size:
                return f"dimension {split} of {shape[split]} does not divide over {size} ranks"
            shape[split] //= size
            if op.name == "all_to_all":
                shape[op.integer("concat_dim")] *= size
        case _:
            pass
    return None if shape == out else f"result shape must be {shape}, not {out}"


def check_relation(plan: Plan, relation: Relation, side: str, checked: set[object]) -> None:
    """Names, classes, form counts, ranges of one relation; ``side`` is ``input`` or ``output``.

    ``checked`` has what was found well-formed before: relations of equal layers share their pieces.
    """

    def type_of(program: Program, name: str) -> TensorType:
        table = program.inputs if side == "input" else program.outputs
        if name not in table:
            raise FormatError(f"{name} is not an {side}")
        return program.inputs[name] if side == "input" else program.type_of(program.outputs[name])

    spec = type_of(plan.specification, relation.spec)
    unknown = [p.cls for p in relation.pieces if p.cls not in plan.by_class]
    if unknown:
        raise FormatError(f"names the unknown class {unknown[0]}")
    classes = dict.fromkeys(p.cls for p in relation.pieces)
    local = {c: type_of(plan.by_class[c].program, relation.plan) for c in classes}
    key = id(relation.pieces), relation.coef, relation.reduce, spec, *local.values()
    if key not in checked:
        _check_pieces(plan, relation, spec, local)
        checked.add(key)


def _check_pieces(plan: Plan, relation: Relation, spec: TensorType, local: Mapping[str, TensorType]) -> None:
    """A relation between tensors of these types; ``local`` has the plan's by class."""
    reduced = relation.reduce[1] if relation.reduce else ()
    known_axes = set(reduced) <= set(plan.mesh.axes)
    if not known_axes or len(set(reduced)) != len(reduced) or (relation.reduce and not reduced):
        raise FormatError(f"reduces over {list(reduced)}, which are not distinct mesh axes")
    if not relation.pieces:
        raise FormatError("has no pieces")
    if reduced and (spec.sort == "Bool" or list(reduced) != [a for a in plan.mesh.axes if a in reduced]):
        raise FormatError("reduces numbers only, over axes in mesh order")
    if relation.coef == 0:
        raise FormatError("coefficient 0 relates nothing")
    for piece in relation.pieces:
        box, here = plan.by_class[piece.cls].box, local[piece.cls]
        if here.sort != spec.sort:
            raise FormatError(f"relates {spec} to {here}")
        if spec.sort != "Real" and relation.coef != 1:
            raise FormatError("only float tensors can be scaled")
        ranges = digits(piece.sizes)
        if any(n < 1 for n in piece.sizes):
            raise FormatError("digit sizes must be positive")
        for forms, shape, extra, what in (
            (piece.plan, here.shape, {}, "plan"),
            (piece.spec, spec.shape, {a: r for a, r in box.items() if a not in reduced}, "spec"),
        ):
            if len(forms) != len(shape):
                raise FormatError(f"{what} side needs {len(shape)} index forms, has {len(forms)}")
            known = ranges | extra
            for d, form in enumerate(forms):
                if not known.keys() >= set(form.symbols):
                    raise FormatError(f"{what} index {form} mentions a symbol outside {sorted(known)}")
                lo, hi = form.interval(known)
                if lo < 0 or hi >= shape[d]:
                    raise FormatError(f"{what} index {form} leaves dimension {d} of size {shape[d]}")
    if reduced:
        _check_fibres(plan, relation, reduced)


def _check_fibres(plan: Plan, relation: Relation, reduced: tuple[str, ...]) -> None:
    """A partial value adds up over whole fibres: the classes of one piece tile the reduced axes, once."""
    members: dict[object, list[str]] = {}
    for piece in relation.pieces:
        box = plan.by_class[piece.cls].box
        rest = tuple(r for a, r in box.items() if a not in reduced)
        members.setdefault((piece.sizes, piece.plan, piece.spec, rest), []).append(piece.cls)
    whole = math.prod(plan.mesh.axes[a] for a in reduced)
    for classes in members.values():
        boxes = [plan.by_class[c].box for c in classes]
        covered = sum(math.prod(box[a][1] - box[a][0] for a in reduced) for box in boxes)
        if len(set(classes)) != len(classes) or covered != whole:
            raise FormatError(
                f"piece on {', '.join(classes)} reaches {covered} of {whole} ranks along "
                f"{', '.join(reduced)}; it must reach each once"
            )


# --- writing -----------------------------------------------------------------------------------------------


def to_json(plan: Plan) -> dict[str, object]:
    """The document as plain data."""

    def program(p: Program) -> dict[str, object]:
        made = {c.results[0]: call_to_json(c) for c in calls(p)}
        return {
            "inputs": [[n, str(t)] for n, t in p.inputs.items()],
            "ops": [
                made[op.out] if op.name == CALL else op_to_json(op)
                for op in p.ops
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
        for n, f in plan.functions.items()
    }
    optional = {"functions": functions, "given": list(plan.given), "constants": list(plan.constants)}
    return {key: value for key, value in optional.items() if value} | {
        "format": FORMAT,
        "version": VERSION,
        "name": plan.name,
        "mesh": [[a, n] for a, n in plan.mesh.axes.items()],
        "groups": {
            n: {"axes": list(g.axes), "ranks": [list(r) for r in g.ranks]} for n, g in plan.groups.items()
        },
        "sources": list(plan.sources),
        "specification": program(plan.specification),
        "classes": [
            {"name": c.name, "box": {a: list(r) for a, r in c.box.items()}, "program": program(c.program)}
            for c in plan.classes
        ],
        "inputs": [relation(r) for r in plan.inputs],
        "outputs": [relation(r) for r in plan.outputs],
        "ranges": {n: list(r) for n, r in plan.ranges.items()},
        "provenance": dict(plan.provenance),
    }


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def canonical_text(data: object) -> str:
    """Deterministic JSON: sorted keys, no white space, ASCII."""
    return _CANONICAL.encode(data)


def object_text(members: Mapping[str, str]) -> str:
    """A canonical JSON object of members that are canonical JSON."""
    return "{" + ",".join(f"{canonical_text(key)}:{members[key]}" for key in sorted(members)) + "}"


def canonical_bytes(data: object) -> bytes:
    """A deterministic JSON document, with a newline at its end."""
    return (canonical_text(data) + "\n").encode("ascii")


def dumps(plan: Plan) -> bytes:
    """The document: canonical JSON."""
    return (object_text(plan.texts) + "\n").encode("ascii")


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


def digest(data: bytes) -> str:
    """SHA-256 of uncompressed document bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def states(plan: Plan) -> Iterator[str]:
    """Inputs of both sides that a relation ties and that are declared neither given nor constant."""
    tied = dict.fromkeys(name for r in plan.inputs for name in (r.spec, r.plan))
    return (name for name in tied if name not in plan.given and name not in plan.constants)
