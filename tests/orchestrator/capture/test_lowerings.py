"""Matrix products, reductions, indexing, creation and optimizer ops against the kernels."""

import pytest
import torch
import torch.nn.functional as F

from orchestrator.capture.errors import LoweringError, UnsupportedOpError

x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
z = torch.randn(2, 3, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a @ b,
        lambda a, b: torch.addmm(b.sum(0), a, b, beta=0.5, alpha=2),
        lambda a, b: torch.bmm(a.expand(2, 3, 4), b.expand(2, 4, 5)),
        lambda a, b: a @ b[:, 0],
        lambda a, b: F.linear(a, b.t(), b.sum(0)),
    ],
)
def test_linear(agrees, function) -> None:
    agrees(function, x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.sum(),
        lambda a: a.sum((0, 2), keepdim=True),
        lambda a: a.mean(-1, keepdim=True) + a.mean(),
        lambda a: (a.mean(), a.mean(1)),
        lambda a: a.amax(1) + a.amin(1),
        lambda a: (a > 0).sum(),
        lambda a: torch.linalg.vector_norm(a, dim=(0, 1)).clamp(1.5, 2.0),
        lambda a: a * torch.clamp(1 / (torch.linalg.vector_norm(a) + 1e-6), max=1.0),
        lambda a: a.softmax(-1) + a.log_softmax(1),
    ],
)
def test_reductions(agrees, function) -> None:
    agrees(function, z)


def test_softmax_gradient(agrees) -> None:
    def gradient(a, g):
        a = a.detach().requires_grad_()
        return torch.autograd.grad((a.softmax(-1), a.log_softmax(-1)), a, (g, g))

    agrees(gradient, z, torch.randn_like(z))


def test_embedding_and_its_gradient(agrees) -> None:
    def step(weight, index, g):
        weight = weight.detach().requires_grad_()
        out = F.embedding(index, weight)
        return out, *torch.autograd.grad(out, weight, g)

    agrees(step, y, torch.tensor([[0, 3], [3, 1]]), torch.randn(2, 2, 5, dtype=torch.float64))


def test_the_padding_row_of_an_embedding_gets_no_gradient(agrees) -> None:
    index = torch.tensor([[0, 3], [3, 1]])
    backward = torch.ops.aten.embedding_dense_backward
    agrees(lambda g, i: backward(g, i, 4, 3, False), torch.randn(2, 2, 5, dtype=torch.float64), index)


def test_a_masked_embedding_gradient_masks_the_one_hot_rows(agrees) -> None:
    index = torch.tensor([[0, 3, 1], [2, 2, 4]])

    def function(grad, index, keep):
        masked = grad * keep.unsqueeze(-1).to(grad.dtype)
        return torch.ops.aten.embedding_dense_backward(masked, index.clamp(max=3), 4, -1, False)

    program = agrees(function, torch.randn(2, 3, 5, dtype=torch.float64), index, index < 4)
    (dot,) = [op for op in program.ops if op.name == "dot_general"]
    assert next(op for op in program.ops if op.out == dot.ins[0]).name == "multiply"


def put(g, keep):
    g = g.clone()
    g[~keep, :] = 0.0
    return g


@pytest.mark.parametrize(
    "masked",
    [
        put,
        lambda g, keep: torch.where(keep[..., None], g, 0.0),
        lambda g, keep: torch.where(~keep[..., None], 0.0, g),
        lambda g, keep: g.masked_fill(~keep[..., None], 0.0),
        lambda g, keep: put(g, keep) * keep[..., None].to(g.dtype),
    ],
)
def test_a_gradient_that_is_zero_outside_a_mask_masks_the_one_hot_rows(agrees, masked) -> None:
    """As Megatron-LM's vocabulary-parallel embedding has it: foreign tokens are looked up in row 0."""
    index = torch.tensor([[0, 3, 1], [2, 2, 4]])

    def function(g, index, keep):
        return torch.ops.aten.embedding_dense_backward(masked(g, keep), index.where(keep, 0), 4, -1, False)

    program = agrees(function, torch.randn(2, 3, 5, dtype=torch.float64), index, index < 4)
    (dot,) = [op for op in program.ops if op.name == "dot_general"]
    made = {op.out: op for op in program.ops}
    assert made[dot.ins[0]].name == "multiply" and dot.ins[1] in program.inputs


@pytest.mark.parametrize(
    "masked",
    [
        lambda g, keep: torch.where(keep[..., None], g, 1.0),
        lambda g, keep: torch.where(keep[..., None], 0.0, 0.0 * g + 1),
        lambda g, keep: torch.where(g > 0, g, 0.0),
        lambda g, keep: torch.where(keep[0, :, None], g, 0.0),
        lambda g, keep: g * keep[0, :, None].to(g.dtype),
        lambda g, keep: g * keep.to(g.dtype).sum(),
    ],
)
def test_what_is_no_mask_of_positions_stays_with_the_gradient(agrees, masked) -> None:
    index = torch.tensor([[0, 3, 1], [2, 2, 1]])

    def function(g, index, keep):
        return torch.ops.aten.embedding_dense_backward(masked(g, keep), index, 4, -1, False)

    agrees(function, torch.randn(2, 3, 5, dtype=torch.float64), index, index < 2)


def test_rows_by_number_and_their_gradient(agrees) -> None:
    def step(weight, index, g, keep):
        weight = weight.detach().requires_grad_()
        out = weight[index] * keep[..., None].to(g.dtype)
        added = weight.detach().index_put((index,), g, accumulate=True)
        return out, *torch.autograd.grad(out, weight, g), added

    index = torch.tensor([[0, 3], [3, 1]])
    agrees(step, y, index, torch.randn(2, 2, 5, dtype=torch.float64), index > 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, i: torch.gather(a, 1, i[:, None]),
        lambda a, i: a.index_select(1, i),
        lambda a, i: torch.cat([a, a * i[:, None]], 1),
        lambda a, i: torch.stack([a, a + 1], 1),
        lambda a, i: F.pad(a, (1, 2, 0, 3), value=7.0),
        lambda a, i: a.clone().index_put_((a > 0,), torch.tensor(0.0, dtype=a.dtype)),
        lambda a, i: torch.zeros_like(a).index_put_((torch.arange(3), i), a[:, 0]),
        lambda a, i: torch.arange(2, 5) + i,
        lambda a, i: torch.arange(1, 7, 2) + i,
        lambda a, i: torch.full_like(a, 3) + a.new_zeros(4) + torch.ones(4),
    ],
)
def test_indexing_and_creation(agrees, function) -> None:
    agrees(function, x, torch.tensor([2, 0, 1]))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, i, v: a.index_put((torch.arange(3), i), a[torch.arange(3), i] - v),
        lambda a, i, v: a.index_put((torch.arange(3), i), v + a[torch.arange(3), i]),
    ],
)
def test_what_is_added_to_picked_elements_is_added_there(agrees, function) -> None:
    """What stands there is not looked up and written back: that is a sum for whoever proves it."""
    program = agrees(function, x, torch.tensor([2, 0, 1]), torch.randn(3, dtype=torch.float64))
    (out,) = program.outputs.values()
    (last,) = (op for op in program.ops if op.out == out)
    assert last.name in ("add", "subtract") and last.ins[0] == "x0"


def test_what_is_written_may_be_made_of_another_place(agrees) -> None:
    def function(a, i, v):
        return a.index_put((torch.arange(3), i), a[torch.arange(3), i.flip(0)] - v)

    agrees(function, x, torch.tensor([2, 0, 1]), torch.randn(3, dtype=torch.float64))


def test_the_gradient_of_smoothed_labels_sums_no_classes(agrees) -> None:
    """A row of it adds up to the label's weight and that of all classes."""

    def function(a, at, g):
        a = a.detach().requires_grad_()
        return torch.autograd.grad(F.cross_entropy(a, at, label_smoothing=0.1, reduction="none"), a, g)

    at, g = torch.tensor([2, 0, 3]), torch.randn(3, dtype=torch.float64)
    program = agrees(function, x, at, g)
    summed = [op for op in program.ops if op.name == "reduce" and op.text("kind") == "add"]
    assert len(summed) == 1  # the normaliser


@pytest.mark.parametrize(
    ("function", "made"),
    [
        (lambda a, i: i * (i > 0), "select"),
        (lambda a, i: (i > 0).long()[:, None] * i, "select"),
        (lambda a, i: F.one_hot(i, 4) * (i > 0)[:, None], "convert"),
        (lambda a, i: (F.one_hot(i, 4) * (i > 0).long()[:, None]).to(a.dtype), "convert"),
    ],
)
def test_integers_times_truth_values_are_chosen(agrees, function, made: str) -> None:
    """A product of two integers is no linear term: a solver is not asked about one where none is meant."""
    program = agrees(function, x, torch.tensor([2, 0, 1]))
    last = next(op for op in program.ops if op.out == program.outputs["y0"])
    assert last.name == made and not any(op.name == "multiply" for op in program.ops)


def test_gradient_of_slices(agrees) -> None:
    def step(a, g):
        a = a.detach().requires_grad_()
        return torch.autograd.grad(a[1:3].sum(0) * a[0], a, g)

    agrees(step, x, torch.randn(4, dtype=torch.float64))


@pytest.mark.parametrize("slices", [slice(1, None, 2), slice(0, 6, 3), slice(-3, -1), slice(None, None, 5)])
def test_gradient_of_a_strided_slice(agrees, slices) -> None:
    """As rotary embeddings take the even and the odd elements."""

    def step(a):
        a = a.detach().requires_grad_()
        return torch.autograd.grad((a[slices] ** 2).sum(), a)

    agrees(step, torch.randn(7, 2, dtype=torch.float64))


def test_chunk_cat(agrees) -> None:
    agrees(lambda a, b: torch._chunk_cat([a, b], 0, 2), x, torch.randn(5, dtype=torch.float64))


def test_optimizer_ops(agrees) -> None:
    def step(p, g, v):
        p = p.clone().mul_(0.99)
        v = v.lerp(g, 0.1)
        scaled = torch.addcmul(v, g, g, value=0.05), torch.addcmul(v, g, g, value=2), torch.addcmul(v, g, g)
        return p.addcdiv_(v, v.sqrt().add_(1e-8), value=-0.5), *scaled

    agrees(step, x, torch.randn_like(x), x.abs() + 4)


def test_list_ops_are_ops_of_each_tensor(agrees) -> None:
    def step(a, b):
        a, b = a.clone(), b.clone()
        norms = torch._foreach_norm([a, b], dtype=torch.float64)
        torch._foreach_mul_([a, b], norms[0] + norms[1])
        torch._foreach_add_([a, b], 1.5)
        both = torch._foreach_sub([a, b], [2 * a, 3 * b], alpha=2)
        signs = [*torch._foreach_neg([a, b]), *torch._foreach_abs([a, b]), *torch._foreach_exp([a, b])]
        torch._foreach_zero_(norms[1:])
        return [a, b, *torch._foreach_div([a, b], norms[0]), *torch._foreach_sqrt(norms), *both, *signs]

    agrees(step, x, y)


def test_clipping_by_global_norm(agrees) -> None:
    def step(a, b):
        parameters = [torch.nn.Parameter(torch.zeros_like(t)) for t in (a, b)]
        for parameter, grad in zip(parameters, (a, b), strict=True):
            parameter.grad = grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        return [norm, *(p.grad for p in parameters)]

    agrees(step, x, y)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, i: a.index_put((torch.arange(1), i), a[:, 0]), "two may be equal"),
        (lambda a, i: a.index_put((a > 0,), a[0]), "in the order of the true elements"),
        (lambda a, i: a.index_put((a > 0,), a[0, 0], accumulate=True), "that are added in the order"),
    ],
)
def test_other_indices_are_refused(lowered, function, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered(function, x, torch.tensor([2, 0, 1]))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, i: a[i],
        lambda a, i: a.index_put((i,), 2 * a, accumulate=True),
        lambda a, i: a.index_put((i,), a[0], accumulate=True),
        lambda a, i: torch.zeros_like(a).index_put_((torch.arange(3), i), a[:, 0]),
        lambda a, i: a.index_put((torch.arange(3), i[:1]), a[:, 0]),
        lambda a, i: a.index_put((torch.arange(3), i[1]), a[0, 0]),
    ],
)
def test_negative_indices_count_from_the_end_and_a_single_one_serves_all_rows(agrees, function) -> None:
    agrees(function, x, torch.tensor([-1, 2, -3]))


@pytest.mark.parametrize(
    "index",
    [
        lambda i: torch.where((i < 2) | (i >= 5), 0, i - 2),
        lambda i: (i - 2).masked_fill(~((i >= 2) & (i < 5)), 0),
        lambda i: (i - 2).clamp(min=0, max=2),
        lambda i: (i == 3).long(),
        lambda i: torch.where(i <= 2, 0, i - 2),
        lambda i: torch.where(i == 2, i - 2, 0),
        lambda i: torch.where(i != 2, 0, i - 2),
    ],
)
def test_an_index_that_cannot_be_negative_is_not_wrapped(lowered, index) -> None:
    """Rows of a shard of the vocabulary, foreign ones looked up in row 0."""
    program = lowered(lambda a, i: a[index(i)], x, torch.tensor([3, 2, 7]))
    (gather,) = [d for d in program.drafts if d.name == "gather"]
    made = {d.out: d for d in program.drafts}
    assert gather.ins[1] in made and not any(d.name == "add" for d in program.drafts)


@pytest.mark.parametrize(
    "index",
    [
        lambda i: torch.where((i < 2) | (i >= 5), 0, i - 3),
        lambda i: torch.where((i < 2) & (i >= 5), 0, i - 2),
        lambda i: torch.where(i < 2, i - 2, 0),
        lambda i: (i - 2).clamp(max=2),
        lambda i: torch.where(i == 2, 0, i - 2),
    ],
)
def test_an_index_that_may_be_negative_is_wrapped(lowered, index) -> None:
    program = lowered(lambda a, i: a[index(i)], x, torch.tensor([3, 2, 7]))
    assert any(d.name == "add" for d in program.drafts)


def test_index_put_of_scattered_rows_is_refused(lowered) -> None:
    with pytest.raises(LoweringError, match="two may be equal") as caught:
        lowered(lambda a, i: torch.zeros_like(a).index_put_((i, i), a[:, 0]), x, torch.tensor([2, 0, 1]))
    assert caught.value.op == "aten.index_put_.default"


def test_all_ops_without_lowering_are_named_at_once(lowered) -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        lowered(lambda a: torch.lgamma(torch.cumprod(a, 0)) + 1, x)
    assert caught.value.ops == ("aten.cumprod.default", "aten.lgamma.default")


def test_of_two_ops_without_lowering_the_one_that_an_output_needs_is_named(lowered) -> None:
    def step(a):
        torch.cumprod(a, 0)
        return torch.lgamma(a)

    with pytest.raises(UnsupportedOpError) as caught:
        lowered(step, x)
    assert caught.value.ops == ("aten.lgamma.default",)


def test_an_unsupported_op_that_no_output_needs_is_dropped(lowered) -> None:
    def step(a):
        torch.cumprod(a, 0)
        return a + 1

    assert [d.name for d in lowered(step, x).drafts] == ["constant", "add"]


def test_copies_in_inference_mode_are_copies(agrees) -> None:
    """There PyTorch takes no ``reshape``, ``to`` or ``contiguous`` apart: they come as they are called."""

    def step(a):
        with torch.inference_mode():
            rows = a.t().reshape(2, 6)
            return [rows.to(torch.float32).to(torch.float64), a.t().contiguous(), a.reshape(12), a.view(2, 6)]

    agrees(step, x, tolerance=1e-6)


REAL = torch.full((4,), 2.0, dtype=torch.float64)


def test_a_view_of_a_tensor_of_one_value_that_was_made_outside_is_that_value(agrees) -> None:
    """It is no view of anything that the trace has: its elements are literals."""
    agrees(lambda a: a[:2, :2] * REAL.view(2, 2) + REAL.detach()[0], x)


def strided(after) -> object:
    """An op without a lowering writes every second element of a part; ``after`` says what is read then."""

    def step(a):
        a = a.clone()
        a[1:6:2].lgamma_()
        return after(a) + 0

    return step


def test_what_an_op_without_a_lowering_may_have_written_is_lost_and_no_more(lowered) -> None:
    row = torch.randn(10, dtype=torch.float64)
    for after in (lambda a: a[6:], lambda a: a[:1]):
        lowered(strided(after), row)
    for after in (lambda a: a[1:2], lambda a: a[5:6], lambda a: a):
        with pytest.raises(UnsupportedOpError, match="lgamma"):
            lowered(strided(after), row)
