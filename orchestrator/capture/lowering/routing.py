"""Integers made of a routing, as numbers on some random routings: by what they compute they are recognised.

Which experts each token has (``topk``) is drawn here at true sizes, a few times, evenly and unevenly; code on
such integers (counts, running sums, orders of rows, splits) is run as PyTorch runs it. Only ops take part
whose results no single routing can make another kind of number: sums, moves, repetitions; look-ups, writes,
counts and sorts that name every place in some draw; and functions of one number that is seen with every value
it may have. So what agrees with a known order on all draws is it, and whatever else there is has no numbers
(ADR 0186).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from certificates.plan.affine import Affine

from ..amounts import Amount
from ..builder import Builder, Draft, Value
from ..errors import LoweringError
from ..recorder import DTYPES, Node, TensorRef
from .drawn import DRAWS, MANY, OF_MANY, Choice
from .kept_numbers import KeptNumbers, Numbers

#: In as many of them what is told apart must differ.
ENOUGH = 3
#: What is kept of all tensors, in bytes, before those are let go that nothing reads any more.
KEPT = 1 << 30

_TYPES = {name: dtype for dtype, name in DTYPES.items()}
_MOVES = ("reshape", "transpose", "broadcast_in_dim", "slice", "concatenate", "convert")
#: Ops that are run on drawn integers. Those of one number need one that is seen whole.
_RUN = frozenset(
    (
        *("clone", "_to_copy", "_unsafe_view", "cat", "stack", "flip", "repeat", "add", "sub", "rsub", "neg"),
        *("mul", "sum", "cumsum", "sort", "bincount", "histc", "scatter", "scatter_add", "index_put", "copy"),
        *(
            "index_copy",
            "index_add",
            "index_select",
            "index",
            "gather",
            "repeat_interleave",
            "zeros_like",
            "arange",
        ),
    )
)
#: Types in which integers stay what they are.
_EXACT = (None, "i64", "i32", "f32", "f64")
#: What counts or orders numbers by the range in which they lie.
_BY_RANGE = frozenset(("sort", "bincount", "histc"))
#: What gives numbers of its first operand, or places in it, and no other ones.
_PICKS = frozenset(
    (
        *("index", "gather", "index_select", "sort", "flip", "repeat", "cat", "stack", "clone", "_to_copy"),
        "_unsafe_view",
    )
)
_OF_ONE_NUMBER = frozenset(("eq", "ne", "floor_divide", "remainder", "div"))


@dataclass
class Routing:
    """What integers of one program are on the drawn routings, by the names of values."""

    b: Builder
    numbers: KeptNumbers = field(default_factory=KeptNumbers)
    #: What a router chose, by name.
    _chosen: dict[str, Choice] = field(default_factory=dict)
    #: Orders of all rows: each number of a row is there once.
    whole: set[str] = field(default_factory=set)
    #: What was taken from numbers of a known range, by name; and what the last op has so taken.
    _ranged: set[str] = field(default_factory=set)
    _taken: list[Numbers] = field(default_factory=list)
    #: Sorts so far; two put equal numbers in different orders where they may.
    _sorts: int = 0
    #: What is drawn, as the first choice says.
    draws: tuple[str, ...] = DRAWS
    #: Bytes that numbers may take before it is asked what will be read again.
    _most: int = 0

    def choose(self, ids: Value, count: int, dim: int) -> None:
        """``ids`` are different ones of ``count`` keys along ``dim``."""
        if ids.name in self._chosen:  # computed again
            self._keep(ids.name, self._of(ids) or ())
            return
        if not self._chosen and ids.type.size >= MANY:
            self.draws = OF_MANY
        self._chosen[ids.name] = choice = Choice(ids.shape, dim, count, len(self._chosen), self.draws)
        with _disable_current_modes():
            self._keep(ids.name, choice.here())

    def _keep(self, name: str, numbers: Numbers) -> Numbers:
        """What is known of a value by now."""
        if name in self.numbers:
            return self.numbers[name]
        self.numbers[name] = numbers
        return numbers

    @property
    def full(self) -> bool:
        """Is it time to ask what will be read again?"""
        return self.numbers.bytes > max(KEPT, self._most)

    def forget(self, read: Iterable[Value]) -> None:
        """Keep the numbers of what will be ``read``, and of what that is moved from. What has none any more
        is as unknown as what never had any; a choice is drawn again where it is asked for."""
        waiting, kept = [v.name for v in read], set[str]()
        while waiting:
            name = waiting.pop()
            if name not in kept:
                kept.add(name)
                draft = self.b.drafts.get(name)
                waiting += draft.ins if draft is not None and draft.name in _MOVES else ()
        self.numbers.only(kept)
        self._most = 2 * self.numbers.bytes

    def rests(self, x: Value) -> bool:
        """Is ``x`` made of a routing, as far as is known here?"""
        return bool(self.numbers) and self._rests(x.name)

    def _rests(self, name: str) -> bool:
        if name in self.numbers:
            return True
        draft = self.b.drafts.get(name)
        return draft is not None and draft.name in _MOVES and any(map(self._rests, draft.ins))

    def of(self, x: Value) -> Numbers | None:
        """The numbers of ``x``; ``None`` if it rests on something else."""
        with _disable_current_modes():
            return self._of(x)

    def elsewhere(self, x: Value, ranks: int) -> list[Numbers]:
        """Those on other ranks, where the router chose anew, of a choice or what is moved from one."""
        with _disable_current_modes():
            drawn = cache(lambda name: self._chosen[name].elsewhere(ranks))
            found = [self._of(x, partial(_on, drawn, rank)) for rank in range(ranks)]
        return [numbers for numbers in found if numbers is not None]

    def keys(self, x: Value) -> int | None:
        """The number of keys that the elements of ``x`` are of, moved from a router's choice."""
        while x.name not in self._chosen:
            draft = self.b.draft(x)
            if draft is None or draft.name not in _MOVES or draft.name == "concatenate":
                return None
            x = self.b.operand(x)
        return self._chosen[x.name].count if x.type.sort == "Int" else None

    def note(self, x: Value, numbers: Numbers) -> None:
        """``x`` was computed; what is computed in two ways that differ has no numbers. What is moved from
        known numbers has these, and none of its own."""
        if any(numbers is n for n in self._taken):
            self._ranged.add(x.name)
        draft = self.b.draft(x)
        if draft is not None and draft.name in ("reshape", "transpose"):  # the builder looks through these
            source = self.b.operand(x)
            perm = [int(str(p)) for p in dict(draft.attrs).get("perm", ())]  # type: ignore[union-attr]
            back = [n.permute([perm.index(d) for d in range(len(perm))]) if perm else n for n in numbers]
            if all(n.shape == x.shape for n in numbers):
                self.note(source, tuple(n.reshape(source.shape) for n in back))
        moved = draft is not None and draft.name in _MOVES
        known = (self.of(x) if moved else None) or self._keep(x.name, numbers)
        if any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(known, numbers, strict=True)):
            raise LoweringError("two sorts of equal numbers, which need not agree in the order of these")

    def run(
        self,
        node: Node,
        read: Callable[[TensorRef], Value],
        drawn: Callable[[Sequence[Amount | int]], Numbers | None],
    ) -> dict[TensorRef, Numbers]:
        """The numbers of what an op gives or writes, if it is one of those that are run here; ``drawn`` tells
        those of amounts."""
        name = node.op.split(".")[1] if node.op.startswith("aten.") else ""
        name = name.removesuffix("_")
        if not self.numbers or name not in _RUN | _OF_ONE_NUMBER or node.view:
            return {}
        refs = _tensors((node.args, dict(node.kwargs)))
        values = {ref: read(ref) for ref in refs if 0 not in ref.geometry.size}
        routed = [v for v in values.values() if self.rests(v)]
        if not (routed or (node.sized and name == "arange")) or (name == "mul" and len(routed) > 1):
            return {}
        if name in _OF_ONE_NUMBER and not (len(routed) == 1 and self._seen_whole(routed[0])):
            return {}
        if name == "_to_copy" and node.kwargs.get("dtype") not in _EXACT:
            return {}
        given = {ref: self.of(value) for ref, value in values.items()}
        if any(numbers is None and ref not in node.writes for ref, numbers in given.items()):
            return {}
        lookups = _lookups(node, name)
        if not all(covered(given.get(index), given.get(of), size) for index, of, size in lookups):
            return {}
        if name in _BY_RANGE and not all(self._bounded(values[index].name) for index, _, _ in lookups):
            return {}
        with _disable_current_modes(), torch.no_grad():
            self._sorts += name == "sort"
            found = _evaluated(node, name, given, drawn, self._sorts, len(self.draws))
        of = [values[ref].name for ref in _tensors(node.args[0]) if ref in values] if name in _PICKS else []
        ranged = bool(of) and all(map(self._bounded, of))
        self._taken = list(found.values()) if ranged else []  # of no op before: they are let go
        return found

    def _bounded(self, name: str) -> bool:
        """Is it known which values these numbers may have, and not only which they had in the draws? A sort
        compares with more than one draw shows, and counts leave out, or go on, where a value is beyond them.
        """
        if name in self._chosen or name in self.whole or name in self._ranged:
            return True
        draft = self.b.drafts.get(name)
        if draft is None or draft.name not in (*_MOVES, "constant", "iota"):
            return False
        return all(map(self._bounded, draft.ins))

    def _seen_whole(self, x: Value) -> bool:
        """Does each value that ``x`` may have occur in the draws?"""
        while x.name not in self._chosen and x.name not in self.whole:
            draft = self.b.draft(x)
            if draft is None or draft.name not in ("reshape", "transpose", "broadcast_in_dim", "convert"):
                return False
            x = self.b.operand(x)
        if x.name in self.whole:
            return True
        seen = torch.unique(torch.cat([n.flatten() for n in self._of(x) or ()]))
        return len(seen) == self._chosen[x.name].count

    def _of(self, x: Value, chosen: Callable[[str], Numbers] | None = None) -> Numbers | None:
        """Those that rest on what was ``chosen`` elsewhere, if that is given."""
        if chosen is None and x.name in self.numbers:
            return self.numbers[x.name]
        if x.name in self._chosen:
            return self._chosen[x.name].here() if chosen is None else chosen(x.name)
        draft = self.b.draft(x)
        if draft is None:
            return None
        if draft.name in ("constant", "iota"):
            found = _literal(draft)
            return None if found is None else (found,) * len(self.draws)
        if draft.name not in _MOVES:
            return None
        parts = [self._of(self.b.operand(x, i), chosen) for i in range(len(draft.ins))]
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        shapes = [self.b.operand(x, i).shape for i in range(len(draft.ins))]
        moved = [_moved(draft, draws, shapes) for draws in zip(*known, strict=True)]
        return None if any(m is None for m in moved) else tuple(m for m in moved if m is not None)


def _on(drawn: Callable[[str], list[Numbers]], rank: int, name: str) -> Numbers:
    return drawn(name)[rank]


def _lookups(node: Node, name: str) -> list[tuple[TensorRef, TensorRef, int]]:
    """Tensors whose elements say where, in what, and how many places there are: -1 for those of a sort."""
    args, found = node.args, list[tuple[TensorRef, TensorRef, int]]()
    if name in ("index", "index_put"):
        found = [(at, args[0], args[0].geometry.size[d]) for d, at in enumerate(args[1]) if at is not None]
    elif name in ("gather", "scatter", "scatter_add", "index_select", "index_add", "index_copy"):
        size = args[0].geometry.size
        found = [(args[2], args[0], size[args[1]] if size else 1)]
    elif name == "bincount":
        found = [(args[0], node.outs, node.outs.geometry.size[0])]
    elif name == "histc":
        found = [(args[0], node.outs, int(args[1]))]
    elif name == "sort":
        found = [(args[0], args[0], -1)]
    return found


def covered(at: Numbers | None, of: Numbers | None, size: int) -> bool:
    """Is each place named in some draw, so that no routing finds what no draw has found?

    Where there are as many rows as a routing decides, each is in each draw. What is no number of a routing
    names the same places in all draws.
    """
    if at is None or all(torch.equal(at[0], n) for n in at):
        return True
    if of is not None and of is not at and len({len(n) for n in of}) > 1:
        return all(_named(n, len(t)) for n, t in zip(at, of, strict=True))
    if all(_named(n, n.numel()) for n in at):
        return size in (-1, at[0].numel())
    every = torch.cat([n.flatten() for n in at])
    return _named(every, int(every.max()) + 1 if size < 0 else size)


def _named(numbers: torch.Tensor, count: int) -> bool:
    """Are all numbers below ``count`` there, and no other one?"""
    seen = torch.unique(numbers)
    return len(seen) == count and (not count or (int(seen[0]) == 0 and int(seen[-1]) == count - 1))


def _literal(draft: Draft) -> torch.Tensor | None:
    dtype = _TYPES[draft.type.dtype]
    if draft.name == "iota":
        dim, shape = int(str(draft.attr("dim"))), draft.type.shape
        line = torch.arange(shape[dim], dtype=dtype)
        return line.reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)
    value = draft.attr("value")
    if isinstance(value, Affine):
        number: Any = None if value.terms else value.const
    else:
        number = {"true": True, "false": False, "0": 0, "1": 1}.get(str(value))
    return None if number is None else torch.tensor(number, dtype=dtype).expand(draft.type.shape)


def _moved(
    draft: Draft, parts: Sequence[torch.Tensor], shapes: Sequence[tuple[int, ...]]
) -> torch.Tensor | None:
    """One draw of what a move gives; a number of rows that is another in each draw may stay in front."""
    x, shape = parts[0], draft.type.shape
    attrs: Mapping[str, Any] = dict(draft.attrs)
    if any(tuple(p.shape) != s for p, s in zip(parts, shapes, strict=True)):
        front = shapes[0][:1] == shape[:1] and len(parts) == 1 and x.dim() == len(shapes[0])
        if not front or draft.name not in ("reshape", "broadcast_in_dim", "convert"):
            return None
        shape = (x.shape[0], *shape[1:])
    match draft.name:
        case "reshape":
            return x.reshape(shape)
        case "transpose":
            return x.permute([int(str(p)) for p in attrs["perm"]])
        case "broadcast_in_dim":
            dims = [int(str(d)) for d in attrs["dims"]]
            return x.reshape([x.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))]).expand(
                shape
            )
        case "concatenate":
            return torch.cat(list(parts), attrs["dim"])
        case "convert":
            return x.to(_TYPES[draft.type.dtype]) if draft.type.dtype in _EXACT else None
    if any(a.terms for a in attrs["start"]):
        return None
    ends = zip(attrs["start"], attrs["stride"], shape, strict=True)
    return x[tuple(slice(a.const, a.const + (n - 1) * s + 1, s) for a, s, n in ends)]


def _evaluated(
    node: Node,
    name: str,
    given: Mapping[TensorRef, Numbers | None],
    drawn: Callable[[Sequence[Amount | int]], Numbers | None],
    seed: int,
    draws: int,
) -> dict[TensorRef, Numbers]:
    op: Any = torch.ops
    for part in node.op.split("."):
        op = getattr(op, part)
    targets = list(node.writes) or _tensors(node.outs)
    found: dict[TensorRef, list[torch.Tensor]] = {t: [] for t in targets}
    for draw in range(draws):
        call = _Call(given, frozenset(node.writes), drawn, draw)
        try:
            args = [call.argument(a) for a in node.args]
            kwargs = {k: call.argument(v) for k, v in node.kwargs.items() if v is not None and k != "device"}
            results = _sorted(args, kwargs, 100 * seed + draw) if name == "sort" else op(*args, **kwargs)
            results = [call.held[t] for t in targets] if node.writes else tree_leaves(results)
        except (RuntimeError, IndexError, TypeError, ValueError, KeyError):
            return {}
        for target, result in zip(targets, results, strict=True):
            found[target].append(result)
    return {t: tuple(n) for t, n in found.items() if all(fits(t, x, node.sized) for x in n)}


def fits(ref: TensorRef, x: torch.Tensor, sized: bool) -> bool:
    """May ``x`` be what a tensor is on a draw? A number of rows in front may be another on each."""
    size = ref.geometry.size
    same = len(x.shape) == len(size) and tuple(x.shape[sized:]) == size[sized:]
    return same and x.dtype == _TYPES[ref.dtype]


@dataclass
class _Call:
    """Arguments of a call on one draw."""

    given: Mapping[TensorRef, Numbers | None]
    writes: frozenset[TensorRef]
    drawn: Callable[[Sequence[Amount | int]], Numbers | None]
    draw: int
    held: dict[TensorRef, torch.Tensor] = field(default_factory=dict)

    def argument(self, x: Any) -> Any:
        """A ``KeyError`` for what is not known."""
        if isinstance(x, list | tuple):
            return [self.argument(item) for item in x]
        if isinstance(x, Amount):
            found = self.drawn([x])
            if found is None:
                raise KeyError(x)
            return int(found[self.draw])
        if not isinstance(x, TensorRef):
            return _TYPES.get(x, x) if isinstance(x, str) else x
        numbers = self.given.get(x)
        if x not in self.held and numbers is not None:
            self.held[x] = numbers[self.draw].clone() if self.writes else numbers[self.draw]
        elif x not in self.held and x in self.writes:
            self.held[x] = _garbage(x, self.draw)
        return self.held[x]


def _garbage(ref: TensorRef, draw: int) -> torch.Tensor:
    """Memory of which nothing is known."""
    generator = torch.Generator().manual_seed(draw)
    wild = torch.randint(-(1 << 30), 1 << 30, ref.geometry.size, generator=generator)
    return wild.to(_TYPES[ref.dtype])


def _sorted(args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As PyTorch sorts; equal numbers in any order where nothing says that they stay as they were."""
    x = args[0]
    if kwargs.get("stable"):
        return torch.sort(*args, **kwargs)  # type: ignore[no-any-return]
    if x.dim() != 1:
        raise ValueError("a sort of rows that is not stable")
    named = dict(zip(("dim", "descending"), args[1:], strict=False)) | dict(kwargs)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(x), generator=generator)
    values, places = torch.sort(x[shuffled], stable=True, descending=bool(named.get("descending")))
    return values, shuffled[places]


def read_by(nodes: Iterable[Node]) -> set[int]:
    """Storages that these ops read, or write in part."""
    return {t.storage for node in nodes for t in _tensors((node.args, dict(node.kwargs)))}


def _tensors(tree: Any) -> list[TensorRef]:
    return [t for t in tree_leaves(tree) if isinstance(t, TensorRef)]
