"""What capture, emission and check cost as a model or its mesh grows: docs/scaling.md and its plots.

python bench/scaling.py --plans DIR    capture what DIR lacks, measure every plan: docs/scaling.json
python bench/scaling.py --plot         docs/scaling.md and docs/scaling.svg from docs/scaling.json

Llama 3 405B of examples/models/llama.py on TP 8 x FSDP 64 with a sequence of 8,192 tokens and two layers, one
of these changed at a time; for the layers torchtitan's model, which clips by the global norm. Whole fresh
processes; memory is the largest sum of resident sets of a command and its children. Capturing needs PyTorch
(the extra `torch`) and torchtitan, plotting needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import measured, run, table

from certificates.plan.writing import dump

ROOT = Path(__file__).resolve().parent.parent
DATA, TEXT, PLOT = (ROOT / "docs" / f"scaling.{suffix}" for suffix in ("json", "md", "svg"))
#: Width, inner width, heads of Llama 3 8B, 70B, 405B.
WIDTHS = {4096: (14336, 32), 8192: (28672, 64), 16384: (53248, 128)}
FAMILIES = {
    "layers": (8, 32, 126),
    "ranks": (16, 64, 256, 512, 1024, 4096, 16384),
    "sequence": (1024, 8192, 32768, 131072),
    "width": tuple(WIDTHS),
}
TITLE = """# What size costs

Made by `python bench/scaling.py --plans DIR` and `python bench/scaling.py --plot`. Every plan is Llama 3
405B of `examples/models/llama.py` (no clipping) on TP 8 x FSDP 64, 8,192 tokens, two layers, but for the
quantity that varies; above 512 ranks it is HSDP. For the layers it is torchtitan's model with clipping by the
global norm (`examples/models/torchtitan_llama3_405b.py`). All outputs of all plans are proved and checked.
Capture was measured while other work ran on the machine.
`bundle KiB` leaves out the plan itself, which every bundle contains (`plan KiB`).

![Seconds and memory against layers, ranks, sequence and width](scaling.svg)
"""
COLUMNS = (
    "capture s", "capture MiB", "emit s", "emit MiB", "check s", "check MiB",
    "ops", "stages", "obligations", "plan KiB", "bundle KiB",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One plan: the quantity that is varied, and its value."""

    family: str
    value: int

    @property
    def name(self) -> str:
        return f"llama3-405b-{self.family}-{self.value}"

    def sizes(self) -> dict[str, int]:
        return {"ranks": 512, "sequence": 8192, "width": 16384} | {self.family: self.value}


def points() -> Iterator[Point]:
    for family, values in FAMILIES.items():
        for value in values:
            yield Point(family, value)


def capture(point: Point, out: Path) -> None:
    """Runs in a process of its own, which is measured."""
    from orchestrator.capture import capture
    from orchestrator.emit import provable

    sys.path.insert(0, str(ROOT / "examples" / "models"))
    if point.family == "layers":
        import torchtitan_llama3_405b

        dump(capture(torchtitan_llama3_405b.definition(layers=point.value), most=16, accept=provable), out)
        return
    from llama import Config, definition

    size = point.sizes()
    inner, heads = WIDTHS[size["width"]]
    config = Config(dim=size["width"], ffn_dim=inner, heads=heads, kv_heads=8)
    shards = min(size["ranks"] // 8, 64)
    replicas = size["ranks"] // 8 // shards
    mesh = ({"rep": replicas} if replicas > 1 else {}) | {"dp": shards, "tp": 8}
    made = definition(point.name, config, mesh=mesh, batch=shards * replicas, length=size["sequence"])
    dump(capture(made, accept=provable), out)


def row_of(point: Point, plans: Path, before: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of one plan; capture is measured when the plan is not there yet."""
    path = plans / f"{point.name}.json.gz"
    captured = {k: before[k] for k in COLUMNS[:2] if k in before}
    if not path.exists():
        words = [sys.executable, __file__, "--capture", point.family, str(point.value), "--out", str(path)]
        cost = run(words)
        captured = {"capture s": round(cost.seconds, 1), "capture MiB": round(cost.mib)}
    m = measured(path)
    if m.counts["proved"] != m.counts["outputs"] or not m.valid:
        raise SystemExit(f"{point.name}: {m.counts['proved']} of {m.counts['outputs']} outputs are proved")
    return captured | {
        "emit s": round(m.emit.seconds, 1), "emit MiB": round(m.emit.mib),
        "check s": round(m.check.seconds, 1), "check MiB": round(m.check.mib),
        "ops": m.ops, "stages": m.counts["stages"], "obligations": m.counts["obligations"],
        "plan KiB": round(m.text / 1024), "bundle KiB": round((m.bundle - m.text) / 1024),
    }  # fmt: skip


def plot(data: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """A panel for each family: seconds above, memory below; both axes logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "trainverify"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(FAMILIES), figsize=(4 * len(FAMILIES), 6), sharey="row")
    for column, family in enumerate(FAMILIES):
        rows = sorted((int(value), row) for value, row in data.get(family, {}).items())
        for line, unit in enumerate(("s", "MiB")):
            panel = axes[line][column]
            for what in ("capture", "emit", "check"):
                at = [(x, row[f"{what} {unit}"]) for x, row in rows if f"{what} {unit}" in row]
                panel.plot([x for x, _ in at], [y for _, y in at], marker="o", label=what)
            panel.set(xscale="log", yscale="log", xlabel=family, ylabel=unit if not column else "")
            panel.set_xticks([x for x, _ in rows], [f"{x:,}" for x, _ in rows], rotation=45)
            panel.minorticks_off()
            panel.grid(alpha=0.3)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})


def document(data: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """docs/scaling.md."""
    parts = [TITLE]
    for family, of in data.items():
        rows = sorted((int(value), cells) for value, cells in of.items())
        shown = [(f"{value:,}", *(str(cells.get(name, "")) for name in COLUMNS)) for value, cells in rows]
        parts.append(table(shown, (family, *COLUMNS)))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=Path, metavar="DIR")
    parser.add_argument("--only", choices=FAMILIES)
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--capture", nargs=2, metavar=("FAMILY", "VALUE"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.capture:
        capture(Point(options.capture[0], int(options.capture[1])), options.out)
        return
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    if options.plans:
        options.plans.mkdir(parents=True, exist_ok=True)
        for point in points():
            if options.only in (None, point.family):
                rows = data.setdefault(point.family, {})
                rows[str(point.value)] = row_of(point, options.plans, rows.get(str(point.value), {}))
                print(point.name, rows[str(point.value)], flush=True)
                DATA.write_text(json.dumps(data, indent=1) + "\n")
    if options.plot:
        plot(data)
        TEXT.write_text(document(data))


if __name__ == "__main__":
    main()
