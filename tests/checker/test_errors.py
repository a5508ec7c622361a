"""The exceptions of the checker: an exit code each, and the number of the obligation that fails."""

from __future__ import annotations

import sys
from pathlib import Path

from checker import errors

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).resolve().parents[2]


def test_every_exception_has_its_exit_code() -> None:
    classes = {
        name: kind.code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.CheckerError)
    }
    assert classes == {
        "CheckerError": 5,
        "Malformed": 5,
        "Rejected": 1,
        "Masked": 1,
        "Undecided": 3,
        "SolverMissing": 4,
    }
    text = (ROOT / "docs/checking.md").read_text()
    assert "0 valid" in text and "4 fewer solvers" in text and "5 malformed input" in text
