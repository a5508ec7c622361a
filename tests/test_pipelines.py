"""Pipelines by hand: right ones are PROVED, whatever the number of microbatches, wrong ones are REFUTED."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trainverify as tv
from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.functions import inline
from certificates.plan.plan import Plan
from certificates.plan.schedule import schedule_from_json
from orchestrator.evaluating import interpreter, scatter
from orchestrator.refuting.search import Refuter
from tests.corpus.run import replayed
from tests.orchestrator.plans import unproved
from tests.pipeline_plans import REFUTED, RIGHT, pipeline
from tests.sliced_plans import Sliced, dense


def wrong_outputs(plan: Plan, seed: int = 3) -> set[str]:
    """By the interpreter, on dense random inputs."""
    rng = np.random.default_rng(seed)
    inputs = scatter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng))
    spec = interpreter.run_specification(plan, inputs)
    return {m.plan for m in scatter.compare_outputs(plan, spec, ranks, 1e-9)}


def proved(plan: Plan, folder: Path) -> int:
    """The number of obligations of a bundle that the checker calls valid."""
    emission = tv.emit(plan, folder)
    verdict = tv.check(folder)
    assert verdict.exit_code == 0, verdict
    return emission.obligations


def test_the_interpreter_agrees_with_the_whole_batch() -> None:
    assert wrong_outputs(pipeline()) == set()
    assert wrong_outputs(pipeline(2, 1, 3)) == set()


def test_three_stages_are_proved(tmp_path: Path) -> None:
    assert proved(pipeline(3, 2, 4), tmp_path / "bundle") > 0


@pytest.mark.parametrize("way", RIGHT)
def test_other_ways_to_compute_the_same_are_proved(way: str) -> None:
    plan = pipeline(2, 2, 3, way)
    assert wrong_outputs(plan) == set()
    assert unproved(plan) == []


def test_positions_that_run_downwards_over_many_runs_are_not_followed() -> None:
    """Named in docs/coverage.md: up to 32 run by run; right beyond, not proved, and no witness is found."""
    plan = pipeline(2, 1, 33, "microbatches in reverse order")
    assert wrong_outputs(plan) == set()
    assert any("runs downwards" in line for line in unproved(plan))
    assert Refuter(plan).search(plan, budget=2.0) is None


def test_what_no_relation_ties_is_the_same_in_all_runs() -> None:
    """x + (sum of b over the runs) / 2 - b, where b is a rank's own: it is x, as b is one tensor."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[2]"))
    b = ProgramBuilder({"dp": 2}, time={"mb": 2})
    x, own = b.input("x", "f32[2]"), b.input("own", "f32[2]")
    b.output("y", x + b.all_reduce(own, "mb") / 2 - own)
    plan = build_plan(
        name="own", mesh={"dp": 2}, time={"mb": 2}, specification=spec.build(), classes=b.build(),
        inputs={"x": {}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip
    assert wrong_outputs(plan) == set()
    assert Refuter(plan).search(plan, budget=2.0) is None


@pytest.mark.slow
def test_obligations_do_not_grow_with_microbatches(tmp_path: Path) -> None:
    counts = [proved(pipeline(3, 2, m), tmp_path / str(m)) for m in (4, 64)]
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_sixteen_stages_of_64_replicas(tmp_path: Path) -> None:
    proved(pipeline(16, 64, 32), tmp_path / "bundle")


@pytest.mark.parametrize("bug", REFUTED)
def test_a_wrong_pipeline_is_refuted(bug: str) -> None:
    """The witness is about an output that is wrong, and the checker replays it; of the outputs that the
    mistake leaves alone nothing is said."""
    plan = pipeline(bug=bug)
    assert REFUTED[bug] in wrong_outputs(plan)
    witness = Refuter(plan).search(plan, budget=30.0)
    assert witness is not None, "no witness"
    replayed(plan, witness.to_json())
    assert plan.outputs[witness.output].plan in wrong_outputs(plan)


@pytest.mark.parametrize("bug", ["update skipped", "loss of one replica"])
def test_what_is_right_of_a_wrong_pipeline_is_proved(bug: str, tmp_path: Path) -> None:
    plan = pipeline(bug=bug)
    emission = tv.emit(plan, tmp_path / "bundle", witness_seconds=0)
    assert {v.plan for v in emission.verdicts if v.verdict != "PROVED"} == wrong_outputs(plan)


def test_a_layer_is_proved_once_for_all_stages(tmp_path: Path) -> None:
    counts = [proved(Sliced(stages, layers=2).plan(), tmp_path / str(stages)) for stages in (2, 4)]
    assert counts[0] == counts[1]


def test_a_function_at_a_slice_has_a_body_for_every_role() -> None:
    plan = Sliced(2, 2, replicas=3, parts=2).plan()
    assert unproved(plan) == []


@pytest.mark.slow
def test_obligations_do_not_grow_with_stages_layers_and_microbatches(tmp_path: Path) -> None:
    counts = [
        proved(Sliced(s, layers, replicas=2, microbatches=m).plan(), tmp_path / f"{s}")
        for s, layers, m in ((2, 2, 4), (12, 3, 64))
    ]
    assert counts[0] == counts[1]


def test_a_wrong_layer_is_refuted(tmp_path: Path) -> None:
    plan = Sliced(2, 2, bug="weights of another layer").plan()
    assert "loss" in wrong_outputs(inline(plan))
    tv.emit(plan, tmp_path / "bundle")
    verdict = tv.check(tmp_path / "bundle")
    assert verdict.exit_code == 1 and any(o.verdict == "REFUTED" for o in verdict.outputs)


@pytest.mark.parametrize("early", [False, True])
def test_a_call_at_a_slice_is_a_part_of_a_schedule(early: bool, tmp_path: Path) -> None:
    """Each stage runs its layer; the second one does so before what it reads has come, or after."""
    lanes = [
        {"name": "first", "box": {"pp": [0, 1], "tp": [0, 2]}, "slots": [],
         "events": [["run", "f", 0], ["now", "pp", [["send", 1, 0]]]]},
        {"name": "last", "box": {"pp": [1, 2], "tp": [0, 2]}, "slots": [["c1", "%0", 0, 1]],
         "events": [["now", "pp", [["recv", 1, 0]]], ["run", "f", 0]][:: -1 if early else 1]},
    ]  # fmt: skip
    segments = {"c0": {"f": [[0, 1]]}, "c1": {"f": [[1, 2]]}}
    schedule = schedule_from_json({"segments": segments, "once": {}, "lanes": lanes})
    emission = tv.emit(replace(dense(), schedule=schedule), tmp_path / "bundle")
    assert emission.schedule.startswith("UNSAFE" if early else "SAFE"), emission.schedule
    assert tv.check(tmp_path / "bundle").exit_code == (1 if early else 0)
