"""Right plans that nobody shaped the finder on are proved, and their wrong twins are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trainverify as tv
from certificates.authoring.build import ProgramBuilder
from tests.orchestrator.plans import pair, unproved
from tests.right_plans.bugs import BUGS, lines
from tests.right_plans.counts import COUNTS
from tests.right_plans.kit import differs
from tests.right_plans.rewriting import rewritten, spoiled
from tests.right_plans.steps import STEPS

ROOT = Path(__file__).resolve().parents[1]
#: Repaired plans that are not proved, and why.
UNPROVED_BUGS: dict[str, str] = {}
#: Rewritings that are not proved, by step and seed, and why.
UNPROVED_REWRITINGS: dict[tuple[str, int], str] = {}
QUICK_SEEDS = 2
#: Tests of whole programs, each of several: one test of them all would end long after all others.
PARTS = 12


@pytest.mark.parametrize("name", COUNTS)
def test_values_that_are_one_number_or_alike_on_all_ranks(name: str) -> None:
    assert unproved(COUNTS[name](True)) == []


@pytest.mark.parametrize("name", COUNTS)
def test_a_wrong_twin_is_not_proved(name: str) -> None:
    assert unproved(COUNTS[name](False))


@pytest.mark.parametrize("name", BUGS)
def test_a_repaired_bug_is_proved_and_the_bug_is_not(name: str) -> None:
    bug = BUGS[name]
    assert not differs(bug.plan(True))
    assert differs(bug.plan(False))
    assert bool(unproved(bug.plan(True))) == (name in UNPROVED_BUGS)
    assert unproved(bug.plan(False))


def test_a_bug_has_a_source_and_a_line_where_its_programs_differ() -> None:
    assert len(BUGS) >= 40
    for bug in BUGS.values():
        assert re.search(r"\w/[\w-]+ \d+", bug.source), bug.name


@pytest.mark.parametrize("seed", range(QUICK_SEEDS))
@pytest.mark.parametrize("name", STEPS)
def test_a_rewriting_computes_the_same_and_is_proved(name: str, seed: int) -> None:
    plan = rewritten(STEPS[name](), seed)
    assert not differs(plan)
    assert bool(unproved(plan)) == ((name, seed) in UNPROVED_REWRITINGS)


@pytest.mark.parametrize("name", STEPS)
def test_a_spoiled_rewriting_is_not_proved_where_it_differs(name: str) -> None:
    plan = rewritten(STEPS[name](), 0, spoiled=True)
    assert bool(unproved(plan)) >= differs(plan)


@pytest.mark.parametrize("name", STEPS)
def test_a_spoiled_step_differs_and_is_not_proved(name: str) -> None:
    plan = spoiled(STEPS[name]())
    assert differs(plan) and unproved(plan)


def test_a_plan_whose_outputs_are_inputs_has_no_wrong_twin() -> None:
    plan = pair({}, copied, copied, {"x": {}}, {"y": {}})
    with pytest.raises(ValueError, match="no output depends on the ops that were doubled"):
        spoiled(plan)


def copied(b: ProgramBuilder) -> None:
    x = b.input("x", "f32[3]")
    b.exponential(x)
    b.output("y", x)


@pytest.mark.slow
def test_steps_by_hand_in_pytorch_are_proved() -> None:
    """In one test: the captures share what PyTorch and its workers take to start."""
    pytest.importorskip("torch")
    from orchestrator.capture import capture
    from orchestrator.emit import provable
    from tests.right_plans.captured import CAPTURED, UNPROVED

    assert UNPROVED.keys() <= CAPTURED.keys()
    right = [name for name in CAPTURED if name not in UNPROVED]
    assert [n for n in right if not provable(capture(CAPTURED[n](), jobs=1, root=ROOT))] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_programs_that_were_written_without_a_look_at_the_prover_are_proved(
    part: int, tmp_path: Path
) -> None:
    """One of each part by the checker; of the others the engine finds every proof. Their wrong twins, all
    bundles, and every third program are in ``bench/right_plans.py --group front`` only."""
    pytest.importorskip("torch")
    from orchestrator.capture import capture
    from orchestrator.emit import provable
    from tests.right_plans.front.programs import FRONT, UNPROVED

    assert UNPROVED.keys() <= FRONT.keys()

    names = [name for name in FRONT if name not in UNPROVED]
    first, *others = (name for number, name in enumerate(names[part::PARTS]) if (number + part) % 3 < 2)
    tv.emit(capture(FRONT[first](True), jobs=1, root=ROOT), tmp_path / first, witness_seconds=0)
    assert tv.check(tmp_path / first).exit_code == 0
    assert [name for name in others if not provable(capture(FRONT[name](True), jobs=1, root=ROOT))] == []


def test_the_own_lines_of_a_bug_are_the_marked_one_or_what_its_fix_shows() -> None:
    """A line that only chooses makes no op: what reads the wrong thing is there instead."""
    assert lines(BUGS["raw_all_reduce"]) == {BUGS["raw_all_reduce"].line}
    chosen = BUGS["rolled_mask"]
    assert lines(chosen) == {chosen.line + 1}
    left_out = BUGS["replicas_differ"]
    assert left_out.line in lines(left_out) and len(lines(left_out)) == 2
    assert all(lines(bug) for bug in BUGS.values())
