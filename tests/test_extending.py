"""The lists of files in docs/extending.md are true: each file exists and has what it is listed for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
ENTRIES = re.findall(r"^- `([^`]+)` \(`(.+?)`\):", PAGE, re.M)


@pytest.mark.parametrize(("path", "anchor"), ENTRIES, ids=lambda text: str(text))
def test_the_file_has_what_the_page_says(path: str, anchor: str) -> None:
    assert anchor in (ROOT / path).read_text("utf-8"), f"docs/extending.md: {path} has no {anchor!r}"


def test_every_section_has_a_list_and_every_item_is_read() -> None:
    sections = PAGE.split("\n## ")[1:]
    assert len(sections) == 5
    assert all(s.count("\n- `") >= 4 for s in sections)
    assert len(ENTRIES) == PAGE.count("\n- `")
