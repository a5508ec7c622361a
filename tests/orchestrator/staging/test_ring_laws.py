"""Ring normal forms: equal to the element they stand for, and every recorded law is one."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.plan import Plan
from certificates.proof.stages import Elem, Law, Term
from orchestrator.staging.ring_laws import Polynomial, Polynomials
from smtlib_emit.algebra import NO_ALGEBRA, AlgebraText
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model
from tests.smtlib_emit.meaning import Meaning, elem, exact_stage

from ..oracle import Numbers
from ..plans import every_op
from ..random_plans import random_plan


class Forms:
    """Normal forms of the elements of one plan, everything unfolded down to inputs and data movement."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.model, self.numbers = Model(plan), Numbers(plan, seed)
        sums = [self.model.reduced(r, "add") for r, op in self.model.ops.items() if op.name == "all_reduce"]
        self.stage = exact_stage(self.model, 0, [*self.model.tensors.types, *sums])
        self.text = AlgebraText(self.model, [], self.stage)
        self.polynomials = Polynomials(self.text, self._defined, {})

    def _defined(self, e: Elem) -> bool:
        if not isinstance(e.ref, str):
            return True
        op = self.model.op(e.ref)
        return op is not None and op.name not in NO_ALGEBRA

    def number(self, term: Term) -> float:
        return float(Meaning(self.numbers, {}, self.stage).of(self.text.term(term)))

    def check(self, ref: str, index: tuple[int, ...]) -> Polynomial:
        """The normal form of an element has the element's value, and so has the term that is made of it."""
        found = self.polynomials.of(elem(self.model, ref, index))
        value = self.numbers.element(ref, index)
        assert self.number(self.polynomials.term(found)) == pytest.approx(value, rel=1e-7, abs=1e-9)
        return found

    def laws_hold(self) -> None:
        for law in self.polynomials.laws:
            left, right = self.number(law.lhs), self.number(law.rhs)
            assert left == pytest.approx(right, rel=1e-7, abs=1e-9), law


def check(plan: Plan, seed: int = 0) -> int:
    forms, rng = Forms(plan, seed), random.Random(seed)
    refs = [r for r, op in forms.model.ops.items() if op.name not in NO_ALGEBRA and op.type.size <= 64]
    for ref in refs:
        if isinstance(forms.model.literal(ref), str) or forms.model.is_collective(ref):
            continue
        at = tuple(rng.randrange(lo, hi) for lo, hi in forms.model.tensors.ranges(ref))
        forms.check(ref, at)
    forms.laws_hold()
    return len(forms.polynomials.laws)


def test_normal_forms_of_the_hand_written_mlp(mlp: Plan) -> None:
    assert check(mlp) > 5


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 100_000))
def test_normal_forms_of_random_plans(seed: int) -> None:
    check(random_plan(seed, 6), seed)


def test_normal_forms_of_every_elementwise_op() -> None:
    check(every_op())


def forms_of(write: Any) -> tuple[Forms, list[str]]:
    b = ProgramBuilder()
    made = [f"s:{v.name}" for v in write(b)]
    plan = build_plan(
        name="forms",
        mesh={},
        specification=b.build(),
        classes=ProgramBuilder({}).build(),
        inputs={},
        outputs={},
    )
    return Forms(plan), made


def same(write: Any) -> bool:
    forms, (x, y) = forms_of(write)
    found = [forms.check(r, ()) for r in (x, y)]
    forms.laws_hold()
    return found[0] == found[1]


def inputs(b: ProgramBuilder) -> list[Any]:
    return [b.input(n, "f32[]") for n in "xyz"]


def test_the_order_and_the_brackets_of_sums_and_products_do_not_matter() -> None:
    def write(b: ProgramBuilder) -> list[Any]:
        x, y, z = inputs(b)
        return [(x + y) * (z * 2) - x, z * y * 2 + (x * z + z * x) - x]

    assert same(write)


def test_other_expressions_stay_other_expressions() -> None:
    def write(b: ProgramBuilder) -> list[Any]:
        x, y, z = inputs(b)
        return [(x + y) * z, x + y * z]

    assert not same(write)


def test_a_selection_is_a_polynomial_of_its_condition() -> None:
    def write(b: ProgramBuilder) -> list[Any]:
        x, y, z = inputs(b)
        p = b.compare(x, y, "LT")
        return [b.select(p, x * z, y * z), b.select(p, x, y) * z]

    assert same(write)


def test_functions_of_equal_arguments_are_equal() -> None:
    def write(b: ProgramBuilder) -> list[Any]:
        x, y, z = inputs(b)
        return [b.exponential(x + y) * z, z * b.exponential(y + x)]

    assert same(write)


def test_maxima_forget_order_and_repetition_and_keep_their_arguments() -> None:
    def tree(order: str) -> Any:
        def write(b: ProgramBuilder) -> list[Any]:
            values = dict(zip("xyz", inputs(b), strict=True))
            stacked = [b.concatenate([values[c].reshape(1) for c in word], 0) for word in ("xyz", order)]
            return [b.reduce(s, (0,), "max") for s in stacked]

        return write

    forms, (x, y) = forms_of(tree("zxyx"))
    for ref in (x, y):
        forms.check(ref, ())
    forms.laws_hold()


def test_the_reciprocal_of_a_number_is_a_number_and_says_so() -> None:
    def write(b: ProgramBuilder) -> list[Any]:
        x, y, _ = inputs(b)
        eight = b.constant(2, "f32[]") * 4
        return [x / eight, y / x]

    forms, (x, y) = forms_of(write)
    (monomial,) = forms.check(x, ())
    assert monomial[1] == Fraction(1, 8)
    assert Law("recip", ("recip", Fraction(8)), Fraction(1, 8)) in forms.polynomials.laws
    ((_, coef),) = forms.check(y, ())
    assert coef == 1 and not math.isnan(forms.numbers.element(y, ()))


def test_a_power_of_a_sum_is_multiplied_out_up_to_a_size() -> None:
    """Batch normalisation by hand multiplies sums over all elements: it was endless."""

    def write(b: ProgramBuilder) -> list[Any]:
        x, y, z = inputs(b)
        powers = [x + y + z]
        for _ in range(5):
            powers.append(powers[-1] * powers[-1])
        return powers[-2:]

    forms, (small, large) = forms_of(write)
    assert len(forms.polynomials.of(elem(forms.model, small, ()))) == 153
    with pytest.raises(NoDefinition, match="more than 10000 products"):
        forms.polynomials.of(elem(forms.model, large, ()))
