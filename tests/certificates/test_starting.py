"""A command that cannot be loaded has judged nothing, and its exit code must not say that it has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from certificates.starting import CANNOT_START, start


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("import no_such_package", "cannot start: No module named 'no_such_package'"),
        ("raise MemoryError", "cannot start: out of memory"),
        ("raise OSError('libz3.so:\\n cannot map')", "cannot start: libz3.so: cannot map"),
        ("raise SystemExit(1)", "cannot start: 1"),
        ("", "cannot start: module 'broken' has no attribute 'main'"),
    ],
)
def test_what_cannot_be_loaded_is_6_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: str, line: str
) -> None:
    (tmp_path / "broken.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(SystemExit) as ended:
        start("tv-any", "broken", "main")
    assert ended.value.code == CANNOT_START == 6
    assert capsys.readouterr() == ("", f"tv-any: {line}\n")
    sys.modules.pop("broken", None)


def test_what_the_command_says_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("def main(): return 3")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        start("tv-any", "fine", "main")
    assert ended.value.code == 3
    sys.modules.pop("fine", None)


@pytest.mark.parametrize(
    ("error", "said"), [("SystemError", ""), ("MemoryError", ""), ("KeyError", "Traceback")]
)
def test_an_error_that_the_command_has_not_handled_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: str, said: str
) -> None:
    """Python ends with 1 for it: click met a ``SystemError`` without memory, and the plan was *refuted*."""
    (tmp_path / "failing.py").write_text(f"def main(): raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    with pytest.raises(SystemExit) as ended:
        start("tv-any", "failing", "main")
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (CANNOT_START, "")
    assert err.startswith(said) and err.endswith(f"tv-any: stopped: {error}\n")
    assert ("Traceback" in err) == bool(said)
    sys.modules.pop("failing", None)
