"""Tensors that are one number everywhere, and ops that therefore only scale or pass on."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact
from orchestrator.emit import emit
from orchestrator.errors import Unproved
from orchestrator.proving.engine import Engine
from orchestrator.relating.solving_facts import literal_ref
from orchestrator.solving.cores import Cores
from trainverify import Kind, check

from ..oracle import Numbers
from ..plans import pair, unproved

LABELS = {"batch.labels": (0, 10)}


def mean_loss(rows: int, ignored: int, *, cut: bool, counted: str = "tokens") -> Plan:
    """A masked mean: the sum over valid rows divided by their number, as cross-entropy computes it."""

    def write(b: ProgramBuilder, n: int) -> None:
        x, labels = b.input("x", f"f32[{n}]"), b.input("batch.labels", f"i64[{n}]")
        valid = b.compare(labels, ignored, "NE")
        count = b.convert(valid, "f32").sum()
        picked = b.select(valid, b.tanh(x), b.constant(0, f"f32[{n}]"))
        mean = picked.sum() / count
        if cut and n != rows:
            mean = b.all_reduce(mean, "dp") / 2
        b.output("loss", mean)

    inputs = {"x": {"dp": Shard(0)}, "batch.labels": {"dp": Shard(0)}}
    return pair({"dp": 2}, lambda s: write(s, rows), lambda b: write(b, rows // 2 if cut else rows),
                inputs if cut else {n: {} for n in inputs}, {"loss": {}}, LABELS)  # fmt: skip


def literal_facts(engine: Engine) -> list[Fact]:
    return [f for f in engine.knowledge.facts if isinstance(f.rhs, str) and f.rhs.startswith("#")]


def test_a_count_that_the_declared_range_decides_is_a_number() -> None:
    """Labels in [0, 10) are never -100, so every row counts: the mean of means is the mean."""
    plan = mean_loss(8, -100, cut=True)
    engine, numbers = Engine(plan, Cores()), Numbers(plan)
    engine.relate()
    found = literal_facts(engine)
    assert {"#b:true", "#f:8", "#f:4"} <= {str(f.rhs) for f in found}
    assert [text for f in found if (text := numbers.failure(f))] == []
    for number, fact in enumerate(list(engine.knowledge.facts)):
        if fact in found:
            engine.prove(number)
    assert unproved(plan) == []


def test_a_count_that_it_does_not_decide_stays_a_count() -> None:
    """Label 3 may be ignored: ranks then count different rows, and a mean of means is another number."""
    plan = mean_loss(8, 3, cut=True)
    engine = Engine(plan, Cores())
    engine.relate()
    assert not [f for f in literal_facts(engine) if str(f.rhs) in ("#f:8", "#f:4", "#b:true")]
    assert unproved(plan)
    assert unproved(mean_loss(8, 3, cut=False)) == [], "uncut, both sides count alike"


@pytest.mark.parametrize(
    ("direction", "number", "told"),
    [
        ("EQ", -1, "#b:false"), ("EQ", 3, None), ("NE", 10, "#b:true"), ("LT", 10, "#b:true"),
        ("LT", 9, None), ("LE", 9, "#b:true"), ("LE", 8, None), ("GE", 0, "#b:true"), ("GE", 1, None),
        ("GT", -1, "#b:true"), ("GT", 0, None), ("LT", 0, "#b:false"), ("GT", 9, "#b:false"),
        ("LE", -1, "#b:false"), ("GE", 10, "#b:false"),
    ],
)  # fmt: skip
def test_comparisons_at_the_ends_of_a_declared_range(direction: str, number: int, told: str | None) -> None:
    def write(b: ProgramBuilder) -> None:
        labels = b.input("batch.labels", "i64[6]")
        b.output("y", b.convert(b.compare(labels, number, direction), "f32"))

    plan = pair({"dp": 2}, write, write, {"batch.labels": {}}, {"y": {}}, LABELS)
    engine = Engine(plan, Cores())
    engine.relate()
    booleans = {str(f.rhs) for f in literal_facts(engine) if str(f.rhs).startswith("#b")}
    assert booleans == ({told} if told else set())
    for n, fact in enumerate(engine.knowledge.facts):
        if fact.rhs == told:
            engine.prove(n)


@pytest.mark.parametrize(
    ("shift", "direction", "number", "told"),
    [
        (0, "GE", 0, "true"),
        (0, "LT", 10, "true"),
        (0, "LT", 9, None),
        (3, "GE", 3, "true"),
        (3, "GT", 3, None),
        (3, "LE", 12, "true"),
        (3, "LE", 11, None),
        (-4, "GE", -4, "true"),
        (-4, "GE", -3, None),
        (-4, "LT", -4, "false"),
    ],
)
def test_comparisons_of_what_is_added_to_a_declared_range(
    shift: int, direction: str, number: int, told: str | None
) -> None:
    """A vocabulary that is not cut starts at 0: whoever subtracts that and asks who is inside asks in vain.

    The definition of the sum belongs to the proof.
    """

    def write(b: ProgramBuilder) -> None:
        labels = b.input("batch.labels", "i64[4]")
        moved = b.op("add", [labels, b.constant(shift, "i64[4]")], labels.type)
        back = b.op("subtract", [labels, b.constant(-shift, "i64[4]")], labels.type)
        for name, value in (("out", moved), ("back", back)):
            b.output(name, b.compare(value, number, direction))

    plan = pair({"dp": 2}, write, write, {"batch.labels": {}}, {"out": {}, "back": {}}, LABELS)
    engine = Engine(plan, Cores())
    engine.relate()
    found = {f.rhs for f in literal_facts(engine)}
    assert found == ({literal_ref("Bool", told == "true")} if told else set())
    assert len([f for f in literal_facts(engine) if str(f.lhs).startswith("s:")]) == 2 * bool(told)
    for facts in engine.claims():
        for number_ in facts:
            engine.prove(number_)


def test_literal_facts_that_are_false_have_no_proof() -> None:
    """The folder guesses; only a stage decides."""
    plan = mean_loss(8, -100, cut=True)
    engine = Engine(plan, Cores())
    engine.relate()
    right = next(f for f in literal_facts(engine) if f.rhs == "#f:4")
    recipe = engine.knowledge.recipes[engine.knowledge.facts.index(right)]
    wrong = Fact(right.lhs, "#f:5", right.symbols, right.lhs_index, right.rhs_index)
    number = engine.knowledge.add(wrong, recipe, relates=False)
    with pytest.raises(Unproved):
        engine.prove(number)


def test_a_product_with_one_passes_its_operand_on() -> None:
    def write(b: ProgramBuilder, factor: bool) -> None:
        x = b.input("x", "f32[4]")
        one = b.constant(1, "f32[4]") * b.constant(1, "f32[4]")
        b.output("y", b.tanh(x * one if factor else x))

    plan = pair({"dp": 2}, lambda s: write(s, False), lambda b: write(b, True), {"x": {}}, {"y": {}})
    assert unproved(plan) == []


def test_names_of_literals() -> None:
    assert literal_ref("Real", Fraction(1, 3)) == "#f:1/3" and literal_ref("Int", Fraction(-2)) == "#i:-2"
    assert literal_ref("Real", True) == "#b:true" and literal_ref("Int", False) == "#b:false"


@pytest.mark.parametrize(("dtype", "shares"), [("f32", (1, 1)), ("i64", (3, 1)), ("f32", (3, 5))])
def test_a_constant_that_ranks_add_is_a_number(tmp_path: Path, dtype: str, shares: tuple[int, int]) -> None:
    """`n = torch.tensor(1.0); dist.all_reduce(n); loss = loss / n`: no input stands behind the sum."""
    spec = ProgramBuilder()
    spec.output("loss", spec.tanh(spec.input("x", "f32[8]")).sum() / 8)
    programs = []
    for share in shares:
        b = ProgramBuilder({"dp": 2})
        count = b.all_reduce(b.constant(share, f"{dtype}[]"), "dp")
        total = b.all_reduce(b.tanh(b.input("x", "f32[4]")).sum(), "dp")
        b.output("loss", total / b.convert(count, "f32") * sum(shares) / 8)
        programs.append(b.build())
    plan = build_plan(
        name="counted", mesh={"dp": 2}, specification=spec.build(),
        classes={f"c{i}": ({"dp": (i, i + 1)}, p) for i, p in enumerate(programs)},
        inputs={"x": {"dp": Shard(0)}}, outputs={"loss": {}},
    )  # fmt: skip
    assert emit(plan, tmp_path / "b").exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED


def test_a_count_that_is_wrong_is_refuted(tmp_path: Path) -> None:
    spec, b = ProgramBuilder(), ProgramBuilder({"dp": 2})
    spec.output("y", spec.tanh(spec.input("x", "f32[]")))
    b.output("y", b.tanh(b.input("x", "f32[]")) / b.all_reduce(b.constant(1, "f32[]"), "dp"))
    plan = build_plan(
        name="miscounted", mesh={"dp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"x": {}}, outputs={"y": {}},
    )  # fmt: skip
    assert emit(plan, tmp_path / "b").exit_code == 1


def test_a_largest_number_that_no_rule_knows_is_no_internal_error(tmp_path: Path) -> None:
    """A stage that would sum what it has no index classes for is none."""
    spec, b = ProgramBuilder(), ProgramBuilder({"dp": 2})
    spec.output("y", spec.tanh(spec.input("x", "f32[]")))
    largest = b.all_reduce(b.constant(1, "f32[]"), "dp", "max")
    b.output("y", b.tanh(b.input("x", "f32[]")) / largest * largest)
    plan = build_plan(
        name="largest", mesh={"dp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"x": {}}, outputs={"y": {}},
    )  # fmt: skip
    (verdict,) = emit(plan, tmp_path / "b", witness_seconds=1).verdicts
    assert verdict.verdict != "REFUTED" and "internal error" not in verdict.reason


def test_pieces_that_are_split_and_joined_along_one_dimension_have_no_stage(tmp_path: Path) -> None:
    """The checker knows no definition of such an exchange: a stage with it made the whole bundle invalid."""
    spec, b = ProgramBuilder(), ProgramBuilder({"dp": 2})
    spec.output("y", spec.tanh(spec.input("x", "f32[]")))
    b.output("y", b.tanh(b.input("x", "f32[]")) * b.all_to_all(b.constant(1, "f32[2]"), "dp", 0, 0).sum() / 2)
    plan = build_plan(
        name="exchanged", mesh={"dp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"x": {}}, outputs={"y": {}},
    )  # fmt: skip
    emit(plan, tmp_path / "b", witness_seconds=1)
    assert check(tmp_path / "b").kind is Kind.UNKNOWN


def test_numbers_of_tokens_are_added_over_ranks(tmp_path: Path) -> None:
    """Where every token counts, each rank counts one number; the integers are added as the checker does."""

    def write(b: ProgramBuilder, rows: int) -> None:
        x, labels = b.input("x", f"f32[{rows}]"), b.input("batch.labels", f"i64[{rows}]")
        count = b.convert(b.compare(labels, -100, "NE"), "i64").sum()
        total = b.tanh(x).sum()
        if rows < 8:
            count, total = b.all_reduce(count, "dp"), b.all_reduce(total, "dp")
        b.output("loss", total / b.convert(count, "f32"))

    rows = {"dp": Shard(0)}
    plan = pair(
        {"dp": 2}, lambda s: write(s, 8), lambda b: write(b, 4), {"x": rows, "batch.labels": rows},
        {"loss": {}}, LABELS,
    )  # fmt: skip
    assert emit(plan, tmp_path / "b").exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED


@pytest.mark.parametrize(("state", "proved"), [(0, True), (1, False)])
def test_a_product_with_a_state_of_zeros_is_zero(state: int, proved: bool) -> None:
    """The first step of a recurrent net: `x + h @ w` was related to `x`, and the specification's was not."""

    def write(b: ProgramBuilder, rows: int, first: int) -> None:
        x, w = b.input("x", f"f32[{rows},3]"), b.input("w", "f32[3,3]")
        b.output("y", b.tanh(x + b.dot(b.constant(first, f"f32[{rows},3]"), w, ([1], [0]))))

    plan = pair({"dp": 2}, lambda s: write(s, 4, 0), lambda b: write(b, 2, state),
                {"x": {"dp": Shard(0)}, "w": {}}, {"y": {"dp": Shard(0)}})  # fmt: skip
    assert (unproved(plan) == []) == proved


@pytest.mark.parametrize(("other", "proved"), [(0, True), (1, False)])
def test_a_choice_between_zeros_is_zero(other: int, proved: bool) -> None:
    """A loss with two halves, one of which no row has: its gradients are zero, or wrong by a factor too."""

    def write(b: ProgramBuilder, n: int) -> None:
        x = b.input("x", f"f32[{n}]")
        zero = b.constant(0, f"f32[{n}]")
        here = b.compare(x, zero, "GE")
        never = b.select(here, b.constant(0, f"f32[{n}]"), b.constant(other, f"f32[{n}]"))
        mean = (b.tanh(x) * b.constant(Fraction(1, n), f"f32[{n}]") + never).sum()
        b.output("loss", b.all_reduce(mean, "dp") / 2 if n == 4 else mean)

    plan = pair(
        {"dp": 2}, lambda s: write(s, 8), lambda b: write(b, 4), {"x": {"dp": Shard(0)}}, {"loss": {}}
    )
    assert (unproved(plan) == []) == proved
