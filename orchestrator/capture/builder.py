"""Builds IR programs: one method per op that infers the result type, with sharing of equal pure ops.

Only rewrites that are identities of data movement are applied (a reshape of a reshape, a full slice, …); no
arithmetic is ever simplified, so the emitted ops mirror the recorded ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.ops import COLLECTIVES, ELEMENTWISE, OPS
from certificates.plan.program import Attr
from certificates.plan.shapes import concatenated, contracted, gathered, padded, reduced, transposed
from certificates.plan.types import TensorType, format_rational

from .errors import Frame as Frame
from .errors import LoweringError
from .roots import meant

Literal = bool | int | float | Fraction
#: Half-open range of each integer type. Arithmetic of the small ones wraps around in ordinary programs.
INTEGERS = {
    **{f"i{n}": (-(1 << (n - 1)), 1 << (n - 1)) for n in (8, 16, 32, 64)},
    "u8": (0, 256),
}
_SMALL = frozenset(("i8", "i16", "u8"))
#: Stands for a value that has no meaning in a plan; no op of a plan file.
REFUSED = "refused"
#: From here on the program knows that a message or collective is done; no op of a plan file.
WAIT = "wait"
#: Tags of messages that a collective is written with (:mod:`.lowering.members`); a user's count from 0.
CALLS = {
    -1: "all_reduce by add",
    -2: "all_reduce by max",
    -3: "all_reduce by min",
    -4: "broadcast",
    -5: "all_gather",
}
#: Ops that other ranks take part in; rows are sent in an order that all make together.
MEETING = COLLECTIVES | {"ship_rows", "ship", "ship_back"}
#: A rendezvous of one rank: its communicator in the plan, and its place among those of that communicator.
Meeting = tuple[str, int]
#: And the op: elsewhere, on a communicator of that name, it is another one. Empty in plans of before.
Met = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the program under construction."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype


@dataclass(frozen=True, slots=True)
class Draft:
    """An op before its rank-dependent scalars are fitted; ``frame`` is its Python line, ``caller`` the
    line in another file from which that function was called."""

    out: str
    name: str
    ins: tuple[str, ...]
    type: TensorType
    attrs: tuple[tuple[str, Attr], ...]
    frame: Frame | None
    caller: Frame | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Sent between processes in a third of the time that dataclasses take by themselves."""
        return Draft, (self.out, self.name, self.ins, self.type, self.attrs, self.frame, self.caller)

    def attr(self, key: str) -> Attr:
        return dict(self.attrs)[key]

    @property
    def meeting(self) -> Meeting | None:
        """Which rendezvous a collective takes part in."""
        return (str(self.attr("group")), int(str(self.attr("seq")))) if self.name in MEETING else None


#: Whole numbers that are made of few others alone are computed (:mod:`.whole_numbers`).
_INTEGERS_INSTEAD = "the integers as a buffer that build makes, or as an entry of the batch, with bounds"


def exact(value: Literal) -> str:
    """The literal a Python number stands for: a float is the decimal that ``repr`` prints, exactly; roots and
    quotients of whole numbers are what they are, however they were computed (:func:`.roots.meant`)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        if math.isnan(value):
            raise LoweringError("the literal nan has no meaning over the reals")
        return format_rational(meant(value))
    return format_rational(Fraction(value))


class Builder:
    """A program under construction. ``frame`` is attached to every op emitted from now on."""

    def __init__(self) -> None:
        self.inputs: dict[str, TensorType] = {}
        #: The half-open range of an integer input, where it is declared.
        self.bounds: dict[str, tuple[int, int]] = {}
        #: Those of which something was lowered on the strength of it.
        self.relied: set[str] = set()
        self.drafts: dict[str, Draft] = {}
        self.frame: Frame | None = None
        self.caller: Frame | None = None
        self._shared: dict[tuple[object, ...], Value] = {}
        self._tainted: set[str] = set()

    # --- plumbing ------------------------------------------------------------------------------------------

    @contextmanager
    def at(self, frame: Frame | None, caller: Frame | None) -> Iterator[None]:
        """What is emitted inside is of another line."""
        here = self.frame, self.caller
        self.frame, self.caller = frame, caller
        try:
            yield
        finally:
            self.frame, self.caller = here

    def input(self, name: str, type_: TensorType) -> Value:
        self.inputs[name] = type_
        return Value(name, type_)

    def reached(self, names: Sequence[str]) -> set[str]:
        """These values and all that they are made of."""
        found: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                draft = self.drafts.get(name)
                stack.extend(draft.ins if draft else ())
        return found

    def emit(
        self, name: str, ins: Iterable[Value], type_: TensorType, *, shared: bool = True, **attrs: Attr
    ) -> Value:
        """Append an op; a ``shared`` one equal to an earlier op is that op."""
        names, items = tuple(v.name for v in ins), tuple(sorted(attrs.items()))
        key = (name, names, type_, items)
        if shared and key in self._shared:
            return self._shared[key]
        out = Value(f"%{len(self.drafts)}", type_)
        self.drafts[out.name] = Draft(out.name, name, names, type_, items, self.frame, self.caller)
        if name == REFUSED or (self._tainted and not self._tainted.isdisjoint(names)):
            self._tainted.add(out.name)
        if shared:
            self._shared[key] = out
        return out

    def tainted(self, x: Value) -> bool:
        """Is ``x`` made of a value that must not reach an output?"""
        return x.name in self._tainted

    def draft(self, x: Value) -> Draft | None:
        return self.drafts.get(x.name)

    def operand(self, x: Value, index: int = 0) -> Value:
        """Operand ``index`` of the op that made ``x``."""
        name = self.drafts[x.name].ins[index]
        return Value(name, self.inputs[name] if name in self.inputs else self.drafts[name].type)

    def made_by(self, x: Value, name: str) -> Draft | None:
        draft = self.drafts.get(x.name)
        return draft if draft is not None and draft.name == name else None

    def alike(self, name: str, dim: int) -> bool:
        """Is a value the same along a dimension, by how it is made?"""
        draft = self.drafts.get(name)
        if draft is None:
            return False
        if draft.name == "constant" or (draft.name == "iota" and draft.attr("dim") != dim):
            return True
        if draft.name == "broadcast_in_dim":
            dims, shape = draft.attr("dims"), self.operand(Value(name, draft.type)).shape
            assert isinstance(dims, tuple)
            return dim not in dims or shape[dims.index(dim)] == 1
        return draft.name in ELEMENTWISE and all(self.alike(v, dim) for v in draft.ins)

    # --- literals ------------------------------------------------------------------------------------------

    def constant(self, value: Literal, type_: TensorType) -> Value:
        """A splat. Integers become affine forms, which fitting may make rank-dependent."""
        if type_.sort == "Int":
            if not isinstance(value, int):
                raise LoweringError(f"literal {value!r} of integer type {type_}")
            low, high = INTEGERS[type_.dtype]
            if not low <= value < high:
                raise LoweringError(f"literal {value} does not fit {type_.dtype}")
            return self._splat(Affine(int(value)), type_)
        text = exact(
            bool(value) if type_.sort == "Bool" else value if isinstance(value, float) else value + 0
        )
        return self._splat(text, type_)

    def literal(self, value: Literal | tuple[Literal, ...], type_: TensorType) -> Value:
        return self.elements(value, type_) if isinstance(value, tuple) else self.constant(value, type_)

    def elements(self, values: Sequence[Literal], type_: TensorType) -> Value:
        """A tensor by its elements, row-major: runs of equal ones are a splat each."""
        runs = [(value, len(list(run))) for value, run in itertools.groupby(values)]
        parts = [self.constant(value, TensorType(type_.dtype, (n,))) for value, n in runs]
        return self.reshape(self.concatenate(parts, 0), type_.shape)

    def _splat(self, value: Attr, type_: TensorType) -> Value:
        # Integers are not shared: those equal on this rank may differ on another, and programs must align.
        return self.emit("constant", (), type_, shared=not isinstance(value, Affine), value=value)

    def _again(self, draft: Draft, type_: TensorType) -> Value:
        """A constant in another shape: of the line that wrote it, unless it is shared with other lines."""
        value = draft.attr("value")
        with self.at(draft.frame, draft.caller) if isinstance(value, Affine) else nullcontext():
            return self._splat(value, type_)

    def like(self, value: Literal, x: Value) -> Value:
        return self.constant(value, x.type)

    def iota(self, dim: int, shape: Sequence[int], dtype: str = "i64") -> Value:
        return self.emit("iota", (), TensorType(dtype, tuple(shape)), dim=dim)

    # --- elementwise ---------------------------------------------------------------------------------------

    def unary(self, name: str, x: Value) -> Value:
        _check(name, x)
        return self.emit(name, (x,), x.type)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        """An op on two operands of one dtype; shapes are broadcast explicitly."""
        _alike(name, x, y)
        _check(name, x)
        if name == "divide" and (zero := self.made_by(y, "constant")) and zero.attr("value") == "0":
            raise LoweringError("a division by the literal 0")
        shape = broadcast_shape(x.shape, y.shape)
        x, y = self.expand(x, shape), self.expand(y, shape)
        return self.emit(name, (x, y), x.type)

    def scale(self, x: Value, factor: Literal) -> Value:
        return self.binary("multiply", x, self.like(factor, x))

    def compare(self, direction: str, x: Value, y: Value) -> Value:
        _alike("compare", x, y)
        shape = broadcast_shape(x.shape, y.shape)
        x, y = self.expand(x, shape), self.expand(y, shape)
        return self.emit("compare", (x, y), TensorType("i1", shape), direction=direction)

    def select(self, p: Value, x: Value, y: Value) -> Value:
        _alike("select", x, y)
        if p.dtype != "i1":
            raise LoweringError(f"select by {p.type}")
        shape = broadcast_shape(broadcast_shape(p.shape, x.shape), y.shape)
        p, x, y = self.expand(p, shape), self.expand(x, shape), self.expand(y, shape)
        if known := self.made_by(p, "constant"):
            return x if known.attr("value") == "true" else y
        return self.emit("select", (p, x, y), x.type)

    def convert(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        target = TensorType(dtype, x.shape)
        if x.type.sort == "Real" and target.sort == "Bool":
            return self.compare("NE", x, self.like(0, x))
        if x.type.sort == "Real" and target.sort != "Real":
            message = f"a conversion of {x.type} to {dtype} rounds and has no exact meaning"
            raise LoweringError(message, instead=_INTEGERS_INSTEAD)
        if x.type.sort == "Int" and dtype in _SMALL and not _within(x.dtype, dtype):
            raise LoweringError(f"a conversion of {x.type} to {dtype}, which wraps around")
        if target.sort == x.type.sort == "Real" and (draft := self.made_by(x, "constant")):
            return self._splat(draft.attr("value"), target)
        if x.type.sort == "Int" and self.made_by(x, "convert") and self.operand(x).type.sort == "Bool":
            return self.convert(self.operand(x), dtype)
        return self.emit("convert", (x,), target)

    # --- data movement -------------------------------------------------------------------------------------

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        target = TensorType(x.dtype, tuple(shape))
        while self.made_by(x, "reshape"):
            x = self.operand(x)
        if x.type.size != target.size:
            raise LoweringError(f"a reshape of {x.type} to {target}")
        draft = self.made_by(x, "constant")
        if draft is not None:
            return self._again(draft, target)
        return x if x.type == target else self.emit("reshape", (x,), target)

    def flat(self, x: Value) -> Value:
        return self.reshape(x, (x.type.size,))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        perm = tuple(perm)
        draft = self.made_by(x, "transpose")
        if draft is not None:
            inner = draft.attr("perm")
            assert isinstance(inner, tuple)
            perm, x = tuple(int(str(inner[p])) for p in perm), self.operand(x)
        if perm == tuple(range(len(x.shape))):
            return x
        return self.emit("transpose", (x,), TensorType(x.dtype, transposed(x.shape, perm)), perm=perm)

    def broadcast(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        target = TensorType(x.dtype, tuple(shape))
        draft = self.made_by(x, "constant")
        if draft is not None:
            return self._again(draft, target)
        return x if x.type == target else self.emit("broadcast_in_dim", (x,), target, dims=tuple(dims))

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """Broadcast as NumPy does: trailing dimensions aligned."""
        if broadcast_shape(x.shape, shape) != tuple(shape):
            raise LoweringError(f"{x.type} does not broadcast to {list(shape)}")
        lead = len(shape) - len(x.shape)
        return self.broadcast(x, shape, tuple(range(lead, len(shape))))

    def insert(self, x: Value, dim: int, size: int) -> Value:
        """Broadcast along a new dimension ``dim``."""
        shape = (*x.shape[:dim], size, *x.shape[dim:])
        return self.broadcast(x, shape, [d for d in range(len(shape)) if d != dim])

    def slice(
        self, x: Value, start: Sequence[int], sizes: Sequence[int], stride: Sequence[int] | None = None
    ) -> Value:
        if tuple(sizes) == x.shape:
            return x
        return self.emit(
            "slice",
            (x,),
            TensorType(x.dtype, tuple(sizes)),
            shared=False,
            start=tuple(Affine(s) for s in start),
            stride=tuple(stride or (1,) * len(x.shape)),
        )

    def narrow(self, x: Value, dim: int, start: int, size: int) -> Value:
        starts = [start if d == dim else 0 for d in range(len(x.shape))]
        return self.slice(x, starts, [size if d == dim else n for d, n in enumerate(x.shape)])

    def concatenate(self, parts: Sequence[Value], dim: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        _alike("concatenate", *parts)
        shape = concatenated([p.shape for p in parts], dim)
        return self.emit("concatenate", parts, TensorType(parts[0].dtype, shape), dim=dim)

    def pad(self, x: Value, value: Literal, low: Sequence[int], high: Sequence[int]) -> Value:
        if not any(low) and not any(high):
            return x
        shape = padded(x.shape, low, high)
        fill = self.constant(value, TensorType(x.dtype, ()))
        return self.emit("pad", (x, fill), TensorType(x.dtype, shape), low=tuple(low), high=tuple(high))

    # --- contractions and reductions -----------------------------------------------------------------------

    def dot(
        self,
        x: Value,
        y: Value,
        *,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> Value:
        _alike("dot_general", x, y)
        _check("multiply", x)
        (lc, rc), (lb, rb) = contract, batch
        shape = contracted(x.shape, y.shape, contract, batch)
        return self.emit(
            "dot_general",
            (x, y),
            TensorType(x.dtype, shape),
            lhs_batch=tuple(lb),
            rhs_batch=tuple(rb),
            lhs_contract=tuple(lc),
            rhs_contract=tuple(rc),
        )

    def reduce(self, x: Value, dims: Sequence[int], kind: str, *, keepdim: bool = False) -> Value:
        """Reduce ``dims``; none given is a copy. ``keepdim`` keeps them with size 1."""
        dims = tuple(sorted(d % len(x.shape) for d in dims)) if x.shape else ()
        if not dims:
            return x
        if (x.dtype == "i1") != (kind in ("and", "or")):
            raise LoweringError(f"the {kind} of elements of {x.type}")
        if kind == "add":
            _check("add", x)
        type_ = TensorType(x.dtype, reduced(x.shape, dims))
        folds = self.made_by(x, "constant") if kind != "add" else None
        out = self._again(folds, type_) if folds else self.emit("reduce", (x,), type_, dims=dims, kind=kind)
        return self.reshape(out, [1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdim else out

    def gather(self, x: Value, index: Value, axis: int, batch_dims: int) -> Value:
        shape = gathered(x.shape, index.shape, axis, batch_dims)
        return self.emit("gather", (x, index), TensorType(x.dtype, shape), axis=axis, batch_dims=batch_dims)


def _alike(name: str, *operands: Value) -> None:
    dtypes = {x.dtype for x in operands}
    if len(dtypes) > 1:
        raise LoweringError(f"{name} of operands of {' and '.join(sorted(dtypes))}")


def _check(name: str, x: Value) -> None:
    """Refuse what the op is not defined on, and arithmetic that wraps around as integers of plans do not."""
    if x.type.sort not in OPS[name].sorts:
        raise LoweringError(f"{name} of {x.type}")
    if x.dtype in _SMALL and name not in ("maximum", "minimum"):
        raise LoweringError(f"{name} of {x.type}, which wraps around; convert to int64 first")


def wraps(dtype: str) -> bool:
    """Does arithmetic of this integer type wrap around in ordinary programs?"""
    return dtype in _SMALL


def _within(inner: str, outer: str) -> bool:
    (a, b), (low, high) = INTEGERS[inner], INTEGERS[outer]
    return low <= a and b <= high


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """NumPy's broadcast shape; shapes that do not fit are a :class:`LoweringError`."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    if any(m != n and 1 not in (m, n) for m, n in zip(left, right, strict=True)):
        raise LoweringError(f"shapes {list(a)} and {list(b)} do not broadcast")
    return tuple(max(m, n) for m, n in zip(left, right, strict=True))


def renamed(draft: Draft, names: dict[str, str]) -> Draft:
    """The op with its result and operands renamed."""
    return replace(draft, out=names[draft.out], ins=tuple(names.get(v, v) for v in draft.ins))
