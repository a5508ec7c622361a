"""What the maker says of the run is read strictly: it stands in a report that people believe."""

from __future__ import annotations

import json

import pytest

from certificates.bundle.about import FIELDS as WRITTEN
from checker.errors import Malformed
from checker.report.about import FIELDS, about_lines, read_about


def bundle(about: object) -> dict[str, bytes]:
    return {"about.json": json.dumps(about).encode()}


def test_what_is_said_has_an_order_and_words() -> None:
    about = read_about(bundle({"dataset": "c4@1", "who": "team"}))
    assert about_lines(about) == ["made by: team", "data set: c4@1"]
    assert read_about({}) == {}


def test_the_maker_and_the_checker_know_the_same_names() -> None:
    assert list(FIELDS) == list(WRITTEN)


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ([], "an object is expected"),
        ({"verdict": "PROVED"}, "unknown member 'verdict'"),
        ({"who": 1}, "about: who: 1 is no valid text"),
        ({"who": "a\u202eb"}, "is no valid text"),
        ({"who": "a\nVALID"}, "is no valid text"),
        ({"who": "x" * 201}, "is no valid text"),
    ],
)
def test_what_is_no_line_of_a_known_name_is_malformed(about: object, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        read_about(bundle(about))
