"""Which output a witness speaks of: tests of its members are in tests/checker/report/test_verdict.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checker.errors import Malformed
from checker.reading.plan import read_plan
from checker.refuting.witnesses import witnesses

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, row_parallel


def test_a_bundle_without_a_witness_refutes_nothing() -> None:
    bundle = row_parallel()
    assert witnesses(read_plan(dump(bundle.plan)), {}, bundle.examine().claimed) == {}


def test_a_witness_of_no_output_is_malformed() -> None:
    bundle = row_parallel()
    with pytest.raises(Malformed, match="witness: output"):
        witnesses(read_plan(dump(bundle.plan)), {"witness.json": b"{}\n"}, bundle.examine().claimed)
