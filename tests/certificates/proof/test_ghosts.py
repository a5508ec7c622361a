"""Ghosts in ``proof.json``, written and read back."""

from __future__ import annotations

import pytest

from certificates.errors import FormatError
from certificates.plan.program import Op
from certificates.plan.types import TensorType
from certificates.proof.ghosts import Ghosts, ghosts_from_json, ghosts_json

ONE = Op("%7", "exponential", ("x",), TensorType("f32", (3,)), {})
GHOSTS: list[Ghosts] = [
    {},
    {"": {"s": [ONE]}},
    {"layer": {"c0": [ONE, ONE]}},
    {"": {"s": [ONE]}, "f": {"s": [ONE]}},
]


@pytest.mark.parametrize("ghosts", GHOSTS)
def test_what_is_written_is_read(ghosts: Ghosts) -> None:
    assert ghosts_from_json(ghosts_json(ghosts)) == ghosts


def test_functions_are_apart_from_the_main_programs() -> None:
    assert set(ghosts_json(GHOSTS[3])) == {"main", "functions"} and set(ghosts_json(GHOSTS[1])) == {"main"}


@pytest.mark.parametrize(
    "data", [[], {"other": {}}, {"main": []}, {"main": {"s": {}}}, {"functions": {"f": 1}}]
)
def test_other_shapes_are_refused(data: object) -> None:
    with pytest.raises(FormatError):
        ghosts_from_json(data)
