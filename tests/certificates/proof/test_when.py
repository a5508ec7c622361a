"""The times of a schedule in `proof.json`."""

from __future__ import annotations

import json

import pytest

from certificates.errors import FormatError
from certificates.proof.reading import proof_from_json
from certificates.proof.stages import Proof
from certificates.proof.when import When, when_from_json, with_when
from certificates.proof.writing import proof_bytes

TIMES, CIRCLE = When({"a": (0, 3), "b": ()}), When({}, (("a", 0), ("b", 1)))


@pytest.mark.parametrize("when", [TIMES, CIRCLE])
def test_what_is_written_is_read(when: When) -> None:
    data = proof_bytes(Proof([], [], (), when))
    assert data == with_when(proof_bytes(Proof([], [])), when)
    assert proof_from_json(json.loads(data)).when == when
    assert list(json.loads(data)) == sorted(json.loads(data)), "canonical JSON: keys in order"


@pytest.mark.parametrize(
    "data",
    [{}, [], {"times": {"a": [-1]}}, {"times": {"a": [True]}}, {"times": {}, "circle": []}, {"circle": []},
     {"circle": [["a"]]}, {"circle": [[1, 1]]}, {"times": {"a": 1}}],
)  # fmt: skip
def test_what_is_none(data: object) -> None:
    with pytest.raises(FormatError, match="when must have times"):
        when_from_json(data)
