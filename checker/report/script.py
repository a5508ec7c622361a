"""A stand-alone numpy script that evaluates both sides of a refuted output on the witness.

It is made of data (the ops that the output rests on, the witness, the layout of the inputs) and of one
evaluator, which shares nothing with this checker. A reader runs it and sees the two numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod
from typing import Any

from ..language.affine import Affine
from ..language.ops import Op
from ..language.plan import Plan
from ..language.proof import Fact, Reduced, Tensor

MOST = 1 << 24
"""Elements of all values of all ranks together; a plain script would not do with more."""

EVALUATOR = '''
import math
from fractions import Fraction

import numpy as np

KIND = {"Real": np.float64, "Int": np.int64, "Bool": np.bool_}
ERF = np.vectorize(math.erf, otypes=[float])
ELEMENTWISE = {
    "add": np.add, "subtract": np.subtract, "negate": np.negative, "multiply": np.multiply,
    "divide": np.divide, "exponential": np.exp, "log": np.log, "sqrt": np.sqrt, "erf": ERF, "abs": np.abs,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sine": np.sin, "cosine": np.cos, "tanh": np.tanh, "power": np.power,
    "logistic": lambda x: 1 / (1 + np.exp(-x)), "maximum": np.maximum, "minimum": np.minimum,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "select": np.where,
}
COMPARE = {"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
           "GE": np.greater_equal}
REDUCE = {"add": np.sum, "max": np.max, "min": np.min, "and": np.all, "or": np.any}


def number(text):
    """A literal: a rational, an infinity, or a truth value."""
    if isinstance(text, bool) or text in ("true", "false"):
        return text in (True, "true")
    return float(text) if "inf" in text else float(Fraction(text))


def at(form, values):
    """An affine form (constant, coefficient, symbol, ...): its value."""
    return form[0] + sum(c * values[s] for c, s in zip(form[1::2], form[2::2]))


def place(rank):
    out = {}
    for axis, size in reversed(MESH):
        rank, out[axis] = divmod(rank, size)
    return out


def owner(rank):
    where = place(rank)
    return next(c for c, box in BOXES.items() if all(lo <= where[a] < hi for a, (lo, hi) in box.items()))


def block(shape, sort, cuts, values):
    """An input of the model that is constant on blocks."""
    out = np.array([number(v) for v in values], KIND[sort]).reshape([len(c) - 1 for c in cuts])
    for dim, line in enumerate(cuts):
        out = np.repeat(out, np.diff(line), axis=dim)
    return out.reshape(shape)


def local(rank, name):
    """An input at a rank, cut from the model's inputs as the input relation says."""
    shape, sort, pieces = LOCAL[owner(rank)][name]
    out = np.full(shape, JUNK if sort == "Real" else 0, KIND[sort])
    for spec, sizes, plan, forms, coef, only_first in pieces:
        where = place(rank)
        factor = 0 if any(where[a] for a in only_first) else coef
        digits = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), int)
        values = {**where, **{f"z{i}": digits[i] for i in range(len(sizes))}}
        here, there = ([np.broadcast_to(at(f, values), digits.shape[1]) for f in fs] for fs in (plan, forms))
        piece = model(spec)[tuple(there)] if there else np.broadcast_to(model(spec), digits.shape[1])
        piece = piece * factor if factor != 1 else piece
        if here:
            out[tuple(here)] = piece
        else:
            out = np.array(piece[0], KIND[sort])
    return out


def compute(name, x, shape, sort, a, where):
    if name in ELEMENTWISE:
        return ELEMENTWISE[name](*x)
    if name == "compare":
        return COMPARE[a["direction"]](*x)
    if name == "convert":
        return x[0].astype(KIND[sort])
    if name == "constant":
        value = at(a["value"], where) if isinstance(a["value"], tuple) else number(a["value"])
        return np.full(shape, value, KIND[sort])
    if name == "iota":
        line = np.arange(shape[a["dim"]]).reshape([-1 if d == a["dim"] else 1 for d in range(len(shape))])
        return np.broadcast_to(line, shape).astype(KIND[sort])
    if name == "broadcast_in_dim":
        inner = [1] * len(shape)
        for dim, size in zip(a["dims"], x[0].shape):
            inner[dim] = size
        return np.broadcast_to(x[0].reshape(inner), shape)
    if name == "transpose":
        return np.transpose(x[0], a["perm"])
    if name == "reshape":
        return x[0].reshape(shape)
    if name == "reduce":
        return REDUCE[a["kind"]](x[0], axis=tuple(a["dims"]))
    if name == "slice":
        return x[0][tuple(slice(b, b + s * (n - 1) + 1, s) for b, s, n in
                          zip([at(f, where) for f in a["start"]], a["stride"], shape))]
    if name == "pad":
        return np.pad(x[0], list(zip(a["low"], a["high"])), constant_values=x[1])
    if name == "concatenate":
        return np.concatenate(x, axis=a["dim"])
    if name == "gather":
        batch, axis = a["batch_dims"], a["axis"]
        if not batch:
            return np.take(x[0], x[1], axis=axis)
        lead = x[0].shape[:batch]
        rows = [np.take(x[0][i], x[1][i], axis=axis - batch) for i in np.ndindex(lead)]
        return np.stack(rows).reshape(shape)
    if name == "dot_general":
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        left, right = ([None] * v.ndim for v in x)
        for i, j in zip(a["lhs_batch"] + a["lhs_contract"], a["rhs_batch"] + a["rhs_contract"]):
            left[i] = right[j] = next(letters)
        for side in (left, right):
            side[:] = [s or next(letters) for s in side]
        kept = [left[i] for i in a["lhs_batch"]]
        kept += [s for i, s in enumerate(left) if i not in a["lhs_batch"] + a["lhs_contract"]]
        kept += [s for j, s in enumerate(right) if j not in a["rhs_batch"] + a["rhs_contract"]]
        return np.einsum("".join(left) + "," + "".join(right) + "->" + "".join(kept), *x)
    raise ValueError(name)


MADE = {}


def model(name):
    return value(-1, name)


def ends(name, a, rank):
    """What a collective or a message is made of: ranks and values, in group order. A send is its sender's."""
    if name not in ("send", "recv"):
        line = next(line for line in GROUPS[a["group"]] if rank in line)
    elif name == "send":
        line = [rank]
    else:
        source, where = 0, place(rank)
        for form, (axis, size) in zip(a["from"], MESH):
            source = source * size + at(form, where)
        line = [source]
    return [(r, MEETS[a["seq"]][owner(r)]) for r in line]


def meeting(name, a, rank, parts):
    if name in ("send", "recv"):
        return parts[0]
    mine = next(line for line in GROUPS[a["group"]] if rank in line).index(rank)
    if name == "all_gather":
        return np.concatenate(parts, axis=a["dim"])
    if name == "all_to_all":
        cut = [np.split(p, len(parts), axis=a["split_dim"])[mine] for p in parts]
        return np.concatenate(cut, axis=a["concat_dim"])
    total = REDUCE[a["kind"]](np.stack(parts), axis=0)
    return total if name == "all_reduce" else np.split(total, len(parts), axis=a["dim"])[mine]


OPS = {space: {op[0]: op for op in ops} for space, ops in PROGRAMS.items()}


def value(rank, name):
    """A value at a rank; the model is rank -1. Only what it rests on is computed, in whatever order."""
    stack = [(rank, name)]
    while stack:
        r, n = stack[-1]
        if (r, n) in MADE:
            stack.pop()
        elif r < 0 and n in INPUTS:
            MADE[r, n] = block(*INPUTS[n])
        elif r >= 0 and n in LOCAL[owner(r)]:
            MADE[r, n] = local(r, n)
        else:
            _, op, operands, shape, sort, a = OPS["s" if r < 0 else owner(r)][n]
            needs = ends(op, a, r) if "seq" in a else [(r, o) for o in operands]
            missing = [need for need in needs if need not in MADE]
            if missing:
                stack += missing
                continue
            x = [MADE[need] for need in needs]
            where = place(r) if r >= 0 else {}
            made = meeting(op, a, r, x) if "seq" in a else compute(op, x, shape, sort, a, where)
            MADE[r, n] = np.asarray(made)
    return MADE[rank, name]


np.seterr(all="ignore")
parts = [value(r, owner_value) for r, owner_value in SIDES]
here = tuple(at(f, AT) for f in PLAN_INDEX)
there = tuple(at(f, AT) for f in SPEC_INDEX)
plan = REDUCE[MERGE](np.stack([p[here] for p in parts]), axis=0)
print(f"plan:          {float(plan):.9g}")
print(f"specification: {float(number(COEF) * model(SPEC)[there]):.9g}")
'''


def script(flat: Plan, fact: Fact, witness: dict[str, Any], symbols: dict[str, int]) -> str | None:
    """The script for a claimed fact of a plan without calls; None if it would be too large to run plainly."""
    cone = _Cone(flat)
    members = fact.lhs.of if isinstance(fact.lhs, Reduced) else (fact.lhs,)
    for tensor in (*members, fact.rhs):
        if isinstance(tensor, Tensor):
            cone.need(tensor.space, tensor.value)
    if cone.elements() > MOST or not isinstance(fact.rhs, Tensor):
        return None
    sides, kept = _sides(flat, fact, symbols)
    data: dict[str, object] = {
        "MESH": list(flat.mesh),
        "BOXES": {c: flat.box(c) for c in flat.classes},
        "GROUPS": {n: [list(line) for line in flat.lines(flat.groups[n])] for n in sorted(cone.groups)},
        "MEETS": {s: {c: op.operands[0] for c, op in cone.meets[s].items()} for s in sorted(cone.meets)},
        "JUNK": float(Fraction(str(witness["junk"]))),
        "INPUTS": {
            n: (list(t.shape), t.sort, witness["inputs"][n]["cuts"], witness["inputs"][n]["values"])
            for n, t in flat.spec.inputs.items()
            if ("s", n) in cone.seen
        },
        "LOCAL": {
            c: {n: _local(flat, c, n) for n in cls.program.inputs if (c, n) in cone.seen}
            for c, cls in flat.classes.items()
        },
        "PROGRAMS": {s: [_op(op) for op in flat.program(s).ops if (s, op.result) in cone.seen] for s in
                     ("s", *flat.classes)},
        "SIDES": sides,
        "MERGE": fact.lhs.kind if isinstance(fact.lhs, Reduced) else "add",
        "PLAN_INDEX": [_form(f) for f in fact.lhs_index[kept:]],
        "SPEC_INDEX": [_form(f) for f in fact.rhs_index],
        "SPEC": fact.rhs.value,
        "COEF": str(fact.coef),
        "AT": symbols,
    }  # fmt: skip
    head = '"""Both sides of an output that differs, on a witness of TrainVerify. Needs numpy only."""\n'
    return head + "".join(f"{name} = {_literal(value)}\n" for name, value in data.items()) + EVALUATOR


def _literal(value: object) -> str:
    """A Python literal; of a long one each entry has a line."""
    if isinstance(value, dict) and len(repr(value)) > 100:
        return "{\n" + "".join(f" {key!r}: {_literal(item)},\n" for key, item in value.items()) + "}"
    if isinstance(value, list) and len(repr(value)) > 100:
        return "[\n" + "".join(f"  {item!r},\n" for item in value) + "]"
    return repr(value)


class _Cone:
    """What a value rests on: by space and name, with the groups and meetings on the way."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seen: set[tuple[str, str]] = set()
        self.groups: set[str] = set()
        self.meets: dict[int, Mapping[str, Op]] = {}

    def need(self, space: str, value: str) -> None:
        stack = [(space, value)]
        while stack:
            here = stack.pop()
            if here in self.seen:
                continue
            self.seen.add(here)
            op = self.plan.program(here[0]).producers.get(here[1])
            if op is None:
                if here[0] != "s":
                    stack += [("s", r.spec) for r in self.plan.inputs if r.plan == here[1]]
            elif "seq" in op.attrs:
                self.groups |= {op.attrs["group"]} if "group" in op.attrs else set()
                met = self.meets[op.attrs["seq"]] = self.plan.meets(op)
                stack += [(c, other.operands[0]) for c, other in met.items()]
            else:
                stack += [(here[0], operand) for operand in op.operands]

    def elements(self) -> int:
        ranks = {c: prod(hi - lo for lo, hi in cls.box) for c, cls in self.plan.classes.items()}
        return sum(ranks.get(s, 1) * self.plan.program(s).types[n].size for s, n in self.seen)


def _sides(plan: Plan, fact: Fact, symbols: dict[str, int]) -> tuple[list[tuple[int, str]], int]:
    """Ranks and values whose element, or whose reduction, is the plan's side; how many "
    "indices are a rank's."""
    gone = fact.lhs.axes if isinstance(fact.lhs, Reduced) else ()
    of = fact.lhs.of if isinstance(fact.lhs, Reduced) else (fact.lhs,)
    kept = [a for a, _ in plan.mesh if a not in gone]
    at = {
        a: f.const + sum(c * symbols[s] for s, c in f.terms)
        for a, f in zip(kept, fact.lhs_index, strict=False)
    }
    sides = []
    for rank in range(prod(n for _, n in plan.mesh)):
        rest, where = rank, dict[str, int]()
        for axis, size in reversed(plan.mesh):
            rest, where[axis] = divmod(rest, size)
        if all(where[a] == at[a] for a in kept):
            mine = [t for t in of if isinstance(t, Tensor) and _owns(plan, t.space, where)]
            sides += [(rank, t.value) for t in mine]
    return sides, len(kept)


def _owns(plan: Plan, space: str, where: dict[str, int]) -> bool:
    return space in plan.classes and all(lo <= where[a] < hi for a, (lo, hi) in plan.box(space).items())


def _local(plan: Plan, space: str, name: str) -> tuple[object, ...]:
    """Type and pieces of an input of a class."""
    kind = plan.classes[space].program.inputs[name]
    pieces = [
        (
            r.spec,
            list(p.sizes),
            [_form(f) for f in p.plan],
            [_form(f) for f in p.spec],
            float(r.coef) if r.coef.denominator > 1 else int(r.coef),
            list(r.reduce[1]) if r.reduce and r.reduce[0] == "add" else [],
        )
        for r in plan.inputs
        if r.plan == name
        for p in r.pieces
        if p.cls == space
    ]
    return list(kind.shape), kind.sort, pieces


def _form(form: Affine) -> tuple[object, ...]:
    return (form.const, *(x for s, c in form.terms for x in (c, s)))


def _op(op: Op) -> tuple[object, ...]:
    attrs = {k: _attribute(v) for k, v in op.attrs.items()}
    return op.result, op.name, list(op.operands), list(op.type.shape), op.type.sort, attrs


def _attribute(value: object) -> object:
    if isinstance(value, Affine):
        return _form(value)
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, tuple):
        return [_form(v) if isinstance(v, Affine) else v for v in value]
    return value
