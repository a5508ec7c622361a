"""How the commands of the checker start: what they are made of may not load, and Python would end with 1,
which says *invalid*."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

CANNOT_START = 6


def start(name: str, load: Callable[[], Callable[..., object]]) -> NoReturn:
    """Run a command. One that cannot be loaded (no memory, a package that is missing or broken) ends with 6
    and one line; so does one that ends by an error it has not handled itself."""
    try:
        command = load()
    except KeyboardInterrupt:
        sys.exit(130)
    except BaseException as error:
        why = " ".join(str(error).split()) or "out of memory"
        if isinstance(error, ModuleNotFoundError) and error.name == "click":
            why += "; python3 -m pip install click"
        sys.stderr.write(f"{name}: cannot start: {why}\n")
        sys.exit(CANNOT_START)
    try:
        sys.exit(command(prog_name=name))  # type: ignore[arg-type]
    except Exception as error:
        if not isinstance(error, MemoryError | SystemError):  # without memory Python raises the latter
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.write(f"{name}: stopped: {type(error).__name__}\n")
        sys.exit(CANNOT_START)


def _check() -> Callable[..., object]:
    from .cli import main

    return main


def _report() -> Callable[..., object]:
    from .reporting import main

    return main


def tv_check(name: str = "tv-check") -> NoReturn:
    start(name, _check)


def tv_report() -> NoReturn:
    start("tv-report", _report)
