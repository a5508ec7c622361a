"""Real processes that run the ranks of a definition over gloo, and one that runs its single device.

They stay alive and are told what to do by messages, so that many definitions can be run without starting a
process or a process group for each. Rank ``None`` is the single device; it has no process group.
"""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .definition import Definition
from .errors import RunError
from .realstep import RealStep, enter_job, premultiplied
from .refusals import refused
from .warned import unshown

_TIMEOUT = timedelta(minutes=10)


class Workers:
    """A context manager that owns one process per rank and one for the single device.

    ``load`` makes the definition inside a process from what :meth:`open` is given; the processes are forked.
    """

    def __init__(self, ranks: int, load: Callable[[Any], Definition]) -> None:
        self.ranks, self._load = ranks, load
        self._folder = tempfile.TemporaryDirectory()
        self._links: dict[int | None, Connection] = {}
        self._processes: list[multiprocessing.process.BaseProcess] = []

    def __enter__(self) -> Workers:
        context = multiprocessing.get_context("fork")
        for rank in (None, *range(self.ranks)):
            ours, theirs = context.Pipe()
            store = str(Path(self._folder.name) / "store")
            process = context.Process(
                target=_serve, args=(rank, self.ranks, store, self._load, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._links[rank] = ours
            self._processes.append(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._folder.cleanup()

    def open(self, what: object, wide: bool, seed: int) -> None:
        """Make the definition's model everywhere; ``wide`` computes in float64."""
        self._ask({r: ("open", what, wide, seed) for r in self._links})

    def ask(self, method: str, given: Mapping[int | None, Mapping[str, Any]]) -> dict[int | None, Any]:
        """Call a method of :class:`RealStep` on some ranks at once, each with its inputs."""
        return self._ask({rank: (method, inputs) for rank, inputs in given.items()})

    def _ask(self, messages: Mapping[int | None, Sequence[object]]) -> dict[int | None, Any]:
        for rank, message in messages.items():
            self._links[rank].send(message)
        names = {self._links[rank]: rank for rank in messages}
        answers: dict[int | None, Any] = {}
        while len(answers) < len(messages):
            for link in wait([c for c, r in names.items() if r not in answers]):
                assert isinstance(link, Connection)
                rank = names[link]
                try:
                    failed, answers[rank] = link.recv()
                except EOFError:
                    raise RunError("the process of a real run died", rank=rank) from None
                if failed:
                    where = "single device" if rank is None else "rank"
                    error = answers[rank]
                    raise RunError(
                        f"the real step of the {where} failed: {error.message}",
                        rank=rank,
                        frame=error.frame,
                        instead=error.instead,
                    )
        return answers


def _serve(
    rank: int | None, ranks: int, store: str, load: Callable[[Any], Definition], link: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes, in silence
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    enter_job(rank, ranks)
    with unshown(lambda _: True), premultiplied() if rank is not None else nullcontext():
        if rank is not None:
            dist.init_process_group(
                "gloo", rank=rank, world_size=ranks, store=dist.FileStore(store, ranks), timeout=_TIMEOUT
            )
        meshes: dict[object, DeviceMesh] = {}
        step: RealStep | None = None
        while True:
            try:
                method, *given = link.recv()
            except EOFError:
                return
            try:
                if method == "open":
                    definition = load(given[0])
                    mesh = None if rank is None else _mesh(definition, meshes)
                    step, answer = RealStep(definition, mesh, given[1], given[2]), None
                else:
                    answer = getattr(step, method)(*given)
                link.send((False, answer))
            except Exception as error:
                link.send((True, refused(error)))


def _mesh(definition: Definition, known: dict[object, DeviceMesh]) -> DeviceMesh:
    """One device mesh per shape: its process groups last as long as the process."""
    axes = tuple(definition.mesh.items())
    if axes not in known:
        known[axes] = dist.init_device_mesh(
            "cpu", tuple(n for _, n in axes), mesh_dim_names=tuple(a for a, _ in axes)
        )
    return known[axes]
