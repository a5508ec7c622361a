"""Native libraries are called only where they find room, and what they say of memory is a ``MemoryError``.

Without memory they do not raise: z3's Python module dereferences a null pointer where no context could be
made, and OpenBLAS, while numpy is imported, ends the process with exit code 1, which says *refuted*.
"""

from __future__ import annotations

import mmap
import os
import sys

#: MiB of address space of one solver call, and of numpy with one thread and for each further one.
SOLVER, NUMPY, THREAD = 64, 128, 48
#: Threads that OpenBLAS starts at most.
_THREADS = 64


def for_solver() -> None:
    """Raises :class:`MemoryError` where z3 or cvc5 could not even begin."""
    _reserve(SOLVER, "a solver")


def for_numpy() -> None:
    """Raises :class:`MemoryError` where numpy and its threads, if not there yet, would not find room."""
    if "numpy" not in sys.modules:
        _reserve(NUMPY + THREAD * (min(os.cpu_count() or 1, _THREADS) - 1), "numpy")


def is_memory(error: Exception) -> bool:
    """Whether a solver's exception, of whatever tree, says that memory ran out."""
    return isinstance(error, MemoryError) or any(
        w in str(error) for w in ("out of memory", "memout", "bad_alloc")
    )


def _reserve(mib: int, who: str) -> None:
    """Nothing is touched, so that nothing is used up."""
    try:
        mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError(f"{who} needs {mib} MiB") from error
