"""JSON as it is archived: equal data have equal bytes, and what two readers could read apart is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates.canonical import (
    canonical_bytes,
    canonical_text,
    digest,
    object_text,
    parse_json,
    read_bytes,
)
from certificates.errors import FormatError

DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18) + 1, 10**18 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(DATA)
def test_what_is_written_is_read_as_it_was(data: object) -> None:
    written = canonical_bytes(data)
    assert parse_json(written) == data and canonical_bytes(parse_json(written)) == written


def test_bytes_do_not_depend_on_order_or_on_the_alphabet() -> None:
    assert canonical_bytes({"b": 1, "a": [True, None]}) == b'{"a":[true,null],"b":1}\n'
    assert canonical_bytes({"a": [True, None], "b": 1}) == canonical_bytes({"b": 1, "a": [True, None]})
    assert canonical_text("\u00e9\u2028").isascii()


@given(st.dictionaries(st.text(max_size=4), DATA, max_size=4))
def test_an_object_of_written_members_is_the_written_object(data: dict[str, object]) -> None:
    """Large documents are put together from parts that were written before."""
    assert object_text({key: canonical_text(value) for key, value in data.items()}) == canonical_text(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a": 1, "a": 1}', "repeats a key"),
        (b'[{"x": {"b": 1, "b": 2}}]', "repeats a key"),
        (b"[0.5]", "floating-point number 0.5 in the document; write a rational string"),
        (b"[1e3]", "floating-point number 1e3"),
        (b"NaN", "floating-point number NaN"),
        (b"-Infinity", "floating-point number -Infinity"),
        (b"1000000000000000000", "integer 1000000000000000000... has more than 18 digits"),
        (b"-1000000000000000000", "has more than 18 digits"),
        (b"[" * 100_000, "not a JSON document"),
        (b"{", "not a JSON document"),
        (b"\xff", "not a JSON document"),
        (b"{} {}", "not a JSON document"),
    ],
    ids=range(12),
)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_json(data)


def test_integers_of_eighteen_digits_are_read() -> None:
    assert parse_json(b"[999999999999999999, -999999999999999999]") == [10**18 - 1, -(10**18) + 1]


def test_packed_files_are_read_as_what_they_hold(tmp_path: Path) -> None:
    """The digest is one of the document, so that packing it is no change."""
    plain = canonical_bytes({"a": 1})
    (tmp_path / "plain").write_bytes(plain)
    (tmp_path / "packed").write_bytes(gzip.compress(plain))
    assert read_bytes(tmp_path / "plain") == read_bytes(tmp_path / "packed") == plain
    assert digest(plain) == hashlib.sha256(plain).hexdigest()
    assert json.loads(plain) == {"a": 1}


def test_a_packed_file_with_something_behind_it_is_refused(tmp_path: Path) -> None:
    """Two readers could take it for two documents."""
    (tmp_path / "two").write_bytes(gzip.compress(b"{}") + gzip.compress(b"[]"))
    with pytest.raises(FormatError, match="data after the end of its gzip stream"):
        read_bytes(tmp_path / "two")
