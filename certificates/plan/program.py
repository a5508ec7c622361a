"""The typed SSA language of specifications and plans (``docs/format.md``, section *Programs*).

A :class:`Program` is data: :func:`.type_rules.check_program` checks it, and every producer calls that again
after each pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from certificates.plan.affine import Affine

from ..errors import FormatError
from .ops import ATTRS, PACKED
from .types import MAX_RANK, TensorType, brief, rational

RESULT_NAME = re.compile(r"%(0|[1-9][0-9]{0,9})\Z")


INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")


Attr = str | int | tuple[int, ...] | Affine | tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Loc:
    """Where in the user's Python an op comes from; ``source`` indexes :attr:`Plan.sources`."""

    source: int
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction: ``out = name(ins) {attrs} : type``."""

    out: str
    name: str
    ins: tuple[str, ...]
    type: TensorType
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    loc: Loc | None = None

    def ints(self, key: str) -> tuple[int, ...]:
        """A tuple-of-integers attribute (typed access after :func:`check_program`)."""
        value = self.attrs[key]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, int))

    def affines(self, key: str) -> tuple[Affine, ...]:
        value = self.attrs[key]
        assert isinstance(value, tuple)
        return tuple(v if isinstance(v, Affine) else Affine(v) for v in value)

    def integer(self, key: str) -> int:
        value = self.attrs[key]
        assert isinstance(value, int)
        return value

    def text(self, key: str) -> str:
        value = self.attrs[key]
        assert isinstance(value, str)
        return value


@dataclass(frozen=True)
class Packing:
    """Of a program with packed rows: its ``ops`` as they are written, and ``plain`` ones; by order the
    ``keys`` that it sorts by and their number; by ``seq`` what is ``shipped``; by result the order that it
    waits for."""

    ops: tuple[Op, ...]
    plain: tuple[Op, ...]
    keys: Mapping[str, tuple[str, int]]
    shipped: Mapping[int, tuple[str, int]]
    after: Mapping[str, str]


@dataclass(frozen=True)
class Program:
    """A pure tensor program. ``inputs`` and ``outputs`` keep their order; outputs name values.

    ``packing`` has what a program with packed rows looked like before its ops were lowered to these.
    """

    inputs: Mapping[str, TensorType]
    ops: tuple[Op, ...]
    outputs: Mapping[str, str]
    packing: Packing | None = field(default=None, compare=False, repr=False)

    @property
    def rows(self) -> Packing | None:
        """What is known of packed rows; nothing if ops were changed after they were lowered."""
        return self.packing if self.packing is not None and self.packing.plain == self.ops else None

    @property
    def written(self) -> tuple[Op, ...]:
        """The ops as a file has them."""
        return self.ops if self.rows is None else self.rows.ops

    def types(self) -> dict[str, TensorType]:
        """Type of every value, inputs first."""
        return dict(self._types)

    def type_of(self, value: str) -> TensorType:
        return self._types[value]

    @cached_property
    def _types(self) -> Mapping[str, TensorType]:
        return dict(self.inputs) | {op.out: op.type for op in self.ops}


_MAX_INT = 1 << 62
#: Of plain ops, and of those on packed rows.
_ATTRS: Mapping[str, Mapping[str, str | tuple[str, ...]]] = {
    **ATTRS,
    **{name: attrs for name, (_, attrs) in PACKED.items()},
}


def _attr(op: str, key: str, kind: str | tuple[str, ...], data: object) -> Attr:
    where = f"attribute {key!r} of {op}"
    if isinstance(kind, tuple):
        if data not in kind:
            raise FormatError(f"{where} must be one of {', '.join(kind)}")
        return str(data)
    if kind == "int":
        if isinstance(data, bool) or not isinstance(data, int) or not 0 <= data < _MAX_INT:
            raise FormatError(f"{where} must be a non-negative integer")
        return data
    if kind == "str":
        if not isinstance(data, str):
            raise FormatError(f"{where} must be a string")
        return data
    if kind == "value":
        if isinstance(data, str):
            if data not in ("true", "false", "inf", "-inf"):
                rational(data)
            return data
        return Affine.from_json(data)
    if not isinstance(data, list) or len(data) > MAX_RANK:
        raise FormatError(f"{where} must be a list of at most {MAX_RANK} numbers")
    if kind == "ints":
        if any(isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < _MAX_INT for v in data):
            raise FormatError(f"{where} must hold non-negative integers")
        return tuple(data)
    return tuple(Affine.from_json(v) for v in data)


def op_from_json(data: object) -> Op:
    """Read one OP of the plan format. Types are checked later, by :func:`check_program`."""
    if not isinstance(data, list) or len(data) != 6:
        raise FormatError("an op is a list of six: result, name, operands, type, attributes, location")
    out, name, ins, type_, attrs, loc = data
    if not isinstance(out, str) or not RESULT_NAME.match(out):
        raise FormatError(f"{brief(out)} is not a result name such as %17")
    if not isinstance(name, str) or name not in _ATTRS:
        raise FormatError(f"op {brief(name)} of {out} is not in the op table")
    if not isinstance(ins, list) or not all(isinstance(v, str) for v in ins):
        raise FormatError(f"operands of {out} must be a list of names")
    if not isinstance(attrs, dict) or set(attrs) != set(_ATTRS[name]):
        raise FormatError(f"{name} {out} must have exactly the attributes {sorted(_ATTRS[name])}")
    read = {key: _attr(f"{name} {out}", key, kind, attrs[key]) for key, kind in _ATTRS[name].items()}
    where = None
    if loc is not None:
        if (
            not isinstance(loc, list) or len(loc) != 3 or not isinstance(loc[2], str)
            or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in loc[:2])
        ):  # fmt: skip
            raise FormatError(f"location of {out} must be [source, line, function] or null")
        where = Loc(loc[0], loc[1], loc[2])
    return Op(out, name, tuple(ins), TensorType.parse(type_), read, where)


def op_to_json(op: Op) -> list[object]:
    def plain(value: Attr) -> object:
        if isinstance(value, Affine):
            return value.to_json()
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return value

    loc = None if op.loc is None else [op.loc.source, op.loc.line, op.loc.function]
    attrs = {key: plain(value) for key, value in op.attrs.items()}
    return [op.out, op.name, list(op.ins), str(op.type), attrs, loc]
