"""Premises of layout stages: each is a true statement, or a file would prove anything."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.stages import BoundIndex, BoundSymbol, BoundValue, Def, Hyp, LayoutStage
from orchestrator.errors import Unproved
from orchestrator.proving.engine import Engine
from orchestrator.relating.ledger import LayoutRecipe
from orchestrator.solving.cores import Cores
from orchestrator.staging.layout import LayoutBuilder
from smtlib_emit.layout import LayoutText
from tests.smtlib_emit.meaning import Meaning

from ..oracle import Numbers
from ..random_plans import random_plan

WHOLE = "all premises"


def stages(plan: Plan) -> tuple[Engine, list[LayoutStage]]:
    """All layout stages that are proved; those titled ``WHOLE`` with every premise they may need."""
    engine = Engine(plan, Cores())
    engine.relate()
    engine.claims()
    for number in list(engine.knowledge.recipes):
        with contextlib.suppress(Unproved):
            engine.prove(number)
    found = []
    for number, stage in engine.proved.built.items():
        recipe = engine.knowledge.recipes[number]
        if isinstance(stage, LayoutStage) and isinstance(recipe, LayoutRecipe):
            found.append(LayoutBuilder(engine.knowledge, number, recipe).build(WHOLE))
        elif isinstance(stage, LayoutStage):
            found.append(stage)
    return engine, found


def assignments(
    text: LayoutText, stage: LayoutStage, numbers: Numbers, rng: random.Random
) -> Iterator[dict[str, int]]:
    """A value of every symbol: goal symbols at random, fresh ones so that their equations hold."""
    goal = text.facts[stage.goal]
    at = {s: rng.randrange(lo, hi) for s, lo, hi in goal.symbols}
    equations = [p for p in stage.premises if isinstance(p, BoundIndex)]
    values = {p.value: p for p in stage.premises if isinstance(p, BoundValue)}
    names = [s for s, lo, _ in stage.symbols if lo is not None]
    spaces = [range(*text.ranges[s]) for s in names]
    for chosen in itertools.islice(itertools.product(*spaces), 400):
        current = at | dict(zip(names, chosen, strict=True))
        try:
            for symbol, p in values.items():
                index = tuple(f.evaluate(current) for f in p.at)
                current[symbol] = int(numbers.element(p.t, index))
        except (KeyError, IndexError):
            continue
        meaning = Meaning(numbers, current)
        if all(meaning.of(text.premise(p)) for p in equations):
            yield current
            return


def check(plan: Plan, seed: int = 0) -> int:
    engine, found = stages(plan)
    numbers, rng, done = Numbers(plan, seed), random.Random(seed), 0
    for stage in found:
        text = LayoutText(engine.model, engine.knowledge.facts, stage)
        bodies = [(p, text.premise(p)) for p in stage.premises]
        for _ in range(5):
            for at in assignments(text, stage, numbers, rng):
                meaning = Meaning(numbers, at)
                for p, body in bodies:
                    assert meaning.of(body), f"{p} is false at {at}: {body}"
                    done += 1
    return done


def test_premises_are_true_on_hand_written_plans(any_plan: Plan) -> None:
    assert check(any_plan) > 10


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
def test_premises_are_true_on_random_plans(seed: int) -> None:
    check(random_plan(seed, 10), seed)


def test_a_lookup_names_its_index_and_reads_the_table_there(any_plan: Plan) -> None:
    engine, found = stages(any_plan)
    lookups = [p for s in found for p in s.premises if isinstance(p, BoundValue)]
    has = any(op.name == "gather" for op in engine.model.ops.values())
    assert bool(lookups) == has
    for stage in found:
        fresh = [s for s, _, _ in stage.symbols]
        assert len(fresh) == len(set(fresh)), "two meanings of one symbol"
        introduced = {p.value for p in stage.premises if isinstance(p, BoundValue)}
        assert introduced == {s for s, lo, _ in stage.symbols if lo is None}


def test_every_symbol_gets_its_range(mlp: Plan) -> None:
    engine, found = stages(mlp)
    assert found
    for stage in (s for s in found if s.title == WHOLE):
        bounded = {p.sym for p in stage.premises if isinstance(p, BoundSymbol)}
        goal = engine.knowledge.facts[stage.goal]
        assert bounded == {s for s, _, _ in goal.symbols} | {
            s for s, lo, _ in stage.symbols if lo is not None
        }


def test_elements_that_cannot_exist_are_not_unfolded(uneven: Plan) -> None:
    engine, _ = stages(uneven)
    builder = LayoutBuilder(engine.knowledge, 0, LayoutRecipe())
    assert not builder.possible("full:w", (Affine(0), Affine(7), Affine(0)))
    assert builder.possible("full:w", (Affine(0), Affine(3), Affine(0)))
    builder.unfold("full:w", (Affine(0), Affine(7), Affine(0)))
    assert not [p for p in builder.premises if isinstance(p, Def)]


def test_of_a_gathered_buffer_only_the_part_is_opened_that_is_read() -> None:
    """FSDP gathers the shards of a layer's weights in one buffer. Where two axes of the mesh gather, which
    rank has an element is no affine form; which part it is in still is one."""
    mesh, sizes = {"replica": 2, "shard": 3}, {f"w{i}": 4 + 2 * i for i in range(6)}

    def specification(p: ProgramBuilder) -> None:
        for name, rows in sizes.items():
            p.output(f"y.{name}", p.input(name, f"f32[{6 * rows},5]") * 2)

    def plan(p: ProgramBuilder) -> None:
        shards = [p.reshape(p.input(name, f"f32[{rows},5]"), (5 * rows,)) for name, rows in sizes.items()]
        width, first = 5 * sum(sizes.values()), 0
        buffer = p.reshape(p.all_gather(p.concatenate(shards, 0), "all", 0), (6, width))
        for name, rows in sizes.items():
            part = p.slice(buffer, (0, first), (6, 5 * rows))
            p.output(f"y.{name}", p.reshape(part, (6 * rows, 5)) * 2)
            first += 5 * rows

    whole = {"replica": Shard(0), "shard": Shard(0)}
    groups = {"all": ("replica", "shard")}
    spec, ranks = ProgramBuilder(), ProgramBuilder(mesh, groups)
    specification(spec)
    plan(ranks)
    found = build_plan(
        name="gathered", mesh=mesh, specification=spec.build(), classes=ranks.build(),
        groups=groups, inputs=dict.fromkeys(sizes, whole), outputs={f"y.{name}": {} for name in sizes},
    )  # fmt: skip
    engine, made = stages(found)
    opened = [s for s in made if any(isinstance(p, BoundIndex) for p in s.premises)]
    assert len(opened) >= len(sizes)
    for stage in opened:
        facts = {n for p in stage.premises if isinstance(p, Hyp) for n in p.facts}
        assert len({engine.knowledge.facts[n].rhs for n in facts}) == 1, stage.title
