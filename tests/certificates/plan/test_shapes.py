"""Shapes of results are those that numpy gives its arrays."""

from __future__ import annotations

import numpy as np
import pytest

from certificates.plan.shapes import concatenated, contracted, gathered, padded, reduced, transposed

X = np.zeros((2, 3, 4, 5))


@pytest.mark.parametrize("perm", [(0, 1, 2, 3), (3, 0, 2, 1), (1, 0, 3, 2)])
def test_transposed(perm: tuple[int, ...]) -> None:
    assert transposed(X.shape, perm) == X.transpose(perm).shape


def test_padded() -> None:
    low, high = (1, 0, 2, 0), (0, 0, 3, 7)
    assert padded(X.shape, low, high) == np.pad(X, list(zip(low, high, strict=True))).shape


@pytest.mark.parametrize("dim", range(4))
def test_concatenated_along_every_dimension(dim: int) -> None:
    parts = [X, X.take([0], dim), X.take([0, 1], dim)]
    assert concatenated([p.shape for p in parts], dim) == np.concatenate(parts, dim).shape


@pytest.mark.parametrize("dims", [(0,), (3,), (1, 2), (0, 1, 2, 3)])
def test_reduced(dims: tuple[int, ...]) -> None:
    assert reduced(X.shape, dims) == X.sum(dims).shape


@pytest.mark.parametrize("axis", range(4))
def test_rows_along_an_axis_have_the_shape_of_the_indices_in_its_place(axis: int) -> None:
    index = np.zeros((6, 7), dtype=np.int64)
    assert gathered(X.shape, index.shape, axis, 0) == X.take(index, axis).shape


def test_batch_dimensions_of_a_gather_are_shared() -> None:
    index = np.zeros((2, 3, 9), dtype=np.int64)
    assert gathered(X.shape, index.shape, 2, 2) == (2, 3, 9, 5)


@pytest.mark.parametrize(
    ("left", "right", "contract", "batch", "formula"),
    [
        ((2, 3), (3, 4), ((1,), (0,)), ((), ()), "ac,cb->ab"),
        ((5, 2, 3), (4, 5, 3), ((2,), (2,)), ((0,), (1,)), "zac,bzc->zab"),
        ((2, 3, 4), (4, 6, 3), ((1, 2), (2, 0)), ((), ()), "acd,dbc->ab"),
        ((2,), (3,), ((), ()), ((), ()), "a,b->ab"),
        ((6, 5, 2), (5, 6, 3), ((), ()), ((1, 0), (0, 1)), "yza,zyb->zyab"),
    ],
)
def test_contracted(left, right, contract, batch, formula: str) -> None:  # type: ignore[no-untyped-def]
    """Batch dimensions come first, in the order in which they are paired."""
    result = np.einsum(formula, np.zeros(left), np.zeros(right))
    assert contracted(left, right, contract, batch) == result.shape
