"""What the schemas of PyTorch's ops say of views and writes, and what some of them leave out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Ops that say nothing about values.
_SILENT = frozenset(
    (
        *("prim.device.default", "aten.record_stream.default"),
        *("aten.is_same_size.default", "aten._has_same_storage_numel.default"),
    )
)
#: Views whose schemas do not say so.
_UNANNOTATED_VIEWS = frozenset(
    ("aten._unsafe_view.default", "aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default")
)
#: Arguments that are written though the schema does not say so.
_UNANNOTATED_WRITES = {"aten.native_batch_norm.default": ("running_mean", "running_var")}
#: Ops that change the storage of a tensor, or its size; others of their tag change what it names of its
#: storage.
_RESIZING = ("aten.resize_", "aten.set_.")
#: But this one only names all elements of another tensor, as ``x.data = y`` does.
REBINDS = "aten.set_.source_Tensor"
#: Namespaces whose ops name their process group.
_FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")
#: Namespaces of ops that PyTorch itself defines, and those of recorded calls.
PYTORCHS = frozenset(
    (
        *("aten", "prim", "prims", "quantized", "_quantized", "sparse", "mkldnn", "mkl", "onednn", "fsdp"),
        *("inductor", "inductor_prims", "streams", "rngprims", "debugprims", "profiler", "export", "pippy"),
        *("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"),
        *("higher_order", "_native", "dist", "storage", "cut"),
    )
)
_ATEN = frozenset(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))


@dataclass(frozen=True, slots=True)
class Signature:
    """What the schema of an op says, read once for all its calls.

    ``writes`` are position and name of the arguments that it changes, ``group`` those of the group's name.
    A ``composite`` op is made of others, into which autograd's dispatch takes it apart.
    """

    name: str
    silent: bool
    view: bool
    writes: tuple[tuple[int, str], ...]
    group: tuple[int, str] | None
    composite: bool

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments of a call that it changes."""
        return [args[i] if i < len(args) else kwargs.get(name) for i, name in self.writes]


@functools.cache
def signature(func: Any) -> Signature:
    name = str(func)
    arguments = list(enumerate(func._schema.arguments))
    infos = [(i, a.name, a.alias_info) for i, a in arguments]
    named = [(i, a.name) for i, a in arguments if a.name == "group_name"]
    seen = torch.Tag.inplace_view in func.tags and (name == REBINDS or not name.startswith(_RESIZING))
    return Signature(
        name,
        name in _SILENT or name.startswith("profiler."),
        seen or is_view(func, name),
        tuple(
            (i, argument)
            for i, argument, info in infos
            if (info is not None and info.is_write and not seen)
            or argument in _UNANNOTATED_WRITES.get(name, ())
        ),
        named[0] if named and func.namespace in _FUNCTIONAL else None,
        func.name() in _ATEN
        and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
    )


def is_view(func: Any, name: str) -> bool:
    """Do all results only name elements of an argument? Schemas of PyTorch's own ops say so."""
    if func.namespace not in ("aten", "prim", "prims"):
        return False
    if name in _UNANNOTATED_VIEWS:
        return True
    annotations = [r.alias_info for r in func._schema.returns]
    return bool(annotations) and all(a is not None and not a.is_write for a in annotations)


def foreign(op: str) -> bool:
    """Is the recorded ``namespace.name.overload`` an op that PyTorch does not define?

    What such a one writes only its author knows: a schema may say nothing of it.
    """
    space, _, name = op.removeprefix("complex.").partition(".")
    if space == "aten":  # a library may define ops in this namespace, too
        return f"aten::{name.removesuffix('.default')}" not in _ATEN
    return space not in PYTORCHS
