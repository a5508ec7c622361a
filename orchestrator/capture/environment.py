"""Where a trace runs: the specification alone, a rank in a process group and an environment of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .group import process_group

#: What launchers tell a process about its place in the job: torchrun, Slurm, MPI.
_OF_A_JOB = re.compile(
    r"(LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
    r"|SLURM_(PROCID|LOCALID|NODEID|NTASKS.*|NPROCS|NNODES|STEP_.*)|OMPI_COMM_WORLD_.*|(PMI|PMIX)_(RANK|SIZE)"
)


@contextmanager
def alone() -> Iterator[None]:
    """The environment of a single device: nothing in it speaks of a job."""
    with _environment({}):
        yield


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """The environment and the default process group of one rank, all ranks on one host.

    In a process that a launcher started as this very rank, the launcher's environment stays.
    """
    of_rank = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
    }
    launched = os.environ.get("RANK") == str(rank) and os.environ.get("WORLD_SIZE") == str(size)
    given = {key: os.environ[key] for key in os.environ if launched and _OF_A_JOB.fullmatch(key)}
    with _environment({key: str(value) for key, value in of_rank.items()} | given), process_group(rank, size):
        yield


def speaks_of_a_job(variable: str) -> bool:
    """Is this a variable by which a process learns its rank or the size of its job?"""
    return _OF_A_JOB.fullmatch(variable) is not None


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """No variables of a job but these; restored afterwards."""
    saved = {key: os.environ.pop(key) for key in list(os.environ) if speaks_of_a_job(key)}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key in [key for key in os.environ if speaks_of_a_job(key)]:
            del os.environ[key]
        os.environ.update(saved)
