"""Has a sharded checkpoint the tensors, shapes and layout of the input relation?

That the initial state satisfies the input relation is the premise of the invariant. A checkpoint of
`torch.distributed.checkpoint` says of every tensor its size and which boxes of it were stored; ranks that
hold the same box store it once. What the numbers are is nobody's claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from ..errors import Undecided, need
from ..language.affine import Affine
from ..language.plan import Piece, Plan
from ..rules.roles import states
from .foreign import Foreign
from .inert import Record, unpickled

MAX_CELLS = 1 << 22
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""
#: How checkpoints call a state of the plan, by the plan's name for it: the first that is there counts.
NAMES = (
    (re.compile(r"params\.(.+)"), ("model.{}", "{}", "state_dict.model.{}")),
    (re.compile(r"buffers\.(.+)"), ("model.{}", "{}", "state_dict.model.{}")),
    (
        re.compile(r"opt\.([a-z_]+)\.(.+)"),
        ("optimizer.state.{1}.{0}", "optim.state.{1}.{0}", "state.{1}.{0}", "optimizer.{1}.{0}"),
    ),
)


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint."""

    size: tuple[int, ...]
    chunks: tuple[Box, ...]


def compare(plan: Plan, metadata: bytes) -> list[str]:
    """What was compared, in words; `Foreign` names the first state that is missing or lies otherwise."""
    stored, lines, known = tensors(metadata), 0, set[str]()
    shapes = plan.spec.inputs
    wanted = [name for name in states(plan) if name in shapes]
    for state in wanted:
        name = called(state, stored)
        known.add(name)
        found, shape = stored[name], shapes[state].shape
        if found.size != shape:
            raise Foreign(f"{name} of the checkpoint has the size {list(found.size)}, {state} {list(shape)}")
        _tiles(name, found)
        held = set(boxes(plan, state))
        if held != set(found.chunks):
            odd = min(held ^ set(found.chunks))
            whose = "the plan's, not the checkpoint's" if odd in held else "the checkpoint's, not the plan's"
            raise Foreign(
                f"{name} of the checkpoint is cut otherwise than {state}: the part at {list(odd[0])} of size "
                f"{list(odd[1])} is {whose}"
            )
        lines += 1
    if not lines:
        raise Foreign("the plan has no state that a checkpoint could hold")
    rest = len(set(stored) - known)
    said = f"checkpoint: {lines} states have the shapes and the layout of the input relation"
    return [said + (f"; {rest} more tensors were not compared" if rest else "")]


def called(state: str, stored: Mapping[str, Stored]) -> str:
    """The checkpoint's name for a state."""
    tried = [state]
    for pattern, names in NAMES:
        if found := pattern.fullmatch(state):
            tried += [name.format(*found.groups()) for name in names]
    for name in tried:
        if name in stored:
            return name
    raise Foreign(f"the checkpoint has no tensor for the state {state} (tried {', '.join(tried)})")


def tensors(metadata: bytes) -> dict[str, Stored]:
    """The tensors of the file `.metadata`; nothing of it is run."""
    top = unpickled(metadata)
    what = "metadata: no checkpoint of torch.distributed.checkpoint"
    need(isinstance(top, Record) and top.name.endswith(".Metadata") and isinstance(top.state, dict), what)
    entries = top.state.get("state_dict_metadata")
    need(isinstance(entries, dict), what)
    found: dict[str, Stored] = {}
    for name, entry in entries.items():
        need(isinstance(name, str) and isinstance(entry, Record), what)
        if entry.name.endswith(".TensorStorageMetadata"):
            need(isinstance(entry.state, dict) and isinstance(entry.state.get("chunks"), list), what)
            found[name] = Stored(
                _size(entry.state.get("size"), what), tuple(_chunk(c, what) for c in entry.state["chunks"])
            )
    return found


def _chunk(chunk: Any, what: str) -> Box:
    need(isinstance(chunk, Record) and isinstance(chunk.state, dict), what)
    return _size(chunk.state.get("offsets"), what), _size(chunk.state.get("sizes"), what)


def _size(size: Any, what: str) -> tuple[int, ...]:
    """A `torch.Size`."""
    need(isinstance(size, Record) and size.name == "torch.Size" and len(size.arguments) == 1, what)
    numbers = size.arguments[0]
    good = isinstance(numbers, tuple | list) and all(type(n) is int and 0 <= n < 1 << 40 for n in numbers)
    need(good, what)
    return tuple(numbers)


def _tiles(name: str, found: Stored) -> None:
    """Every element of a tensor is stored once: boxes inside, as many elements, no two with a common one."""
    rank = len(found.size)
    for offsets, sizes in found.chunks:
        inside = len(offsets) == len(sizes) == rank and all(
            o + n <= whole for o, n, whole in zip(offsets, sizes, found.size, strict=True)
        )
        if not inside:
            raise Foreign(f"a part of {name} lies outside of it")
    if sum(prod(sizes) for _, sizes in found.chunks) != prod(found.size) or _overlap(found.chunks):
        raise Foreign(f"the parts of {name} do not make the whole tensor")


def _overlap(chunks: Sequence[Box]) -> bool:
    """Have two boxes a common element? Cut along all their ends, none may be met twice."""
    chunks = [c for c in chunks if prod(c[1])]
    rank = len(chunks[0][0]) if chunks else 0
    ends = [sorted({e for o, n in chunks for e in (o[d], o[d] + n[d])}) for d in range(rank)]
    places = [{end: i for i, end in enumerate(line)} for line in ends]
    seen: set[tuple[int, ...]] = set()
    for offsets, sizes in chunks:
        spans = [range(p[o], p[o + n]) for p, o, n in zip(places, offsets, sizes, strict=True)]
        for cell in product(*spans):
            if cell in seen:
                return True
            seen.add(cell)
            if len(seen) > MAX_CELLS:
                raise Undecided("the parts of a tensor of the checkpoint are too many to compare")
    return False


def boxes(plan: Plan, state: str) -> Iterator[Box]:
    """Which boxes of a state the ranks hold, as the input relation says; empty ones are left out."""
    for relation in plan.inputs:
        if relation.spec != state:
            continue
        if relation.reduce or relation.coef != 1:
            raise Undecided(f"the ranks hold {state} in summands or scaled, which no checkpoint stores")
        for piece in relation.pieces:
            yield from _held(plan, state, piece)


def _held(plan: Plan, state: str, piece: Piece) -> Iterator[Box]:
    digits, axes = piece.digits(), [a for a, _ in plan.mesh]
    used = sorted({n for form in piece.spec for n in form.names() if n in axes}, key=axes.index)
    box = plan.box(piece.cls)
    sizes = [_length(state, form, digits) for form in piece.spec]
    if prod(sizes) != prod(piece.sizes):
        raise Undecided(f"the part of {state} that a rank holds is no box of it")
    for at in product(*(range(*box[a]) for a in used)):
        place = dict(zip(used, at, strict=True)) | dict.fromkeys(digits, 0)
        corner = tuple(form.const + sum(c * place[s] for s, c in form.terms) for form in piece.spec)
        if prod(sizes):
            yield corner, tuple(sizes)


def _length(state: str, form: Affine, digits: Mapping[str, tuple[int, int]]) -> int:
    """How many indices a form runs through without a gap, as its digits run."""
    steps = sorted((c, digits[s][1]) for s, c in form.terms if s in digits and digits[s][1] > 1)
    length = 1
    for step, count in steps:
        if step != length:
            raise Undecided(f"the part of {state} that a rank holds is no box of it")
        length *= count
    empty = any(digits[s][1] == 0 for s, _ in form.terms if s in digits)
    return 0 if empty else length
