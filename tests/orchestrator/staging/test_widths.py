"""Widths: how many representatives are enough, on the examples of DESIGN section 3."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.stages import AlgebraStage, Elem
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores
from orchestrator.staging.widths import (
    BOUND,
    Application,
    Measure,
    Measurer,
    _apply,
    _either,
    _product,
    widths,
)
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from ..plans import Write, alone, pair, unproved


def summed(cls: str, *variables: int) -> Measure:
    """A product of elements over bound variables of one class, summed over them."""
    occurring = frozenset((cls, BOUND + v) for v in variables)
    return Measure(Counter({cls: len(variables)}), occurring)


def free(cls: str, rep: int = 0) -> Measure:
    return Measure(Counter(), frozenset({(cls, rep)}))


def width(sides: list[Measure], occurrences: int = 0, cls: str = "k") -> int:
    return widths(sides, Counter({cls: occurrences}), [cls])[cls]


def test_a_class_that_nothing_sums_needs_its_free_occurrences() -> None:
    assert width([free("k")], 1) == 1
    assert width([Measure()], 0) == 1
    assert width([free("k")], 3) == 3, "x_i + y_j against z_l has three indices to keep apart"


def test_a_contraction_needs_one_more_than_its_free_indices() -> None:
    assert width([summed("k", 0)], 1) == 2


def test_products_of_sums_add_up_and_sums_of_products_do_not() -> None:
    s1, s2 = summed("k", 0), summed("k", 1)
    assert width([_product([s1, s2])]) == 2
    assert width([_either([s1, s2])]) == 1
    assert width([_product([s1, _either([s1, _product([s2, s2])])])]) == 3


def test_a_function_of_a_sum_counts_its_argument_twice() -> None:
    """``mean f(a)`` against ``f(mean a)``: with width F + B = 1 they would be equal."""
    of_sum = _apply("exponential", [summed("k", 0)])
    assert of_sum.products == Counter()
    # s = 1 variable in each of two compared applications, b = 1 summed in a product inside: 0 + 1 + 1 + 1
    assert width([of_sum]) == 3
    outside = Measure(Counter({"k": 1}), frozenset({("k", BOUND)}))
    of_element = _apply("exponential", [Measure(Counter(), frozenset({("k", BOUND)}))])
    assert width([_product([outside, of_element]), of_sum]) == 3


def test_applications_of_different_functions_are_never_compared() -> None:
    deep = Measure(
        applications=frozenset(
            {Application("f", frozenset({("k", 2)}), ()), Application("g", frozenset(), ())}
        )
    )
    assert width([deep]) == 4
    alike = Measure(
        applications=frozenset({Application("f", frozenset({("k", 1)}), (("k", 2),)),
                                Application("f", frozenset({("k", 3)}), ())})
    )  # fmt: skip
    assert width([alike]) == 3 + 3 or width([alike]) == 1 + 3 + 2
    assert width([alike]) == max(1 + 1 + 2, 1 + 3 + 2, 3 + 3)


def test_classes_are_counted_apart() -> None:
    both = _product([summed("k", 0), summed("j", 0), summed("j", 1)])
    assert widths([both], Counter({"k": 2}), ["k", "j"]) == {"k": 3, "j": 2}


def test_a_maximum_passes_its_products_on() -> None:
    """ADR 0010: max2(t, t) = t takes the argument out again."""
    s = summed("k", 0)
    power = _product([_apply("max2", [s])] * 4)
    assert power.products["k"] == 4
    assert _product([_apply("tanh", [s])] * 4).products == Counter()


def stages(plan: Plan) -> dict[str, AlgebraStage]:
    engine = Engine(plan, Cores())
    engine.relate()
    for claims in engine.claims():
        for number in claims:
            engine.prove(number)
    return {s.title: s for s in engine.proved.built.values() if isinstance(s, AlgebraStage)}


def test_stages_take_as_many_representatives_as_they_need_and_no_more() -> None:
    """A row-parallel product at true sizes: 4096 positions become 2, a rank coordinate stays exact."""

    def write(size: int, axis: str | None) -> Write:
        def body(b: ProgramBuilder) -> None:
            x, w = b.input("x", f"f32[8,{size}]"), b.input("w", f"f32[{size},4096]")
            y = x @ w
            b.output("y", b.all_reduce(y, axis) if axis else y)

        return body

    plan = pair({"tp": 4}, write(4096, None), write(1024, "tp"),
                {"x": {"tp": Shard(1)}, "w": {"tp": Shard(0)}}, {"y": {}})  # fmt: skip
    assert unproved(plan) == []
    sizes = {(n, m) for s in stages(plan).values() for n, m in s.classes.values()}
    assert sizes and all(m <= min(n, 3) for n, m in sizes)
    assert any(n == 1024 and m < n for n, m in sizes)


def test_an_element_that_is_known_as_itself_only_has_no_stage() -> None:
    """Two facts that lead to each other's element would be followed without end."""
    b = ProgramBuilder()
    b.output("y", b.input("x", "f32[2]") + 1)
    model = Model(alone(b))
    tree = ((Fraction(1), ("k",), ()),)
    stage = AlgebraStage(0, "", {"k": (2, 1)}, {"s:x": (tree,)}, (), ())
    here, there = Elem("s:x", ((0, 0),)), Elem("s:x", ((0, 1),))
    measurer = Measurer(model, [], stage, lambda _: False, {here: there, there: here}.get)
    with pytest.raises(NoDefinition, match="s:x: an element that is known as itself only"):
        measurer.measure(here)
    once = Measurer(model, [], stage, lambda _: False, {here: there}.get)
    assert once.measure(here).variables == {("k", 1)}
