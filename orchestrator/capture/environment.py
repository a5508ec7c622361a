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

from .errors import DefinitionError, GroupError
from .frames import is_own, is_users, runs_in, user_frame
from .group import IN_A_JOB, process_group
from .hosts import reads_noted, variables
from .substituting import replaced

#: The backend that the user's code sees; that of jobs on GPUs.
BACKEND = IN_A_JOB
#: PyTorch's collectives that have gradients.
_DIFFERENTIABLE = "torch.distributed.nn.functional"
#: What launchers tell a process about its place in the job: torchrun, Slurm, MPI.
_OF_A_JOB = re.compile(
    r"(LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
    r"|TORCH_NCCL_ASYNC_ERROR_HANDLING"
    r"|SLURM_(PROCID|LOCALID|NODEID|NTASKS.*|NPROCS|NNODES|STEP_.*)|OMPI_COMM_WORLD_.*|(PMI|PMIX)_(RANK|SIZE)"
)
#: What hands a question on: Python's own code, and the functions of ``torch.distributed``.
_PASS_ON = ("<frozen", os.__file__, dist.distributed_c10d.__file__, dist.c10d_logger.__file__)
#: PyTorch's property of the default process group, which ``is_initialized`` and all others read.
_WORLD: Any = vars(type(dist.group))["WORLD"]
_INSIDE = "read it inside parallelize or parallel_step, or use the sizes of the mesh"
_BY_NAME = (
    "os.environ.get(NAME) for each variable that is needed, or the copy inside parallelize or parallel_step"
)


@contextmanager
def alone() -> Iterator[None]:
    """The environment of a single device: nothing in it speaks of a job."""
    with _environment({}):
        yield


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """The environment and the default process group of one rank, all ranks on one host, unless :mod:`hosts`
    has spread them.

    In a process that a launcher started as this very rank, the launcher's environment stays.
    """
    launched = os.environ.get("RANK") == str(rank) and os.environ.get("WORLD_SIZE") == str(size)
    given = dict(os.environ) if launched else {}
    with (
        _environment(of_rank(rank, size) | given),
        process_group(rank, size),
        _named_backend(),
        reads_noted(),
    ):
        yield


def of_rank(rank: int, size: int) -> dict[str, str]:
    """All the variables that ``torchrun`` sets for a rank: whether there is one is a question, too."""
    ranks = dict.fromkeys(("RANK", "ROLE_RANK"), rank)
    sizes = dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), size)
    others = {
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_USE_AGENT_STORE": False,
        "TORCHELASTIC_ERROR_FILE": os.devnull,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
    }
    return {key: str(value) for key, value in (ranks | sizes | variables(rank, size) | others).items()}


@contextmanager
def while_loading() -> Iterator[None]:
    """The user's file is run once, for all ranks and the single device: it may not learn of a job.

    Nor may it look through all variables, or ask for a process group: launchers make one before they import.
    """
    problems: list[DefinitionError] = []

    def refuse(asks: str, instead: str = _INSIDE) -> None:
        once = "while it is loaded, once for the single device and all ranks"
        problems.append(DefinitionError(f"the file {asks} {once}", frame=user_frame(), instead=instead))
        raise problems[0]

    def by_key(original: Any) -> Any:
        def read(variables: Any, key: Any) -> Any:
            name = os.fsdecode(key) if isinstance(key, str | bytes) else ""
            if _is_environment(variables) and speaks_of_a_job(name) and _in_users_file():
                refuse(f"reads {name}")
            return original(variables, key)

        return read

    def all_of_them(original: Any) -> Any:
        def read(variables: Any) -> Any:
            if _is_environment(variables) and _in_users_file():
                refuse("reads all variables of the environment", _BY_NAME)
            return original(variables)

        return read

    def world(kind: Any) -> Any:
        if _in_users_file():
            refuse("asks for the process group")
        return _WORLD.__get__(kind)

    with ExitStack() as patches:
        patches.enter_context(alone())
        for name in ("__getitem__", "__delitem__"):
            patches.enter_context(replaced(os._Environ, name, by_key))
        for name in ("__iter__", "__len__", "__repr__"):
            patches.enter_context(replaced(os._Environ, name, all_of_them))
        patches.enter_context(patch.object(type(dist.group), "WORLD", property(world, _WORLD.__set__)))
        yield
    if problems:  # the file may have caught the exception
        raise problems[0]


def _is_environment(variables: object) -> bool:
    return variables is os.environ or variables is getattr(os, "environb", None)


def _in_users_file() -> bool:
    """Does the user's own file ask, and no package that it imports? PyTorch's questions may be the file's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASS_ON):
        frame = frame.f_back
    return is_own(runs_in(frame))


@contextmanager
def _named_backend() -> Iterator[None]:
    """Who asks for the backend to choose what is computed is told that of a job: code of the user, and the
    gradients of PyTorch's collectives (a reduce-scatter with one backend, and not with others)."""
    original, configured = dist.get_backend, dist.get_backend_config

    def get_backend(group: Any = None) -> str:
        asks = sys._getframe(1)
        computes = asks.f_globals.get("__name__") == _DIFFERENTIABLE
        if not (computes or is_users(runs_in(asks))):
            found: str = original(group)
            return found
        if group is not None:
            original(group)  # of a group that this rank is no member of, there is no answer
        return str(getattr(group, "_backend", BACKEND))

    def get_backend_config(group: Any = None) -> str:
        if is_users(runs_in(sys._getframe(1))):
            raise GroupError(
                "get_backend_config asks which backends a job has beside one another, which no trace knows",
                frame=user_frame(),
                instead="dist.get_backend(), which answers nccl",
            )
        return str(configured(group))

    stand = {"get_backend": (original, get_backend), "get_backend_config": (configured, get_backend_config)}
    with ExitStack() as patches:
        for name, (function, told) in stand.items():
            for module in [m for m in sys.modules.values() if vars(m).get(name) is function]:
                patches.enter_context(patch.object(module, name, told))
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
