"""Views of memory in one form, and slices that tile an entry of the batch: microbatches."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from certificates.plan.affine import Affine
from certificates.plan.ops import OPS
from certificates.plan.program import Attr, Op, Program
from certificates.plan.types import TensorType

#: What hands elements on: a microbatch may be cut out of what these make of an entry of the batch.
_MOVES = frozenset(("slice", "reshape", "transpose", "broadcast_in_dim"))

#: What makes zeros of zero.
SPREADS = ("broadcast_in_dim", "reshape", "convert")


def tilings(program: Program) -> Iterator[list[list[Op]]]:
    """Slices of one size that tile a dimension of what is made of entries of the batch: those of each place,
    in order."""
    moved = _of_the_batch(program)
    slices: dict[tuple[str, TensorType], list[Op]] = {}
    for op in program.ops:
        if op.name == "slice" and op.ins[0] in moved and set(numbers(op, "stride")) == {1}:
            slices.setdefault((op.ins[0], op.type), []).append(op)
    for (operand, part), ops in slices.items():
        shape = program.type_of(operand).shape
        cut = [d for d, (size, whole) in enumerate(zip(part.shape, shape, strict=True)) if size != whole]
        if len(cut) == 1:
            (dim,) = cut
            size, whole = part.shape[dim], shape[dim]
            places = [Affine(at) for at in range(0, whole, size)]
            found = [[op for op in ops if op.affines("start")[dim] == at] for at in places]
            if whole % size == 0 and all(found):
                yield found


def is_zero(made: Mapping[str, Op], value: str) -> bool:
    """Is the value zero, or zeros made of it? ``made`` has the ops by what they make."""
    op = made.get(value)
    while op is not None and op.name in SPREADS:
        op = made.get(op.ins[0])
    return op is not None and op.name == "constant" and op.attrs["value"] in ("0", Affine(0))


def added_up(program: Program) -> frozenset[str]:
    """Stacks that are only added up along what they are stacked along: their order does not count."""
    stacks = {op.out: op.integer("dim") for op in program.ops if op.name == "concatenate"}
    for value in program.outputs.values():
        stacks.pop(value, None)
    for op in program.ops:
        for value in op.ins:
            if value in stacks and not (_adds(op) and stacks[value] in numbers(op, "dims")):
                del stacks[value]
    return frozenset(stacks)


def opened(program: Program, stacks: Collection[str]) -> Program:
    """The program in which these stacks, which are only added up, are sums of the sums of what they stack."""
    made = {op.out: op for op in program.ops}
    fresh = itertools.count(1 + max((int(op.out[1:]) for op in program.ops), default=-1))
    ops: list[Op] = []
    for op in program.ops:
        if not (op.ins and op.ins[0] in stacks):
            ops += [] if op.out in stacks else [op]
            continue
        total = ""
        for part in made[op.ins[0]].ins:
            ops.append(replace(op, out=f"%{next(fresh)}", ins=(part,)))
            if total:
                ops.append(replace(op, out=f"%{next(fresh)}", name="add", ins=(total, ops[-1].out), attrs={}))
            total = ops[-1].out
        ops[-1] = replace(ops[-1], out=op.out)
    return Program(program.inputs, tuple(ops), program.outputs)


def _adds(op: Op) -> bool:
    return op.name == "reduce" and op.attrs["kind"] == "add"


def renames(program: Program, op: Op) -> bool:
    """Is it a conversion between float types, which is the identity and can be before a sum or after it?"""
    return op.name == "convert" and op.type.sort == program.type_of(op.ins[0]).sort == "Real"


def numbers(op: Op, key: str) -> tuple[int, ...]:
    """The integers of an attribute."""
    value = op.attrs[key]
    return tuple(v.const if isinstance(v, Affine) else int(v) for v in value)  # type: ignore[union-attr]


def composed(program: Program) -> Program:
    """The program in which a view of contiguous memory has one form, whichever way the step went there.

    It is a slice of the flat value that it is a view of. Views of entries of the batch stay as they are.
    """
    batch = _of_the_batch(program)
    types = dict(program.inputs)
    #: Of a view: what it is a view of, and its first element there.
    views: dict[str, tuple[str, Affine]] = {}
    known: dict[object, str] = {}
    names: dict[str, str] = {}
    ops: list[Op] = []

    def put(like: Op, name: str, ins: tuple[str, ...], of: TensorType, attrs: Mapping[str, Attr]) -> str:
        out = f"%{len(ops)}"
        ops.append(Op(out, name, ins, of, attrs, like.loc))
        types[out] = of
        return out

    def moved(like: Op, name: str, operand: str, of: TensorType, attrs: Mapping[str, Attr]) -> str:
        """An op of a view, which is there once."""
        key = name, operand, of, tuple(sorted(attrs.items()))
        if key not in known:
            known[key] = put(like, name, (operand,), of, attrs)
        return known[key]

    for op in program.ops:
        ins = tuple(names.get(v, v) for v in op.ins)
        view = _view(op, ins[0], types[ins[0]].shape, views) if ins and op.out not in batch else None
        if view is None:
            names[op.out] = put(op, op.name, ins, op.type, op.attrs)
            continue
        root, offset = view
        whole, part = types[root], op.type
        names[op.out] = root
        if whole.size != part.size:
            flat = moved(op, "reshape", root, TensorType(whole.dtype, (whole.size,)), {})
            of = TensorType(part.dtype, (part.size,))
            names[op.out] = moved(op, "slice", flat, of, {"start": (offset,), "stride": (1,)})
        if types[names[op.out]].shape != part.shape:
            names[op.out] = moved(op, "reshape", names[op.out], part, {})
        views[names[op.out]] = view
    return Program(program.inputs, tuple(ops), {n: names.get(v, v) for n, v in program.outputs.items()})


def _view(
    op: Op, operand: str, shape: Sequence[int], views: Mapping[str, tuple[str, Affine]]
) -> tuple[str, Affine] | None:
    """What a reshape or a slice of contiguous memory is a view of, and its first element there."""
    root, offset = views.get(operand, (operand, Affine(0)))
    if op.name == "reshape":
        return root, offset
    if op.name != "slice" or set(numbers(op, "stride")) != {1}:
        return None
    row = 1
    cut = False
    for size, whole, start in zip(
        reversed(op.type.shape), reversed(shape), reversed(op.affines("start")), strict=True
    ):
        if cut and size != 1:
            return None
        cut = cut or size != whole
        offset, row = offset + start.scale(row), row * whole
    return root, offset


def _of_the_batch(program: Program) -> set[str]:
    """What is made of entries of the batch alone, element by element or by moving them."""
    found = {name for name in program.inputs if name.startswith("batch.")}
    literals: set[str] = set()
    for op in program.ops:
        if not op.ins or all(v in literals for v in op.ins):
            literals.add(op.out)
        elif all(v in found or v in literals for v in op.ins) and (
            op.name in _MOVES or (op.name in OPS and OPS[op.name].elementwise)
        ):
            found.add(op.out)
    return found
