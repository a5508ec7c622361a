"""Types and rationals as text."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates.errors import FormatError
from certificates.plan.types import format_rational, rational


@given(st.fractions())
def test_rationals_round_trip(value: Fraction) -> None:
    assert rational(format_rational(value)) == value


@pytest.mark.parametrize("text", ["1/0", "-0/1", "2/1", "+1", "1/-2", " 1", "1_0", "01", "-", "1/", "1e3"])
def test_other_spellings_of_rationals_are_refused(text: str) -> None:
    with pytest.raises(FormatError, match=re.escape(repr(text))):
        rational(text)
