"""Canonical JSON: the examples of RFC 8785, without floats."""

from __future__ import annotations

import pytest

from certificates.attesting.jcs import EXACT, canonical
from certificates.errors import FormatError


def test_the_strings_and_literals_of_the_standard() -> None:
    """Section 3.2.2."""
    value = {"string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/", "literals": [None, True, False]}
    want = '{"literals":[null,true,false],"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    assert canonical(value) == want.encode()


def test_members_are_sorted_by_utf_16() -> None:
    """Section 3.2.3: a surrogate pair stands before U+FB33."""
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    said = canonical(value).decode()
    order = ["Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"]
    assert [said.index(word) for word in order] == sorted(said.index(word) for word in order)
    assert said.startswith('{"\\r":"Carriage Return","1":"One","\u0080":')


def test_integers_are_exact() -> None:
    assert canonical([0, -1, EXACT, (2, {})]) == b"[0,-1,9007199254740991,[2,{}]]"


@pytest.mark.parametrize("value", [1.5, EXACT + 1, b"x", {1: 2}, "\ud800", [object()]])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(FormatError, match="canonical form"):
        canonical(value)
