"""A value of another shape is refused in words that say which one was wanted."""

from __future__ import annotations

import pytest

from certificates.errors import FormatError
from certificates.shapes import as_list, as_object, as_text


def test_what_has_the_shape_is_given_back() -> None:
    assert as_object({"a": 1, "b": 2}, "a lane", ["b", "a"]) == {"a": 1, "b": 2}
    assert as_list([1], "slots") == [1] and as_text("", "name") == ""


@pytest.mark.parametrize("data", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, [], None, "ab"])
def test_an_object_has_exactly_its_keys(data: object) -> None:
    with pytest.raises(FormatError, match=r"^a lane must be an object with exactly the keys a, b$"):
        as_object(data, "a lane", ["b", "a"])


@pytest.mark.parametrize("data", [{}, "ab", (1,), None])
def test_a_list_is_a_list_and_a_string_a_string(data: object) -> None:
    with pytest.raises(FormatError, match=r"^slots must be a list$"):
        as_list(data, "slots")
    with pytest.raises(FormatError, match=r"^name must be a string$"):
        as_text([data], "name")
