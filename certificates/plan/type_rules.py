"""Type rules: what a program must satisfy, op by op. Rules about whole plans are in :mod:`.checking`."""

from __future__ import annotations

from collections.abc import Mapping

from certificates.plan.affine import Affine

from ..errors import FormatError
from .ops import CALL, COLLECTIVES, MESSAGES, OPS, Row
from .program import INPUT_NAME, RESULT_NAME, Op, Program
from .shapes import contracted, gathered, padded, reduced, transposed
from .types import MAX_RANK, TensorType, rational


def check_program(program: Program, axes: Mapping[str, tuple[int, int]] | None = None) -> None:
    """Type-check a program; ``axes`` gives the box of its rank class, ``None`` means a specification.

    Raises :class:`FormatError` naming the op. Collective operand/result types are checked by the plan,
    which knows the groups.
    """
    types: dict[str, TensorType] = {}
    for name, type_ in program.inputs.items():
        if not INPUT_NAME.match(name):
            raise FormatError(f"{name!r} is not an input name")
        types[name] = type_
    for op in program.ops:
        if op.out in types:
            raise FormatError(f"{op.out} is defined twice")
        if not RESULT_NAME.match(op.out):
            raise FormatError(f"{op.out!r} is not a result name such as %17")
        missing = [v for v in op.ins if v not in types]
        if missing:
            raise FormatError(f"{op.name} {op.out} reads {missing[0]} before it is defined")
        if axes is None and op.name in COLLECTIVES | MESSAGES:
            what = "collective" if op.name in COLLECTIVES else "message"
            raise FormatError(f"specification has the {what} {op.name} {op.out}")
        if len(op.type.shape) > MAX_RANK:
            raise FormatError(f"{op.name} {op.out} has more than {MAX_RANK} dimensions")
        problem = None if op.name == CALL else mismatch(op, [types[v] for v in op.ins], axes or {})
        if problem:
            ins = ", ".join(str(types[v]) for v in op.ins)
            raise FormatError(f"{op.name} {op.out} : ({ins}) -> {op.type}: {problem}")
        types[op.out] = op.type
    for name, value in program.outputs.items():
        if not INPUT_NAME.match(name):
            raise FormatError(f"{name!r} is not an output name")
        if value not in types:
            raise FormatError(f"output {name} names the unknown value {value}")
        if name in program.inputs and program.inputs[name] != types[value]:
            raise FormatError(f"state {name} comes in as {program.inputs[name]} and leaves as {types[value]}")


def mismatch(op: Op, ins: list[TensorType], axes: Mapping[str, tuple[int, int]]) -> str | None:
    """Why the op is ill-typed, or ``None``."""
    out, shapes = op.type, [t.shape for t in ins]
    row = OPS.get(op.name)
    if row is None:
        return "is not in the op table"
    if len(ins) != row.operands and not (row.operands is None and ins):
        return f"takes {1 if row.operands is None else row.operands} operands"
    floats = out.sort == "Real"
    if row.sorts:
        return _same_type_mismatch(row, ins, out)
    match op.name:
        case "constant":
            value = op.attrs["value"]
            if isinstance(value, Affine):
                if out.sort == "Bool" or not set(value.symbols) <= set(axes):
                    return f"rank-dependent value {value} does not fit"
            elif value in ("true", "false"):
                return None if out.sort == "Bool" else "a boolean literal needs type i1"
            elif value in ("inf", "-inf"):
                return None if floats else "an infinite literal needs a float type"
            elif out.sort == "Bool":
                return "a Bool literal is true or false"
            elif rational(str(value)).denominator != 1 and out.sort == "Int":
                return "an integer literal cannot be a fraction"
        case "iota":
            if out.sort == "Bool" or op.integer("dim") >= len(out.shape):
                return "needs a number type and an existing dimension"
        case "convert":
            if shapes[0] != out.shape or (ins[0].sort == "Real" and not floats):
                return "shapes must agree, and a float converts to a float only"
        case "compare":
            if ins[0] != ins[1] or out != TensorType("i1", shapes[0]):
                return "operands must be of one type, the result i1 of that shape"
            if ins[0].sort == "Bool" and op.text("direction") not in ("EQ", "NE"):
                return "booleans are compared with EQ or NE only"
        case "select":
            if ins[0] != TensorType("i1", out.shape) or ins[1] != out or ins[2] != out:
                return "needs an i1 predicate and two operands of the result type"
        case "broadcast_in_dim":
            dims = op.ints("dims")
            if ins[0].dtype != out.dtype or len(dims) != len(shapes[0]) or list(dims) != sorted(set(dims)):
                return "dims must be strictly increasing, one per operand dimension"
            if any(d >= len(out.shape) for d in dims):
                return "dims must name result dimensions"
            if any(n not in (1, out.shape[d]) for n, d in zip(shapes[0], dims, strict=True)):
                return "an operand dimension must be 1 or the result's"
        case "reshape":
            if ins[0].dtype != out.dtype or ins[0].size != out.size:
                return "must keep the number of elements and the dtype"
        case "transpose":
            perm = op.ints("perm")
            if sorted(perm) != list(range(len(shapes[0]))):
                return "perm is not a permutation of the operand's dimensions"
            if out != TensorType(ins[0].dtype, transposed(shapes[0], perm)):
                return "result type does not follow from perm"
        case "slice":
            return _slice_mismatch(op, ins[0], axes)
        case "pad":
            low, high = op.ints("low"), op.ints("high")
            if ins[1] != TensorType(ins[0].dtype, ()) or len(low) != len(shapes[0]) or len(high) != len(low):
                return "needs a scalar of the same dtype and one low and high per dimension"
            if out != TensorType(ins[0].dtype, padded(shapes[0], low, high)):
                return "result type does not follow from low and high"
        case "concatenate":
            dim = op.integer("dim")
            rank = len(out.shape)
            if dim >= rank or any(t.dtype != out.dtype or len(t.shape) != rank for t in ins):
                return "operands must have the result's dtype and number of dimensions"
            rest = [s[:dim] + s[dim + 1 :] for s in shapes]
            if any(r != out.shape[:dim] + out.shape[dim + 1 :] for r in rest):
                return "operands may differ along dim only"
            if sum(s[dim] for s in shapes) != out.shape[dim]:
                return "sizes along dim must add up"
        case "dot_general":
            return _dot_mismatch(op, ins[0], ins[1])
        case "reduce":
            dims = op.ints("dims")
            if not dims or list(dims) != sorted(set(dims)) or dims[-1] >= len(shapes[0]):
                return "dims must be increasing dimensions of the operand"
            if out != TensorType(ins[0].dtype, reduced(shapes[0], dims)):
                return "result type does not follow from dims"
            if (op.text("kind") in ("and", "or")) != (out.sort == "Bool"):
                return "and/or reduce booleans, the others numbers"
        case "gather":
            axis, batch = op.integer("axis"), op.integer("batch_dims")
            if ins[1].sort != "Int" or axis >= len(shapes[0]) or not batch <= min(axis, len(shapes[1])):
                return "needs integer indices, an existing axis and batch_dims <= axis"
            if shapes[0][:batch] != shapes[1][:batch]:
                return "batch dimensions must agree"
            if out != TensorType(ins[0].dtype, gathered(shapes[0], shapes[1], axis, batch)):
                return "result type does not follow from axis and batch_dims"
        case "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all":
            if ins[0].dtype != out.dtype or len(shapes[0]) != len(out.shape):
                return "must keep dtype and number of dimensions"
            if out.sort == "Bool":
                return "collectives carry numbers"
        case "send" | "recv":
            forms = op.affines("from" if op.name == "recv" else "to")
            if ins and ins[0] != out:
                return "must keep the type"
            if len(forms) != len(axes) or any(not set(f.symbols) <= set(axes) for f in forms):
                return "needs one form in mesh axes for each of them"
        case _:
            raise AssertionError(f"{op.name} has a row and no type rule")
    return None


def _same_type_mismatch(row: Row, ins: list[TensorType], out: TensorType) -> str | None:
    if all(t == out for t in ins) and out.sort in row.sorts:
        return None
    what = "operand and result" if len(ins) == 1 else "operands and result"
    if "Bool" in row.sorts:
        return f"{what} must be i1 of one shape"
    if len(ins) == 1:
        return f"{what} must be of one float type"
    if any(t != out for t in ins) or out.sort == "Bool":
        return f"{what} must be of one number type"
    return "is defined on floats only"


def _slice_mismatch(op: Op, operand: TensorType, axes: Mapping[str, tuple[int, int]]) -> str | None:
    start, stride, out = op.affines("start"), op.ints("stride"), op.type
    rank = len(operand.shape)
    if not len(start) == len(stride) == len(out.shape) == rank or out.dtype != operand.dtype:
        return "needs one start and stride per dimension and the operand's dtype"
    for d in range(rank):
        if stride[d] < 1 or not set(start[d].symbols) <= set(axes):
            return "strides are positive and starts mention mesh axes only"
        lo, hi = start[d].interval(axes)
        if lo < 0 or hi + stride[d] * (out.shape[d] - 1) >= operand.shape[d]:
            return f"leaves the operand along dimension {d}"
    return None


def _dot_mismatch(op: Op, x: TensorType, y: TensorType) -> str | None:
    lb, rb, lc, rc = (op.ints(k) for k in ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"))
    if x.dtype != op.type.dtype or y.dtype != op.type.dtype or op.type.sort == "Bool":
        return "operands and result must be of one number type"
    for dims, rank in ((lb + lc, len(x.shape)), (rb + rc, len(y.shape))):
        if len(set(dims)) != len(dims) or any(d >= rank for d in dims):
            return "batch and contracting dimensions must be distinct and exist"
    if len(lb) != len(rb) or len(lc) != len(rc):
        return "batch and contracting dimensions must pair up"
    if any(x.shape[a] != y.shape[b] for a, b in zip(lb + lc, rb + rc, strict=True)):
        return "paired dimensions must be of equal size"
    want = contracted(x.shape, y.shape, (lc, rc), (lb, rb))
    return None if op.type.shape == want else f"result shape must be {list(want)}"
