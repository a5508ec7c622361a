"""An obligation as mathematics: its SMT-LIB text, which the kernel has compared, as people write formulas.

The result is MathML, which browsers show without scripts; every name of the text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

TOKEN = re.compile(r"[()]|[^\s()]+")
ASSERT = re.compile(r"\(assert \(! (.*) :named ([a-z]+)(?:\.\d+)?\)\)")
LEGEND = re.compile(r"; ([te]\d+) = (.*)")
#: What the names of premises stand for.
KINDS = {
    "def": "by definition",
    "hyp": "proved before",
    "bound": "an index",
    "range": "declared range",
    "evident": "range shown by ops",
    "law": "by a law",
    "goal": "to show",
}
#: How tightly an operator binds, and its sign.
INFIX = {
    **{"=>": (1, "⟹"), "or": (2, "∨"), "and": (3, "∧")},
    **{"=": (4, "="), "<=": (4, "≤"), "<": (4, "&lt;"), ">=": (4, "≥"), ">": (4, "&gt;")},
    **{"+": (5, "+"), "-": (5, "−"), "*": (6, "·"), "mul": (6, "·"), "/": (6, "/")},
}
FUNCTIONS = {"max2": "max", "min2": "min", "pos_inf": "∞", "neg_inf": "−∞"}
TIGHT, ATOM = 6, 9
DEEP = 200
SHORT = 24
"""Symbols of a formula that stays on one line; browsers break none, so a longer one is several in a row."""
BREAK = ""
BEGIN = '<mo form="infix" lspace="0">'
"""A sign at the beginning of a line is no prefix; the space before it is the one between two formulas."""


class Formula(NamedTuple):
    kind: str
    html: str


class Written(NamedTuple):
    """An obligation: what it says in words, its formulas, the goal last, and what its names stand for."""

    title: str
    formulas: tuple[Formula, ...]
    legend: tuple[tuple[str, str], ...]


def written(text: bytes) -> Written:
    """Reads the text of an obligation file, one assertion a line, as the kernel writes them."""
    title, formulas, legend = "", list[Formula](), list[tuple[str, str]]()
    for line in text.decode("ascii").splitlines():
        if found := ASSERT.fullmatch(line):
            term = parsed(found[1])
            if found[2] == "goal" and isinstance(term, list) and term[0] == "not":
                term = term[1]
            formulas.append(Formula(KINDS.get(found[2], found[2]), html(term)))
        elif found := LEGEND.fullmatch(line):
            legend.append((f"<math>{symbol(found[1])}</math>", escape(found[2])))
        elif line.startswith("; ") and not title:
            title = line[2:]
    return Written(title, tuple(formulas), tuple(legend))


def parsed(text: str) -> Any:
    """A term: a symbol, or a list of terms."""
    stack: list[list[Any]] = [[]]
    for token in TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            stack[-2].append(stack.pop())
        else:
            stack[-1].append(token)
    return stack[0][0]


def html(term: Any) -> str:
    """The formula in MathML, in parts between which a line may end if it is long."""
    tokens = _tokens(term)
    rows: list[list[str]] = [[]]
    for token in tokens:
        if token != BREAK:
            first = len(rows) > 1 and not rows[-1]
            rows[-1].append(
                token.replace("<mo>", BEGIN).replace("<mtext>&nbsp;", "<mtext>") if first else token
            )
        elif len(tokens) > SHORT:
            rows.append([])
    return " ".join(f"<math>{''.join(row)}</math>" for row in rows)


def _tokens(term: Any, around: int = 0, depth: int = 0) -> list[str]:
    """Elements of MathML, in parentheses where what stands around them binds more tightly."""
    if isinstance(term, str):
        return [symbol(term)]
    if depth > DEEP:
        return [sign("…")]
    head, *rest = term
    if head == "to_real":
        return _tokens(rest[0], around, depth + 1)
    binds, said = _applied(head, rest, depth + 1)
    return [sign("("), *said, sign(")")] if binds < around or (binds == 0 and depth) else said


def _applied(head: Any, rest: Sequence[Any], depth: int) -> tuple[int, list[str]]:
    """How tightly an application binds, and its elements."""
    match (head, *rest):
        case ["and", ["<=", low, first], ["<" | "<=" as less, second, high]] if first == second:
            terms = (_tokens(t, 5, depth) for t in (low, first, high))
            return 4, [*next(terms), sign("≤"), *next(terms), sign(INFIX[less][1]), *next(terms)]
    if head == "/" and all(isinstance(t, str) for t in rest):
        return ATOM, [f"<mfrac>{''.join(map(symbol, rest))}</mfrac>"]
    if len(rest) == 1 and head in ("-", "not"):
        binds, name = (5, "−") if head == "-" else (7, "¬")
        return binds, [f'<mo form="prefix">{name}</mo>', *_tokens(rest[0], binds + (head == "-"), depth)]
    if head == "ite":
        condition, then, other = (_tokens(t, 1, depth) for t in rest)
        return 0, [*then, BREAK, word("if"), *condition, BREAK, word("else"), *other]
    said: list[str] = []
    if head in INFIX and len(rest) > 1:
        binds, name = INFIX[head]
        for i, term in enumerate(rest):
            said += [] if i == 0 else [sign(name)] if binds == TIGHT else [BREAK, sign(name)]
            said += _tokens(term, binds + (head in ("-", "/", "=") and i > 0), depth)
        return binds, said
    for term in rest:
        said += [*([sign(",")] if said else []), *_tokens(term, 0, depth)]
    brackets = "[]" if re.fullmatch(r"[te]\d+", str(head)) else "()"
    return ATOM, [symbol(head), sign(brackets[0]), *said, sign(brackets[1])]


def sign(text: str) -> str:
    return f"<mo>{text}</mo>"


def word(text: str) -> str:
    return f"<mtext>&nbsp;{text}&nbsp;</mtext>"


def symbol(token: str) -> str:
    """A number, an index or a function, or the name of a tensor (`t3`) or of an element of one (`e3`)."""
    if re.fullmatch(r"\d+(\.0)?", token):
        return f"<mn>{token.removesuffix('.0')}</mn>"
    if re.fullmatch(r"[a-z]\d+", token):
        return f"<msub><mi>{token[0]}</mi><mn>{token[1:]}</mn></msub>"
    return f"<mi>{_NAMED.get(token) or FUNCTIONS.get(token) or escape(token)}</mi>"


_NAMED = {
    f"f{f}": f for f in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "logistic", "erf", "abs", "pow")
}
