"""Objects that are made in C count by what they show; what shows nothing counts for who uses it."""

from __future__ import annotations

import abc
import csv
import ctypes
import operator
import re
import struct
import sys
import threading
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

from orchestrator.capture import opaque
from orchestrator.capture.counters import counted, numbers


def changed(step: Callable[[], object]) -> str | None:
    """What is told of a step that runs once between two looks."""
    made = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    step()
    before = dict(numbers(step, made, optimizer))
    step()
    error = counted(before, numbers(step, made, optimizer))
    return None if error is None else error.message


def reader() -> Callable[[], object]:
    lines = csv.reader(str(i) for i in range(9))
    return lambda: next(lines)


def element() -> Callable[[], object]:
    tree = ET.Element("steps")
    return lambda: ET.SubElement(tree, "step")


def held() -> Callable[[], object]:
    lock = threading.Lock()
    return lambda: lock.release() if lock.locked() else lock.acquire()


def inflated() -> Callable[[], object]:
    stream = zlib.decompressobj()
    stream.decompress(zlib.compress(bytes(range(9))), 1)
    return lambda: stream.decompress(stream.unconsumed_tail, 1)


def promised() -> Callable[[], object]:
    future: torch.futures.Future[list[int]] = torch.futures.Future()
    future.set_result([])
    return lambda: future.value().append(1)


def registered() -> Callable[[], object]:
    class Kind(abc.ABC):
        @abc.abstractmethod
        def run(self) -> None: ...

    return lambda: Kind.register(type("Other", (), {}))


@pytest.mark.parametrize("make", [reader, element, held, inflated, promised, registered])
def test_what_an_object_made_in_c_shows_counts(make: Callable[[], Callable[[], object]]) -> None:
    """`if next(lines)[0] == "99"` decides in the hundredth step."""
    told = changed(make())
    assert told is not None and told.startswith("the step changes")


@pytest.mark.parametrize(
    ("value", "name", "kind"),
    [
        (zlib.compressobj(), "compress", "a Compress counts"),
        (re.compile("a").scanner("a"), "search", "a SRE_Scanner counts"),  # type: ignore[attr-defined]
        (re.compile("a").scanner("a"), "next", "a SRE_Scanner counts"),  # type: ignore[attr-defined]
        (ctypes.CDLL(None).rand, "rand", "rand of a library in C says"),
        (None, "_version", "_version says"),
        (None, "_sequence_nr", "_sequence_nr says"),
        (None, "from_address", "from_address says"),
    ],
)
def test_what_shows_nothing_counts_for_code_that_names_it(value: object, name: str, kind: str) -> None:
    """`len(stream.compress(b"a"))` and `parameter._version > 100` say another thing at some step."""
    assert list(opaque.unseen({name, "other"}, [value])) == [f"what {kind}"]
    assert list(opaque.unseen({"other"}, [value])) == []


def test_what_nobody_can_tell_is_never_the_same() -> None:
    error = counted({"it": opaque.Unknown()}, {"it": opaque.Unknown()})
    assert error is not None and "from what nothing shows to what nothing shows" in error.message


def test_what_a_step_only_uses_counts_nothing() -> None:
    """A lock that is free again, a format, a pattern: none of them counts."""
    lock, packed, pattern, first = (
        threading.Lock(),
        struct.Struct("i"),
        re.compile("a"),
        operator.itemgetter(0),
    )
    held = [lock, packed, pattern, first, csv.writer(sys.stderr)]
    assert list(opaque.unseen({"pack", "match", "next", "acquire", "writerow"}, held)) == []
    before = list(map(opaque.shown, held))
    with lock:
        packed.pack(1)
        assert pattern.match("a") and first([1]) == 1
    assert list(map(opaque.shown, held)) == before


def test_an_object_with_attributes_is_not_opaque() -> None:
    assert opaque.is_opaque(csv.reader([])) and not opaque.is_opaque(nn.Linear(1, 1))
    assert not opaque.is_opaque(threading.Event()) and opaque.shown(csv.reader([])) == (-1, 0)
