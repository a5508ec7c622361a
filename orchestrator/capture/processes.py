"""One process per traced rank: PyTorch remembers device meshes and groups of the first one in a process."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import random
import signal
from collections.abc import Collection, Container, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch
import torch._dynamo  # the first op that is traced asks for it: loaded here, not once in every child

from . import grafted, substituting
from .builder import Met
from .bytecode import read_ahead
from .checks import checked
from .definition import Definition
from .entropy import standing
from .errors import CaptureError, gathered
from .fitting import Sample, summarise
from .hosts import asked_at
from .refusals import guarded, refused
from .set_orders import gone_through, watch_sets
from .tracing import trace
from .warned import of_libraries, unshown


def trace_ranks(
    definition: Definition,
    ranks: Iterable[int | None],
    jobs: int,
    known: Container[str] = (),
    needed: Collection[Met] = (),
) -> Iterator[Sample]:
    """Trace ranks (``None``: the single device) in forked children, ``jobs`` at a time, in any order.

    A program whose skeleton is ``known`` when its trace begins stays in the child. After a failure no trace
    begins, those that run come to their end, and what they found is raised as one error. Rendezvous that
    other ranks have ``needed`` when a trace begins are kept.
    """
    found: list[CaptureError] = []
    for result in _results(definition, ranks, jobs, known, needed, found):
        if isinstance(result, CaptureError):
            found.append(result)
        else:
            yield result
    if found:
        raise gathered(found)


def survey(definition: Definition, ranks: Iterable[int | None], jobs: int) -> list[CaptureError]:
    """What stands against capturing each of ``ranks``; all of them are traced."""
    results = _results(definition, ranks, jobs, (), (), ())
    return [result for result in results if isinstance(result, CaptureError)]


def _results(
    definition: Definition,
    ranks: Iterable[int | None],
    jobs: int,
    known: Container[str],
    needed: Collection[Met],
    stop: Sized,
) -> Iterator[Sample | CaptureError]:
    """One result per rank; once ``stop`` has items, no further trace begins."""
    context = multiprocessing.get_context("fork")
    read_ahead()
    grafted.look_ahead()
    substituting.look_ahead()
    waiting = list(ranks)
    running: dict[Connection, tuple[ForkProcess, int | None]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                ours, theirs = context.Pipe(duplex=False)
                rank = waiting.pop(0)
                arguments = (definition, rank, known, frozenset(needed), random.getstate(), theirs)
                process = context.Process(target=_child, args=arguments, daemon=True)
                process.start()
                theirs.close()
                running[ours] = process, rank
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                process, rank = running[connection]
                try:
                    result: Sample | CaptureError = connection.recv()
                except EOFError:
                    process.join()
                    result = _died(process, rank)
                process.join()
                del running[connection]
                connection.close()
                yield result
                if stop:
                    waiting.clear()
    finally:
        for process, _rank in running.values():
            process.terminate()
            process.join()


def _died(process: ForkProcess, rank: int | None) -> CaptureError:
    code = process.exitcode or 0
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    hint = "; perhaps memory ran out: try --jobs 1" if code == -signal.SIGKILL else ""
    return _of_rank(CaptureError(f"the process that traced it ended {how}{hint}"), rank)


def _of_rank(error: CaptureError, rank: int | None) -> CaptureError:
    return error.at_single() if rank is None else error.at_rank(rank)


def _child(
    definition: Definition,
    rank: int | None,
    known: Container[str],
    needed: frozenset[Met],
    generator: tuple[Any, ...],
    connection: Connection,
) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the parent ends its children, in silence
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()  # a trace keeps all that it makes; collections only walk through it
    torch.set_num_threads(1)
    try:
        with quiet(repeated=rank not in (None, 0)), guarded():
            random.setstate(generator)  # Python gives each fork another seed, and a job has no forks
            watch_sets()
            result: Sample | CaptureError = seen(definition, rank, known, needed)
    except (Exception, SystemExit) as error:
        result = _of_rank(refused(error).at(definition.frame), rank)
    connection.send(result)
    connection.close()


def seen(
    definition: Definition,
    rank: int | None,
    known: Container[str] = (),
    needed: frozenset[Met] = frozenset(),
) -> Sample:
    """A trace, and what in it another process may have decided otherwise."""
    traced = summarise(trace(checked(definition), rank, needed), known)
    declared, drawn, sets = definition.declared(), standing(), gone_through()
    return replace(traced, drawn=drawn, sets=sets, hosts=asked_at(), declared=declared, needed=needed)


@contextmanager
def quiet(repeated: bool = False) -> Iterator[None]:
    """PyTorch's words on deprecations, fake tensors and wrong shapes are no news: the errors say it better.

    Where the trace is ``repeated``, other processes have passed on the other warnings.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    with unshown(lambda message: repeated or of_libraries(message)):
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            logger.setLevel(level)
