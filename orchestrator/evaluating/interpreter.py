"""The oracle: programs and plans evaluated with numpy, in float64, int64 and bool.

One function per question: :func:`evaluate` (every value of one program), :func:`run_specification`,
:func:`run_plan` (all ranks, collectives included), :func:`scatter_inputs` (rank inputs that satisfy the
input relation) and :func:`compare_outputs` (does the claimed output relation hold on these numbers).

Meaning follows ``docs/format.md``. Collectives have their pure meaning: a rank waits for a rendezvous only
where it uses the result, so the order of independent collectives in a program does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from certificates.plan.affine import Affine
from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program

from ..errors import EvaluationError
from .arrays import BINARY, COMPARE, FOLD, NUMPY, UNARY, Array, affordable
from .scatter import Mismatch, compare_outputs, random_inputs, scatter_inputs

__all__ = [
    "Array",
    "Mismatch",
    "apply",
    "check_inputs",
    "collective",
    "compare_outputs",
    "evaluate",
    "evaluate_ranks",
    "random_inputs",
    "run_plan",
    "run_specification",
    "scatter_inputs",
]


def evaluate(
    program: Program, inputs: Mapping[str, Array], coordinates: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Every value of a program without collectives, by name, inputs first.

    ``coordinates`` are the mesh coordinates of the rank, needed where the program mentions them. Raises
    :class:`EvaluationError` on a missing or misshapen input, a collective, or a gather out of range.
    """
    affordable(_volume(program), "the program")
    env = check_inputs(program, inputs)
    for op in program.ops:
        env[op.out] = apply(op, [env[v] for v in op.ins], coordinates or {})
    return env


def run_specification(plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of the specification by name."""
    env = evaluate(plan.specification, inputs)
    return {name: env[value] for name, value in plan.specification.outputs.items()}


def run_plan(plan: Plan, inputs_per_rank: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Outputs of every point by name: every rank at every time. ``inputs_per_rank`` is alike."""
    values = evaluate_ranks(plan, inputs_per_rank)
    outputs = [plan.class_of(plan.mesh.coordinates(r)).program.outputs for r in range(plan.mesh.points)]
    return [{n: env[v] for n, v in out.items()} for out, env in zip(outputs, values, strict=True)]


def evaluate_ranks(plan: Plan, inputs_per_rank: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Every value of every rank. Raises :class:`EvaluationError` as :func:`evaluate` does, or when
    collectives wait for one another in a circle."""
    ranks = plan.mesh.points
    if len(inputs_per_rank) != ranks:
        raise EvaluationError(f"inputs for {len(inputs_per_rank)} ranks, the mesh has {ranks}")
    places = [plan.mesh.coordinates(r) for r in range(ranks)]
    programs = [plan.class_of(at).program for at in places]
    affordable(sum(map(_volume, programs)), "the program of all ranks")
    envs = [check_inputs(p, i) for p, i in zip(programs, inputs_per_rank, strict=True)]
    pending: list[Sequence[Op]] = [p.ops for p in programs]
    waiting: dict[int, dict[int, Op]] = {}  # rendezvous -> rank -> op whose operand is ready
    while any(pending):
        before = sum(map(len, pending))
        for r in range(ranks):
            left: list[Op] = []
            for op in pending[r]:
                if any(v not in envs[r] for v in op.ins):
                    left.append(op)
                elif op.name == "recv":
                    source = plan.sender(op, places[r])
                    value = plan.meets(op)[plan.class_of(places[source]).name].ins[0]
                    if value in envs[source]:
                        envs[r][op.out] = envs[source][value]
                    else:
                        left.append(op)
                elif op.name == "send":
                    envs[r][op.out] = envs[r][op.ins[0]]
                elif op.name in COLLECTIVES:
                    waiting.setdefault(op.integer("seq"), {})[r] = op
                else:
                    envs[r][op.out] = apply(op, [envs[r][v] for v in op.ins], places[r])
            pending[r] = left
        met = _meet(plan, waiting, envs)
        if any(pending) and not met and sum(map(len, pending)) == before:
            stuck = sorted(s for s, arrived in waiting.items() if arrived)
            raise EvaluationError(f"rendezvous {stuck} wait for one another")
    return envs


def _volume(program: Program) -> int:
    """Elements of all results; literals are one number each."""
    return sum(op.type.size for op in program.ops if op.name not in ("constant", "iota"))


def _meet(plan: Plan, waiting: dict[int, dict[int, Op]], envs: list[dict[str, Array]]) -> bool:
    """Carry out every collective whose members have all arrived."""
    met = False
    for arrived in waiting.values():
        if not arrived:
            continue
        group = plan.groups[next(iter(arrived.values())).text("group")]
        for members in group.lists(plan.mesh):
            if not all(r in arrived for r in members):
                continue
            ops = [arrived.pop(r) for r in members]
            results = collective(ops[0], [envs[r][op.ins[0]] for r, op in zip(members, ops, strict=True)])
            for r, op, result in zip(members, ops, results, strict=True):
                envs[r][op.out] = result
            met = True
    return met


def collective(op: Op, operands: Sequence[Array]) -> list[Array]:
    """Results of a collective for the members of one group instance, both in group order."""
    count = len(operands)
    match op.name:
        case "all_reduce":
            total = FOLD[op.text("kind")].reduce(np.stack(operands), axis=0)
            return [total] * count
        case "all_gather":
            return [np.concatenate(operands, axis=op.integer("dim"))] * count
        case "reduce_scatter":
            total = FOLD[op.text("kind")].reduce(np.stack(operands), axis=0)
            return np.split(total, count, axis=op.integer("dim"))
        case "all_to_all":
            parts = [np.split(x, count, axis=op.integer("split_dim")) for x in operands]
            return [
                np.concatenate([parts[i][j] for i in range(count)], axis=op.integer("concat_dim"))
                for j in range(count)
            ]
        case name:
            raise EvaluationError(f"op {name!r} is not a collective of the op table")


def check_inputs(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The program's inputs as arrays of the oracle's element types, shapes checked."""
    out = {}
    for name, type_ in program.inputs.items():
        if name not in inputs:
            raise EvaluationError(f"input {name} : {type_} is missing")
        value = np.asarray(inputs[name])
        if value.shape != type_.shape:
            raise EvaluationError(f"input {name} : {type_} is given with shape {list(value.shape)}")
        sorts = {"b": "Bool", "i": "Int", "u": "Int", "f": "Real"}
        if sorts.get(value.dtype.kind) != type_.sort:
            raise EvaluationError(f"input {name} : {type_} is given as {value.dtype}")
        out[name] = value.astype(NUMPY[type_.sort], copy=False)
    return out


def apply(op: Op, ins: Sequence[Array], at: Mapping[str, int]) -> Array:
    """The result of one op of a checked program; ``at`` gives the mesh coordinates of the rank.

    Arithmetic is IEEE's where the real function is not defined (``recip(0)``, ``log(-1)``): the oracle then
    shows an infinity or a NaN, and :func:`compare_outputs` never accepts a NaN.
    """
    with np.errstate(all="ignore"):
        return np.asarray(_apply(op, ins, at))


def _apply(op: Op, ins: Sequence[Array], at: Mapping[str, int]) -> Any:
    out = op.type
    match op.name:
        case "constant":
            return np.broadcast_to(_literal(op, at), out.shape)
        case "iota":
            dim = op.integer("dim")
            line = np.arange(out.shape[dim], dtype=NUMPY[out.sort])
            line = line.reshape([-1 if d == dim else 1 for d in range(len(out.shape))])
            return np.broadcast_to(line, out.shape)
        case name if name in UNARY:
            return UNARY[name](ins[0])
        case name if name in BINARY:
            return BINARY[name](*ins)
        case "convert":
            return ins[0].astype(NUMPY[out.sort])
        case "compare":
            return COMPARE[op.text("direction")](ins[0], ins[1])
        case "select":
            return np.where(ins[0], ins[1], ins[2])
        case "broadcast_in_dim":
            shape = [1] * len(out.shape)
            for n, d in zip(ins[0].shape, op.ints("dims"), strict=True):
                shape[d] = n
            return np.broadcast_to(ins[0].reshape(shape), out.shape)
        case "reshape":
            return ins[0].reshape(out.shape)
        case "transpose":
            return ins[0].transpose(op.ints("perm"))
        case "slice":
            return ins[0][_window(op, at)]
        case "pad":
            widths = list(zip(op.ints("low"), op.ints("high"), strict=True))
            return np.pad(ins[0], widths, constant_values=ins[1]) if widths else ins[0]
        case "concatenate":
            return np.concatenate(ins, axis=op.integer("dim"))
        case "dot_general":
            return _dot(op, ins[0], ins[1])
        case "reduce":
            return FOLD[op.text("kind")].reduce(ins[0], axis=op.ints("dims"))
        case "gather":
            return _gather(op, ins[0], ins[1])
        case name if name in COLLECTIVES | MESSAGES:
            raise EvaluationError(f"{name} {op.out} joins ranks; evaluate the whole plan")
        case name:
            raise EvaluationError(f"op {name!r} of {op.out} has no meaning in the interpreter")


def _literal(op: Op, at: Mapping[str, int]) -> Array:
    value, sort = op.attrs["value"], op.type.sort
    number: Any
    if isinstance(value, Affine):
        number = _at_rank(op, value, at)
    elif isinstance(value, str) and sort == "Bool":
        number = value == "true"
    elif value in ("inf", "-inf"):
        number = float(value)
    else:
        number = Fraction(str(value))
        number = int(number) if sort == "Int" else number
    try:
        return np.asarray(float(number) if sort == "Real" else number, dtype=NUMPY[sort])
    except OverflowError as error:
        raise EvaluationError(f"constant {op.out} = {value} is too large for the interpreter") from error


def _at_rank(op: Op, form: Affine, at: Mapping[str, int]) -> int:
    """A rank-dependent number at the coordinates of the rank."""
    missing = [axis for axis in form.symbols if axis not in at]
    if missing:
        raise EvaluationError(f"{op.out} mentions the mesh axis {missing[0]!r}, which has no coordinate")
    return form.evaluate(at)


def _window(op: Op, at: Mapping[str, int]) -> tuple[slice, ...]:
    out = []
    for start, stride, size in zip(op.affines("start"), op.ints("stride"), op.type.shape, strict=True):
        first = _at_rank(op, start, at)
        out.append(slice(first, first + stride * (size - 1) + 1, stride))
    return tuple(out)


def _dot(op: Op, x: Array, y: Array) -> Array:
    """As one batched matrix product: ``[batch, free x, contract] @ [batch, contract, free y]``."""
    lb, rb, lc, rc = (op.ints(k) for k in ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"))
    lf = tuple(d for d in range(x.ndim) if d not in lb + lc)
    rf = tuple(d for d in range(y.ndim) if d not in rb + rc)
    batch = int(np.prod([x.shape[d] for d in lb], dtype=np.int64))
    depth = int(np.prod([x.shape[d] for d in lc], dtype=np.int64))
    left = x.transpose(lb + lf + lc).reshape(batch, -1, depth)
    right = y.transpose(rb + rc + rf).reshape(batch, depth, -1)
    return np.asarray(np.matmul(left, right).reshape(op.type.shape))


def _gather(op: Op, x: Array, index: Array) -> Array:
    """``out[b, m, i, r] = x[b, m, index[b, i], r]`` over flattened batch, middle, index and rest."""
    axis, batch = op.integer("axis"), op.integer("batch_dims")
    size = x.shape[axis]
    if index.size and (index.min() < 0 or index.max() >= size):
        reads = f"{index.min()}..{index.max()}"
        raise EvaluationError(f"gather {op.out} reads index {reads} of an axis of {size}")
    count = int(np.prod(x.shape[:batch], dtype=np.int64))
    middle = int(np.prod(x.shape[batch:axis], dtype=np.int64))
    table = x.reshape(count, middle, size, -1).transpose(0, 2, 1, 3)
    rows = table[np.arange(count)[:, None], index.reshape(count, -1)]
    return rows.transpose(0, 2, 1, 3).reshape(op.type.shape)
