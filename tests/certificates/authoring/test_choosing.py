"""The ``k`` largest of a row, against sorting, with equal numbers and with what is not allowed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.authoring.choosing import top_k
from certificates.errors import FormatError
from orchestrator.evaluating import interpreter
from tests.orchestrator.plans import alone


def chosen(rows: np.ndarray, k: int, allowed: np.ndarray | None = None) -> dict[str, np.ndarray]:
    b, size = ProgramBuilder(), ",".join(map(str, rows.shape))
    x = b.input("x", f"f32[{size}]")
    found = top_k(b, x, k, None if allowed is None else b.input("allowed", f"i1[{size}]"))
    for name, value in (("values", found.values), ("ids", found.ids), ("mask", found.mask)):
        b.output(name, value)
    inputs = {"x": rows} | ({} if allowed is None else {"allowed": allowed})
    return interpreter.run_specification(alone(b), inputs)


def sorted_ids(row: np.ndarray, allowed: np.ndarray, k: int) -> list[int]:
    return np.argsort(-np.where(allowed, row, -np.inf), kind="stable")[:k].tolist()


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_every_row_of_few_numbers_is_sorted_stably(n: int, k: int) -> None:
    """All rows of three values and all ways to allow some of them."""
    rows = np.array(list(itertools.product((-1.0, 0.0, 2.5), repeat=n)))
    for allow in itertools.product((False, True), repeat=n):
        allowed = np.broadcast_to(np.array(allow), rows.shape)
        found = chosen(rows, k, allowed)
        want = [sorted_ids(r, a, k) for r, a in zip(rows, allowed, strict=True)]
        assert found["ids"].tolist() == want
        assert found["values"].tolist() == np.take_along_axis(rows, np.array(want), 1).tolist()
        assert (np.argmax(found["mask"], -1) == want).all()
        assert (found["mask"].sum(-1) == 1).all()


def test_without_a_restriction_all_is_allowed_and_dimensions_before_the_last_are_kept() -> None:
    x = np.random.default_rng(0).integers(0, 4, (2, 3, 5)).astype(float)
    found = chosen(x, 3)
    assert found["ids"].shape == (2, 3, 3)
    assert found["mask"].shape == (2, 3, 3, 5)
    want = np.argsort(-x, axis=-1, kind="stable")[..., :3]
    assert (found["ids"] == want).all()


@pytest.mark.parametrize("k", [0, 4])
def test_more_than_there_are_cannot_be_chosen(k: int) -> None:
    b = ProgramBuilder()
    with pytest.raises(FormatError, match="largest along its last dimension"):
        top_k(b, b.input("x", "f32[2,3]"), k)


def test_what_is_allowed_is_said_of_every_element() -> None:
    b = ProgramBuilder()
    with pytest.raises(FormatError, match="does not say what"):
        top_k(b, b.input("x", "f32[2,3]"), 1, b.input("allowed", "i1[3]"))


def test_ops_remember_the_line_that_asked_for_the_choice() -> None:
    b = ProgramBuilder()
    b.output("ids", top_k(b, b.input("x", "f32[2,3]"), 1).ids)
    assert {source.rsplit("/", 1)[-1] for source in b.build().sources} == {"test_choosing.py"}
