"""Bags: what is listed is there, what is there is listed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.bundle.bag import DECLARATION, opened, sealed
from certificates.canonical import digest
from certificates.errors import FormatError

PAYLOAD = {"b": b"2", "a/c": b"33"}


def test_a_bag_is_sealed_in_the_order_of_names() -> None:
    files = sealed(PAYLOAD, [("Contact-Name", "me")])
    assert files["bagit.txt"] == DECLARATION
    assert files["bag-info.txt"] == b"Contact-Name: me\nPayload-Oxum: 3.2\n"
    lines = f"{digest(b'33')}  data/a/c\n{digest(b'2')}  data/b\n"
    assert files["manifest-sha256.txt"].decode() == lines
    assert [line[66:] for line in files["tagmanifest-sha256.txt"].decode().splitlines()] == [
        "bag-info.txt",
        "bagit.txt",
        "manifest-sha256.txt",
    ]
    assert opened(files) == PAYLOAD


Change = Callable[[dict[str, bytes]], object]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: f.update({"data/b": b"3"}), "data/b is missing or has not"),
        (lambda f: f.pop("data/b"), "data/b is missing"),
        (lambda f: f.pop("bag-info.txt"), r"bag-info\.txt is missing"),
        (lambda f: f.update({"data/x": b""}), "data/x is not listed"),
        (lambda f: f.update({"x": b""}), "x is not listed"),
        (lambda f: f.update({"bagit.txt": b"BagIt-Version: 0.97\n"}), "declares no bag"),
        (lambda f: f.pop("bagit.txt"), "declares no bag"),
        (lambda f: f.pop("manifest-sha256.txt"), r"manifest-sha256\.txt is missing"),
        (lambda f: f.pop("tagmanifest-sha256.txt"), r"tagmanifest-sha256\.txt is missing"),
        (lambda f: f.update({"manifest-sha256.txt": b"x\n"}), "is no line of the form"),
        (lambda f: f.update({"manifest-sha256.txt": f["tagmanifest-sha256.txt"]}), "is no line of the form"),
        (lambda f: f.update({"manifest-sha256.txt": f["manifest-sha256.txt"] * 2}), "is no line of the form"),
    ],
)
def test_what_is_no_sealed_bag_is_refused(change: Change, reason: str) -> None:
    files = sealed(PAYLOAD, [])
    change(files)
    with pytest.raises(FormatError, match=reason):
        opened(files)
