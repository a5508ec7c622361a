"""What stays real in a trace: the integers of DistributedDataParallel's Reducer, and nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from orchestrator.capture.bookkeeping import Bookkeeping

ZEROS: Any = torch.ops.aten.zeros.default
INTEGERS = {"dtype": torch.int64}


def kept(book: Bookkeeping) -> torch.Tensor:
    """An integer tensor that the Reducer made."""
    with book.building():
        made = book.run(ZEROS, ([2],), INTEGERS)
    assert isinstance(made, torch.Tensor)
    return made


def test_integers_are_the_reducers_only_while_it_makes_them() -> None:
    """Otherwise a tensor of the model would be real, and its values those of this one trace."""
    book = Bookkeeping()
    assert not book.concerns(ZEROS, ([2],), INTEGERS)
    with book.building():
        assert book.concerns(ZEROS, ([2],), INTEGERS)
        assert not book.concerns(ZEROS, ([2],), {"dtype": torch.float32})
        assert not book.concerns(torch.ops.aten.arange.default, (2,), INTEGERS)
    assert not book.concerns(ZEROS, ([2],), INTEGERS)
    kept(book)
    assert not book.concerns(ZEROS, ([2],), INTEGERS), "one that a step makes later"


def test_an_op_is_the_reducers_if_all_its_tensors_are() -> None:
    book = Bookkeeping()
    own, other = kept(book), torch.zeros(2, dtype=torch.int64)
    fake = FakeTensorMode().from_tensor(other)
    add: Any = torch.ops.aten.add.Tensor
    assert isinstance(fake, FakeTensor)
    assert book.concerns(add, (own, own), {}) and book.concerns(add, (own.view(2, 1), 1), {})
    for tensors in ((own, other), (other, own), (fake, fake), (own, fake)):
        assert not book.concerns(add, tensors, {})
    book.clear()
    assert not book.concerns(add, (own, own), {}), "another world knows none of them"
