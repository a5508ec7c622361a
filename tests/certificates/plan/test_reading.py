"""Plan files that cannot be read say so, as errors of the format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates import canonical
from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.canonical import canonical_bytes
from certificates.errors import FormatError
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.plan.reading import load, loads
from certificates.plan.writing import dump, dumps


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a JSON document"),
        (b"\x00\x01", "not a JSON document"),
        (b"\xff\xfe\xff", "not a JSON document"),
        (b'{"format": "trainverify-plan"', "not a JSON document"),
        (b"[" * 200_000, "not a JSON document"),
        (b'{"a":' * 100_000, "not a JSON document"),
        (b"1" * 5000, "integer 1+... has more than 18 digits"),
        (b"[-1234567890123456789]", "has more than 18 digits"),
        (b"1.5", "floating-point number 1.5"),
        (b"[1e400]", "floating-point number 1e400"),
        (b"[NaN]", "floating-point number NaN"),
        (b"[-Infinity]", "floating-point number -Infinity"),
        (b'{"a":1,"a":2}', "repeats a key"),
        (b"[]", "a plan must be an object with exactly the keys classes, format"),
        (b"{}", "a plan must be an object with exactly the keys"),
    ],
    ids=range(15),
)
def test_unreadable_documents(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        loads(data)


def test_damaged_files(mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json.gz"
    dump(mlp, path)
    good = path.read_bytes()
    for data, reason in (
        (good[:-10], "is a truncated gzip file"),
        (good[:30], "is a truncated gzip file"),
        (good[:20] + b"\x00" * 20 + good[40:], "is a damaged gzip file"),
        (good[:-8] + b"\x00" * 8, "is a damaged gzip file"),
        (good + b"more", "has data after the end"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=reason):
            load(path)
    with pytest.raises(FormatError, match=r"cannot read .*: No such file or directory"):
        load(tmp_path / "absent")
    with pytest.raises(FormatError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)
    monkeypatch.setattr(canonical, "MAX_BYTES", 1000)
    path.write_bytes(good)
    with pytest.raises(FormatError, match=r"unpacks to more than 1000 bytes|is over 1000 bytes"):
        load(path)
    path.write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(FormatError, match="unpacks to more than 1000 bytes"):
        load(path)
    path.write_bytes(b" " * 1001)
    with pytest.raises(FormatError, match="is over 1000 bytes"):
        load(path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_small_corruption_escapes_as_another_exception(data: st.DataObject) -> None:
    """Replace any one node of a plan by junk: it still loads, or it is a FormatError."""
    document = json.loads(CORRUPTED)
    node: Any = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(node[key], dict | list) and node[key] and data.draw(st.integers(0, 4)):
            node = node[key]
            continue
        node[key] = data.draw(st.sampled_from(JUNK))
        break
    try:
        loads(canonical_bytes(document))
    except FormatError as error:
        assert str(error)


JUNK: list[Any] = [None, True, -1, 0, 1, 10**30, "", "%0", "x", "f32[2]"]
JUNK += [[], [[]], ["a", 1], {}, {"": 1}, {"z0": 1}]


def _corrupted() -> bytes:
    b, mesh = ProgramBuilder({"dp": 2}), {"dp": 2}
    s = ProgramBuilder()
    s.output("y", s.gather(s.input("x", "f32[4,3]"), s.input("i", "i64[2]"))[:1] * 2)
    x, i = b.input("x", "f32[2,3]"), b.input("i", "i64[2]")
    b.output("y", b.gather(b.all_gather(x, "dp"), i)[:1] * 2)
    place: Any = {"x": {"dp": Shard(0)}, "i": {}}
    return dumps(
        build_plan(
            name="c",
            mesh=mesh,
            specification=s.build(),
            classes=b.build(),
            inputs=place,
            outputs={"y": {}},
            ranges={"i": (0, 4)},
        )
    )


CORRUPTED = _corrupted()
