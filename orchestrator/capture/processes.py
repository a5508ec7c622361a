"""One process per traced rank: a fake process group cannot be made twice in one process."""

from __future__ import annotations

import gc
import multiprocessing
import traceback
import warnings
from collections.abc import Container, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch
import torch._dynamo  # the first op that is traced asks for it: loaded here, not once in every child

from .definition import Definition
from .errors import CaptureError
from .fitting import Sample, summarise
from .tracing import trace


def trace_ranks(
    definition: Definition, ranks: Iterable[int | None], jobs: int, known: Container[str] = ()
) -> Iterator[Sample]:
    """Trace ranks (``None``: the single device) in forked children, ``jobs`` at a time, in any order.

    A program whose skeleton is ``known`` when its trace begins stays in the child.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(ranks)
    running: dict[Connection, ForkProcess] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_child, args=(definition, waiting.pop(0), known, theirs), daemon=True
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


def _child(definition: Definition, rank: int | None, known: Container[str], connection: Connection) -> None:
    gc.disable()  # a trace keeps all that it makes; collections only walk through it
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # deprecations are not what a capture is run for
    try:
        result: Sample | CaptureError = summarise(trace(definition, rank), known)
    except CaptureError as error:
        result = error
    except Exception:
        result = CaptureError(f"the step failed:\n{traceback.format_exc()}", rank=rank)
    connection.send(result)
    connection.close()
