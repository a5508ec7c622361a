"""An element is written as a sum of products: that is what the element is, whatever was opened for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Ref
from orchestrator.cells import Unfollowable
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.ledger import Unrelated
from orchestrator.spanning import expansion
from orchestrator.spanning.expansion import Alien, Expansion
from orchestrator.spanning.terms import Call, Factor, Leaf, Sum
from smtlib_emit.model import Model

from ..oracle import Numbers
from ..relating.kit import Formula, formulas, last

GIVEN = {
    "x": ("f32[4,3]", "f32[2,3]", {"dp": Shard(0)}),
    "w": ("f32[3,5]", "f32[3,5]", {"dp": Replicate()}),
}
MEANING: dict[str, Callable[..., float]] = {
    "tanh": math.tanh,
    "recip": lambda v: 1 / v,
    "max2": max,
    "compare LT": lambda a, b: float(a < b),
}


def never(ref: str) -> bool:
    return False


def value(numbers: Numbers, terms: Sum, at: Mapping[str, int]) -> float:
    """What a sum adds up to on the oracle's numbers."""

    def factor(f: Factor, here: Mapping[str, int]) -> float:
        if isinstance(f, Leaf):
            return numbers.element(f.ref, tuple(form.evaluate(here) for form in f.at))
        assert isinstance(f, Call)
        arguments = [
            math.fsum(float(c) * math.prod(factor(g, here) for g in product) for product, c in argument)
            for argument in f.arguments
        ]
        return MEANING[f.function](*arguments)

    total = 0.0
    for term in terms:
        for values in itertools.product(*(range(*r) for r in term.box.values())):
            here = {**at, **dict(zip(term.box, values, strict=True))}
            total += float(term.coef) * math.prod(factor(f, here) for f in term.factors)
    return total


def opened(
    spec: Formula, plan: Formula, stops: Callable[[str], bool] = lambda _: True
) -> tuple[Plan, Expansion, Ref, Sum]:
    """The plan's result at rank dp and places p0, p1, over what the specification's inputs are."""
    made = formulas({"dp": 2}, spec, plan, GIVEN)
    knowledge = Knowledge(Model(made))
    knowledge.declare_inputs()
    expanded = Expansion(knowledge)
    ref = last(made)
    ranges = {f"p{i}": r for i, r in enumerate(knowledge.model.tensors.ranges(ref))}
    return made, expanded, ref, expanded.element(ref, tuple(map(Affine.symbol, ranges)), ranges, stops)


FORMULAS: dict[str, Formula] = {
    "a product": lambda b, x, w: x @ w,
    "of a sum": lambda b, x, w: (x + x * 2) @ w,
    "with a difference": lambda b, x, w: (x @ w) - (x @ (w * 3)),
    "negated": lambda b, x, w: b.negate(x @ w),
    "a quotient": lambda b, x, w: (x / (x * 2 + x)) @ w,
    "moved": lambda b, x, w: (w.T @ x.T).T,
    "a function of an element": lambda b, x, w: b.tanh(x) @ w,
    "the larger one": lambda b, x, w: b.maximum(x, x * 2) @ w,
    "chosen": lambda b, x, w: b.select(b.compare(x, x * x, "LT"), x, x * x) @ w,
    "summed in steps": lambda b, x, w: b.broadcast((x @ w).sum(1), (x.shape[0], 5), (0,)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_terms_add_up_to_the_element(name: str) -> None:
    made, expanded, ref, terms = opened(lambda b, x, w: x @ w, FORMULAS[name])
    numbers = Numbers(made)
    assert {leaf.ref for t in terms for leaf in t.leaves()} <= {"s:x", "s:w"}, "over known elements"
    for point in itertools.product(*(range(lo, hi) for lo, hi in expanded.model.tensors.ranges(ref))):
        at = {f"p{i}": v for i, v in enumerate(point)}
        assert value(numbers, terms, at) == pytest.approx(numbers.element(ref, point)), point


def test_a_sum_over_ranks_is_that_of_all_its_members() -> None:
    def plan(b: ProgramBuilder, x: Value, w: Value) -> Value:
        return b.all_reduce((x @ w).sum(0), "dp")

    made, _, ref, terms = opened(lambda b, x, w: (x @ w).sum(0), plan)
    numbers = Numbers(made)
    for column in range(5):
        at = {"p0": 1, "p1": column}
        assert value(numbers, terms, at) == pytest.approx(numbers.element(ref, (1, column)))


def test_what_was_opened_and_used_is_remembered_with_every_term() -> None:
    """A stage opens these tensors and no others."""
    _, _, ref, terms = opened(lambda b, x, w: x @ w, lambda b, x, w: (x + x * 2) @ w)
    for term in terms:
        assert set(term.trace.opened) == {ref, "c0:%2"}, "the product and its sum; x * 2 is read through"
        assert term.trace.instances and {u.ref for u in term.trace.uses} >= {ref, "s:w", "s:x"}


def test_it_ends_at_tensors_of_the_specification_that_it_is_told_to_end_at() -> None:
    made = formulas({"dp": 2}, lambda b, x, w: b.tanh(x @ w), lambda b, x, w: b.tanh(x @ w), GIVEN)
    knowledge = Knowledge(Model(made))
    knowledge.declare_inputs()
    at, ranges = (Affine.symbol("i"), Affine.symbol("j")), {"i": (0, 4), "j": (0, 5)}
    (ended,) = Expansion(knowledge).element("s:%0", at, ranges, lambda ref: ref == "s:%0")
    assert [leaf.ref for leaf in ended.leaves()] == ["s:%0"] and not ended.box
    (through,) = Expansion(knowledge).element("s:%0", at, ranges, lambda ref: ref != "s:%0")
    assert {leaf.ref for leaf in through.leaves()} == {"s:x", "s:w"} and len(through.box) == 1


def test_what_has_no_definition_as_a_sum_is_unrelated() -> None:
    with pytest.raises(Unrelated):
        opened(lambda b, x, w: x @ w, lambda b, x, w: b.reduce(x @ w, (0, 1), "max"))
    with pytest.raises(Unfollowable, match="tanh of a sum"):
        opened(lambda b, x, w: x @ w, lambda b, x, w: b.tanh(x @ w))


def test_the_work_for_one_tensor_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "MAX_STEPS", 2)
    monkeypatch.setattr(expansion, "STEPS_PER_OP", 0)
    with pytest.raises(Unfollowable, match="more than 2 elements are opened"):
        opened(lambda b, x, w: x @ w, lambda b, x, w: b.tanh(b.tanh(b.tanh(x))))


def test_elements_are_opened_inside_each_other_so_deeply_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide sum is none of these: two elements next to each other are as deep as one."""
    monkeypatch.setattr(expansion, "MAX_DEPTH", 3)
    opened(lambda b, x, w: x @ w, lambda b, x, w: b.tanh(x) + b.tanh(b.negate(x)) + b.sine(b.negate(x)))
    with pytest.raises(Unfollowable, match="more than 3 elements are opened inside each other"):
        opened(lambda b, x, w: x @ w, lambda b, x, w: b.tanh(b.tanh(b.tanh(b.tanh(x)))))


def test_sums_that_follow_each_other_are_not_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm of 126 layers, each of whose squares is added to those before it, was found no more."""
    monkeypatch.setattr(expansion, "MAX_DEPTH", 2)

    def norm(b: ProgramBuilder, x: Value, w: Value) -> Value:
        total = x * x
        for _ in range(20):
            total = b.negate(total) - x * x + (x + x) * x
        return total

    opened(lambda b, x, w: x @ w, norm)


@pytest.mark.parametrize("zero", [True, False])
def test_what_is_multiplied_by_zero_need_not_be_known(zero: bool) -> None:
    """Padding meets rows of another tensor, which the plan does not read."""

    def spec(b: ProgramBuilder, x: Value, w: Value) -> Value:
        left = b.pad(x, (0, 3), (0, 0)) if zero else b.concatenate([x, x], 1)
        return left @ b.concatenate([b.tanh(w), w], 0)

    made, expanded, _, _ = opened(spec, lambda b, x, w: x @ w)

    def stops(ref: str) -> bool:
        if ref not in ("s:x", "s:w"):
            raise Alien(ref)
        return True

    product = f"s:{made.specification.outputs['there']}"
    places = {f"p{i}": r for i, r in enumerate(expanded.model.tensors.ranges(product))}
    if not zero:
        with pytest.raises(Alien, match="s:%"):
            expanded.opened(product, tuple(map(Affine.symbol, places)), places, stops)
        return
    terms, numbers = expanded.opened(product, tuple(map(Affine.symbol, places)), places, stops), Numbers(made)
    for point in itertools.product(range(4), range(5)):
        at = {f"p{i}": v for i, v in enumerate(point)}
        assert value(numbers, terms, at) == pytest.approx(numbers.element(product, point))
