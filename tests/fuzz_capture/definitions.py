"""Random training steps as Python files: a model spread over ranks somehow, collectives, an optimizer.

Many of them train wrongly: a gradient that nobody reduces, a broadcast over shards, a reduction with another
factor. That is meant. The question is whether the captured plan says what the processes compute.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

HEAD = '''"""A random training step, seed {seed}: tv-capture FILE --out plan.json --run"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from orchestrator.capture import Batch, Definition


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, eps=1e-3)


class MLP(nn.Module):
    def __init__(self, dim, hidden, act):
        super().__init__()
        self.up, self.down, self.act, self.group = nn.Linear(dim, hidden), nn.Linear(hidden, dim), act, None

    def forward(self, x):
        if self.group is None:
            return x + self.down(self.act(self.up(x)))
        inner = self.act(self.up(Enter.apply(x, self.group)))
        return x + Leave.apply(F.linear(inner, self.down.weight), self.group) + self.down.bias


class Attention(nn.Module):
    def __init__(self, dim, heads, causal):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (s.view(b, t, self.heads, -1).transpose(1, 2) for s in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class Mean(nn.Module):
    """Keeps a running mean of what passes."""

    def __init__(self, dim, rebind):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.rebind = rebind

    def forward(self, x):
        with torch.no_grad():
            new = x.detach().flatten(0, -2).mean(0)
            if self.rebind:
                self.mean = 0.9 * self.mean + 0.1 * new
            else:
                self.mean.mul_(0.9).add_(new, alpha=0.1)
        return x - self.mean


class Momentum(torch.optim.Optimizer):
    """Written by hand: momentum that lies in a state made at the first step."""

    def __init__(self, params, lr=0.01, rebind=False):
        super().__init__(params, {{"lr": lr, "rebind": rebind}})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                if group["rebind"]:
                    state["m"] = 0.9 * state["m"] + p.grad
                else:
                    state["m"].mul_(0.9).add_(p.grad)
                p.sub_(state["m"], alpha=group["lr"])


def at_positions(x):
    """A number that tells where elements lie."""
    x = x.reshape(-1).to(torch.get_default_dtype())
    return (x * torch.arange(1, x.numel() + 1)).sum() / x.numel()

'''

#: How the gradient ``g`` of a parameter is reduced over ``group`` of ``n`` ranks; indented by eight.
REDUCTIONS = {
    "sum": ("dist.all_reduce(g, group=group)", "g.div_(n)"),
    "avg": ("dist.all_reduce(g, op=dist.ReduceOp.AVG, group=group)",),
    "wrong factor": ("dist.all_reduce(g, group=group)",),
    "max": ("dist.all_reduce(g, op=dist.ReduceOp.MAX, group=group)",),
    "premul": ("dist.all_reduce(g, op=dist.ReduceOp.PREMUL_SUM(1 / n), group=group)",),
    "async": ("works.append(dist.all_reduce(g, group=group, async_op=True))",),
    "broadcast": ("dist.broadcast(g, src=0, group=group)",),
    "reduce": (
        "dist.reduce(g, dst=0, group=group)",
        "dist.broadcast(g, src=0, group=group)",
        "g.mul_(1 / n)",
    ),
    "functional": ("g.copy_(fc.all_reduce(g, 'avg', group))",),
    "gathered": (
        "whole = g.new_empty(n * g.shape[0], *g.shape[1:])",
        "dist.all_gather_into_tensor(whole, g.contiguous(), group=group)",
        "g.copy_(whole.view(n, *g.shape).mean(0))",
    ),
    "gathered list": (
        "parts = [torch.empty_like(g) for _ in range(n)]",
        "dist.all_gather(parts, g, group=group)",
        "g.copy_(sum(parts) / n)",
    ),
    "scattered": (
        "flat = F.pad(g.flatten(), (0, -g.numel() % n))",
        "mine = flat.new_empty(flat.numel() // n)",
        "dist.reduce_scatter_tensor(mine, flat, group=group)",
        "dist.all_gather_into_tensor(flat, mine / n, group=group)",
        "g.copy_(flat[: g.numel()].view_as(g))",
    ),
    "none": (),
}

#: What else a rank may compute from its batch ``x``; a number on a single device, too.
EXTRAS = (
    ("y = x.clone()", "dist.all_reduce(y, op=dist.ReduceOp.{reduce}, group=group)"),
    ("y = x.new_empty(n * x.shape[0], *x.shape[1:])", "dist.all_gather_into_tensor(y, x * 2, group=group)"),
    (
        "ys = [torch.zeros_like(x) for _ in range(n)]",
        "dist.all_gather(ys, x, group=group)",
        "y = torch.stack(ys, {d})",
    ),
    (
        "y = x.new_zeros(x.shape[0] // n, *x.shape[1:])",
        "dist.reduce_scatter_tensor(y, x.contiguous(), group=group)",
    ),
    (
        "y = x.new_zeros(x.shape[0] // n, *x.shape[1:])",
        "dist.reduce_scatter(y, list(x.chunk(n)), group=group)",
    ),
    ("y = torch.empty_like(x)", "dist.all_to_all_single(y, x.contiguous(), group=group)"),
    (
        "ys = [torch.empty_like(c) for c in x.chunk(n)]",
        "dist.all_to_all(ys, [c.contiguous() for c in x.chunk(n)], group=group)",
        "y = torch.cat(ys[::-1])",
    ),
    ("y = x.clone()", "dist.broadcast(y, src={src}, group=group)"),
    ("y = fc.all_gather_tensor(x, {d}, group) + 0",),
    ("y = fc.reduce_scatter_tensor(x, 'sum', 0, group) * 2",),
    ("y = fc.all_to_all_single(x, None, None, group) * 1",),
    ("y = fc.broadcast(x, {src}, group) + x",),
    (
        "y = x.clone()",
        "work = dist.all_reduce(y, group=group, async_op=True)",
        "z = x.sum()",
        "work.wait()",
        "y = y + z",
    ),
    (
        "y = x * 0",
        "given = [x * i for i in range(n)] if dist.get_rank() == {src} else None",
        "dist.scatter(y, given, src={src}, group=group)",
    ),
    ("y = x[:, ::2].clone()", "dist.all_reduce(y, group=group)", "y = torch.cat([y, x], 1)"),
    ("y = x.clone()", "dist.all_reduce(y[1:], group=group)"),
    ("y = x * dist.get_rank(group)", "dist.all_reduce(y, group=group)"),
    ("y = torch.cat([x[1:], x[:1]]) if dist.get_rank(group) == 0 else x",),
    ("y = x * (dist.get_rank(group) + 1)",),
    ("y = x[dist.get_rank(group) :][:1]",),
)


@dataclass(frozen=True)
class Definition:
    """The pieces of a file; shrinking drops blocks, extra statements and trainings."""

    seed: int
    mesh: tuple[tuple[str, int], ...]
    way: str
    blocks: tuple[str, ...]
    optimizer: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    reduction: str
    extras: tuple[tuple[str, ...], ...]
    loss: str
    tokens: bool
    dim: int
    microbatches: int

    @property
    def ranks(self) -> int:
        total = 1
        for _, size in self.mesh:
            total *= size
        return total

    def source(self) -> str:
        axes = dict(self.mesh)
        data = "dp" if "dp" in axes else "tp"
        lines = ["", "def build():", f"    return nn.Sequential({', '.join(self.blocks)})", "", ""]
        lines += ["def parallelize(model, mesh):"]
        lines += [f"    {line}" for line in self._parallelize(axes)] + ["    return model", "", ""]
        shard = f', shard={{"{data}": 0}}' if data == "dp" else ""
        rows = 4 if data == "tp" else {2: 8, 3: 9, 4: 16}[axes[data]]
        for parallel in (False, True):
            name = "parallel_step" if parallel else "step"
            lines += [f"def {name}(model, optimizer, batch):"]
            body = [*self.before]
            if self.microbatches > 1:
                body += [
                    f"k = {self.microbatches}",
                    "for mx, my in zip(batch['x'].chunk(k), batch['y'].chunk(k)):",
                    f"    x, y = mx, my; loss = ({self.loss}) / {self.microbatches}; loss.backward()",
                ]
            else:
                body += ["x, y = batch['x'], batch['y']", f"loss = {self.loss}", "loss.backward()"]
            if parallel and self.way in ("manual", "tp manual"):
                body += [f"group = {self._group(data)}", "n = group.size()", "works = []"]
                if data == "dp" or self.way == "manual":
                    body += ["for p in model.parameters():", "    g = p.grad"]
                    body += [f"    {s}" for s in REDUCTIONS[self.reduction] or ("pass",)]
                    body += ["for work in works:", "    work.wait()"]
            body += [*self.after]
            result = ["'loss': loss"]
            for i, extra in enumerate(self.extras):
                body.append("x = batch['x']" if not self.tokens else "x = batch['y']")
                if parallel:
                    body += [f"group = {self._group(data)}", "n = group.size()", *extra]
                else:
                    body += ["y = x + 0"]
                body.append(f"e{i} = at_positions(y)")
                result.append(f"'e{i}': e{i}")
            lines += [f"    {line}" for line in body] + [f"    return {{{', '.join(result)}}}", "", ""]
        kinds = {
            "x": f"Batch(({rows}, 3), torch.int64{shard}, bounds=(0, 8))"
            if self.tokens
            else f"Batch(({rows}, 3, {self.dim}){shard})",
            "y": f"Batch(({rows}, 3, {self.dim}){shard})",
        }
        layouts = self._layouts()
        lines += [
            "definition = Definition(",
            f'    name="fuzz", mesh={axes!r}, build=build, parallelize=parallelize,',
            f"    optimizer=lambda ps: {self.optimizer},",
            "    step=step, parallel_step=parallel_step,",
            f"    batch={{'x': {kinds['x']}, 'y': {kinds['y']}}},",
            f"    layouts={layouts},",
            ")",
        ]
        return HEAD.format(seed=self.seed) + "\n".join(lines) + "\n"

    def _group(self, axis: str) -> str:
        return "GROUPS[0]" if len(self.mesh) > 1 else "dist.group.WORLD"

    def _parallelize(self, axes: dict[str, int]) -> list[str]:
        data = "dp" if "dp" in axes else "tp"
        out = ["global GROUPS", f"GROUPS = [mesh['{data}'].get_group()]"] if len(axes) > 1 else []
        if self.way == "tp manual":
            out += [
                "tp = mesh['tp']",
                "for block in model:",
                "    if isinstance(block, MLP):",
                "        at, n = tp.get_local_rank(), tp.size()",
                "        block.group = tp.get_group()",
                "        for owner, dim in ((block.up, 0), (block.down, 1)):",
                "            owner.weight = nn.Parameter(owner.weight.detach().chunk(n, dim)[at].clone())",
                "        block.up.bias = nn.Parameter(block.up.bias.detach().chunk(n, 0)[at].clone())",
            ]
        if self.way in ("dtensor", "dtensor fsdp"):
            out += [
                "for block in model:",
                "    if isinstance(block, MLP):",
                "        ways = {'up': ColwiseParallel(), 'down': RowwiseParallel()}",
                "        parallelize_module(block, mesh['tp'], ways)",
            ]
        if self.way in ("fsdp", "dtensor fsdp"):
            out += [
                "for block in model:",
                "    if list(block.parameters()):",
                "        fully_shard(block, mesh=mesh['dp'])",
            ]
            out += ["fully_shard(model, mesh=mesh['dp'])"]
        return out

    def _layouts(self) -> str:
        if self.way != "tp manual":
            return "{n: {} for n, _ in build().named_parameters()}"
        return (
            "{n: ({'tp': 0} if '.up.' in n else {'tp': 1} if n.endswith('down.weight') else {}) "
            "for n, _ in build().named_parameters()}"
        )


def _blocks(rng: random.Random, tokens: bool, way: str, dim: int) -> tuple[str, ...]:
    acts = ("F.silu", "nn.GELU(approximate='tanh')", "F.relu", "torch.tanh")
    heads = rng.choice((1, 2, 3)) if dim == 6 else 1
    kinds = [
        f"nn.Linear({dim}, {dim})",
        f"nn.Linear({dim}, {dim}, bias=False)",
        f"MLP({dim}, 12, {rng.choice(acts)})",
        f"MLP({dim}, 24, {rng.choice(acts)})",
        f"nn.LayerNorm({dim})",
        f"nn.LayerNorm({dim}, elementwise_affine=False)",
        f"Norm({dim})",
        f"Attention({dim}, {heads}, {rng.choice((True, False))})",
        "nn.Tanh()",
        f"Mean({dim}, {rng.choice((True, False))})",
    ]
    weights = [2, 1, 2, 1, 2, 0.5, 1.5, 1, 0.5, 0.7]
    blocks = rng.choices(kinds, weights, k=rng.randint(1, 3))
    if way in ("tp manual", "dtensor", "dtensor fsdp"):
        blocks.append(f"MLP({dim}, 12, {rng.choice(acts)})")
    if not any(w in b for b in blocks for w in ("Linear", "MLP", "Attention", f"Norm({dim})")):
        blocks.append(f"nn.Linear({dim}, {dim})")
    return (f"nn.Embedding(8, {dim})", *blocks) if tokens else tuple(blocks)


def write(seed: int) -> Definition:
    """The training step of a seed."""
    rng = random.Random(seed)
    way, mesh = rng.choice(
        (
            *(("manual", m) for m in ((("dp", 2),), (("dp", 3),), (("dp", 4),), (("dp", 2),))),
            ("tp manual", (("tp", 2),)),
            ("tp manual", (("dp", 2), ("tp", 2))),
            ("fsdp", (("dp", 2),)),
            ("fsdp", (("dp", 3),)),
            ("dtensor", (("tp", 2),)),
            ("dtensor fsdp", (("dp", 2), ("tp", 2))),
        )
    )
    tokens, dim = rng.random() < 0.25, rng.choice((6, 6, 5))
    before = rng.choice(
        (
            *((("optimizer.zero_grad()",),) * 4),
            ("optimizer.zero_grad(set_to_none=False)",),
            ("model.zero_grad()",),
            ("for p in model.parameters():", "    p.grad = None"),
            (),
        )
    )
    after = [
        *rng.choice(
            ((),) * 4
            + (
                ("nn.utils.clip_grad_norm_(model.parameters(), 0.5)",) if "dtensor" not in way else (),
                ("for p in model.parameters():", "    p.grad.mul_(0.5)"),
                ("for p in model.parameters():", "    p.grad.data.clamp_(-1, 1)"),
            )
        ),
        "optimizer.step()",
    ]
    if way in ("manual", "tp manual"):
        after += rng.choice(
            (
                *(((),) * 6),
                ("with torch.no_grad():", "    for p in model.parameters():", "        p.mul_(0.99)"),
                ("for p in model.parameters():", "    p.data = p.data * 0.99"),
                ("next(model.parameters()).data.add_(0.01)",),
                ("optimizer.zero_grad()",),
            )
        )
    optimizer = rng.choice(
        (
            "torch.optim.SGD(ps, lr=0.05)",
            "torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.1)",
            "torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True)",
            "torch.optim.AdamW(ps, lr=1e-2)",
            "torch.optim.AdamW(ps, lr=1e-2, betas=(0.8, 0.9), eps=1e-3, weight_decay=0)",
            "torch.optim.Adam(ps, lr=1e-2, weight_decay=0.1)",
            "Momentum(ps)",
            "Momentum(ps, rebind=True)",
        )
    )
    if rng.random() < 0.1:
        after.append("optimizer.step()")
    loss = rng.choice(
        (
            "F.mse_loss(model(x), y)",
            "model(x).square().mean()",
            "(model(x) * y).sum() * 0.1",
            "F.cross_entropy(model(x).flatten(0, -2), (y.flatten(0, -2)[:, 0] > 0).long())",
            "model(x).tanh().mean() + 0.01 * sum(p.square().sum() for p in model.parameters())"
            if way in ("manual", "tp manual")
            else "(model(x) - 1).square().mean()",
        )
    )
    extras = []
    for extra in rng.sample(EXTRAS, rng.choice((0, 0, 1, 2))):
        size = dict(mesh).get("dp", dict(mesh).get("tp", 1))
        src = rng.randrange(size) if len(mesh) == 1 else 0
        fill = {"reduce": rng.choice(("SUM", "AVG", "MAX", "MIN")), "d": rng.choice("01"), "src": src}
        extras.append(tuple(s.format(**fill) if "{" in s else s for s in extra))
    return Definition(
        seed, mesh, way, _blocks(rng, tokens, way, dim), optimizer, before, tuple(after),
        rng.choice(list(REDUCTIONS)), tuple(extras), loss, tokens, dim, rng.choice((1, 1, 1, 2)),
    )  # fmt: skip


def smaller(definition: Definition) -> Sequence[Definition]:
    """Definitions with one thing less each."""
    out = [replace(definition, extras=e) for e in _without_one(definition.extras)]
    out += [replace(definition, blocks=b) for b in _without_one(definition.blocks) if b]
    simple = replace(definition, loss="model(x).square().mean()")
    out += [simple] if simple != definition else []
    if definition.microbatches > 1:
        out.append(replace(definition, microbatches=1))
    if definition.after != ("optimizer.step()",):
        out.append(replace(definition, after=("optimizer.step()",)))
    if definition.before != ("optimizer.zero_grad()",):
        out.append(replace(definition, before=("optimizer.zero_grad()",)))
    plain = replace(definition, optimizer="torch.optim.SGD(ps, lr=0.05)")
    out += [plain] if plain != definition else []
    if definition.reduction != "none":
        out.append(replace(definition, reduction="none"))
    return out


def _without_one(items: tuple[object, ...]) -> list[tuple]:  # type: ignore[type-arg]
    return [items[:i] + items[i + 1 :] for i in range(len(items))]
