"""One process per traced rank: a fake process group cannot be made twice in one process."""

from __future__ import annotations

import multiprocessing
import traceback
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch

from .definition import Definition
from .errors import CaptureError
from .tracing import RankTrace, trace


def trace_ranks(definition: Definition, ranks: Iterable[int | None], jobs: int) -> Iterator[RankTrace]:
    """Trace ranks (``None``: the single device) in forked children, ``jobs`` at a time, in any order."""
    context = multiprocessing.get_context("fork")
    waiting = list(ranks)
    running: dict[Connection, ForkProcess] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_child, args=(definition, waiting.pop(0), theirs), daemon=True
                )
                process.start()
                theirs.close()
                running[ours] = process
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                process = running[connection]
                try:
                    result = connection.recv()
                except EOFError:
                    raise CaptureError("the process that traced a rank died") from None
                process.join()
                del running[connection]
                connection.close()
                if isinstance(result, CaptureError):
                    raise result
                yield result
    finally:
        for process in running.values():
            process.terminate()
            process.join()


def _child(definition: Definition, rank: int | None, connection: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # deprecations are not what a capture is run for
    try:
        result: RankTrace | CaptureError = trace(definition, rank)
    except CaptureError as error:
        result = error
    except Exception:
        result = CaptureError(f"the step failed:\n{traceback.format_exc()}", rank=rank)
    connection.send(result)
    connection.close()
