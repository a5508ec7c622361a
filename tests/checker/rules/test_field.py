"""The law `field`: every condition of docs/certificate.md, held and broken."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Undecided
from checker.language.proof import Element, Ref, Tensor
from checker.reading.plan import read_plan
from checker.rules import field
from checker.rules.field import Field, holds
from checker.rules.model import Model

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, one_case, op, plan_of, program, refuses

ONE = ("lit", Fraction(1))


class Signs:
    """Letters with a large first letter are positive, those with a small `n` not negative."""

    def positive(self, ref: Ref) -> bool:
        return isinstance(ref, Tensor) and ref.value[0].isupper()

    def nonnegative(self, ref: Ref) -> bool:
        return self.positive(ref) or (isinstance(ref, Tensor) and ref.value[0] == "n")

    def finite(self, ref: Ref) -> bool:
        return not (isinstance(ref, Tensor) and ref.value == "masked")

    def truth(self, ref: Ref) -> bool:
        return isinstance(ref, Tensor) and ref.value[0] == "t"


def letter(name: str) -> Element:
    return Element(Tensor("s", name), ())


M, P, Q, x, y, n, t, u = map(letter, ("m", "P1", "P2", "x", "y", "n", "t", "t2"))
OMEGA = ("neg_inf",)


def e(t: Any) -> Any:
    return ("fexp", t)


def log(t: Any) -> Any:
    return ("flog", t)


def minus(a: Any, b: Any) -> Any:
    return ("-", a, b)


def times(a: Any, b: Any) -> Any:
    return ("mul", a, b)


def over(a: Any, b: Any) -> Any:
    return ("mul", a, ("recip", b))


def chosen(p: Any, a: Any, b: Any) -> Any:
    """A ``select``, by its term."""
    return ("+", b, times(p, minus(a, b)))


def equal(a: Any, b: Any) -> bool:
    return Field(Signs()).equal(a, b)  # type: ignore[arg-type]


TRUE = {
    "exp of a difference": (e(minus(x, y)), over(e(x), e(y))),
    "exp of a difference with a logarithm": (e(minus(x, log(P))), over(e(x), P)),
    "log of a product": (log(times(P, e(x))), ("+", log(P), x)),
    "log of a quotient": (log(over(P, Q)), minus(log(P), log(Q))),
    "log with a common factor": (log(("+", times(e(x), P), times(e(x), Q))), ("+", x, log(("+", P, Q)))),
    "logistic": (("flogistic", x), over(e(x), ("+", ONE, e(x)))),
    "one minus logistic": (minus(ONE, ("flogistic", x)), ("flogistic", ("neg", x))),
    "cross-multiplied": (over(x, ("+", P, Q)), over(("*", Fraction(2), x), ("*", Fraction(2), ("+", P, Q)))),
    "divided by itself": (over(("+", P, n), ("+", P, n)), ONE),
    "divided by what is negative": (over(x, ("neg", P)), ("neg", over(x, P))),
    "exp of a whole multiple of a logarithm": (e(("*", Fraction(-2), log(P))), over(ONE, times(P, P))),
    "exp of a quotient": (e(over(x, P)), e(times(("recip", P), x))),
    "other functions of equal terms": (("ftanh", log(e(x))), ("ftanh", x)),
    "a reciprocal of a product": (("recip", times(x, y)), times(("recip", x), ("recip", y))),
    "a reciprocal of a sum with a power": (
        times(e(M), ("recip", ("+", times(e(M), x), times(e(M), y)))),
        ("recip", ("+", x, y)),
    ),
    "a truth value twice": (times(t, t), t),
    "exp case by case": (
        e(chosen(t, x, y)),
        ("+", times(t, e(x)), times(minus(ONE, t), e(y))),
    ),
    "exp of masked scores": (e(minus(chosen(t, x, OMEGA), M)), over(times(t, e(x)), e(M))),
    "a mask of a mask": (times(t, e(chosen(t, x, ("lit", Fraction(-1000))))), times(t, e(x))),
    "two masks": (e(chosen(t, chosen(u, x, OMEGA), OMEGA)), times(times(t, u), e(x))),
    "a square root of an exponential": (
        times(e(("*", Fraction(1, 2), x)), e(("*", Fraction(1, 2), x))),
        e(x),
    ),
}
FALSE = {
    "another first argument of an unknown function": (("max2", x, y), ("max2", n, y)),
    "another last argument of an unknown function": (("max2", x, y), ("max2", x, n)),
    "wrong sign": (e(minus(x, y)), over(e(y), e(x))),
    "a divisor that may be zero": (over(x, x), ONE),
    "a divisor that is not negative": (over(n, n), ONE),
    "a logarithm of what may be negative": (e(log(x)), x),
    "a logarithm of what may be zero": (e(log(n)), n),
    "a difference of positive numbers": (over(minus(P, Q), minus(P, Q)), ONE),
    "a product with what is not negative": (over(times(P, n), times(P, n)), ONE),
    "another function": (("ftanh", x), ("fsin", x)),
    "a truth value of another": (times(t, u), t),
    "a number twice": (times(x, x), x),
    "the other case": (e(chosen(t, x, OMEGA)), times(minus(ONE, t), e(x))),
    "what a mask leaves": (e(chosen(t, x, OMEGA)), e(x)),
    "a masked sum by itself": (
        over(e(chosen(t, x, OMEGA)), e(chosen(t, x, OMEGA))),
        ONE,
    ),
    "a reciprocal of a sum": (("recip", ("+", x, y)), ("+", ("recip", x), ("recip", y))),
    "a logarithm of a sum": (log(("+", P, Q)), ("+", log(P), log(Q))),
    "zero's reciprocal": (("recip", ("lit", Fraction(0))), ("lit", Fraction(0))),
    "an exponential of a product": (e(times(x, y)), times(e(x), e(y))),
}


@pytest.mark.parametrize("name", TRUE)
def test_equal_quotients(name: str) -> None:
    left, right = TRUE[name]
    assert equal(left, right) and equal(right, left)
    assert not equal(left, ("*", Fraction(2), right))


@pytest.mark.parametrize("name", FALSE)
def test_what_differs_somewhere_is_no_instance(name: str) -> None:
    assert not equal(*FALSE[name])


def test_a_merge_of_two_blocks_of_keys() -> None:
    """As torch's ring attention has it, and with the gate of the other block."""
    a, b = letter("a"), letter("b")
    l1, l2, o1, o2 = ("+", M, log(P)), ("+", M, log(Q)), over(a, P), over(b, Q)
    both = over(("+", a, b), ("+", P, Q))
    assert equal(minus(o1, times(("flogistic", minus(l2, l1)), minus(o1, o2))), both)
    assert not equal(minus(o1, times(("flogistic", minus(l1, l2)), minus(o1, o2))), both)
    assert equal(minus(l1, log(("flogistic", minus(l1, l2)))), ("+", M, log(("+", P, Q))))


def test_an_instance_without_a_bound_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    many: Any = letter("P0")
    for i in range(5):
        many = ("+", many, letter(f"x{i}"))
    power = many
    for _ in range(15):
        power = ("mul", power, many)
    with pytest.raises(Undecided, match="too large"):
        equal(power, power)
    monkeypatch.setattr(field, "MAX_BITS", 8)
    with pytest.raises(Undecided, match="coefficient"):
        equal(("*", Fraction(1, 1000), x), x)


def test_nothing_infinite() -> None:
    masked = letter("masked")
    inside = (e(("neg", OMEGA)), e(times(x, OMEGA)), log(OMEGA), ("recip", OMEGA), ("ftanh", OMEGA))
    shut = (chosen(t, x, OMEGA), e(("neg", chosen(t, x, OMEGA))), e(over(OMEGA, P)), e(times(OMEGA, OMEGA)))
    for one in (masked, OMEGA, ("pos_inf",), e(masked), e(("pos_inf",)), minus(x, OMEGA), *inside, *shut):
        with pytest.raises(field.Infinite):
            equal(one, one)


V = "f32[4]"
SPEC = [
    op("%0", "exponential", ["x"], V),
    op("%1", "constant", [], V, value="-inf"),
    op("%2", "select", ["p", "x", "%1"], V),
    op("%3", "exponential", ["%2"], V),
    op("%4", "reduce", ["%0"], "f32[]", dims=[0], kind="add"),
]


def case(*premises: Any) -> Any:
    """A stage about `%0`, one element of a class of 4."""
    spec = program([["g", "f32[]"], ["x", V], ["p", "i1[4]"]], SPEC, [])
    trees = {f"s:{t}": [[[0, ["i"]]]] for t in ("x", "p", "%0", "%1", "%2", "%3")} | {"s:%4": []}
    return one_case(list(premises), spec=spec, trees=trees, classes=(("i", 4, 2),))


def law(left: Any, right: Any) -> Any:
    return {"k": "law", "schema": "field", "lhs": left, "rhs": right}


X, E, MASKED, SHUT = (["e", f"s:{t}", [[0, 0]]] for t in ("x", "%0", "%2", "%3"))
TOTAL = ["e", "s:%4", []]


def test_in_a_stage() -> None:
    case(law(["mul", E, ["recip", E]], ["lit", "1"]))
    case(law(["flog", ["fexp", X]], X))
    case(law(["mul", TOTAL, ["recip", TOTAL]], ["lit", "1"]))
    with refuses(7, "no instance of the field law"):
        case(law(["mul", X, ["recip", X]], ["lit", "1"]))
    with refuses(7, "no instance of the field law"):  # exp of what a mask makes infinite is zero there
        case(law(["mul", SHUT, ["recip", SHUT]], ["lit", "1"]))
    with refuses(7, "no instance of the field law"):  # exp(w - w) is 1, exp(w) recip(exp(w)) is not
        case(law(["fexp", ["-", MASKED, MASKED]], ["lit", "1"]))


def test_not_beside_a_sum() -> None:
    good = law(["mul", TOTAL, ["recip", TOTAL]], ["lit", "1"])
    with refuses(7, "the field law beside a sum"):
        case(good, {"k": "def", "e": ["s:%4", []]})


def test_holds_asks_the_plan() -> None:
    classes = [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}]
    ops = [*SPEC, op("%5", "subtract", ["x", "x"], V)]
    spec = program([["x", V], ["p", "i1[4]"]], ops, [])
    found = Model(read_plan(dump(plan_of([["r", 1]], spec, classes, [], []))))
    letters = {o.name: Element(Tensor("s", o.result), ((0, 0),)) for o in found.plan.spec.ops[::5]}
    assert holds(found, over(letters["exponential"], letters["exponential"]), ONE)
    assert not holds(found, over(letters["subtract"], letters["subtract"]), ONE)
