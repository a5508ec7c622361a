"""What a change costs: tv-emit and tv-check of two revisions on the same plans, alternating in one run.

python bench/compare.py REVISION              against this revision, on three shipped plans
python bench/compare.py REVISION PLAN… --times 5

The plans are read from the other revision's files, so that both see the same bytes. Of each command the least
seconds of the processor over the runs are printed, children included; then whether obligations, stages and
proofs are the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLANS = ("mlp-handwritten", "llama3-405b-2l-tp8-fsdp64", "torchtitan-llama3-405b-8l-tp8-fsdp64")
COMMANDS = {"emit": ("orchestrator.cli", "emit_main"), "check": ("checker.cli", "main")}
_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import {} as main; main()"


@dataclass
class Side:
    """One revision's tree: least seconds of each command, and digests of what it emitted."""

    tree: Path
    seconds: dict[str, float] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def run(self, plan: Path, folder: Path) -> None:
        """Emit and check ``plan`` once, in fresh processes."""
        bundle = folder / "bundle"
        self._timed("emit", str(plan), "--out", str(bundle), "--quiet")
        self._timed("check", str(bundle))
        self.files = digests(bundle)

    def _timed(self, name: str, *options: str) -> None:
        words = [sys.executable, "-P", "-c", _CODE.format(*COMMANDS[name]), str(self.tree), *options]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{name} of {self.tree} ended with code {done.returncode}: {done.stderr[-500:]}")
        taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.seconds[name] = min(taken, self.seconds.get(name, taken))


def digests(bundle: Path) -> dict[str, str]:
    """SHA-256 of each file of a bundle that is part of the proof, in whatever version of bundles it lies."""
    data = bundle / "data" if (bundle / "data").is_dir() else bundle
    files = [data / "plan.json", data / "proof.json", *data.glob("obligations/*.smt2")]
    found = {f.relative_to(data): f.read_bytes() for f in files if f.is_file()}
    return {str(name): hashlib.sha256(content).hexdigest() for name, content in found.items()}


def row(name: str, old: Side, new: Side) -> str:
    """One line: seconds of both, their ratio, and how many files of the proof differ."""
    pairs = {word: (old.seconds[word], new.seconds[word]) for word in COMMANDS}
    costs = [f"{word} {a:.1f} -> {b:.1f} s ({b / a:.2f})" for word, (a, b) in pairs.items()]
    names = old.files.keys() | new.files.keys()
    differ = sorted(n for n in names if old.files.get(n) != new.files.get(n))
    some = f"{len(differ)} of {len(names)} files differ: {', '.join(differ[:3])}"
    return f"{name}: {', '.join(costs)}; {some if differ else 'the same bytes'}"


def compare(revision: str, plans: Sequence[str], times: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tv-compare-") as folder:
        tree = Path(folder, "old")
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, revision], cwd=ROOT, check=True)
        try:
            for name in plans:
                old, new = Side(tree), Side(ROOT)
                for number in range(times):
                    for side in (old, new):
                        with tempfile.TemporaryDirectory(prefix="tv-bundle-") as out:
                            side.run(tree / "examples" / f"{name}.json.gz", Path(out))
                    print(f"{name}: {number + 1} of {times}", file=sys.stderr)
                print(row(name, old, new), flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision")
    parser.add_argument("plans", nargs="*", metavar="PLAN", help="names in examples/, without .json.gz")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    compare(options.revision, options.plans or PLANS, options.times)


if __name__ == "__main__":
    main()
