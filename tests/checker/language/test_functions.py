"""Free functions and reserved names of the obligation files."""

from __future__ import annotations

import re
from pathlib import Path

from checker.language.functions import FUNCTIONS, RESERVED
from checker.language.ops import ARITY

ROOT = Path(__file__).resolve().parents[3]


def test_files_declare_free_functions_in_the_documented_order() -> None:
    """Another order would change the bytes of every obligation file."""
    said = re.search(r"fixed order `([a-z_0-9 ]+)`", (ROOT / "docs/certificate.md").read_text())
    assert said is not None and said[1].split() == list(FUNCTIONS)


def test_a_free_function_is_no_symbol_and_has_one_number_of_arguments() -> None:
    """A mesh axis of that name would be declared twice in a file."""
    assert RESERVED.issuperset(FUNCTIONS)
    assert {name: n for name, n in ARITY.items() if n != 1} == {
        **{"mul": 2, "fpow": 2, "max2": 2, "min2": 2, "neg_inf": 0, "pos_inf": 0},
        **{f"cmp_{word}": 2 for word in ("eq", "ne", "lt", "le", "gt", "ge")},
    }
