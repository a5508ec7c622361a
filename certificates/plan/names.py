"""Names and texts that a plan may contain, so that they can stand in SMT-LIB files and on terminals."""

from __future__ import annotations

import re

from ..errors import FormatError
from .ops import FUNCTIONS

#: Reserved words, theory symbols and names that solvers give a meaning of their own.
_WORDS = (
    "and", "or", "not", "ite", "xor", "let", "par", "as", "exists", "forall", "match", "distinct",
    "div", "mod", "abs", "to_real", "to_int", "is_int", "true", "false", "assert", "define",
    "declare", "check", "push", "pop", "exit", "echo", "reset", "divisible", "select", "store",
    "implies", "iff", "if", "sum", "prod", "int", "real", "bool", "sec", "csc", "cot", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "pi", "iand", "pow2", "goal", "def", "hyp", "law",
    "bound", "range", "s",
)  # fmt: skip
#: With the free functions of the obligations (``docs/certificate.md``, *Names*).
RESERVED = frozenset(FUNCTIONS) | frozenset(_WORDS)
_SYMBOL = re.compile(r"[a-z][a-z0-9_]*\Z")
_NUMBERED = re.compile(r"[tevqz][0-9]+\Z")
_PRINTABLE = re.compile(r"[ -~]{0,200}\Z")


def check_symbol(name: str, what: str) -> None:
    """Mesh axes and rank classes: lower-case identifiers that no obligation uses for something else."""
    check_text(name, what)
    if not _SYMBOL.match(name) or _NUMBERED.match(name) or name in RESERVED:
        raise FormatError(
            f"{what} {name!r}: needs a lower-case identifier that is not reserved "
            "(docs/certificate.md, Names)"
        )


def check_text(text: str, what: str) -> None:
    """Free texts: at most 200 printable ASCII characters."""
    if not _PRINTABLE.match(text):
        raise FormatError(f"{what} {text[:40]!a} is not at most 200 printable ASCII characters")


def printable(text: str) -> str:
    """The nearest text that :func:`check_text` accepts: escapes for other characters, the end kept."""
    plain = text.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)[-200:]
