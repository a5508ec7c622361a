"""Keys of packed rows lie in their range, before a plan is written."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.authoring.packing import Rows
from certificates.errors import FormatError
from tests.orchestrator.plans import alone


@pytest.mark.parametrize(("count", "said"), [(4, "0 to 4"), (5, "")])
def test_keys_that_are_counted_lie_in_their_range(count: int, said: str) -> None:
    """How many of four numbers are positive is none of 0, 1, 2 and 3 alone."""
    b = ProgramBuilder()
    x, n = b.input("x", "f32[6]"), b.input("n", "i64[6,4]")
    keys = b.reduce(b.convert(b.compare(n, 0, "GT"), "i64"), (1,))
    order = Rows.sorted(b, keys, count)
    b.output("y", order.unpack(order.pack(x)))
    if not said:
        alone(b)
        return
    with pytest.raises(FormatError, match=rf"are to lie in \[0, 4\), and %\d+ is {said}"):
        alone(b)


def test_keys_of_which_nothing_is_known_are_refused() -> None:
    b = ProgramBuilder()
    x, n = b.input("x", "f32[6]"), b.input("n", "i64[6]")
    order = Rows.sorted(b, b.abs(n), 4)
    b.output("y", order.unpack(order.pack(x)))
    with pytest.raises(FormatError, match="is anything, as far as its ops show"):
        alone(b)
