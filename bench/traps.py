"""Runs tv-verify on every counterexample and trap of tests/traps: a line per plan, exit code 1 on a surprise.

python bench/traps.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from certificates.plan.plan import Plan
from certificates.plan.writing import dump
from tests.traps.counterexamples import COUNTEREXAMPLES
from tests.traps.reductions import TRAPS

VERIFY = "from orchestrator.cli import verify_main; verify_main()"


def plans() -> Iterator[tuple[str, str, set[str], Callable[[], Plan]]]:
    """Kind, name, verdicts that are right, and the plan."""
    for name, trap in COUNTEREXAMPLES.items():
        yield "counterexample", name, {"REFUTED", "UNKNOWN"}, trap.wrong
    for name, trap in TRAPS.items():
        yield "wrong", name, {"REFUTED"}, trap.wrong
        if trap.right is not None:
            yield "right", name, {"PROVED"}, trap.right


def verdict(plan: Plan) -> tuple[str, str]:
    """What the command says of the plan's one output; UNKNOWN if the checker rejects the bundle."""
    with tempfile.TemporaryDirectory(prefix="tv-traps-") as scratch:
        path = Path(scratch, "plan.json")
        dump(plan, path)
        words = [sys.executable, "-c", VERIFY, str(path), "--json", "--quiet"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    if done.returncode == 0:
        return "PROVED", ""
    outputs = document.get("check", {}).get("outputs", [])
    refuted = any(o["verdict"] == "REFUTED" for o in outputs)
    return "REFUTED" if refuted else "UNKNOWN", str(document["verdict"])


def main() -> None:
    surprises = 0
    for kind, name, right, build in plans():
        found, line = verdict(build())
        surprises += found not in right
        print(f"{'' if found in right else 'SURPRISE '}{found:8} {kind:15} {name}: {line[:120]}", flush=True)
    print(f"{surprises} surprises")
    sys.exit(surprises > 0)


if __name__ == "__main__":
    main()
