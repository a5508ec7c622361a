"""Tensors without elements: shards of the ranks that own no row, where there are more ranks than rows.

No plan has them. What an op makes of nothing is nothing, or 0 if it is a sum; what FSDP keeps behind a shard
for its collectives is memory that nothing has written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from certificates.plan.types import TensorType

from ..geometry import Geometry
from ..recorder import Node, TensorRef

#: Ops that add up all that they are given, or that many dimensions of it.
_SUMS = ("aten.sum.", "aten.linalg_vector_norm.", "aten.norm.")


def padded(driver: Any, ref: TensorRef, held: torch.Tensor) -> None:
    """A state of which this rank owns no element: a collective may send what lies behind it."""
    size = held.untyped_storage().nbytes() // held.element_size()
    if size and not driver.memory.knows(ref.storage):
        driver.memory.allocate(ref.storage, ref.dtype, Geometry.contiguous((size,)))


def without_empties(driver: Any, node: Node) -> tuple[Node, bool]:
    """The op without what has no elements among its operands, and whether nothing is left of it to do."""
    refs = [t for t in tree_leaves((node.args, dict(node.kwargs), node.outs)) if isinstance(t, TensorRef)]
    if not any(map(_empty, refs)) or node.op.startswith("dist."):
        return node, False
    results = [t for t in tree_leaves((node.outs, list(node.writes))) if isinstance(t, TensorRef)]
    if all(map(_empty, results)):
        return node, True
    given = [t for t in tree_leaves((node.args, dict(node.kwargs))) if isinstance(t, TensorRef)]
    if node.op.startswith(_SUMS) and all(map(_empty, given)):
        for ref in results:
            driver.write(ref, driver.builder.constant(0.0, TensorType(ref.dtype, ref.geometry.size)))
        return node, True
    if node.op.startswith("aten.cat."):
        parts, *rest = node.args
        return replace(node, args=([t for t in parts if not _empty(t)], *rest)), False
    return node, False


def _empty(ref: TensorRef) -> bool:
    return 0 in ref.geometry.size
