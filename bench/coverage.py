"""What is proved, by plan: ``python bench/coverage.py [--write]`` runs tv-verify on the shipped plans.

``--write`` replaces the table in docs/coverage.md. Plans over ``--most-ops`` are listed without a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from certificates.plan.plan import Plan
from certificates.plan.reading import load

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
BEGIN, END = "<!-- coverage -->", "<!-- end -->"
VERIFY = "from orchestrator.cli import verify_main; verify_main()"


def parallelism(plan: Plan) -> str:
    """The mesh, axis by axis."""
    return " x ".join(f"{a} {n}" for a, n in plan.mesh.axes.items())


def parts(plan: Plan) -> str:
    """Parts of the step that the plan's names and ops show."""
    outputs = {r.plan for r in plan.outputs}
    programs = (plan.specification, *(f.specification for f in plan.functions.values()))
    kinds = {op.attrs.get("kind") for p in programs for op in p.ops if op.name == "reduce"}
    found = ["forward, backward"]
    if any(n.startswith("opt.exp_avg") for n in outputs):
        found.append("Adam(W)")
    elif any(n.startswith("params.") for n in outputs):
        found.append("SGD")
    if "grad_norm" in outputs:
        found.append("clipping by global norm")
    tokens = plan.specification.inputs.get("batch.tokens")
    if tokens is not None and len(tokens.shape) == 3:
        found.append(f"{tokens.shape[0]} microbatches")
    if "batch.valid" in plan.specification.inputs:
        found.append("symbolic token counts")
    if any("experts" in name for name in plan.specification.inputs):
        found.append("experts")
    if "max" in kinds:
        found.append("softmax, cross-entropy")
    return ", ".join(found)


def framework(plan: Plan) -> str:
    """Where the code comes from."""
    sources = " ".join(plan.sources)
    if "torchtitan" in sources:
        return "torchtitan 0.3.0"
    return "PyTorch DTensor, FSDP2" if "llama.py" in sources else "plain torch.distributed"


def verdict(path: Path) -> tuple[str, float]:
    """What tv-verify says, and its seconds."""
    start = time.monotonic()
    words = [sys.executable, "-c", VERIFY, str(path), "--json", "--quiet", "--witness-seconds", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    try:
        said = json.loads(done.stdout)
        outputs = [o["verdict"] for o in said["check"]["outputs"]]
    except (ValueError, KeyError, TypeError):
        return f"exit code {done.returncode}", time.monotonic() - start
    proved = outputs.count("PROVED")
    word = "PROVED" if done.returncode == 0 else "not yet" if "REFUTED" not in outputs else "REFUTED"
    return f"{word} ({proved} of {len(outputs)})", time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/coverage.md")
    parser.add_argument("--most-ops", type=int, default=60_000, help="larger plans are not run")
    options = parser.parse_args()
    rows = ["| plan | parallelism | step | code | verdict |", "| --- | --- | --- | --- | --- |"]
    for path in sorted((ROOT / "examples").glob("*.json.gz")):
        plan = load(path)
        ops = len(plan.specification.ops) + sum(len(c.program.ops) for c in plan.classes)
        said, seconds = verdict(path) if ops <= options.most_ops else ("not run", 0.0)
        name = path.name.removesuffix(".json.gz")
        rows.append(f"| {name} | {parallelism(plan)} | {parts(plan)} | {framework(plan)} | {said} |")
        print(rows[-1], f"{seconds:.0f} s", flush=True)
    if options.write:
        page = PAGE.read_text("utf-8")
        head, rest = page.split(BEGIN)
        tail = rest.split(END, 1)[1]
        PAGE.write_text(head + "\n".join([BEGIN, *rows, END]) + tail, "utf-8")


if __name__ == "__main__":
    main()
