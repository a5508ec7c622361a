"""Sizes that a routing decides: slots of a known order, a number that is always the same, or nothing."""

from __future__ import annotations

import pytest
import torch

from certificates.plan.types import TensorType
from orchestrator.capture.amounts import Amount
from orchestrator.capture.builder import Builder
from orchestrator.capture.errors import LoweringError
from orchestrator.capture.lowering.routing import DRAWS, Routing
from orchestrator.capture.lowering.row_orders import Order, RowOrders
from orchestrator.capture.lowering.sizes import Sizes, has_amount

N = len(DRAWS)
COME = tuple(torch.arange(3 + i) % 2 for i in range(N))


def sizes() -> Sizes:
    """Element 0 is 3, 4, …; element 1 is 5, 4, …; an order has as many rows as the first, of 20 slots."""
    b = Builder()
    rows = RowOrders(b, Routing(b), lambda _group: 0)
    value = b.input("order", TensorType("i64", (20,)))
    rows.orders.append(Order(value, "ship_rows", 4, 2, COME, COME))
    found = Sizes(rows)
    for number, first, step in ((0, 3, 1), (1, 5, -1)):
        found.read(Amount(0, ((number, 1),)), tuple(torch.tensor(first + step * i) for i in range(N)))
    return found


def test_a_size_is_that_of_the_slots_of_an_order() -> None:
    assert sizes().slots(Amount(0, ((0, 1),))) == 20


def test_a_size_that_is_always_the_same_is_itself() -> None:
    assert sizes().slots(Amount(1, ((0, 1), (1, 1)))) == 9
    assert sizes().slots(7) == 7


@pytest.mark.parametrize("amount", [Amount(0, ((1, 1),)), Amount(1, ((0, 1),)), Amount(0, ((2, 1),))])
def test_any_other_size_is_refused(amount: Amount) -> None:
    with pytest.raises(LoweringError, match="as many rows as a routing decides"):
        sizes().slots(amount)


def test_amounts_are_known_on_draws_together_or_not_at_all() -> None:
    found = sizes().drawn([Amount(0, ((0, 1),)), 2])
    assert found is not None and found[1].tolist() == [4, 2]
    assert sizes().drawn([Amount(0, ((0, 1),)), Amount(0, ((2, 1),))]) is None


def test_an_amount_is_found_among_arguments() -> None:
    assert has_amount({"sizes": [1, Amount(0, ((0, 1),))]})
    assert not has_amount({"sizes": [1, 2], "dtype": "f32"})
