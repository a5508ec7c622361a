"""How the commands of the checker end when they are stopped from outside, or by a mistake of their own."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import click

VERSION = "0.1.0"
FAILED, INTERRUPTED, PIPE_CLOSED, TERMINATED = 6, 130, 141, 143
"""What stops the command from outside is no verdict, and has exit codes of its own."""

version = click.version_option(VERSION, message="%(prog)s, TrainVerify %(version)s")


def prepare() -> None:
    """Settings of Python for a whole bundle. A sum of a thousand summands nests their definitions; what is
    read from files has depths of its own."""
    gc.set_threshold(100_000, 20, 100)  # nearly all that is made lives to the end
    sys.setrecursionlimit(5_000)


class Terminated(BaseException):
    """SIGTERM arrived; child processes and temporary folders go."""


@contextmanager
def ending(name: str) -> Iterator[None]:
    """One line on standard error for what is no verdict. Python itself would end with 1: refuted."""

    def terminate(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
        return
    except click.ClickException:
        raise
    except BrokenPipeError:
        code, line = PIPE_CLOSED, ""
    except KeyboardInterrupt:
        code, line = INTERRUPTED, "interrupted: no verdict"
    except Terminated:
        code, line = TERMINATED, "terminated: no verdict"
    except (OSError, MemoryError) as error:
        code, line = FAILED, f"failed: {str(error) or 'out of memory'}"
    except Exception as error:
        if str(error) == "can't start new thread":
            code, line = FAILED, "failed: out of memory"
        else:
            traceback.print_exc()
            code, line = 3, f"unknown: internal error {type(error).__name__}"
    finally:
        signal.signal(signal.SIGTERM, before)
    if line:
        click.echo(f"{name}: {line}", err=True)
    with suppress(OSError):  # what is left in buffers would fail once more while Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
