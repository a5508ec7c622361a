"""What is said of a run is lines under known names; anything else would pass for a part of the proof."""

from __future__ import annotations

import pytest

from certificates.bundle.about import checked_about, read_about
from certificates.errors import FormatError


def test_lines_under_known_names() -> None:
    assert read_about(b'{"who": "team", "commit": "abc"}') == {"who": "team", "commit": "abc"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"verdict": "PROVED"}, "nothing is said under the name 'verdict'"),
        ({"who": ""}, "who must be one line"),
        ({"who": "a\nb"}, "who must be one line"),
        ({"who": "\u00e9"}, "printable ASCII"),
        ({"who": 3}, "who must be one line"),
    ],
)
def test_what_is_refused(said: dict[str, object], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        checked_about(said)


def test_a_list_is_no_object() -> None:
    with pytest.raises(FormatError, match=r"about\.json: an object is expected"):
        read_about(b"[]")
