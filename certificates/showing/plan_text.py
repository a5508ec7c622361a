"""Programs, relations and plans as text that people like to read.

Every function returns lines without a trailing newline, in ASCII: names of a stranger's file are escaped, so
that printing it cannot steer a terminal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from ..plan.affine import Range
from ..plan.calls import Call, calls
from ..plan.ops import CALL
from ..plan.placements import Partial, Shard, placements_of
from ..plan.plan import Group, Piece, Plan, RankClass, Relation
from ..plan.program import Attr, Op, Program
from ..plan.schedule import Batch, Event, Run, Wait
from ..plan.types import TensorType, format_rational
from ..words import clean, count

#: Column at which source locations start, where the op leaves room.
LOCATION_COLUMN = 68
_LISTS, _MEMBERS = 4, 8


def box_text(box: Mapping[str, Range]) -> str:
    """``dp 0..62, tp 3``."""
    return ", ".join(f"{a} {lo}" if hi == lo + 1 else f"{a} {lo}..{hi - 1}" for a, (lo, hi) in box.items())


# --- programs ----------------------------------------------------------------------------------------------


def op_text(op: Op, sources: Sequence[str] = ()) -> str:
    """``%17 : f32[4,8] = add %3, %4   # model.py:12 forward``."""
    head, rest = op.name, dict(op.attrs)
    operands = ", ".join(map(clean, op.ins))
    if op.name == "constant":
        operands = clean(rest.pop("value"))
    elif op.name == "compare":
        head += f" {rest.pop('direction')}"
    elif op.name == "slice":
        rest.clear()
        operands += f" [{', '.join(_window(op))}]"
    elif op.name == "dot_general":
        rest = {
            word: f"{_attr(op.attrs[f'lhs_{word}'])}x{_attr(op.attrs[f'rhs_{word}'])}"
            for word in ("batch", "contract")
            if op.ints(f"lhs_{word}")
        }
    shown = ", ".join(f"{k}={_attr(v)}" for k, v in rest.items())
    line = f"{op.out} : {op.type} = {head}"
    line += f" {operands}" if operands else ""
    line += f" {{{shown}}}" if shown else ""
    if op.loc is None:
        return line
    source = sources[op.loc.source] if op.loc.source < len(sources) else f"source {op.loc.source}"
    return f"{line:<{LOCATION_COLUMN - 3}} # {clean(source)}:{op.loc.line} {clean(op.loc.function)}"


def _attr(value: Attr) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else clean(value)


def _window(op: Op) -> Iterator[str]:
    """Python slices, ``4*dp : 4*dp + 4``; a stride is shown unless it is 1."""
    for start, stride, size in zip(op.affines("start"), op.ints("stride"), op.type.shape, strict=True):
        bounds = (start, start + (stride * (size - 1) + 1))
        between = " : " if start.terms else ":"
        yield between.join(map(str, bounds)) + (f"{between}{stride}" if stride != 1 else "")


def program_text(title: str, program: Program, sources: Sequence[str] = ()) -> list[str]:
    """A program in braces, inputs first, one op per line, outputs last."""
    width = max(map(len, program.inputs), default=0)
    lines = [f"{clean(title)} {{"]
    lines += [f"  input {name:<{width}} : {type_}" for name, type_ in program.inputs.items()]
    made = {c.results[0]: call_text(c) for c in calls(program)}
    lines += [
        f"  {made[op.out] if op.name == CALL else op_text(op, sources)}"
        for op in program.written
        if op.name != CALL or op.out in made
    ]
    types = program.types()
    width = max(map(len, program.outputs), default=0)
    lines += [f"  output {name:<{width}} = {v} : {types[v]}" for name, v in program.outputs.items()]
    return [*lines, "}"]


def call_text(call: Call) -> str:
    """``%3, %4 = call layer 7 (%1, params.w)``."""
    return f"{', '.join(call.results)} = call {call.function} {call.instance} ({', '.join(call.ins)})"


def function_text(plan: Plan, name: str) -> list[str]:
    """The bodies of a function."""
    bodies = plan.functions[name]
    lines = program_text(f"function {name}, specification", bodies.specification, plan.sources)
    for cls, body in bodies.classes.items():
        of = f"role {cls} on {box_text(bodies.roles[cls]) or 'one rank'}" if bodies.along else f"class {cls}"
        lines += ["", *program_text(f"function {name}, {of}", body, plan.sources)]
    return lines


def class_title(cls: RankClass, time: Sequence[str] = ()) -> str:
    """The box, and how many ranks it holds; ``time`` axes have none."""
    ranks = math.prod(hi - lo for axis, (lo, hi) in cls.box.items() if axis not in time)
    return f"class {cls.name} on {box_text(cls.box) or 'the only rank'} ({count(ranks, 'rank')})"


def value_text(title: str, program: Program, name: str, sources: Sequence[str] = ()) -> list[str]:
    """One value in context: where it is defined, its operands, and who reads it."""
    by_name = {op.out: op for op in program.ops}

    def definition(value: str) -> str:
        if value in by_name:
            return op_text(by_name[value], sources)
        return f"input {value} : {program.inputs[value]}"

    operands = by_name[name].ins if name in by_name else ()
    lines = [f"{clean(title)}", *(f"  reads  {definition(v)}" for v in dict.fromkeys(operands))]
    lines.append(f"  value  {definition(name)}")
    lines += [f"  used   {op_text(op, sources)}" for op in program.ops if name in op.ins]
    lines += [f"  used   output {out}" for out, value in program.outputs.items() if value == name]
    return lines


# --- relations ---------------------------------------------------------------------------------------------


def relation_text(plan: Plan, relation: Relation, side: str) -> list[str]:
    """One line in DTensor's terms where they fit, else one more line per piece; ``side`` input or output."""
    spec = _type_of(plan.specification, relation.spec, side)
    local = {p.cls: _type_of(plan.by_class[p.cls].program, relation.plan, side) for p in relation.pieces}
    names = relation.plan if relation.plan == relation.spec else f"{relation.plan} ~ {relation.spec}"
    types = ", ".join(dict.fromkeys(str(t) for t in local.values()))
    coef = "" if relation.coef == 1 else f" times {format_rational(relation.coef)}"
    head = f"{names} : {spec} as {types}"
    short = placements_of(plan, relation, spec.shape)
    if short is None:
        return [f"{head} = pieces{coef}", *(f"  {_piece(relation, piece)}" for piece in relation.pieces)]
    words = []
    for axis, place in short:
        match place:
            case Shard(dim):
                words.append(f"Shard({dim}) over {axis}")
            case Partial(kind):
                words.append(f"Partial({kind}) over {axis}")
    padded = any(p.sizes != local[p.cls].shape for p in relation.pieces)
    return [f"{head} = {', '.join(words) or 'Replicate'}{coef}{' (padded)' if padded else ''}"]


def _piece(relation: Relation, piece: Piece) -> str:
    left = f"{relation.plan}[{', '.join(map(str, piece.plan))}]"
    if relation.reduce:
        left = f"{relation.reduce[0]} over {', '.join(relation.reduce[1])} of {left}"
    coef = "" if relation.coef == 1 else f"{format_rational(relation.coef)} * "
    right = f"{coef}{relation.spec}[{', '.join(map(str, piece.spec))}]"
    digits = ", ".join(f"z{i} < {n}" for i, n in enumerate(piece.sizes))
    return f"{piece.cls}: {left} = {right}" + (f" for {digits}" if digits else "")


def _type_of(program: Program, name: str, side: str) -> TensorType:
    return program.inputs[name] if side == "input" else program.types()[program.outputs[name]]


# --- plans -------------------------------------------------------------------------------------------------


def group_text(plan: Plan, name: str, group: Group) -> str:
    """The rank lists, abbreviated where they are what the claimed axes say."""
    if group.steps:
        return f"{clean(name)} over time {', '.join(group.axes)}: the {group.steps} runs of each rank"
    factorised = bool(group.axes) and group.ranks == plan.mesh.rank_lists(group.axes)
    if factorised:
        what = f"over {', '.join(group.axes)}"
    elif group.axes:
        what = f"claims {', '.join(group.axes)}, but its lists are not the fibres"
    else:
        what = "rank by rank"
    lists = group.ranks[:_LISTS] if factorised else group.ranks
    shown = " ".join(_ranks(r, factorised) for r in lists) + (" ..." if len(lists) < len(group.ranks) else "")
    return f"{clean(name)} {what}: {shown}"


def _ranks(ranks: Sequence[int], short: bool) -> str:
    if short and len(ranks) > _MEMBERS:
        return f"[{', '.join(map(str, ranks[: _MEMBERS - 2]))}, ..., {ranks[-1]}]"
    return f"[{', '.join(map(str, ranks))}]"


def header_text(plan: Plan) -> list[str]:
    """Name, mesh, groups, classes, integer ranges and provenance."""
    mesh = " x ".join(f"{a} {n}" for a, n in plan.mesh.space.items()) or "one device"
    lines = [f"plan {clean(plan.name)}", f"mesh {mesh} ({count(plan.mesh.ranks, 'rank')}, row-major)"]
    lines += [
        f"time {a} {plan.mesh.axes[a]} (each rank runs its program once per {a})" for a in plan.mesh.time
    ]
    lines += [f"group {group_text(plan, n, g)}" for n, g in plan.groups.items()]
    lines += [f"{class_title(c, plan.mesh.time)}: {count(len(c.program.ops), 'op')}" for c in plan.classes]
    lines.append(f"specification: {count(len(plan.specification.ops), 'op')}")
    for name, function in plan.functions.items():
        times = sum(c.function == name for c in calls(plan.specification))
        sizes = [f"{len(function.specification.ops)} in the specification"]
        what = "role" if function.along else "class"
        sizes += [f"{len(body.ops)} in {what} {cls}" for cls, body in function.classes.items()]
        at = f" at a slice of {' '.join(function.along)}" if function.along else ""
        lines.append(f"function {name}{at}, called {times} times: ops {', '.join(sizes)}")
    if plan.schedule is not None:
        events = sum(len(lane.events) for lane in plan.schedule.lanes)
        lines.append(f"schedule: {count(events, 'event')} in {count(len(plan.schedule.lanes), 'lane')}")
    lines += [f"range {n} in [{lo}, {hi})" for n, (lo, hi) in plan.ranges.items()]
    lines += [f"given anew at each step {clean(n)}" for n in plan.given]
    lines += [f"constant over all steps {clean(n)}" for n in plan.constants]
    for key, value in plan.provenance.items():
        shown = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        lines.append(f"provenance {clean(key)}: {clean(shown)}")
    return lines


def relations_text(plan: Plan) -> list[str]:
    """The input relation and the claimed output relation."""
    lines = []
    for side, relations in (("input", plan.inputs), ("output", plan.outputs)):
        lines.append(f"{side} relation {{")
        lines += [f"  {line}" for r in relations for line in relation_text(plan, r, side)]
        related = {r.plan for r in relations}
        if side == "input":
            free = [f"{c.name}:{n}" for c in plan.classes for n in c.program.inputs if n not in related]
            lines += [f"  {name} unconstrained" for name in free]
        lines.append("}")
    return lines


def schedule_text(plan: Plan) -> list[str]:
    """What each lane does, one event per line, and which values lie in which slots."""
    if plan.schedule is None:
        return []
    lines = [
        f"segment {name} of class {c}: ops {', '.join(f'{lo}..{hi - 1}' for lo, hi in spans)}"
        for c, named in plan.schedule.segments.items()
        for name, spans in named.items()
    ]
    lines += [f"once in class {c}: {', '.join(map(str, names))}" for c, names in plan.schedule.once.items()]
    for lane in plan.schedule.lanes:
        lines.append(f"lane {clean(lane.name)} on {box_text(lane.box) or 'the only rank'} {{")
        lines += [f"  {i:>4} {_event(event)}" for i, event in enumerate(lane.events)]
        for s in lane.slots:
            turns = f"slot {s.first}" if s.count == 1 else f"slots {s.first}..{s.first + s.count - 1} in turn"
            lines.append(f"  {clean(s.value)} of class {s.cls} in {turns}")
        lines.append("}")
    return ["schedule", *lines]


def _event(event: Event) -> str:
    match event:
        case Run(segment, run):
            return f"run {clean(segment)} {run}"
        case Wait(number):
            return f"wait for {number}"
        case Batch(communicator, items, posted):
            said = ", ".join(f"{i.end} {i.seq} of run {i.run}" for i in items)
            return f"{'post' if posted else 'now'} on {clean(communicator)}: {said}"


def plan_text(plan: Plan) -> list[str]:
    """The whole plan."""
    return [
        *header_text(plan),
        "",
        *relations_text(plan),
        "",
        *program_text("specification", plan.specification, plan.sources),
        *(line for c in plan.classes for line in ("", *class_text(plan, c))),
        *(line for name in plan.functions for line in ("", *function_text(plan, name))),
        *([""] if plan.schedule else []),
        *schedule_text(plan),
    ]


def class_text(plan: Plan, cls: RankClass) -> list[str]:
    """The program of one rank class."""
    return program_text(class_title(cls, plan.mesh.time), cls.program, plan.sources)
