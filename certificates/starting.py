"""How commands start: what they are made of may not load, and Python's own exit code 1 says *refuted*."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

CANNOT_START = 6


def start(name: str, module: str, function: str) -> NoReturn:
    """Run a command. One that cannot be loaded (no memory, a package that is missing or broken) ends with
    :data:`CANNOT_START` and one line.
    """
    try:
        command = getattr(import_module(module), function)
    except KeyboardInterrupt:
        sys.exit(130)
    except BaseException as error:
        why = " ".join(str(error).split()) or "out of memory"
        sys.stderr.write(f"{name}: cannot start: {why}\n")
        sys.exit(CANNOT_START)
    sys.exit(command())


def tv_show() -> NoReturn:
    start("tv-show", "certificates.cli", "main")
