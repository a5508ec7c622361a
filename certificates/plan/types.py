"""Types of tensors and numbers as the format writes them (``docs/format.md``, section *Programs*)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from ..errors import FormatError

Sort = Literal["Real", "Int", "Bool"]


SORTS: dict[str, Sort] = {
    "f64": "Real", "f32": "Real", "f16": "Real", "bf16": "Real",
    "i64": "Int", "i32": "Int", "i16": "Int", "i8": "Int", "u8": "Int",
    "i1": "Bool",
}  # fmt: skip


_TYPE = re.compile(r"([a-z0-9]+)\[((?:[1-9][0-9]{0,11}(?:,[1-9][0-9]{0,11})*)?)\]\Z")


_RATIONAL = re.compile(r"-?(0|[1-9][0-9]{0,399})(/[1-9][0-9]{0,399})?\Z")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and true shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    def __reduce__(self) -> tuple[object, ...]:
        """Sent between processes in a third of the time that dataclasses take by themselves."""
        return TensorType, (self.dtype, self.shape)

    @property
    def sort(self) -> Sort:
        return SORTS[self.dtype]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @staticmethod
    def parse(text: object) -> TensorType:
        if not isinstance(text, str):
            raise FormatError(f"{brief(text)} is not a tensor type such as f32[4,8]")
        return _tensor_type(text)


@lru_cache(maxsize=1 << 14)
def _tensor_type(text: str) -> TensorType:
    match = _TYPE.match(text)
    if match is None or match[1] not in SORTS:
        raise FormatError(f"{brief(text)} is not a tensor type such as f32[4,8]")
    shape = tuple(map(int, match[2].split(","))) if match[2] else ()
    if len(shape) > MAX_RANK:
        raise FormatError(f"a tensor type has at most {MAX_RANK} dimensions, not {len(shape)}")
    return TensorType(match[1], shape)


MAX_RANK = 12


def brief(data: object) -> str:
    """A hostile document's value for a one-line message."""
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."


@lru_cache(maxsize=1 << 14)
def rational(text: str) -> Fraction:
    """Read ``p`` or ``p/q`` in lowest terms."""
    if not _RATIONAL.match(text):
        raise FormatError(f"{brief(text)} is not a rational number p/q")
    value = Fraction(text)
    if format_rational(value) != text:
        raise FormatError(f"rational {text!r} is not in lowest terms")
    return value


def format_rational(value: Fraction | int) -> str:
    """``p`` or ``p/q`` in lowest terms, exactly."""
    value = Fraction(value)
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"
