"""SMT-LIB terms and the text of one obligation (docs/certificate.md, Text).

A term is a string (literal, operator or free function), an `Affine`, a `Ref` or `Element` (a declared name),
or a tuple of terms. Names and declarations follow from one left-to-right pass over the assertions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from ..language.affine import Affine, Ranges, evident
from ..language.functions import FUNCTIONS
from ..language.ops import ARITY, Term

HEAD = """(set-info :smt-lib-version 2.6)
(set-logic {})
(set-info :source |TrainVerify|)
(set-info :license "https://creativecommons.org/licenses/by/4.0/")
(set-info :category "industrial")
(set-info :status {})
; {}"""
#: Bundles of version 1 name one logic for each kind of stage; the first is not in SMT-LIB's list.
FIRST_LOGICS = {"t": "QF_UFLIRA", "e": "QF_UFLRA"}
#: Operators that SMT-LIB gives a meaning for numbers.
ARITHMETIC = frozenset(("+", "-", "*", "/", "<", "<=", ">", ">=", "to_real"))


def integer(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def literal(value: Fraction, sort: str = "Real") -> str:
    if sort != "Real":
        return integer(int(value))
    size = abs(value)
    text = f"{size.numerator}.0" if size.denominator == 1 else f"(/ {size.numerator}.0 {size.denominator}.0)"
    return text if value >= 0 else f"(- {text})"


def scaled(coef: Fraction, term: Term, sort: str) -> Term:
    """`(* coef term)`, without the product if coef is 1."""
    return term if coef == 1 else ("*", literal(coef, sort), term)


def nary(operator: str, terms: Sequence[Term]) -> Term:
    return (operator, *terms) if len(terms) > 1 else terms[0]


def guarded(guard: Sequence[Term], body: Term) -> Term:
    return ("=>", nary("and", guard), body) if guard else body


def range_guard(forms: Sequence[Affine], bounds: Sequence[tuple[int, int]], ranges: Ranges) -> list[Term]:
    """Per coordinate the parts of `lo <= form < hi` that are not evident."""
    guard: list[Term] = []
    for form, (low, high) in zip(forms, bounds, strict=True):
        guard += [] if evident(form, low, None, ranges) else [("<=", integer(low), form)]
        guard += [] if evident(form, None, high, ranges) else [("<", form, integer(high))]
    return guard


def within(low: int, term: Term, high: int) -> Term:
    return ("and", ("<=", integer(low), term), ("<", term, integer(high)))


class _Printer:
    """Prints terms, numbering tensors or elements and noting symbols and functions as they occur."""

    def __init__(self, prefix: str, symbols: Sequence[str]) -> None:
        self.prefix, self.order = prefix, {name: i for i, name in enumerate(symbols)}
        self.names: dict[Any, str] = {}
        self.seen: set[str] = set()

    def __call__(self, term: Term) -> str:
        if isinstance(term, str):
            self.seen.add(term)
            return term
        if isinstance(term, tuple):
            return f"({' '.join([self(t) for t in term])})"
        if not isinstance(term, Affine):
            return self.names.setdefault(term, f"{self.prefix}{len(self.names)}")
        parts = []
        for name, c in sorted(term.terms, key=lambda part: self.order[part[0]]):
            self.seen.add(name)
            parts.append(name if c == 1 else f"(* {integer(c)} {name})")
        if term.const or not parts:
            parts.append(integer(term.const))
        return parts[0] if len(parts) == 1 else f"(+ {' '.join(parts)})"


class _Sorts:
    """Sorts of terms; `computed` is set where a real is written, computed or ordered."""

    def __init__(self, signature: Callable[[Any], str]) -> None:
        self.signature, self.computed = signature, False

    def __call__(self, term: Term) -> str:
        """The sort; of truths and numerals nothing is asked."""
        if isinstance(term, Affine):
            return "Int"
        if isinstance(term, str):
            self.computed |= ".0" in term
            return "Real" if term in FUNCTIONS else ""
        if not isinstance(term, tuple):
            return self.signature(term).split()[-1]
        head, sorts = term[0], [self(t) for t in term[1:]]
        self.computed |= head == "to_real" or (head in ARITHMETIC and "Real" in sorts)
        return sorts[-1] if head in ARITHMETIC or head == "ite" else self(head)


def logic_of(lines: Sequence[str]) -> str:
    """The logic that declarations and assertions stay in: one of SMT-LIB's list, or ALL where integers meet
    reals."""
    text = "\n".join(lines)
    integers = re.search(r"\bInt\b|[ (][0-9]+[ )]", text)
    reals = re.search(r"\bReal\b|\bto_real\b|[0-9]\.0\b", text)
    if integers and reals:
        return "ALL"
    numbers = "LIA" if integers else "LRA" if reals else ""
    functions = re.search(r"^\(declare-fun \w+ (\([A-Z]|.*Value)", text, re.MULTILINE) or not numbers
    return f"QF_{'UF' * bool(functions)}{numbers}"


def file_text(
    prefix: str,
    version: int,
    title: str,
    status: str,
    symbols: Sequence[str],
    assertions: Sequence[tuple[str, Term]],
    signature: Callable[[Any], str],
    describe: Callable[[Any], str],
) -> bytes:
    """The bytes of one obligation file; `assertions` pairs names with terms, the goal last.

    `prefix` begins the names of tensors (`t`) or elements (`e`), `version` is the bundle's. Where no real is
    computed, `Real` is the free sort `Value`: what has no model has none in which values are numbers.
    """
    show = _Printer(prefix, symbols)
    body = [f"(assert (! {show(term)} :named {name}))" for name, term in assertions]
    sorts = _Sorts(signature)
    for _, term in assertions:
        sorts(term)
    real = "Real" if version == 1 or sorts.computed else "Value"
    declared = [f"(declare-fun {s} () Int)" for s in symbols if s in show.seen]
    said = list(declared)
    for item, name in show.names.items():
        declared.append(f"(declare-fun {name} {signature(item).replace('Real', real)})")
        said += [f"; {name} = {describe(item)}", declared[-1]]
    for function in FUNCTIONS:
        if function in show.seen:
            declared.append(f"(declare-fun {function} ({' '.join([real] * ARITY[function])}) {real})")
            said.append(declared[-1])
    if any("Value" in line for line in declared):
        said = ["(declare-sort Value 0)", *said]
    logic = FIRST_LOGICS[prefix] if version == 1 else logic_of([*declared, *body])
    head = HEAD.format(logic, status, title)
    return "\n".join([head, *said, *body, "(check-sat)", "(exit)", ""]).encode("ascii")


def plain(data: bytes) -> bytes:
    """A file without its comment lines."""
    return b"\n".join(line for line in data.split(b"\n") if not line.startswith(b";"))
