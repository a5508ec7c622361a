"""The laws that an algebra stage may use (obligation 7): one table, from which everything about them follows.

A law is an identity of total functions over the reals. It may be used in a stage at reduced sizes if no law
of the case changes how often a variable is summed (docs/theory.md); `sums` says where it is not shown.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from . import field, roots
from .model import Model
from .normalise import Node, Normaliser, leaves_of


class Rule(NamedTuple):
    """`sentence` and `sound` (why it is true, under which condition) are for people; `holds` decides."""

    sentence: str
    sound: str
    holds: Callable[[Model, Node, Node], bool]
    sums: bool = True


def ring(model: Model, left: Node, right: Node) -> bool:
    """Equal polynomials over what is no sum, product or literal."""
    return Normaliser({}, opaque=True).equal(left, right)


def lattice(model: Model, left: Node, right: Node) -> bool:
    """Nested maxima, or minima, of one set of leaves."""
    heads = [n[0] for n in (left, right) if isinstance(n, tuple) and n[0] in ("max2", "min2")]
    return bool(heads) and set(leaves_of(heads[0], left)) == set(leaves_of(heads[0], right))


def recip(model: Model, left: Node, right: Node) -> bool:
    match left, right:
        case ("recip", ("lit", Fraction() as a)), ("lit", Fraction() as b):
            return a * b == 1
    return False


LAWS = {
    "ring": Rule(
        "identities of commutative rings over `mul`, + and -, with rational coefficients",
        "the reals are a commutative ring; other functions count as unknowns",
        ring,
    ),
    "lattice": Rule(
        "associativity, commutativity and idempotence of `max2` and of `min2`",
        "the reals are ordered linearly",
        lattice,
    ),
    "recip": Rule(
        "the reciprocal of a literal that is not zero",
        "`recip` is the reciprocal outside zero, whatever it is at zero",
        recip,
    ),
    "root": Rule(
        "`sqrt(p) * sqrt(p) = p` for p that cannot be negative, in stages without sums",
        "`sqrt` is the root of what is not negative; that the sign is so, the way in which the tensor is "
        "computed shows (`roots.py`)",
        roots.holds,
        sums=False,
    ),
    "field": Rule(
        "equal quotients of exponential polynomials: `exp` of a sum, `log` of a product, `logistic`, "
        "`p * recip(p) = 1`, where what is divided by or has a logarithm is evidently positive, in stages "
        "without sums",
        "`exp` turns sums of real numbers into products and is positive, `log` undoes it; that an element is "
        "positive or finite, the way in which the tensor is computed shows (`positive.py`)",
        field.holds,
        sums=False,
    ),
}
