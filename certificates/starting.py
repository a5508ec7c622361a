"""How commands start: what they are made of may not load, and Python's own exit code 1 says *refuted*."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

CANNOT_START = 6


def start(name: str, module: str, function: str) -> NoReturn:
    """Run a command. One that cannot be loaded (no memory, a package that is missing or broken) ends with
    :data:`CANNOT_START` and one line; so does one that ends by an error it has not handled itself.
    """
    try:
        command = getattr(import_module(module), function)
    except KeyboardInterrupt:
        sys.exit(130)
    except BaseException as error:
        why = " ".join(str(error).split()) or "out of memory"
        sys.stderr.write(f"{name}: cannot start: {why}\n")
        sys.exit(CANNOT_START)
    try:
        sys.exit(command())
    except Exception as error:
        if not isinstance(error, MemoryError | SystemError):  # without memory Python raises the latter
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.write(f"{name}: stopped: {type(error).__name__}\n")
        sys.exit(CANNOT_START)


def tv_show() -> NoReturn:
    start("tv-show", "certificates.cli", "main")
