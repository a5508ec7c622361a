"""The stage of one fact: named after its op and line, and without a way when premises do not suffice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.plan.program import Loc
from certificates.proof.facts import Fact, Reduced
from certificates.proof.stages import AlgebraStage, Hyp, LayoutStage
from orchestrator.errors import Unproved
from orchestrator.proving import stages
from orchestrator.proving.engine import Engine
from orchestrator.proving.stages import Stages, title
from orchestrator.relating.recipes import AlgebraRecipe
from orchestrator.solving.premises import AllPremises
from smtlib_emit.model import Model

from ..plans import CORES, pair, unproved


class Nothing:
    """A solver that finds no proof."""

    def core(self, text: str) -> Sequence[int] | None:
        return None


@pytest.fixture(scope="module")
def engine(mlp: Plan) -> Engine:
    found = Engine(mlp, AllPremises())
    found.relate()
    return found


def recipes(engine: Engine, algebra: bool) -> list[int]:
    """Numbers of guesses that arithmetic shows, or data movement."""
    return [n for n, r in engine.knowledge.recipes.items() if isinstance(r, AlgebraRecipe) is algebra]


def test_arithmetic_and_data_movement_have_stages_of_their_kind(engine: Engine) -> None:
    arithmetic, movement = recipes(engine, algebra=True), recipes(engine, algebra=False)
    assert arithmetic and movement
    assert all(isinstance(engine.stages.of(n), AlgebraStage) for n in arithmetic)
    assert all(isinstance(engine.stages.of(n), LayoutStage) for n in movement)


@pytest.mark.parametrize(
    ("algebra", "reason"), [(True, r"no proof of .* from \d+ premises"), (False, "no proof of")]
)
def test_without_a_core_there_is_no_stage(engine: Engine, algebra: bool, reason: str) -> None:
    """Whatever premises were found: what no solver shows is not written as if one had."""
    number = recipes(engine, algebra)[0]
    with pytest.raises(Unproved, match=reason):
        Stages(engine.knowledge, Nothing()).of(number)


def test_a_title_says_what_and_where(mlp: Plan) -> None:
    program = mlp.classes[0].program
    first = replace(program.ops[0], loc=Loc(0, 12, "step"))
    located = replace(
        mlp,
        sources=("model|a\u00e9.py",),
        classes=(replace(mlp.classes[0], program=replace(program, ops=(first, *program.ops[1:]))),),
    )
    fact = Fact(f"c0:{first.out}", "s:%0", (), (Affine(),), (Affine(),), Fraction(1))
    said = title(Model(located), fact)
    assert said == f"c0:{first.out} follows s:%0: {first.name} at model?a?.py:12", (
        "no | or other letters in SMT-LIB"
    )
    total = replace(fact, lhs=Reduced("add", ("dp",), ("c0:batch.x",)))
    assert title(Model(located), total).endswith(": input")
    assert len(title(Model(located), replace(fact, rhs="s:" + "x" * 500))) == 200


def exchanged(order: tuple[int, int]) -> Plan:
    """Two tensors with columns on the ranks, each brought to rows by an all-to-all, side by side.

    ``order`` of the pieces that a rank receives.
    """

    def spec(b: ProgramBuilder) -> None:
        x, y = (b.tanh(b.input(n, "f32[12,8]")) for n in "xy")
        b.output("z", b.exponential(b.concatenate([x, y], 1).T))

    def plan(b: ProgramBuilder) -> None:
        def rows(name: str) -> Value:
            x = b.reshape(b.tanh(b.input(name, "f32[12,4]")), (2, 6, 4))
            stacked = b.concatenate([b.slice(x, [i, 0, 0], [1, 6, 4]) for i in (0, 1)], 0)
            came = b.all_to_all(b.reshape(stacked, (2, 24)), "tp", split_dim=0, concat_dim=1)
            pieces = b.reshape(came, (2, 6, 4))
            return b.concatenate([b.reshape(b.slice(pieces, [i, 0, 0], [1, 6, 4]), (6, 4)) for i in order], 1)

        b.output("z", b.exponential(b.concatenate([rows("x"), rows("y")], 1).T))

    columns = {"tp": Shard(1)}
    return pair({"tp": 2}, spec, plan, {"x": columns, "y": columns}, {"z": columns})


def test_long_movement_is_proved_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each part comes from one place, no digit of a position is guessed by a solver."""
    plan = exchanged((0, 1))
    assert unproved(plan) == []
    monkeypatch.setattr(stages, "MAX_FRESH", 0)
    engine = Engine(plan, CORES)
    engine.relate()
    for numbers in engine.claims():
        for number in numbers:
            engine.prove(number)
    made = [s for s in engine.proved.built.values() if isinstance(s, LayoutStage)]
    assert made and any(len(hyps(s)) > 1 for s in made)


def test_parts_that_are_exchanged_have_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MAX_FRESH", 0)
    assert unproved(exchanged((1, 0)))


def interleaved() -> Plan:
    """Pairs of columns whose members change places, once by a concatenation and once by two transposes."""

    def turned(b: ProgramBuilder, rows: int) -> Value:
        pairs = b.reshape(b.tanh(b.input("x", f"f32[{rows},8]")), (rows, 4, 2))
        parts = [b.slice(pairs, [0, 0, i], [rows, 4, 1]) for i in (1, 0)]
        return b.reshape(b.concatenate(parts, 2), (rows, 8))

    def spec(b: ProgramBuilder) -> None:
        b.output("z", b.exponential(turned(b, 12)))

    def plan(b: ProgramBuilder) -> None:
        again = b.reshape(turned(b, 6), (6, 4, 2))
        parts = [b.slice(again, [0, 0, i], [6, 4, 1]) for i in (0, 1)]
        b.output("z", b.exponential(b.reshape(b.concatenate(parts, 2), (6, 8))))

    rows = {"tp": Shard(0)}
    return pair({"tp": 2}, spec, plan, {"x": rows}, {"z": rows})


def test_parts_with_strides_are_not_written_as_a_proof_that_no_solver_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``--no-solve`` takes what is proposed: it must be a proof for whoever solves it later."""
    monkeypatch.setattr(stages, "MAX_FRESH", 0)
    engine = Engine(interleaved(), AllPremises())
    engine.relate()
    claims = [number for numbers in engine.claims() for number in numbers]
    for number in claims:
        engine.prove(number)
    written = [obligation.text for obligation in engine.proof(claims).obligations]
    assert written and all(CORES.core(text) is not None for text in written)


def hyps(stage: LayoutStage) -> list[Hyp]:
    """The facts that a stage rests on."""
    return [p for p in stage.premises if isinstance(p, Hyp)]
