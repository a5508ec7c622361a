"""What a library needs is asked for before it is called."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import z3

from orchestrator import room

#: A library that would be called with 32 MiB left.
_CALL = """
import resource
from orchestrator import room
resource.setrlimit(resource.RLIMIT_AS, ({kib} * 1024 + (32 << 20), resource.RLIM_INFINITY))
room.{name}()
"""


@pytest.mark.parametrize(("name", "who"), [("for_solver", "a solver"), ("for_numpy", "numpy")])
def test_a_library_without_room_is_not_called(name: str, who: str) -> None:
    used = "int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() // 1024"
    code = _CALL.format(name=name, kib=f"({used})")
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 1 and f"MemoryError: {who} needs " in child.stderr


def test_what_was_asked_for_is_given_back() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        room.for_solver()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_more_threads_need_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    monkeypatch.setattr(room, "_reserve", lambda mib, _who: asked.append(mib))
    for processors in (None, 1, 2, 64, 500):
        monkeypatch.setattr("os.cpu_count", lambda n=processors: n)
        room.for_numpy()
    assert asked == [128, 128, 176, 3152, 3152]


def test_numpy_that_is_there_needs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", sys)
    monkeypatch.setattr(room, "_reserve", lambda mib, _who: pytest.fail(f"{mib} MiB were asked for"))
    room.for_numpy()


def test_what_solvers_say_of_memory_is_known() -> None:
    """z3 says it in an exception of its own, cvc5 in a RuntimeError."""
    assert all(
        map(room.is_memory, [MemoryError(), z3.Z3Exception("out of memory"), RuntimeError("std::bad_alloc")])
    )
    assert not room.is_memory(z3.Z3Exception("unknown sort"))
