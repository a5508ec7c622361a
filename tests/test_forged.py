"""Forged stages: what a malicious generator would have to claim, and the obligation that stops it.

Each forged reduction is a true accident: with so few representatives the two sides have one normal form, so
that every solver would confirm them. Only the checker's own widths, patterns and laws stand in between.
"""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.errors import FormatError
from certificates.plan.placements import Partial
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from checker.errors import Rejected
from checker.language.affine import Affine
from checker.language.proof import (
    BoundPart,
    BoundSymbol,
    Def,
    Element,
    ElementDef,
    ElementHyp,
    Hyp,
    Law,
    LayoutPremise,
    LayoutStage,
    Tensor,
)
from checker.reading.plan import read_plan
from checker.rules.algebra import Algebra
from checker.rules.layout import Layout
from checker.rules.model import Model
from checker.rules.normalise import Normaliser
from checker.rules.relations import check_once, relation_facts
from tests.fuzz.families import product, total
from tests.fuzz.stages import Direct, Pair
from tests.fuzz.terms import CLASSES, Term, differ, number

A, B, C = (("L", "a", (v,)) for v in ("i0", "i1", "i2"))


def s(v: str, t: Term) -> Term:
    return ("S", v, t)


def f(t: Term) -> Term:
    return ("F", "exponential", t)


def times(c: int | Fraction, t: Term) -> Term:
    return ("*", number(c), t)


def minus(x: Term, y: Term) -> Term:
    return ("+", x, times(-1, y))


def mean(v: str, t: Term, n: int) -> Term:
    return times(Fraction(1, n), s(v, t))


def power(t: Term, e: int) -> Term:
    return product([t] * e)


def rms(n: int) -> Term:
    return ("*", A, ("F", "rsqrt", mean("i1", ("*", B, B), n)))


def hidden(e: int, m: int, n: int) -> Term:
    """A power sum of ten variables, scaled to three, inside a maximum."""
    t = times(Fraction(m, n), s("i0", power(A, e)))
    return ("m", t, t)


P = {e: hidden(e, 3, 10) for e in range(1, 5)}
HIDDEN = total([
    product([P[1]] * 4), times(-6, product([P[1], P[1], P[2]])), times(3, ("*", P[2], P[2])),
    times(8, ("*", P[1], P[3])), times(-6, P[4]),
])  # fmt: skip

#: name: left, right, true size of class i, forged number of representatives
FORGED: dict[str, tuple[Term, Term, int, int]] = {
    "mean of f against f of mean": (mean("i0", f(A), 64), f(mean("i0", A, 64)), 64, 1),
    "maximum against mean": (("M", "i0", A), mean("i0", A, 64), 64, 1),
    "square of a sum against n times a sum of squares": (
        ("*", s("i0", A), s("i1", B)), times(64, s("i0", ("*", A, A))), 64, 1,
    ),
    "sum of f(sum a - 2 a_i)": (
        s("i0", f(minus(s("i1", B), times(2, A)))), s("i0", f(times(2, A))), 4, 2,
    ),
    "maximum of sum a - 2 a_i": (
        ("M", "i0", minus(s("i1", B), times(2, A))), ("M", "i0", times(2, A)), 4, 2,
    ),
    "8 exp(sum a), as a free function": (
        times(8, f(s("i0", A))),
        minus(s("i0", s("i1", f(("+", times(2, A), times(2, B))))), times(2, s("i0", f(times(4, A))))), 4, 2,
    ),
    "RMSNorm without its mean": (rms(1), rms(8), 8, 1),
    "power sums hidden in maxima": (HIDDEN, number(0), 10, 3),
}  # fmt: skip


def sizes(n: int) -> dict[str, int]:
    return {"i": n, "j": 2, "r": 2, "k": 2, "u": 2, "v": 2}


def forged(left: Term, right: Term, n: int, m: int) -> tuple[Pair, dict[str, int], Direct]:
    pair = Pair(left, right, sizes(n))
    least = pair.representatives(pair.width()) | {"i": m}
    return pair, least, Direct(pair.sides, pair.stage(least))


@pytest.mark.parametrize("name", [n for n in FORGED if n != "RMSNorm without its mean"])
def test_too_few_representatives(name: str) -> None:
    left, right, n, m = FORGED[name]
    assert differ(left, right, sizes(n))
    pair, least, stage = forged(left, right, n, m)
    assert all(Normaliser(defs).equal(x, y) for _, _, defs, x, y, _ in stage.cases), "this is no accident"
    with pytest.raises(Rejected, match=r"obligation 9 .*class i of size"):
        pair.confirm(least, stage.premises)
    assert not pair.accepted()


def test_literals_keep_their_true_value() -> None:
    """The mean of RMSNorm is a literal: no number of representatives makes it disappear."""
    left, right, n, m = FORGED["RMSNorm without its mean"]
    for few in (m, 2, 4):
        _, _, stage = forged(left, right, n, few)
        assert not any(Normaliser(defs).equal(x, y) for _, _, defs, x, y, _ in stage.cases)


def test_every_coincidence_of_a_small_class() -> None:
    """a_i + a_j = sum a at n = 2 holds for i and j distinct, which is one of two cases."""
    pair = Pair(("+", A, B), s("i2", C), sizes(2))
    stage = pair.stage({c: sizes(2)[c] for c in CLASSES})
    distinct = [c for c in stage.cases if len({r[0] for r in c.reps[1:]}) == 2]
    assert len(stage.cases) == 2 and len(distinct) == 1
    direct = Direct(pair.sides, stage)
    holds = [Normaliser(defs).equal(x, y) for _, _, defs, x, y, _ in direct.cases]
    assert [c in distinct for c in stage.cases] == holds
    alone = type(stage)(stage.goal, stage.title, stage.classes, stage.trees, stage.goal_at, tuple(distinct))
    with pytest.raises(Rejected, match=r"obligation 10 .*2 coincidence patterns"):
        Algebra(Model(pair.sides.plan()), pair.sides.facts, alone, "forged")


X = Element(Tensor("s", "a"), ((0, 0),))
Y = Element(Tensor("s", "a"), ((0, 1),))
ONE, ZERO = ("lit", Fraction(1)), ("lit", Fraction(0))
LAWS = {
    "p recip(p) = 1": ("mul", X, ("recip", X)),
    "mul(p, p) = p": ("+", ("-", ("mul", X, X), X), ONE),
    "p_ij p_ji = 0": ("+", ("mul", X, Y), ONE),
    "sqrt(p)^2 = p": ("+", ("-", ("mul", ("fsqrt", X), ("fsqrt", X)), X), ONE),
    "exp(a) exp(b) = exp(a + b)": (
        "+", ("-", ("mul", ("fexp", X), ("fexp", Y)), ("fexp", ("+", X, Y))), ONE,
    ),
    "exp(-inf) = 0": ("+", ("fexp", ("neg_inf",)), ONE),
    "max(x, y) = x": ("+", ("-", ("max2", X, Y), X), ONE),
}  # fmt: skip


@pytest.mark.parametrize("schema", ["ring", "lattice", "recip", "root", "field"])
@pytest.mark.parametrize("name", LAWS)
def test_a_law_that_is_not_listed(name: str, schema: str) -> None:
    pair = Pair(s("i0", f(A)), s("i0", f(A)), sizes(9))
    m = pair.representatives(pair.width())
    premises = Direct(pair.sides, pair.stage(m)).premises
    law = Law(schema, LAWS[name], ONE)
    with pytest.raises(Rejected, match=r"obligation 7 "):
        pair.confirm(m, [(*premises[0], law)])


def test_two_hypotheses_on_one_tensor() -> None:
    """A second fact about a tensor that one fact defines already would equate what they say."""
    pair = Pair(s("i0", A), s("i0", A), sizes(9))
    m = pair.representatives(pair.width())
    (premises,) = Direct(pair.sides, pair.stage(m)).premises
    hyp = next(p for p in premises if isinstance(p, ElementHyp))
    fact = pair.sides.facts[hyp.fact]
    other = type(fact)(fact.lhs, Tensor("s", "b"), fact.coef, fact.symbols, fact.lhs_index, fact.rhs_index)
    pair.sides.facts.insert(0, other)
    shifted = [ElementHyp(p.fact + 1, p.at, p.defines) if isinstance(p, ElementHyp) else p for p in premises]
    with pytest.raises(Rejected, match=r"obligation 4 .*defined twice"):
        pair.confirm(m, [(*shifted, ElementHyp(0, hyp.at, hyp.defines))])


def test_positions_have_no_meaning_in_an_algebra_stage() -> None:
    """A count of mask positions or a one-hot total would need the definition of an iota."""
    pair = Pair(s("i0", A), s("i0", A), sizes(9))
    m = pair.representatives(pair.width())
    pair.sides.op("s", "iota", (), ("i0",), "i64", dim=0)
    iota = Element(Tensor("s", pair.sides.ops["s"][-1].result), ((0, 0),))
    with pytest.raises(Rejected, match=r"obligation 5 .*iota of .* has no algebra def"):
        pair.confirm(m, [(ElementDef(iota),)])


def test_a_fresh_symbol_stands_for_one_coordinate() -> None:
    """Were q0 and q1 given both coordinates, only the diagonal would be left: z0 = 4 q0 + q1 = 4 q1 + q0.
    There a flattened tensor equals its flattened transpose (ADR 0011)."""
    specification, local = ProgramBuilder(), ProgramBuilder({"dp": 1})
    specification.output("y", specification.input("x", "f32[4,4]").reshape(16))
    local.output("y", local.input("x", "f32[4,4]").T.reshape(16))
    plan = read_plan(dumps(build_plan(
        name="forged", mesh={"dp": 1}, specification=specification.build(), classes=local.build(),
        inputs={"x": {}}, outputs={"y": {}},
    )))  # fmt: skip
    (given,) = relation_facts(plan, plan.inputs[0], "inputs")
    (goal,) = relation_facts(plan, plan.outputs[0], "outputs")
    dp, z, q0, q1, q2, q3 = (Affine.symbol(v) for v in ("dp", "z0", "q0", "q1", "q2", "q3"))
    moved = Tensor("c0", "%0")
    honest: tuple[LayoutPremise, ...] = (
        *(BoundSymbol(f"q{i}") for i in range(4)),
        BoundPart(goal.rhs, (z,), (q0, q1), 0),
        Def(goal.rhs, (z,), (q0, q1)),
        BoundPart(goal.lhs, (dp, z), (dp, q2, q3), 0),
        Def(goal.lhs, (dp, z), (dp, q2, q3)),
        Def(moved, (dp, q2, q3), None),
        Hyp((0,), (dp, q3, q2), (), "add"),
    )

    def stage(premises: tuple[LayoutPremise, ...]) -> Layout:
        symbols = tuple((f"q{i}", (0, 4)) for i in range(4))
        return Layout(Model(plan), [given, goal], LayoutStage(1, "", "0001", symbols, premises), "forged")

    assert stage(honest).assertions
    with pytest.raises(Rejected, match=r"obligation 6 .*q1 is introduced twice"):
        stage((*honest[:5], BoundPart(goal.rhs, (z,), (q1, q0), 0), *honest[5:]))


def test_two_partial_sums_on_one_tensor() -> None:
    """An input relation that makes one sum over ranks two things would assume that these are equal."""
    specification, local = ProgramBuilder(), ProgramBuilder({"dp": 2})
    for name in "xz":
        specification.output(f"y{name}", specification.input(name, "f32[4]") * 2)
    for name in "xz":
        total = local.all_reduce(local.input(name, "f32[4]"), "dp")
        local.output(f"y{name}", total * 2)
    plan = build_plan(
        name="forged", mesh={"dp": 2}, specification=specification.build(), classes=local.build(),
        inputs={"x": {"dp": Partial()}, "z": {"dp": Partial()}}, outputs={"yx": {}, "yz": {}},
    )  # fmt: skip
    document = json.loads(dumps(plan))
    document["inputs"][1]["plan"] = "x"
    data = (json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n").encode()
    with pytest.raises(FormatError, match="x"):
        loads(data)
    with pytest.raises(Rejected, match=r"obligation 15 .*two pieces may give one element"):
        check_once(read_plan(data).inputs, 15)


def test_square_roots_only_without_sums() -> None:
    """sqrt(p) sqrt(p) = p for p = exp a; among a sum's definitions, and for an input, it is refused."""
    pair = Pair(f(A), f(A), sizes(9))
    m = pair.representatives(pair.width())
    (premises,) = Direct(pair.sides, pair.stage(m)).premises
    p = next(
        d.e
        for d in premises
        if isinstance(d, ElementDef) and isinstance(d.e.ref, Tensor) and d.e.ref.space == "s"
    )
    root = Law("root", ("mul", ("fsqrt", p), ("fsqrt", p)), p)
    pair.confirm(m, [(*premises, root)])
    given = Law("root", ("mul", ("fsqrt", X), ("fsqrt", X)), X)
    with pytest.raises(Rejected, match=r"obligation 7 .*no instance of the root law"):
        pair.confirm(m, [(*premises, given)])
    summed = Pair(s("i0", f(A)), s("i0", f(A)), sizes(9))
    m = summed.representatives(summed.width())
    (premises,) = Direct(summed.sides, summed.stage(m)).premises
    p = next(
        d.e
        for d in premises
        if isinstance(d, ElementDef)
        and isinstance(d.e.ref, Tensor)
        and any(
            o.result == d.e.ref.value and o.name == "exponential" for o in summed.sides.ops[d.e.ref.space]
        )
    )
    with pytest.raises(Rejected, match=r"obligation 7 .*the root law beside a sum"):
        summed.confirm(m, [(*premises, Law("root", ("mul", ("fsqrt", p), ("fsqrt", p)), p))])


def test_divided_by_what_is_positive_only_without_sums() -> None:
    """p recip(p) = 1 for p = exp a; for an input, and beside the definition of a sum, it is refused.

    Beside sums it would prove that c4 P1 - 6 c3 P2 r + 3 c2 P2^2 r^3 + 8 c2 P3 r^2 - 6 c1 P4 r^3 is 0, with
    power sums P of exponentials, r = recip(P1) and c = (3/n)^k: that is so for the 3 representatives that its
    width asks for, and not for more.
    """

    def shown(ts: list[Fraction], weight: Fraction, n: int) -> Fraction:
        power = [weight * sum(t**k for t in ts) for k in range(5)]
        r, c = 1 / power[1], [Fraction(3, n) ** k for k in range(5)]
        squares = 3 * c[2] * power[2] ** 2 * r**3 - 6 * c[3] * power[2] * r
        return c[4] * power[1] + squares + 8 * c[2] * power[3] * r**2 - 6 * c[1] * power[4] * r**3

    some = [Fraction(k * k + 1, 7) for k in range(10)]
    assert shown(some[:3], Fraction(10, 3), 10) == 0 != shown(some, Fraction(1), 10)

    one = ("lit", Fraction(1))
    pair = Pair(f(A), f(A), sizes(9))
    m = pair.representatives(pair.width())
    (premises,) = Direct(pair.sides, pair.stage(m)).premises
    p = next(d.e for d in premises if isinstance(d, ElementDef) and d.e.ref.space == "s")  # type: ignore[union-attr]
    pair.confirm(m, [(*premises, Law("field", ("mul", p, ("recip", p)), one))])
    with pytest.raises(Rejected, match=r"obligation 7 .*no instance of the field law"):
        pair.confirm(m, [(*premises, Law("field", ("mul", X, ("recip", X)), one))])
    summed = Pair(s("i0", f(A)), s("i0", f(A)), sizes(9))
    m = summed.representatives(summed.width())
    (premises,) = Direct(summed.sides, summed.stage(m)).premises
    total = summed.sides.ops["s"][-1].result
    q = next(d.e for d in premises if isinstance(d, ElementDef) and d.e.ref == Tensor("s", total))
    with pytest.raises(Rejected, match=r"obligation 7 .*the field law beside a sum"):
        summed.confirm(m, [(*premises, Law("field", ("mul", q, ("recip", q)), one))])
