"""Long concatenations, such as the norms of all gradients that clipping stacks.

Elementwise work on a stack is done on its parts, so that a part comes from the code that made it; neighbours
that come from one call are concatenated there. Both say the same, element for element.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from certificates.plan.ops import ELEMENTWISE
from certificates.plan.program import Op, Program
from certificates.plan.stacks import is_stack
from certificates.plan.types import TensorType


def spread(program: Program) -> Program:
    """Elementwise ops of one stack, done on its parts: ``f([a, b]) = [f(a), f(b)]``."""
    names = new_names(program)
    while True:
        users = _users(program)
        stacks = {op.out: op for op in program.ops if is_stack(op)}
        worked = {
            user.ins[0]: user
            for user in program.ops
            if user.name in ELEMENTWISE and set(user.ins) <= stacks.keys()
            if len(set(user.ins)) == 1 and users[user.ins[0]] == [user.out]
        }
        if not worked:
            return program
        ops: list[Op] = []
        for op in program.ops:
            if op.ins and worked.get(op.ins[0]) is op:
                ops += _on_parts(op, stacks[op.ins[0]], program, names)
            elif op.out not in worked:
                ops.append(op)
        program = Program(program.inputs, tuple(ops), program.outputs)


def _on_parts(op: Op, stack: Op, program: Program, names: Iterator[str]) -> list[Op]:
    parts = []
    for v in stack.ins:
        type_ = TensorType(op.type.dtype, program.type_of(v).shape)
        parts.append(replace(op, out=next(names), ins=(v,) * len(op.ins), type=type_))
    return [*parts, replace(stack, out=op.out, ins=tuple(p.out for p in parts), type=op.type)]


def gathered(program: Program) -> Program:
    """The other way round: parts that are all made by one elementwise op, made at once."""
    names = new_names(program)
    while True:
        users = _users(program)
        made = {op.out: op for op in program.ops if op.name in ELEMENTWISE and len(set(op.ins)) == 1}
        ops: list[Op] = []
        for op in program.ops:
            parts = [made[v] for v in op.ins if v in made and users[v] == [op.out]]
            alike = {(p.name, len(p.ins), p.type.dtype, program.type_of(p.ins[0]).dtype) for p in parts}
            if not is_stack(op) or len(parts) != len(op.ins) or len(alike) != 1:
                ops.append(op)
                continue
            type_ = TensorType(program.type_of(parts[0].ins[0]).dtype, op.type.shape)
            stack = replace(op, out=next(names), ins=tuple(p.ins[0] for p in parts), type=type_)
            ops += [stack, replace(parts[0], out=op.out, ins=(stack.out,) * len(parts[0].ins), type=op.type)]
            dropped = {p.out for p in parts}
            ops = [o for o in ops if o.out not in dropped]
        if len(ops) == len(program.ops):
            return program
        program = Program(program.inputs, tuple(ops), program.outputs)


def grouped(program: Program, kin: Callable[[str], Hashable]) -> Program:
    """Neighbouring parts of a stack with the same ``kin`` (not ``None``) concatenated first."""
    names = new_names(program)
    ops: list[Op] = []
    for op in program.ops:
        ins: list[str] = []
        for key, run in groupby(op.ins, kin) if is_stack(op) else ():
            parts = tuple(run)
            if key is None or not 1 < len(parts) < len(op.ins):
                ins += parts
                continue
            dim = op.integer("dim")
            shape = list(op.type.shape)
            shape[dim] = sum(program.type_of(v).shape[dim] for v in parts)
            group = replace(op, out=next(names), ins=parts, type=TensorType(op.type.dtype, tuple(shape)))
            ops.append(group)
            ins.append(group.out)
        ops.append(replace(op, ins=tuple(ins)) if ins else op)
    return Program(program.inputs, tuple(ops), program.outputs)


def flattened(program: Program) -> Program:
    """Concatenations of concatenations as one."""
    users = _users(program)
    joined = {op.out: op for op in program.ops if op.name == "concatenate"}
    inner: dict[str, tuple[str, ...]] = {}
    ops = []
    for op in program.ops:
        if op.name == "concatenate":
            parts = (inner.get(v, (v,)) if _same_way(joined.get(v), op) else (v,) for v in op.ins)
            op = replace(op, ins=tuple(x for part in parts for x in part))
            if len(users[op.out]) == 1 and _same_way(joined.get(users[op.out][0]), op):
                inner[op.out] = op.ins
                continue
        ops.append(op)
    return Program(program.inputs, tuple(ops), program.outputs)


def _same_way(a: Op | None, b: Op) -> bool:
    return a is not None and a.attrs == b.attrs


def _users(program: Program) -> dict[str, list[str]]:
    """Results that read each value, each once, and outputs."""
    users: dict[str, list[str]] = {op.out: [] for op in program.ops}
    reads: list[tuple[str, Sequence[str]]] = [(op.out, op.ins) for op in program.ops]
    reads += [(f"output {name}", (value,)) for name, value in program.outputs.items()]
    for reader, values in reads:
        for v in dict.fromkeys(values):
            users.setdefault(v, []).append(reader)
    return users


def new_names(program: Program) -> Iterator[str]:
    """Names that no value of the program has."""
    number = 1 + max((int(op.out[1:]) for op in program.ops), default=-1)
    while True:
        yield f"%{number}"
        number += 1
