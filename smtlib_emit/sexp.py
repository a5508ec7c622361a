"""S-expressions with unnamed tensors, and the canonical text of an obligation.

An expression is a string, a REF or element (wrapped in :class:`Symbol`), or a tuple. Tensors get their names
``t0, t1, …`` (elements ``e0, …``) only when a whole file is written, by first occurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from certificates.plan.affine import Affine
from certificates.plan.ops import FUNCTIONS, Term, fill
from certificates.proof.facts import Ref
from certificates.proof.stages import Elem


@dataclass(frozen=True, slots=True)
class Symbol:
    """A tensor (applied to index arguments) or an element, named when the file is written."""

    of: Ref | Elem


Sexp = str | Symbol | tuple["Sexp", ...]


def integer(value: int) -> Sexp:
    return str(value) if value >= 0 else ("-", str(-value))


def real(value: Fraction) -> Sexp:
    size = f"{abs(value.numerator)}.0"
    body: Sexp = size if value.denominator == 1 else ("/", size, f"{value.denominator}.0")
    return body if value >= 0 else ("-", body)


def times(coef: Fraction, body: Sexp, sort: str = "Real") -> Sexp:
    if coef == 1:
        return body
    return "*", real(coef) if sort == "Real" else integer(int(coef)), body


def plus(parts: Sequence[Sexp]) -> Sexp:
    return parts[0] if len(parts) == 1 else ("+", *parts)


def conjunction(parts: Sequence[Sexp]) -> Sexp:
    return parts[0] if len(parts) == 1 else ("and", *parts)


def implied(guard: Sequence[Sexp], body: Sexp) -> Sexp:
    return ("=>", conjunction(guard), body) if guard else body


def affine(form: Affine, order: Mapping[str, int]) -> Sexp:
    """Terms in symbol order, then the constant if non-zero or alone."""
    parts: list[Sexp] = [
        symbol if coef == 1 else ("*", integer(coef), symbol)
        for symbol, coef in sorted(form.terms, key=lambda t: order[t[0]])
    ]
    if form.const or not parts:
        parts.append(integer(form.const))
    return plus(parts)


def filled(term: Term, reads: Sequence[Sexp]) -> Sexp:
    """A term of the op table over reads of the operands."""
    return cast(Sexp, fill(term, reads))


def atoms(expression: Sexp) -> Iterator[str | Symbol]:
    """Leaves, left to right."""
    if isinstance(expression, tuple):
        for part in expression:
            yield from atoms(part)
    else:
        yield expression


def show(expression: Sexp, names: Mapping[Symbol, str]) -> str:
    if isinstance(expression, tuple):
        return "(" + " ".join(show(part, names) for part in expression) + ")"
    return names[expression] if isinstance(expression, Symbol) else expression


def script(
    *,
    logic: str,
    title: str,
    status: str,
    premises: Sequence[tuple[str, Sexp]],
    goal: Sexp,
    symbols: Iterable[str],
    declare: Callable[[Symbol], tuple[str, str]],
) -> str:
    """The whole file. ``premises`` are (kind, assertion);
    ``declare`` gives signature and comment of a symbol.
    """
    assertions = [(f"{kind}.{i}", body) for i, (kind, body) in enumerate(premises, 1)] + [("goal", goal)]
    names: dict[Symbol, str] = {}
    words: set[str] = set()
    letter = "t" if logic == "QF_UFLIRA" else "e"
    for _, body in assertions:
        for leaf in atoms(body):
            if isinstance(leaf, str):
                words.add(leaf)
            elif leaf not in names:
                names[leaf] = f"{letter}{len(names)}"
    lines = [
        "(set-info :smt-lib-version 2.6)",
        f"(set-logic {logic})",
        "(set-info :source |TrainVerify|)",
        '(set-info :license "https://creativecommons.org/licenses/by/4.0/")',
        '(set-info :category "industrial")',
        f"(set-info :status {status})",
        f"; {title}",
        *(f"(declare-fun {s} () Int)" for s in symbols if s in words),
    ]
    for symbol, name in names.items():
        signature, comment = declare(symbol)
        lines += [f"; {name} = {comment}", f"(declare-fun {name} {signature})"]
    for function, arguments in FUNCTIONS.items():
        if function in words:
            lines.append(f"(declare-fun {function} ({' '.join(['Real'] * arguments)}) Real)")
    lines += [f"(assert (! {show(body, names)} :named {name}))" for name, body in assertions]
    return "\n".join([*lines, "(check-sat)", "(exit)", ""])


def without_comments(text: str) -> str:
    """The text up to comment lines: what equal obligations share."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(";"))
