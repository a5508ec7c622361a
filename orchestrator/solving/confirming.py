"""Finished files are confirmed by z3 and by cvc5 in child processes, several at a time.

Of files that may be wanted they are asked ahead, beside the search for a proof. A solver that crashes takes
only its child with it; what is not a clean ``unsat`` stays what it was. Solvers have limits in steps. One
that hangs all the same ends the run: no bundle says what a clock decided.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from types import TracebackType

from smtlib_emit.sexp import without_comments

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


class Confirming:
    """Answers to files. ``ahead`` asks what the ``jobs`` leave room for; ``answers`` asks for all the rest.

    Comments are no part of what is asked. Journal keys hold the whole text without them, and the solvers'
    versions.
    """

    def __init__(self, journal: Journal, versions: str, jobs: int) -> None:
        self._journal, self._versions, self._beside = journal, versions, jobs - 1
        self._pool = _Pool()
        self._threads, self._aside = ThreadPoolExecutor(jobs), ThreadPoolExecutor(max(1, self._beside))
        self._asked: dict[str, Future[Answers]] = {}

    def __enter__(self) -> Confirming:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for threads in (self._threads, self._aside):
            threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()

    def ahead(self, text: str) -> None:
        """Ask of a file that may be wanted; what comes of it is heard by those who want the answer."""
        if not self._beside:
            return
        text = without_comments(text)
        name = key("confirm", self._versions, text)
        if name not in self._asked and _read(self._journal.get(name)) is None:
            self._asked[name] = self._aside.submit(self._pool.ask, text)

    def answers(
        self, texts: Sequence[str], step: Callable[[int, int], None] = lambda _done, _total: None
    ) -> list[Answers]:
        """Answers to all texts, in order.

        Raises :class:`NoAnswer` where a solver has none in :data:`SECONDS`, :class:`MemoryError` where it had
        no memory.
        """
        asked = [without_comments(text) for text in texts]
        names = [key("confirm", self._versions, text) for text in asked]
        found = {name: answers for name in names if (answers := _read(self._journal.get(name)))}
        tasks = {
            self._task(name, text): name
            for name, text in dict(zip(names, asked, strict=True)).items()
            if name not in found
        }
        for unwanted in self._asked.values():
            unwanted.cancel()
        for task in as_completed(tasks):
            name, answers = tasks[task], task.result()
            found[name] = answers
            if NO_MEMORY in (answers.z3, answers.cvc5):
                raise MemoryError
            if {answers.z3, answers.cvc5} <= _CLEAN:
                self._journal.put(name, [answers.z3, answers.cvc5])
            step(len(found), len(set(names)))
        return [found[name] for name in names]

    def _task(self, name: str, text: str) -> Future[Answers]:
        """What was asked ahead, if it is under way: else it is asked with all the others."""
        begun = self._asked.pop(name, None)
        return self._threads.submit(self._pool.ask, text) if begun is None or begun.cancel() else begun


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
        self._open, self._lock = True, threading.Lock()

    def ask(self, text: str) -> Answers:
        child = getattr(self._local, "child", None)
        if child is None:
            with self._lock:
                if not self._open:
                    return Answers("crash", "crash")
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
        """End all children; no thread begins another."""
        with self._lock:
            self._open = False
        for child in self._all:
            child.kill()
            child.wait()


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
