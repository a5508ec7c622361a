"""Captures shipped plans anew and says what it cost: whole fresh processes of tv-capture.

python bench/recapture.py NAME…              capture these plans, compare them with the shipped files
python bench/recapture.py --small            all but those at full depth
python bench/recapture.py --write NAME…      and replace the examples and their rows in README.md

Seconds are of the clock and of the processor, all children included; memory is the largest sum of resident
sets. torchtitan's plans need ``torchtitan==0.3.0``, installed without its dependency PyTorch.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import README, ROOT, run, table
from certificates.plan.plan import Plan
from certificates.plan.reading import load
from orchestrator.children import command

EXAMPLES = ROOT / "examples"
BEGIN, END = "<!-- captured -->\n", "<!-- end -->\n"
COLUMNS = ("plan", "s", "processor s", "MiB", "ranks", "traced", "interpolated")


@dataclass(frozen=True)
class Source:
    """File in examples/models, arguments of its ``definition``, and ranks traced of each class."""

    file: str
    settings: Mapping[str, int | str] = field(default_factory=dict)
    most: int = 64

    @property
    def path(self) -> Path:
        return EXAMPLES / "models" / self.file


def _torchtitan(most: int = 64, **settings: int | str) -> Source:
    return Source("torchtitan_llama3_405b.py", settings, most)


def _pipeline(**settings: int | str) -> Source:
    """All layers of 405B on 8,192 ranks: 16 stages, 16 microbatches."""
    sizes = {"flavor": "405B", "layers": 126, "length": 8192, "microbatches": 16, "pp": 16, "tp": 8}
    return Source("torchtitan_llama3_pipeline.py", {**sizes, **settings}, most=8)


def _experts(**settings: int | str) -> Source:
    """DeepSeek V3 671B at its widths: three dense layers and the first of experts."""
    sizes = {"flavor": "671B", "layers": 4, "length": 4096, "tp": 8, "ep": 64}
    return Source("torchtitan_deepseek_v3.py", {**sizes, **settings}, most=8)


_SMALL_TITAN: dict[str, int | str] = {"flavor": "debugmodel", "layers": 1, "length": 8, "shards": 2, "tp": 2}
SOURCES = {
    "ddp-bucket-dp4": Source("ddp_zero1.py", {"zero": 0}),
    "zero1-dp4": Source("ddp_zero1.py"),
    "mlp-handwritten": Source("mlp_handwritten.py"),
    "llama-small-hsdp-rep2-tp2-fsdp2": Source("llama_small_hsdp_rep2_tp2_fsdp2.py"),
    "llama-small-clip-accum-hsdp-rep2-tp2-fsdp2": Source("llama_small_hsdp_rep2_tp2_fsdp2.py", {"full": 1}),
    "llama-small-clip-accum-tp2-fsdp2": Source("llama_small_clip_accum_tp2_fsdp2.py"),
    "llama-small-clip-accum-whole-tp2-fsdp2": Source("llama_small_clip_accum_tp2_fsdp2.py", {"whole": 1}),
    "llama-uneven-tp2-fsdp2": Source("llama_uneven_tp2_fsdp2.py"),
    "llama3-8b-2l-tp2-fsdp2": Source("llama3_8b_2l_tp2_fsdp2.py"),
    "llama3-8b-2l-clip-accum-tp2-fsdp2": Source("llama3_8b_2l_clip_accum_tp2_fsdp2.py"),
    "llama3-405b-2l-tp8-fsdp64": Source("llama3_405b_2l_tp8_fsdp64.py"),
    **{
        f"llama3-405b-2l-hsdp-rep{n}-tp8-fsdp64": Source("llama3_405b_2l_hsdp_tp8_fsdp64.py", {"replicas": n})
        for n in (2, 4, 8, 16, 32)
    },
    "torchtitan-deepseek-v3-671b-4l-fsdp32-ep64-tp8": _experts(shards=32),
    "torchtitan-llama3-debugmodel-1l-tp2-fsdp2": _torchtitan(**_SMALL_TITAN),
    "torchtitan-llama3-debugmodel-1l-hsdp2-tp2-fsdp2": _torchtitan(**_SMALL_TITAN, replicas=2),
    "torchtitan-llama3-405b-2l-tp8-fsdp64": _torchtitan(layers=2),
    "torchtitan-llama3-405b-8l-tp8-fsdp64": _torchtitan(layers=8),
    "torchtitan-llama3-405b-8l-hsdp2-tp8-fsdp64": _torchtitan(layers=8, replicas=2),
    "torchtitan-llama3-405b-8l-hsdp32-tp8-fsdp64": _torchtitan(layers=8, replicas=32),
    "torchtitan-llama3-405b-tp8-fsdp64": _torchtitan(6),
    "torchtitan-llama3-405b-hsdp2-tp8-fsdp64": _torchtitan(6, replicas=2),
    "torchtitan-llama3-405b-126l-1f1b-pp16-dp_replicate2-fsdp32-tp8": _pipeline(replicas=2, shards=32),
    "torchtitan-llama3-405b-126l-interleaved1f1b-pp16-fsdp64-tp8": _pipeline(
        shards=64, schedule="Interleaved1F1B"
    ),
    "torchtitan-llama3-405b-126l-zbvzerobubble-pp16-fsdp64-tp8": _pipeline(
        shards=64, schedule="ZBVZeroBubble"
    ),
}
#: All 126 layers: a quarter of an hour or more.
FULL_DEPTH = (
    "torchtitan-llama3-405b-tp8-fsdp64",
    "torchtitan-llama3-405b-hsdp2-tp8-fsdp64",
    *(name for name, source in SOURCES.items() if source.settings.get("layers") == 126),
)


@dataclass(frozen=True)
class Captured:
    """One capture: its cost, in seconds and MiB, and the ranks that were traced."""

    plan: Plan
    seconds: float
    processor: float
    mib: float

    def row(self) -> tuple[str, ...]:
        ranks, traced = self.plan.mesh.ranks, len(_traced(self.plan))
        costs = (f"{self.seconds:.0f}", f"{self.processor:.0f}", f"{self.mib:.0f}")
        return (self.plan.name, *costs, str(ranks), str(traced), str(ranks - traced))


def _traced(plan: Plan) -> Sequence[object]:
    ranks = plan.provenance["traced_ranks"]
    assert isinstance(ranks, list | tuple)
    return ranks


def captured(name: str, out: Path, jobs: int) -> Captured:
    """Capture one plan of :data:`SOURCES` into ``out``."""
    source = SOURCES[name]
    settings = [word for key, value in source.settings.items() for word in ("--set", f"{key}={value}")]
    options = ["--out", str(out), "--jobs", str(jobs), "--most", str(source.most), *settings]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = run(command("orchestrator.capture.cli", "main", str(source.path), *options), every=0.5)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Captured(load(out), cost.seconds, processor, cost.mib)


def published(text: str) -> dict[str, tuple[str, ...]]:
    """Rows of README's table of captures by plan name."""
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return {row[0]: row for row in rows}


def told(text: str, rows: Sequence[tuple[str, ...]]) -> str:
    """README with these rows in its table, in the order of :data:`SOURCES`."""
    known = published(text) | {row[0]: row for row in rows}
    before, _, rest = text.partition(BEGIN)
    shown = table([known[name] for name in SOURCES if name in known], COLUMNS)
    return f"{before}{BEGIN}{shown}{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plans", nargs="*", metavar="NAME")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=2, help="ranks traced at a time (2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="also put the captured plans here")
    options = parser.parse_args()
    unknown = sorted(set(options.plans) - set(SOURCES))
    if unknown:
        parser.error(f"no shipped plan is called {', '.join(unknown)}")
    small = [name for name in SOURCES if name not in FULL_DEPTH] if options.small else []
    print(" | ".join(COLUMNS))
    for name in dict.fromkeys([*options.plans, *small]):
        shipped = EXAMPLES / f"{name}.json.gz"
        with tempfile.TemporaryDirectory(prefix="tv-recapture-") as folder:
            out = Path(folder, shipped.name)
            made = captured(name, out, options.jobs)
            same = shipped.exists() and out.read_bytes() == shipped.read_bytes()
            print(" | ".join(made.row()), "as shipped" if same else "ANOTHER PLAN", sep=" | ", flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(out, options.keep)
            if options.write:
                shutil.copy(out, shipped)
                text = told(README.read_text("utf-8"), [made.row()])
                README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
