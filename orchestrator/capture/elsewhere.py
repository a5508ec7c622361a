"""Ranks traced once more in processes of their own: what one process decides is no program.

Ranks are traced in forks of the process that loaded the user's file. In a job each rank loads it, and the
order of a set, a text's hash, and what is random without a seed are others in each. So the first rank is
traced in a process that loads the file itself. Where something was drawn without a seed, or a set was gone
through, further processes are asked: they draw anew, and go through sets in another order. These are forks of
one that has not loaded the file, so objects lie where they do in the first of them: another order is another
one for certain. Ranks that ask for their place on a host are traced on other hosts, too (:mod:`hosts`).
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from certificates.plan.plan import Mesh

from ..children import command
from .builder import Met
from .definition import Definition
from .entropy import begin_anew, draws_counted, standing
from .errors import CaptureError
from .fitting import Sample
from .hosts import depends, other_ways, spread
from .processes import quiet, seen
from .refusals import guarded, refused
from .same_traces import other_trace
from .set_orders import gone_through, shuffled, turned, watch_sets
from .userfile import load_definition

RANK = 0
#: Ranks that are traced in further processes, at most, and so many processes where numbers are drawn: one of
#: two choices all of them draw alike once in 256 times.
_RANKS, _DRAWS = 4, 7
_FORK = multiprocessing.get_context("fork")
#: What was drawn while a file was loaded, how often a set was gone through (by the user, by a
#: library), and how many ranks there are.
Loaded = tuple[str, tuple[int, int], int]
#: The first two of the trace of a rank, where it asked for its place on a host, and what it kept for others.
Asked = tuple[str, Sequence[int], Sequence[str], Sequence[Met]]
_NOTHING: Asked = "", (0, 0), (), ()


class Elsewhere:
    """Traces that run beside this process."""

    def __init__(self, child: subprocess.Popen[bytes], out: Path) -> None:
        self._child, self._out = child, out

    def differs(self, here: Mapping[int, Sample]) -> CaptureError | None:
        """What other processes do otherwise than the traces of ranks here, or that nothing is known of it."""
        asked = {rank: _asked(sample) for rank, sample in here.items()}
        _, said = self._child.communicate(json.dumps(asked).encode())
        if self._child.returncode:
            last = said.decode("utf-8", "replace").strip().splitlines()[-1:]
            return CaptureError(
                f"it cannot be traced in a process of its own: {last[0] if last else 'it says nothing'}"
            ).at_rank(RANK)
        found, there = pickle.loads(self._out.read_bytes())
        problems = (other_trace(here[rank], sample) for rank, sample in there.items() if rank in here)
        another: CaptureError | None = next((p for p in problems if p is not None), found)
        return another


@contextmanager
def elsewhere(file: Path, settings: Mapping[str, object]) -> Iterator[Elsewhere]:
    """Begin the traces; at the end they are ended, if nobody waited for them."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    with tempfile.TemporaryDirectory(prefix="tv-capture-") as folder:
        out = Path(folder) / "traces"
        words = command(__name__, "main", str(file), json.dumps(dict(settings)), str(out))
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": seed}, start_new_session=True,
        )  # fmt: skip
        try:
            yield Elsewhere(child, out)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # with all that it has forked
            child.wait()
            for end in (child.stdin, child.stderr):
                assert end is not None
                with suppress(BrokenPipeError):
                    end.close()


def main() -> None:
    """Trace the rank, be told what other ranks have decided by themselves, and write down what differs."""
    file, settings, out = sys.argv[1:]
    given = Path(file), json.loads(settings)
    try:
        with _Process(*given, 0) as first:
            traces = {RANK: first.trace(RANK)}
            asked: dict[int, Asked] = {int(r): tuple(s) for r, s in json.loads(sys.stdin.read()).items()}
            ranks = _doubtful(asked, traces[RANK], first.loaded)
            placed = {rank: asked[rank][2] for rank in _few([r for r in sorted(asked) if asked[r][2]])}
            further = [rank for rank in (*ranks, *placed) if rank not in traces]
            traces |= {rank: first.trace(rank, _kept(asked[rank])) for rank in further}
            problem = _elsewhere_placed(first, placed, traces)
        unseeded = any(s.drawn and s.drawn != asked.get(rank, _NOTHING)[0] for rank, s in traces.items())
        unseeded |= bool(first.loaded[0]) and traces[RANK].drawn != asked.get(RANK, _NOTHING)[0]
        count = (_DRAWS if unseeded else 1) if ranks else 0
        anew = (_otherwise(given, n, ranks, traces) for n in range(1, count + 1))
        problem = problem or next(filter(None, anew), None)
    except CaptureError as error:
        sys.exit(str(error).splitlines()[0])
    Path(out).write_bytes(pickle.dumps((problem, traces)))


def _asked(sample: Sample) -> Asked:
    return sample.drawn, sample.sets, sample.hosts, sorted(sample.needed)


def _kept(asked: Asked) -> frozenset[Met]:
    """Rendezvous that the rank was traced with because others need them; JSON has lists of them."""
    return frozenset((axes, number, result) for axes, number, result in asked[3])


def _doubtful(asked: Mapping[int, Asked], own: Sample, loaded: Loaded) -> Sequence[int]:
    """Ranks, a few, that may have decided something by themselves; ``own`` is the trace here of the first.

    Where generators stand as here a seed was given. What a library alone goes through, as FSDP does through
    modules, is its own where it is the user's nowhere: of ranks that have gone through as many, one is asked.
    """
    seeded = {"", own.drawn}
    everywhere = loaded[1][0] > 0 or (loaded[0] != "" and asked.get(RANK, _NOTHING)[0] not in seeded)
    users = {r for r, (drawn, sets, *_) in asked.items() if everywhere or sets[0] or drawn not in seeded}
    counts = {r: sets[1] for r, (_, sets, *_) in asked.items() if sets[1] or loaded[1][1]}
    firsts = {count: rank for rank, count in sorted(counts.items(), reverse=True)}
    return _few(sorted({*users, *firsts.values()}))


def _few(ranks: Sequence[int]) -> Sequence[int]:
    return ranks if len(ranks) <= _RANKS else [*ranks[:2], ranks[len(ranks) // 2], ranks[-1]]


def _elsewhere_placed(
    process: _Process, placed: Mapping[int, Sequence[str]], traces: Mapping[int, Sample]
) -> CaptureError | None:
    """What ranks that asked for their place on a host do otherwise where they have another one."""
    for rank, each in ((rank, each) for each in other_ways(process.loaded[2]) for rank in placed):
        try:
            problem = other_trace(traces[rank], process.trace(rank, traces[rank].needed, each))
        except CaptureError as error:
            problem = error.at_rank(rank)
        problem = None if problem is None else depends(problem, placed[rank])
        if problem is not None:
            return problem
    return None


def _otherwise(
    given: tuple[Path, Mapping[str, bool | int | float | str]],
    number: int,
    ranks: Sequence[int],
    traces: Mapping[int, Sample],
) -> CaptureError | None:
    """What one more process has otherwise than these traces."""
    with _Process(*given, number) as process:
        for rank in ranks:
            try:
                problem = other_trace(traces[rank], process.trace(rank, traces[rank].needed))
            except CaptureError as error:
                error.message = f"so it is in another process, and not in each: {error.message}"
                problem = error.at_rank(rank)
            if problem is not None:
                return problem
    return None


class _Process:
    """A fork of this process that loads the file, and a fork of that one for each trace."""

    def __init__(self, file: Path, settings: Mapping[str, bool | int | float | str], number: int) -> None:
        self._ours, theirs = _FORK.Pipe()
        self._child = _FORK.Process(target=_load, args=(file, settings, number, theirs))
        self._child.start()
        theirs.close()
        self._loaded: Loaded | None = None

    @property
    def loaded(self) -> Loaded:
        self._loaded = self._loaded or self._told()
        return self._loaded

    def trace(self, rank: int, needed: frozenset[Met] = frozenset(), each: int = 0) -> Sample:
        """With what others have ``needed``, and ``each`` ranks on a host, where that is not all of them."""
        assert self.loaded is not None
        self._ours.send((rank, needed, each))
        sample: Sample = self._told()
        return sample

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.join()
        self._ours.close()

    def _told(self) -> Any:
        try:
            said = self._ours.recv()
        except EOFError:
            raise CaptureError("the process ended") from None
        if isinstance(said, CaptureError):
            raise said
        return said


def _load(
    file: Path, settings: Mapping[str, bool | int | float | str], number: int, ends: Connection
) -> None:
    gc.disable()  # as where ranks are traced
    torch.set_num_threads(1)
    begin_anew()
    watch_sets({0: None, 1: turned}.get(number, shuffled(number)))
    try:
        with quiet(repeated=True), guarded(), draws_counted():
            definition = load_definition(file, settings)
    except CaptureError as error:
        ends.send(error)
        return
    ends.send((standing(), gone_through(), Mesh(definition.mesh).ranks))
    while True:
        try:
            asked = ends.recv()
        except EOFError:
            return
        ours, theirs = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_trace, args=(definition, *asked, random.getstate(), theirs))
        process.start()
        theirs.close()
        try:
            ends.send(ours.recv())
        except EOFError:
            ends.send(CaptureError(f"the process that traced it ended with exit code {process.exitcode}"))
        process.join()
        ours.close()


def _trace(
    definition: Definition,
    rank: int,
    needed: frozenset[Met],
    each: int,
    generator: tuple[Any, ...],
    ends: Connection,
) -> None:
    random.setstate(generator)
    if each:
        spread(each)
    try:
        with quiet(repeated=True), guarded():
            said: Sample | CaptureError = seen(definition, rank, needed=needed)
    except (Exception, SystemExit) as error:
        said = refused(error).at(definition.frame)
    ends.send(said)
