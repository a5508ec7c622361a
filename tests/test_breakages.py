"""Wrong training steps are refuted at the right tensor, right ones proved: capture, emission and check.

All of them in a table: ``python bench/breakages.py``.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

pytest.importorskip("torch")

import trainverify as tv
from bench.breakages import EVERY, PAGE, reason_row, row
from tests.breakages.by_hand import BY_HAND, refusals
from tests.breakages.corpus import PARTS
from tests.breakages.experts import EXPERTS, installed
from tests.breakages.experts import told as refused_experts
from tests.breakages.lines import LINES, recorded
from tests.breakages.outcome import judged, refuted, witnessed, wrong_outputs
from tests.breakages.staged import PART, STYLES, told
from tests.schedule_plans import judged as scheduled

#: From capture to the checker's verdict; other mistakes go as far as the replay of a witness.
QUICK = [
    ("1", "bucket offset off by one"),
    ("2", "replicas not reduced"),
    ("6", "earlier microbatches rescaled"),
    ("8", "mean of local means"),
]
WHOLE = [
    ("1", "gradient divided twice"),
    ("3", "bucket offset off by one"),
    ("4", "norm gradients not reduced over tp"),
    ("5", "gradient of foreign tokens in row 0"),
    ("7", "recomputed over the data-parallel group"),
    ("9", "documents not separated"),
    ("10", "norm gradients averaged over tp"),
    ("11", "norm without the axis tp"),
    ("11", "norm without the axis dp"),
    ("11", "replicated parameters counted once per rank"),
    ("12", "weight decay on the wrong shard"),
]
#: Of all others every third one; ``python bench/breakages.py`` has them all.
REPLAYED = [
    (number, mistake)
    for number, part in PARTS.items()
    for mistake in part.mistakes
    if (number, mistake) not in (*QUICK, *WHOLE)
][::3]
RIGHT = [(number, plan) for number, part in PARTS.items() for plan in part.plans]
WRONG = [(number, mistake) for number, part in PARTS.items() for mistake in part.mistakes]


def test_every_part_has_five_mistakes_or_more() -> None:
    assert [int(number) for number in PARTS] == list(range(1, 13))
    assert {number: len(part.mistakes) for number, part in PARTS.items() if len(part.mistakes) < 5} == {}
    assert all(m.plan in part.plans for part in PARTS.values() for m in part.mistakes.values())


@pytest.mark.parametrize(("number", "mistake"), QUICK, ids=lambda x: x)
def test_a_mistake_is_refuted_and_the_rest_proved(number: str, mistake: str) -> None:
    assert judged(PARTS[number], PARTS[number].mistakes[mistake].plan, mistake).surprises == ()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "plan"), RIGHT, ids=lambda x: x)
def test_a_right_plan_is_proved(number: str, plan: str) -> None:
    assert judged(PARTS[number], plan).surprises == ()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "mistake"), WHOLE, ids=lambda x: x)
def test_another_mistake_is_refuted_and_the_rest_proved(number: str, mistake: str) -> None:
    assert judged(PARTS[number], PARTS[number].mistakes[mistake].plan, mistake).surprises == ()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "mistake"), REPLAYED, ids=lambda x: x)
def test_a_witness_is_replayed(number: str, mistake: str) -> None:
    assert fnmatchcase(refuted(PARTS[number], mistake), PARTS[number].mistakes[mistake].refuted)


def test_every_mistake_has_its_lines() -> None:
    assert {n: set(found) for n, (_, found) in LINES.items()} == {
        n: set(p.mistakes) for n, p in PARTS.items()
    }
    assert all(recorded(number, mistake) for number, mistake in WRONG)


# --- plans by hand ----------------------------------------------------------------------------------------


def test_the_page_has_every_plan() -> None:
    text = PAGE.read_text("utf-8")
    assert [*EVERY] == [str(n) for n in range(1, 18)]
    missing = [
        (part.title, name)
        for part in EVERY.values()
        for name in (*(f"*right: {p}*" for p in part.plans), *part.mistakes)
        if f"| {part.title} | {name} |" not in text
    ]
    assert missing == []
    assert sum(len(part.mistakes) for part in BY_HAND.values()) > 60


# --- pipelines as people write them -----------------------------------------------------------------------

#: Styles whose right plan is proved in the quick part; all others are slow.
FIRST = ("embedding tied over the ends of four stages", "parts in a V")
#: Microbatches that are not one program: no order of theirs is a schedule.
UNROLLED = ("microbatches of other sizes",)
#: From capture to the verdict, one of every other style; others go as far as the replay of a witness.
TO_THE_VERDICT = list({m.plan: mistake for mistake, m in reversed(PART.mistakes.items())}.values())[::-2]
REFUSED = [(name, mistake) for name, style in STYLES.items() for mistake in style.refused]
UNSAFE = [(name, mistake) for name, style in STYLES.items() for mistake in style.unsafe]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FIRST else pytest.mark.slow) for n in STYLES]
)
def test_a_way_to_write_a_pipeline_is_proved_and_safe(name: str) -> None:
    """Where microbatches are one program, its order is a schedule: SAFE."""
    plan = PART.right(name)
    verdict = tv.verify(plan, jobs=1)
    assert verdict.kind is tv.Kind.PROVED, verdict.report
    assert wrong_outputs(plan) == set()
    found = scheduled(plan)
    assert (found is None) == (name in UNROLLED), plan.provenance.get("microbatches")
    assert found is None or found.safe, found


@pytest.mark.slow
@pytest.mark.parametrize("mistake", TO_THE_VERDICT)
def test_a_mistake_in_a_pipeline_is_refuted_and_the_rest_proved(mistake: str) -> None:
    assert judged(PART, PART.mistakes[mistake].plan, mistake).surprises == ()


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [m for m in PART.mistakes if m not in TO_THE_VERDICT])
def test_a_witness_of_a_mistake_in_a_pipeline_is_replayed(mistake: str) -> None:
    assert fnmatchcase(refuted(PART, mistake), PART.mistakes[mistake].refuted)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mistake"), [*REFUSED, *UNSAFE])
def test_a_mistake_in_a_pipeline_is_refused_or_unsafe_for_its_reason(name: str, mistake: str) -> None:
    style = STYLES[name]
    word, why = told(style, mistake)
    assert word == ("refused" if mistake in style.refused else "UNSAFE")
    assert {**style.refused, **style.unsafe}[mistake] in why
    assert reason_row(PART.title, f"{name}: {mistake}", word, why) in PAGE.read_text("utf-8")


def test_the_page_has_what_is_refused_by_hand() -> None:
    """What is captured has a test each, which looks for its row."""
    text, rows = PAGE.read_text("utf-8"), [reason_row(*found) for found in refusals()]
    assert len(rows) > 20 and [row for row in rows if row not in text] == []


# --- experts of libraries ---------------------------------------------------------------------------------

OF_EXPERTS = [(number, plan) for number, (part, *_) in EXPERTS.items() for plan in part.plans]
IN_EXPERTS = [(number, mistake) for number, (part, *_) in EXPERTS.items() for mistake in part.mistakes]
REFUSED_EXPERTS = [(number, mistake) for number, (*_, refused, _) in EXPERTS.items() for mistake in refused]


def library(number: str) -> None:
    if not installed(number):
        pytest.skip(f"{EXPERTS[number][1]} is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "plan"), OF_EXPERTS)
def test_a_right_layer_of_experts_is_proved(number: str, plan: str) -> None:
    library(number)
    assert judged(EXPERTS[number][0], plan).surprises == ()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "mistake"), IN_EXPERTS[::2])
def test_a_mistake_in_a_layer_of_experts_is_refuted(number: str, mistake: str) -> None:
    library(number)
    part = EXPERTS[number][0]
    assert fnmatchcase(refuted(part, mistake), part.mistakes[mistake].refuted)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "mistake"), REFUSED_EXPERTS)
def test_a_mistake_in_a_layer_of_experts_is_refused_for_its_reason(number: str, mistake: str) -> None:
    library(number)
    why = refused_experts(number, mistake)
    assert re.search(EXPERTS[number][2][mistake][1], why)
    assert reason_row(EXPERTS[number][0].title, mistake, "refused", why) in PAGE.read_text("utf-8")


@pytest.mark.parametrize(
    ("number", "mistake"),
    [("13", "messages swapped"), ("14", "weights applied twice"), ("15", "results of another choice")],
)
def test_a_mistake_by_hand_is_refuted(number: str, mistake: str) -> None:
    part = BY_HAND[number]
    outcome = witnessed(part, part.mistakes[mistake].plan, mistake)
    assert outcome.verdict == "REFUTED" and outcome.proved is None
    assert row(part.title, mistake, outcome) in PAGE.read_text("utf-8")


def test_what_an_adversary_tried_has_tests() -> None:
    """Tests that the page names are there, and no attempt is without one."""
    table = PAGE.read_text("utf-8").split("<!-- adversary -->")[1].split("<!-- end -->")[0]
    rows = [row for row in table.splitlines() if row.startswith("|")][2:]
    named = [re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", row.split("|")[3]) for row in rows]
    assert len(rows) >= 14 and all(named), named
    folder = Path(__file__).parent / "checker"
    missing = [
        (file, test)
        for found in named
        for file, test in found
        if f"\ndef {test}(" not in (folder / file).read_text("utf-8")
    ]
    assert missing == []
