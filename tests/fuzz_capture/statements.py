"""Statements of random single-process programs, by family: functions of a :class:`Draw` to source text.

``v`` stands for the new variable that a statement defines; a statement that defines none changes something.
"""

from __future__ import annotations

from collections.abc import Callable

from .draw import Draw

Statement = Callable[[Draw], str]

PRELUDE = '''
class Twice(torch.autograd.Function):
    """The gradient is not that of the forward function: only the backward code says what it is."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor + x.tanh(), None


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad.clone().clamp_(-1, 1)


def gradients(loss, leaves):
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found)]
'''

VIEWS: tuple[Statement, ...] = (
    lambda d: f"v = {(x := d.any())}.reshape({d.regrouped(x)})",
    lambda d: f"v = {(x := d.any())}.view({d.regrouped(x)})",
    lambda d: f"v = {(x := d.any(1))}.transpose({d.dim(x)}, {d.dim(x)})",
    lambda d: f"v = {(x := d.any(1))}.permute({d.order(x)})",
    lambda d: f"v = {(x := d.any(1))}[{d.slices(x)}]",
    lambda d: f"v = {(x := d.f(1))}[{d.slices(x)}]",
    lambda d: f"v = {(x := d.any(1))}.select({(a := d.dim(x))}, {d.index(x, a)})",
    lambda d: f"v = {(x := d.any(1))}.narrow({d.dim(x)}, {d.one(('0', '1', '-1'))}, 1)",
    lambda d: f"v = {d.any()}.unsqueeze({d.one(('0', '-1', '1'))})",
    lambda d: f"v = {(x := d.any(1))}.squeeze({d.one(('', str(d.dim(x))))})",
    lambda d: (
        f"v = {(x := d.any(1))}.unsqueeze({d.dim(x)}).expand({d.one(('2', '3', '-1'))}, "
        + ", ".join(["-1"] * len(d.shape(x)))
        + ")"
    ),
    lambda d: f"v = {d.any(1)}.flatten({d.one(('', '0, -1', '-1'))})",
    lambda d: f"v = {(x := d.any(1))}.chunk({d.one(('2', '3'))}, {d.dim(x)})[{d.one(('0', '-1', '1'))}]",
    lambda d: f"v = {(x := d.any(1))}.split({d.one(('1', '2'))}, {d.dim(x)})[{d.one(('0', '-1'))}]",
    lambda d: f"v = {(x := d.any(1))}.unbind({d.dim(x)})[{d.one(('0', '-1'))}]",
    lambda d: f"v = {(x := d.any(2))}.movedim({d.dim(x)}, {d.dim(x)})",
    lambda d: f"v = {(x := d.any(2))}.diagonal(0, {d.dim(x)}, {d.dim(x)})",
    lambda d: f"v = {d.any(2)}.mT",
    lambda d: f"v = {d.any()}.detach()",
    lambda d: f"v = {(x := d.any(1))}.view_as({x})",
    lambda d: f"v = {(x := d.f(1))}.unfold({d.dim(x)}, 2, 1)",
)

POINTWISE: tuple[Statement, ...] = (
    lambda d: (
        f"v = torch.{d.one(('sin', 'cos', 'tanh', 'sigmoid', 'relu', 'neg', 'abs', 'square'))}({d.f()})"
    ),
    lambda d: f"v = F.{d.one(('silu', 'relu', 'sigmoid', 'tanh'))}({d.f()})",
    lambda d: f"v = F.gelu({d.f()}, approximate='{d.one(('tanh', 'none'))}')",
    lambda d: f"v = torch.exp({d.f()}.clamp(-2, 2))",
    lambda d: f"v = torch.log({d.f()}.abs() + 1)",
    lambda d: f"v = torch.{d.one(('sqrt', 'rsqrt', 'reciprocal'))}({d.f()}.abs() + 0.5)",
    lambda d: f"v = {d.f()}.clamp({d.one(('-1, 1', 'min=0', 'max=0.5', '-0.5, None'))})",
    lambda d: f"v = {d.f()}.tanh() ** {d.one(('2', '3', '2.0'))}",
    lambda d: f"v = 2 ** {d.f()}.tanh()",
    lambda d: f"v = {(x := d.f())} {d.one('+-*')} {d.like(x)}",
    lambda d: f"v = {(x := d.f())} {d.one('+-*')} {d.like(x)}",
    lambda d: f"v = {d.f()} {d.one('+-*')} {d.k()}",
    lambda d: f"v = {d.k()} {d.one('+-*')} {d.f()}",
    lambda d: f"v = {(x := d.f())} / ({d.like(x)}.abs() + 1)",
    lambda d: f"v = {d.f()} / {d.one(('2', '3', '-0.5'))}",
    lambda d: f"v = 1 / ({d.f()}.square() + 1)",
    lambda d: f"v = torch.{d.one(('add', 'sub', 'rsub'))}({(x := d.f())}, {d.like(x)}, alpha={d.k()})",
    lambda d: f"v = torch.{d.one(('maximum', 'minimum'))}({(x := d.f())}, {d.like(x)})",
    lambda d: f"v = torch.where({(x := d.f())} > {d.like(x)}, {x}, {d.k()})",
    lambda d: f"v = torch.where({d.b()}, {d.k()}, {d.f()})",
    lambda d: f"v = {(x := d.f())}.masked_fill({d.mask(x)}, {d.k()})",
    lambda d: f"v = torch.lerp({(x := d.f())}, {d.like(x)}, {d.one(('0.1', '0.9'))})",
    lambda d: f"v = torch.addcmul({(x := d.f())}, {d.like(x)}, {d.like(x)}, value={d.k()})",
    lambda d: f"v = torch.addcdiv({(x := d.f())}, {d.like(x)}, {d.like(x)}.abs() + 1, value={d.k()})",
    lambda d: f"v = {(x := d.f())} {d.one(('>', '<', '>=', '<=', '==', '!='))} {d.like(x)}",
    lambda d: f"v = {d.f()} {d.one(('>', '<=', '=='))} {d.k()}",
    lambda d: f"v = {d.i()} {d.one(('>', '<', '==', '!=', '>='))} {d.one(('0', '1', '2', '-1', '1.5'))}",
    lambda d: f"v = {d.b()} == {d.one(('True', '1', '2', '0'))}",
    lambda d: f"v = {d.i()} {d.one('+-*')} {d.one(('1', '2', '-1'))}",
    lambda d: f"v = {d.i()} * {d.one(('0.5', '1.5'))}",
    lambda d: (
        f"v = {d.i()}.{d.one(('double()', 'float().double()', 'to(torch.float64)', 'bool()', 'int()'))}"
    ),
    lambda d: f"v = {d.b()}.{d.one(('double()', 'long()', 'logical_not()', 'to(torch.float64)'))}",
    lambda d: f"v = ~{d.b()}",
    lambda d: f"v = {(x := d.b())} {d.one('&|')} ~{x}",
    lambda d: f"v = torch.logical_{d.one(('and', 'or'))}({(x := d.b())}, {x})",
    lambda d: f"v = {d.f()}.clone()",
    lambda d: f"v = {d.f(1)}.contiguous()",
    lambda d: f"v = F.{d.one(('leaky_relu', 'softplus', 'elu', 'hardtanh', 'logsigmoid'))}({d.f()})",
)

REDUCTIONS: tuple[Statement, ...] = (
    lambda d: f"v = {d.f()}.{d.one(('sum', 'mean'))}()",
    lambda d: f"v = {(x := d.f(1))}.{d.one(('sum', 'mean', 'amax', 'amin'))}({d.dims(x)}{d.keep()})",
    lambda d: f"v = {(x := d.f(1))}.{d.one(('sum', 'mean'))}({d.dim(x)}{d.keep()})",
    lambda d: f"v = {d.f(1)}.{d.one(('max', 'min'))}()",
    lambda d: f"v = {d.b()}.sum({d.one(('', '0', '-1'))})",
    lambda d: f"v = {d.i(1)}.sum({d.one(('', '0', '-1'))})",
    lambda d: f"v = {(x := d.f(1))}.softmax({d.dim(x)})",
    lambda d: f"v = {(x := d.f(1))}.log_softmax({d.dim(x)})",
    lambda d: f"v = torch.linalg.vector_norm({(x := d.f(1))} + 2, 2, {d.dims(x)}{d.keep()})",
    lambda d: f"v = {d.f(1)}.norm()",
    lambda d: f"v = {(x := d.f(1))}.{d.one(('logsumexp', 'cumsum', 'var', 'argmax'))}({d.dim(x)})",
    lambda d: f"v = {(x := d.f(1))}.{d.one(('sum', 'mean'))}({d.dims(x)}) * {d.k()}",
)

LINEAR: tuple[Statement, ...] = (
    lambda d: f"v = {d.f(1)} @ {d.f(1)}",
    lambda d: f"v = {d.f(2)} @ {d.f(2)}.mT",
    lambda d: f"v = {(x := d.f(2))} @ {x}.mT",
    lambda d: f"v = F.linear({d.f(1)}, {d.f(2, 2)})",
    lambda d: f"v = F.linear({(x := d.f(2))}, {x}.flatten(0, -2))",
    lambda d: f"v = F.linear({d.f(2)}, {d.f(2, 2)}, {d.f(1, 1)})",
    lambda d: f"v = torch.addmm({d.f(1, 2)}, {(x := d.f(2, 2))}, {x}.t(), beta={d.k()}, alpha={d.k()})",
    lambda d: f"v = torch.bmm({(x := d.f(3, 3))}, {x}.mT)",
    lambda d: f"v = torch.mv({d.f(2, 2)}, {d.f(1, 1)})",
    lambda d: f"v = torch.outer({d.f(1, 1)}, {d.f(1, 1)})",
    lambda d: f"v = torch.dot({(x := d.f(1, 1))}, {x})",
    lambda d: f"v = torch.einsum('ij,kj->ik', {(x := d.f(2, 2))}, {x})",
    lambda d: f"v = torch.einsum('bij,bkj->bik', {(x := d.f(3, 3))}, {x})",
    lambda d: f"v = torch.einsum('ij,ij->j', {(x := d.f(2, 2))}, {x})",
)

INDEXING: tuple[Statement, ...] = (
    lambda d: f"v = {d.f(1)}[{d.i()}]",
    lambda d: f"v = {d.f(1)}[{d.i()} - 1]",
    lambda d: f"v = {d.f(2)}[:, {d.i(1, 1)}]",
    lambda d: f"v = {(x := d.f(1))}.index_select({d.dim(x)}, {d.i(1, 1)})",
    lambda d: f"v = torch.gather({(x := d.f(1))}, {d.dim(x)}, {d.i(1)})",
    lambda d: f"v = F.embedding({d.i()}, {d.f(2, 2)})",
    lambda d: f"v = F.one_hot({d.i()}, 4)",
    lambda d: f"v = torch.cat([{(x := d.f(1))}, {d.like(x)}, {x}], {d.dim(x)})",
    lambda d: f"v = torch.stack([{(x := d.f())}, {x} * 2], {d.one(('0', '-1', '1'))})",
    lambda d: f"v = F.pad({d.f(1)}, ({d.one('012')}, {d.one('012')}), value={d.k()})",
    lambda d: f"v = F.pad({d.f(2)}, (1, 0, {d.one('02')}, 1))",
    lambda d: f"v = {(x := d.f(1))}.{d.one(('roll', 'flip'))}({d.dim(x)})",
    lambda d: f"v = {d.f(2)}.{d.one(('tril', 'triu'))}({d.one(('', '1', '-1'))})",
    lambda d: f"v = {(x := d.f(1))}.index_put(({d.i(1, 1)},), {x}[0], accumulate=False)",
    lambda d: f"v = {(x := d.f(1))}.index_put((({(i := d.i(1, 1))}),), {x}[{i}] * 2, accumulate=True)",
    lambda d: f"v = {(x := d.f(1))}.index_add(0, {(i := d.i(1, 1))}, {x}[{i}])",
    lambda d: (
        f"v = torch.zeros(4, {(x := d.f(1, 2))}.shape[-1]).to({x}).index_add_(0, {(d.i(1, 1))}, {x}[:2])"
    ),
    lambda d: f"v = torch.arange({d.one(('4', '1, 4', '0, 6, 2'))})",
    lambda d: f"v = torch.{d.one(('zeros', 'ones'))}_like({d.f()})",
    lambda d: f"v = torch.full_like({d.f()}, {d.k()})",
    lambda d: f"v = {(x := d.f())}.new_{d.one(('zeros', 'ones'))}({x}.shape)",
    lambda d: f"v = torch.full((2, 3), {d.k()}, dtype=torch.float64)",
    lambda d: f"v = torch.tensor({d.k()}, dtype=torch.float64)",
)

WRITES: tuple[Statement, ...] = (
    lambda d: f"{(x := d.f())}.{d.one(('add_', 'sub_', 'mul_'))}({d.into(x)})",
    lambda d: f"{(x := d.f(1))}[{d.slices(x)}] = {d.k()}",
    lambda d: f"{(x := d.f(1))}[{d.slices(x)}] {d.one('+*-')}= {d.k()}",
    lambda d: f"{(x := d.f(2))}[{(s := d.slices(x))}] = {x}[{s}] * -0.5",
    lambda d: f"{(x := d.f(1))}[{(s := d.slices(x))}] += {x}[{s}] * 0.5",
    lambda d: f"{(x := d.f())}.copy_({d.into(x)})",
    lambda d: f"{d.f()}.{d.one(('zero_()', 'fill_(0.5)', 'tanh_()', 'relu_()', 'neg_()', 'sigmoid_()'))}",
    lambda d: f"{d.f()}.clamp_({d.one(('-1, 1', 'min=0'))})",
    lambda d: f"{d.f()}.{d.one(('mul_(0.5)', 'add_(1)', 'div_(2)', 'sub_(0.1)', 'pow_(2)', 'abs_()'))}",
    lambda d: f"{(x := d.f())}.masked_fill_({d.mask(x)}, {d.k()})",
    lambda d: f"{(x := d.f(1))}[{d.mask(x)}] = {d.one(('0', '0.5'))}",
    lambda d: f"{(x := d.f())}.{d.one(('addcmul_', 'lerp_'))}({d.into(x)}, {d.into(x)})",
    lambda d: f"{(x := d.f())}.lerp_({d.into(x)}, 0.1)",
    lambda d: f"{(x := d.f())}.data.add_({d.into(x)})",
    lambda d: f"{(x := d.f())}.data = {d.into(x)}.detach().expand({x}.shape).clone()",
    lambda d: f"torch.{d.one(('add', 'mul', 'sub'))}({(x := d.f())}, {d.into(x)}, out={x})",
    lambda d: f"torch.tanh({(x := d.f())}, out={x})",
    lambda d: f"v = torch.empty_like({(x := d.f(2))}); torch.{d.one(('mul', 'maximum'))}({x}, {x}, out=v)",
    lambda d: (
        f"v = {(x := d.f(1))}.new_empty(2, *{x}.shape); "
        f"torch.stack([{x}, {d.into(x)}.expand({x}.shape)], out=v)"
    ),
    lambda d: f"v = torch.empty_like({(x := d.f(2, 2))}); v[1:].copy_({x}[1:]); v[:1].zero_()",
    lambda d: f"torch._foreach_{d.one(('add_', 'mul_'))}([{d.f()}, {d.f()}], {d.k()})",
    lambda d: f"torch._foreach_{d.one(('lerp_', 'addcmul_'))}([{(x := d.f())}], [{x}.clone() + 1], 0.5)",
    lambda d: f"{(x := d.f(1))}[{(i := d.i(1, 1))}] = {x}[{i}] * 2",
    lambda d: f"{d.f(2)}.{d.one(('t_()', 'squeeze_()', 'unsqueeze_(0)'))}",
    lambda d: f"{d.f(2)}.mT.{d.one(('mul_(2)', 'tanh_()', 'zero_()'))}",
    lambda d: f"{d.f(1)}.transpose(0, -1).add_({d.k()})",
    lambda d: f"{d.f(1)}.view(-1)[::2].mul_({d.k()})",
    lambda d: f"{(x := d.f(1))}.swapaxes(0, -1)[0].copy_({x}.swapaxes(0, -1)[-1] + 1)",
)

NORMS: tuple[Statement, ...] = (
    lambda d: f"v = F.layer_norm({(x := d.f(1))}, {x}.shape[-1:])",
    lambda d: (
        f"v = F.layer_norm({(x := d.f(2))}, {x}.shape[-1:], {x}.flatten(0, -2)[0], {x}.flatten(0, -2)[-1])"
    ),
    lambda d: f"v = F.layer_norm({(x := d.f(2))}, {x}.shape[-2:], eps=0.1)",
    lambda d: f"v = F.rms_norm({(x := d.f(1))}, {x}.shape[-1:], eps=1e-3)",
    lambda d: f"v = F.rms_norm({(x := d.f(2))}, {x}.shape[-1:], {x}.flatten(0, -2)[0] + 1, eps=0.1)",
    lambda d: f"v = F.normalize({(x := d.f(1))} + 0.5, dim={d.dim(x)})",
    lambda d: f"v = F.mse_loss({(x := d.f(1))}, {x}.tanh(){d.one(('', ', reduction=' + repr('sum')))})",
    lambda d: f"v = F.l1_loss({(x := d.f(1))}, {x}.tanh())",
    lambda d: (
        f"v = F.cross_entropy({(x := d.f(2, 2))}, torch.ones({x}.shape[0], dtype=torch.int64)"
        + d.one(("", ", reduction='sum'", ", reduction='none'", ", ignore_index=0", ", label_smoothing=0.1"))
        + ")"
    ),
    lambda d: (
        f"v = F.nll_loss({(x := d.f(2, 2))}.log_softmax(-1), torch.ones({x}.shape[0], dtype=torch.int64))"
    ),
    lambda d: (
        f"v = F.scaled_dot_product_attention({(x := d.f(4))}, {x} * 2, {x}.tanh()"
        + d.one(("", ", is_causal=True", ", scale=0.3"))
        + ")"
    ),
    lambda d: (
        f"v = F.scaled_dot_product_attention(*[{d.f(2, 2)}[None, None]] * 3"
        + d.one(("", ", is_causal=True"))
        + ")"
    ),
)

GRADIENTS: tuple[Statement, ...] = (
    lambda d: f"{(x := d.f())} = {x}.detach().clone().requires_grad_()",
    lambda d: f"v = Twice.apply({d.f()}, {d.k()})",
    lambda d: f"v = Straight.apply({d.f()})",
    lambda d: f"{d.tensor(lambda t: t.requires_grad)}.register_hook(lambda g: g * 0.5)",
    lambda d: f"v = {d.tensor(lambda t: t.requires_grad)}.detach()",
    lambda d: f"with torch.no_grad(): {d.tensor(lambda t: t.requires_grad and t.is_leaf)}.mul_(0.9)",
    lambda d: (
        "v = gradients("
        + d.tensor(lambda t: t.requires_grad and not t.is_leaf)
        + ".sum(), ["
        + d.tensor(lambda t: t.requires_grad and t.is_leaf)
        + "])[0]"
    ),
    lambda d: (
        d.tensor(lambda t: t.requires_grad and not t.is_leaf) + ".square().mean().backward(retain_graph=True)"
    ),
    lambda d: f"v = {d.tensor(lambda t: t.requires_grad and t.is_leaf and t.grad is not None)}.grad",
    lambda d: f"v = {d.tensor(lambda t: t.requires_grad and t.is_leaf and t.grad is not None)}.grad.clone()",
    lambda d: f"{d.tensor(lambda t: t.requires_grad and t.is_leaf)}.grad = None",
)

FAMILIES: dict[str, tuple[tuple[Statement, ...], int]] = {
    "views": (VIEWS, 22),
    "pointwise": (POINTWISE, 22),
    "reductions": (REDUCTIONS, 10),
    "linear": (LINEAR, 10),
    "indexing": (INDEXING, 12),
    "writes": (WRITES, 18),
    "norms": (NORMS, 8),
    "gradients": (GRADIENTS, 14),
}
