"""Both reports are a function of the bundle alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from checker.report.findings import Findings
from checker.report.render import render, unreadable

ROOT = Path(__file__).resolve().parents[3]


def test_the_same_bytes_whatever_surrounds_it(right: Findings, proved: Path, tmp_path: Path) -> None:
    """Another process, hash seed, time zone, home and folder."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from checker.reporting import main; main()"
    odd = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "HOME": "/nowhere", "LC_ALL": "C"}
    words = [sys.executable, "-P", "-c", code, str(proved), "--out", str(tmp_path)]
    subprocess.run(words, env=odd, cwd=tmp_path, check=True)
    for name, text in render(right).items():
        assert (tmp_path / name).read_bytes() == text.encode() == (proved / "data" / name).read_bytes()


def test_no_path_of_this_machine_stands_in_a_report(wrong: Findings, refuted: Path) -> None:
    for text in render(wrong).values():
        assert str(refuted) not in text and str(ROOT) not in text


def test_a_bundle_that_does_not_hold_says_so_in_both() -> None:
    assert all("NO CERTIFICATE" in text and "why" in text for text in unreadable("why").values())
