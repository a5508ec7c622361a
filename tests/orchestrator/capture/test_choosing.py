"""The largest of a row, and rows in order."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.errors import CaptureError

x = torch.tensor([[0.5, -1.0, 2.0, 0.25], [3.0, 1.0, -2.0, 0.0]], dtype=torch.float64)
same = torch.tensor([[1, 3, 1, 3, 2], [0, 0, 0, 0, 0]])
TIES = "{}: ties are an assumption: of equal numbers the one that stands first comes first"


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("largest", [True, False])
def test_values_and_ids_come_in_order(agrees, dim: int, largest: bool) -> None:
    agrees(lambda a: torch.topk(a, 2, dim, largest), x)
    agrees(lambda a: torch.sort(a, dim, largest), x)


@pytest.mark.parametrize("descending", [True, False])
def test_a_stable_order_keeps_equal_numbers_as_they_stand(agrees, lowered, descending: bool) -> None:
    order = lambda a: torch.argsort(a, dim=-1, descending=descending, stable=True)  # noqa: E731
    agrees(order, same)
    agrees(order, same > 1)
    assert lowered(order, same).assumed == ()


def test_a_scalar_is_its_own_order(agrees) -> None:
    agrees(lambda a: (*torch.sort(a), *torch.topk(a, 1)), torch.tensor(2.0, dtype=torch.float64))


def test_ties_are_assumed_where_pytorch_promises_nothing(lowered) -> None:
    assert lowered(lambda a: torch.topk(a, 2)[1], x).assumed == (TIES.format("topk"),)
    assert lowered(lambda a: torch.sort(a)[0], x).assumed == (TIES.format("sort"),)
    assert lowered(lambda a: torch.sort(a, stable=False)[0], x).assumed == (TIES.format("sort"),)
    unsorted = lowered(lambda a: torch.topk(a, 2, sorted=False)[1], x).assumed
    assert unsorted == (
        "topk(sorted=False): order and ties are assumptions: as sorted, of equal numbers the first first",
    )


def test_a_choice_that_no_output_rests_on_assumes_nothing(lowered) -> None:
    def unread(a):
        torch.topk(a, 2)
        return a + 1

    assert lowered(unread, x).assumed == ()


@pytest.mark.parametrize("keepdim", [True, False])
def test_the_extreme_of_what_a_mask_leaves_is_found_by_the_mask(agrees, lowered, keepdim: bool) -> None:
    """As a router takes its second choice: the largest without the first. A row may be masked altogether."""

    def second(a):
        first = torch.nn.functional.one_hot(a.argmax(-1), 4).bool()
        return a.masked_fill(first, -torch.inf).argmax(-1, keepdim=keepdim)

    agrees(second, x)
    agrees(lambda a: torch.where(a > 2.5, torch.inf, a).argmin(0, keepdim), x)
    agrees(lambda a: a.masked_fill(a.amax(1, True) > 2.5, -torch.inf).argmax(1, keepdim), x)
    agrees(lambda a: a.masked_fill(a > 2.5, -torch.inf).t().max(0, keepdim)[1], x)
    agrees(lambda a: a.masked_fill(a > 0.3, -torch.inf).argmax(), x)
    assert not any(d.name == "constant" and d.attr("value") == "-inf" for d in lowered(second, x).drafts)


def test_what_a_mask_forbids_is_chosen_last(agrees, lowered) -> None:
    """By the mask: no infinity is compared, which would have no meaning in a plan."""
    forbidden = lambda a: torch.topk(a.masked_fill(a > 2.5, -torch.inf), 3)[1]  # noqa: E731
    agrees(lambda a: forbidden(a)[1], x)
    assert not any(d.name == "constant" and d.attr("value") == "-inf" for d in lowered(forbidden, x).drafts)
    last = lambda a: torch.topk(a.masked_fill(a > 2.5, torch.inf), 3, largest=False)[1][1]  # noqa: E731
    agrees(last, x)
    agrees(lambda a: torch.topk(torch.where(a < 2.5, a, -torch.inf).t(), 3, 0)[1][:, 1], x)
    down = lambda a: torch.topk(a.masked_fill(a > 2.5, -torch.inf), 1, 0)[1]  # noqa: E731
    agrees(down, x)
    assert not any(d.name == "constant" and d.attr("value") == "-inf" for d in lowered(down, x).drafts)
    grouped = lambda a: torch.where(a < 2.5, a, -torch.inf).view(2, 2, 2).flatten(1)  # noqa: E731
    agrees(lambda a: torch.topk(grouped(a), 3)[1][1], x)


def test_another_infinity_stays_in_the_comparison(lowered) -> None:
    """It would be chosen first. What a plan cannot say of it, its checker says."""
    drafts = lowered(lambda a: torch.topk(a.masked_fill(a > 2.5, torch.inf), 3)[1], x).drafts
    assert any(d.name == "constant" and d.attr("value") == "inf" for d in drafts)


def test_what_is_looked_up_at_a_choice_is_a_product_with_its_mask(agrees, lowered) -> None:
    """So shares of a sum may be looked up before they are added."""
    scores = lambda a: a.square().gather(1, torch.topk(a, 2)[1])  # noqa: E731
    agrees(scores, x)
    names = [d.name for d in lowered(scores, x).drafts]
    assert "dot_general" in names and "gather" not in names
    counted = lambda a: a.gather(1, torch.arange(4).expand(2, 4))  # noqa: E731
    assert "gather" in [d.name for d in lowered(counted, x).drafts]
    integers = lambda a: torch.topk(a, 2)[0]  # noqa: E731
    agrees(integers, torch.tensor([[3, 1, 2], [-1, 4, 0]]))
    assert "gather" in [d.name for d in lowered(integers, same).drafts]


def test_values_beside_infinities_are_looked_up(agrees, lowered) -> None:
    """Their product with 0 has no meaning."""
    values = lambda a: torch.topk(a.masked_fill(a > 2.5, -torch.inf), 3)[0]  # noqa: E731
    agrees(values, x)
    assert "gather" in [d.name for d in lowered(values, x).drafts]


def test_values_may_be_written_at_a_choice(agrees) -> None:
    """No two ids of a row are equal, behind slices and moves as well."""
    ids = lambda a: torch.topk(a, 3)[1]  # noqa: E731
    agrees(lambda a: torch.zeros_like(a).scatter(1, ids(a), a[:, :3]), x)
    agrees(lambda a: torch.zeros_like(a).scatter(1, ids(a)[:, 1:], a[:, :2]), x)
    agrees(lambda a: torch.zeros_like(a).t().scatter(0, ids(a).t(), a[:, :3].t()), x)
    agrees(lambda a: a.index_put((torch.arange(2)[:, None], ids(a)), -a[:, :3]), x)


@pytest.mark.parametrize(
    "index",
    [
        lambda a: torch.topk(a, 2)[1].repeat(1, 2),
        lambda a: torch.topk(a, 2, 0)[1],
        lambda a: torch.topk(a, 2)[1] * 0,
    ],
)
def test_values_at_ids_of_which_two_may_be_equal_are_refused(lowered, index) -> None:
    """Twice the same choice, ids of another dimension, and what is made of ids by arithmetic."""
    with pytest.raises(CaptureError, match="two may be equal"):
        lowered(lambda a: torch.zeros_like(a).scatter(1, index(a), a[:, : index(a).shape[1]] * 2), x)


def test_two_choices_in_one_write_are_refused(lowered) -> None:
    """Each tells its axis apart for each place of the other, which together says nothing."""

    def written(a):
        down, across = torch.topk(a, 2, 0)[1], torch.topk(a[:, :2], 2, 1)[1]
        return torch.zeros(2, 2, dtype=a.dtype).index_put((down[:, :2], across), a[:, :2])

    with pytest.raises(CaptureError, match="two may be equal"):
        lowered(written, x)
