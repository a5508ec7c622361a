"""The checker that cannot be loaded has not found a bundle invalid."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from checker.starting import CANNOT_START, start


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "cannot start: out of memory"),
        (
            ModuleNotFoundError("no click", name="click"),
            "cannot start: no click; python3 -m pip install click",
        ),
        (SystemExit(1), "cannot start: 1"),
    ],
)
def test_what_cannot_be_loaded_is_6_and_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, line: str
) -> None:
    def load() -> NoReturn:
        raise error

    with pytest.raises(SystemExit) as ended:
        start("tv-check", load)
    assert ended.value.code == CANNOT_START == 6
    assert capsys.readouterr() == ("", f"tv-check: {line}\n")


def test_a_command_is_told_its_name_and_its_code_is_passed_on() -> None:
    def load() -> Callable[..., object]:
        return lambda prog_name: {"tv-check.pyz": 3}[prog_name]

    with pytest.raises(SystemExit) as ended:
        start("tv-check.pyz", load)
    assert ended.value.code == 3


@pytest.mark.parametrize(
    ("error", "shown"), [(SystemError(), False), (MemoryError(), False), (KeyError(), True)]
)
def test_an_error_that_the_command_has_not_handled_is_no_verdict(
    capsys: pytest.CaptureFixture[str], error: Exception, shown: bool
) -> None:
    """Python ends with 1 for it, which says *invalid*."""

    def command(prog_name: str) -> NoReturn:
        raise error

    with pytest.raises(SystemExit) as ended:
        start("tv-check", lambda: command)
    err = capsys.readouterr().err
    assert ended.value.code == CANNOT_START
    assert ("Traceback" in err) == shown and err.endswith(f"tv-check: stopped: {type(error).__name__}\n")
