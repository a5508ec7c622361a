"""The law `field` against floating point: random terms, and rewritings of them that look true.

Letters `P Q R` are positive, `N` is not negative and 0 in every other sample, `x y z` are any real numbers,
`t u` are truth values. Scores that `t` or `u` masks are -inf where it is 0, and stand in exponentials.
The checker's normal forms and the emitter's are asked, each written apart from the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from checker.errors import Undecided
from checker.language.proof import Element, Ref, Tensor
from checker.rules.field import Field, Infinite
from orchestrator.cells import Unfollowable
from orchestrator.relating.quotients import OMEGA, Quotient, Quotients

Term = Any
"""A letter, a number, or (operator, term, …) with + - * recip exp log logistic tanh."""
POSITIVE, REAL, NEVER_NEGATIVE, TRUTH = ("P", "Q", "R"), ("x", "y", "z"), ("N",), ("t", "u")
SAMPLES = 6
DIGITS = 300
#: Arguments nearer to zero than this may be zero that was rounded.
TINY: dict[type, Any] = {float: 1e-9, Decimal: Decimal(10) ** -250}


@dataclass
class Tally:
    """What the pairs came to; ``false`` are called equal and differ."""

    pairs: int = 0
    equal: int = 0
    missed: int = 0
    undecided: int = 0
    apart: int = 0
    false: list[tuple[Term, Term]] = field(default_factory=list)

    def table(self) -> str:
        return (
            f"{self.pairs} pairs, called equal {self.equal}, equal and not found {self.missed}, too large "
            f"{self.undecided}, checker and emitter of two minds {self.apart}; called equal though they "
            f"differ: {len(self.false)}"
        )


class Signs:
    """What is evident of letters; with ``weak``, that real numbers are positive."""

    def __init__(self, weak: bool = False) -> None:
        self.sure = {*POSITIVE, *(REAL if weak else ())}

    def positive(self, ref: Ref) -> bool:
        return isinstance(ref, Tensor) and ref.value in self.sure

    def nonnegative(self, ref: Ref) -> bool:
        return self.positive(ref) or (isinstance(ref, Tensor) and ref.value in NEVER_NEGATIVE)

    def finite(self, _ref: Ref) -> bool:
        return True

    def truth(self, ref: Ref) -> bool:
        return isinstance(ref, Tensor) and ref.value in TRUTH


def node(t: Term) -> Any:
    """As the checker reads it."""
    if isinstance(t, str):
        return Element(Tensor("s", t), ())
    if isinstance(t, int):
        return ("lit", Fraction(t))
    if t[0] == "masked":
        mask, score = map(node, t[1:])
        return ("+", ("neg_inf",), ("mul", mask, ("-", score, ("neg_inf",))))
    names = {"*": "mul", "exp": "fexp", "log": "flog", "logistic": "flogistic", "tanh": "ftanh"}
    head = "neg" if t[0] == "-" and len(t) == 2 else names.get(t[0], t[0])
    return (head, *map(node, t[1:]))


def quotient(quotients: Quotients, t: Term) -> Quotient:
    """As the emitter reads it."""
    if isinstance(t, str):
        return quotients.letter(t)
    if isinstance(t, int):
        return quotients.number(Fraction(t))
    parts = [quotient(quotients, x) for x in t[1:]]
    match t[0]:
        case "masked":
            infinite = quotients.letter(OMEGA)
            up = quotients.plus(parts[1], quotients.scaled(infinite, Fraction(-1)))
            return quotients.plus(infinite, quotients.times(parts[0], up))
        case "+":
            return quotients.plus(*parts)
        case "-":
            last = quotients.scaled(parts[-1], Fraction(-1))
            return quotients.plus(parts[0], last) if len(parts) == 2 else last
        case "*":
            return quotients.times(*parts)
    return quotients.apply("exponential" if t[0] == "exp" else t[0], *parts)


def value(t: Term, at: Mapping[str, Any]) -> Any:
    """In the numbers that ``at`` has; functions are total, with values of no meaning outside their domain."""
    number = type(at["P"])
    if isinstance(t, str):
        return at[t]
    if isinstance(t, int):
        return number(t)
    v = [value(x, at) for x in t[1:]]
    match t[0]:
        case "masked":
            return v[1] if v[0] else number("-inf")
        case "+":
            return v[0] + v[1]
        case "-":
            return v[0] - v[1] if len(v) == 2 else -v[0]
        case "*":
            return v[0] * v[1]
        case "exp" if v[0] == number("-inf"):
            return number(0)
        case _ if 0 < abs(v[0]) < TINY[number] or abs(v[0]) > 300:
            raise ValueError("rounded, or not")
        case "recip":
            return 1 / v[0] if v[0] else number(0)
        case "log":
            return (math.log(v[0]) if number is float else v[0].ln()) if v[0] > 0 else 5 + v[0]
    e = math.exp if number is float else Decimal.exp
    if t[0] == "exp":
        return e(v[0])
    return 1 / (1 + e(-v[0])) if t[0] == "logistic" else 1 - 2 / (1 + e(2 * v[0]))


class Random:
    """Random terms; those under ``log`` and ``recip`` are mostly positive."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def positive(self, depth: int) -> Term:
        if depth == 0:
            return self.rng.choice([*POSITIVE, 1, 2])
        inner = self.positive
        kind = self.rng.choice(("+", "*", "recip", "exp", "logistic", "N", "deeper"))
        if kind in ("+", "*"):
            return (kind, inner(depth - 1), inner(depth - 1))
        if kind == "N":
            return ("+", ("*", "N", inner(depth - 1)), inner(depth - 1))
        if kind in ("exp", "logistic"):
            return (kind, self.real(depth - 1))
        return ("recip", inner(depth - 1)) if kind == "recip" else inner(depth - 1)

    def real(self, depth: int) -> Term:
        if depth == 0:
            return self.rng.choice([*REAL, *POSITIVE, *NEVER_NEGATIVE, *TRUTH, 0, 1])
        kind = self.rng.choice(("+", "-", "*", "neg", "log", "any", "tanh", "positive", "masked"))
        if kind == "masked":
            scores = ("masked", self.rng.choice(TRUTH), self.real(depth - 1))
            return ("exp", (self.rng.choice("+-"), scores, self.real(depth - 1)))
        if kind in ("+", "-", "*"):
            return (kind, self.real(depth - 1), self.real(depth - 1))
        if kind == "any":  # with nothing evident of the argument
            return (self.rng.choice(("log", "recip", "exp")), self.real(depth - 1))
        if kind in ("log", "positive"):
            inner = self.positive(depth - 1)
            return ("log", inner) if kind == "log" else inner
        return ("-" if kind == "neg" else "tanh", self.real(depth - 1))

    def rewritten(self, t: Term) -> Term:
        """One step, which may or may not be true."""
        if not isinstance(t, tuple) or self.rng.random() < 0.3:
            return self._wrapped(t)
        head, *parts = t
        inner = parts[0]
        pair = isinstance(inner, tuple) and len(inner) == 3
        if head == "exp" and pair and inner[0] in "+-":
            second = ("exp", inner[2]) if inner[0] == "+" else ("recip", ("exp", inner[2]))
            return ("*", ("exp", inner[1]), second)
        if head == "exp" and pair and inner[0] == "masked":
            mask = inner[1] if self.rng.random() < 0.8 else ("-", 1, inner[1])
            return ("*", mask, ("exp", inner[2]))
        if head in ("log", "recip") and pair and inner[0] == "*":
            return ("+" if head == "log" else "*", (head, inner[1]), (head, inner[2]))
        if head == "logistic":
            e = ("exp", inner)
            forms = [
                ("recip", ("+", 1, ("exp", ("-", inner)))),
                ("*", e, ("recip", ("+", 1, e))),
                ("-", 1, ("logistic", ("-", inner))),
            ]
            return self.rng.choice(forms)
        if head in "+*" and self.rng.random() < 0.4:
            return (head, parts[1], parts[0])
        i = self.rng.randrange(len(parts))
        return (head, *parts[:i], self.rewritten(parts[i]), *parts[i + 1 :])

    def _wrapped(self, t: Term) -> Term:
        other = self.rng.choice([*POSITIVE, *REAL])
        forms = [
            ("exp", ("log", t)),
            ("log", ("exp", t)),
            ("recip", ("recip", t)),
            ("-", ("+", t, other), other),
            ("*", ("*", t, other), ("recip", other)),
            ("*", ("*", t, ("exp", other)), ("exp", ("-", other))),
            ("-", 1, ("logistic", ("-", t))),
            ("*", t, t),
            ("*", t, self.rng.choice(TRUTH)),
        ]
        return self.rng.choice(forms)


def run(pairs: int, seed: int, *, weak: bool = False, first: bool = False) -> Tally:
    """Random pairs to both normal forms and to floating point; ``weak`` must find a false one."""
    tally, g, signs = Tally(), Random(seed), Signs(weak)
    sample = random.Random(seed + 1)
    for _ in range(pairs):
        left = g.real(g.rng.randrange(1, 5))
        right = left
        for _ in range(g.rng.randrange(1, 5)):
            right = g.rewritten(right)
        if g.rng.random() < 0.2:
            right = g.real(2)
        tally.pairs += 1
        try:
            said = Field(signs).equal(node(left), node(right))  # type: ignore[arg-type]
            other = _emitter(signs, left, right)
        except (Undecided, Unfollowable, Infinite):
            tally.undecided += 1
            continue
        close = _close(left, right, sample)
        tally.equal += said
        tally.apart += said != other
        tally.missed += close is True and not said
        if (said or other) and close is False:
            tally.false.append((left, right))
            if first:
                break
    return tally


def _emitter(signs: Signs, left: Term, right: Term) -> bool:
    def named(holds: Any) -> Any:
        return lambda letter: isinstance(letter, str) and holds(Tensor("s", letter))

    positive: Any = named(signs.positive)
    nonnegative: Any = named(signs.nonnegative)
    truth: Any = named(signs.truth)
    quotients = Quotients(positive, nonnegative, truth)
    a, b = quotient(quotients, left), quotient(quotients, right)
    if quotients.infinite(a) or quotients.infinite(b):
        raise Unfollowable("infinite")
    return quotients.ratio(a, b) == 1 or (not a.above and not b.above)


def _close(left: Term, right: Term, sample: random.Random) -> bool | None:
    """Whether both are one number in all samples that have one; ``None`` if none has.

    What differs in floating point is asked again with many digits.
    """
    seen: bool | None = None
    for k in range(SAMPLES):
        at = {n: sample.uniform(0.3, 2) for n in POSITIVE} | {n: sample.uniform(-1, 1) for n in REAL}
        at |= dict.fromkeys(NEVER_NEGATIVE, 0.0 if k % 2 else 0.7)
        at |= {n: float(sample.randrange(2)) for n in TRUTH}
        try:
            u, v = value(left, at), value(right, at)
            if abs(u - v) > 1e-6 * (1 + abs(u) + abs(v)):
                with localcontext(prec=DIGITS):
                    u, v = (value(t, {n: Decimal(x) for n, x in at.items()}) for t in (left, right))
        except (OverflowError, ValueError, ZeroDivisionError):
            continue
        if abs(u - v) > 1e-6 * (1 + float(abs(u)) + float(abs(v))):
            return False
        seen = True
    return seen
