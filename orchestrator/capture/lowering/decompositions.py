"""Ops that PyTorch takes apart by itself: its own decomposition runs on fake tensors, and what it runs is
lowered.

A decomposition gives the same numbers as the op up to rounding, for all arguments: compilers rely on it.
Still only ops of :data:`DECOMPOSED` are taken apart, each compared with the op's kernel on random calls
(``tests/orchestrator/capture/differential/``); their arguments need no account of their own, for the
decomposition is called with all of them. An in-place op is its functional form, written back, like all
others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import LoweringError
from ..recorder import DTYPES, Node, Recorder, TensorRef, recording, reference

#: Names without overload of ops that are lowered by what PyTorch says they are.
DECOMPOSED = frozenset(
    (
        # activations and their gradients
        *(
            "celu",
            "elu",
            "elu_backward",
            "glu",
            "glu_backward",
            "hardshrink",
            "softshrink",
            "threshold",
        ),
        *("hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward"),
        *("hardtanh", "hardtanh_backward", "leaky_relu", "leaky_relu_backward"),
        *("mish", "mish_backward"),
        *("_prelu_kernel", "_prelu_kernel_backward"),
        # losses
        *("smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward"),
        *("binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits"),
        *("soft_margin_loss", "soft_margin_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
        # products
        *("addmv", "addr", "baddbmm", "dot", "vdot"),
        # reductions and functions
        *("logaddexp2", "aminmax", "count_nonzero", "dist", "norm", "renorm"),
        *("isinf", "isposinf", "isneginf", "isnan", "nan_to_num", "heaviside", "deg2rad", "rad2deg"),
        *("_safe_softmax", "special_entr"),
        # normalisation
        *("native_group_norm", "native_group_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
        "_weight_norm_interface",
        # elements in other places
        *("diag_embed", "diagonal_backward", "diagonal_scatter"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "linspace", "eye", "index_copy", "rot90"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
        *("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
        *("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
        *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
    )
)
#: Gradients of a mean: PyTorch multiplies by the double nearest to 1/n, which n ranks do not add up to
#: what one device has. Here a mean divides by the exact count, as all others do.
MEANS = frozenset(("smooth_l1_loss_backward", "huber_loss_backward"))
_MEAN, _SUM = 1, 2
_TYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class Expansion:
    """What an op is made of. ``inputs`` pairs each tensor that it was given with its stand-in in ``nodes``.

    ``recorder`` keeps the stand-ins' storages alive, so that no other storage takes their identity.
    """

    nodes: list[Node]
    inputs: list[tuple[TensorRef, TensorRef]]
    outs: list[TensorRef | None]
    recorder: Recorder


def expand(node: Node) -> Expansion | None:
    """Run the decomposition of an op; ``None`` if it is not one of :data:`DECOMPOSED`."""
    overload = functional(node.op)
    return _run(node, overload) if overload is not None and taken_apart(node.op) else None


def taken_apart(op: str) -> bool:
    """Is ``namespace.name.overload`` one of :data:`DECOMPOSED`, or a form of it that writes its result?"""
    overload = functional(op)
    return overload is not None and overload.rsplit(".", 1)[0].removeprefix("aten.") in DECOMPOSED


@functools.cache
def functional(op: str) -> str | None:
    """The overload without writes of ``aten.name.overload``, with the same other arguments; itself mostly."""
    space, name, overload = op.split(".") if op.count(".") == 2 else ("", "", "")
    packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
    if packet is None or overload not in packet.overloads():
        return None
    wanted = _reads(getattr(packet, overload))
    if not getattr(packet, overload)._schema.is_mutable:
        return op
    pure = getattr(torch.ops.aten, name.rstrip("_"), packet)
    for candidate in pure.overloads():
        found = getattr(pure, candidate)
        if not found._schema.is_mutable and _reads(found) == wanted:
            return str(found)
    return None


def _reads(overload: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]


def _run(node: Node, name: str) -> Expansion:
    _, base, overload = name.split(".")
    op = getattr(getattr(torch.ops.aten, base), overload)
    decomposition: Callable[..., Any] | None = decomposition_table.get(op)
    if decomposition is None:
        raise LoweringError(f"PyTorch {torch.__version__} does not take this op apart")
    outs = {a.name for a in _overload(node.op)._schema.arguments if a.is_out}
    inputs: list[tuple[TensorRef, TensorRef]] = []
    mode, recorder = FakeTensorMode(), Recorder()

    def stand_in(item: Any) -> Any:
        if isinstance(item, TensorRef):
            if item.complex:
                raise LoweringError("a complex tensor")
            tensor = torch.empty(item.geometry.size, dtype=_TYPES[item.dtype])
            inputs.append((item, recorder.given({"": tensor})[""]))
            return tensor
        return _TYPES.get(item, item) if isinstance(item, str) else item

    with mode:
        args, kwargs = tree_map(
            stand_in, (node.args, {k: v for k, v in node.kwargs.items() if k not in outs})
        )
        with recording(recorder):
            if base in MEANS and args[3] == _MEAN:
                grad, x, target, _, *rest = args
                args = (grad / x.numel(), x, target, _SUM, *rest)
            results = decomposition(*args, **kwargs)
    leaves = [reference(x) if isinstance(x, torch.Tensor) else None for x in tree_leaves(results)]
    return Expansion(recorder.nodes, inputs, leaves, recorder)


def _overload(name: str) -> Any:
    _, base, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, base), overload)
