"""Finished files are confirmed by z3 and by cvc5 in child processes, several at a time.

A solver that crashes takes only its child with it; what is not a clean ``unsat`` stays what it was. Solvers
have limits in steps. One that hangs all the same ends the run: no bundle says what a clock decided.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from ..children import command
from ..errors import NoAnswer
from ..room import is_memory
from .journal import Journal, key

#: Wall-clock limit per file, which ends the run; the solvers' own step limits strike long before it.
SECONDS = 600
#: What a child says that ran out of memory: it is no answer to the file, so it ends the run.
NO_MEMORY = "out of memory"
#: What a solver may say; only this is worth remembering.
_CLEAN = {"unsat", "sat", "unknown"}


@dataclass(frozen=True)
class Answers:
    """What both solvers said of one file."""

    z3: str
    cvc5: str

    @property
    def unsat(self) -> bool:
        return self.z3 == self.cvc5 == "unsat"

    def __str__(self) -> str:
        return f"z3 says {self.z3}, cvc5 says {self.cvc5}"


def confirm(
    texts: Sequence[str],
    journal: Journal,
    versions: str,
    jobs: int,
    step: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Answers]:
    """Answers to all texts, in order. Journal keys hold the whole text and the solvers' versions.

    Raises :class:`NoAnswer` where a solver has none in :data:`SECONDS`, :class:`MemoryError` where it had no
    memory.
    """
    names = [key("confirm", versions, text) for text in texts]
    found = {i: answers for i, name in enumerate(names) if (answers := _read(journal.get(name)))}
    open_ = [i for i in range(len(texts)) if i not in found]
    pool, threads = _Pool(), ThreadPoolExecutor(jobs)
    try:
        tasks = {threads.submit(pool.ask, texts[i]): i for i in open_}
        for done, task in enumerate(as_completed(tasks), 1):
            i = tasks[task]
            answers = found[i] = task.result()
            if NO_MEMORY in (answers.z3, answers.cvc5):
                raise MemoryError
            if {answers.z3, answers.cvc5} <= _CLEAN:
                journal.put(names[i], [answers.z3, answers.cvc5])
            step(len(texts) - len(open_) + done, len(texts))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        pool.close()
    return [found[i] for i in range(len(texts))]


def _read(entry: object) -> Answers | None:
    match entry:
        case [str(z3), str(cvc5)]:
            return Answers(z3, cvc5)
        case _:
            return None


class _Pool:
    """One child per thread, started when the thread needs it."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._all: list[subprocess.Popen[str]] = []

    def ask(self, text: str) -> Answers:
        child = getattr(self._local, "child", None)
        if child is None:
            child = self._local.child = subprocess.Popen(
                command("orchestrator.solving.confirming", "serve"),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                start_new_session=True,  # Ctrl-C is no answer: this process ends its children itself
            )  # fmt: skip
            self._all.append(child)
        answer = _exchange(child, json.dumps(text))
        if isinstance(answer, Answers):
            return answer
        child.kill()
        self._local.child = None
        return Answers(answer, answer)

    def close(self) -> None:
        for child in self._all:
            child.kill()
            child.communicate()


def _exchange(child: subprocess.Popen[str], line: str) -> Answers | str:
    """The child's answer, or what went wrong."""
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(line + "\n")
        child.stdin.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(child.stdout, selectors.EVENT_READ)
            if not ready.select(SECONDS):
                raise NoAnswer(f"z3 or cvc5 has no answer to a file within {SECONDS} seconds")
        return _read(json.loads(child.stdout.readline())) or "crash"
    except (OSError, ValueError):
        return "crash"


def serve() -> None:
    """The child: a JSON text per line in, a JSON pair of answers per line out."""
    from .cores import confirm_cvc5, confirm_z3

    for line in sys.stdin:
        text = json.loads(line)
        print(json.dumps([_guarded(confirm_z3, text), _guarded(confirm_cvc5, text)]), flush=True)


def _guarded(solve: Callable[[str], str], text: str) -> str:
    try:
        return solve(text)
    except Exception as error:  # solvers raise several trees of exceptions; each is no confirmation
        if is_memory(error):
            return NO_MEMORY
        return "error: " + " ".join(str(error).split())[:200]
