"""Programs and plans written by hand: a typed builder for notebooks and tests.

One method per op of ``docs/format.md``; result types are inferred, mistakes are a :class:`FormatError` at
the call that makes them, and every op remembers the line of Python that asked for it::

    b = ProgramBuilder(mesh)                      # without a mesh: a specification
    x, w = b.input("x", "f32[8,4]"), b.input("w", "f32[4,6]")
    b.output("y", b.all_reduce(x @ w, "tp") * 0.5)
    plan = build_plan(name="demo", mesh=mesh, specification=spec.build(), classes=b.build(),
                      inputs={"x": {"tp": Shard(1)}, "w": {"tp": Shard(0)}}, outputs={"y": {}})
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import PurePath

from ..errors import FormatError
from ..plan.affine import Affine, Range
from ..plan.checking import check_plan, collective_mismatch
from ..plan.names import printable
from ..plan.ops import ATTRS, CALL, COLLECTIVES, MESSAGES, PACKED
from ..plan.placements import Placement, relate
from ..plan.plan import Function, Group, Mesh, Plan, RankClass, Relation
from ..plan.program import Attr, Loc, Op, Program
from ..plan.rows import lowered
from ..plan.schedule import spans
from ..plan.shapes import concatenated, contracted, gathered, padded, reduced, transposed
from ..plan.timing import needed_version
from ..plan.type_rules import check_program, mismatch
from ..plan.types import TensorType, format_rational

#: A literal. A float stands for the decimal number it prints as: ``0.1`` is exactly 1/10.
Number = int | float | Fraction
#: A process group by the mesh axes it factorises over (row-major as listed), or rank by rank.
GroupLike = Sequence[str] | Group
#: Per specification tensor: placements of the plan tensor of the same name, or a relation in full.
Layouts = Mapping[str, Mapping[str, Placement]] | Sequence[Relation]
_HERE = os.path.dirname(__file__)


def exact(value: Number) -> Fraction:
    """The rational that a literal stands for; infinities and NaN are a ``FormatError``."""
    try:
        return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    except ValueError as error:
        raise FormatError(f"{value!r} is not a rational number") from error


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a program under construction. Operators need equal types; numbers are splatted."""

    builder: ProgramBuilder = field(repr=False)
    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    def _binary(self, op: str, other: Value | Number, swapped: bool = False) -> Value:
        right = other if isinstance(other, Value) else self.builder.constant(other, self.type)
        return self.builder.op(op, (right, self) if swapped else (self, right), self.type)

    def __add__(self, other: Value | Number) -> Value:
        return self._binary("add", other)

    def __radd__(self, other: Number) -> Value:
        return self._binary("add", other, swapped=True)

    def __sub__(self, other: Value | Number) -> Value:
        return self._binary("subtract", other)

    def __rsub__(self, other: Number) -> Value:
        return self._binary("subtract", other, swapped=True)

    def __mul__(self, other: Value | Number) -> Value:
        return self._binary("multiply", other)

    def __rmul__(self, other: Number) -> Value:
        return self._binary("multiply", other, swapped=True)

    def __truediv__(self, other: Value | Number) -> Value:
        return self._binary("divide", other)

    def __rtruediv__(self, other: Number) -> Value:
        return self._binary("divide", other, swapped=True)

    def __neg__(self) -> Value:
        return self.builder.negate(self)

    def __matmul__(self, other: Value) -> Value:
        """Matrix product over the last dimension; all but two dimensions of ``other`` are batch."""
        batch = tuple(range(len(other.shape) - 2))
        if not self.shape or len(other.shape) < 2:
            raise FormatError(f"{self.type} @ {other.type} is not a matrix product")
        contract = ((len(self.shape) - 1,), (len(batch),))
        return self.builder.dot(self, other, contract=contract, batch=(batch, batch))

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Value:
        """``x[1:3, ::2]``: one slice per leading dimension, bounds as in Python, positive strides."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self.shape):
            raise FormatError(f"{len(keys)} slices of {self.type}")
        keys += (slice(None),) * (len(self.shape) - len(keys))
        bounds = [k.indices(n) for k, n in zip(keys, self.shape, strict=True)]
        sizes = [len(range(*b)) for b in bounds]
        return self.builder.slice(self, [b[0] for b in bounds], sizes, [b[2] for b in bounds])

    @property
    def T(self) -> Value:
        """The matrix transposed."""
        return self.builder.transpose(self, (1, 0))

    def sum(self, *dims: int) -> Value:
        """Sum over ``dims``, or over all dimensions if none is given."""
        return self.builder.reduce(self, dims or tuple(range(len(self.shape))))

    def reshape(self, *shape: int) -> Value:
        return self.builder.reshape(self, shape)

    def transpose(self, *perm: int) -> Value:
        return self.builder.transpose(self, perm)

    def convert(self, dtype: str) -> Value:
        return self.builder.convert(self, dtype)

    def like(self, other: Value, *dims: int) -> Value:
        """Broadcast to the shape of ``other``; dimension ``k`` becomes its dimension ``dims[k]``."""
        return self.builder.broadcast(self, other.shape, dims)


@dataclass(frozen=True)
class SourcedProgram(Program):
    """A program whose locations index its own ``sources``; :func:`build_plan` merges them."""

    sources: tuple[str, ...] = ()
    segments: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)


class ProgramBuilder:
    """Collects one program. With a ``mesh`` it is the program of a rank class, else a specification.

    ``groups`` are the process groups of collectives (default: one per mesh axis, under its name); ``box`` is
    the rank class (default: the whole mesh), which bounds rank-dependent slices. ``time`` are time axes: the
    program runs once per coordinate, and a group over one joins these runs.
    """

    def __init__(
        self,
        mesh: Mapping[str, int] | None = None,
        groups: Mapping[str, GroupLike] | None = None,
        box: Mapping[str, Range] | None = None,
        time: Mapping[str, int] | None = None,
    ) -> None:
        self._mesh = None if mesh is None else grid(mesh, time)
        self._groups = {} if self._mesh is None else expand_groups(self._mesh, groups)
        self._box: dict[str, Range] = {} if self._mesh is None else full_box(self._mesh.axes)
        self._box |= dict(box or {})
        self._inputs: dict[str, TensorType] = {}
        self._ops: list[Op] = []
        self._outputs: dict[str, str] = {}
        self._sources: list[str] = []
        self._rendezvous = 0
        self._segment: str | None = None
        self._owners: list[str | None] = []

    # --- the program ---

    def input(self, name: str, type_: TensorType | str) -> Value:
        if name in self._inputs:
            raise FormatError(f"input {name} is declared twice")
        self._inputs[name] = _type(type_)
        return Value(self, name, self._inputs[name])

    def output(self, name: str, value: Value) -> None:
        if name in self._outputs:
            raise FormatError(f"output {name} is declared twice")
        self._outputs[name] = self._own(value).name

    def build(self) -> SourcedProgram:
        """The checked program."""
        program = SourcedProgram(
            dict(self._inputs),
            tuple(self._ops),
            dict(self._outputs),
            sources=tuple(self._sources),
            segments=self._spans(),
        )
        plain = lowered(program, self._groups, self._mesh)
        program = replace(program, ops=plain.ops, packing=plain.packing)
        check_program(program, None if self._mesh is None else self._box)
        return program

    @contextmanager
    def segment(self, name: str) -> Iterator[None]:
        """Ops that are made here are a part of the program that a schedule orders; inner segments win.

        Messages, and what joins runs, are parts of their own. Collectives over ranks may stand inside.
        """
        outer, self._segment = self._segment, name
        try:
            yield
        finally:
            self._segment = outer

    def _spans(self) -> dict[str, tuple[Range, ...]]:
        """The segments as spans of op numbers."""
        found: dict[str, list[int]] = {}
        for i, (op, owner) in enumerate(zip(self._ops, self._owners, strict=True)):
            if owner is None or op.name in MESSAGES or self._over_time(op):
                continue
            found.setdefault(owner, []).append(i)
        return {name: spans(numbers) for name, numbers in found.items()}

    def _over_time(self, op: Op) -> bool:
        return op.name in COLLECTIVES and self._group(op.text("group")).steps > 0

    def axis_index(self, axis: str) -> Affine:
        """The rank's coordinate along a mesh axis, for slices and constants."""
        if axis not in self._box:
            raise FormatError(f"the program has no mesh axis {axis!r}")
        return Affine.symbol(axis)

    def op(
        self,
        name: str,
        ins: Sequence[Value],
        type_: TensorType | str,
        attrs: Mapping[str, Attr] | None = None,
    ) -> Value:
        """Append any op with an explicit result type; the other methods infer it."""
        op = Op(
            f"%{len(self._ops)}",
            name,
            tuple(self._own(v).name for v in ins),
            _type(type_),
            dict(attrs or {}),
            self._caller(),
        )
        known = PACKED[name][1] if name in PACKED else ATTRS.get(name)
        if known is None or set(op.attrs) != set(known):
            raise FormatError(f"{name} is not an op with the attributes {sorted(op.attrs)}")
        problem = None if name in PACKED else mismatch(op, [v.type for v in ins], self._box)
        if problem is None and name in COLLECTIVES:
            size = self._group(op.text("group")).size
            problem = collective_mismatch(op, ins[0].type, size)
        if problem:
            raise FormatError(f"{name} : ({', '.join(str(v.type) for v in ins)}) -> {op.type}: {problem}")
        self._ops.append(op)
        self._owners.append(self._segment)
        return Value(self, op.out, op.type)

    # --- literals ---

    def constant(self, value: Number | str | bool | Affine, type_: TensorType | str) -> Value:
        """A splat: a number, a bool, ``"inf"``, ``"-inf"``, ``"p/q"``, or an affine form in mesh axes."""
        type_ = _type(type_)
        literal: Attr
        if isinstance(value, bool):
            literal = "true" if value else "false"
        elif isinstance(value, Affine):
            literal = format_rational(value.const) if value.is_const else value
        elif isinstance(value, str):
            literal = value
        elif isinstance(value, float) and value in (float("inf"), float("-inf")):
            literal = str(value)
        else:
            literal = format_rational(exact(value))
        return self.op("constant", (), type_, {"value": literal})

    def iota(self, type_: TensorType | str, dim: int) -> Value:
        """A tensor whose element is its index along ``dim``."""
        return self.op("iota", (), type_, {"dim": dim})

    # --- elementwise ---

    def _unary(self, name: str, x: Value) -> Value:
        return self.op(name, (x,), x.type)

    def negate(self, x: Value) -> Value:
        return self._unary("negate", x)

    def exponential(self, x: Value) -> Value:
        return self._unary("exponential", x)

    def log(self, x: Value) -> Value:
        return self._unary("log", x)

    def sqrt(self, x: Value) -> Value:
        return self._unary("sqrt", x)

    def rsqrt(self, x: Value) -> Value:
        return self._unary("rsqrt", x)

    def sine(self, x: Value) -> Value:
        return self._unary("sine", x)

    def cosine(self, x: Value) -> Value:
        return self._unary("cosine", x)

    def tanh(self, x: Value) -> Value:
        return self._unary("tanh", x)

    def logistic(self, x: Value) -> Value:
        return self._unary("logistic", x)

    def erf(self, x: Value) -> Value:
        """The error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0."""
        return self._unary("erf", x)

    def abs(self, x: Value) -> Value:
        return self._unary("abs", x)

    def logical_not(self, p: Value) -> Value:
        return self._unary("not", p)

    def convert(self, x: Value, dtype: str) -> Value:
        return self.op("convert", (x,), _type(f"{dtype}{str(x.type)[len(x.type.dtype) :]}"))

    def maximum(self, x: Value, y: Value) -> Value:
        return self.op("maximum", (x, y), x.type)

    def minimum(self, x: Value, y: Value) -> Value:
        return self.op("minimum", (x, y), x.type)

    def power(self, x: Value, y: Value) -> Value:
        return self.op("power", (x, y), x.type)

    def logical_and(self, p: Value, q: Value) -> Value:
        return self.op("and", (p, q), p.type)

    def logical_or(self, p: Value, q: Value) -> Value:
        return self.op("or", (p, q), p.type)

    def compare(self, x: Value, y: Value | Number, direction: str) -> Value:
        """``direction`` is EQ NE LT LE GT or GE."""
        if direction not in ATTRS["compare"]["direction"]:
            raise FormatError(f"compare has no direction {direction!r}")
        right = y if isinstance(y, Value) else self.constant(y, x.type)
        return self.op("compare", (x, right), TensorType("i1", x.shape), {"direction": direction})

    def select(self, p: Value, x: Value, y: Value) -> Value:
        return self.op("select", (p, x, y), x.type)

    # --- data movement ---

    def broadcast(self, x: Value, shape: Sequence[int], dims: Sequence[int] = ()) -> Value:
        """``broadcast_in_dim``: dimension ``k`` of ``x`` becomes dimension ``dims[k]`` of the result."""
        return self.op(
            "broadcast_in_dim", (x,), TensorType(x.type.dtype, tuple(shape)), {"dims": tuple(dims)}
        )

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return self.op("reshape", (x,), TensorType(x.type.dtype, tuple(shape)))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        shape = transposed(x.shape, [_dim(x, p) for p in perm])
        return self.op("transpose", (x,), TensorType(x.type.dtype, shape), {"perm": tuple(perm)})

    def slice(
        self,
        x: Value,
        start: Sequence[int | Affine],
        sizes: Sequence[int],
        stride: Sequence[int] | None = None,
    ) -> Value:
        """``sizes[d]`` elements along each dimension, from ``start[d]`` (which may mention mesh axes)."""
        forms = tuple(s if isinstance(s, Affine) else Affine(s) for s in start)
        attrs: dict[str, Attr] = {"start": forms, "stride": tuple(stride or (1,) * len(forms))}
        if any(n < 1 for n in sizes):
            raise FormatError(f"slice of {x.type} to the sizes {list(sizes)} is empty")
        return self.op("slice", (x,), TensorType(x.type.dtype, tuple(sizes)), attrs)

    def pad(self, x: Value, low: Sequence[int], high: Sequence[int], value: Number | bool = 0) -> Value:
        fill = self.constant(value, TensorType(x.type.dtype, ()))
        if not len(low) == len(high) == len(x.shape):
            raise FormatError(f"pad of {x.type} needs one low and one high per dimension")
        shape = padded(x.shape, low, high)
        attrs: dict[str, Attr] = {"low": tuple(low), "high": tuple(high)}
        return self.op("pad", (x, fill), TensorType(x.type.dtype, shape), attrs)

    def concatenate(self, xs: Sequence[Value], dim: int) -> Value:
        if not xs:
            raise FormatError("concatenate of no tensors")
        for x in xs:
            _dim(x, dim)
        shape = concatenated([x.shape for x in xs], dim)
        return self.op("concatenate", xs, TensorType(xs[0].type.dtype, shape), {"dim": dim})

    def gather(self, x: Value, index: Value, axis: int = 0, batch_dims: int = 0) -> Value:
        """Rows of ``x`` along ``axis`` by an integer tensor; ``batch_dims`` leading dimensions are shared."""
        _dim(x, axis)
        shape = gathered(x.shape, index.shape, axis, batch_dims)
        attrs: dict[str, Attr] = {"axis": axis, "batch_dims": batch_dims}
        return self.op("gather", (x, index), TensorType(x.type.dtype, shape), attrs)

    # --- contractions ---

    def dot(
        self,
        x: Value,
        y: Value,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> Value:
        """``dot_general`` by (dimensions of ``x``, of ``y``); the result has batch, free x, free y."""
        (lc, rc), (lb, rb) = contract, batch
        for d in lb:
            _dim(x, d)
        shape = contracted(x.shape, y.shape, contract, batch)
        attrs: dict[str, Attr] = {
            "lhs_batch": tuple(lb),
            "rhs_batch": tuple(rb),
            "lhs_contract": tuple(lc),
            "rhs_contract": tuple(rc),
        }
        return self.op("dot_general", (x, y), TensorType(x.type.dtype, shape), attrs)

    def reduce(self, x: Value, dims: Sequence[int], kind: str = "add") -> Value:
        """``kind`` is add max min and or."""
        if kind not in ATTRS["reduce"]["kind"]:
            raise FormatError(f"reduce has no kind {kind!r}")
        shape = reduced(x.shape, dims)
        attrs: dict[str, Attr] = {"dims": tuple(sorted(dims)), "kind": kind}
        return self.op("reduce", (x,), TensorType(x.type.dtype, shape), attrs)

    # --- collectives: ``seq`` numbers the rendezvous of this program in order unless it is given ---

    def all_reduce(self, x: Value, group: str, kind: str = "add", seq: int | None = None) -> Value:
        if kind not in ATTRS["all_reduce"]["kind"]:
            raise FormatError(f"all_reduce has no kind {kind!r}")
        return self._collective("all_reduce", x, x.shape, seq, {"group": group, "kind": kind})

    def all_gather(self, x: Value, group: str, dim: int = 0, seq: int | None = None) -> Value:
        shape = self._scaled(x, dim, self._group(group).size, 1)
        return self._collective("all_gather", x, shape, seq, {"group": group, "dim": dim})

    def reduce_scatter(self, x: Value, group: str, dim: int = 0, seq: int | None = None) -> Value:
        shape = self._scaled(x, dim, 1, self._group(group).size)
        attrs: dict[str, Attr] = {"group": group, "kind": "add", "dim": dim}
        return self._collective("reduce_scatter", x, shape, seq, attrs)

    def all_to_all(
        self, x: Value, group: str, split_dim: int, concat_dim: int, seq: int | None = None
    ) -> Value:
        size = self._group(group).size
        shape = list(self._scaled(x, split_dim, 1, size))
        shape[_dim(x, concat_dim)] *= size
        attrs: dict[str, Attr] = {"group": group, "split_dim": split_dim, "concat_dim": concat_dim}
        return self._collective("all_to_all", x, tuple(shape), seq, attrs)

    def send(self, x: Value, seq: int, **to: int | Affine) -> Value:
        """To the rank at these coordinates; those that are not named stay. The result is ``x``."""
        return self.op("send", (x,), x.type, {"seq": seq, "to": self._there(to)})

    def recv(self, type_: TensorType | str, seq: int, **source: int | Affine) -> Value:
        """What the rank at these coordinates sends under ``seq``; those that are not named stay."""
        return self.op("recv", (), type_, {"seq": seq, "from": self._there(source)})

    def _there(self, named: Mapping[str, int | Affine]) -> tuple[Affine, ...]:
        unknown = [axis for axis in named if axis not in self._box]
        if unknown:
            raise FormatError(f"the program has no mesh axis {unknown[0]!r}")
        forms = {a: Affine.symbol(a) for a in self._box} | dict(named)
        return tuple(f if isinstance(f, Affine) else Affine(f) for f in forms.values())

    def _collective(
        self, name: str, x: Value, shape: tuple[int, ...], seq: int | None, attrs: Mapping[str, Attr]
    ) -> Value:
        number = self.rendezvous() if seq is None else seq
        out = self.op(name, (x,), TensorType(x.type.dtype, shape), dict(attrs) | {"seq": number})
        self._rendezvous = max(self._rendezvous, number + 1)
        return out

    @staticmethod
    def _scaled(x: Value, dim: int, times: int, over: int) -> tuple[int, ...]:
        if x.shape[_dim(x, dim)] % over:
            raise FormatError(f"dimension {dim} of {x.type} does not divide over {over} ranks")
        return tuple(n * times // over if d == dim else n for d, n in enumerate(x.shape))

    def rendezvous(self) -> int:
        """The next free ``seq``, for an op that is appended by name."""
        self._rendezvous += 1
        return self._rendezvous - 1

    def group_size(self, name: str) -> int:
        return self._group(name).size

    def call(self, function: str, body: Program, instance: int, *operands: Value) -> tuple[Value, ...]:
        """The results of one instance of a function, whose ``body`` is that of this program's class."""
        if [v.type for v in operands] != list(body.inputs.values()):
            raise FormatError(f"operands of {function} {instance} are not of the types of its inputs")
        names, results = tuple(self._own(v).name for v in operands), []
        for i, value in enumerate(body.outputs.values()):
            attrs: dict[str, Attr] = {"function": function, "instance": instance, "output": i}
            op = Op(f"%{len(self._ops)}", CALL, names, body.type_of(value), attrs)
            self._ops.append(op)
            self._owners.append(self._segment)
            results.append(Value(self, op.out, op.type))
        return tuple(results)

    # --- helpers ---

    def _group(self, name: str) -> Group:
        if name not in self._groups:
            known = ", ".join(self._groups) or "none: a specification has no ranks"
            raise FormatError(f"no process group {name!r} (known: {known})")
        return self._groups[name]

    def _own(self, value: Value) -> Value:
        if value.builder is not self:
            raise FormatError(f"{value.name} : {value.type} belongs to another program")
        return value

    def _caller(self) -> Loc | None:
        """The innermost frame outside this folder."""
        frame = sys._getframe(1)
        while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
            frame = frame.f_back
        path = frame.f_code.co_filename
        if path not in self._sources:
            self._sources.append(path)
        return Loc(self._sources.index(path), frame.f_lineno, printable(frame.f_code.co_name))


def _type(type_: TensorType | str) -> TensorType:
    return TensorType.parse(str(type_))


def _dim(x: Value, dim: int) -> int:
    if not 0 <= dim < len(x.shape):
        raise FormatError(f"{x.type} has no dimension {dim}")
    return dim


def grid(mesh: Mapping[str, int], time: Mapping[str, int] | None) -> Mesh:
    """All axes, time first."""
    both = set(mesh) & set(time or {})
    if both:
        raise FormatError(f"{min(both)} is a time axis and a mesh axis")
    return Mesh(dict(time or {}) | dict(mesh), tuple(time or ()))


def _group(mesh: Mesh, axes: tuple[str, ...]) -> Group:
    """A factorised group, of ranks or of the runs of one rank."""
    over = [a for a in axes if a in mesh.time]
    if len(over) not in (0, len(axes)):
        raise FormatError(f"a group over {list(axes)} joins ranks and runs")
    return (
        Group(axes, (), math.prod(mesh.axes[a] for a in axes)) if over else Group(axes, mesh.rank_lists(axes))
    )


def full_box(mesh: Mapping[str, int]) -> dict[str, Range]:
    """All coordinates of a mesh."""
    return {axis: (0, size) for axis, size in mesh.items()}


def expand_groups(mesh: Mesh, groups: Mapping[str, GroupLike] | None) -> dict[str, Group]:
    """Rank lists of process groups; by default every mesh axis is a group under its own name."""
    out = {}
    for name, group in ({a: (a,) for a in mesh.axes} if groups is None else groups).items():
        if isinstance(group, Group):
            out[name] = group
            continue
        axes = tuple(group)
        if not set(axes) <= set(mesh.axes) or not axes:
            raise FormatError(f"group {name} over {list(axes)}: the mesh has {list(mesh.axes)}")
        out[name] = _group(mesh, axes)
    return out


def build_plan(
    *,
    name: str,
    mesh: Mapping[str, int],
    specification: Program,
    classes: Program | Mapping[str, tuple[Mapping[str, Range], Program]],
    inputs: Layouts,
    outputs: Layouts,
    time: Mapping[str, int] | None = None,
    groups: Mapping[str, GroupLike] | None = None,
    ranges: Mapping[str, Range] | None = None,
    provenance: Mapping[str, object] | None = None,
    given: Iterable[str] = (),
    constants: Iterable[str] = (),
    functions: Mapping[str, Function] | None = None,
) -> Plan:
    """A checked plan.

    ``classes`` is one program that every rank runs, or per class name its box (axes left out are whole) and
    program. ``inputs`` and ``outputs`` are relations, or placements per specification tensor: ``{"w": {"tp":
    Shard(0)}}`` places the plan tensor ``w``, replicated on the other axes. ``given`` names inputs that
    every step is given anew, ``constants`` those that no step changes; the others are states. ``time`` are
    axes along which every rank runs its program once per coordinate, such as microbatches. ``functions`` have
    the bodies that programs call.
    """
    axes = grid(mesh, time)
    if isinstance(classes, Program):
        classes = {"c0": ({}, classes)}
    paths: list[str] = []
    programs = [_rebased(p, paths) for p in (specification, *(p for _, p in classes.values()))]
    bodies = {
        label: replace(
            f,
            specification=_rebased(f.specification, paths),
            classes={c: _rebased(p, paths) for c, p in f.classes.items()},
            roles={r: full_box(axes.without(f.along)) | dict(box) for r, box in f.roles.items()},
        )
        for label, f in (functions or {}).items()
    }
    ranked = tuple(
        RankClass(label, full_box(axes.axes) | dict(box), program)
        for (label, (box, _)), program in zip(classes.items(), programs[1:], strict=True)
    )

    def relations(layouts: Layouts, tensors: Mapping[str, TensorType]) -> tuple[Relation, ...]:
        if not isinstance(layouts, Mapping):
            return tuple(layouts)
        unknown = [n for n in layouts if n not in tensors]
        if unknown:
            raise FormatError(f"the specification has no {unknown[0]} to relate")
        return tuple(relate(n, tensors[n].shape, p, axes, ranked) for n, p in layouts.items())

    types = programs[0].types()
    plan = Plan(
        name,
        axes,
        expand_groups(axes, groups),
        _short(paths),
        programs[0],
        ranked,
        relations(inputs, programs[0].inputs),
        relations(outputs, {n: types[v] for n, v in programs[0].outputs.items()}),
        dict(ranges or {}),
        dict(provenance or {}),
        bodies,
        given=tuple(sorted(given)),
        constants=tuple(sorted(constants)),
    )
    plan = replace(plan, version=needed_version(plan))
    check_plan(plan)
    return plan


def _rebased(program: Program, paths: list[str]) -> Program:
    """A plain program whose locations index ``paths``, which grows by the program's own sources."""
    own = program.sources if isinstance(program, SourcedProgram) else ()
    paths.extend(p for p in own if p not in paths)

    def moved(ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(
            op
            if op.loc is None or not own
            else replace(op, loc=replace(op.loc, source=paths.index(own[op.loc.source])))
            for op in ops
        )

    ops, rows = moved(program.ops), program.rows
    packing = None if rows is None else replace(rows, ops=moved(rows.ops), plain=ops)
    return Program(program.inputs, ops, program.outputs, packing)


def _short(paths: Sequence[str]) -> tuple[str, ...]:
    """The shortest tail of each path that tells it from the others: plans do not name machines."""
    parts = [PurePath(p).parts for p in paths]
    depth = 1
    while depth < max(map(len, parts), default=0) and len({p[-depth:] for p in parts}) < len(parts):
        depth += 1
    return tuple(printable("/".join(p[-depth:])) for p in parts)
