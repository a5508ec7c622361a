"""Replays obligation files on solvers, as child processes under deterministic limits.

The solvers see the texts that the kernel generated, not the bundle's files. Whatever is not a clean `unsat`
(a crash, a hang, a strange answer) is kept as it is and never becomes success.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import NamedTuple

from .errors import Malformed, need

SECONDS = 120
"""Wall-clock limit per file; the deterministic limits below strike long before it."""
LATE = "no answer in time"
Answers = dict[str, str]
Tick = Callable[[], None]
Solver = Callable[[list[str], Tick], list[str]]

_LOOP = """
import json, sys
bytes(16 << 20)  # once freed, the C library keeps this much, or each fresh context asks the system again
for line in sys.stdin:
    try:
        answer = solve(json.loads(line))
    except Exception as error:
        answer = "error: " + str(error)
    print("answer " + " ".join(answer.split())[:200], flush=True)
"""
RUNNERS = {
    "z3": """
import z3
def solve(text):
    context = z3.Context()
    return z3.Z3_eval_smtlib2_string(context.ref(), "(set-option :rlimit 200000000)\\n" + text)
"""
    + _LOOP,
    "cvc5": """
import cvc5
def solve(text):
    solver = cvc5.Solver()
    solver.setOption("parsing-mode", "strict")
    solver.setOption("rlimit-per", "20000000")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "obligation")
    names, out = parser.getSymbolManager(), []
    while not (command := parser.nextCommand()).isNull():
        out.append(str(command.invoke(solver, names)))
    return "".join(out)
"""
    + _LOOP,
}
"""One child answers many texts, each with a fresh context: JSON on standard input, a line for each."""


def solvers(commands: Sequence[str]) -> dict[str, Solver]:
    """The solvers that can run here: z3 and cvc5 (package or program), and the caller's commands."""
    found: dict[str, Solver] = {}
    for name, script in RUNNERS.items():
        if find_spec(name) is not None:
            found[name] = partial(_batch, [sys.executable, "-I", "-c", script])
        elif shutil.which(name):
            found[name] = partial(_singly, f"{name} {{file}}")
    for command in commands:
        name = Path((shlex.split(command) or ["?"])[0]).name
        found[name if name not in found else command] = partial(_singly, command)
    return found


_CHILDREN: set[subprocess.Popen[str]] = set()
_OVER = Event()


@contextmanager
def started(words: list[str], stdin: int) -> Iterator[subprocess.Popen[str]]:
    """A child process out of reach of Ctrl-C, which is no solver's answer: `stop` ends it."""
    with subprocess.Popen(
        words,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        _CHILDREN.add(child)
        try:
            if _OVER.is_set():
                end(child)
            yield child
        finally:
            _CHILDREN.discard(child)


def end(child: subprocess.Popen[str]) -> None:
    """A child and what it has started."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def stop() -> None:
    """End all children; none that begins later goes on."""
    _OVER.set()
    for child in list(_CHILDREN):
        end(child)


def _singly(command: str, texts: list[str], tick: Tick = lambda: None) -> list[str]:
    """A solver that is started once per file, in a private folder."""
    answers = []
    with tempfile.TemporaryDirectory(prefix="tv-check-") as folder:
        path = Path(folder, "obligation.smt2")
        words = [w.replace("{file}", str(path)) for w in shlex.split(command)]
        for text in texts if not _OVER.is_set() else ():
            path.write_text(text, encoding="ascii")
            try:
                with started(words, subprocess.DEVNULL) as child:
                    try:
                        said = str(child.communicate(timeout=SECONDS)[0])
                    except subprocess.TimeoutExpired:
                        end(child)
                        said = LATE
                out = " ".join(said.split())[:200]
                answers.append(
                    f"exit code {child.returncode}" if child.returncode and out == "unsat" else out
                )
            except OSError as error:
                answers.append(f"cannot start: {error.strerror}")
            tick()
    return answers


def _batch(words: list[str], texts: list[str], tick: Tick = lambda: None) -> list[str]:
    """One child for many texts; after a crash or a hang a new one goes on with the next."""
    answers: list[str] = []
    while len(answers) < len(texts) and not _OVER.is_set():
        with (
            started(words, subprocess.PIPE) as child,
            selectors.DefaultSelector() as ready,
        ):
            if child.stdin is None or child.stdout is None:
                raise OSError("no pipes")
            ready.register(child.stdout, selectors.EVENT_READ)
            for text in texts[len(answers) :]:
                line, until = "", time.monotonic() + SECONDS
                try:
                    child.stdin.write(f"{json.dumps(text)}\n")
                    child.stdin.flush()
                    in_time = bool(ready.select(until - time.monotonic()))
                    line = child.stdout.readline() if in_time else f"answer {LATE}\n"
                except OSError:
                    in_time = False
                    with suppress(OSError):  # what was not taken would be written once more
                        child.stdin.close()
                clean = line.startswith("answer ") and line.endswith("\n")
                answers.append(line[7:-1] if clean else "crash")
                tick()
                if not clean or not in_time:
                    child.kill()
                    break
    return answers


def replay(
    files: Mapping[str, bytes], chosen: Mapping[str, Solver], jobs: int, tick: Tick = lambda: None
) -> dict[str, Answers]:
    """Every solver's answer to every file; `tick` is called at each."""
    _OVER.clear()
    answers: dict[str, Answers] = {solver: {} for solver in chosen}
    with ThreadPoolExecutor(jobs) as pool:
        parts = [part for i in range(jobs) if (part := list(files)[i::jobs])]
        tasks = [
            (solver, part, pool.submit(run, [files[n].decode("ascii") for n in part], tick))
            for solver, run in chosen.items()
            for part in parts
        ]
        try:
            for solver, part, task in tasks:
                answers[solver].update(zip(part, task.result(), strict=True))
        except BaseException:
            stop()
            raise
    return answers


# Answers that were given elsewhere --------------------------------------------------------------------------


class Offline(NamedTuple):
    """What a file of answers says: of which solver and of which obligations (their digest) it is, as it says
    itself; all empty in a file that is only lines."""

    solver: str
    version: str
    obligations: str
    answers: Answers


HEAD = re.compile(r"# (solver|version|obligations) ([ -~]{1,200})")


def read_answers(text: str, what: str) -> Offline:
    """Lines `NNNN answer` after lines about them, as the bundle's run.sh writes them."""
    answers: Answers = {}
    head: dict[str, str] = {}
    for line in text.splitlines():
        told = HEAD.fullmatch(line.strip())
        found = re.fullmatch(r"([0-9]{4,7})\s+([a-z]+)", line.strip())
        if told:
            need(head.setdefault(told[1], told[2]) == told[2], f"{what}: says twice which {told[1]}")
        elif found:
            need(found[1] not in answers, f"{what}: a second answer for {found[1]}")
            answers[found[1]] = found[2]
        elif line.strip() != "# trainverify answers 1":
            raise Malformed(f"{what}: {line[:60]!r} is no line of the form 'NNNN answer'")
    need(len(head) in (0, 3), f"{what}: says not all of solver, version and obligations")
    return Offline(head.get("solver", ""), head.get("version", ""), head.get("obligations", ""), answers)


def obligations_digest(files: Mapping[str, bytes]) -> str:
    """What files of answers name: SHA-256 of the lines about obligations in the bag's manifest, made from the
    texts that the kernel generated."""
    lines = [f"{sha256(files[n]).hexdigest()}  data/obligations/{n}.smt2\n" for n in sorted(files)]
    return sha256("".join(lines).encode()).hexdigest()


def independent(name: str) -> str:
    """The solver behind the name of a command: another version or path of one solver is no other solver."""
    found = re.match(r"[a-z]+[0-9]*", Path((name.split() or [name])[0]).name.lower())
    return found[0] if found else name


def joined(sources: Iterable[tuple[str, Answers]]) -> dict[str, Answers]:
    """A solver's answers from all that tell of it; where they differ, both stand, and that is no `unsat`."""
    out: dict[str, Answers] = {}
    for solver, answers in sources:
        mine = out.setdefault(solver, {})
        for file, answer in answers.items():
            said = mine.setdefault(file, answer)
            mine[file] = said if said == answer else f"{said} and {answer}"
    return out
