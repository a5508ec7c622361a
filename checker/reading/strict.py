"""Strict reading of untrusted JSON: every value has one form, every size a cap, every fault one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from fractions import Fraction
from functools import partial
from typing import Any

from ..errors import Malformed, need
from ..language.affine import Affine
from ..language.functions import RESERVED

MAX_BYTES, MAX_DIGITS, MAX_DEPTH = 1 << 26, 18, 250
PRINTABLE, SYMBOL = re.compile(r"[ -~]{0,200}"), re.compile(r"[a-z][a-z0-9_]*")
NAME, RESULT = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*"), re.compile(r"%(0|[1-9][0-9]{0,9})")
DIGEST, FILE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9]{4,7}")

Reader = Callable[[Any, str], Any]
"""Reads a value; the second argument says in messages where it stands."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    need(len(result) == len(pairs), "an object has a duplicate key")
    return result


def _integer(digits: str) -> int:
    need(len(digits.lstrip("-")) <= MAX_DIGITS, "an integer has too many digits")
    return int(digits)


def _float(digits: str) -> Any:
    raise Malformed(f"floating-point number {digits[:20]}")


def read_json(data: bytes, what: str) -> Any:
    """Strict JSON: no duplicate keys, no floats; size, integers and depth capped."""
    need(len(data) <= MAX_BYTES, f"{what}: larger than {MAX_BYTES} bytes")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_pairs,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_float,
        )
    except Malformed as error:
        raise Malformed(f"{what}: {error}") from None
    except RecursionError:
        raise Malformed(f"{what}: nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"{what}: no JSON ({str(error)[:80]})") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            v
            for x in level
            if isinstance(x, (list, dict))
            for v in (x.values() if isinstance(x, dict) else x)
        ]
    need(not level, f"{what}: nested too deeply")
    return value


def members(value: Any, what: str, names: str, optional: str = "") -> dict[str, Any]:
    """An object with exactly these members."""
    if not isinstance(value, dict):
        raise Malformed(f"{what}: an object is expected")
    required, known = set(names.split()), set(names.split()) | set(optional.split())
    need(required <= set(value), f"{what}: member {min(required - set(value), default='')} is missing")
    need(set(value) <= known, f"{what}: unknown member {min(set(value) - known, default='')!r:.60}")
    return value


def record(value: Any, what: str, /, **fields: Reader) -> dict[str, Any]:
    """An object with exactly these members, each read by its reader."""
    item = members(value, what, " ".join(fields))
    return {name: read(item[name], f"{what}: {name}") for name, read in fields.items()}


def array(value: Any, what: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{what}: a list is expected")
    need(length is None or len(value) == length, f"{what}: a list of {length} is expected")
    return value


def many(read: Reader) -> Reader:
    """A list, as a tuple of what `read` makes of its entries."""
    return lambda value, what: tuple(read(v, what) for v in array(value, what))


def row(*readers: Reader) -> Reader:
    """A list of this length, entry by entry."""
    return lambda value, what: tuple(
        read(v, what) for read, v in zip(readers, array(value, what, len(readers)), strict=True)
    )


def optional(read: Reader) -> Reader:
    return lambda value, what: None if value is None else read(value, what)


def anything(value: Any, what: str) -> Any:
    return value


def one_of(known: Container[str], complaint: str) -> Reader:
    """A text among known ones."""

    def read(value: Any, what: str) -> str:
        if not isinstance(value, str) or value not in known:
            raise Malformed(f"{what}: {complaint} {value!r:.60}")
        return value

    return read


def text(value: Any, what: str, pattern: re.Pattern[str] = PRINTABLE) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Malformed(f"{what}: {value!r:.60} is no valid text here")
    return value


name = partial(text, pattern=NAME)


def integer(value: Any, what: str, low: int = -(10**MAX_DIGITS), high: int = 10**MAX_DIGITS) -> int:
    """An integer with low <= value < high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < high:
        raise Malformed(f"{what}: {value!r:.60} is no integer in [{low}, {high})")
    return value


natural = partial(integer, low=0)


def integers(value: Any, what: str, low: int = 0, high: int = 1 << 40) -> tuple[int, ...]:
    return tuple(integer(v, what, low, high) for v in array(value, what))


def interval(value: Any, what: str) -> tuple[int, int]:
    low, high = array(value, what, 2)
    return integer(low, what), integer(high, what, integer(low, what) + 1)


def rational(value: Any, what: str) -> Fraction:
    """A rational in lowest terms, "p" or "p/q"."""
    found = re.fullmatch(r"(-?[0-9]{1,400})(?:/([0-9]{1,400}))?", value) if isinstance(value, str) else None
    if found is None or (found[2] and not int(found[2])):
        raise Malformed(f"{what}: {value!r:.60} is no rational")
    result = Fraction(int(found[1]), int(found[2] or 1))
    need(str(result) == value, f"{what}: {value[:60]} is not in lowest terms")
    return result


def symbol(value: Any, what: str, prefixes: str = "tevqz") -> str:
    """A name that may stand for an Int constant in SMT-LIB text (docs/certificate.md, Names)."""
    found = text(value, what, SYMBOL)
    taken = found in RESERVED or (found[0] in prefixes and found[1:].isdigit())
    need(not taken, f"{what}: the name {found} is reserved")
    return found


def affine(value: Any, what: str, symbols: Container[str]) -> Affine:
    """An AFFINE over known symbols, in its only form."""
    if not isinstance(value, dict):
        return Affine(integer(value, what))
    for key, c in value.items():
        need(integer(c, what) != 0, f"{what}: zero coefficient")
        need(key == "" or key in symbols, f"{what}: unknown symbol {key[:40]!r}")
    need(bool(set(value) - {""}), f"{what}: an object without symbols")
    return Affine(value.get("", 0), tuple(sorted((s, c) for s, c in value.items() if s)))


def affines(symbols: Container[str]) -> Reader:
    """A list of AFFINEs over these symbols."""
    return many(lambda value, what: affine(value, what, symbols))
