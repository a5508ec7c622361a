"""Well-formedness of plans: mesh, groups, rank classes, programs, rendezvous, relations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from certificates.plan.affine import digits
from certificates.plan.calls import check_calls
from certificates.plan.circles import check_circles
from certificates.plan.determined import check_determined
from certificates.plan.keys import check_rows
from certificates.plan.messages import check_messages, ends
from certificates.plan.names import check_symbol, check_text
from certificates.plan.plan import Group, Plan, Relation
from certificates.plan.roles import check_roles
from certificates.plan.rows import has_rows
from certificates.plan.schedule import check_schedule
from certificates.plan.slices import check_callers, check_slices, ground
from certificates.plan.timing import check_groups, check_time, check_version, has_messages

from ..errors import FormatError
from .ops import COLLECTIVES
from .program import Op, Program
from .type_rules import check_program
from .types import TensorType

_MAX_RANKS, _MAX_POINTS = 1 << 17, 1 << 20


def check_plan(plan: Plan) -> None:
    """Well-formedness of a whole plan: mesh, groups, classes, programs, rendezvous, relations."""
    mesh = plan.mesh
    for text in (plan.name, *plan.sources):
        check_text(text, "name or source")
    for name, size in mesh.axes.items():
        check_symbol(name, "mesh axis")
        if size < 1:
            raise FormatError(f"{'time' if name in mesh.time else 'mesh'} axis {name!r} of size {size}")
    if mesh.ranks > _MAX_RANKS:
        raise FormatError(f"a mesh of {mesh.ranks} ranks is over the limit of {_MAX_RANKS}")
    if mesh.points > _MAX_POINTS:
        raise FormatError(f"{mesh.points} runs of all ranks are over the limit of {_MAX_POINTS}")
    check_version(plan)
    for name, group in plan.groups.items():
        if not set(group.axes) <= set(mesh.axes) or len(set(group.axes)) != len(group.axes):
            raise FormatError(f"group {name} claims axes {group.axes} that the mesh does not have")
        if group.steps:
            continue  # over time: timing.py
        members = [r for ranks in group.ranks for r in ranks]
        if not group.ranks or len({len(r) for r in group.ranks}) != 1 or not group.ranks[0]:
            raise FormatError(f"group {name} must hold rank lists of one positive length")
        if sorted(members) != list(range(mesh.ranks)):
            raise FormatError(f"group {name} is not a partition of the {mesh.ranks} ranks")
    check_groups(plan)
    _check_boxes(plan)
    _check_programs(plan)
    check_messages(plan)
    bodies = _check_functions(plan)
    check_circles(
        {c.name: c.program for c in plan.classes},
        bodies,
        {n: _joined(plan, g) for n, g in plan.groups.items()},
        {
            (c.name, op.integer("seq")): [s.name for s in ends(plan, c, op)]
            for c in plan.classes
            for op in c.program.ops
            if op.name == "recv"
        },
    )
    check_time(plan)
    if plan.schedule is not None:
        check_schedule(plan.schedule, {c.name: len(c.program.ops) for c in plan.classes}, plan.mesh.space)
    checked: set[object] = set()
    for side, relations in (("input", plan.inputs), ("output", plan.outputs)):
        for relation in relations:
            try:
                check_relation(plan, relation, side, checked)
            except FormatError as error:
                raise FormatError(f"{side} relation {relation.spec} ~ {relation.plan}: {error}") from error
    check_determined(plan.inputs)
    check_rows(plan)
    for name in plan.ranges:
        if name not in plan.specification.inputs or plan.specification.inputs[name].sort != "Int":
            raise FormatError(f"range of {name}, which is not an integer input of the specification")
    check_roles(plan.given, plan.constants, [plan.specification, *(c.program for c in plan.classes)])


def _check_functions(plan: Plan) -> dict[str, dict[str, Program]]:
    """Bodies, calls and callers; gives the bodies by function and the class that may run them."""
    check_slices(plan)
    for name, function in plan.functions.items():
        if not function.along and function.classes.keys() != plan.by_class.keys():
            raise FormatError(f"function {name} must have a body for every rank class")
        mesh, groups, classes = ground(plan, function)
        body = replace(
            plan,
            mesh=mesh,
            groups=groups,
            specification=function.specification,
            classes=classes,
            functions={},
        )
        try:
            if function.along:
                _check_boxes(body)
            _check_programs(body)
            if has_messages(body):
                raise FormatError("a function has no messages")
            if any(has_rows(p.written) for p in (function.specification, *function.classes.values())):
                raise FormatError("a function has no packed rows")
        except FormatError as error:
            raise FormatError(f"function {name}: {error}") from error
    bodies = {
        n: {c.name: f.classes[r] for c in plan.classes if (r := plan.role(n, c.name)) is not None}
        for n, f in plan.functions.items()
    }
    check_calls(
        {"specification": plan.specification} | {f"class {c.name}": c.program for c in plan.classes},
        {
            n: {"specification": f.specification} | {f"class {c}": p for c, p in bodies[n].items()}
            for n, f in plan.functions.items()
        },
        frozenset(n for n, f in plan.functions.items() if f.along),
    )
    check_callers(plan)
    return bodies


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
    if volume != plan.mesh.points:
        raise FormatError(f"rank classes cover {volume} of {plan.mesh.points} ranks")


def _check_rendezvous(plan: Plan) -> None:
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
    missing: dict[tuple[str, frozenset[str]], str | None] = {}
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
        called = first.text("group"), frozenset(ops)
        if called not in missing:  # many rendezvous are of one group and the same classes
            missing[called] = _missing(plan, *called)
        if missing[called] is not None:
            raise FormatError(f"rendezvous {seq} ({first.name}): class {missing[called]} does not take part")


def _missing(plan: Plan, group: str, classes: frozenset[str]) -> str | None:
    """A class that is not among these, though it meets one of them in an instance of a group."""
    for members in _members(plan, plan.groups[group]):
        if members & classes and not members <= classes:
            return min(members - classes)
    return None


def _members(plan: Plan, group: Group) -> Iterator[frozenset[str]]:
    """Classes that meet in some instance of a group: pairs if it is factorised, which is enough."""
    mesh = plan.mesh
    if group.steps or group.ranks == mesh.rank_lists(group.axes):
        rest = [a for a in mesh.axes if a not in group.axes]
        for one, two in itertools.combinations(plan.classes, 2):
            if all(one.box[a][0] < two.box[a][1] and two.box[a][0] < one.box[a][1] for a in rest):
                yield frozenset((one.name, two.name))
        return
    of_rank = [plan.class_of(mesh.coordinates(r)).name for r in range(mesh.ranks)]
    yield from {frozenset(of_rank[r] for r in ranks) for ranks in group.ranks}


def _joined(plan: Plan, group: Group) -> dict[str, int]:
    """Equal numbers for classes that instances of a group connect, directly or through others."""
    sets = [{c.name} for c in plan.classes]
    for members in _members(plan, group):
        apart = [s for s in sets if not s & members]
        sets = [*apart, set().union(*(s for s in sets if s & members))]
    return {name: i for i, s in enumerate(sets) for name in s}


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
