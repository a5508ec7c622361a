"""Where a trace runs: the specification alone, a rank in a process group and an environment of its own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from .errors import DefinitionError
from .frames import is_installed, is_users, runs_in, user_frame
from .group import IN_A_JOB, process_group

#: The backend that the user's code sees; that of jobs on GPUs.
BACKEND = IN_A_JOB
#: PyTorch's collectives that have gradients.
_DIFFERENTIABLE = "torch.distributed.nn.functional"
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
    given = dict(os.environ) if launched else {}
    with (
        _environment({key: str(value) for key, value in of_rank.items()} | given),
        process_group(rank, size),
        _named_backend(),
    ):
        yield


@contextmanager
def while_loading() -> Iterator[None]:
    """The user's file is run once, for all ranks and the single device: it may not learn of a job."""
    problems: list[DefinitionError] = []
    original = os._Environ.__getitem__

    def read(variables: Any, key: Any) -> Any:
        if variables is os.environ and speaks_of_a_job(key) and _in_users_file():
            problems.append(
                DefinitionError(
                    f"the file reads {key} while it is loaded, once for the single device and all ranks",
                    frame=user_frame(),
                    instead="read it inside parallelize or parallel_step, or use the sizes of the mesh",
                )
            )
            raise problems[0]
        return original(variables, key)

    with alone(), patch.object(os._Environ, "__getitem__", read):
        yield
    if problems:  # the file may have caught the exception
        raise problems[0]


def _in_users_file() -> bool:
    """Does the user's own file ask, and no package that it imports?"""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(("<frozen", os.__file__)):
        frame = frame.f_back
    name = runs_in(frame)
    return is_users(name) and not is_installed(name)


@contextmanager
def _named_backend() -> Iterator[None]:
    """Who asks for the backend to choose what is computed is told :data:`BACKEND`: code of the user, and the
    gradients of PyTorch's collectives (a reduce-scatter with one backend, and not with others)."""
    original = dist.get_backend

    def get_backend(group: Any = None) -> str:
        asks = sys._getframe(1)
        computes = asks.f_globals.get("__name__") == _DIFFERENTIABLE
        return BACKEND if computes or is_users(runs_in(asks)) else original(group)

    with ExitStack() as patches:
        for module in [m for m in sys.modules.values() if vars(m).get("get_backend") is original]:
            patches.enter_context(patch.object(module, "get_backend", get_backend))
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
