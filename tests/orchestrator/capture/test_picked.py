"""Rows that a mask picks (``torch.where(ids == e)``): what is added up over them, and all else refused.

Rows of a loop over experts. A plan has a row for each element of the mask; what is not there may reach no
sum, and no row may see another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder
from orchestrator.capture.errors import CaptureError, LoweringError
from orchestrator.capture.lowering.picked import RowByRow, _added_up, _axes, _looked_up

from .conftest import agree

TOKENS, WIDTH, EXPERTS, HIDDEN = 6, 5, 3, 7


def operands() -> list[Tensor]:
    shapes = ((TOKENS, WIDTH), (TOKENS, EXPERTS), (EXPERTS, HIDDEN, WIDTH), (EXPERTS, WIDTH, HIDDEN))
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


def with_gradients(layer: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def run(*given: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in given]
        out = layer(*leaves)
        return (out, *torch.autograd.grad((out * out).sum(), leaves))

    return run


def by_token(ids: Tensor, e: int) -> tuple[Tensor, Tensor]:
    token, choice = torch.where(ids == e)
    return token, choice


def by_choice(ids: Tensor, e: int) -> tuple[Tensor, Tensor]:
    """As Mixtral of transformers has it: a one-hot map whose choices come first."""
    choice, token = torch.where(F.one_hot(ids, EXPERTS).permute(2, 1, 0)[e])
    return token, choice


def by_nonzero(ids: Tensor, e: int) -> tuple[Tensor, Tensor]:
    places = (ids == e).nonzero()
    return places[:, 0], places[:, 1]


def added(out: Tensor, token: Tensor, rows: Tensor) -> Tensor:
    return out.index_add(0, token, rows)


def put(out: Tensor, token: Tensor, rows: Tensor) -> Tensor:
    return out.index_put((token,), rows, accumulate=True)


def scattered(out: Tensor, token: Tensor, rows: Tensor) -> Tensor:
    return out.scatter_add(0, token[:, None].expand(-1, out.shape[1]), rows)


@pytest.mark.parametrize("back", [added, put, scattered])
@pytest.mark.parametrize("places", [by_token, by_choice, by_nonzero])
def test_a_loop_over_experts_computes_what_pytorch_does(places: Any, back: Any) -> None:
    def layer(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
        best, ids = torch.topk(scores, 2)
        out = torch.zeros_like(x)
        for e in range(EXPERTS):
            token, choice = places(ids, e)
            rows = F.linear(F.silu(F.linear(x[token], up[e])), down[e])
            out = back(out, token, rows * best[token, choice, None])
        return out

    agree(with_gradients(layer), *operands())


def test_rows_of_one_choice_and_of_any_mask() -> None:
    """A mask of tokens alone, made of numbers and not of a choice."""

    def layer(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
        (token,) = torch.where(scores[:, 0] > 0)
        rows = F.layer_norm(F.linear(x[token], up[0]), (HIDDEN,)).softmax(-1)
        rows = F.linear(rows, down[0]) * scores[token, :1]
        return torch.zeros_like(x).index_add(0, token, rows)

    agree(with_gradients(layer), *operands())


@pytest.mark.parametrize("kind", [torch.float64, torch.int64])
def test_true_is_what_is_not_zero(kind: torch.dtype) -> None:
    """A mask of numbers: rows whose number is 2 count once, as all others."""

    def layer(x: Tensor, marks: Tensor) -> Tensor:
        return x[torch.where(marks)[0]].sum(0)

    agree(layer, operands()[0], torch.tensor([0, 2, 0, -3, 1, 0], dtype=kind))


# --- masks as indices --------------------------------------------------------------------------------------


def of_best(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """One expert for each token, whose rows are read and written by the mask itself."""
    best, ids = scores.softmax(-1).max(-1)
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        chosen = ids == e
        out[chosen] = F.linear(F.silu(F.linear(x[chosen], up[e])), down[e]) * best[chosen, None]
    return out + 0 * scores.sum()


def again(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """What one mask wrote is written again, by it and by one that is true with it."""
    ids, out = scores.max(-1).indices, torch.zeros_like(x)
    for mask in (ids == 0, ids == 1, ids == 0, x[:, 0] > 0, ids == 2):
        out[mask] = x[mask] + 2 * out[mask] + down[0].sum()
    return out + 0 * (scores.sum() + up.sum())


def changed(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Rows and single elements are changed where they stand."""
    rows, elements = scores[:, 0] > 0, scores > 0
    y, z = x.clone(), scores.clone()
    y[rows] = y[rows] * 2 + 1
    y[rows] += x[rows].sin()
    z[elements] = z[elements].tanh()
    z.index_put_((elements,), scores[elements], accumulate=True)
    return y.sum(1) + z.sum(1) + 0 * (up.sum() + down.sum())


def labelled(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A mean over the rows of a mask, the rest of which a label leaves out, and a sum of smoothed ones."""
    rows, logits = x[:, 3] > 0, x[:, :3] * scores
    labels = torch.arange(TOKENS).clamp(max=2)
    total = F.cross_entropy(logits[rows], labels[rows], ignore_index=1)
    for smoothing in (0.0, 0.1):
        total = total + F.cross_entropy(
            logits[rows], labels[rows], reduction="sum", label_smoothing=smoothing
        )
    return total + 0 * (up.sum() + down.sum())


def averaged(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Divided by as many as there are, also in gradients; a row's own mean is of all of it."""
    rows, y = x[:, 1] > 0, x.sin()
    means = x[rows].mean() + x[rows].mean(0, keepdim=True).sum() + y[rows].mean(-1).sum()
    errors = F.mse_loss(x[rows], y[rows]) + F.mse_loss(y[rows], x[rows], reduction="sum")
    return means + errors + (x[rows] / 3).sum() + 0 * (scores.sum() + up.sum() + down.sum())


@pytest.mark.parametrize("layer", [of_best, again, changed, labelled, averaged])
def test_a_mask_is_an_index(layer: Callable[..., Tensor]) -> None:
    agree(with_gradients(layer), *operands())


def through_data(mask: Tensor) -> None:
    mask.data.logical_not_()


def in_place(mask: Tensor) -> None:
    mask.logical_not_()


@pytest.mark.parametrize(
    ("write", "words"),
    [(in_place, "rows that two masks pick"), (through_data, "which was written meanwhile")],
)
def test_rows_before_and_after_a_mask_is_written_are_not_the_same(
    write: Callable[[Tensor], None], words: str
) -> None:
    """Whatever wrote it, and whether or not PyTorch counts that as a version of it."""

    def run(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
        mask = scores[:, 0] > 0
        before = x[mask]
        write(mask)
        return (before * x[mask]).sum(0)

    with pytest.raises(CaptureError, match=words):
        agree(run, *operands())


Way = Callable[[Tensor, Tensor, Tensor], Tensor]
ADDED: dict[str, Way] = {
    "squares of all elements": lambda x, rows, token: (rows**2).sum(),
    "shares of a mean": lambda x, rows, token: (rows / rows.shape[0]).sum(0),
    "as many ones as rows": lambda x, rows, token: rows.new_ones(rows.shape[0]).sum(),
    "numbers of tokens": lambda x, rows, token: token.sum(),
    "products of rows": lambda x, rows, token: rows.t() @ rows,
    "the same tokens of another tensor": lambda x, rows, token: (rows * x.sin()[token]).sum(0),
    "a mean": lambda x, rows, token: rows.mean(0),
    "a mean of everything": lambda x, rows, token: rows.mean(),
    "some columns": lambda x, rows, token: rows[:, 1:3].sum(0),
    "one row, for each": lambda x, rows, token: (rows * x[0].expand(rows.shape[0], WIDTH)).sum(0),
}


def one(way: Way) -> Callable[..., Tensor]:
    def run(x: Tensor, scores: Tensor, up: Tensor, down: Tensor) -> Tensor:
        token, _ = torch.where(torch.topk(scores, 2).indices == 1)
        return way(x, x[token], token)

    return run


@pytest.mark.parametrize("way", ADDED)
def test_rows_are_added_up(way: str) -> None:
    agree(one(ADDED[way]), *operands())


def first_is_zero(x: Tensor, rows: Tensor, token: Tensor) -> Tensor:
    rows = rows.clone()
    rows[0] = 0
    return rows.sum(0)


def in_front_of_a_buffer(x: Tensor, rows: Tensor, token: Tensor) -> Tensor:
    buffer = torch.zeros_like(x)
    buffer.narrow(0, 0, rows.shape[0]).copy_(rows)
    return buffer


#: What would see another row, the number of rows, or rows that are not there.
ROW = "does not act on each row by itself"
PART, OTHER = "some of the rows whose number", "in memory that is not of these rows"
REFUSED: dict[str, tuple[Way, str]] = {
    "a mean of another kind": (lambda x, rows, token: F.huber_loss(rows, rows.sin()), ROW),
    "the gradient of such a mean": (
        lambda x, rows, token: torch.ops.aten.huber_loss_backward(
            x.new_ones(()), rows, rows.sin(), 1, 1.0
        ).sum(0),
        ROW,
    ),
    "a maximum": (lambda x, rows, token: rows.amax(0), ROW),
    "sums of the rows before": (lambda x, rows, token: rows.cumsum(0).sum(0), ROW),
    "rows the other way round": (lambda x, rows, token: (rows * rows.flip(0)).sum(0), ROW),
    "shares of a sum over rows": (lambda x, rows, token: rows.softmax(0).sum(0), ROW),
    "rows in order": (lambda x, rows, token: (rows.sort(0)[0] * rows).sum(0), ROW),
    "the number of each row": (
        lambda x, rows, token: (rows * torch.arange(rows.shape[0])[:, None]).sum(0),
        ROW,
    ),
    "rows written": (lambda x, rows, token: x.clone().index_put((token,), rows), ROW),
    "a mean of whole numbers": (lambda x, rows, token: (token / token.shape[0]).sum(), "a number of rows"),
    "a mean in another type": (lambda x, rows, token: rows.mean(0, dtype=torch.float32), ROW),
    "divided by the number of other rows": (
        lambda x, rows, token: (rows / torch.where(x[:, 0] > 0)[0].shape[0]).sum(0),
        "a number of rows",
    ),
    "truth values added": (lambda x, rows, token: (rows > 0).sum(0), ROW),
    "is any true": (lambda x, rows, token: (rows > 0).any(0), ROW),
    "how often tokens occur": (lambda x, rows, token: torch.bincount(token, minlength=TOKENS), ROW),
    "divided by their number": (lambda x, rows, token: rows.sum(0) / rows.shape[0], "a number of rows"),
    "rows of two masks": (
        lambda x, rows, token: (rows + x[torch.where(x[:, 0] > 0)[0]]).sum(0),
        "rows that two masks pick",
    ),
    "rows twice": (lambda x, rows, token: torch.cat([rows, rows]).sum(0), "as many rows as a routing"),
    "the first row": (lambda x, rows, token: rows[0] * 2, PART),
    "two rows": (lambda x, rows, token: rows.narrow(0, 0, 2).sum(0), PART),
    "two rows by strides": (lambda x, rows, token: rows.as_strided((2, WIDTH), (WIDTH, 1)).sum(0), PART),
    "the first row is the result": (lambda x, rows, token: rows[0], PART),
    "the first row is written": (first_is_zero, PART),
    "the first row, for each": (lambda x, rows, token: rows[0].expand_as(rows).sum(0), OTHER),
    "as many rows of another tensor": (
        lambda x, rows, token: (rows * x.narrow(0, 0, rows.shape[0])).sum(0),
        OTHER,
    ),
    "the front of a buffer": (in_front_of_a_buffer, OTHER),
    "rows of rows": (lambda x, rows, token: rows[torch.where(rows[:, 0] > 0)[0]].sum(0), "among rows"),
    "rows by rows": (lambda x, rows, token: (rows @ rows.t()).sum(), "a size"),
}


@pytest.mark.parametrize("way", REFUSED)
def test_all_else_is_refused_by_name(way: str) -> None:
    run, words = REFUSED[way]
    with pytest.raises(CaptureError, match=words):
        agree(one(run), *operands())


def test_a_mask_of_fewer_rows_is_no_index() -> None:
    with pytest.raises(DynamicOutputShapeException, match="nonzero"):
        agree(one(lambda x, rows, token: x[x[:4, 0] > 0].sum(0)), *operands())


def test_whether_there_are_rows_is_no_question() -> None:
    """A loop that leaves out experts without tokens runs other ops for another routing."""
    with pytest.raises(Exception, match=r"data-dependent|decides what runs next"):
        agree(one(lambda x, rows, token: rows.sum(0) if rows.shape[0] else x[0]), *operands())


def test_places_are_known_if_they_are_all_rows_in_the_order_of_some_axes() -> None:
    grid = torch.arange(6).reshape(2, 3)
    assert _axes(grid.flatten(), (2, 3), 6) == [0, 1]
    assert _axes(torch.arange(6).reshape(3, 2).t().flatten(), (2, 3), 6) == [1, 0]
    assert _axes(torch.tensor([0, 0, 0, 1, 1, 1]), (2, 3), 2) == [0]
    assert _axes(torch.tensor([0, 1, 2, 0, 1, 2]), (2, 3), 3) == [1]
    assert _axes(torch.tensor([0, 1, 2, 0, 1, 2]), (2, 3), 4) is None  # the last row is nobody's
    assert _axes(torch.tensor([1, 2, 0, 1, 2, 0]), (2, 3), 3) is None
    assert _axes(grid.flatten().flip(0), (2, 3), 6) is None


def test_rows_at_unknown_places_are_left_to_the_op() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (3, 2)))
    assert _looked_up(b, x, torch.tensor([1, 2, 0]), (3,)) is None
    assert _added_up(b, x, torch.tensor([1, 2, 0]), (3,), 3) is None


def test_what_is_not_made_of_rows_must_be_alike_in_all_of_them() -> None:
    b = Builder()
    rows = b.unary("negate", b.input("x", TensorType("f32", (4, 2))))
    line = b.iota(0, (4, 2), "f32")
    other = b.iota(1, (4, 2), "f32")
    RowByRow(b, {rows.name: 0}, "op").check(b.binary("add", rows, other), 0)
    for value in (line, b.binary("add", rows, line)):
        with pytest.raises(LoweringError, match="op does not act on each row"):
            RowByRow(b, {rows.name: 0}, "op").check(value, 0)
    with pytest.raises(LoweringError, match="op does not act on each row"):
        RowByRow(b, {rows.name: 0}, "op").check(b.transpose(rows, (1, 0)), 0)
