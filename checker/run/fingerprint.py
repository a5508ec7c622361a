"""Do the records that every rank wrote at the launch speak of this plan, and of every rank of it?

Each rank traces its own step and compares it with the plan before it writes its record
(`trainverify.fingerprint`). Here the records are compared with the plan at hand: they are the run's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

from ..language.plan import Plan
from ..reading.strict import DIGEST, natural, one_of, read_json, record, text
from .foreign import Foreign

FORMAT = "trainverify-fingerprint"


def read_record(data: bytes, what: str) -> dict[str, Any]:
    """One rank's record."""
    return record(
        read_json(data, what), what,
        format=one_of((FORMAT,), "no fingerprint, but"), version=partial(natural, high=2), rank=natural,
        ranks=natural, plan=partial(text, pattern=DIGEST), program=partial(text, pattern=DIGEST),
    )  # fmt: skip


def compare(plan: Plan, records: Mapping[str, bytes]) -> list[str]:
    """What the records say, in words; `Foreign` names the rank whose record is missing or of another plan."""
    ranks, found = prod(n for a, n in plan.mesh if a not in plan.time), dict[int, str]()
    for name, data in sorted(records.items()):
        item = read_record(data, name)
        if item["plan"] != plan.digest:
            raise Foreign(f"{name}: rank {item['rank']} compared itself with another plan, {item['plan']}")
        if item["ranks"] != ranks or item["rank"] >= ranks:
            raise Foreign(f"{name}: rank {item['rank']} of {item['ranks']}, the plan has {ranks} ranks")
        if item["rank"] in found:
            raise Foreign(f"{name}: a second record of rank {item['rank']}")
        found[item["rank"]] = item["program"]
    missing = sorted(set(range(ranks)) - set(found))
    if missing:
        raise Foreign(f"no record of rank {missing[0]}, and of {len(missing)} ranks in all")
    programs = len(set(found.values()))
    return [
        f"fingerprint: all {ranks} ranks of a launch compared their own step with this plan ({programs} "
        "programs), as their records say"
    ]
