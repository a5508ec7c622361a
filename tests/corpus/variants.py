"""Correct variants: plans rewritten into others that compute the same, which must be proved.

:func:`variants` applies every rewriting of the list below at one place of the plan where it fits (the middle
one), or at all places at once where that is the more interesting question.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.checking import check_plan
from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Attr, Op, Program
from certificates.plan.types import TensorType, format_rational

from .mutate import Change, Edit, Mutant, Scope, applied, places


def variants(plan: Plan) -> list[Mutant]:
    """Every rewriting that fits the plan, in a fixed order."""
    out: list[Mutant] = []
    for name, edit in _EDITS.items():
        found = list(_everywhere(plan, name, edit))
        if found:
            out.append(found[len(found) // 2])
    for name, rewrite in _PROGRAMS.items():
        programs = {c.name: rewrite(c.program) for c in plan.classes}
        if all(programs[c.name] != c.program for c in plan.classes):
            out.append(
                Mutant(name, "whole programs", lambda programs=programs: _with_programs(plan, programs))
            )
    return out


def _with_programs(plan: Plan, programs: dict[str, Program]) -> Plan:
    variant = replace(plan, classes=tuple(replace(c, program=programs[c.name]) for c in plan.classes))
    check_plan(variant)
    return variant


def _everywhere(plan: Plan, name: str, edit: Edit) -> Iterator[Mutant]:
    for key, sites in places(plan):
        build = applied(plan, sites, lambda op: edit)
        if build is not None:
            yield Mutant(
                name,
                str(key[-1]) if key[0] == "seq" else f"{key[0]} line {getattr(key[1], 'line', '?')}",
                build,
            )


# --- one op at a time ----------------------------------------------------------------------------------


def _scatter_then_gather(op: Op, scope: Scope) -> Change:
    """all_reduce as reduce_scatter and all_gather."""
    if op.name != "all_reduce" or op.text("kind") != "add":
        return None
    size = scope.size(op)
    dim = next((d for d, n in enumerate(op.type.shape) if n % size == 0), None)
    if dim is None or size == 1:
        return None
    shape = tuple(n // size if d == dim else n for d, n in enumerate(op.type.shape))
    part = scope.fresh()
    group = op.text("group")
    return [
        Op(part, "reduce_scatter", op.ins, TensorType(op.type.dtype, shape),
           {"group": group, "kind": "add", "dim": dim, "seq": scope.seq}, op.loc),
        Op(op.out, "all_gather", (part,), op.type,
           {"group": group, "dim": dim, "seq": scope.seq + 1}, op.loc),
    ]  # fmt: skip


def _reduce_then_slice(op: Op, scope: Scope) -> Change:
    """reduce_scatter as all_reduce and a slice at the own position."""
    position = scope.position(op) if op.name == "reduce_scatter" else None
    if position is None:
        return None
    whole, dim, rank = scope.fresh(), op.integer("dim"), len(op.type.shape)
    start = tuple(position.scale(op.type.shape[dim]) if d == dim else Affine() for d in range(rank))
    attrs: dict[str, Attr] = {"group": op.text("group"), "kind": "add", "seq": scope.seq}
    return [
        Op(whole, "all_reduce", op.ins, scope.types[op.ins[0]], attrs, op.loc),
        Op(op.out, "slice", (whole,), op.type, {"start": start, "stride": (1,) * rank}, op.loc),
    ]


def _gather_then_slice(op: Op, scope: Scope) -> Change:
    """Gather a dot's result over an axis of the mesh and take the own piece back."""
    if op.name != "dot_general" or not op.type.shape:
        return None
    for name, group in scope.groups.items():
        if group.size == 1 or len(group.axes) != 1 or name not in scope.plan.groups:
            continue
        plain, whole, rank = scope.fresh(), scope.fresh(), len(op.type.shape)
        wide = TensorType(op.type.dtype, (op.type.shape[0] * group.size, *op.type.shape[1:]))
        start = (Affine.symbol(group.axes[0]).scale(op.type.shape[0]), *(Affine(),) * (rank - 1))
        return [
            replace(op, out=plain),
            Op(whole, "all_gather", (plain,), wide, {"group": name, "dim": 0, "seq": scope.seq}, op.loc),
            Op(op.out, "slice", (whole,), op.type, {"start": start, "stride": (1,) * rank}, op.loc),
        ]
    return None


def _scale_through_dot(op: Op, scope: Scope) -> Change:
    """dot(3 x, y) / 3."""
    if op.name != "dot_general":
        return None
    three, wide, plain, third = (scope.fresh() for _ in range(4))
    x = scope.types[op.ins[0]]
    return [
        Op(three, "constant", (), x, {"value": "3"}, op.loc),
        Op(wide, "multiply", (op.ins[0], three), x, {}, op.loc),
        replace(op, out=plain, ins=(wide, op.ins[1])),
        Op(third, "constant", (), op.type, {"value": format_rational(Fraction(1, 3))}, op.loc),
        Op(op.out, "multiply", (plain, third), op.type, {}, op.loc),
    ]


def _transposed_twice(op: Op, scope: Scope) -> Change:
    if op.name != "dot_general" or len(op.type.shape) < 2:
        return None
    plain, turned, rank = scope.fresh(), scope.fresh(), len(op.type.shape)
    perm = (*range(1, rank), 0)
    return [
        replace(op, out=plain),
        Op(turned, "transpose", (plain,), TensorType(op.type.dtype, tuple(op.type.shape[p] for p in perm)),
           {"perm": perm}, op.loc),
        Op(op.out, "transpose", (turned,), op.type, {"perm": (rank - 1, *range(rank - 1))}, op.loc),
    ]  # fmt: skip


def _split_and_merged(op: Op, scope: Scope) -> Change:
    """The last dimension of a dot's result split in two by a reshape, and merged again."""
    if op.name != "dot_general" or not op.type.shape or op.type.shape[-1] % 2:
        return None
    plain, split = scope.fresh(), scope.fresh()
    shape = (*op.type.shape[:-1], 2, op.type.shape[-1] // 2)
    return [
        replace(op, out=plain),
        Op(split, "reshape", (plain,), TensorType(op.type.dtype, shape), {}, op.loc),
        Op(op.out, "reshape", (split,), op.type, {}, op.loc),
    ]


def _reduced_in_steps(op: Op, scope: Scope) -> Change:
    """reduce over several dimensions, one after the other."""
    dims = op.ints("dims") if op.name == "reduce" else ()
    if len(dims) < 2:
        return None
    half, shape = scope.fresh(), scope.types[op.ins[0]].shape
    kept = tuple(n for d, n in enumerate(shape) if d != dims[-1])
    return [
        replace(op, out=half, type=TensorType(op.type.dtype, kept), attrs={**op.attrs, "dims": dims[-1:]}),
        replace(op, ins=(half,), attrs={**op.attrs, "dims": dims[:-1]}),
    ]


def _negated_twice(op: Op, scope: Scope) -> Change:
    if op.name != "dot_general":
        return None
    plain, minus = scope.fresh(), scope.fresh()
    return [
        replace(op, out=plain),
        Op(minus, "negate", (plain,), op.type, {}, op.loc),
        Op(op.out, "negate", (minus,), op.type, {}, op.loc),
    ]


def _subtracted_by_adding(op: Op, scope: Scope) -> Change:
    if op.name != "subtract" or op.type.sort != "Real":
        return None
    minus = scope.fresh()
    return [
        Op(minus, "negate", (op.ins[1],), op.type, {}, op.loc),
        Op(op.out, "add", (op.ins[0], minus), op.type, {}, op.loc),
    ]


def _divided_by_multiplying(op: Op, scope: Scope) -> Change:
    """x / y as x * (1 / y)."""
    if op.name != "divide":
        return None
    one, share = scope.fresh(), scope.fresh()
    return [
        Op(one, "constant", (), op.type, {"value": "1"}, op.loc),
        Op(share, "divide", (one, op.ins[1]), op.type, {}, op.loc),
        Op(op.out, "multiply", (op.ins[0], share), op.type, {}, op.loc),
    ]


def _opposite_select(op: Op, scope: Scope) -> Change:
    if op.name != "select":
        return None
    opposite = scope.fresh()
    return [
        Op(opposite, "not", op.ins[:1], scope.types[op.ins[0]], {}, op.loc),
        replace(op, ins=(opposite, op.ins[2], op.ins[1])),
    ]


def _reassociated(op: Op, scope: Scope) -> Change:
    """(x a) b as x (a b)."""
    if op.name != "multiply" or op.type.sort != "Real":
        return None
    inner = scope.producers.get(op.ins[0])
    if inner is None or inner.name != "multiply":
        return None
    product = scope.fresh()
    return [
        replace(op, out=product, ins=(inner.ins[1], op.ins[1])),
        replace(op, ins=(inner.ins[0], product)),
    ]


_EDITS: dict[str, Edit] = {
    "all_reduce as reduce_scatter and all_gather": _scatter_then_gather,
    "reduce_scatter as all_reduce and slice": _reduce_then_slice,
    "all_gather and slice are nothing": _gather_then_slice,
    "scale moved through a dot": _scale_through_dot,
    "transposed twice": _transposed_twice,
    "reshape split and merged": _split_and_merged,
    "reduce in two steps": _reduced_in_steps,
    "negated twice": _negated_twice,
    "subtract as add of negate": _subtracted_by_adding,
    "divide as multiply by a quotient": _divided_by_multiplying,
    "select on the opposite": _opposite_select,
    "product reassociated": _reassociated,
}


# --- whole programs ------------------------------------------------------------------------------------


def _commuted(program: Program) -> Program:
    """The operands of every add and multiply exchanged."""
    ops = [
        replace(op, ins=op.ins[::-1]) if op.name in ("add", "multiply", "maximum", "and", "or") else op
        for op in program.ops
    ]
    return replace_ops(program, ops)


def _reordered(program: Program) -> Program:
    """Another topological order: collectives as early as possible, the rest as late as the operands allow."""
    ops = _topological(program, program.ops, lambda i, op: (op.name not in COLLECTIVES, -i))
    return program if ops is None else replace_ops(program, ops)


def _topological(
    program: Program, ops: Sequence[Op], priority: Callable[[int, Op], tuple[int, int]]
) -> list[Op] | None:
    """The ops with operands first, smallest priority first; ``None`` if they depend on one another."""
    waiting = {op.out: len({v for v in op.ins if v not in program.inputs}) for op in ops}
    users: dict[str, list[int]] = {}
    for i, op in enumerate(ops):
        for v in set(op.ins):
            users.setdefault(v, []).append(i)
    ready = [(priority(i, op), i) for i, op in enumerate(ops) if not waiting[op.out]]
    heapq.heapify(ready)
    out: list[Op] = []
    while ready:
        _, i = heapq.heappop(ready)
        out.append(ops[i])
        for k in users.get(ops[i].out, ()):
            waiting[ops[k].out] -= 1
            if not waiting[ops[k].out]:
                heapq.heappush(ready, (priority(k, ops[k]), k))
    return out if len(out) == len(ops) else None


def _recomputed(program: Program) -> Program:
    """Every value that several ops read through elementwise ops is computed again for the later readers."""
    names = itertools.count(1 + max(int(op.out[1:]) for op in program.ops))
    producers = {op.out: op for op in program.ops}
    again_for = "multiply add logistic exponential convert broadcast_in_dim reshape transpose dot_general"
    readers: dict[str, int] = {}
    ops: list[Op] = []
    for op in program.ops:
        ins = []
        for v in op.ins:
            readers[v] = readers.get(v, 0) + 1
            if readers[v] > 1 and v in producers and producers[v].name in again_for.split():
                again = replace(producers[v], out=f"%{next(names)}")
                ops.append(again)
                v = again.out
            ins.append(v)
        ops.append(replace(op, ins=tuple(ins)))
    return replace_ops(program, ops)


def _fused(program: Program) -> Program:
    """Dots with one left operand (as the projections of attention): one dot with joined weights."""
    types = program.types()
    names = itertools.count(1 + max(int(op.out[1:]) for op in program.ops))
    groups: dict[object, list[Op]] = {}
    for op in program.ops:
        if op.name == "dot_general" and not op.ints("lhs_batch") and len(types[op.ins[1]].shape) == 2:
            key = (op.ins[0], op.ints("lhs_contract"), op.ints("rhs_contract"))
            if len(op.ints("rhs_contract")) == 1:
                groups.setdefault(key, []).append(op)
    for dots in groups.values():
        if len(dots) < 2:
            continue
        weights = [d.ins[1] for d in dots]
        free = 1 - dots[0].ints("rhs_contract")[0]
        sizes = [types[w].shape[free] for w in weights]
        shape = tuple(sum(sizes) if d == free else n for d, n in enumerate(types[weights[0]].shape))
        joined, whole = f"%{next(names)}", f"%{next(names)}"
        last, dtype = len(dots[0].type.shape) - 1, dots[0].type.dtype
        wide = TensorType(dtype, (*dots[0].type.shape[:-1], sum(sizes)))
        new = [
            Op(joined, "concatenate", tuple(weights), TensorType(dtype, shape), {"dim": free}, dots[0].loc),
            replace(dots[0], out=whole, ins=(dots[0].ins[0], joined), type=wide),
        ]
        start = 0
        for dot, size in zip(dots, sizes, strict=True):
            at = (*(Affine(),) * last, Affine(start))
            stride = (1,) * (last + 1)
            new.append(Op(dot.out, "slice", (whole,), dot.type, {"start": at, "stride": stride}, dot.loc))
            start += size
        gone = {d.out for d in dots}
        ops = [*(op for op in program.ops if op.out not in gone), *new]
        ordered = _topological(program, ops, lambda i, op: (0, i))
        if ordered is not None:
            return replace_ops(program, ordered)
    return program


def replace_ops(program: Program, ops: list[Op]) -> Program:
    """The program with other ops; sources of hand-written programs are kept by the plan."""
    return Program(program.inputs, tuple(ops), program.outputs)


_PROGRAMS: dict[str, Callable[[Program], Program]] = {
    "sums and products commuted": _commuted,
    "another order of ops and collectives": _reordered,
    "recomputation": _recomputed,
    "projections fused into one dot": _fused,
}
