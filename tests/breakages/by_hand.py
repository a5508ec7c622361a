"""Parts whose plans are written by hand, as no capture of them exists: pipelines, experts, packed rows.

And mistakes that are refused before anything is proved: schedules that are UNSAFE, programs that depend on an
order of rows that they do not name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from certificates.errors import FormatError
from certificates.plan.plan import Plan
from checker.errors import Rejected
from checker.reading.plan import read_plan
from checker.rules.rows import check_rows
from tests import expert_plans, pipeline_plans
from tests.expert_plans import MISORDERED, PACKED_REFUTED, experts
from tests.packed_plans import FORGED, document
from tests.pipeline_plans import pipeline
from tests.schedule_breakages import BREAKAGES
from tests.schedule_plans import reason

from .kit import Mistake, Part

Way = Callable[[str], Plan]


def by_hand(
    title: str, make: Way, right: Mapping[str, str], wrong: Mapping[str, str], hides: Mapping[str, str]
) -> Part:
    """``right`` and ``wrong`` are ways to write one plan, the wrong ones with an output that shows it."""
    name = next(iter(right))
    return Part(
        title,
        {n: (lambda mistake, way=way: make(mistake or way)) for n, way in right.items()},
        {m: Mistake(name, "*", hides.get(m, "")) for m in wrong},
        lambda plan: plan,
    )


#: Mistakes that a layer which dispatches rows can have as well.
_ELSEWHERE = {w: o for w, o in expert_plans.REFUTED.items() if w not in expert_plans.IN_EXPERTS}
BY_HAND: dict[str, Part] = {
    "13": by_hand(
        "pipelines over microbatches, by hand",
        lambda way: pipeline(2, 2, 3, way) if way in pipeline_plans.RIGHT else pipeline(bug=way),
        {"three stages": "", **{way: way for way in pipeline_plans.RIGHT}},
        pipeline_plans.REFUTED,
        {},
    ),
    "14": by_hand(
        "experts in indicator form, by hand",
        lambda way: experts(way=way),
        {"as it is": "", **{way: way for way in expert_plans.RIGHT}},
        expert_plans.REFUTED,
        {},
    ),
    "15": by_hand(
        "experts with dispatched rows, by hand",
        lambda way: experts(way=way, packed=True),
        {"sorted, sent, grouped": ""},
        _ELSEWHERE | PACKED_REFUTED,
        {},
    ),
}


def refusals() -> Iterator[tuple[str, str, str, str]]:
    """Part, mistake, what becomes of it, and the words by which it is refused."""
    for name, (make, _) in BREAKAGES.items():
        yield "schedules of pipelines", name, "UNSAFE", reason(make())
    for way in MISORDERED:
        with pytest.raises(FormatError) as told:
            experts(way=way, packed=True)
        yield "orders of rows, as they are written", way, "refused", str(told.value)
    for name, (edit, _) in FORGED.items():
        with pytest.raises(Rejected) as refused:
            check_rows(read_plan(document(edit)))
        yield "orders of rows, as they are read", name, "INVALID", str(refused.value)
