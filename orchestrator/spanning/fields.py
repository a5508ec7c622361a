"""Sums without boxes as quotients: relations that the law ``field`` shows."""

from __future__ import annotations

from fractions import Fraction

from ..relating.knowledge import Knowledge
from ..relating.quotients import Quotient, Quotients
from .terms import Call, Factor, Leaf, Sum

#: Functions with laws, and the ops around them that are no sums over an axis.
LAWFUL = frozenset(("exponential", "log", "logistic"))
FIELD = frozenset(("add", "subtract", "multiply", "divide", "negate")) | LAWFUL


def ratio(plan: Sum, spec: Sum, known: Knowledge) -> Fraction | None:
    """The factor by which one side is a multiple of the other, as quotients."""
    quotients = Quotients(
        lambda letter: isinstance(letter, Leaf) and known.positive(letter.ref),
        lambda letter: isinstance(letter, Leaf) and known.nonnegative(letter.ref),
        lambda letter: isinstance(letter, Leaf) and known.model.tensors.type(letter.ref).sort == "Bool",
    )
    return quotients.ratio(_sum(quotients, plan), _sum(quotients, spec))


def lawful(terms: Sum) -> bool:
    """Whether the law could say anything of a sum: it has an exponential, a logarithm or a divisor."""
    return any(_lawful(f) for t in terms for f in t.factors)


def _lawful(factor: Factor) -> bool:
    if isinstance(factor, Leaf):
        return False
    inner = (f for a in factor.arguments for factors, _ in a for f in factors)
    return factor.function in LAWFUL | {"recip"} or any(map(_lawful, inner))


def _sum(quotients: Quotients, terms: Sum) -> Quotient:
    total = quotients.number(Fraction(0))
    for term in terms:
        total = quotients.plus(total, _product(quotients, term.factors, term.coef))
    return total


def _product(quotients: Quotients, factors: tuple[Factor, ...], coef: Fraction) -> Quotient:
    out = quotients.number(coef)
    for factor in factors:
        out = quotients.times(out, _factor(quotients, factor))
    return out


def _factor(quotients: Quotients, factor: Factor) -> Quotient:
    if isinstance(factor, Leaf):
        return quotients.letter(factor)
    return quotients.apply(
        factor.function, *(_argument(quotients, factor, n) for n in range(len(factor.arguments)))
    )


def _argument(quotients: Quotients, call: Call, number: int) -> Quotient:
    total = quotients.number(Fraction(0))
    for factors, coef in call.arguments[number]:
        total = quotients.plus(total, _product(quotients, factors, coef))
    return total
