"""PyTorch's pipeline schedules as schedules of plans: how large they are, and what finding and checking cost.

    python bench/schedules.py [--write]

Every row is a residual MLP with as many stages as the schedule wants, put into the order of a class of
`torch.distributed.pipelining`; then what the checker says of schedules that are wrong. `--write` puts both
tables into docs/schedules.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from certificates.plan.writing import dumps
from checker.reading.plan import read_plan
from checker.reading.schedule import read_when
from checker.scheduling.safety import safety
from orchestrator.scheduling import when
from tests.schedule_breakages import BREAKAGES
from tests.schedule_plans import TORCH, by_torch, reason

PAGE = Path(__file__).resolve().parent.parent / "docs" / "schedules.md"
SIZES = ((4, 16), (16, 64))


def rows() -> Iterator[str]:
    yield "| schedule | ranks | microbatches | events | find, CPU s | check, CPU s | kB | verdict |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for name in TORCH:
        for ranks, microbatches in SIZES:
            plan = by_torch(name, ranks, microbatches)
            assert plan.schedule is not None
            start = time.process_time()
            found = when(plan)
            between = time.process_time()
            assert found is not None
            data = json.dumps(found.to_json(), separators=(",", ":"))
            read = read_plan(dumps(plan))
            checking = time.process_time()
            verdict = safety(read, read_when(found.to_json()))
            end = time.process_time()
            events = sum(len(lane.events) for lane in plan.schedule.lanes)
            assert verdict is not None
            yield (
                f"| {name} | {ranks} | {microbatches} | {events:,} | {between - start:.2f} | "
                f"{end - checking:.2f} | {len(data) / 1000:.0f} | {'SAFE' if verdict.safe else 'UNSAFE'} |"
            )


def breakages() -> Iterator[str]:
    yield "| mistake | UNSAFE, as |"
    yield "| --- | --- |"
    for name, (make, _) in BREAKAGES.items():
        yield f"| {name} | {reason(make())} |"


def put(text: str, mark: str, table: list[str]) -> str:
    """A page with this table between two marks."""
    before, rest = text.split(f"<!-- {mark} -->\n")
    after = rest[rest.index("<!-- end -->") :]
    return before + "\n".join([f"<!-- {mark} -->", *table, after])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/schedules.md")
    options, tables = parser.parse_args(), {"sizes": list(rows()), "breakages": list(breakages())}
    for mark, table in tables.items():
        print("\n".join(table))
        if options.write:
            PAGE.write_text(put(PAGE.read_text("utf-8"), mark, table), "utf-8")


if __name__ == "__main__":
    main()
