"""Contractions, reductions, lookups, writes at indices, creation and complex numbers.

The import of FSDP's collectives defines the ops of the namespace ``fsdp``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.fsdp._fully_shard._fsdp_collectives
import torch.nn.functional as F

from .kit import ALL, FLOATS, NUMBERS, Case, Draw, cases, gradients, inplace, with_out

aten, fsdp = torch.ops.aten, torch.ops.fsdp


# --- contractions ----------------------------------------------------------------------------------------


@cases("aten.mm", "aten.bmm", "aten.mv")
def _product(d: Draw, name: str) -> Case:
    a, b, c, n = (d.size() for _ in range(4))
    dtype = d.one(torch.float64, torch.float32, torch.int64)
    x = d.tensor((n, a, b) if name == "bmm" else (a, b), dtype)
    y = d.tensor({"mm": (b, c), "bmm": (n, b, c), "mv": (b,)}[name], dtype)
    if dtype.is_floating_point and name != "mv" and d.chance(0.3):
        return Case(
            gradients(getattr(torch, name)), (x, y, d.tensor((a, c) if name == "mm" else (n, a, c), dtype))
        )
    return Case(d.one(getattr(torch, name), with_out(getattr(torch, name))), (x, y))


@cases("aten.addmm")
def _addmm(d: Draw) -> Case:
    a, b, c = (d.size() for _ in range(3))
    options = {k: d.one(0, 1, 0.5, -2) for k in ("beta", "alpha") if d.chance(0.5)}
    dtype = d.one(torch.float64, torch.float32)
    args = (d.tensor(d.like((a, c)), dtype), d.tensor((a, b), dtype), d.tensor((b, c), dtype))
    return Case(d.one(torch.addmm, with_out(torch.addmm)), args, options)


# --- reductions ------------------------------------------------------------------------------------------


def _dims(d: Draw, rank: int) -> Any:
    if not rank:
        return d.one(None, 0, -1, [], [0])
    some = d.random.sample(range(rank), d.random.randint(1, rank))
    return d.one(None, [], some, [s - rank for s in some], some[0], some[0] - rank)


@cases("aten.sum", "aten.mean")
def _sum(d: Draw, name: str) -> Case:
    shape = d.shape()
    dtype = d.one(*ALL) if name == "sum" else d.one(*FLOATS)
    x, target = d.tensor(shape, dtype), d.one(None, None, torch.float64, torch.int64, torch.int8, torch.bool)
    options: dict[str, Any] = {} if target is None else {"dtype": target}
    if d.chance(0.7):
        options |= {"dim": _dims(d, len(shape)), "keepdim": d.chance(0.5)}
    refused = None
    if (
        target is not None
        and dtype.is_floating_point
        and not target.is_floating_point
        and target != torch.bool
    ):
        refused = "rounds and has no exact meaning"
    elif target == torch.int8:
        refused = "wraps around" if dtype not in (torch.int8, torch.bool) or shape else None
    return Case(getattr(torch, name), (x,), options, refused)


@cases("aten.linalg_vector_norm")
def _norm(d: Draw) -> Case:
    shape, order = d.shape(), d.one(2, 2.0, 1, float("inf"), float("-inf"), 0, 3, 0.5)
    options = {"dim": _dims(d, len(shape)), "keepdim": d.chance(0.5)} if d.chance(0.7) else {}
    x = d.tensor(shape, d.one(*FLOATS))
    return Case(torch.linalg.vector_norm, (x, order), options)


@cases("aten.linalg_vector_norm")
def _norm_backward(d: Draw) -> Case:
    shape, order = d.shape(), d.one(2, 1, 3, float("inf"))
    x = d.tensor(shape, torch.float64, "positive")
    return Case(gradients(lambda x: torch.linalg.vector_norm(x, order)), (x, d.tensor(())))


@cases("aten.amax", "aten.amin")
def _extreme(d: Draw, name: str) -> Case:
    shape = d.shape()
    options = {"dim": _dims(d, len(shape)), "keepdim": d.chance(0.5)} if d.chance(0.7) else {}
    if options.get("dim", 0) is None:
        del options["dim"]
    return Case(getattr(torch, name), (d.tensor(shape, d.one(*ALL)),), options)


@cases("aten.max.default", "aten.min.default")
def _extreme_of_all(d: Draw, name: str) -> Case:
    return Case(getattr(aten, name).default, (d.tensor(d.shape(), d.one(*ALL)),))


@cases("aten._softmax", "aten._log_softmax")
def _softmax(d: Draw, name: str) -> Case:
    shape = d.shape()
    dim = d.random.randint(-max(len(shape), 1), max(len(shape), 1) - 1)
    function = F.softmax if name == "_softmax" else F.log_softmax
    options = {"dtype": d.one(torch.float64, torch.float32)} if d.chance(0.3) else {}
    return Case(function, (d.tensor(shape, d.one(*FLOATS)), dim), options)


@cases("aten._softmax_backward_data", "aten._log_softmax_backward_data")
def _softmax_backward(d: Draw, name: str) -> Case:
    shape = d.shape()
    dim = d.random.randint(-max(len(shape), 1), max(len(shape), 1) - 1)
    function = F.softmax if name == "_softmax_backward_data" else F.log_softmax
    dtype = d.one(*FLOATS)
    x, g = d.tensor(shape, dtype), d.tensor(shape, dtype)
    if d.chance(0.4):
        return Case(lambda g, y: getattr(aten, name)(g, y, dim, dtype), (g, x))
    return Case(gradients(lambda a: function(a, dim)), (x, g))


# --- lookups and writes at indices -----------------------------------------------------------------------


@cases("aten.embedding")
def _embedding(d: Draw) -> Case:
    rows = d.size() + 1
    weight = d.tensor((rows, d.size()), d.one(*FLOATS))
    index = d.tensor(d.shape(0, 3), d.one(torch.int64, torch.int32), (0, rows))
    options = {"padding_idx": d.one(0, -1)} if d.chance(0.3) else {}
    return Case(F.embedding, (index, weight), options)


@cases("aten.embedding_dense_backward")
def _embedding_backward(d: Draw) -> Case:
    rows, width, shape = d.size() + 1, d.size(), d.shape(0, 3)
    index = d.tensor(shape, d.one(torch.int64, torch.int32), (0, rows))
    options: dict[str, Any] = {"padding_idx": d.one(0, -1)} if d.chance(0.4) else {}
    if d.chance(0.15):
        options["scale_grad_by_freq"] = True
    weight, g = d.tensor((rows, width)), d.tensor((*shape, width))
    if d.chance(0.4):
        keep = d.tensor(shape, torch.bool)
        return Case(
            lambda i, k, g: aten.embedding_dense_backward(
                torch.where(k[..., None], g, 0.0), i, rows, -1, False
            ),
            (index, keep, g),
        )
    refused = "scaled by frequency" if "scale_grad_by_freq" in options else None
    return Case(gradients(lambda i, w: F.embedding(i, w, **options)), (index, weight, g), {}, refused)


@cases("aten.gather")
def _gather(d: Draw) -> Case:
    shape = d.shape(1)
    dim, rank = d.random.randrange(len(shape)), len(shape)
    picked = [d.size() if i == dim else n if d.chance(0.7) else 1 for i, n in enumerate(shape)]
    args = (
        d.tensor(shape, d.one(*ALL)),
        d.one(dim, dim - rank),
        d.tensor(picked, torch.int64, (0, shape[dim])),
    )
    if d.chance(0.4):
        x, g = d.tensor(shape), d.tensor(picked)
        return Case(gradients(lambda a, i: a.gather(dim, i)), (x, args[2], g))
    return Case(torch.gather, args)


@cases("aten.gather", "aten.scatter_add", "aten.scatter")
def _scalars(d: Draw, name: str) -> Case:
    """A scalar has one dimension to these ops."""
    index = d.tensor(d.one((), (1,)), torch.int64, (0, 1))
    if name == "gather":
        return Case(torch.gather, (d.tensor(()), 0, index))
    index = d.tensor((), torch.int64, (0, 1))
    return Case(getattr(torch, name), (d.tensor(()), 0, index, d.tensor(())))


@cases("aten.index")
def _index(d: Draw) -> Case:
    shape = d.shape(1)
    n = shape[0]
    x = d.tensor(shape, d.one(*ALL))
    index = d.tensor(d.shape(0, 2), d.one(torch.int64, torch.int32), (-n, n))
    form = d.one("rows", "gradient")
    if form == "gradient":
        i = d.bases[index.number]
        return Case(
            gradients(lambda w, i: aten.index.Tensor(w, [i])),
            (d.tensor(shape), index, d.tensor((*index.view(i).shape, *shape[1:]))),
        )
    return Case(lambda a, i: aten.index.Tensor(a, [i]), (x, index))


def _indices(d: Draw, shape: tuple[int, ...]) -> tuple[list[Any], tuple[int, ...]]:
    """Some dimensions of ``shape`` are indexed, by tensors that broadcast or by a range; and their shape."""
    chosen = sorted(d.random.sample(range(len(shape)), d.random.randint(1, len(shape))))
    common, found = d.shape(0, 3), [None] * len(shape)
    for dim in chosen:
        n = shape[dim]
        axes = [a for a, size in enumerate(common) if size == n]
        if axes and d.chance(0.5):
            axis = d.one(*axes)
            found[dim] = ("range", n, [n if a == axis else 1 for a in range(len(common))])
        else:
            # PyTorch's own shape rule errs where a scalar and a tensor of one element index together.
            found[dim] = d.tensor(
                d.like(common) or (1,) * len(common), d.one(torch.int64, torch.int32), (-n, n)
            )
    shapes = [
        tuple(f[2]) if isinstance(f, tuple) else f.view(d.bases[f.number]).shape
        for f in found
        if f is not None
    ]
    return found, tuple(torch.broadcast_shapes(*shapes))


def _made(indices: list[Any]) -> list[Any]:
    return [torch.arange(i[1]).reshape(i[2]) if isinstance(i, tuple) else i for i in indices]


def _place_shape(shape: tuple[int, ...], indices: list[Any], common: tuple[int, ...]) -> tuple[int, ...]:
    dims = [i for i, f in enumerate(indices) if f is not None]
    rest = [n for i, n in enumerate(shape) if indices[i] is None]
    before = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    return (*rest[:before], *common, *rest[before:])


@cases("aten.index", "aten._unsafe_index", "aten.index_put", "aten._unsafe_index_put")
def _several(d: Draw, name: str) -> Case:
    """Several index tensors, and dimensions that none indexes before, between and behind them."""
    shape = d.shape(1)
    indices, common = _indices(d, shape)
    whole = _place_shape(shape, indices, common)
    function = getattr(aten, name)
    if name.endswith("index"):
        if d.chance(0.4):
            run = gradients(lambda w, i: aten.index.Tensor(w, _made(i)))
            return Case(
                run if name == "index" else lambda w, i, g: function(w, _made(i)) * g,
                (d.tensor(shape), indices, d.tensor(whole)),
            )
        return Case(lambda a, i: function(a, _made(i)), (d.tensor(shape, d.one(*ALL)), indices))
    if d.chance(0.3):  # the same everywhere
        rest = [
            1 if before <= at < before + len(common) else n for before in [0] for at, n in enumerate(whole)
        ]
        values = d.tensor(rest if whole[: len(common)] == common and d.chance(0.5) else ())
        return Case(lambda a, i, v: function(a, _made(i), v), (d.tensor(shape), indices, values))
    values = d.tensor(d.like(whole))
    return Case(lambda a, i, v: function(a, _made(i), v, True), (d.tensor(shape), indices, values))


@cases("aten.index_put")
def _put_at_distinct(d: Draw) -> Case:
    """One entry of each row is written: no two values meet. Without the range they may."""
    rows, width, rest = d.size() + 1, d.size() + 1, d.shape(0, 2)
    x, columns = d.tensor((rows, width, *rest)), d.tensor((rows,), torch.int64, (-width, width))
    values = d.tensor((rows, *rest))
    if d.chance(0.3):
        firsts = d.tensor((rows,), torch.int64, (0, 1))
        run = lambda a, r, i, v: a.index_put((r, i), v)  # noqa: E731
        wide = d.tensor((rows, *rest), plain=True)
        return Case(run, (x, firsts, columns, wide), {}, "two may be equal")
    return Case(lambda a, i, v: a.index_put((torch.arange(rows), i), v), (x, columns, values))


@cases("aten.index_select")
def _index_select(d: Draw) -> Case:
    shape = d.shape(1)
    dim = d.random.randrange(len(shape))
    index = d.tensor((d.size(),), d.one(torch.int64, torch.int32), (0, shape[dim]))
    return Case(torch.index_select, (d.tensor(shape, d.one(*ALL)), d.one(dim, dim - len(shape)), index))


@cases("aten.index_put")
def _index_put(d: Draw) -> Case:
    inside = d.chance(0.4)
    form = d.one("rows", "rows", "mask", "columns", "columns", "other")
    put = inplace(torch.Tensor.index_put_) if inside else torch.index_put
    if form == "rows":
        shape, count = d.shape(1, 3), d.shape(0, 2)
        x = d.tensor(shape, written=inside)
        index = d.tensor(count, torch.int64, (-shape[0], shape[0]))
        values = d.like((*count, *shape[1:]))
        accumulate = d.chance(0.6)
        spread = (1,) * (len(count) + len(shape) - 1 - len(values)) + values
        apart = {1} >= set(count) or {1} >= set(spread[: len(count)])
        refused = None if accumulate or apart else "two may be equal"
        values = d.tensor(values)
        return Case(put, (x, (index,), values, accumulate), {}, refused)
    if form == "mask":
        shape = d.shape(1, 3)
        depth = d.random.randint(1, len(shape))
        x, mask = d.tensor(shape, written=inside), d.tensor(shape[:depth], torch.bool)
        values = d.tensor(d.one((), d.like(shape[depth:]), (1, *shape[depth:])))
        accumulate = d.chance(0.2)
        return Case(put, (x, (mask,), values, accumulate), {}, "that are added" if accumulate else None)
    rows, width = d.size(), d.size()
    x = d.tensor((rows, width), written=inside)
    columns = d.tensor(d.one((rows,), (1,), ()), torch.int64, (-width, width))
    values = d.tensor(d.one((rows,), (1,), ()))
    if form == "columns":
        run = lambda t, i, v: t.index_put_((torch.arange(rows), i), v)  # noqa: E731
        return Case(inplace(run) if inside else lambda t, i, v: run(t.clone(), i, v), (x, columns, values))
    rows += 1
    few = lambda t, i, v: t.index_put((torch.arange(rows - 1)[:1], i), v)  # noqa: E731
    x = d.tensor((rows - 1, width))
    return Case(few, (x, d.tensor((1,), torch.int64, (-width, width)), d.tensor(())))


@cases("aten.scatter", "aten.scatter_add", "aten.scatter_reduce")
def _scatter(d: Draw, name: str) -> Case:
    """The index may be smaller than the tensor, the source larger than the index; entries may meet."""
    shape = d.shape(1)
    dim, rank = d.random.randrange(len(shape)), len(shape)
    picked = [d.size() if i == dim else d.random.randint(1, n) for i, n in enumerate(shape)]
    index = d.tensor(picked, torch.int64, (0, shape[dim]))
    source = d.tensor([n + d.one(0, 0, 1) for n in picked])
    where = d.one(dim, dim - rank)
    if name == "scatter":
        form = d.one("value", "source", "one", "range")
        if form == "value":
            return Case(torch.scatter, (d.tensor(shape), where, index, d.one(2.5, 0)))
        if form == "range":
            places = [-1 if i == dim else 1 for i in range(rank)]

            def run(a: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
                return a.scatter(where, torch.arange(shape[dim]).view(places).expand(shape), s)

            return Case(run, (d.tensor(shape), d.tensor(shape)))
        if form == "one":
            picked[dim] = 1
            index = d.tensor(picked, torch.int64, (0, shape[dim]))
            return Case(torch.scatter, (d.tensor(shape), where, index, source))
        refused = "two may be equal" if picked[dim] > 1 else None
        return Case(torch.scatter, (d.tensor(shape), where, index, source), {}, refused)
    if name == "scatter_add":
        if d.chance(0.4):
            run = gradients(lambda a, s, i: a.scatter_add(where, i, s))
            return Case(run, (d.tensor(shape), d.tensor(picked), index, d.tensor(shape)))
        dtype = d.one(torch.float64, torch.int64)
        return Case(
            inplace(torch.Tensor.scatter_add_),
            (d.tensor(shape, dtype, written=True), where, index, d.tensor(picked, dtype)),
        )
    reduce, inside = d.one("sum", "amax", "amin", "amax", "amin", "mean", "prod"), d.chance(0.85)
    refused = None if inside and reduce not in ("mean", "prod") else "scatter_reduce with"
    return Case(
        torch.scatter_reduce,
        (d.tensor(shape), where, index, source, reduce),
        {"include_self": inside},
        refused,
    )


@cases("aten.index_add", "aten.index_fill")
def _rows_at(d: Draw, name: str) -> Case:
    shape = d.shape(0)
    rank = len(shape)
    dim = d.random.randrange(rank) if rank else 0
    n, count = shape[dim] if rank else 1, d.size() if rank else 1
    where = d.one(dim, dim - max(rank, 1))
    if name == "index_fill":
        index = d.tensor((count,), torch.int64, (-n, n))
        return Case(torch.index_fill, (d.tensor(shape), where, index, d.one(1.5, 0, d.tensor(()))))
    index = d.tensor((count,), d.one(torch.int64, torch.int32), (0, n))
    source = d.tensor([count if i == dim else m for i, m in enumerate(shape)])
    options = {"alpha": d.one(2, -0.5)} if d.chance(0.4) else {}
    return Case(torch.index_add, (d.tensor(shape), where, index, source), options)


@cases("aten.cat", "aten.stack")
def _joined(d: Draw, name: str) -> Case:
    shape = list(d.shape(1 if name == "cat" else 0))
    rank = len(shape) + (name == "stack")
    dim = d.random.randrange(rank)
    parts = []
    for _ in range(d.random.randint(1, 3)):
        if name == "cat":
            shape[dim] = d.size()
        parts.append(d.tensor(shape, d.one(torch.float64, torch.float32, torch.int64, torch.bool)))
    return Case(getattr(torch, name), (parts, d.one(dim, dim - rank)))


@cases("aten.constant_pad_nd")
def _pad(d: Draw) -> Case:
    shape, dtype = d.shape(1), d.one(*NUMBERS, torch.bool)
    pads = [
        d.one(0, 0, 1, 2, 3, -1 if d.chance(0.1) else 1) for _ in range(2 * d.random.randint(1, len(shape)))
    ]
    value = d.one(0, 1) if not dtype.is_floating_point else d.one(0.0, 7.0, -0.5, float("-inf"))
    return Case(F.pad, (d.tensor([n + 1 for n in shape], dtype), pads), {"value": value})


@cases("aten.slice_backward", "aten.select_backward")
def _slice_backward(d: Draw, name: str) -> Case:
    shape = d.shape(1)
    dim, rank = d.random.randrange(len(shape)), len(shape)
    n = shape[dim]
    if name == "select_backward":
        g, at = d.tensor((*shape[:dim], *shape[dim + 1 :])), d.random.randint(-n, n - 1)
        if d.chance(0.5):
            return Case(gradients(lambda a: a.select(dim, at)), (d.tensor(shape), g))
        return Case(aten.select_backward, (g, shape, d.one(dim, dim - rank), at))
    start, end, step = d.random.randint(-n - 1, n), d.one(n, -1, n + 3, 2**62), d.one(1, 1, 2, 3)
    count = len(range(n)[slice(start, end, step)])
    g = d.tensor([count if i == dim else m for i, m in enumerate(shape)])
    if d.chance(0.5) and count not in (0, n):
        cut = (slice(None),) * dim + (slice(start, end, step),)
        return Case(
            gradients(lambda a: a[cut] * 1.0), (d.tensor(shape), g), {}, None if count else "empty|overlap"
        )
    return Case(
        aten.slice_backward,
        (g, shape, d.one(dim, dim - rank), start, end, step),
        {},
        None if count else "empty|overlap",
    )


# --- FSDP's copies ---------------------------------------------------------------------------------------


def _sizes(d: Draw) -> list[int]:
    return [d.size() for _ in range(d.random.randint(1, 3))]


@cases("aten.split_with_sizes_copy")
def _split(d: Draw) -> Case:
    sizes, shape = _sizes(d), list(d.shape(1))
    dim = d.random.randrange(len(shape))
    shape[dim] = sum(sizes)
    return Case(
        torch.split_with_sizes_copy, (d.tensor(shape, d.one(*ALL)), sizes, d.one(dim, dim - len(shape)))
    )


@cases("fsdp.split_with_sizes_copy")
def _fsdp_split(d: Draw) -> Case:
    sizes, rows = _sizes(d), d.size()

    def run(x: torch.Tensor) -> Any:
        outs = [x.new_empty((rows, n)) for n in sizes]
        fsdp.split_with_sizes_copy(x, sizes, 1, out=outs)
        return outs

    return Case(run, (d.tensor((rows, sum(sizes))),))


@cases("aten._chunk_cat", "fsdp.chunk_cat")
def _chunk_cat(d: Draw, name: str) -> Case:
    chunks = d.one(1, 2, 3, 4)
    parts = [d.tensor((d.size(), *d.shape(0, 2))) for _ in range(d.random.randint(1, 3))]
    if name == "_chunk_cat":
        return Case(torch._chunk_cat, (parts, 0, chunks))

    def run(parts: list[torch.Tensor]) -> torch.Tensor:
        out = torch._chunk_cat(parts, 0, chunks)
        fresh = torch.empty_like(out)
        fsdp.chunk_cat(parts, 0, chunks, out=fresh)
        return fresh

    return Case(run, (parts,))


@cases("fsdp.all_gather_copy_in.default")
def _copy_in(d: Draw) -> Case:
    sizes, ranks = _sizes(d), d.one(1, 2, 3)
    rank = d.random.randrange(ranks)
    parts = [d.tensor((n,)) for n in sizes]

    def run(whole: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        whole = whole.clone()
        fsdp.all_gather_copy_in(list(parts), whole, sizes, sum(sizes), rank)
        return whole

    return Case(run, (d.tensor((ranks * sum(sizes),)), *parts))


@cases("aten._foreach_copy_.default")
def _copies(d: Draw) -> Case:
    shapes = [d.shape() for _ in range(2)]
    dtypes = [d.one(*FLOATS) for _ in range(2)]

    def run(a: torch.Tensor, b: torch.Tensor, *sources: torch.Tensor) -> Any:
        targets = [torch.empty_like(a), b.clone()]
        torch._foreach_copy_(targets, list(sources))
        return targets

    return Case(
        run,
        tuple(d.tensor(s, t) for s, t in zip(shapes, dtypes, strict=True))
        + tuple(d.tensor(s) for s in shapes),
    )


# --- creation --------------------------------------------------------------------------------------------


@cases(
    "aten.zeros",
    "aten.ones",
    "aten.zeros_like",
    "aten.ones_like",
    "aten.new_zeros",
    "aten.new_ones",
    "aten.zero",
)
def _filled(d: Draw, name: str) -> Case:
    shape, dtype = d.shape(), d.one(*ALL)
    x = d.tensor(d.shape(), d.one(*ALL), written=name == "zero")
    if name == "zero":
        return Case(inplace(torch.Tensor.zero_), (x,))
    options = {"dtype": dtype} if d.chance(0.5) else {}
    if name.endswith("_like"):
        return Case(getattr(torch, name), (x,), options)
    if name.startswith("new_"):
        return Case(getattr(torch.Tensor, name), (x, shape), options)
    return Case(lambda a: getattr(torch, name)(shape, **options), (x,))


@cases("aten.full", "aten.full_like", "aten.new_full", "aten.fill", "aten.scalar_tensor")
def _full(d: Draw, name: str) -> Case:
    shape, dtype = d.shape(), d.one(*ALL)
    x = d.tensor(shape, dtype, written=name == "fill")
    value = (
        d.one(0, 1, 2.0, True, -0.0)
        if not dtype.is_floating_point
        else d.one(0, 1.5, True, float("-inf"), -2)
    )
    if name == "fill":
        given: Any = d.tensor((), dtype) if d.chance(0.4) else value
        return Case(inplace(torch.Tensor.fill_), (x, given))
    if name == "full_like":
        return Case(torch.full_like, (x, value), {"dtype": dtype} if d.chance(0.5) else {})
    if name == "new_full":
        return Case(torch.Tensor.new_full, (x, d.shape(), value))
    if name == "scalar_tensor":
        return Case(lambda a: aten.scalar_tensor(value, dtype=dtype), (x,))
    return Case(lambda a: torch.full(shape, value, dtype=dtype), (x,))


@cases("aten.arange")
def _arange(d: Draw) -> Case:
    bounds = d.one((5,), (2, 7), (-3, 4, 2), (7, 1, -2), (0.5, 3.0), (0, 1, 0.25), (3.5,), (4, 1, -1))
    dtype = d.one(None, torch.float64, torch.int64, torch.int32)
    refused = None
    if 0.25 in bounds:  # among integers the step would be 0
        dtype = None
    if dtype in (torch.int64, torch.int32) and any(isinstance(b, float) for b in bounds) and len(bounds) > 1:
        refused = "among integers|of integer type"
    return Case(lambda a: torch.arange(*bounds, dtype=dtype), (d.tensor(()),), {}, refused)


@cases(
    *("aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_like.default"),
    *("aten.new_empty.default", "aten.new_empty_strided.default"),
)
def _empty(d: Draw, name: str) -> Case:
    shape = d.shape(1)
    stride = torch.zeros(shape[::-1]).permute(*range(len(shape) - 1, -1, -1)).stride()
    make = {
        "empty": lambda a: torch.empty(shape, dtype=a.dtype),
        "empty_strided": lambda a: torch.empty_strided(shape, stride, dtype=a.dtype),
        "empty_like": torch.empty_like,
        "new_empty": lambda a: a.new_empty(shape),
        "new_empty_strided": lambda a: a.new_empty_strided(shape, stride),
    }[name]

    def run(a: torch.Tensor) -> torch.Tensor:
        fresh = make(a)
        fresh[0] = 1
        fresh[1:] = a[1:]
        return fresh

    return Case(run, (d.tensor(shape, d.one(*FLOATS)),))


# --- lists -----------------------------------------------------------------------------------------------


@cases("aten.add", "aten.sub", "aten.mul", "aten.div")
def _of_lists(d: Draw, name: str) -> Case:
    shapes = [d.shape() for _ in range(d.random.randint(1, 3))]
    xs = [d.tensor(s, written=True) for s in shapes]
    form = d.one("list", "scalar", "scalars", "tensor")
    ys: Any = {
        "list": lambda: [d.tensor(s, torch.float64, "positive") for s in shapes],
        "scalar": lambda: d.one(2, 0.5),
        "scalars": lambda: [d.one(2, 0.5) for _ in shapes],
        "tensor": lambda: d.tensor((), torch.float64, "positive"),
    }[form]()
    options = (
        {"alpha": d.one(2, -0.5)}
        if name in ("add", "sub") and form in ("list", "tensor") and d.chance(0.5)
        else {}
    )
    if name in ("add", "sub") and form == "tensor":  # fake tensors cannot
        ys, options = 2, {}

    def run(xs: list[torch.Tensor], ys: Any) -> Any:
        targets = [x.clone() for x in xs]
        getattr(torch, f"_foreach_{name}_")(targets, ys, **options)
        return targets, getattr(torch, f"_foreach_{name}")(xs, ys, **options)

    return Case(run, (xs, ys))


@cases(
    *("aten.sqrt", "aten.neg", "aten.exp", "aten.abs", "aten.sign", "aten.reciprocal", "aten.rsqrt"),
    *(
        "aten.log",
        "aten.sin",
        "aten.cos",
        "aten.tanh",
        "aten.sigmoid",
        "aten.log1p",
        "aten.expm1",
        "aten.erf",
    ),
    "aten.erfc",
)
def _unary_of_lists(d: Draw, name: str) -> Case:
    xs = [d.tensor(d.shape(), torch.float64, "positive") for _ in range(d.random.randint(1, 3))]
    return Case(getattr(torch, f"_foreach_{name}"), (xs,))


@cases("aten.lerp", "aten.addcmul", "aten.addcdiv", "aten.pow", "aten.clamp_min", "aten.clamp_max")
def _fused_of_lists(d: Draw, name: str) -> Case:
    shapes = [d.shape() for _ in range(d.random.randint(1, 3))]
    lists = [[d.tensor(s, torch.float64, "positive") for s in shapes] for _ in range(3)]
    inside = d.chance(0.5)
    function = getattr(torch, f"_foreach_{name}{'_' if inside else ''}")

    def run(xs: list[torch.Tensor], *rest: Any) -> Any:
        targets = [x.clone() for x in xs]
        found = function(targets, *rest)
        return targets if inside else found

    number, numbers = d.one(0.5, 2), [d.one(0.5, 2) for _ in shapes]
    if name in ("addcmul", "addcdiv"):
        return Case(run, (*lists, d.one(number, numbers)))
    if name == "lerp":
        return Case(run, (lists[0], lists[1], d.one(number, lists[2])))
    return Case(run, (lists[0], d.one(number, numbers, lists[1])))


@cases("aten.maximum", "aten.minimum")
def _extremes_of_lists(d: Draw, name: str) -> Case:
    shapes = [d.shape() for _ in range(d.random.randint(1, 3))]
    lists = [[d.tensor(s) for s in shapes] for _ in range(2)]
    return Case(getattr(torch, f"_foreach_{name}"), tuple(lists))


@cases("aten.linalg_vector_norm")
def _norm_of_lists(d: Draw) -> Case:
    xs = [d.tensor(d.shape(), torch.float32) for _ in range(d.random.randint(1, 3))]
    order = d.one(2, 2.0, 1)
    options = {"dtype": torch.float64} if d.chance(0.4) else {}
    return Case(torch._foreach_norm, (xs, order), options)


@cases("aten.zero")
def _zero_of_lists(d: Draw) -> Case:
    def run(*xs: torch.Tensor) -> Any:
        targets = [x.clone() for x in xs]
        torch._foreach_zero_(targets)
        return targets

    return Case(run, tuple(d.tensor(d.shape()) for _ in range(2)))


# --- complex numbers -------------------------------------------------------------------------------------


def _complex(d: Draw, shape: Any) -> Any:
    return d.tensor((*shape, 2), d.one(torch.float64, torch.float32), plain=True)


def _of(function: Any) -> Any:
    """``function`` of complex tensors, given and returned as pairs of reals."""
    return lambda *xs: torch.view_as_real(function(*(torch.view_as_complex(x) for x in xs)).resolve_conj())


@cases("complex.aten.mul", "complex.aten.add", "complex.aten.sub")
def _complex_arithmetic(d: Draw, name: str) -> Case:
    shape = d.shape(0, 3)
    function = getattr(torch, name)
    x = _complex(d, shape)
    if d.chance(0.15):
        number = d.one(2, 1j)
        return Case(_of(lambda a: function(a, number)), (x,), {}, "of a complex tensor and a number")
    if name != "mul" and d.chance(0.15):
        y = _complex(d, shape)
        return Case(_of(lambda a, b: function(a, b, alpha=2)), (x, y), {}, "of a complex tensor and a number")
    y = _complex(d, d.like(shape))
    if d.chance(0.4):
        return Case(_of(lambda a, b: function(a.conj(), b.conj() if a is b else b)), (x, y))
    return Case(_of(function), (x, y))


@cases("complex.aten.complex", "complex.aten.polar")
def _complex_made(d: Draw, name: str) -> Case:
    """Tables of rotations are made of lengths and angles."""
    shape = d.shape(0, 3)
    function = getattr(torch, name)
    if shape and d.chance(0.15):
        other = d.tensor((1, *shape[1:]) if shape[0] > 1 else (2, *shape[1:]))
        made = lambda x, y: torch.view_as_real(function(x, y))  # noqa: E731
        return Case(made, (d.tensor(shape), other), {}, "a complex tensor of parts of different shapes")
    return Case(lambda x, y: torch.view_as_real(function(x, y)), (d.tensor(shape), d.tensor(shape)))


@cases("complex.aten.clone", "complex.aten._to_copy")
def _complex_copy(d: Draw, name: str) -> Case:
    x = _complex(d, d.shape(0, 3))
    conj = d.chance(0.5)
    if name == "_to_copy":
        dtype = d.one(torch.complex128, torch.complex64)
        return Case(_of(lambda a: aten._to_copy(a.conj() if conj else a, dtype=dtype)), (x,))
    return Case(_of(lambda a: (a.conj() if conj else a).clone()), (x,))


@cases("complex.aten._conj_physical")
def _conjugated(d: Draw) -> Case:
    return Case(_of(lambda a: aten._conj_physical(a)), (_complex(d, d.shape(0, 3)),))
