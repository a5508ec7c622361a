"""Ops without a lowering, and what to write instead of them."""

from __future__ import annotations

from dataclasses import dataclass

#: Instead of what normalises over a batch.
OF_BATCHES = (
    "LayerNorm, GroupNorm or RMSNorm; or the formula: mean and variance of x over the batch, "
    "all-reduced if the batch "
    "is sharded, and buffers for the running ones"
)


@dataclass(frozen=True)
class MissingOp:
    """A row for ops without a lowering: what they are, and what to write instead."""

    what: str
    ops: tuple[str, ...]
    instead: str


#: By the name of the op alone; ``rand`` stands for ``rand_like`` and ``rand_`` too.
OPS: tuple[MissingOp, ...] = (
    MissingOp(
        "random numbers (dropout, `rand`, `normal_`, …)",
        (
            *("bernoulli", "native_dropout", "rand", "randn", "randint", "randperm", "normal", "uniform"),
            *("multinomial", "exponential", "geometric", "cauchy", "log_normal", "random", "rrelu"),
        ),
        "the mask or noise as an entry of the batch, sharded as it is drawn; or model.eval() and p=0",
    ),
    MissingOp(
        "selection by rank (`kthvalue`, `median`, `mode`)",
        ("kthvalue", "median", "mode"),
        "torch.sort or torch.topk, and the element at its place",
    ),
    MissingOp(
        "rounding and remainders (`floor`, `round`, `//`, `%`, `fmod`)",
        ("floor", "ceil", "round", "trunc", "frac", "fmod", "remainder", "floor_divide"),
        "positions by reshape and arange (x.view(n, k) for i // k and i % k); or the numbers as an "
        "integer entry of the batch, with bounds",
    ),
    MissingOp(
        "products of many elements (`prod`, `cumprod`)",
        ("prod", "cumprod", "logcumsumexp", "cummax", "cummin"),
        "the factors one by one; of positive numbers torch.exp of a sum of logarithms",
    ),
    MissingOp(
        "images of another size, by weights between pixels (`interpolate`, `grid_sample`)",
        (
            *("upsample_bicubic2d", "upsample_trilinear3d", "upsample_nearest3d"),
            *("grid_sampler_2d", "grid_sampler_3d"),
        ),
        'mode="bilinear", or a product with the weights as a buffer',
    ),
    MissingOp(
        "pooling where windows are drawn or adapt (`adaptive_max_pool`, `fractional_max_pool`)",
        ("adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d"),
        "max_pool2d or amax over a reshape",
    ),
    MissingOp(
        "`embedding_bag`, and embeddings whose rows are normalised (`max_norm`)",
        ("_embedding_bag", "_embedding_bag_forward_only", "embedding_renorm"),
        "embedding, and a sum or mean over the bag",
    ),
    MissingOp(
        "distances of all pairs (`cdist`, `pdist`)",
        ("_cdist_forward", "_pdist_forward", "_euclidean_dist"),
        "the formula by broadcasting: (x[:, None] - y[None]).square().sum(-1).sqrt()",
    ),
    MissingOp(
        "a choice in the order of true elements (`masked_scatter`, `masked_select`)",
        ("masked_scatter", "masked_select", "nonzero_static"),
        "torch.where(mask, x, y)",
    ),
    MissingOp(
        "inverse and special functions (`atan`, `acos`, `lgamma`, `erfinv`, …), which a plan cannot name",
        (
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atan2",
            "atanh",
            "lgamma",
            "digamma",
            "erfinv",
            "polygamma",
        ),
        "their values as a buffer or an entry of the batch; ops that a plan has (docs/format.md)",
    ),
    MissingOp(
        "Fourier transforms and decompositions of matrices (`fft`, `svd`, `cholesky`, `inverse`, `det`)",
        (
            *("_fft_c2c", "_fft_c2r", "_fft_r2c", "_linalg_svd", "_linalg_eigh", "linalg_cholesky_ex"),
            *("linalg_qr", "linalg_inv_ex", "_linalg_det", "_linalg_solve_ex", "linalg_lu_factor_ex"),
            "_linalg_slogdet",
        ),
        "what they give as a buffer or an entry of the batch",
    ),
)

_OTHER = "the formula in ops that have a lowering (orchestrator/capture/lowering/)"


def instead_of(op: str) -> str:
    """What to write instead of an op without a lowering, from its recorded name."""
    name = op.split(".")[1] if "." in op else op
    row = next((r for r in OPS if any(name == op or name.startswith(f"{op}_") for op in r.ops)), None)
    return _OTHER if row is None else row.instead
