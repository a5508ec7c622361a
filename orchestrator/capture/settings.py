"""What a process keeps for itself, where a step may count: settings of Python, PyTorch and the system.

`torch.set_num_threads(torch.get_num_threads() + 1)` is a counter that lies in no object of the user's. Such
settings are read like numbers, before and after a step. What reading would change (a umask), and what
changes by itself (how many objects and threads there are), is not among them.
"""

from __future__ import annotations

import decimal
import gc
import locale
import os
import resource
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch._tensor_str import PRINT_OPTS

_LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_")))


def _of(module: Any, name: str) -> object:
    """What a function of this name says now, which may stand for Python's own."""
    return getattr(module, name)()


#: What is told to the user, and how it is read.
SETTINGS: Mapping[str, Callable[[], object]] = {
    "the context of decimal numbers": lambda: repr((decimal.getcontext(), decimal.DefaultContext)),
    "Python's limit of recursion": sys.getrecursionlimit,
    "Python's switch interval": sys.getswitchinterval,
    "the thresholds of the garbage collector": gc.get_threshold,
    "whether the garbage collector is on": lambda: _of(gc, "isenabled"),
    "the number of filters of warnings": lambda: len(warnings.filters),
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "the handlers of signals": lambda: hash(tuple(id(signal.getsignal(n)) for n in signal.valid_signals())),
    "the limits of the process": lambda: [resource.getrlimit(getattr(resource, name)) for name in _LIMITS],
    "the priority of the process": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "the working directory": os.getcwd,
    "the timeout of sockets": socket.getdefaulttimeout,
    "how NumPy takes errors": lambda: repr(np.geterr()),
    "PyTorch's number of threads": lambda: [torch.get_num_threads(), torch.get_num_interop_threads()],
    "how PyTorch prints": lambda: repr(PRINT_OPTS),
    "PyTorch's default type": lambda: repr(torch.get_default_dtype()),
    "the settings of PyTorch's kernels": lambda: [
        torch.backends.cudnn.benchmark_limit,
        torch.backends.cudnn.benchmark,
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    ],
}
