"""Answers of the machine: shown they are what they are, and who decides by one is refused."""

from __future__ import annotations

import datetime
import gc
import json
import logging
import math
import os
import resource
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime as when

import pytest
from torch import nn

from orchestrator.capture.answers import (
    BY_ANSWER,
    BY_PLACE,
    BY_TIME,
    Answer,
    Count,
    Identity,
    Moment,
    Words,
    told,
)

from .test_asking import refused

PART = [nn.Linear(1, 1) for _ in range(2)]


@pytest.mark.parametrize(
    "decides",
    [
        lambda: datetime.datetime.now().year > 2100,
        lambda: when.now() > when(2100, 1, 1),
        lambda: when.now().hour == 3,
        lambda: when.utcnow().date() == datetime.date(2100, 1, 1),
        lambda: datetime.date.today().day == 1,
        lambda: (when.now() - when(2020, 1, 1)).total_seconds() > 1e12,
        lambda: when.fromtimestamp(time.time()).second == 7,
        lambda: datetime.timedelta(seconds=time.time()).days > 10**6,
        lambda: when.now().strftime("%H") == "03",
        lambda: time.localtime().tm_hour == 3,
        lambda: time.gmtime()[0] > 2100,
        lambda: math.sqrt(time.time()) > 1e9,
    ],
)
def test_a_date_is_no_reason(decides: Callable[[], object]) -> None:
    """`if datetime.now().hour == 3` left out the all-reduce; nobody captures at three."""
    assert BY_TIME[0] in refused(decides) or BY_ANSWER[0] in refused(decides)


@pytest.mark.parametrize(
    "decides",
    [
        lambda: time.strftime("%H") == "03",
        lambda: str(os.getpid()).endswith("7"),
        lambda: f"{os.getpid()}".endswith("7"),
        lambda: os.getpid() % 100 == 7,
        lambda: socket.gethostname() == "node7",
        lambda: {socket.gethostname(): 1},
        lambda: resource.getrusage(resource.RUSAGE_SELF).ru_utime > 3600,
        lambda: threading.active_count() > 5,
        lambda: shutil.disk_usage("/").free < 10,
        lambda: sys.getrefcount(None) % 100 == 7,
        lambda: gc.get_freeze_count() > 7,
        lambda: gc.get_objects(),
        lambda: shutil.which("stop"),
        lambda: uuid.uuid1(),
        lambda: [1, 2][os.getpid() % 2],
        lambda: range(os.getpid()),
        lambda: "." * (os.getpid() % 2),
        lambda: 2.0 * os.getpid() > 7,
        lambda: os.getpid() / 2.0 > 7,
        lambda: 7.5 % os.getpid() == 7.5,
    ],
)
def test_what_the_machine_answers_is_no_reason(decides: Callable[[], object]) -> None:
    """What a process uses, or who it is, differs in every job and at every step."""
    assert refused(decides)[0] == BY_ANSWER[0]


def test_answers_may_be_shown(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    def step() -> None:
        start = when.now()
        print(
            f"[{when.now():%Y-%m-%d}] {start.isoformat()} {when.now() - start} {start.date()} {start.time()}"
        )
        print(time.strftime("%H:%M", time.localtime()), f"{time.localtime().tm_hour:02d}", time.ctime() + ".")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        shown = "%d of %s, %5.1f %i%%"
        print(shown % (os.getpid(), os.getpid(), os.getpid(), time.time()), repr(os.getpid()))
        print(f"{os.getpid():5d} {os.getpid() // 2}", json.dumps({"ns": time.time_ns()}))
        line = f"{socket.gethostname()}:{os.getpid()} {threading.active_count()} threads, {peak:.1f} MiB"
        logging.getLogger("step").warning(line or "nothing")
        gc.collect()

    assert refused(step) == []
    assert f":{os.getpid()} " in caplog.text and str(datetime.date.today().year) in capsys.readouterr().out


def test_a_day_of_the_week_is_no_place_in_a_list() -> None:
    """``rates[datetime.now().weekday()]`` takes another one tomorrow."""
    assert refused(lambda: ([1] * 7)[when.now().weekday()])[0] == BY_TIME[0]
    assert refused(lambda: (1e-9 * time.monotonic_ns()) > 3600)[0] == BY_TIME[0]


def test_dates_that_nobody_asked_the_clock_for_are_plain() -> None:
    def step() -> None:
        day = datetime.datetime(2020, 1, 2)
        assert day > when(2020, 1, 1) and type(day) is type(when.fromisoformat("2020-01-02"))
        assert isinstance(day, datetime.datetime) and issubclass(when, datetime.date)
        assert datetime.timedelta(seconds=3) < datetime.timedelta(seconds=5) and math.sqrt(4) == 2

    assert refused(step) == [] and not isinstance(when.now(), Moment)


def test_an_identity_and_a_hash_are_keys_and_no_numbers() -> None:
    """`hash(name) % 2` and `sorted(parts, key=id)` are others in each process of a job."""

    def keys() -> None:
        seen = {id(PART): 1, hash("a"): 2}
        assert id(PART) in seen and seen[hash("a")] == 2 and hash((1, 2)) % 2 in (0, 1)

    assert refused(keys) == []
    assert refused(lambda: hash("text") % 2)[0] == BY_PLACE[0]
    assert refused(lambda: hash((1, "text")) & 1)[0] == BY_PLACE[0]
    assert refused(lambda: sorted(PART, key=id))[0] == BY_PLACE[0]


class Named(int):
    """A number, with the hash of a text."""

    def __hash__(self) -> int:
        return hash(str(self))


def test_a_number_that_code_hashes_has_the_hash_of_a_text() -> None:
    assert refused(lambda: hash(Named(1)) % 2)[0] == BY_PLACE[0] and refused(lambda: hash(1) % 2) == []


def test_answers_are_of_the_classes_that_they_are_in_a_job() -> None:
    assert told(3) == 3 and isinstance(told(3), Count) and isinstance(told("a"), Words) and told(None) is None
    seven = told(7)
    assert (seven + 1, 1 + seven, 2.5 * seven, seven / 2, -seven // 2, seven**2) == (8, 8, 17.5, 3.5, -4, 49)
    assert seven & 3 == 3 and all(isinstance(x, Answer) for x in (1 + seven, 2.5 * seven, 15.5 % seven))
    assert f"{Identity(255):x}" == "ff" and str(told("a") + "b") == "ab" and told(1.5) * 2 == 3


@pytest.mark.parametrize(
    ("does", "what"),
    [
        (lambda: exec("pass"), "the step runs a text as code (exec)"),
        (lambda: eval("1"), "the step runs a text as code (eval)"),
        (
            lambda: __import__("importlib").import_module("".join(["js", "on"])),
            "the step names a module when",
        ),
    ],
)
def test_what_is_written_when_a_step_runs_cannot_be_looked_at(does: Callable[[], object], what: str) -> None:
    """`exec("torch.calls += 1")` counts where no code that was read says so."""
    assert refused(does)[0].startswith(what)
