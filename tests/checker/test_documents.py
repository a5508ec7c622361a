"""The numbered obligations say the same in docs/checking.md, in the kernel's docstring and in messages."""

from __future__ import annotations

import re
from pathlib import Path

from checker import kernel
from checker.errors import OBLIGATIONS, Rejected

ROOT = Path(__file__).resolve().parents[2]


def test_obligations_have_one_numbering() -> None:
    table = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", (ROOT / "docs/checking.md").read_text(), re.MULTILINE)
    docstring = re.findall(r"^ ?(\d+) ([a-z]+(?: [a-z]+)*)  ", kernel.__doc__ or "", re.MULTILINE)
    assert {int(n): name for n, name in table} == OBLIGATIONS == {int(n): name for n, name in docstring}
    assert str(Rejected(9, "why", "stage 3")) == "obligation 9 (widths) fails at stage 3: why"


def test_every_obligation_is_checked_in_the_module_that_the_table_names() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*?) \|$", (ROOT / "docs/checking.md").read_text(), re.MULTILINE)
    for number, modules in rows:
        for module in re.findall(r"`(\w+\.py)`", modules):
            assert (ROOT / "checker" / module).exists(), f"{number}: {module}"


def test_trust_names_every_module_of_the_checker() -> None:
    trusted = (ROOT / "TRUST.md").read_text() + (ROOT / "docs/checking.md").read_text()
    missing = [p.name for p in (ROOT / "checker").glob("*.py") if p.name not in trusted
               and p.name != "__init__.py"]
    assert missing == []
