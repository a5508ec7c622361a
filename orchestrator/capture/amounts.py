"""Numbers of rows that a routing decides: what ``counts.tolist()`` gives in a trace, and sizes made of them.

A trace has no values. Of integers that are made of what a router chose (``topk``) each element that is read
is a symbol of PyTorch's, as its exporter has them: sums of such symbols may be sizes and splits, and every
question about one (``if n == 0``, ``range(n)``) is an error. All other values stay unreadable. What an amount
stands for is found when the trace is lowered (:mod:`.lowering.sizes`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .errors import LoweringError

_READS = torch.ops.aten._local_scalar_dense.default
#: The places of true elements, as many as there are.
PICKS = torch.ops.aten.nonzero.default
#: Ops that read or write at places; a mask among their indices stands for the places of its true elements.
_AT_PLACES = frozenset(
    ("index", "_unsafe_index", "index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_")
)
_UNBIND = torch.ops.aten.unbind.int
#: Ops on integers of a routing whose results are floats that stand for integers.
_COUNTS = ("histc", "_to_copy")


@dataclass(frozen=True, slots=True)
class Amount:
    """``const`` and multiples of elements that the step has read, numbered in the order of reading."""

    const: int
    terms: tuple[tuple[int, int], ...]


def amount(size: torch.SymInt) -> Amount:
    """What a symbolic integer is made of; a product of symbols, a quotient or a symbol of another step is a
    :class:`LoweringError`."""
    if not active or size.node.shape_env is not active[-1].env:
        raise LoweringError("a number of rows that another step has read")
    const, rest = size.node.expr.expand().as_coeff_Add()
    terms = rest.as_coefficients_dict() if rest.free_symbols else {}
    if not all(s.is_Symbol and c.is_Integer for s, c in terms.items()):
        raise LoweringError(f"a size {size}, which is no sum of numbers of rows")
    return Amount(int(const), tuple(sorted((int(str(s)[1:]), int(c)) for s, c in terms.items())))


def any_in(tree: Any, reference: type) -> bool:
    """Is an amount among the leaves of a tree, or a size, stride or offset of a ``reference``?"""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Amount):
            return True
        if isinstance(leaf, reference):
            g = leaf.geometry  # type: ignore[attr-defined]
            if isinstance(g.offset, Amount) or any(isinstance(n, Amount) for n in (*g.size, *g.stride)):
                return True
    return False


class Counted:
    """Which integers of a step are made of a routing, and the symbols for those that it reads."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self._storages: dict[int, torch.UntypedStorage] = {}
        #: Elements that were read.
        self.reads = 0
        #: How many true elements a mask has, by what may not change while this is so.
        self._picked: dict[object, tuple[torch.SymInt, torch.UntypedStorage]] = {}

    def at_places(self, func: Any, args: tuple[Any, ...], run: Callable[..., Any]) -> tuple[Any, ...]:
        """Arguments of an op, with the places of their true elements for masks among its indices.

        So PyTorch reads ``x[mask]``, too. What is written in all of them, and has no row for each, needs
        no places.
        """
        packet = func.overloadpacket
        if packet.__name__ not in _AT_PLACES or func.namespace != "aten":
            return args
        if len(args) > 2 and not any(map(_symbolic, args[2].shape)):
            return args
        places: list[Any] = []
        for index in args[1]:
            mask = isinstance(index, FakeTensor) and index.dtype == torch.bool and index.dim()
            if mask and args[0].shape[len(places) :][: index.dim()] != index.shape:
                return args  # which PyTorch refuses
            places += run(_UNBIND, run(PICKS, index), 1) if mask else [index]
        return args[0], places, *args[2:]

    def _true(self, mask: torch.Tensor) -> torch.SymInt:
        """As many as at the last time, unless the mask was written since: that it was not, whatever wrote it,
        is checked when this is lowered."""
        if mask.dtype != torch.bool or mask.is_inference() or any(map(_symbolic, mask.shape)):
            return self.env.create_unbacked_symint()
        storage = mask.untyped_storage()
        key = storage._cdata, mask._version, mask.storage_offset(), tuple(mask.shape), mask.stride()
        if key not in self._picked:
            self._picked[key] = self.env.create_unbacked_symint(), storage
        return self._picked[key][0]

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an op that is run in a way of its own; else ``NotImplemented``.

        ``bincount`` has as many counts as ``minlength`` says: that keys are below it is checked when it is
        lowered.
        """
        if func is _READS and self._concerns(args):
            if args[0].is_floating_point() or args[0].dtype == torch.bool:
                raise DataDependentOutputException(func)
            self.reads += 1
            return self.env.create_unbacked_symint()
        if func is PICKS and isinstance(args[0], FakeTensor):  # a device mesh looks for its ranks for real
            self.reads += 1
            return args[0].new_empty((self._true(args[0]), args[0].dim()), dtype=torch.int64)
        if func is torch.ops.aten.bincount.default and self._concerns(args):
            given = dict(zip(("input", "weights", "minlength"), args, strict=False)) | dict(kwargs)
            if given.get("weights") is None and given.get("minlength", 0) > 0:
                return args[0].new_zeros(given["minlength"], dtype=torch.int64)
        return NotImplemented

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An op was run."""
        name = func.overloadpacket.__name__
        if name == "topk":
            self.add(result[1])
        elif self._storages and self._concerns((args, kwargs)):
            for out in tree_leaves(result):
                if isinstance(out, torch.Tensor) and (name in _COUNTS or not out.is_floating_point()):
                    self.add(out)

    def passed(self, outs: Any, ins: Any) -> None:
        """A collective handed integers on."""
        if self._storages and self._concerns(ins):
            for out in tree_leaves(outs):
                if isinstance(out, torch.Tensor) and not out.is_floating_point():
                    self.add(out)

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage

    def _concerns(self, tree: Any) -> bool:
        return bool(self._storages) and any(
            isinstance(t, torch.Tensor) and t.untyped_storage()._cdata in self._storages
            for t in tree_leaves(tree)
        )


def _symbolic(size: object) -> bool:
    return isinstance(size, torch.SymInt)


class Unrecorded(TorchDispatchMode):  # type: ignore[misc]
    """A step that is dropped reads numbers of rows as one that is recorded does."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = Counted()

    def __enter__(self) -> Unrecorded:
        active.append(self.counted)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        active.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(unwraps_itself, types)):
            return NotImplemented  # what it does to local tensors comes here
        args = self.counted.at_places(func, args, lambda op, *given: self.__torch_dispatch__(op, (), given))
        result = self.counted.run(func, args, kwargs or {})
        if result is NotImplemented:
            result = func(*args, **(kwargs or {}))
        self.counted.note(func, args, kwargs or {}, result)
        return result


@functools.cache
def unwraps_itself(kind: type) -> bool:
    """Is a tensor of this class a wrapper, whose ops are those of what it holds?"""
    return issubclass(kind, DTensor | AsyncCollectiveTensor)


active: list[Counted] = []
"""That of the step which runs, the innermost last."""
