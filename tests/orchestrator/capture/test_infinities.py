"""Comparisons with an infinity, as attention asks which rows are masked: answered by the mask.

The checker refuses a plan in which an infinite literal reaches a comparison, and PyTorch's attention without
a fused kernel (heads of keys and values of unlike width) compares.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from orchestrator.capture.errors import CaptureError

from .conftest import agree, lower, to_program

INF = float("inf")


def scores() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4) > 0


def infinite_operands(program: object) -> list[str]:
    """Comparisons that read an infinite literal."""
    ops = {op.out: op for op in program.ops}  # type: ignore[attr-defined]
    return [
        op.out
        for op in ops.values()
        if op.name == "compare"
        and any(v in ops and ops[v].attrs.get("value") in ("inf", "-inf") for v in op.ins)
    ]


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, m: x.masked_fill(m, -INF) == -INF,
        lambda x, m: torch.where(m, -INF, torch.where(x > 1, x, -INF)) == -INF,
        lambda x, m: (x + torch.zeros_like(x).masked_fill(m, -INF)).t().reshape(2, 6)[:, 1:4] == -INF,
        lambda x, m: (x.masked_fill(m, -INF) + x.masked_fill(x > 0, -INF)) != -INF,
        lambda x, m: x.masked_fill(m, -INF)[None].expand(2, 3, 4) == -INF,
        lambda x, m: x.masked_fill(m, INF) == INF,
        lambda x, m: x.masked_fill(m, INF) == -INF,
        lambda x, m: (x * 2).exp() == -INF,
        lambda x, m: x.masked_fill(m, -INF).exp() == INF,
        lambda x, m: x.masked_fill(m, INF).exp() == INF,
        lambda x, m: x + m.double().log() == -INF,
    ],
)
def test_the_mask_says_where_a_tensor_is_infinite(ask: object) -> None:
    program = agree(ask, *scores())  # type: ignore[arg-type]
    assert not infinite_operands(program)


def test_infinities_that_no_mask_shows_are_refused() -> None:
    with pytest.raises(CaptureError, match="what no mask shows to be infinite"):
        agree(lambda x, m: x.masked_fill(m, -INF).amax(1) == -INF, *scores())


@pytest.mark.parametrize(
    "add",
    [
        lambda x, m: x.masked_fill(m, -INF) + torch.zeros_like(x).masked_fill(x > 1, -INF),
        lambda x, m: x + (torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -INF)[:3] + _pad(x, m)),
        lambda x, m: _pad(x, m).t().reshape(3, 4) + torch.where(m, x, -INF)[:, :1],
        lambda x, m: x.masked_fill_(m, -INF).add_(x.masked_fill(x > 0, -INF)),
    ],
)
def test_masks_that_are_added_are_one_mask(add: object) -> None:
    """A causal mask and one for padding: the checker refuses a sum of two infinite literals."""
    program = agree(lambda x, m: (add(x, m)).exp(), *scores())  # type: ignore[operator]
    infinite: set[str] = set()
    for op in program.ops:
        if op.attrs.get("value") == "-inf" or any(v in infinite for v in op.ins):
            assert op.name != "add" or len(infinite.intersection(op.ins)) == 1
            infinite |= {op.out} if op.name != "exponential" else set()
    assert infinite


def _pad(x: Tensor, m: Tensor) -> Tensor:
    return torch.zeros_like(x).masked_fill(m, -INF)


def test_a_sum_of_both_infinities_is_no_number() -> None:
    """-inf + inf is NaN, which equals nothing; the mask of the one said that it is -inf."""
    with pytest.raises(CaptureError, match="infinities of both signs"):
        agree(lambda x, m: x.masked_fill(m, -INF) + x.masked_fill(x > 0, INF) == -INF, *scores())


def test_attention_with_values_of_another_width_compares_no_infinities() -> None:
    """Latent attention: no fused kernel takes it."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        return (out, *torch.autograd.grad((out * out).sum(), leaves))

    shapes = ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 5))
    program = agree(run, *(torch.randn(*s, dtype=torch.float64) for s in shapes), tolerance=1e-6)
    assert not infinite_operands(program)


def test_what_is_spread_is_joined_before_it_is_spread() -> None:
    """A mask of positions stays one: heads that it is spread over are other ones on each rank."""
    program = agree(lambda x, m: m[:, None].expand(3, 5, 4).all(-1), *scores())
    assert [(op.name, str(op.type)) for op in program.ops] == [
        ("reduce", "i1[3]"),
        ("broadcast_in_dim", "i1[3,5]"),
    ]
    agree(lambda x, m: m[:, :1].expand(3, 4).all(1, keepdim=True), *scores())
    agree(lambda x, m: m[None].expand(2, 3, 4).any(0), *scores())


def reached_by_infinities(program: object) -> set[str]:
    """Ops that read an infinite literal, but for those that the checker lets it pass."""
    infinite, found = set[str](), set[str]()
    for op in program.ops:  # type: ignore[attr-defined]
        if op.attrs.get("value") == "-inf":
            infinite.add(op.out)
        elif infinite.intersection(op.ins):
            if op.name in ("gather", "dot_general") or (op.name == "reduce" and op.attrs["kind"] == "add"):
                found.add(op.name)
            elif op.name not in ("exponential", "reduce"):
                infinite.add(op.out)
    return found


def themselves(x: Tensor) -> Tensor:
    """Similarities of three rows with four, of which the first three are they."""
    return x.masked_fill(torch.eye(3, 4).bool(), -INF)


PICKS = [
    lambda x, at: F.cross_entropy(themselves(x), at),
    lambda x, at: F.cross_entropy(torch.cat([x, themselves(x)], 1), at + 4),
    lambda x, at: F.cross_entropy(torch.cat([x, themselves(x)], 1), at, reduction="none"),
    lambda x, at: F.log_softmax(themselves(x), -1)[torch.arange(3), at],
    lambda x, at: torch.logsumexp(themselves(x), -1) - themselves(x).gather(1, at[:, None])[:, 0],
    lambda x, at: (x.exp() - themselves(x)).gather(1, at[:, None]),
]


@pytest.mark.parametrize("pick", PICKS)
def test_a_label_is_picked_of_numbers(pick: object) -> None:
    """A row is masked with itself, and the label is another place: no infinity is looked up."""
    program = agree(lambda x: pick(x, torch.arange(3) + 1), scores()[0])  # type: ignore[operator]
    assert reached_by_infinities(program) == set()


@pytest.mark.parametrize("pick", [PICKS[0], PICKS[3], PICKS[4]])
def test_a_label_that_may_be_masked_is_picked_of_what_there_is(pick: object) -> None:
    """The third row's label is masked: the loss is infinite, and the checker is to say so."""
    labels = torch.tensor([1, 2, 2])
    program = to_program(lower(lambda x: pick(x, torch.arange(3) * 0 + labels), scores()[0]))  # type: ignore[operator]
    assert "gather" in reached_by_infinities(program)
