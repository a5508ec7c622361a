"""Ranks' shares of a sum make the whole if each part is there once: nothing twice, nothing missing."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Piece, Plan, Relation
from certificates.proof.facts import Reduced
from orchestrator.relating.knowledge import Knowledge
from tests.orchestrator.plans import pair, unproved

from .kit import Formula, facts, formulas, last, related


def sums(knowledge: Knowledge, kind: str = "add") -> list[Reduced]:
    return [r for r in knowledge.by_lhs if isinstance(r, Reduced) and r.kind == kind]


def rows(formula: Formula, *, shard: bool = True, local: Formula | None = None) -> Plan:
    """Something of a matrix, and of the rows of it that a rank has."""
    place = Shard(0) if shard else Replicate()
    given = {"x": ("f32[8,3]", "f32[4,3]" if shard else "f32[8,3]", {"dp": place})}
    return formulas({"dp": 2}, formula, local or formula, given)


def test_shares_of_all_ranks_are_the_sum() -> None:
    plan = rows(lambda b, x: b.tanh(x).sum(0))
    knowledge, _ = related(plan)
    (reduced,) = sums(knowledge)
    assert reduced == Reduced("add", ("dp",), (last(plan),))
    (fact,) = facts(knowledge, reduced)
    assert (fact.rhs, fact.coef) == ("s:%1", 1)
    assert not facts(knowledge, last(plan)), "no rank has it alone"


def test_a_sum_that_every_rank_has_is_no_share_of_it() -> None:
    """Added over the ranks it would be twice as much."""
    plan = rows(lambda b, x: b.tanh(x).sum(0), shard=False)
    knowledge, _ = related(plan)
    assert sums(knowledge) == []
    (fact,) = facts(knowledge, last(plan))
    assert fact.rhs == "s:%1"


@pytest.mark.parametrize("take", [lambda x: x[:3], lambda x: x[1:]])
def test_a_share_that_lacks_a_row_makes_no_sum(take: Formula) -> None:
    plan = rows(lambda b, x: b.tanh(x).sum(0), local=lambda b, x: b.tanh(take(x)).sum(0))
    assert sums(related(plan)[0]) == []


def test_largest_elements_are_joined_but_not_with_a_negative_factor() -> None:
    largest = rows(lambda b, x: b.reduce(b.tanh(x), (0,), "max"))
    (reduced,) = sums(related(largest)[0], "max")
    assert facts(related(largest)[0], reduced)
    turned = rows(
        lambda b, x: b.reduce(b.tanh(x), (0,), "max"),
        local=lambda b, x: b.reduce(b.tanh(x) * -1, (0,), "max"),
    )
    assert sums(related(turned)[0], "max") == [], "the largest of the negatives is the smallest"


def test_a_product_of_parts_is_a_share_of_the_product() -> None:
    plan = formulas(
        {"tp": 2},
        lambda b, x, w: x @ w,
        lambda b, x, w: x @ w,
        {"x": ("f32[5,8]", "f32[5,4]", {"tp": Shard(1)}), "w": ("f32[8,7]", "f32[4,7]", {"tp": Shard(0)})},
    )
    knowledge, _ = related(plan)
    (reduced,) = sums(knowledge)
    assert [f.rhs for f in facts(knowledge, reduced)] == ["s:%0"]


def test_parts_of_operands_that_do_not_meet_are_no_share() -> None:
    """Every rank contracts the first half of one with its own half of the other."""
    plan = formulas(
        {"tp": 2},
        lambda b, x, w: x @ w,
        lambda b, x, w: x[:, :4] @ w,
        {"x": ("f32[5,8]", "f32[5,8]", {"tp": Replicate()}), "w": ("f32[8,7]", "f32[4,7]", {"tp": Shard(0)})},
    )
    assert sums(related(plan)[0]) == []


def uneven(cut: tuple[int, int]) -> Plan:
    """Two rank classes with rows of their own, of six."""
    spec = ProgramBuilder()
    spec.output("y", spec.tanh(spec.input("x", "f32[6,3]")).sum(0))
    classes, pieces = {}, []
    first, second = cut
    for rank, (start, size) in enumerate(((0, first), (6 - second, second))):
        box = {"dp": (rank, rank + 1)}
        b = ProgramBuilder({"dp": 2}, box=box)
        b.output("z", b.tanh(b.input("x", f"f32[{size},3]")).sum(0))
        classes[f"c{rank}"] = (box, b.build())
        z = (Affine.symbol("z0"), Affine.symbol("z1"))
        pieces.append(Piece(f"c{rank}", (size, 3), z, (z[0] + start, z[1])))
    relation = Relation("x", "x", tuple(pieces))
    return build_plan(
        name="uneven",
        mesh={"dp": 2},
        specification=spec.build(),
        classes=classes,
        inputs=[relation],
        outputs=[],
    )


@pytest.mark.parametrize("cut", [(4, 2), (1, 5)])
def test_classes_of_other_sizes_add_up(cut: tuple[int, int]) -> None:
    plan = uneven(cut)
    (reduced,) = sums(related(plan)[0])
    assert reduced.of == (last(plan, 0), last(plan, 1))
    assert facts(related(plan)[0], reduced)


@pytest.mark.parametrize("cut", [(4, 3), (3, 2), (6, 6)])
def test_classes_that_share_a_row_or_leave_one_do_not(cut: tuple[int, int]) -> None:
    assert sums(related(uneven(cut))[0]) == []


def test_an_operand_may_be_the_share_itself() -> None:
    """One of two summed heads on each rank: nothing is added there, the tensors are the summands."""
    plan = formulas(
        {"tp": 2},
        lambda b, x, w: b.tanh(b.tanh(x).sum(0)) @ w,
        lambda b, x, w: b.tanh(b.all_reduce(b.tanh(x).reshape(3), "tp")) @ w,
        {"x": ("f32[2,3]", "f32[1,3]", {"tp": Shard(0)}), "w": ("f32[3,4]", "f32[3,4]", {"tp": Replicate()})},
    )
    knowledge, matcher = related(plan)
    tanh = "c0:%0"
    assert [f.rhs for f in facts(knowledge, tanh)] == ["s:%0"]
    product = f"c0:{plan.classes[0].program.ops[-1].out}"
    assert not knowledge.partials
    assert matcher.sums._summand(tanh)
    (reduced,) = sums(knowledge)
    assert reduced.of == (tanh,) and [f.rhs for f in facts(knowledge, reduced)] == ["s:%1"]
    assert not matcher.sums.find_summands(product), "its operands are nothing that is summed"


@pytest.mark.parametrize("right", [True, False])
def test_rows_that_are_zero_beside_shares_of_a_sum_are_shares_too(right: bool) -> None:
    """Gradients of rows of one parameter that are used one after the other, added up before ranks are."""

    def written(b: ProgramBuilder, over: str | None) -> None:
        x = b.input("x", "f32[4,3]" if over is None else "f32[2,3]")
        rows = [f(x).sum(0).reshape(1, 3) for f in (b.tanh, b.logistic, b.exponential)]
        last = 2 if right or over is None else 0
        padded = [b.pad(r, (k, 0), (2 - k, 0)) for k, r in zip((last, 1, 0), rows, strict=True)]
        total = padded[0] + padded[1] + padded[2]
        b.output("g", total if over is None else b.all_reduce(total, over))

    plan = pair(
        {"dp": 2}, lambda b: written(b, None), lambda b: written(b, "dp"),
        {"x": {"dp": Shard(0)}}, {"g": {"dp": Replicate()}},
    )  # fmt: skip
    assert (unproved(plan) == []) == right
