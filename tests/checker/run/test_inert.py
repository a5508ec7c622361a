"""A pickle is read as data: what would be called is named, and nothing is called."""

from __future__ import annotations

import pickle
import subprocess
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.run.inert import Record, unpickled


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        None, True, -5, 1 << 40, 2.5, "text", [], [1, [2]], (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4),
        {"a": {"b": []}, (1, 2): 3}, "x" * 300, list(range(2000)),
    ],
    ids=lambda v: repr(v)[:20],
)  # fmt: skip
def test_plain_data_comes_back(value: object, protocol: int) -> None:
    assert unpickled(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [3, 4])
def test_bytes_come_back(protocol: int) -> None:
    assert unpickled(pickle.dumps(b"bytes", protocol)) == b"bytes"


def test_shared_values_are_shared() -> None:
    one: list[Any] = [1]
    found = unpickled(pickle.dumps([one, one]))
    assert found[0] is found[1]


def test_objects_are_records() -> None:
    found = unpickled(pickle.dumps(Fraction(1, 2)))
    assert isinstance(found, Record) and found.name == "fractions.Fraction"
    ordered = unpickled(pickle.dumps(OrderedDict(a=1)))
    assert ordered.name == "collections.OrderedDict" and ordered.state == {"a": 1}


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return subprocess.call, (["touch", str(self.path)],)


def test_a_program_in_a_pickle_does_not_run(tmp_path: Path) -> None:
    data = pickle.dumps({"w": Hostile(tmp_path / "ran")})
    found = unpickled(data)
    assert found["w"].name == "subprocess.call" and not (tmp_path / "ran").exists()
    pickle.loads(data)
    assert (tmp_path / "ran").exists(), "it is a program to others"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no pickle that can be read"),
        (b"\x80\x04", "no pickle that can be read|without an end"),
        (b"\x80\x04.", "a damaged pickle"),
        (b"\x80\x04t.", "a damaged pickle"),
        (b"\x80\x04h\x07.", "KeyError"),
        (b"\x80\x04]K\x01K\x02s.", "a damaged pickle"),
        (b"\x80\x04K\x01}b.", "AttributeError"),
        (pickle.dumps(object)[:-3] + b"\x82\x01.", "no pickle|no place in it"),
        (b"\x80\x02cos\nsystem\n(S'x'\ntR.", "no place in it"),
        (b"\x80\x04P1\n.", "no place in it"),
        (b"not a pickle", "no pickle"),
    ],
)
def test_what_cannot_be_read_is_malformed(data: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        unpickled(data)
