"""Sizes that a routing decides: slots of a known order, a number that is always the same, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from certificates.plan.types import TensorType
from orchestrator.capture.amounts import Amount
from orchestrator.capture.builder import Builder
from orchestrator.capture.errors import LoweringError
from orchestrator.capture.geometry import Geometry
from orchestrator.capture.lowering.routing import DRAWS, Routing
from orchestrator.capture.lowering.row_orders import Order, RowOrders
from orchestrator.capture.lowering.sizes import Sizes, has_amount
from orchestrator.capture.recorder import TensorRef

from .conftest import lower

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


@pytest.mark.parametrize("write", ["zero", "out", "strides"])
def test_what_is_written_to_unknown_rows_is_lost_as_a_whole(write: str) -> None:
    """How many rows expert 0 has decides what is zeroed: no plan says so, nor that nothing is."""

    def layer(x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids = torch.topk(scores, 2).indices.view(-1)
        count = torch.bincount(ids, minlength=3).tolist()[0]
        out = x.clone()
        if write == "zero":
            out.narrow(0, 0, count).zero_()
        elif write == "out":
            torch.add(x.narrow(0, 0, count), 1, out=out.narrow(0, 0, count))
        else:
            out.as_strided((count, 5), (5, 1)).zero_()
        return out

    with pytest.raises(LoweringError, match="as many rows as a routing decides"):
        lower(layer, torch.randn(8, 5), torch.randn(8, 3))


def test_rows_lie_in_memory_of_their_own_each_where_it_was() -> None:
    """A view of the rows of one storage has all of them, at one distance; memory of others has none."""
    amount = Amount(0, ((0, 1),))
    found = replace(sizes(), knows=lambda storage: storage == 7)

    def ref(storage: int, size: tuple[object, ...], stride: tuple[object, ...], offset: int = 0) -> TensorRef:
        return TensorRef(storage, "f32", Geometry.of(size, stride, offset))  # type: ignore[arg-type]

    rows = found.reference(ref(1, (amount, 6), (6, 1)))
    assert rows.geometry.size == (20, 6)
    found.reference(ref(1, (3, amount), (2, 6), 1))  # some columns, transposed
    found.reference(ref(2, (6, amount), (amount, 1)))
    found.reference(ref(7, (amount, 6), (0, 1)))  # one row for all
    for wrong in (
        ref(1, (amount, 3), (3, 1)),  # two of a row
        ref(1, (amount, 6), (6, 1), 1),  # the end of a row and the begin of the next one
        ref(1, (amount, 6), (0, 1)),  # one of the rows
        ref(2, (amount, 6), (1, 3)),
        ref(7, (amount, 6), (6, 1)),  # of a tensor that was there
    ):
        with pytest.raises(LoweringError, match="in memory that is not of these rows"):
            found.reference(wrong)
    found.check(rows)
    found.check(ref(3, (2, 6), (6, 1)))
    with pytest.raises(LoweringError, match="some of the rows"):
        found.check(ref(1, (2, 6), (6, 1)))
