"""An obligation as mathematics: its SMT-LIB text, which the kernel has compared, as people write formulas.

The result is HTML; every name of the text is escaped.
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
    "law": "by a law",
    "goal": "to show",
}
#: How tightly an operator binds, and its sign.
INFIX = {
    **{"=>": (1, " ⟹ "), "or": (2, " ∨ "), "and": (3, " ∧ ")},
    **{"=": (4, " = "), "<=": (4, " ≤ "), "<": (4, " &lt; "), ">=": (4, " ≥ "), ">": (4, " &gt; ")},
    **{"+": (5, " + "), "-": (5, " − "), "*": (6, " · "), "mul": (6, " · "), "/": (6, " / ")},
}
FUNCTIONS = {"max2": "max", "min2": "min", "pos_inf": "∞", "neg_inf": "−∞"}
ATOM = 9
DEEP = 200


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
            legend.append((name(found[1]), escape(found[2])))
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


def html(term: Any, around: int = 0, depth: int = 0) -> str:
    """The formula, in parentheses where what stands around it binds more tightly."""
    if isinstance(term, str):
        return symbol(term)
    if depth > DEEP:
        return "…"
    head, *rest = term
    if head == "and" and (between := _between(rest)) is not None:
        low, middle, sign, high = between
        binds, said = 4, f"{html(low, 5)} ≤ {html(middle, 5)} {sign} {html(high, 5)}"
    elif head == "-" and len(rest) == 1:
        binds, said = 5, f"−{html(rest[0], 6, depth + 1)}"
    elif head == "ite":
        condition, then, other = (html(t, 1, depth + 1) for t in rest)
        binds, said = 0, f"{then} <b>if</b> {condition} <b>else</b> {other}"
    elif head == "not":
        binds, said = 7, f"¬{html(rest[0], 7, depth + 1)}"
    elif head in INFIX and len(rest) > 1:
        binds, sign = INFIX[head]
        inner = [html(t, binds + (head in ("-", "/", "=") and i > 0), depth + 1) for i, t in enumerate(rest)]
        said = sign.join(inner)
    elif head == "to_real":
        return html(rest[0], around, depth + 1)
    else:
        brackets = "[]" if re.fullmatch(r"[te]\d+", str(head)) else "()"
        inside = ", ".join(html(t, 0, depth + 1) for t in rest)
        return f"{symbol(head)}{brackets[0]}{inside}{brackets[1]}"
    return f"({said})" if binds < around or (binds == 0 and depth) else said


def _between(terms: Sequence[Any]) -> tuple[Any, Any, str, Any] | None:
    """Two bounds of one term."""
    match terms:
        case [["<=", low, first], ["<" | "<=" as sign, second, high]] if first == second:
            return low, first, "&lt;" if sign == "<" else "≤", high
    return None


def symbol(token: str) -> str:
    if re.fullmatch(r"[te]\d+", token):
        return name(token)
    if re.fullmatch(r"\d+\.0", token):
        return token[:-2]
    if re.fullmatch(r"[a-z]\d+", token):
        return f"<i>{token[0]}</i><sub>{token[1:]}</sub>"
    if token.startswith(("f", "cmp_")) and token in _NAMED:
        return _NAMED[token]
    return FUNCTIONS.get(token) or (escape(token) if token[:1].isdigit() else f"<i>{escape(token)}</i>")


def name(token: str) -> str:
    """A tensor (`t3`) or an element of one (`e3`)."""
    return f"<i>{token[0]}</i><sub>{token[1:]}</sub>"


_NAMED = {
    f"f{f}": f for f in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "logistic", "erf", "abs", "pow")
}
