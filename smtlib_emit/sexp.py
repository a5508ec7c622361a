"""S-expressions with unnamed tensors, and the canonical text of an obligation.

An expression is a string, a REF or element (wrapped in :class:`Symbol`), or a tuple. Tensors get their names
``t0, t1, …`` (elements ``e0, …``) only when a whole file is written, by first occurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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


def show(expression: Sexp) -> str:
    """The text of an expression; its tensors are named t0, t1, … ."""
    return _Writer("t").show(expression)


#: What SMT-LIB means by numbers: sums and products, order, and reals made of integers.
_COMPUTES = frozenset(("+", "-", "*", "/", "<", "<=", ">", ">=", "to_real"))
#: The sort of what is only passed on, chosen, compared for equality or given to free functions.
FREE_SORT = "Value"


def is_real(expression: Sexp, of: Callable[[Symbol], bool]) -> bool:
    """Whether an expression is a real, but for decimals; ``of`` tells it of what is declared."""
    match expression:
        case Symbol():
            return of(expression)
        case str():
            return expression in FUNCTIONS
        case (str(head), *_, last) if head == "ite" or head in _COMPUTES:
            return is_real(last, of)
        case (head, *_):
            return is_real(head, of)
    return False


class _Writer:
    """One walk over assertions: their text, and what it tells of symbols, words and arithmetic."""

    def __init__(self, letter: str) -> None:
        self.letter = letter
        #: Names of tensors or elements, by first occurrence.
        self.names: dict[Symbol, str] = {}
        #: The other leaves.
        self.words: set[str] = set()
        #: Last operands of what computes or orders: they tell whether it is reals.
        self.computed: list[Sexp] = []

    def show(self, expression: Sexp) -> str:
        if isinstance(expression, tuple):
            if expression[0] in _COMPUTES:
                self.computed.append(expression[-1])
            return "(" + " ".join([self.show(part) for part in expression]) + ")"
        if isinstance(expression, str):
            self.words.add(expression)
            return expression
        name = self.names.get(expression)
        if name is None:
            name = self.names[expression] = f"{self.letter}{len(self.names)}"
        return name

    def computes(self, of: Callable[[Symbol], bool]) -> bool:
        """Whether reals are computed or ordered somewhere: their sort is then SMT-LIB's."""
        if "to_real" in self.words or any(word.endswith(".0") for word in self.words):
            return True
        return any(is_real(last, of) for last in self.computed)


def logic_of(signatures: Collection[str], words: Collection[str]) -> str:
    """The logic of SMT-LIB's list that a file stays in; ``ALL``, the standard's name for no limit, where
    integers and reals meet: no logic of the list has both with functions and without arrays.

    ``signatures`` are those of everything declared, ``words`` the leaves of all assertions. A free sort needs
    a logic with free functions.
    """
    sorts = set(" ".join(signatures).replace("(", " ").replace(")", " ").split())
    integers = "Int" in sorts or any(word.isdigit() for word in words)
    reals = "Real" in sorts or "to_real" in words or any(word.endswith(".0") for word in words)
    if integers and reals:
        return "ALL"
    free = FREE_SORT in sorts or any(not signature.startswith("()") for signature in signatures)
    numbers = "LIA" if integers else "LRA" if reals else ""
    return f"QF_{'UF' if free or not numbers else ''}{numbers}"


def script(
    *,
    letter: str,
    title: str,
    status: str,
    premises: Sequence[tuple[str, Sexp]],
    goal: Sexp,
    symbols: Iterable[str],
    declare: Callable[[Symbol], tuple[str, str]],
) -> str:
    """The whole file. ``letter`` begins the names of tensors or elements, ``premises`` are (kind, assertion);
    ``declare`` gives signature and comment of a symbol.

    Where no real is computed, reals are of a free sort: what holds of any values holds of numbers, and no
    solver has to mix integers and reals (docs/adr/0083).
    """
    writer = _Writer(letter)
    bodies = [(f"{kind}.{i}", writer.show(body)) for i, (kind, body) in enumerate(premises, 1)]
    bodies.append(("goal", writer.show(goal)))
    names, words = writer.names, writer.words
    integers = [s for s in symbols if s in words]
    declared = {symbol: declare(symbol) for symbol in names}
    reals = {symbol for symbol, (signature, _) in declared.items() if signature.endswith("Real")}
    some = writer.computes(reals.__contains__)
    real = "Real" if some else FREE_SORT
    tensors = [(names[s], signature.replace("Real", real), said) for s, (signature, said) in declared.items()]
    functions = {f: f"({' '.join([real] * n)}) {real}" for f, n in FUNCTIONS.items() if f in words}
    signatures = [*("() Int" for _ in integers), *(s for _, s, _ in tensors), *functions.values()]
    free = any(FREE_SORT in signature for signature in signatures)
    lines = [
        "(set-info :smt-lib-version 2.6)",
        f"(set-logic {logic_of(signatures, words)})",
        "(set-info :source |TrainVerify|)",
        '(set-info :license "https://creativecommons.org/licenses/by/4.0/")',
        '(set-info :category "industrial")',
        f"(set-info :status {status})",
        f"; {title}",
        *([f"(declare-sort {FREE_SORT} 0)"] if free else []),
        *(f"(declare-fun {s} () Int)" for s in integers),
    ]
    for name, signature, comment in tensors:
        lines += [f"; {name} = {comment}", f"(declare-fun {name} {signature})"]
    lines += [f"(declare-fun {function} {signature})" for function, signature in functions.items()]
    lines += [f"(assert (! {body} :named {name}))" for name, body in bodies]
    return "\n".join([*lines, "(check-sat)", "(exit)", ""])


def without_comments(text: str) -> str:
    """The text up to comment lines: what equal obligations share."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(";"))
