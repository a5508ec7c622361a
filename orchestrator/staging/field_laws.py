"""The instance of the law ``field`` that proves a case without sums: both sides, written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from certificates.plan.ops import OPS, fill
from certificates.proof.facts import Reduced, Ref
from certificates.proof.stages import Elem, Law, Term
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.errors import NoDefinition
from smtlib_emit.layout import variant

from ..relating.knowledge import Knowledge
from ..relating.quotients import OMEGA, Quotient, Quotients

#: Nodes of the two terms of an instance.
MAX_NODES = 2000
#: Free functions with laws, by their names in obligations.
_NAMES = {"fexp": "exponential", "flog": "log", "flogistic": "logistic", "recip": "recip"}


def field_law(
    text: AlgebraText,
    defined: Callable[[Elem], bool],
    replaced: Mapping[Elem, tuple[Fraction, Elem]],
    known: Knowledge,
    goal: tuple[Elem, Fraction, Elem],
) -> Law:
    """``left = coef * right`` as one instance; raises :class:`NoDefinition` if it is none."""
    writer = _Writer(text, defined, replaced, known.finite)
    left, coef, right = goal
    sides = writer.term(left), _times(coef, writer.term(right))
    quotients = Quotients(
        lambda e: isinstance(e, Elem) and known.positive(e.ref),
        lambda e: isinstance(e, Elem) and known.nonnegative(e.ref),
        lambda e: isinstance(e, Elem) and known.model.tensors.type(e.ref).sort == "Bool",
    )
    forms = [_form(quotients, side) for side in sides]
    if any(map(quotients.infinite, forms)):
        raise NoDefinition(f"{left.ref} may be infinite")
    if quotients.ratio(forms[0], forms[1]) != 1 and (forms[0].above or forms[1].above):
        raise NoDefinition(f"{left.ref}: its two sides are different quotients")
    return Law("field", *sides)


class _Writer:
    """Writes elements out, by their definitions and by facts."""

    def __init__(
        self,
        text: AlgebraText,
        defined: Callable[[Elem], bool],
        replaced: Mapping[Elem, tuple[Fraction, Elem]],
        finite: Callable[[Ref], bool],
    ) -> None:
        self.text, self.model, self.finite = text, text.model, finite
        self.defined, self.replaced = defined, replaced
        self._nodes = 0

    def term(self, e: Elem) -> Term:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise NoDefinition(f"more than {MAX_NODES} elements in a term")
        value = self.model.literal(e.ref)
        if value is not None:
            if value == "-inf":
                return ("neg_inf",)
            value = {"true": Fraction(1), "false": Fraction(0)}.get(str(value), value)
            if not isinstance(value, Fraction):
                raise NoDefinition(f"{e.ref} is not a rational literal")
            return value
        if self.defined(e):
            return self._definition(e)
        if e in self.replaced:
            coef, other = self.replaced[e]
            return _times(coef, self.term(other))
        if not self.finite(e.ref):
            raise NoDefinition(f"{e.ref} may be infinite")
        return e

    def _definition(self, e: Elem) -> Term:
        if isinstance(e.ref, Reduced) or self.model.ops[e.ref].name in ("reduce", "dot_general"):
            raise NoDefinition(f"{e.ref} is a sum")
        op = self.model.ops[e.ref]
        operands = [self.term(x) for x in self.text.operand_elements(e)]
        scale = self.model.scale(e.ref)
        if op.name in ("multiply", "divide") and scale is not None:
            return "*", scale[1], operands[scale[0]]
        if op.name in ("broadcast_in_dim", "transpose", "all_reduce"):
            return operands[0]
        sorts = [self.model.tensors.type(v).sort for v in self.model.operands(e.ref)]
        return _plain(fill(OPS[op.name].terms[variant(op, sorts)][1], operands))


def _times(coef: Fraction, term: Term) -> Term:
    return term if coef == 1 else ("*", coef, term)


def _plain(term: object) -> Term:
    """A term of the op table as a law writes it."""
    if isinstance(term, str):
        return Fraction(term)
    if isinstance(term, tuple) and term[0] != "*":
        head = "neg" if term[0] == "-" and len(term) == 2 else term[0]
        return (head, *(_plain(x) for x in term[1:]))
    assert isinstance(term, Elem | Fraction | tuple)
    return term


def _form(quotients: Quotients, term: Term) -> Quotient:
    """The normal form of a term."""
    if isinstance(term, Elem):
        return quotients.letter(term)
    if isinstance(term, Fraction):
        return quotients.number(term)
    head, *rest = term
    if head == "neg_inf":
        return quotients.letter(OMEGA)
    if head == "*":
        factor, inner = rest
        assert isinstance(factor, Fraction)
        return quotients.scaled(_form(quotients, _term(inner)), factor)
    parts = [_form(quotients, _term(x)) for x in rest]
    match head:
        case "+":
            return quotients.plus(*parts)
        case "-":
            return quotients.plus(parts[0], quotients.scaled(parts[1], Fraction(-1)))
        case "neg":
            return quotients.scaled(parts[0], Fraction(-1))
        case "mul":
            return quotients.times(*parts)
    return quotients.apply(_NAMES.get(str(head), str(head)), *parts)


def _term(node: object) -> Term:
    assert isinstance(node, Elem | Fraction | tuple)
    return node
