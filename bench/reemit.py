"""What an edit costs: one op of a plan is changed, and it is emitted again with the solvers' answers kept.

python bench/reemit.py PLAN

For one op of each function and one outside all functions, whose operands are exchanged: seconds from scratch
and with the answers of the first time, and whether both give the same bundle, byte for byte.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import run

from certificates.plan.reading import load, loads
from certificates.plan.writing import dump, dumps
from orchestrator.children import command

COMMUTATIVE = ("add", "multiply", "maximum", "minimum")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    path = parser.parse_args().plan
    plan = load(path)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        first = emitted(path, folder / "first", folder / "answers")
        print(f"first time: {first:.1f} s")
        for name, edited in edits(json.loads(dumps(plan))):
            changed = folder / "edited.json.gz"
            dump(loads(json.dumps(edited).encode()), changed)
            shutil.copy(folder / "answers", folder / "kept")
            # All stay until the end: a disk that is still busy with deletions would be measured too.
            one, other = (Path(tempfile.mkdtemp(dir=folder)) / "bundle" for _ in range(2))
            whole = emitted(changed, one, folder / "fresh")
            again = emitted(changed, other, folder / "kept")
            same = alike(one, other)
            share = f"{again / first:.0%} of the first time"
            verdict = "the same bundle" if same else "ANOTHER BUNDLE"
            print(f"{name}: from scratch {whole:.1f} s, again {again:.1f} s ({share}), {verdict}", flush=True)
            (folder / "fresh").unlink()


def edits(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The plan with the operands of one op exchanged, in each function and outside, and where."""
    places = {f"function {f}": body["classes"] for f, body in document.get("functions", {}).items()}
    places["main program"] = {c["name"]: c["program"] for c in document["classes"]}
    for place, programs in places.items():
        cls, program = next(iter(programs.items()))
        ops = [op for op in program["ops"] if op[1] in COMMUTATIVE and op[2][0] != op[2][1]]
        if ops:
            op = ops[len(ops) // 2]
            op[2].reverse()
            yield f"{op[1]} {op[0]} of {cls} in the {place}", document
            op[2].reverse()


def emitted(plan: Path, out: Path, answers: Path) -> float:
    """Seconds of one emission, in a process of its own."""
    options = ["--out", str(out), "--answers", str(answers), "--quiet", "--json"]
    return run(command("orchestrator.cli", "emit_main", str(plan), *options)).seconds


def alike(a: Path, b: Path) -> bool:
    names = sorted(p.relative_to(a) for p in a.rglob("*") if p.is_file())
    others = sorted(p.relative_to(b) for p in b.rglob("*") if p.is_file())
    return names == others and not filecmp.cmpfiles(a, b, names, shallow=False)[1]


if __name__ == "__main__":
    main()
