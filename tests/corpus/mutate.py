"""Mutation operators: small mistakes in a plan, each well-typed, at every place where they fit.

:func:`mutants` enumerates them deterministically. A mutation replaces one op by a few others of the same
result type, in every rank class that has the op (collectives correspond by rendezvous, other ops by source
line and order), or rewires outputs. The specification and the relations are never touched, so a mutant
either computes something else or is equivalent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.checking import check_plan, collective_mismatch
from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Group, Plan, RankClass
from certificates.plan.program import Attr, Op, Program
from certificates.plan.type_rules import mismatch
from certificates.plan.types import TensorType, format_rational


class Scope:
    """What a mutation may look at in one rank class, and fresh names."""

    def __init__(self, plan: Plan, cls: RankClass, groups: Mapping[str, Group], seq: int) -> None:
        self.plan, self.box, self.groups, self.seq = plan, cls.box, groups, seq
        self.types = cls.program.types()
        self.producers = {op.out: op for op in cls.program.ops}
        self._next = 1 + max((int(op.out[1:]) for op in cls.program.ops), default=0)

    def fresh(self) -> str:
        self._next += 1
        return f"%{self._next - 1}"

    def size(self, op: Op) -> int:
        return self.groups[op.text("group")].size

    def position(self, op: Op) -> Affine | None:
        """Position in the group as an affine form, if the group is the fibre of one axis."""
        group = self.groups[op.text("group")]
        return Affine.symbol(group.axes[0]) if len(group.axes) == 1 else None


#: The ops that replace one op, or the name of the value that does, or ``None`` where it does not fit.
Change = list[Op] | str | None
Edit = Callable[[Op, Scope], Change]


@dataclass(frozen=True)
class Mutant:
    """One mistake: ``operator`` is its kind, ``where`` the place in words."""

    operator: str
    where: str
    build: Callable[[], Plan]

    def __str__(self) -> str:
        return f"{self.operator}: {self.where}"


def mutants(plan: Plan) -> list[Mutant]:
    """All mutants of a plan, in a fixed order."""
    groups = _all_groups(plan)
    out: list[Mutant] = []
    for _, sites in places(plan):
        cls, index = next(iter(sites.items()))
        op = plan.by_class[cls].program.ops[index]
        for number, (operator, detail, _) in enumerate(_edits(op, groups)):
            build = applied(plan, sites, _numbered(number, groups), groups)
            if build is None or (operator == "group" and not _well_formed(build)):
                continue
            where = f"{op.name} {op.out} of {cls}{f' line {op.loc.line}' if op.loc else ''}: {detail}"
            out.append(Mutant(operator, where, build))
    out.extend(_rewirings(plan))
    return out


def _numbered(number: int, groups: Mapping[str, Group]) -> Callable[[Op], Edit | None]:
    """Edit ``number`` of an op: corresponding ops of several classes may differ in attributes."""

    def choose(op: Op) -> Edit | None:
        options = _edits(op, groups)
        return options[number][2] if number < len(options) else None

    return choose


def places(plan: Plan) -> list[tuple[tuple[object, ...], dict[str, int]]]:
    """Places of the plan: a key, and per class that has the place the number of its op."""
    out: dict[tuple[object, ...], dict[str, int]] = {}
    for cls in plan.classes:
        for index, key in enumerate(_keys(cls.program)):
            out.setdefault(key, {})[cls.name] = index
    return list(out.items())


def applied(
    plan: Plan,
    sites: Mapping[str, int],
    choose: Callable[[Op], Edit | None],
    groups: Mapping[str, Group] | None = None,
) -> Callable[[], Plan] | None:
    """Builds the plan with an op changed in every class that has it; ``None`` if the change does not fit."""
    groups = plan.groups if groups is None else groups
    seq = 1 + max(
        (op.integer("seq") for c in plan.classes for op in c.program.ops if op.name in COLLECTIVES), default=0
    )
    changes: dict[str, list[Op] | str] = {}
    for name, index in sites.items():
        cls = plan.by_class[name]
        edit = choose(cls.program.ops[index])
        change = None if edit is None else _checked(edit, plan, cls, index, groups, seq)
        if change is None:
            return None
        changes[name] = change
    return _builder(plan, sites, changes, groups)


def _checked(
    edit: Edit, plan: Plan, cls: RankClass, index: int, groups: Mapping[str, Group], seq: int
) -> list[Op] | str | None:
    """The change at one site if it keeps the types."""
    op, scope = cls.program.ops[index], Scope(plan, cls, groups, seq)
    change = edit(op, scope)
    if change is None or change == [op]:
        return None
    if isinstance(change, str):
        return change if scope.types[change] == op.type else None
    types = dict(scope.types)
    for new in change:
        ins = [types[v] for v in new.ins]
        if mismatch(new, ins, cls.box) is not None:
            return None
        if new.name in COLLECTIVES and collective_mismatch(new, ins[0], groups[new.text("group")].size):
            return None
        types[new.out] = new.type
    return change if types[op.out] == op.type else None


def _builder(
    plan: Plan, sites: Mapping[str, int], changes: Mapping[str, list[Op] | str], groups: Mapping[str, Group]
) -> Callable[[], Plan]:
    def build() -> Plan:
        classes = []
        for cls in plan.classes:
            if cls.name not in sites:
                classes.append(cls)
                continue
            ops, outputs = list(cls.program.ops), dict(cls.program.outputs)
            at, change = sites[cls.name], changes[cls.name]
            if isinstance(change, str):
                gone = ops.pop(at).out
                ops = [replace(o, ins=tuple(change if v == gone else v for v in o.ins)) for o in ops]
                outputs = {n: change if v == gone else v for n, v in outputs.items()}
            else:
                ops[at : at + 1] = change
            classes.append(replace(cls, program=Program(cls.program.inputs, tuple(ops), outputs)))
        used = {op.attrs["group"] for c in classes for op in c.program.ops if op.name in COLLECTIVES}
        kept = {n: g for n, g in groups.items() if n in plan.groups or n in used}
        mutant = replace(plan, classes=tuple(classes), groups=kept)
        check_plan(mutant)
        return mutant

    return build


def _well_formed(build: Callable[[], Plan]) -> bool:
    """Another group may ask for members that do not take part in the rendezvous."""
    try:
        build()
    except FormatError:
        return False
    return True


def _keys(program: Program) -> list[tuple[object, ...]]:
    """A key per op by which ops of different classes correspond."""
    count: dict[tuple[object, ...], int] = {}
    keys: list[tuple[object, ...]] = []
    for op in program.ops:
        if op.name in COLLECTIVES:
            keys.append(("seq", op.integer("seq")))
            continue
        base = (op.name, op.loc)
        count[base] = count.get(base, 0) + 1
        keys.append((*base, count[base]))
    return keys


def _all_groups(plan: Plan) -> dict[str, Group]:
    """The plan's groups, one per mesh axis, and every group of more than one rank in reverse order."""
    groups = dict(plan.groups)
    for axis, size in plan.mesh.axes.items():
        fibres = plan.mesh.fibres((axis,))
        if size > 1 and all(g.ranks != fibres for g in groups.values()):
            groups[f"mutant_{axis}"] = Group((axis,), fibres)
    for name, group in list(groups.items()):
        if group.size > 1:
            groups[f"reversed_{name}"] = Group((), tuple(r[::-1] for r in group.ranks))
    return groups


# --- the operators -------------------------------------------------------------------------------------


def _edits(op: Op, groups: Mapping[str, Group]) -> list[tuple[str, str, Edit]]:
    """All mutations of one op: operator, detail, edit."""
    out: list[tuple[str, str, Edit]] = []
    for k in range(len(op.ins)):
        if op.name not in ("convert", "pad", "gather", "compare") and not (op.name == "select" and k == 0):
            out.append(("drop", f"operand {k} instead", lambda o, s, k=k: o.ins[k]))  # type: ignore[misc]
    if op.name in _REPEATABLE:
        out.append(("duplicate", "applied twice", _twice))
    out.extend(_swaps(op))
    out.extend(("axis", f"{key} {value}", _with(key, value)) for key, value in _axes(op))
    if op.name in COLLECTIVES:
        out.extend(_collective_edits(op, groups))
    if op.name == "reduce" or op.name == "all_reduce":
        for kind in {"add": ("max",), "max": ("add", "min"), "min": ("max",), "and": ("or",), "or": ("and",)}[
            op.text("kind")
        ]:
            out.append(("reduction", f"{op.text('kind')} becomes {kind}", _with("kind", kind)))
    if op.type.sort == "Real":
        factors: list[tuple[str, Fraction]] = []
        if op.name in ("dot_general", "reduce", "gather", "divide", "exponential", *COLLECTIVES):
            factors.append(("2", Fraction(2)))
        if op.name in COLLECTIVES:
            size = groups[op.text("group")].size
            if size > 2:
                factors.append((str(size), Fraction(size)))
            factors.append((f"1/{size}", Fraction(1, size)))
        out.extend(("scale", f"times {text}", _scaled(factor)) for text, factor in factors)
    out.extend(_offsets(op))
    out.extend(_literals(op))
    return out


_REPEATABLE = frozenset(
    [
        "negate",
        "exponential",
        "log",
        "sqrt",
        "rsqrt",
        "sine",
        "cosine",
        "tanh",
        "logistic",
        "transpose",
        "all_reduce",
        "add",
        "subtract",
        "multiply",
        "divide",
        "power",
        "maximum",
        "minimum",
    ]
)


def _twice(op: Op, scope: Scope) -> Change:
    first = scope.fresh()
    attrs = {**op.attrs, "seq": scope.seq} if op.name in COLLECTIVES else op.attrs
    return [replace(op, out=first), replace(op, ins=(first, *op.ins[1:]), attrs=attrs)]


def _swaps(op: Op) -> Iterator[tuple[str, str, Edit]]:
    if (
        op.name in ("subtract", "divide", "power", "compare", "dot_general", "concatenate")
        and len(op.ins) > 1
    ):
        yield "swap", "first two operands", lambda o, s: [replace(o, ins=(o.ins[1], o.ins[0], *o.ins[2:]))]
    if op.name == "select":
        yield "swap", "branches", lambda o, s: [replace(o, ins=(o.ins[0], o.ins[2], o.ins[1]))]
    if op.name == "compare":
        for other in {
            "LT": ("LE",),
            "LE": ("LT",),
            "GT": ("GE",),
            "GE": ("GT",),
            "EQ": ("NE",),
            "NE": ("EQ",),
        }[op.text("direction")]:
            yield "swap", f"direction {other}", _with("direction", other)


def _axes(op: Op) -> Iterator[tuple[str, Attr]]:
    """Other values of axis attributes; those that do not type-check are dropped later."""
    rank = len(op.type.shape)
    match op.name:
        case "reduce":
            dims = op.ints("dims")
            yield from (
                ("dims", d) for d in itertools.combinations(range(rank + len(dims)), len(dims)) if d != dims
            )
        case "transpose":
            perms = (p for p in itertools.permutations(range(rank)) if p != op.ints("perm"))
            yield from (("perm", p) for p in itertools.islice(perms, 23))
        case "broadcast_in_dim":
            dims = op.ints("dims")
            yield from (("dims", d) for d in itertools.combinations(range(rank), len(dims)) if d != dims)
        case "concatenate" | "iota":
            yield from (("dim", d) for d in range(rank) if d != op.integer("dim"))
        case "gather":
            yield from (("axis", d) for d in range(rank) if d != op.integer("axis"))
        case "dot_general":
            for key in ("lhs_contract", "rhs_contract", "lhs_batch", "rhs_batch"):
                dims = op.ints(key)
                others = itertools.permutations(range(5), len(dims)) if dims else ()
                yield from ((key, d) for d in others if d != dims)
        case "all_gather" | "reduce_scatter":
            yield from (("dim", d) for d in range(rank) if d != op.integer("dim"))
        case _:
            return


def _with(key: str, value: Attr) -> Edit:
    return lambda op, scope: [replace(op, attrs={**op.attrs, key: value})]


def _collective_edits(op: Op, groups: Mapping[str, Group]) -> Iterator[tuple[str, str, Edit]]:
    mine = groups[op.text("group")]
    for name, group in groups.items():
        same_sets = {frozenset(r) for r in group.ranks} == {frozenset(r) for r in mine.ranks}
        if group.ranks == mine.ranks or (op.name == "all_reduce" and same_sets):
            continue
        yield "group", f"{op.text('group')} becomes {name}", _with("group", name)
    if op.name == "reduce_scatter":
        yield "reduction", "a slice without the sum", _own_piece
        yield "group", "the first piece on every rank", lambda o, s: _summed_piece(o, s)
    if op.name == "all_gather":
        yield (
            "drop",
            "own shard repeated",
            lambda o, s: [
                Op(o.out, "concatenate", o.ins * s.size(o), o.type, {"dim": o.integer("dim")}, o.loc)
            ],
        )


def _own_piece(op: Op, scope: Scope) -> Change:
    position = scope.position(op)
    if position is None:
        return None
    dim, rank = op.integer("dim"), len(op.type.shape)
    start = tuple(position.scale(op.type.shape[dim]) if d == dim else Affine() for d in range(rank))
    return [Op(op.out, "slice", op.ins, op.type, {"start": start, "stride": (1,) * rank}, op.loc)]


def _summed_piece(op: Op, scope: Scope) -> Change:
    whole, rank = scope.fresh(), len(op.type.shape)
    attrs: dict[str, Attr] = {k: op.attrs[k] for k in ("group", "kind", "seq")}
    return [
        Op(whole, "all_reduce", op.ins, scope.types[op.ins[0]], attrs, op.loc),
        Op(op.out, "slice", (whole,), op.type, {"start": (Affine(),) * rank, "stride": (1,) * rank}, op.loc),
    ]


def _scaled(factor: Fraction) -> Edit:
    def edit(op: Op, scope: Scope) -> Change:
        plain, literal = scope.fresh(), scope.fresh()
        return [
            replace(op, out=plain),
            Op(literal, "constant", (), op.type, {"value": format_rational(factor)}, op.loc),
            Op(op.out, "multiply", (plain, literal), op.type, {}, op.loc),
        ]

    return edit


def _offsets(op: Op) -> Iterator[tuple[str, str, Edit]]:
    if op.name == "slice":
        start = op.affines("start")
        for d, form in enumerate(start):
            for delta in (-1, 1):
                moved = (*start[:d], form + delta, *start[d + 1 :])
                yield "offset", f"start of dimension {d} {delta:+d}", _with("start", moved)
            for symbol, coef in form.terms:
                other = form + Affine.of(0, {symbol: -coef})
                yield (
                    "offset",
                    f"start of dimension {d} without {symbol}",
                    _with("start", (*start[:d], other, *start[d + 1 :])),
                )
    if op.name == "pad":
        low, high = op.ints("low"), op.ints("high")
        for d, delta in itertools.product(range(len(low)), (-1, 1)):
            if low[d] + delta >= 0 and high[d] - delta >= 0:
                a, b = (
                    [v + s * (i == d) for i, v in enumerate(x)] for x, s in ((low, delta), (high, -delta))
                )
                yield "offset", f"padding of dimension {d} {delta:+d}", _with_both(tuple(a), tuple(b))
    value = op.attrs.get("value") if op.name == "constant" else None
    if isinstance(value, Affine):
        for symbol, coef in value.terms:
            yield "offset", f"coefficient of {symbol} + 1", _with("value", value + Affine.of(0, {symbol: 1}))
            if len(value.terms) > 1:
                yield "offset", f"without {symbol}", _with("value", value + Affine.of(0, {symbol: -coef}))
        yield "offset", "+ 1", _with("value", value + 1)


def _with_both(low: tuple[int, ...], high: tuple[int, ...]) -> Edit:
    return lambda op, scope: [replace(op, attrs={"low": low, "high": high})]


def _literals(op: Op) -> Iterator[tuple[str, str, Edit]]:
    value = op.attrs.get("value") if op.name == "constant" else None
    if not isinstance(value, str):
        return
    if value in ("true", "false"):
        yield "literal", f"not {value}", _with("value", "false" if value == "true" else "true")
    elif value in ("inf", "-inf"):
        yield "literal", f"{value} becomes 0", _with("value", "0")
    else:
        number = Fraction(value)
        others = (
            [number + 1, number - 1] if op.type.sort == "Int" else [number * 2 if number else Fraction(1)]
        )
        for other in others:
            yield (
                "literal",
                f"{value} becomes {format_rational(other)}",
                _with("value", format_rational(other)),
            )


def _rewirings(plan: Plan) -> Iterator[Mutant]:
    """Two outputs of one type swapped, in all classes."""
    first = plan.classes[0].program
    last: dict[TensorType, str] = {}
    for name, value in first.outputs.items():
        type_ = first.types()[value]
        other = last.get(type_)
        last[type_] = name
        if other is None or first.outputs[other] == value:
            continue
        if all(_one_type(c.program, name, other) for c in plan.classes):
            yield Mutant("rewire", f"outputs {other} and {name} swapped", _swapped(plan, name, other))


def _one_type(program: Program, a: str, b: str) -> bool:
    if a not in program.outputs or b not in program.outputs:
        return False
    types = program.types()
    return types[program.outputs[a]] == types[program.outputs[b]]


def _swapped(plan: Plan, a: str, b: str) -> Callable[[], Plan]:
    def build() -> Plan:
        classes = []
        for cls in plan.classes:
            outputs = dict(cls.program.outputs)
            outputs[a], outputs[b] = outputs[b], outputs[a]
            program = Program(cls.program.inputs, cls.program.ops, outputs)
            classes.append(replace(cls, program=program))
        mutant = replace(plan, classes=tuple(classes))
        check_plan(mutant)
        return mutant

    return build
