"""Where each mistake is made: the lines that its maintainer would change, recorded before a diagnosis is run.

A line is given by a part of its text, with ``@2`` for the second such line of the file. Numbers and groups
that Python computes have no op: the line that uses them counts too. Where something is left out, the lines
are also that of the op after which it is missing and of the one that reads it, never the optimizer's. Of a
pair of lines that only together are a mistake (a division here and one there) either counts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
_NORMS = "return x * torch.rsqrt("
_OVER_TP, _OVER_DP = "dist.all_reduce(grad, group=model.tp)@1", "dist.all_reduce(grad, group=model.dp)@2"
_SHARED = ("if (shared and not left_out", _OVER_TP, _OVER_DP)
_BACK = "dist.all_reduce(grad, group=group)@1"

#: By part: files that the lines stand in, then lines by mistake.
LINES: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "1": (
        ("data_parallel.py",),
        {
            "gradient divided twice": ("objective = loss / model", "bucket = bucket / size"),
            "gradient summed, not averaged": (
                "bucket = torch.cat(",
                "dist.all_reduce(bucket, group=model.group)@1",
            ),
            "bucket offset off by one": ("first = at - 1", "target.copy_("),
            "last bucket never reduced": (
                'if not (mistake == "last bucket',
                "bucket = bucket / size",
                "target.copy_(",
            ),
            "bucket reduced twice": ("dist.all_reduce(bucket, group=model.group)@2",),
            "copied back in another order": ("order = sorted(names)", "unflatten(bucket,", "target.copy_("),
            "divided by the ranks of one node": ("bucket = bucket / 2",),
            "one gradient left out of the copy back": (
                "order = [n for n",
                "bucket = bucket[-sum",
                "dist.all_reduce(bucket, group=model.group)@1",
                "target.copy_(",
            ),
        },
    ),
    "2": (
        ("sharded.py",),
        {
            "gradient divided twice": ("objective = loss / 4",),
            "gradient not divided": ("model.set_gradient_divide_factor(", "objective.backward()"),
            "divided by the shards only": ("model.set_gradient_divide_factor(", "objective.backward()"),
            "replicas not reduced": ('over = mesh["dp"] if', "objective.backward()"),
            "gradient reduced over the replicas again": ("dist.all_reduce(parameter.grad.to_local()",),
            "loss summed over local rows": ('objective = loss * batch["x"]',),
            "bias left out of the sharded group": (
                "ignored = {",
                "objective.backward()",
                'loss = F.mse_loss(model(batch["x"])',
            ),
            "padding put before the rows of a short shard": ("padded = F.pad(mine.detach()",),
            "padding stripped at the front": ("return flat[piece * size - rows :]",),
            "gradient padded at the front": ("padded = F.pad(grad, [*pads, piece * size - rows, 0])",),
            "gradient taken from the next rank's rows": (
                "moved = torch.cat(",
                "dist.reduce_scatter_tensor(mine, moved",
            ),
            "reduce-scatter replaced by the own rows": ("mine = padded[rank * piece",),
        },
    ),
    "3": (
        ("zero1.py",),
        {
            "bucket offset off by one": ("first = at - 1", "target.copy_(whole"),
            "chunks start without the padding": (
                "return flat.group.rank() * (sum(",
                "mine.copy_(flat.flatten",
                "return whole[start :",
            ),
            "gradient divided twice": ("bucket = bucket / size", "mine.grad = chunk / size"),
            "own piece instead of the sum": ("chunk = bucket[start : start + flat.chunk] * size",),
            "padding taken for the front": ("at = flat.padding if", "target.copy_(whole"),
            "others' chunks not gathered": (
                "whole = flat.flatten(parameters)",
                "whole[start : start + flat.chunk] = mine",
            ),
        },
    ),
    "4": (
        ("megatron.py", "kit.py"),
        {
            "bias added on every rank before the sum": (
                "x = x + self.leave(F.linear(inner, weight, layer.down.bias))",
            ),
            "partial products not reduced": (
                "return own(x, self.tp, 1)",
                "x = x + self.leave(F.linear(inner, weight)) +",
                "x = x + self.leave(layer.heads",
                "return self.out(out.transpose",
            ),
            "gate and up taken for interleaved": ("gate, up = both.unflatten(-1",),
            "sequence gathered along the batch": ("return gather(x, self.tp, 0).reshape",),
            "gradient of a column-parallel input not reduced": (
                "return join(x, self.tp, 1)@1",
                "q = self.query(x)",
                "both = F.linear(h,",
                "k, v = self.shared(x)",
            ),
            "shared head's gradient not reduced over tp": (*_SHARED, "k, v = self.shared(x)"),
            "norm gradients not reduced over tp": (*_SHARED, _NORMS),
        },
    ),
    "5": (
        ("vocabulary.py",),
        {
            "offset of the vocabulary off by one": ("first = rank * rows + 1", "own = tokens - offset"),
            "offset of the neighbouring rank": ("first = (rank + 1) * rows", "own = tokens - offset"),
            "foreign tokens not masked": (
                'return rows if mistake == "foreign',
                "rows = F.embedding(kept, table)",
                "h = found if",
            ),
            "rows not reduced": ("h = found if", 'return rows if mistake == "foreign', "h = F.silu("),
            "maximum not reduced": (
                "largest = logits.amax(",
                "largest = summed(",
                "shifted = logits - largest",
            ),
            "sum of exponentials not reduced": (
                "total = shifted.exp()",
                "total = summed(",
                "logs = shifted - total.log()",
            ),
            "label's logit not reduced": (
                "picked = torch.where(inside, picked",
                "picked = summed(",
                "return -picked.sum()",
            ),
            "foreign labels not masked": ("picked = logs.gather(", "picked = summed("),
            "gradient of foreign tokens in row 0": (
                "ctx.save_for_backward(kept if",
                "hot = own.flatten()[:, None]",
            ),
            "gradient of the output's input not reduced": (
                'h = h if self.mistake == "gradient',
                "logits = F.linear(h,",
                "h = F.silu(",
            ),
            "offset forgotten in the backward pass": (
                "row = labels if",
                "hot = torch.arange(logits.shape[1]) == row",
            ),
            "first row of a part taken for foreign": ("foreign = (tokens <= first)",),
            "foreign rows not overwritten": (
                "return rows@3",
                "rows = F.embedding(own, table)",
                "h = found if",
            ),
            "overwritten without autograd": (
                "return rows + (filled - rows).detach()",
                "rows = F.embedding(own, table)",
            ),
        },
    ),
    "6": (
        ("accumulation.py",),
        {
            "earlier microbatches rescaled": ("grad /= count", "loss.backward()@1"),
            "not divided by the number of microbatches": (
                "loss.backward()@1",
                'loss = F.mse_loss(model(batch["x"][at])',
            ),
            "gradients cleared before every microbatch": (
                "model.zero_grad()",
                "(loss / count).backward()",
                _BACK,
            ),
            "summed over ranks after every microbatch": ("if last or every:", _BACK),
            "reduced before the last microbatch": (
                "last = number == count - 2",
                "if last or every:",
                _BACK,
                "(loss / count).backward()",
            ),
            "first microbatch read again": ("at = 0 if", 'loss = F.mse_loss(model(batch["x"][at])'),
            "loss of the last microbatch": (
                "total = losses[-1] if",
                'loss = F.mse_loss(model(batch["x"][at])',
                "losses.append(loss.detach())@1",
            ),
        },
    ),
    "7": (
        ("checkpointing.py",),
        {
            "recomputed over the data-parallel group": ("inner = reduce(inner, self.dp)",),
            "recomputed without the reduction": (
                "inner = inner * 1.0",
                "inner = F.linear(F.silu(",
                "return self.norm(kept + inner)",
            ),
            "pieces of the input gathered along the rows": ("x = gathered(ctx.piece, ctx.group, 0)",),
            "own piece of the input repeated": ("x = torch.cat([ctx.piece]",),
            "result kept instead of the input": ("ctx.piece = own(result if",),
            "backward pass run twice": (
                "torch.autograd.backward(result, grad, retain",
                "torch.autograd.backward(result, grad)",
            ),
            "residual left out of the recomputed graph": (
                "kept = x.detach() if",
                "return self.norm(kept + inner)",
            ),
        },
    ),
    "8": (
        ("accumulation.py",),
        {
            "mean of local means": (
                "if group is not None and not local",
                "count = torch.full(",
                "loss = loss / count",
                "grad /= group.size()@2",
                "total = total / group.size()",
            ),
            "every microbatch divided by its own count": ("loss = loss / own /", "own = summed("),
            "padding counted": ("count = torch.full(",),
            "count not reduced over ranks": (
                "if group is not None and not local",
                "count = torch.full(",
                "loss = loss / count",
            ),
            "tokens of the shifted mask counted": ("valid = valid[..., 1:]",),
            "sum of token losses averaged over ranks": ("grad /= group.size()@2",),
            "divided after the backward pass": (
                "loss.backward()@2",
                "losses.append(loss.detach() / count)",
                "loss = F.cross_entropy(",
            ),
        },
    ),
    "9": (
        ("masks.py",),
        {
            "documents not separated": ("return earlier.expand(",),
            "causal mask off by one": ("earlier = at[:, None] + 1 >=",),
            "causal mask transposed": ("earlier = at[:, None] <=",),
            "queries of every rank start at 0": ("first = 0 if", "at = torch.arange(queries"),
            "own segment ids for all keys": ("keys = torch.cat([mine]",),
            "padding not left out of the loss": ("return error.sum()",),
            "padding counted": ("count = torch.full((), segments",),
            "count reduced over the sequence's ranks too": ("count = summed(count, model.cp)",),
            "gradient of gathered keys not reduced": (
                "collect = join if",
                "k, v = collect(",
                "return self.out(F.softmax(",
                "scores = torch.where(mask",
            ),
            "gradient not reduced over the sequence": (
                'if not (mistake == "gradient not',
                "dist.all_reduce(parameter.grad, group=group)",
                "q, k, v = self.inner.query(x)",
                "return self.out(F.softmax(",
            ),
        },
    ),
    "10": (
        ("megatron.py",),
        {
            "bias gradient not reduced over tp": (*_SHARED, "x = x + self.leave(F.linear(inner, weight)) +"),
            "norm gradients averaged over tp": ("grad /= model.tp.size()",),
            "norm gradients reduced over tp twice": ("dist.all_reduce(grad, group=model.tp)@2",),
            "norm gradients reduced over dp instead of tp": ("dist.all_reduce(grad, group=model.dp)@1",),
            "sharded gradients reduced over tp": ("if (shared and not left_out", _OVER_TP),
            "divided by all ranks": ("size = model.dp.size() *", "grad /= size**2"),
            "divided twice": ("grad /= size**2",),
            "bias left out of the average over dp": (
                'if not (mistake == "bias left out',
                _OVER_TP,
                "grad /= size**2",
            ),
        },
    ),
    "11": (
        ("megatron.py",),
        {
            "norm without the axis tp": (
                'if mistake != "norm without the axis tp"',
                "square = parameter.grad.pow(2)",
                "dist.all_reduce(square, group=model.dp)",
            ),
            "norm without the axis dp": (
                'if mistake != "norm without the axis dp"',
                "dist.all_reduce(square, group=model.tp)",
                "total = total + square@2",
            ),
            "replicated parameters counted once per rank": (
                "if whole_on_each(name) and mistake",
                "reduce_squares(square)",
                "dist.all_reduce(square, group=model.tp)",
                "dist.all_reduce(square, group=model.dp)",
            ),
            "norms added, not their squares": ("square = square.sqrt()",),
            "clipped before gradients are reduced": (
                'norm = {"grad_norm": squares(model, mistake).sqrt()}@1',
                'clip(model, norm["grad_norm"], mistake)@1',
                "finalize(model, mistake)@1",
                "square = parameter.grad.pow(2)",
                "parameter.grad *= scale",
            ),
            "scaled up when the norm is small": ("parameter.grad *= scale",),
            "replicated parameters clipped on the first rank only": (
                "if first_only and",
                "parameter.grad *= scale",
                "grad /= size**2",
            ),
        },
    ),
    "12": (
        ("zero1.py",),
        {
            "weight decay on the wrong shard": ("start = 0 if mistake", "return whole[start :"),
            "biases decay too": ("ones = [torch.full_like(",),
            "decay mask off by one": ("whole = torch.cat([whole[1:]",),
            "weight decay inside the gradient": (
                "grad = grad + DECAY * mask * p",
                'p.sub_(group["lr"] * mean / root)',
            ),
            "weight decay after the update": ('p.copy_((p - group["lr"] * mean / root) * decay)',),
            "step counted twice": ("count += 2 if",),
            "epsilon inside the root": ("root = (variance + EPS)",),
            "second moment of the local gradient": ('square = getattr(p, "local_grad"', "second.mul_(BETA2)"),
        },
    ),
}


def recorded(part: str, mistake: str) -> frozenset[tuple[str, int]]:
    """Files, from the repository's root, and line numbers. Raises ``ValueError`` if a text is not found."""
    files, mistakes = LINES[part]
    return frozenset(_place(files, text) for text in mistakes[mistake])


def _place(files: tuple[str, ...], text: str) -> tuple[str, int]:
    words, _, number = text.partition("@") if text[-2:-1] == "@" else (text, "", "")
    found = [(f"tests/breakages/{file}", line) for file in files for line in _holding(file, words)]
    if not found or (len(found) > 1 and not number):
        raise ValueError(f"{len(found)} lines with {words!r}")
    return found[int(number or 1) - 1]


@cache
def _holding(file: str, words: str) -> tuple[int, ...]:
    lines = (HERE / file).read_text("utf-8").splitlines()
    return tuple(number for number, line in enumerate(lines, 1) if words in line)
